"""Forward mode: a value travels together with its tangent.

:class:`JVPTrace` runs the jvp rule of each primitive with the parent trace current, so primal and
tangent computations go to whatever was interpreted outside: evaluation, recording or another jvp.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from trnx.core import Aval, Params, Primitive, Program, Trace, Tracer, aval_of, eval_program
from trnx.core.errors import TraceError, message
from trnx.core.primitive import Zero
from trnx.core.program_cache import cached_by_program
from trnx.core.source import current_source
from trnx.core.tracing import current_trace, trace_program, use_trace
from trnx.transforms import zeros
from trnx.transforms.zeros import Instantiate


class JVPTracer(Tracer):
    """A primal value of the parent trace and its tangent, never a symbolic zero."""

    __slots__ = ("primal", "tangent")

    def __init__(self, trace: JVPTrace, primal: Any, tangent: Any) -> None:
        self._trace = trace
        self.aval = primal.aval if isinstance(primal, Tracer) else aval_of(primal)
        self.source = current_source()
        self.primal = primal
        self.tangent = tangent

    def concrete(self) -> Any:
        return self.primal.concrete() if isinstance(self.primal, Tracer) else self.primal

    def provenance(self) -> str:
        return self.primal.provenance() if isinstance(self.primal, Tracer) else ""


class JVPTrace(Trace):
    """Applies jvp rules.

    Args:
        parent: the trace primal and tangent computations go to.
        name: name of the user's function, for error texts.
    """

    __slots__ = ("context", "rule_trace")

    kind = "derivative"

    def __init__(self, parent: Trace, name: str = "") -> None:
        super().__init__(parent, name)
        self.rule_trace: Trace = parent
        self.context: Any = JVPContext()

    def split(self, operand: Any) -> tuple[Any, Any]:
        """Primal and tangent of an operand."""
        if isinstance(operand, JVPTracer) and operand._trace is self:
            return operand.primal, operand.tangent
        if isinstance(operand, Tracer):
            self.check_operand(operand)
        return operand, zeros.zero_of(operand)

    def join(self, primal: Any, tangent: Any) -> Any:
        """A tracer for the pair; the bare primal when there is no tangent."""
        if isinstance(tangent, Zero) or not zeros.has_tangent(aval_of(primal)):
            return primal
        return JVPTracer(self, primal, tangent)

    def process(
        self, primitive: Primitive, operands: Sequence[Any], params: Params
    ) -> Sequence[Any]:
        if not self.alive:
            raise TraceError(message(f"The derivative of {self.name} has ended", None, ""))
        primals: list[Any] = []
        tangents: list[Any] = []
        any_tangent = False
        for operand in operands:
            primal, tangent = self.split(operand)
            primals.append(primal)
            tangents.append(tangent)
            any_tangent = any_tangent or not isinstance(tangent, Zero)
        token = current_trace.set(self.rule_trace)
        try:
            if not any_tangent:
                return self.rule_trace.process(primitive, primals, params)
            outs, out_tangents = self.apply_rule(primitive, primals, tangents, params)
        finally:
            current_trace.reset(token)
        return [self.join(p, t) for p, t in zip(outs, out_tangents, strict=True)]

    def apply_rule(
        self, primitive: Primitive, primals: list[Any], tangents: list[Any], params: Params
    ) -> tuple[Sequence[Any], Sequence[Any]]:
        """Outputs and their tangents, by the primitive's jvp rule."""
        return apply_jvp(self.context, primitive, primals, tangents, params)


class JVPContext:
    """What rules of primitives with sub-programs get."""

    __slots__ = ()

    def jvp(
        self, program: Program, nonzero: tuple[bool, ...], instantiate: Instantiate = False
    ) -> tuple[Program, tuple[bool, ...]]:
        """See :func:`jvp_program`."""
        return jvp_program(program, nonzero, instantiate)


