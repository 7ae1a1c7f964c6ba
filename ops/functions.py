"""One plain function per primitive: what rules, composites and the public faces call.

They take arrays, traced values and Python numbers. A Python number takes the dtype of the operand
next to it; apart from that operands must already have equal dtypes, and equal shapes or no axes:
promotion and broadcasting by NumPy's rules belong to `trnx.numpy`. The functions find their
primitive by name, so that the declarations can use each other in any order.

Names follow `jax.lax` where it has the operation, so a few hide a builtin; import the module
(``from trnx.ops import functions as op``), not its names.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np

from trnx.core import Aval, Dim, Size, aval_of, dtypes, primitives

Array: TypeAlias = Any  # an array, a traced value or a number
Axes: TypeAlias = tuple[int, ...]
_PYTHON_NUMBERS = (bool, int, float, complex)


def shape_of(x: Array) -> tuple[Size, ...]:
    """Sizes of the axes of an operand."""
    return aval_of(x).shape


def dtype_of(x: Array) -> np.dtype[Any]:
    """Element type of an operand."""
    return aval_of(x).dtype


def scalar(value: Any, dtype: np.dtype[Any], weak: bool = False) -> Array:
    """A number as an operand of this dtype; `weak` keeps it a Python number.

    Raises:
        IntegerRangeError: an int does not fit into an integer `dtype`.
    """
    if dtypes.is_integer(dtype):
        value = int(value.real)
        dtypes.check_python_int(value, dtype)
    if weak:
        kind = int if dtypes.is_integer(dtype) else float if dtypes.is_float(dtype) else complex
        return kind(value)
    return np.asarray(value).astype(dtype)[()]


def scalar_like(value: Array, x: Array) -> Array:
    """`value` with the dtype of `x` when it is a Python number; other operands unchanged."""
    if type(value) in _PYTHON_NUMBERS:
        aval = aval_of(x)
        return scalar(value, aval.dtype, aval.weak)
    return value


def _pair(name: str, x: Array, y: Array) -> Array:
    if type(x) in _PYTHON_NUMBERS:
        x = scalar_like(x, y)
    elif type(y) in _PYTHON_NUMBERS:
        y = scalar_like(y, x)
    return primitives[name].bind(x, y)


# ---------------------------------------------------------------- elementwise, one operand
def neg(x: Array) -> Array:
    """-x; unsigned integers wrap."""
    return primitives["neg"].bind(x)


def abs(x: Array) -> Array:
    """|x| of real numbers; the smallest signed integer wraps to itself."""
    return primitives["abs"].bind(x)


def sign(x: Array) -> Array:
    """-1, 0 or 1; NaN stays NaN and -0.0 stays -0.0."""
    return primitives["sign"].bind(x)


def floor(x: Array) -> Array:
    """Largest whole number <= x."""
    return primitives["floor"].bind(x)


def ceil(x: Array) -> Array:
    """Smallest whole number >= x."""
    return primitives["ceil"].bind(x)


def round(x: Array) -> Array:
    """Nearest whole number, ties to even."""
    return primitives["round"].bind(x)


def exp(x: Array) -> Array:
    """e**x."""
    return primitives["exp"].bind(x)


def expm1(x: Array) -> Array:
    """e**x - 1, accurate near 0."""
    return primitives["expm1"].bind(x)


def log(x: Array) -> Array:
    """Natural logarithm; NaN below 0, -inf at 0."""
    return primitives["log"].bind(x)


def log1p(x: Array) -> Array:
    """log(1 + x), accurate near 0."""
    return primitives["log1p"].bind(x)


def tanh(x: Array) -> Array:
    """Hyperbolic tangent."""
    return primitives["tanh"].bind(x)


def logistic(x: Array) -> Array:
    """1 / (1 + e**-x)."""
    return primitives["logistic"].bind(x)


def erf(x: Array) -> Array:
    """Gauss error function."""
    return primitives["erf"].bind(x)


def erf_inv(x: Array) -> Array:
    """Inverse of erf on [-1, 1]."""
    return primitives["erf_inv"].bind(x)


def sqrt(x: Array) -> Array:
    """Square root; NaN below 0."""
    return primitives["sqrt"].bind(x)


def rsqrt(x: Array) -> Array:
    """1 / sqrt(x); inf at 0."""
    return primitives["rsqrt"].bind(x)


def sin(x: Array) -> Array:
    """Sine of an angle in radians; NaN where rounding has lost it (above 2**17 in f32)."""
    return primitives["sin"].bind(x)


def cos(x: Array) -> Array:
    """Cosine of an angle in radians; NaN where rounding has lost it (above 2**17 in f32)."""
    return primitives["cos"].bind(x)


def integer_pow(x: Array, y: int) -> Array:
    """x**y for a static integer y; negative y only for inexact x."""
    return primitives["integer_pow"].bind(x, y=operator.index(y))


def stop_gradient(x: Array) -> Array:
    """x, with zero derivative."""
    return primitives["stop_gradient"].bind(x)


# ---------------------------------------------------------------- elementwise, two operands
def add(x: Array, y: Array) -> Array:
    """x + y; integers wrap."""
    return _pair("add", x, y)


def sub(x: Array, y: Array) -> Array:
    """x - y; integers wrap."""
    return _pair("sub", x, y)


def mul(x: Array, y: Array) -> Array:
    """x * y; integers wrap."""
    return _pair("mul", x, y)


def div(x: Array, y: Array) -> Array:
    """x / y of inexact operands."""
    return _pair("div", x, y)


def max(x: Array, y: Array) -> Array:
    """The larger operand; NaN when either is NaN."""
    return _pair("max", x, y)


def min(x: Array, y: Array) -> Array:
    """The smaller operand; NaN when either is NaN."""
    return _pair("min", x, y)


def pow(x: Array, y: Array) -> Array:
    """x**y of real floating operands; NaN for negative x with fractional y."""
    return _pair("pow", x, y)


def atan2(y: Array, x: Array) -> Array:
    """The angle of the point (x, y), from -π to π."""
    return _pair("atan2", y, x)


def make_complex(x: Array, y: Array) -> Array:
    """The complex number with real part x and imaginary part y."""
    return _pair("complex", x, y)


def real(x: Array) -> Array:
    """The real part; a real operand is returned."""
    return primitives["real"].bind(x) if dtypes.is_complex(dtype_of(x)) else x


def imag(x: Array) -> Array:
    """The imaginary part; zeros for a real operand."""
    return primitives["imag"].bind(x) if dtypes.is_complex(dtype_of(x)) else zeros_like(x)


def conj(x: Array) -> Array:
    """The complex conjugate; a real operand is returned."""
    return make_complex(real(x), neg(imag(x))) if dtypes.is_complex(dtype_of(x)) else x


def floor_divide(x: Array, y: Array) -> Array:
    """floor(x / y), exact; an integer divided by 0 gives 0."""
    return _pair("floor_divide", x, y)


def remainder(x: Array, y: Array) -> Array:
    """x - floor(x / y) * y, exact, with the sign of y; an integer modulo 0 gives 0."""
    return _pair("remainder", x, y)


def bitwise_and(x: Array, y: Array) -> Array:
    """Bits set in both operands (integers or bool)."""
    return _pair("and", x, y)


def bitwise_or(x: Array, y: Array) -> Array:
    """Bits set in either operand (integers or bool)."""
    return _pair("or", x, y)


def bitwise_xor(x: Array, y: Array) -> Array:
    """Bits set in one operand only (integers or bool)."""
    return _pair("xor", x, y)


def bitwise_not(x: Array) -> Array:
    """All bits inverted (integers); logical not (bool)."""
    return primitives["not"].bind(x)


def shift_left(x: Array, y: Array) -> Array:
    """x << y; 0 when y is outside [0, bits)."""
    return _pair("shift_left", x, y)


def shift_right_logical(x: Array, y: Array) -> Array:
    """x >> y filling with zeros; 0 when y is outside [0, bits)."""
    return _pair("shift_right_logical", x, y)


def shift_right_arithmetic(x: Array, y: Array) -> Array:
    """x >> y filling with the sign; only sign bits are left when y is outside [0, bits)."""
    return _pair("shift_right_arithmetic", x, y)


def bitcast(x: Array, dtype: Any) -> Array:
    """The bits of x as `dtype`; a narrower one adds a last axis, a wider one takes it away."""
    dtype = dtypes.as_dtype(dtype)
    return x if dtype_of(x) == dtype else primitives["bitcast"].bind(x, dtype=dtype)


def population_count(x: Array) -> Array:
    """How many bits of each integer are set."""
    return primitives["population_count"].bind(x)


def eq(x: Array, y: Array) -> Array:
    """x == y as bool."""
    return _pair("eq", x, y)


def ne(x: Array, y: Array) -> Array:
    """x != y as bool; NaN differs from everything."""
    return _pair("ne", x, y)


def lt(x: Array, y: Array) -> Array:
    """x < y as bool."""
    return _pair("lt", x, y)


def le(x: Array, y: Array) -> Array:
    """x <= y as bool."""
    return _pair("le", x, y)


def gt(x: Array, y: Array) -> Array:
    """x > y as bool."""
    return _pair("gt", x, y)


def ge(x: Array, y: Array) -> Array:
    """x >= y as bool."""
    return _pair("ge", x, y)


# ---------------------------------------------------------------- select, cast
def select(predicate: Array, on_true: Array, on_false: Array) -> Array:
    """Elements of `on_true` where the bool `predicate` holds, else of `on_false`."""
    if type(on_true) in _PYTHON_NUMBERS:
        on_true = scalar_like(on_true, on_false)
    elif type(on_false) in _PYTHON_NUMBERS:
        on_false = scalar_like(on_false, on_true)
    return primitives["select"].bind(predicate, on_true, on_false)


def clamp(low: Array, x: Array, high: Array) -> Array:
    """x held inside [low, high]; NaN stays NaN."""
    return min(max(x, low), high)


def convert(x: Array, dtype: Any, weak: bool = False) -> Array:
    """x as `dtype`; nothing is recorded when it already is.

    Float to integer truncates, saturates and takes NaN to 0; to bool asks for nonzero; integers
    wrap into narrower ones.
    """
    dtype = dtypes.as_dtype(dtype)
    aval = aval_of(x)
    if aval.dtype == dtype and aval.weak == weak:
        return x
    if type(x) in _PYTHON_NUMBERS:
        return scalar(x, dtype, weak)
    return primitives["convert"].bind(x, dtype=dtype, weak=weak)


# ---------------------------------------------------------------- movement
def broadcast(x: Array, shape: Sequence[Size], dims: Sequence[int]) -> Array:
    """x spread over `shape`: axis i of x becomes axis ``dims[i]`` and has its size or size 1."""
    shape, dims = tuple(shape), tuple(dims)
    if len(shape) == len(dims) and Aval(shape, dtypes.bool_) == Aval(shape_of(x), dtypes.bool_):
        return x
    return primitives["broadcast"].bind(x, shape=shape, dims=dims)


def full(shape: Sequence[Size], value: Array, dtype: Any = None) -> Array:
    """An array of one scalar value (a number or an array without axes)."""
    if type(value) in _PYTHON_NUMBERS:
        value = scalar(value, aval_of(value).dtype if dtype is None else dtypes.as_dtype(dtype))
    elif dtype is not None:
        value = convert(value, dtype)
    return broadcast(value, shape, ())


def zeros_like(x: Array) -> Array:
    """Zeros of the shape and dtype of an operand or Aval."""
    aval = x if isinstance(x, Aval) else aval_of(x)
    return broadcast(np.zeros((), aval.dtype)[()], aval.shape, ())


def spread(x: Array, like: Array) -> Array:
    """x, broadcast to the shape of `like` when x has no axes and `like` has."""
    shape = shape_of(like)
    return broadcast(x, shape, ()) if shape and not shape_of(x) else x


def expand(x: Array, axis: int, size: Size = 1) -> Array:
    """x with a new axis of `size` repeats at `axis`."""
    shape = list(shape_of(x))
    dims = [i + (i >= axis) for i in range(len(shape))]
    shape.insert(axis, size)
    return broadcast(x, shape, dims)


def reshape(x: Array, shape: Sequence[Size]) -> Array:
    """The elements of x in row-major order under another shape."""
    shape = tuple(shape)
    if Aval(shape, dtypes.bool_) == Aval(shape_of(x), dtypes.bool_):
        return x
    return primitives["reshape"].bind(x, shape=shape)


def transpose(x: Array, permutation: Sequence[int]) -> Array:
    """Axes reordered: axis i of the result is axis ``permutation[i]`` of x."""
    permutation = tuple(permutation)
    if permutation == tuple(range(len(permutation))):
        return x
    return primitives["transpose"].bind(x, permutation=permutation)


def moveaxis(x: Array, source: int, destination: int) -> Array:
    """x with one axis moved; axes are nonnegative."""
    if source == destination:
        return x
    order = [i for i in range(len(shape_of(x))) if i != source]
    order.insert(destination, source)
    return transpose(x, order)


def slice(
    x: Array,
    start: Sequence[Size],
    limit: Sequence[Size],
    strides: Sequence[int] | None = None,
) -> Array:
    """``x[start:limit:strides]`` on every axis; strides are positive."""
    strides = (1,) * len(start) if strides is None else tuple(strides)
    return primitives["slice"].bind(x, start=tuple(start), limit=tuple(limit), strides=strides)


def slice_axis(x: Array, start: Size, limit: Size, axis: int, stride: int = 1) -> Array:
    """:func:`slice` on one axis."""
    shape = shape_of(x)
    starts: list[Size] = [0] * len(shape)
    limits, strides = list(shape), [1] * len(shape)
    starts[axis], limits[axis], strides[axis] = start, limit, stride
    return slice(x, starts, limits, strides)


def concatenate(arrays: Sequence[Array], axis: int) -> Array:
    """Arrays joined along one nonnegative axis."""
    if len(arrays) == 1:
        return arrays[0]
    return primitives["concatenate"].bind(*arrays, axis=axis)


def pad(
    x: Array,
    value: Array,
    low: Sequence[Size],
    high: Sequence[Size],
    interior: Sequence[int] | None = None,
) -> Array:
    """x with `value` put before, after and between its elements, per axis.

    Negative numbers `low` and `high` cut, after `interior` values went between the elements.
    """
    interior = (0,) * len(low) if interior is None else tuple(interior)
    below = [w if isinstance(w, Dim) or w > 0 else 0 for w in low]
    above = [w if isinstance(w, Dim) or w > 0 else 0 for w in high]
    if any(below) or any(above) or any(interior):
        x = primitives["pad"].bind(
            x, scalar_like(value, x), low=tuple(below), high=tuple(above), interior=interior
        )
    cuts = [(-w if isinstance(w, int) and w < 0 else 0) for w in low]
    ends = [(-w if isinstance(w, int) and w < 0 else 0) for w in high]
    if not any(cuts) and not any(ends):
        return x
    limits = [size - end for size, end in zip(shape_of(x), ends, strict=True)]
    return slice(x, cuts, limits)


def reverse(x: Array, axes: Sequence[int]) -> Array:
    """x in reverse order along some axes."""
    return primitives["reverse"].bind(x, axes=tuple(axes)) if axes else x


# ---------------------------------------------------------------- creation
def iota(shape: Sequence[Size], axis: int, dtype: Any = dtypes.int32) -> Array:
    """0, 1, 2, … along `axis`, repeated over the others."""
    return primitives["iota"].bind(shape=tuple(shape), axis=axis, dtype=dtypes.as_dtype(dtype))


def dim_size(size: Size, dtype: Any = dtypes.int32) -> Array:
    """A size as a scalar operand: a number when static, else the true size at run time."""
    dtype = dtypes.as_dtype(dtype)
    if isinstance(size, Dim):
        return primitives["dim_size"].bind(size=size, dtype=dtype)
    return np.asarray(size).astype(dtype)[()]


# ---------------------------------------------------------------- contraction and reduction
def dot_general(
    lhs: Array,
    rhs: Array,
    contract: tuple[Sequence[int], Sequence[int]],
    batch: tuple[Sequence[int], Sequence[int]] = ((), ()),
    out_dtype: Any = None,
) -> Array:
    """Sum of products over the `contract` axes, for every index of the `batch` axes.

    Axes of the result: batch, free axes of `lhs`, free axes of `rhs`. Both operands have one
    dtype; bf16 and f16 accumulate in f32 and round once to `out_dtype` (default: theirs).
    """
    dtype = dtype_of(lhs) if out_dtype is None else dtypes.as_dtype(out_dtype)
    return primitives["dot_general"].bind(
        lhs,
        rhs,
        contract=(tuple(contract[0]), tuple(contract[1])),
        batch=(tuple(batch[0]), tuple(batch[1])),
        out_dtype=dtype,
    )


def conv(
    lhs: Array,
    rhs: Array,
    *,
    strides: Sequence[int],
    padding: Sequence[tuple[Size, Size]],
    lhs_dilation: Sequence[int],
    rhs_dilation: Sequence[int],
    groups: int = 1,
    out_dtype: Any = None,
) -> Array:
    """Convolution of ``[batch, channels, *space]`` with ``[out channels, channels, *window]``.

    Channels of `lhs` are `groups` times those of `rhs`. `padding` has a pair per axis, whose
    negative widths cut. See `trnx.lax.conv_general_dilated` for other layouts.
    """
    dtype = dtype_of(lhs) if out_dtype is None else dtypes.as_dtype(out_dtype)
    return primitives["conv"].bind(
        lhs,
        rhs,
        strides=tuple(strides),
        padding=tuple((low, high) for low, high in padding),
        lhs_dilation=tuple(lhs_dilation),
        rhs_dilation=tuple(rhs_dilation),
        groups=groups,
        out_dtype=dtype,
    )


def _reduce(name: str, x: Array, axes: Sequence[int]) -> Array:
    return primitives[name].bind(x, axes=tuple(sorted(axes))) if axes else x


def reduce_sum(x: Array, axes: Sequence[int]) -> Array:
    """Sum over axes; bf16 and f16 accumulate in f32 and round once."""
    return _reduce("reduce_sum", x, axes)


def reduce_max(x: Array, axes: Sequence[int]) -> Array:
    """Maximum over axes; NaN wins; -inf or the smallest value over no elements."""
    return _reduce("reduce_max", x, axes)


def reduce_min(x: Array, axes: Sequence[int]) -> Array:
    """Minimum over axes; NaN wins; +inf or the largest value over no elements."""
    return _reduce("reduce_min", x, axes)


def reduce_prod(x: Array, axes: Sequence[int]) -> Array:
    """Product over axes; bf16 and f16 accumulate in f32 and round once."""
    return _reduce("reduce_prod", x, axes)


def reduce_and(x: Array, axes: Sequence[int]) -> Array:
    """Bits set in every element over axes, of integers or bool."""
    return _reduce("reduce_and", x, axes)


def reduce_or(x: Array, axes: Sequence[int]) -> Array:
    """Bits set in any element over axes, of integers or bool."""
    return _reduce("reduce_or", x, axes)


def reduce_xor(x: Array, axes: Sequence[int]) -> Array:
    """Bits set in an odd number of elements over axes, of integers or bool."""
    return _reduce("reduce_xor", x, axes)


def argmax(x: Array, axis: int) -> Array:
    """int32 index of the first maximum along `axis`; the first NaN wins."""
    return primitives["argmax"].bind(x, axis=axis)


def argmin(x: Array, axis: int) -> Array:
    """int32 index of the first minimum along `axis`; the first NaN wins."""
    return primitives["argmin"].bind(x, axis=axis)


# ---------------------------------------------------------------- indexing
def take(x: Array, indices: Array, axis: int) -> Array:
    """Slices of x along `axis` at int32 `indices` (any shape), clamped to the axis.

    The axes of `indices` take the place of `axis` in the result.
    """
    return primitives["take"].bind(x, indices, axis=axis)


def take_along(x: Array, indices: Array, axis: int) -> Array:
    """``x[..., indices[..., j, ...], ...]`` along `axis`, clamped; other sizes are equal."""
    return primitives["take_along"].bind(x, indices, axis=axis)


def scatter_add(x: Array, indices: Array, updates: Array, axis: int) -> Array:
    """x with `updates` added to its slices at `indices`; indices outside the axis are dropped.

    `updates` has the shape of ``take(x, indices, axis)``.
    """
    return primitives["scatter_add"].bind(x, indices, updates, axis=axis)


def scatter_add_along(x: Array, indices: Array, updates: Array, axis: int) -> Array:
    """The inverse of :func:`take_along`: updates are added, out-of-range indices are dropped."""
    return primitives["scatter_add_along"].bind(x, indices, updates, axis=axis)


def dynamic_slice(x: Array, starts: Sequence[Array], sizes: Sequence[Size]) -> Array:
    """``sizes`` elements per axis from int32 scalar `starts`, clamped so that all lie inside."""
    return primitives["dynamic_slice"].bind(x, *starts, sizes=tuple(sizes))


def dynamic_update_slice(x: Array, update: Array, starts: Sequence[Array]) -> Array:
    """x with `update` put at int32 scalar `starts`, clamped so that all of it lies inside."""
    return primitives["dynamic_update_slice"].bind(x, update, *starts)


def gather(
    x: Array, indices: Sequence[Array], axes: Sequence[int], sizes: Sequence[Size], batch: int = 0
) -> Array:
    """Windows of x: ``[*shape of the indices, *sizes]``, moved inside where they leave x.

    Args:
        x: ``batch`` leading axes, then those that windows have.
        indices: int32 arrays of one shape, which begins with the batch axes: where windows start.
        axes: the axis of x that each index array is for.
        sizes: window size per axis of x after the batch axes.
        batch: leading axes that x and the indices share.
    """
    return primitives["gather"].bind(x, *indices, axes=tuple(axes), sizes=tuple(sizes), batch=batch)


def scatter(
    x: Array,
    indices: Sequence[Array],
    updates: Array,
    axes: Sequence[int],
    kind: str,
    batch: int = 0,
    unique: bool = False,
) -> Array:
    """x with windows of `updates` set, added, multiplied or compared; others are dropped.

    x, indices, axes and batch are as in :func:`gather`; `updates` is ``[*shape of the indices,
    *window]``; `kind` is ``set``, ``add``, ``mul``, ``min`` or ``max``; `unique` says that no two
    windows overlap, which makes derivatives cheaper.
    """
    return primitives["scatter"].bind(
        x, updates, *indices, axes=tuple(axes), kind=kind, batch=batch, unique=unique
    )


# ---------------------------------------------------------------- along an axis
def cumsum(x: Array, axis: int, reverse: bool = False) -> Array:
    """Running sum along `axis`, from the end with `reverse`."""
    return primitives["cumsum"].bind(x, axis=axis, reverse=reverse)


def cumprod(x: Array, axis: int, reverse: bool = False) -> Array:
    """Running product along `axis`, from the end with `reverse`."""
    return primitives["cumprod"].bind(x, axis=axis, reverse=reverse)


def cummax(x: Array, axis: int, reverse: bool = False) -> Array:
    """Running maximum along `axis`, from the end with `reverse`; NaN wins."""
    return primitives["cummax"].bind(x, axis=axis, reverse=reverse)


def cummin(x: Array, axis: int, reverse: bool = False) -> Array:
    """Running minimum along `axis`, from the end with `reverse`; NaN wins."""
    return primitives["cummin"].bind(x, axis=axis, reverse=reverse)


def cumlogsumexp(x: Array, axis: int, reverse: bool = False) -> Array:
    """Running log(sum(exp(x))) along `axis`, from the end with `reverse`."""
    return primitives["cumlogsumexp"].bind(x, axis=axis, reverse=reverse)


def linear_recurrence(a: Array, b: Array, axis: int, reverse: bool = False) -> Array:
    """r[i] = a[i]·r[i-1] + b[i] along `axis` from r[-1] = 0; from the end with `reverse`."""
    return primitives["linear_recurrence"].bind(a, b, axis=axis, reverse=reverse)


def sort(operands: Sequence[Array], axis: int, num_keys: int = 1) -> list[Array]:
    """Operands in the ascending, stable order of the first `num_keys` of them; NaN comes last."""
    return primitives["sort"].bind(*operands, axis=axis, num_keys=num_keys)


def argsort(x: Array, axis: int) -> Array:
    """int32 places of the elements of x in ascending, stable order; NaN comes last."""
    return sort((x, iota(shape_of(x), axis)), axis)[1]


def top_k(x: Array, k: int, axis: int) -> tuple[Array, Array]:
    """The k largest elements along `axis`, largest first, and their int32 places."""
    values, places = primitives["top_k"].bind(x, k=k, axis=axis)
    return values, places


# ---------------------------------------------------------------- random
def threefry2x32(key0: Array, key1: Array, x0: Array, x1: Array) -> tuple[Array, Array]:
    """Threefry-2x32, 20 rounds: two uint32 counters to two uint32 random words."""
    first, second = primitives["threefry2x32"].bind(key0, key1, x0, x1)
    return first, second
