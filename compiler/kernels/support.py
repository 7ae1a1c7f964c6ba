"""What a target can do with the dtypes of an equation: a kernel family, or a counted host call."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from trnx.compiler.kernels.registry import VIEWS, Kind, kind_of
from trnx.compiler.targets import Target
from trnx.core import Equation
from trnx.core.dtypes import is_complex, is_integer

_MOVES = VIEWS | {Kind.MOVEMENT, Kind.TAKE, Kind.IOTA}
"""Kinds that never compute with the elements they move."""


def _dtypes(equation: Equation) -> Iterator[np.dtype[Any]]:
    for atom in (*equation.inputs, *equation.outputs):
        yield atom.aval.dtype


def kind_on(equation: Equation, target: Target) -> Kind:
    """The kind of an equation on a target; `Kind.HOST` when no instruction takes its dtypes.

    Complex numbers have no tiles. 64-bit integers can be moved, selected and cast to and from
    other integers everywhere; arithmetic on them needs a target with native 64-bit integers.
    """
    kind = kind_of(equation.primitive.name)
    if kind in (Kind.HOST, Kind.CALL):
        return kind
    if any(is_complex(dtype) for dtype in _dtypes(equation)):
        return Kind.HOST
    if any(not target.holds(dtype) for dtype in _dtypes(equation)):
        return Kind.HOST
    long = any(is_integer(d) and d.itemsize == 8 for d in _dtypes(equation))
    if not long or target.native_i64 or kind in _MOVES:
        return kind
    name = equation.primitive.name
    if name in ("select", "copy", "stop_gradient"):
        return kind
    if name == "convert" and all(is_integer(d) for d in _dtypes(equation)):
        both = all(d.itemsize == 8 for d in _dtypes(equation))
        return Kind.HOST if both else kind
    return Kind.HOST
