"""`custom_jvp` and `custom_vjp`: calls whose derivative a user gives.

Operands are ``(*captured values, *arguments)`` of the traced function. The derivative rules are
Python functions, kept as parameters and called when a derivative is taken: rules usually call the
function itself again, so tracing them beforehand would never end. Rules see arguments only; values
that the function captures cannot be differentiated through it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

from trnx.core import (
    Annotation,
    Aval,
    Cost,
    NamedAnnotation,
    OpCase,
    Primitive,
    Program,
    ShapeError,
    Size,
    TestRecord,
    TraceError,
    Zero,
    aval_of,
    dtypes,
    eval_program,
    message,
    primitives,
    reference_program,
    trace_program,
)
from trnx.ops import functions as op
from trnx.ops._factories import NumpyArray
from trnx.ops._programs import (
    LazyCases,
    as_array,
    case_of,
    check_inputs,
    nonzero,
    of_type,
    pick,
    place,
    program_cost,
    repeated_cost,
    same_type,
)

Array = Any


class JvpRule(NamedAnnotation):
    """A user's forward derivative, on flat values."""

    def jvp(
        self, primals: Sequence[Any], tangents: Sequence[Any]
    ) -> tuple[Sequence[Any], Sequence[Any]]:
        """Outputs and output tangents; every tangent is an array (f32 zeros for integers)."""
        raise missing_rule(self.name)


class PullBack(NamedAnnotation):
    """A user's reverse derivative at a point, on flat values."""

    def cotangents(self, residuals: Sequence[Any], cts: Sequence[Any]) -> Sequence[Any]:
        """A cotangent or None per argument, from residuals and a cotangent per inexact output."""
        raise missing_rule(self.name)


class VjpRule(NamedAnnotation):
    """A user's reverse derivative, on flat values."""

    def forward(self, args: Sequence[Any]) -> tuple[Sequence[Any], Sequence[Any], PullBack]:
        """Outputs, residuals and the rule that uses them."""
        raise missing_rule(self.name)


def missing_rule(name: str) -> TraceError:
    """The error for a rule of which only the name is there."""
    return TraceError(
        message(
            f"The derivative rule {name} is not part of the text this program was read from",
            None,
            "Take derivatives before writing the program down",
        )
    )


def _rule(rule: Annotation, kind: type) -> Any:
    if not isinstance(rule, kind):
        raise missing_rule(rule.name)
    return rule


def _abstract(*avals: Aval, program: Program, rule: Annotation, consts: int) -> tuple[Aval, ...]:
    check_inputs("a call with its own derivative", f"function {program.name}", avals,
                 program.in_avals)  # fmt: skip
    return program.out_avals


def _closed_over(program: Program, kind: str) -> NoReturn:
    raise TraceError(
        message(
            f"The {kind} function {program.name} captures a value that is differentiated, and its "
            "rule knows only the arguments",
            None,
            "Pass the value as an argument",
        )
    )


def _checked_outputs(program: Program, rule: Annotation, outs: Sequence[Any]) -> list[Any]:
    """The outputs that a rule gives, which must have the types of the function's own."""
    for index, (out, aval) in enumerate(zip(outs, program.out_avals, strict=True)):
        if not same_type(aval_of(out), aval):
            raise ShapeError(
                message(
                    f"The derivative rule {rule.name} of {program.name} gives output {index} as "
                    f"{aval_of(out)}, and the function gives {aval}",
                    None,
                    "Return the output of the function itself",
                )
            )
    return list(outs)


def _declare(name: str, doc: str, **options: Any) -> Primitive:
    primitive = Primitive(name, abstract=_abstract, multiple_results=True, doc=doc, **options)
    primitive.file = "ops/custom.py"

    @primitive.def_reference
    def _reference(*arrays: NumpyArray, program: Program, **params: Any) -> list[NumpyArray]:
        return reference_program(program, arrays)

    @primitive.def_composite
    def _composite(*args: Array, program: Program, **params: Any) -> list[Array]:
        return eval_program(program, args)

    @primitive.def_pad
    def _pad(
        ctx: Any, args: Sequence[Array], true_shapes: Any, *, program: Program, **params: Any
    ) -> list[Array]:
        padded, sizes = ctx.pad(program)
        return eval_program(padded, [*sizes, *args])

    @primitive.def_cost
    def _cost(*avals: Aval, program: Program, **params: Any) -> Cost:
        return repeated_cost(program_cost(program), 1, avals, program.out_avals)

    return primitive


