"""What primitives that carry programs share: parts of operands, programs from programs, costs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from typing import Any, TypeVar

from trnx.core import (
    Aval,
    Cost,
    OpCase,
    Program,
    ShapeError,
    Var,
    Zero,
    cached_by_program,
    dtypes,
    eval_program,
    message,
    prune,
    same_shape,
    trace_program,
)
from trnx.ops import functions as op

Array = Any
Flags = tuple[bool, ...]
T = TypeVar("T")


def split(values: Sequence[T], *counts: int) -> list[list[T]]:
    """Consecutive parts of `values` of the given lengths, and what is left."""
    parts, start = [], 0
    for count in counts:
        parts.append(list(values[start : start + count]))
        start += count
    return [*parts, list(values[start:])]


def pick(values: Sequence[T], flags: Sequence[bool]) -> list[T]:
    """The values whose flag is set."""
    return [value for value, flag in zip(values, flags, strict=True) if flag]


def place(found: Sequence[Any], flags: Sequence[bool], avals: Sequence[Aval]) -> list[Any]:
    """Tangents in their places: the next found one where the flag is set, else a symbolic zero."""
    values = iter(found)
    return [
        next(values) if flag else Zero(aval.strong())
        for flag, aval in zip(flags, avals, strict=True)
    ]


def nonzero(tangents: Sequence[Any]) -> Flags:
    """Which tangents or cotangents are not symbolic zeros."""
    return tuple(not isinstance(tangent, Zero) for tangent in tangents)


def either(a: Sequence[bool], b: Sequence[bool]) -> Flags:
    """Flags set in `a` or in `b`."""
    return tuple(x or y for x, y in zip(a, b, strict=True))


def as_array(tangent: Any) -> Array:
    """The tangent itself, or an array of zeros for a symbolic zero."""
    return op.zeros_like(tangent.aval) if isinstance(tangent, Zero) else tangent


def same_type(a: Aval, b: Aval) -> bool:
    """Equal shape and dtype; weakness does not count."""
    return a.dtype == b.dtype and same_shape(a.shape, b.shape)


def joined(a: Aval, b: Aval) -> Aval:
    """The type of a value that is one or the other: weak when both are."""
    return a if a.weak == b.weak else a.strong()


def check_inputs(name: str, what: str, avals: Sequence[Aval], wanted: Sequence[Aval]) -> None:
    """Raise ShapeError unless operands have the types that a program wants."""
    if len(avals) != len(wanted):
        raise ShapeError(
            message(
                f"{name} has {len(avals)} operands for the {len(wanted)} inputs of its {what}",
                None,
                "Pass one operand per input",
            )
        )
    for index, (aval, expected) in enumerate(zip(avals, wanted, strict=True)):
        if not same_type(aval, expected):
            raise ShapeError(
                message(
                    f"{name} passes {aval} to input {index} of its {what}, which is {expected}",
                    None,
                    "Trace the function for this type",
                )
            )


def fixed_point(find: Any, flags: Flags) -> Any:
    """``find(flags) -> (result, flags after one iteration)`` until no more flags get set."""
    while True:
        result, found = find(flags)
        merged = either(flags, found)
        if merged == flags:
            return result, flags
        flags = merged


# ---------------------------------------------------------------- programs from programs
def permuted(program: Program, inputs: tuple[int, ...], outputs: tuple[int, ...]) -> Program:
    """The program with inputs and outputs in another order, given by their old positions."""
    if inputs == tuple(range(len(program.inputs))) and outputs == tuple(
        range(len(program.outputs))
    ):
        return program
    return _permuted(program, inputs, outputs)


@cached_by_program
def _permuted(program: Program, inputs: tuple[int, ...], outputs: tuple[int, ...]) -> Program:
    return program.replace(
        inputs=[program.inputs[i] for i in inputs],
        outputs=[program.outputs[i] for i in outputs],
    )


def interleaved(
    program: Program,
    inputs: Sequence[int],
    more_inputs: Sequence[int],
    outputs: Sequence[int],
    more_outputs: Sequence[int],
) -> Program:
    """A program with groups (a, b, c, a', b', c') of inputs as (a, a', b, b', c, c')."""
    return permuted(program, _zipped(inputs, more_inputs), _zipped(outputs, more_outputs))


def _zipped(counts: Sequence[int], more: Sequence[int]) -> tuple[int, ...]:
    order: list[int] = []
    first, second = 0, sum(counts)
    for a, b in zip(counts, more, strict=True):
        order += [*range(first, first + a), *range(second, second + b)]
        first, second = first + a, second + b
    return tuple(order)


@cached_by_program
def with_inputs(
    program: Program, places: tuple[int | None, ...], avals: tuple[Aval, ...]
) -> Program:
    """The program with more inputs, which it does not use.

    Args:
        program: a program.
        places: per new input the position of the old input it is, or None.
        avals: types of the new inputs that are None in `places`, in order.
    """
    fresh = iter(avals)
    inputs = [Var(next(fresh)) if i is None else program.inputs[i] for i in places]
    return program.replace(inputs=inputs)


@cached_by_program
def with_zeros(program: Program, given: Flags, wanted: Flags, avals: tuple[Aval, ...]) -> Program:
    """The program with arrays of zeros as more outputs.

    Args:
        program: its outputs stand for those of `given`.
        given: which of the possible outputs the program has.
        wanted: which of them the result has; all given ones among them.
        avals: types of all possible outputs.
    """

    def run(*args: Array) -> list[Array]:
        found = iter(eval_program(program, args))
        values = [
            next(found) if has else op.zeros_like(aval) if want else None
            for has, want, aval in zip(given, wanted, avals, strict=True)
        ]
        return pick(values, wanted)

    return trace_program(run, program.in_avals, program.name)


def dependent(program: Program, inputs: Sequence[bool]) -> Flags:
    """Which outputs depend on the inputs that are marked."""
    marked: set[Any] = set(pick(program.inputs, inputs))
    for equation in program.equations:
        if any(atom in marked for atom in equation.inputs):
            marked.update(equation.outputs)
    return tuple(atom in marked for atom in program.outputs)


@cached_by_program
def hoist(program: Program, invariant: int, outputs: tuple[int, ...]) -> tuple[Program, Program]:
    """Move the computation of some outputs in front of a loop.

    Args:
        program: the body of a loop.
        invariant: so many leading inputs are the same in every iteration.
        outputs: positions of outputs that depend on nothing else.

    Returns:
        A program from the invariant inputs to values, the hoisted outputs first; and the body,
        which takes these values in front of its inputs and lacks those outputs.
    """
    wanted = [program.outputs[i] for i in outputs]
    needed = {atom for atom in wanted if isinstance(atom, Var)}
    moved = [e for e in program.equations if any(var in needed for var in e.outputs)]
    # A moved equation takes all its outputs with it.
    others = [var for e in moved for var in e.outputs if var not in needed]
    values = [*wanted, *others]
    outer = prune(program.replace(inputs=program.inputs[:invariant], outputs=values))
    kept = [atom for i, atom in enumerate(program.outputs) if i not in outputs]
    inner = program.replace(
        inputs=[*(atom if isinstance(atom, Var) else Var(atom.aval) for atom in values),
                *program.inputs],
        equations=[e for e in program.equations if e not in moved],
        outputs=kept,
    )  # fmt: skip
    return outer, prune(inner)


def needed_inputs(program: Program) -> Flags:
    """Which inputs the equations or outputs of a program read."""
    read = {atom for equation in program.equations for atom in equation.inputs}
    read.update(program.outputs)
    return tuple(var in read for var in program.inputs)


@cached_by_program
def restricted(program: Program, outputs: Flags) -> tuple[Program, Flags]:
    """The program with some of its outputs, and the inputs that these need."""
    small = prune(program.replace(outputs=pick(program.outputs, outputs)))
    return small, needed_inputs(small)


@cached_by_program
def with_only(program: Program, inputs: Flags, outputs: Flags) -> Program:
    """The program with some of its inputs and outputs."""
    small = prune(program.replace(outputs=pick(program.outputs, outputs)))
    return small.replace(inputs=pick(small.inputs, inputs))


# ---------------------------------------------------------------- cost
def program_cost(program: Program) -> Cost:
    """Sum of the costs of the equations; static sizes only."""
    total = Cost()
    for equation in program.equations:
        avals = [atom.aval for atom in equation.inputs]
        total += equation.primitive.rule("cost")(*avals, **equation.params)
    return total


def repeated_cost(
    work: Cost, times: int, operands: Sequence[Aval], results: Sequence[Aval]
) -> Cost:
    """Arithmetic `times` over; operands are read and results written once."""
    return Cost(
        times * work.flops,
        sum(int(aval.nbytes) for aval in operands),
        sum(int(aval.nbytes) for aval in results),
        times * work.transcendental,
    )


# ---------------------------------------------------------------- test records
class LazyCases(Sequence[OpCase]):
    """Calls of a test record whose programs are traced when a test first asks for them."""

    def __init__(self, make: Callable[[], Sequence[OpCase]]) -> None:
        self._make = make

    @cached_property
    def _cases(self) -> tuple[OpCase, ...]:
        return tuple(self._make())

    def __getitem__(self, index: Any) -> Any:
        return self._cases[index]

    def __len__(self) -> int:
        return len(self._cases)

    def __iter__(self) -> Iterator[OpCase]:
        return iter(self._cases)


def case_of(
    avals: Sequence[Aval],
    ranges: tuple[tuple[float, float] | None, ...] | None = None,
    **params: Any,
) -> OpCase:
    """A call with operands of these static types."""
    shapes = tuple(tuple(int(size) for size in aval.shape) for aval in avals)
    return OpCase(shapes, params, ranges, tuple(aval.dtype for aval in avals))


def of_type(dtype: Any, *shapes: tuple[int, ...]) -> list[Aval]:
    """Types of one dtype."""
    return [Aval(shape, dtypes.as_dtype(dtype)) for shape in shapes]