def apply_jvp(
    context: Any,
    primitive: Primitive,
    primals: Sequence[Any],
    tangents: Sequence[Any],
    params: Params,
) -> tuple[Sequence[Any], Sequence[Any]]:
    """Outputs and output tangents of one primitive under the current trace.

    Raises:
        RuleError: the primitive has no jvp rule.
    """
    if primitive.jvp_all is not None:
        outs, out_tangents = primitive.jvp_all(context, primals, tangents, **params)
        return outs, out_tangents
    outs = primitive.bind_all(primals, params)
    if not any(zeros.has_tangent(aval_of(out)) for out in outs):
        return outs, [zeros.zero_of(out) for out in outs]
    if primitive.is_linear:
        return outs, primitive.bind_all(zeros.instantiate_all(tangents), params)
    rules = primitive.jvp_rules
    if rules is None:
        raise primitive.missing_rule("jvp")
    out = list(outs) if primitive.multiple_results else outs[0]
    totals: list[Any] = [zeros.zero_of(value) for value in outs]
    for index, tangent in enumerate(tangents):
        rule = rules[min(index, len(rules) - 1)]
        if rule is None or isinstance(tangent, Zero):
            continue
        share = rule(tangent, *primals, out=out, **params)
        shares = share if primitive.multiple_results else (share,)
        totals = [zeros.add(a, b) for a, b in zip(totals, shares, strict=True)]
    for value, total in zip(outs, totals, strict=True):
        if not isinstance(total, Zero) and not zeros.fits(total, aval_of(value)):
            raise TraceError(
                message(
                    f"The jvp rule of {primitive.name} gives a tangent {aval_of(total)} "
                    f"for an output {aval_of(value)}",
                    None,
                    f"Correct the rule in {primitive.file}",
                )
            )
    return outs, totals


def jvp_flat(
    function: Callable[..., Sequence[Any]],
    primals: Sequence[Any],
    tangents: Sequence[Any],
    name: str = "",
) -> tuple[list[Any], list[Any]]:
    """Outputs and output tangents of a function of flat arguments.

    Args:
        function: takes and returns sequences of values.
        primals: arguments.
        tangents: one tangent or Zero per argument.
        name: name of the user's function.

    Returns:
        Outputs and their tangents; tangents may be Zero.
    """
    parent = current_trace.get()
    trace = JVPTrace(parent, name)
    try:
        with use_trace(trace):
            outs = function(*[trace.join(p, t) for p, t in zip(primals, tangents, strict=True)])
            pairs = [trace.split(out) for out in outs]
    finally:
        trace.end()
    return [primal for primal, _ in pairs], [tangent for _, tangent in pairs]


@cached_by_program
def jvp_program(
    program: Program, nonzero: tuple[bool, ...], instantiate: Instantiate = False
) -> tuple[Program, tuple[bool, ...]]:
    """The jvp of a program as a program.

    Args:
        program: a program.
        nonzero: which inputs have a tangent.
        instantiate: outputs whose tangent is an array of zeros when it is symbolically zero: all,
            none or a flag per output. Outputs without tangents (integers) never get one.

    Returns:
        A program that takes the inputs and then the nonzero tangents, and returns the outputs and
        then the nonzero output tangents; and which output tangents those are.
    """
    out_nonzero: tuple[bool, ...] = ()

    def forward(*values: Any) -> list[Any]:
        nonlocal out_nonzero
        count = len(program.inputs)
        given = iter(values[count:])
        tangents = [
            next(given) if flag else zeros.zero_of(value)
            for flag, value in zip(nonzero, values[:count], strict=True)
        ]
        outs, out_tangents = jvp_flat(
            lambda *args: eval_program(program, args), values[:count], tangents, program.name
        )
        wanted = zeros.flags(instantiate, len(outs))
        out_tangents = [
            zeros.instantiate(t) if flag and zeros.has_tangent(aval_of(o)) else t
            for o, t, flag in zip(outs, out_tangents, wanted, strict=True)
        ]
        out_nonzero = zeros.nonzero_mask(out_tangents)
        return [*outs, *(t for t in out_tangents if not isinstance(t, Zero))]

    avals: list[Aval] = list(program.in_avals)
    avals += [a.strong() for a, flag in zip(program.in_avals, nonzero, strict=True) if flag]
    result = trace_program(forward, avals, f"jvp_{program.name}")
    return result, out_nonzero