# ---------------------------------------------------------------- custom_jvp
custom_jvp_p = _declare(
    "custom_jvp",
    "A call of a function whose forward derivative is given.",
    tests=TestRecord(
        LazyCases(lambda: _jvp_cases()), (), {"f64": 1e-12, "f32": 2e-6}, grad_order=2
    ),
    not_needed={"transpose": "it is not linear; reverse mode transposes what its rule computes"},
)


@custom_jvp_p.def_jvp_all
def _jvp(
    ctx: Any,
    primals: Sequence[Any],
    tangents: Sequence[Any],
    *,
    program: Program,
    rule: Annotation,
    consts: int,
) -> tuple[list[Any], list[Any]]:
    if any(nonzero(tangents[:consts])):
        _closed_over(program, "custom_jvp")
    given = [_full_tangent(tangent) for tangent in tangents[consts:]]
    results, out_tangents = _rule(rule, JvpRule).jvp(primals[consts:], given)
    outs = _checked_outputs(program, rule, results)
    return outs, [
        tangent if dtypes.is_inexact(aval_of(out).dtype) else Zero(aval_of(out).strong())
        for out, tangent in zip(outs, out_tangents, strict=True)
    ]


def _full_tangent(tangent: Any) -> Array:
    """An array for every tangent; integers and bools get zeros in f32, as `jvp` gives them."""
    if isinstance(tangent, Zero) and not dtypes.is_inexact(tangent.aval.dtype):
        return op.zeros_like(tangent.aval.with_dtype(dtypes.float32))
    return as_array(tangent)


