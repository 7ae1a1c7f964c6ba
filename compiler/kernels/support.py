"""What a target can do with the dtypes of an equation: a kernel family, or a counted host call."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from trnx.compiler.kernels.registry import Kind, kind_of
from trnx.compiler.targets import Target
from trnx.core import (
    Equation,
    LoweringError,
    Program,
    Source,
    cached_by_program,
    message,
    sub_programs,
)
from trnx.core.dtypes import is_complex, is_integer
from trnx.core.program import dim_variables


def _dtypes(equation: Equation) -> Iterator[np.dtype[Any]]:
    for atom in (*equation.inputs, *equation.outputs):
        yield atom.aval.dtype


def kind_on(equation: Equation, target: Target) -> Kind:
    """The kind of an equation on a target; `Kind.HOST` when no instruction takes its dtypes.

    Complex numbers have no tiles. Arithmetic on 64-bit integers is an extension of the NeuronCore
    that host and simulator run (`isa.is_extension`); contractions and sums at indices of them
    have no kernel there.
    """
    kind = kind_of(equation.primitive.name)
    if kind in (Kind.HOST, Kind.CALL):
        return kind
    if kind is Kind.CONTROL and not all(
        _is_native(program, target) for _, program in sub_programs(equation.params)
    ):
        return Kind.HOST
    if any(is_complex(dtype) for dtype in _dtypes(equation)):
        return Kind.HOST
    if any(not target.holds(dtype) for dtype in _dtypes(equation)):
        return Kind.HOST
    long = any(is_integer(d) and d.itemsize == 8 for d in _dtypes(equation))
    no_kernel = kind in (Kind.CONTRACTION, Kind.SCATTER)
    return Kind.HOST if long and no_kernel and not target.native_i64 else kind


def require_static(equation: Equation, source: Source | None) -> None:
    """Refuse an equation with run-time sizes, for kernels that unroll over their shapes.

    Raises:
        LoweringError: a size is only known at run time.
    """
    if not all(atom.aval.is_static for atom in (*equation.inputs, *equation.outputs)):
        raise LoweringError(
            message(
                f"{equation.primitive.name} of run-time sizes has no kernel",
                source,
                "Use static sizes or bucketed dimensions",
            )
        )


@cached_by_program
def _is_native(program: Program, target: Target) -> bool:
    """Whether everything in a body of a loop or branch has a kernel."""
    if program.constants or dim_variables(program):
        return False
    for equation in program.equations:
        kind = kind_on(equation, target)
        if kind is Kind.HOST:
            return False
        if kind is Kind.CALL and not all(
            _is_native(inner, target) for _, inner in sub_programs(equation.params)
        ):
            return False
    return True
