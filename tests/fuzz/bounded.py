"""Arrays in high precision that carry a bound on the error a lower precision may make.

Floats are float64, integers int64 wrapped to their dtype, each with the largest absolute error that
a correct program of the dtype's precision can have at every position. A position whose value such a
program cannot decide (a comparison closer than the errors) has an infinite bound.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from trnx.core import dtypes

Array = NDArray[Any]

# dtype -> (unit roundoff, smallest normal number)
PRECISION: dict[str, tuple[float, float]] = {
    "f64": (2.0**-53, 2.3e-308),
    "f32": (2.0**-24, 1.2e-38),
    "f16": (2.0**-11, 6.2e-5 * 2.0**-10),
    "bf16": (2.0**-8, 1.2e-38),
}
# Documented ulp bounds of elementary functions, plus the rounding of a device that multiplies by
# reciprocals.
ULPS = 4.0


def short(dtype: Any) -> str:
    """The short name of a dtype."""
    return dtypes.short_name(np.dtype(dtype))


@dataclass(frozen=True, slots=True)
class Bounded:
    """A value and its error bound.

    Attributes:
        value: float64, int64 (wrapped) or bool.
        error: float64 >= 0 of the same shape; inf where nothing is known.
        dtype: the dtype a program holds it in.
        narrow: float64 is computed in float32, as on `neuron`.
    """

    value: Array
    error: Array
    dtype: np.dtype[Any]
    narrow: bool

    @property
    def shape(self) -> tuple[int, ...]:
        return self.value.shape

    @property
    def ndim(self) -> int:
        return self.value.ndim

    @property
    def kind(self) -> str:
        """``f``, ``i`` or ``b``."""
        if dtypes.is_float(self.dtype):
            return "f"
        return "b" if dtypes.is_bool(self.dtype) else "i"


def bounded(array: Any, narrow: bool) -> Bounded:
    """An input: exact, except for float64 that a device narrows."""
    array = np.asarray(array)
    if dtypes.is_float(array.dtype):
        value = array.astype(np.float64)
        exact = value if not (narrow and array.dtype == np.float64) else value.astype(np.float32)
        return Bounded(value, np.abs(exact - value), array.dtype, narrow)
    if array.dtype == np.bool_:
        return Bounded(array, np.zeros(array.shape), array.dtype, narrow)
    return Bounded(array.astype(np.int64), np.zeros(array.shape), array.dtype, narrow)


def wrap(value: Array, dtype: np.dtype[Any]) -> Array:
    """int64 values reduced to the range of an integer dtype."""
    return value.astype(dtype).astype(np.int64)


def precision(dtype: np.dtype[Any], narrow: bool) -> tuple[float, float]:
    """(unit roundoff, smallest normal) that results of a dtype are computed with."""
    name = short(dtype)
    return PRECISION["f32" if narrow and name == "f64" else name]


def rounded(
    value: Array, error: Array, dtype: np.dtype[Any], narrow: bool, ulps: float = 1.0
) -> Bounded:
    """A float result: the propagated error plus `ulps` roundings."""
    unit, tiny = precision(dtype, narrow)
    largest = float(ml_dtypes.finfo(dtype).max)
    with np.errstate(all="ignore"):
        total = error + ulps * unit * (np.abs(value) + error) + tiny * ulps
    total = np.where(np.isnan(total) | ~(np.abs(value) + total < largest), np.inf, total)
    exact = ~np.isfinite(value) & (error == 0)
    return Bounded(value, np.where(exact, 0.0, total), dtype, narrow)


def move(x: Bounded, function: Callable[[Array], Array]) -> Bounded:
    """A movement of elements."""
    return Bounded(np.asarray(function(x.value)), np.asarray(function(x.error)), x.dtype, x.narrow)


def move_all(values: Sequence[Bounded], function: Callable[[list[Array]], Array]) -> Bounded:
    """A movement of the elements of several values of one dtype."""
    return Bounded(
        np.asarray(function([v.value for v in values])),
        np.asarray(function([v.error for v in values])),
        values[0].dtype,
        values[0].narrow,
    )


def monotone(x: Bounded, function: Callable[[Array], Array], ulps: float = ULPS) -> Bounded:
    """An elementwise function that grows or falls everywhere."""
    with np.errstate(all="ignore"):
        value = np.asarray(function(x.value))
        low, high = function(x.value - x.error), function(x.value + x.error)
        error = np.maximum(np.abs(low - value), np.abs(high - value))
    error = np.where(np.isnan(error), np.inf, error)
    return rounded(value, error, x.dtype, x.narrow, ulps)


def lipschitz(
    x: Bounded, function: Callable[[Array], Array], slope: float = 1.0, ulps: float = ULPS
) -> Bounded:
    """An elementwise function whose slope stays within a bound."""
    with np.errstate(all="ignore"):
        value = np.asarray(function(x.value))
    # The reduction of an argument loses as many ulp as it has periods.
    spent = ulps * (1.0 + np.abs(x.value))
    unit, _ = precision(x.dtype, x.narrow)
    return rounded(value, slope * x.error + spent * unit, x.dtype, x.narrow, ulps)


def cast(x: Bounded, dtype: Any) -> Bounded:
    """`astype`."""
    dtype = np.dtype(dtype)
    if dtype == x.dtype:
        return x
    if dtypes.is_float(dtype):
        return rounded(x.value.astype(np.float64), x.error, dtype, x.narrow)
    if dtypes.is_bool(dtype):
        doubt = (np.abs(x.value) <= x.error) & (x.error > 0)
        return Bounded(x.value != 0, np.where(doubt, np.inf, 0.0), dtype, x.narrow)
    if x.kind == "f":
        with np.errstate(all="ignore"):
            low, high = (_saturate(x.value + s * x.error, dtype) for s in (-1, 1))
        value = _saturate(x.value, dtype)
        return Bounded(value, np.where(low == high, 0.0, np.inf), dtype, x.narrow)
    return Bounded(wrap(x.value.astype(np.int64), dtype), _unsure(x.error), dtype, x.narrow)


def _saturate(value: Array, dtype: np.dtype[Any]) -> Array:
    info = np.iinfo(dtype)
    value = np.where(np.isnan(value), 0.0, np.trunc(value))
    low, high = value <= info.min, value >= info.max
    middle = np.where(low | high, 0.0, value).astype(np.int64)
    return np.where(low, info.min, np.where(high, min(info.max, 2**63 - 1), middle))


def _unsure(*errors: Array) -> Array:
    total = sum(errors[1:], errors[0])
    return np.where(total > 0, np.inf, 0.0)


def promote(x: Bounded, y: Bounded) -> tuple[Bounded, Bounded]:
    """Both in their common dtype, broadcast to a common shape."""
    dtype = dtypes.promote_types(x.dtype, y.dtype)
    shape = np.broadcast_shapes(x.shape, y.shape)
    x, y = (move(cast(v, dtype), lambda a: np.broadcast_to(a, shape)) for v in (x, y))
    return x, y


def add(x: Bounded, y: Bounded, sign: int = 1) -> Bounded:
    """x + sign * y."""
    x, y = promote(x, y)
    if x.kind == "i":
        value = wrap(x.value + sign * y.value, x.dtype)
        return Bounded(value, _unsure(x.error, y.error), x.dtype, x.narrow)
    with np.errstate(all="ignore"):
        return rounded(x.value + sign * y.value, x.error + y.error, x.dtype, x.narrow)


def mul(x: Bounded, y: Bounded) -> Bounded:
    """x * y."""
    x, y = promote(x, y)
    with np.errstate(all="ignore"):
        if x.kind == "i":
            value = wrap(x.value * y.value, x.dtype)
            return Bounded(value, _unsure(x.error, y.error), x.dtype, x.narrow)
        error = np.abs(x.value) * y.error + np.abs(y.value) * x.error + x.error * y.error
        return rounded(x.value * y.value, _known(error), x.dtype, x.narrow)


def _known(error: Array) -> Array:
    return np.where(np.isnan(error), np.inf, error)


def div(x: Bounded, y: Bounded) -> Bounded:
    """x / y of floats."""
    x, y = promote(x, y)
    with np.errstate(all="ignore"):
        value = x.value / y.value
        rest = np.abs(y.value) - y.error
        error = (x.error + np.abs(value) * y.error) / np.where(rest > 0, rest, np.nan)
    return rounded(value, _known(error), x.dtype, x.narrow, ULPS)


def extremum(x: Bounded, y: Bounded, function: Callable[[Array, Array], Array]) -> Bounded:
    """Elementwise maximum or minimum."""
    x, y = promote(x, y)
    return Bounded(function(x.value, y.value), np.maximum(x.error, y.error), x.dtype, x.narrow)


def compare(x: Bounded, y: Bounded, function: Callable[[Array, Array], Array]) -> Bounded:
    """A comparison; undecided where the errors overlap."""
    x, y = promote(x, y)
    slack = x.error + y.error
    with np.errstate(all="ignore"):
        near = np.abs(x.value.astype(np.float64) - y.value.astype(np.float64)) <= slack
    doubt = (slack > 0) & (near | np.isinf(slack))
    value = np.asarray(function(x.value, y.value))
    return Bounded(value, np.where(doubt, np.inf, 0.0), np.dtype(bool), x.narrow)


def select(c: Bounded, x: Bounded, y: Bounded) -> Bounded:
    """where(c, x, y)."""
    x, y = promote(x, y)
    shape = np.broadcast_shapes(c.shape, x.shape)
    c, x, y = (move(v, lambda a: np.broadcast_to(a, shape)) for v in (c, x, y))
    value = np.where(c.value, x.value, y.value)
    with np.errstate(all="ignore"):
        either = np.maximum(x.error, y.error) + np.abs(
            x.value.astype(np.float64) - y.value.astype(np.float64)
        )
    same = (x.value == y.value) & (x.error == 0) & (y.error == 0)
    doubt = np.where(same, 0.0, _known(either) if x.kind == "f" else np.inf)
    error = np.where(c.error > 0, doubt, np.where(c.value, x.error, y.error))
    return Bounded(value, error, x.dtype, x.narrow)


def _sum_error(size: int, magnitude: Array, dtype: np.dtype[Any], narrow: bool) -> Array:
    """Rounding of a sum of `size` numbers; 16-bit floats accumulate in float32."""
    unit, _ = precision(dtype, narrow)
    with np.errstate(all="ignore"):
        return _known(max(size, 1) * min(unit, 2.0**-24) * magnitude)


def reduce_sum(x: Bounded, axes: tuple[int, ...], keepdims: bool) -> Bounded:
    """Sum over axes; small integers and bools in 32 bits."""
    if x.kind != "f":
        dtype = np.dtype(np.int64 if x.dtype.itemsize == 8 else np.int32)
        if short(x.dtype).startswith("u"):
            dtype = np.dtype(np.uint64 if x.dtype.itemsize == 8 else np.uint32)
        value = wrap(np.sum(x.value, axes, np.int64, keepdims=keepdims), dtype)
        error = _unsure(np.sum(x.error, axes, keepdims=keepdims))
        return Bounded(np.asarray(value), np.asarray(error), dtype, x.narrow)
    size = math.prod(x.shape[a] for a in axes)
    with np.errstate(all="ignore"):
        value = np.sum(x.value, axes, keepdims=keepdims)
        error = np.sum(x.error, axes, keepdims=keepdims)
        magnitude = np.sum(np.abs(x.value) + x.error, axes, keepdims=keepdims)
    error = error + _sum_error(size, np.asarray(magnitude), x.dtype, x.narrow)
    return rounded(np.asarray(value), np.asarray(error), x.dtype, x.narrow)


def reduce_extremum(x: Bounded, axes: tuple[int, ...], keepdims: bool, name: str) -> Bounded:
    """Largest or smallest element over axes."""
    value = np.asarray(getattr(np, name)(x.value, axes, keepdims=keepdims))
    error = np.asarray(np.max(x.error, axes, keepdims=keepdims))
    return Bounded(value, error, x.dtype, x.narrow)


def arg_extremum(x: Bounded, axis: int, keepdims: bool, name: str) -> Bounded:
    """First position of the extremum; undecided where another value comes within the errors."""
    value = getattr(np, name)(x.value, axis, keepdims=True)
    best = np.take_along_axis(x.value, value, axis).astype(np.float64)
    slack = 2 * np.max(x.error, axis, keepdims=True)
    with np.errstate(all="ignore"):
        near = np.abs(x.value.astype(np.float64) - best) <= slack
    doubt = (np.sum(near | np.isinf(slack), axis, keepdims=True) > 1) & (slack > 0)
    error = np.where(doubt, np.inf, 0.0)
    if not keepdims:
        value, error = np.squeeze(value, axis), np.squeeze(error, axis)
    return Bounded(np.asarray(value, np.int64), np.asarray(error), np.dtype(np.int32), x.narrow)


def contract(spec: str, x: Bounded, y: Bounded, size: int) -> Bounded:
    """einsum of two operands that sums `size` products per element."""
    dtype = dtypes.promote_types(x.dtype, y.dtype)
    x, y = cast(x, dtype), cast(y, dtype)
    with np.errstate(all="ignore"):
        value = np.asarray(np.einsum(spec, x.value, y.value))
        if x.kind == "i":
            error = np.einsum(spec, x.error + 1, y.error + 1)
            doubt = np.where(_known(error) > size, np.inf, 0.0)
            return Bounded(wrap(value, dtype), doubt, dtype, x.narrow)
        big_x, big_y = np.abs(x.value), np.abs(y.value)
        error = np.einsum(spec, big_x, y.error) + np.einsum(spec, x.error, big_y + y.error)
        magnitude = np.asarray(np.einsum(spec, big_x + x.error, big_y + y.error))
    error = _known(np.asarray(error)) + _sum_error(size + 1, magnitude, dtype, x.narrow)
    return rounded(value, error, dtype, x.narrow)


def differs(got: Any, wanted: Bounded, slack: float = 2.0) -> str:
    """What is wrong with a result: its dtype, shape or first wrong element; empty if nothing."""
    array = np.asarray(got)
    if array.dtype != wanted.dtype or array.shape != wanted.shape:
        return f"type {short(array.dtype)}{array.shape}, wanted {short(wanted.dtype)}{wanted.shape}"
    if wanted.kind == "f":
        value = array.astype(np.float64)
        with np.errstate(all="ignore"):
            near = np.abs(value - wanted.value) <= slack * wanted.error
        same = (value == wanted.value) | (np.isnan(value) & np.isnan(wanted.value))
        wrong = ~(near | same | np.isinf(wanted.error))
    else:
        wrong = (array != wanted.value) & (wanted.error == 0)
    if not np.any(wrong):
        return ""
    where = tuple(int(i) for i in np.argwhere(wrong)[0])
    return (
        f"{int(np.sum(wrong))} of {wrong.size} wrong; first at {where}: {array[where]!r}, "
        f"wanted {wanted.value[where]!r} within {float(wanted.error[where]):.3g}"
    )