@dataclass(frozen=True)
class _BatchedJvp(JvpRule):
    rule: JvpRule
    vmap: Callable[..., Any]
    dims: tuple[int | None, ...]
    size: Size

    def jvp(self, primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[list[Any], list[Any]]:
        count = len(primals)

        def both(*values: Any) -> list[Any]:
            outs, out_tangents = self.rule.jvp(values[:count], values[count:])
            return [*outs, *out_tangents]

        results = self.vmap(both, [*primals, *tangents], (*self.dims, *self.dims), self.size)
        return results[: len(results) // 2], results[len(results) // 2 :]


@custom_jvp_p.def_vmap
def _jvp_vmap(
    ctx: Any,
    args: Sequence[Array],
    dims: Sequence[int | None],
    size: Size,
    *,
    program: Program,
    rule: Annotation,
    consts: int,
) -> tuple[list[Array], list[int]]:
    count = len(program.outputs)
    batched, _ = ctx.vmap(program, size, tuple(dims), (True,) * count)
    own = _rule(rule, JvpRule)
    new = _BatchedJvp(rule.name, own, ctx.vmap_to_front, tuple(dims[consts:]), size)
    return custom_jvp_p.bind(*args, program=batched, rule=new, consts=consts), [0] * count


# ---------------------------------------------------------------- custom_vjp
custom_vjp_p = _declare(
    "custom_vjp",
    "A call of a function whose reverse derivative is given.",
    tests=TestRecord(LazyCases(lambda: _vjp_cases()), (), {"f64": 1e-12, "f32": 2e-6}),
    not_needed={
        "jvp": "only its reverse derivative is given",
        "transpose": "it is not linear; reverse mode calls its rule",
    },
    remedies={"jvp": "Use reverse mode (grad, vjp), or give a forward rule with custom_jvp"},
)


@custom_vjp_p.def_linearize
def _linearize(
    ctx: Any,
    primals: Sequence[Any],
    tangents: Sequence[Any],
    *,
    program: Program,
    rule: Annotation,
    consts: int,
) -> tuple[list[Any], list[Any]]:
    if any(nonzero(tangents[:consts])):
        _closed_over(program, "custom_vjp")
    results, residuals, pull_back = _rule(rule, VjpRule).forward(primals[consts:])
    outs = _checked_outputs(program, rule, results)
    flags = nonzero(tangents[consts:])
    avals = [aval_of(out).strong() for out in outs]
    inexact = [dtypes.is_inexact(aval.dtype) for aval in avals]
    found = primitives["custom_tangent"].bind(
        *residuals,
        *pick(tangents[consts:], flags),
        rule=pull_back,
        residuals=len(residuals),
        flags=flags,
        avals=tuple(pick(avals, inexact)),
    )
    return outs, place(found, inexact, avals)


@dataclass(frozen=True)
class BatchedPullBack(PullBack):
    """A reverse derivative for a batch of examples.

    Attributes:
        rule: that of one example.
        vmap: ``vmap(function, args, dims, size)``, results mapped at axis 0.
        residual_dims: mapped axis per residual.
        dims: mapped axis per argument; the cotangents of one without are summed over the examples.
        size: number of examples.
    """

    rule: PullBack
    vmap: Callable[..., Any]
    residual_dims: tuple[int | None, ...]
    dims: tuple[int | None, ...]
    size: Size

    def cotangents(self, residuals: Sequence[Any], cts: Sequence[Any]) -> list[Any]:
        given: list[bool] = []

        def one(*values: Any) -> list[Any]:
            count = len(self.residual_dims)
            results = self.rule.cotangents(values[:count], values[count:])
            given[:] = [result is not None for result in results]
            return [result for result in results if result is not None]

        axes = (*self.residual_dims, *(0,) * len(cts))
        found = iter(self.vmap(one, [*residuals, *cts], axes, self.size))
        return [
            self._placed(next(found), dim) if flag else None
            for flag, dim in zip(given, self.dims, strict=True)
        ]

    def _placed(self, ct: Array, dim: int | None) -> Array:
        return op.reduce_sum(ct, (0,)) if dim is None else op.moveaxis(ct, 0, dim)


@dataclass(frozen=True)
class _BatchedVjp(VjpRule):
    rule: VjpRule
    context: Any
    dims: tuple[int | None, ...]
    size: Size

    def forward(self, args: Sequence[Any]) -> tuple[list[Any], list[Any], PullBack]:
        kept: list[tuple[int, PullBack]] = []

        def one(*values: Any) -> list[Any]:
            outs, residuals, pull_back = self.rule.forward(values)
            kept[:] = [(len(outs), pull_back)]
            return [*outs, *residuals]

        values, axes = self.context.vmap_function(one, args, self.dims, self.size)
        ((count, pull_back),) = kept
        to_front = self.context.to_front
        outs = [
            to_front(value, axis, self.size)
            for value, axis in zip(values[:count], axes[:count], strict=True)
        ]
        batched = BatchedPullBack(
            self.name, pull_back, self.context.vmap_to_front, tuple(axes[count:]), self.dims,
            self.size,
        )  # fmt: skip
        return outs, values[count:], batched


@custom_vjp_p.def_vmap
def _vjp_vmap(
    ctx: Any,
    args: Sequence[Array],
    dims: Sequence[int | None],
    size: Size,
    *,
    program: Program,
    rule: Annotation,
    consts: int,
) -> tuple[list[Array], list[int]]:
    count = len(program.outputs)
    batched, _ = ctx.vmap(program, size, tuple(dims), (True,) * count)
    new = _BatchedVjp(rule.name, _rule(rule, VjpRule), ctx, tuple(dims[consts:]), size)
    return custom_vjp_p.bind(*args, program=batched, rule=new, consts=consts), [0] * count


# ---------------------------------------------------------------- test records
@dataclass(frozen=True)
class _SineRule(JvpRule):
    """The derivative of ``[x * sin(y), x]``."""

    def jvp(self, primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[list[Any], list[Any]]:
        (x, y), (t, u) = primals, tangents
        both = op.add(op.mul(t, op.sin(y)), op.mul(op.mul(x, u), op.cos(y)))
        return [op.mul(x, op.sin(y)), x], [both, t]


def _sine(x: Array, y: Array) -> list[Array]:
    return [op.mul(x, op.sin(y)), x]


def _jvp_cases() -> list[OpCase]:
    found = []
    for kinds in (
        of_type("f64", (3,), (3,)),
        of_type("f64", (), ()),
        of_type("f32", (2, 3), (2, 3)),
    ):
        program = trace_program(_sine, kinds, "sine")
        found.append(case_of(kinds, program=program, rule=_SineRule("sine_jvp"), consts=0))
    return found


@dataclass(frozen=True)
class _SineBack(PullBack):
    def cotangents(self, residuals: Sequence[Any], cts: Sequence[Any]) -> list[Any]:
        x, y = residuals
        first = op.add(op.mul(cts[0], op.sin(y)), cts[1])
        return [first, op.mul(op.mul(cts[0], x), op.cos(y))]


@dataclass(frozen=True)
class _SineForward(VjpRule):
    def forward(self, args: Sequence[Any]) -> tuple[list[Any], list[Any], PullBack]:
        x, y = args
        return _sine(x, y), [x, y], _SineBack("sine_bwd")


def _vjp_cases() -> list[OpCase]:
    found = []
    for kinds in (of_type("f64", (3,), (3,)), of_type("f32", (2, 3), (2, 3))):
        program = trace_program(_sine, kinds, "sine")
        found.append(case_of(kinds, program=program, rule=_SineForward("sine_fwd"), consts=0))
    return found
