"""Symbolic zeros: tangents and cotangents for which no array exists.

A transform that keeps zeros symbolic never computes derivatives nobody asked for. They become
arrays only where a rule or a user needs one.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, TypeAlias

import numpy as np

from trnx.core import Aval, Zero, aval_of, dtypes, primitives
from trnx.core.dims import same_shape

Instantiate: TypeAlias = bool | tuple[bool, ...]
"""Which symbolic zeros become arrays: all, none, or a flag for each."""


def flags(instantiate: Instantiate, count: int) -> tuple[bool, ...]:
    """A flag for each of `count` values."""
    return instantiate if isinstance(instantiate, tuple) else (instantiate,) * count


def fill(value: complex, aval: Aval) -> Any:
    """An array of `aval`'s shape and dtype filled with `value`, bound under the current trace."""
    scalar = np.asarray(value).astype(aval.dtype)[()]
    if not aval.shape:
        return scalar
    return primitives["broadcast"].bind(scalar, shape=aval.shape, dims=())


def as_array(value: Any) -> Any:
    """A number or NumPy array that a user gets back, as an array or traced value of this trace."""
    if isinstance(value, np.ndarray | np.generic | bool | int | float | complex):
        aval = aval_of(value)
        dims = tuple(range(aval.ndim))
        return primitives["broadcast"].bind(value, shape=aval.shape, dims=dims)
    return value


def instantiate(tangent: Any) -> Any:
    """The tangent itself, or an array of zeros for a symbolic one."""
    return fill(0, tangent.aval) if isinstance(tangent, Zero) else tangent


def instantiate_all(tangents: Iterable[Any]) -> list[Any]:
    """:func:`instantiate` for each."""
    return [instantiate(tangent) for tangent in tangents]


def is_zero(tangent: Any) -> bool:
    """True for a symbolic zero."""
    return isinstance(tangent, Zero)


def nonzero_mask(tangents: Sequence[Any]) -> tuple[bool, ...]:
    """Which tangents are not symbolic zeros."""
    return tuple(not isinstance(tangent, Zero) for tangent in tangents)


def add(a: Any, b: Any) -> Any:
    """Sum of two tangents or cotangents of one type; symbolic zeros cost nothing."""
    if isinstance(a, Zero):
        return b
    if isinstance(b, Zero):
        return a
    return primitives["add"].bind(a, b)


def tangent_aval(aval: Aval) -> Aval:
    """Type of the tangent of a value: the same shape and dtype, never weak."""
    return aval.strong()


def zero_of(value: Any) -> Zero:
    """The symbolic zero tangent of a value."""
    return Zero(aval_of(value).strong())


def has_tangent(aval: Aval) -> bool:
    """True for float and complex values; integers and bools carry no derivative."""
    return dtypes.is_inexact(aval.dtype)


def fits(value: Any, aval: Aval) -> bool:
    """True when `value` can be a tangent of `aval`: same shape and dtype."""
    own = aval_of(value)
    return own.dtype == aval.dtype and same_shape(own.shape, aval.shape)
