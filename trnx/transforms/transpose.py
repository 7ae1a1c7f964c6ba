"""Transpose: turn a linear program around, from output cotangents to input cotangents.

Equations are visited in reverse. Each variable has an accumulator; an equation whose outputs all
have symbolic zero cotangents is skipped. Linear operands of a rule are `Linear` placeholders, the
others are values.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from trnx.core import Aval, Linear, Program, Var, Zero, aval_of, constants_to_inputs, use_source
from trnx.core.errors import TraceError, message
from trnx.core.program import Atom, Equation, scalar_of
from trnx.core.program_cache import cached_by_program
from trnx.core.tracing import trace_program
from trnx.transforms import zeros


class Accumulator:
    """Sums the cotangents of one variable as they arrive, so that one array is alive at a time."""

    __slots__ = ("aval", "value")

    def __init__(self, aval: Aval) -> None:
        self.aval = aval
        self.value: Any = Zero(aval.strong())

    def add(self, cotangent: Any) -> None:
        """Add a cotangent or a symbolic zero."""
        self.value = zeros.add(self.value, cotangent)

    def take(self) -> Any:
        """The sum, and forget it."""
        value, self.value = self.value, Zero(self.aval.strong())
        return value


class TransposeContext:
    """What transpose rules of primitives with sub-programs get."""

    __slots__ = ()

    def transpose(
        self, program: Program, linear: tuple[bool, ...], given: tuple[bool, ...]
    ) -> tuple[Program, tuple[bool, ...]]:
        """See :func:`transpose_program`."""
        return transpose_program(program, linear, given)


_CONTEXT = TransposeContext()


def backward_pass(
    program: Program, linear: Sequence[bool], operands: Sequence[Any], cotangents: Sequence[Any]
) -> list[Any]:
    """Cotangents of the linear inputs of a program, under the current trace.

    Args:
        program: linear in the inputs that `linear` marks, for fixed others.
        linear: one flag per input.
        operands: values of the other inputs; entries of linear inputs are ignored.
        cotangents: a cotangent or Zero per output.

    Returns:
        A cotangent or Zero for each linear input, in order.
    """
    values: dict[Var, Any] = dict(program.constants)
    sums: dict[Var, Accumulator] = {}
    for var, flag, value in zip(program.inputs, linear, operands, strict=True):
        if flag:
            sums[var] = Accumulator(var.aval)
        else:
            values[var] = value
    backward: list[Equation] = []
    for equation in program.equations:
        if any(isinstance(atom, Var) and atom in sums for atom in equation.inputs):
            sums.update((var, Accumulator(var.aval)) for var in equation.outputs)
            backward.append(equation)
        else:
            _forward(equation, values)
    for atom, cotangent in zip(program.outputs, cotangents, strict=True):
        if isinstance(atom, Var) and atom in sums:
            sums[atom].add(cotangent)
    for equation in reversed(backward):
        cts = [sums[var].take() for var in equation.outputs]
        if not all(isinstance(ct, Zero) for ct in cts):
            _transpose_equation(equation, cts, values, sums)
    return [sums[var].take() for var, flag in zip(program.inputs, linear, strict=True) if flag]


def _operand(atom: Atom, values: dict[Var, Any]) -> Any:
    return values[atom] if isinstance(atom, Var) else scalar_of(atom)


def _forward(equation: Equation, values: dict[Var, Any]) -> None:
    with use_source(equation.source):
        operands = [_operand(atom, values) for atom in equation.inputs]
        results = equation.primitive.bind_all(operands, equation.params)
    values.update(zip(equation.outputs, results, strict=True))


def _transpose_equation(
    equation: Equation, cts: list[Any], values: dict[Var, Any], sums: dict[Var, Accumulator]
) -> None:
    primitive = equation.primitive
    operands = [
        Linear(atom.aval) if isinstance(atom, Var) and atom in sums else _operand(atom, values)
        for atom in equation.inputs
    ]
    with use_source(equation.source):
        if primitive.transpose_all is not None:
            results = primitive.transpose_all(_CONTEXT, cts, operands, **equation.params)
        else:
            rule = primitive.rule("transpose")
            ct = cts if primitive.multiple_results else cts[0]
            results = rule(ct, *operands, **equation.params)
        if not isinstance(results, tuple | list) or len(results) != len(operands):
            raise TraceError(
                message(
                    f"The transpose rule of {primitive.name} gives no sequence of "
                    f"{len(operands)} cotangents",
                    equation.source,
                    f"Return one per operand in {primitive.file}",
                )
            )
        for atom, result in zip(equation.inputs, results, strict=True):
            if result is None or isinstance(result, Zero):
                continue
            if not isinstance(atom, Var) or atom not in sums:
                continue
            if not zeros.fits(result, atom.aval):
                raise TraceError(
                    message(
                        f"The transpose rule of {primitive.name} gives a cotangent "
                        f"{aval_of(result)} for an operand {atom.aval}",
                        equation.source,
                        f"Correct the rule in {primitive.file}",
                    )
                )
            sums[atom].add(result)


@cached_by_program
def transpose_program(
    program: Program, linear: tuple[bool, ...], given: tuple[bool, ...]
) -> tuple[Program, tuple[bool, ...]]:
    """The transpose of a program as a program.

    Args:
        program: linear in the inputs that `linear` marks; without constants.
        linear: one flag per input.
        given: which outputs have a cotangent that is not symbolically zero.

    Returns:
        A program that takes the nonlinear inputs and then the given cotangents, and returns the
        nonzero cotangents of the linear inputs; and which of the linear inputs those are.
    """
    assert not program.constants, constants_to_inputs.__name__
    nonzero: tuple[bool, ...] = ()
    fixed = [aval for aval, flag in zip(program.in_avals, linear, strict=True) if not flag]
    seeds = [aval.strong() for aval, flag in zip(program.out_avals, given, strict=True) if flag]

    def backward(*args: Any) -> list[Any]:
        nonlocal nonzero
        others, cts = iter(args[: len(fixed)]), iter(args[len(fixed) :])
        operands = [None if flag else next(others) for flag in linear]
        cotangents = [
            next(cts) if flag else Zero(aval.strong())
            for aval, flag in zip(program.out_avals, given, strict=True)
        ]
        results = backward_pass(program, linear, operands, cotangents)
        nonzero = zeros.nonzero_mask(results)
        return [result for result in results if not isinstance(result, Zero)]

    result = trace_program(backward, [*fixed, *seeds], f"transpose_{program.name}")
    return result, nonzero
