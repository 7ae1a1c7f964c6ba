"""Linearize: run the primal once and record the tangent computation as a linear program.

Rules are the jvp rules. They run under :class:`TangentTrace`, which records only what depends on a
tangent and sends everything else to the parent trace. So primal values that the linear program
needs (residuals) are computed once, and become constants of the linear program.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from trnx.core import (
    Aval,
    Params,
    Primitive,
    Program,
    RecordTrace,
    Trace,
    Var,
    Zero,
    aval_of,
    constants_to_inputs,
    eval_program,
    prune,
)
from trnx.core.program_cache import cached_by_program
from trnx.core.tracing import RecordTracer, current_trace, use_trace
from trnx.transforms import zeros
from trnx.transforms.jvp import JVPContext, JVPTrace, apply_jvp
from trnx.transforms.zeros import Instantiate


class TangentTrace(RecordTrace):
    """Records equations that depend on a tangent; the parent processes all others."""

    __slots__ = ()

    kind = "linear part"

    def process(
        self, primitive: Primitive, operands: Sequence[Any], params: Params
    ) -> Sequence[Any]:
        for operand in operands:
            if type(operand) is RecordTracer and operand._trace is self:
                return RecordTrace.process(self, primitive, operands, params)
        assert self.parent is not None
        return self.parent.process(primitive, operands, params)


class LinearizeTrace(JVPTrace):
    """A jvp trace whose tangents are variables of a linear program."""

    __slots__ = ("tangents",)

    kind = "derivative"

    def __init__(self, parent: Trace, name: str = "") -> None:
        super().__init__(parent, name)
        self.tangents = TangentTrace(name, parent)
        self.rule_trace = self.tangents
        self.context = LinearizeContext()

    def apply_rule(
        self, primitive: Primitive, primals: list[Any], tangents: list[Any], params: Params
    ) -> tuple[Sequence[Any], Sequence[Any]]:
        if primitive.linearize is not None:
            outs, out_tangents = primitive.linearize(self.context, primals, tangents, **params)
            return outs, out_tangents
        outs, out_tangents = apply_jvp(self.context, primitive, primals, tangents, params)
        if primitive.jvp_all is not None:
            for out in outs:
                if isinstance(out, RecordTracer) and out._trace is self.tangents:
                    # The rule computes primals and tangents in one equation: not separable.
                    raise primitive.missing_rule("linearize")
        return outs, out_tangents

    def end(self) -> None:
        super().end()
        self.tangents.end()


@dataclass(frozen=True, slots=True)
class Linearized:
    """A function linearized at a point.

    Attributes:
        outs: primal outputs.
        program: linear program from the nonzero input tangents to the nonzero output tangents;
            its constants are the residuals.
        out_nonzero: which outputs have a tangent.
    """

    outs: list[Any]
    program: Program
    out_nonzero: tuple[bool, ...]


def linearize_flat(
    function: Callable[..., Sequence[Any]],
    primals: Sequence[Any],
    nonzero: Sequence[bool],
    name: str = "",
) -> Linearized:
    """Linearize a function of flat arguments at `primals` under the current trace.

    Args:
        function: takes and returns sequences of values.
        primals: arguments.
        nonzero: which arguments have a tangent.
        name: name of the user's function.
    """
    trace = LinearizeTrace(current_trace.get(), name)
    record = trace.tangents
    try:
        with use_trace(trace):
            args = [
                trace.join(value, record.add_input(aval_of(value).strong())) if flag else value
                for value, flag in zip(primals, nonzero, strict=True)
            ]
            pairs = [trace.split(out) for out in function(*args)]
        kept = [tangent for _, tangent in pairs if not isinstance(tangent, Zero)]
        program = prune(record.build(kept))
    finally:
        trace.end()
    return Linearized(
        [primal for primal, _ in pairs], program, zeros.nonzero_mask([t for _, t in pairs])
    )


@dataclass(frozen=True, slots=True)
class ProgramLinearization:
    """A program split for reverse mode.

    Attributes:
        forward: takes the inputs, returns the outputs and then the new residuals.
        linear: takes all residuals and then the nonzero tangents, returns nonzero output tangents.
        out_nonzero: which outputs have a tangent.
        residual_inputs: per residual, the index of the input it is, or None when it is new (new
            ones come in the order of `forward`'s extra outputs).
    """

    forward: Program
    linear: Program
    out_nonzero: tuple[bool, ...]
    residual_inputs: tuple[int | None, ...]

    def residuals(self, inputs: Sequence[Any], extra: Sequence[Any]) -> list[Any]:
        """Residual values from `forward`'s inputs and its extra outputs."""
        new = iter(extra)
        return [inputs[i] if i is not None else next(new) for i in self.residual_inputs]


@cached_by_program
def linearize_program(
    program: Program, nonzero: tuple[bool, ...], instantiate: Instantiate = False
) -> ProgramLinearization:
    """Split a program without constants into a forward and a linear program.

    Args:
        program: a program whose constants are hoisted (`constants_to_inputs`).
        nonzero: which inputs have a tangent.
        instantiate: see `jvp_program`.
    """
    forward = RecordTrace(program.name)
    try:
        with use_trace(forward):
            inputs = [forward.add_input(aval) for aval in program.in_avals]

            def run(*args: Any) -> list[Any]:
                return eval_program(program, args)

            result = linearize_flat(run, inputs, nonzero, program.name)
            linear_program, out_nonzero = result.program, result.out_nonzero
            wanted = tuple(
                given or (flag and zeros.has_tangent(aval))
                for given, flag, aval in zip(
                    out_nonzero,
                    zeros.flags(instantiate, len(out_nonzero)),
                    program.out_avals,
                    strict=True,
                )
            )
            if wanted != out_nonzero:
                linear_program = _with_outputs(result, program.out_avals, wanted)
                out_nonzero = wanted
            linear, residuals = constants_to_inputs(linear_program)
            position = {var: index for index, var in enumerate(forward.inputs)}
            atoms = [forward.atom(value) for value in residuals]
            residual_inputs = tuple(
                position.get(atom) if isinstance(atom, Var) else None for atom in atoms
            )
            extra = [
                value
                for value, index in zip(residuals, residual_inputs, strict=True)
                if index is None
            ]
            built = forward.build([*result.outs, *extra])
    finally:
        forward.end()
    return ProgramLinearization(
        built, linear.replace(name=f"linear_{program.name}"), out_nonzero, residual_inputs
    )


def _with_outputs(result: Linearized, avals: Sequence[Aval], wanted: Sequence[bool]) -> Program:
    """The linear program with zero arrays for `wanted` outputs that have no tangent."""
    record = RecordTrace(result.program.name)  # zeros belong to the linear program: no residuals
    with use_trace(record):
        tangents = [record.add_input(aval) for aval in result.program.in_avals]
        found = iter(eval_program(result.program, tangents))
        outs = []
        for aval, given, want in zip(avals, result.out_nonzero, wanted, strict=True):
            if given:
                outs.append(next(found))
            elif want:
                outs.append(zeros.fill(0, aval.strong()))
        program = record.build(outs)
    record.end()
    return program


class LinearizeContext(JVPContext):
    """What linearize rules of primitives with sub-programs get."""

    __slots__ = ()

    def linearize(
        self, program: Program, nonzero: tuple[bool, ...], instantiate: Instantiate = False
    ) -> ProgramLinearization:
        """See :func:`linearize_program`."""
        return linearize_program(program, nonzero, instantiate)
