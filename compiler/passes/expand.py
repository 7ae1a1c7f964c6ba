"""Expansions of primitives into array code, for what targets cannot do in one instruction.

``EXPANSIONS[name]`` is ``choose(target, avals, params) -> array code or None``: None leaves the
equation as it is.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np

from trnx.compiler.targets import Target
from trnx.core import Aval, Equation, Params, Size, Var, current_trace, primitives
from trnx.core.dtypes import (
    float32,
    float64,
    int32,
    is_bool,
    is_complex,
    is_float,
    is_integer,
    is_signed_integer,
    is_unsigned_integer,
    uint32,
)
from trnx.core.tracing import RecordTracer
from trnx.ops import functions as op

Array: TypeAlias = Any
Choose: TypeAlias = Callable[[Target, Sequence[Aval], Params], "Callable[..., Array] | None"]

EXPANSIONS: dict[str, Choose] = {}

WIDE_REDUCTION = 16384
"""Elements per row above which a reduction to few results is done in two steps."""

FEW_ROWS = 64
"""Results below which a wide reduction leaves most partitions idle."""

EXACT = 1 << 24
"""Integers of at most this size are exact in fp32."""


def expansion(*names: str) -> Callable[[Choose], Choose]:
    """Decorator: enter a chooser for primitives."""

    def enter(choose: Choose) -> Choose:
        for name in names:
            EXPANSIONS[name] = choose
        return choose

    return enter


def composite_of(name: str) -> Callable[..., Array] | None:
    """The composite that a primitive's declaration gives."""
    return primitives[name].composite


def maker_of(x: Array) -> Equation | None:
    """The equation that made a value in the program being legalised; None for inputs and numbers.

    Traces of other passes keep no such table, and then nothing is known.
    """
    if not isinstance(x, RecordTracer):
        return None
    made_by: Mapping[Var, Equation] = getattr(x._trace, "made_by", {})
    return made_by.get(x.bound)


# Rounding and periodic functions ----------------------------------------------------------------


def _round(x: Array) -> Array:
    """Nearest whole number: adding 2^(p-1) leaves no room for a fraction."""
    big = 2.0 ** (52 if op.dtype_of(x) == float64 else 23)
    wide = x if op.dtype_of(x) in (float32, float64) else op.convert(x, float32)
    size = op.abs(wide)
    whole = op.mul(op.sub(op.add(size, big), big), op.sign(wide))
    result = op.select(op.bitwise_and(op.lt(size, big), op.gt(size, 0.0)), whole, wide)
    return op.convert(result, op.dtype_of(x))


@expansion("round")
def _choose_round(target: Target, avals: Sequence[Aval], params: Params) -> Any:
    return _round


# π in three parts, the first two of few bits (8 and 11; 32 and 32 for f64), so that k·part is exact
# for |k| < 2^13 and more (Cody and Waite).
_PI_F32 = (3.140625, 0.0009675025939941406, 1.5099580252808664e-07)
_PI_F64 = (3.1415926534682512, 1.2154201012607932e-10, 4.044532497591901e-21)


def _less_multiple(x: Array, count: Array, scale: float) -> Array:
    """x - count·scale·π without rounding the products; `scale` is a power of two."""
    for part in _PI_F64 if op.dtype_of(x) == float64 else _PI_F32:
        x = op.sub(x, op.mul(count, scale * part))
    return x


def _sign_of(count: Array) -> Array:
    """(-1)^count of a whole number: the rest of halving it is -1, 0 or 1."""
    rest = op.sub(count, op.mul(op.round(op.mul(count, 0.5)), 2.0))
    return op.sub(1.0, op.mul(op.mul(rest, rest), 2.0))


def _in_f32(function: Callable[[Array], Array]) -> Callable[[Array], Array]:
    def run(x: Array) -> Array:
        dtype = op.dtype_of(x)
        if dtype in (float32, float64):
            return function(x)
        return op.convert(function(op.convert(x, float32)), dtype)

    return run


def as_is(name: str, *operands: Array, **params: Any) -> Array:
    """Record a primitive without expanding it again."""
    trace: Any = current_trace.get()
    (result,) = trace.record(primitives[name], operands, Params(params, name))
    return result


# The argument is reduced to [-π/2, π/2] around the nearest zero of the function, where the rest is
# small and exact: reducing by 2π would leave a rest near ±π, whose rounding is large beside the
# result.
def _sine(x: Array) -> Array:
    """sin(kπ + r) = (-1)^k sin(r)."""
    count = op.round(op.mul(x, 1 / math.pi))
    return _in_range(x, op.mul(as_is("sin", _less_multiple(x, count, 1.0)), _sign_of(count)))


def _cosine(x: Array) -> Array:
    """cos((k + 1/2)π + r) = -(-1)^k sin(r)."""
    count = op.round(op.sub(op.mul(x, 1 / math.pi), 0.5))
    rest = _less_multiple(x, op.add(op.mul(count, 2.0), 1.0), 0.5)
    return _in_range(x, op.neg(op.mul(as_is("sin", rest), _sign_of(count))))


def _in_range(x: Array, result: Array) -> Array:
    """NaN where the reduction has lost the angle: better than a number that means nothing."""
    limit = 2.0**27 if op.dtype_of(x) == float64 else 2.0**17
    return op.select(op.le(op.abs(x), limit), result, math.nan)


@expansion("sin")
def _choose_sin(target: Target, avals: Sequence[Aval], params: Params) -> Any:
    return _in_f32(_sine)


@expansion("cos")
def _choose_cos(target: Target, avals: Sequence[Aval], params: Params) -> Any:
    return _in_f32(_cosine)


# Reductions -------------------------------------------------------------------------------------


def _count(sizes: Sequence[Size]) -> int:
    """The product of static sizes; -1 when one is symbolic."""
    total = 1
    for size in sizes:
        if not isinstance(size, int):
            return -1
        total *= size
    return total


def _identity(name: str, dtype: np.dtype[Any]) -> Any:
    from trnx.compiler.kernels.reduction import identity_of

    return np.asarray(identity_of(name, dtype)).astype(dtype)[()]


def _reduction(name: str) -> Choose:
    def choose(target: Target, avals: Sequence[Aval], params: Params) -> Any:
        (x,), axes = avals, params["axes"]
        if not axes:
            return lambda x, axes: x
        if any(isinstance(x.shape[a], int) and x.shape[a] == 0 for a in axes):
            return lambda x, axes: _nothing(name, x, axes)
        if is_complex(x.dtype):
            return None
        trailing = _trailing(len(x.shape), axes)
        leading = tuple(a for a in axes if a not in trailing)
        if name == "reduce_sum" and leading and is_float(x.dtype):
            return lambda x, axes: _sum_leading(x, leading, trailing)
        if leading and trailing:
            return lambda x, axes: _in_two(name, x, leading, trailing)
        halves = is_integer(x.dtype) and x.dtype.itemsize == 4 and not target.native_i64
        if name != "reduce_sum" and halves:
            return lambda x, axes: _extremum_by_halves(name, x, axes)
        width = _count([x.shape[a] for a in axes])
        rows = _count([s for a, s in enumerate(x.shape) if a not in axes])
        if width > WIDE_REDUCTION and 0 <= rows < FEW_ROWS and not leading:
            inner = _inner_width(width)
            if inner:
                return lambda x, axes: _wide(name, x, axes, width, inner)
        return None

    return choose


for _name in ("reduce_sum", "reduce_max", "reduce_min"):
    EXPANSIONS[_name] = _reduction(_name)


def _is_long(dtype: np.dtype[Any], target: Target) -> bool:
    return is_integer(dtype) and dtype.itemsize == 8 and not target.native_i64


def _trailing(rank: int, axes: Sequence[int]) -> tuple[int, ...]:
    """The axes among `axes` that form the end of the shape."""
    end = rank
    while end - 1 in axes:
        end -= 1
    return tuple(range(end, rank))


def _nothing(name: str, x: Array, axes: Sequence[int]) -> Array:
    aval = [s for a, s in enumerate(op.shape_of(x)) if a not in axes]
    return op.broadcast(_identity(name, op.dtype_of(x)), aval, ())


def _reduce(name: str, x: Array, axes: Sequence[int]) -> Array:
    return primitives[name].bind(x, axes=tuple(axes)) if axes else x


def _in_two(name: str, x: Array, leading: Sequence[int], trailing: Sequence[int]) -> Array:
    return _reduce(name, _reduce(name, x, trailing), leading)


def _sum_leading(x: Array, leading: Sequence[int], trailing: Sequence[int]) -> Array:
    """Sums over axes that are not last: a product with ones, which TensorE does at full speed."""
    dtype = op.dtype_of(x)
    if trailing:
        wide = op.convert(x, float32) if dtype.itemsize < 4 else x
        rows = _reduce("reduce_sum", wide, trailing)
        return op.convert(_reduce("reduce_sum", rows, leading), dtype)
    shape = op.shape_of(x)
    ones = op.broadcast(dtype.type(1), [shape[a] for a in leading], ())
    return op.dot_general(ones, x, (tuple(range(len(leading))), tuple(leading)))


def _inner_width(width: int) -> int:
    """A divisor of `width` near its 256th part, so that two steps use all partitions; 0 if none."""
    wanted = max(512, min(4096, width // 256))
    for inner in range(wanted, wanted // 4, -1):
        if width % inner == 0:
            return inner
    return 0


def _wide(name: str, x: Array, axes: Sequence[int], width: int, inner: int) -> Array:
    shape = op.shape_of(x)
    kept = [s for a, s in enumerate(shape) if a not in axes]
    dtype = op.dtype_of(x)
    if name == "reduce_sum" and is_float(dtype) and dtype.itemsize < 4:
        x = op.convert(x, float32)
    rows = op.reshape(x, (*kept, width // inner, inner))
    partial = _reduce(name, rows, (len(kept) + 1,))
    return op.convert(_reduce(name, partial, (len(kept),)), dtype)


def _halves(x: Array) -> tuple[Array, Array]:
    """High and low 16 bits of a 32-bit integer as exact fp32, in an order-keeping form."""
    unsigned = op.convert(x, uint32)
    if is_signed_integer(op.dtype_of(x)):
        unsigned = op.bitwise_xor(unsigned, 0x80000000)
    high = op.convert(op.shift_right_logical(unsigned, 16), float32)
    low = op.convert(op.bitwise_and(unsigned, 0xFFFF), float32)
    return high, low


def _joined(high: Array, low: Array, dtype: np.dtype[Any]) -> Array:
    """The integer with these halves."""
    bits = op.bitwise_or(op.shift_left(op.convert(high, uint32), 16), op.convert(low, uint32))
    if is_signed_integer(dtype):
        bits = op.bitwise_xor(bits, 0x80000000)
    return op.convert(bits, dtype)


def _extremum_by_halves(name: str, x: Array, axes: Sequence[int]) -> Array:
    """The extremum of the high halves, then of the low halves of the elements that have it."""
    high, low = _halves(x)
    best = _reduce(name, high, axes)
    shape = op.shape_of(x)
    spread = op.broadcast(best, shape, [a for a in range(len(shape)) if a not in axes])
    worst = -1.0 if name == "reduce_max" else 65536.0
    rest = _reduce(name, op.select(op.eq(high, spread), low, worst), axes)
    return _joined(best, rest, op.dtype_of(x))


@expansion("argmax")
def _choose_argmax(target: Target, avals: Sequence[Aval], params: Params) -> Any:
    return lambda x, axis: _arg("reduce_max", x, axis)


@expansion("argmin")
def _choose_argmin(target: Target, avals: Sequence[Aval], params: Params) -> Any:
    return lambda x, axis: _arg("reduce_min", x, axis)


def _arg(name: str, x: Array, axis: int) -> Array:
    """The least index whose element equals the extremum; any NaN wins."""
    shape = op.shape_of(x)
    if is_bool(op.dtype_of(x)):
        x = op.convert(x, float32)
    others = [a for a in range(len(shape)) if a != axis]
    best = op.broadcast(_reduce(name, x, (axis,)), shape, others)
    hit = op.eq(x, best)
    if is_float(op.dtype_of(x)):
        hit = op.bitwise_or(hit, op.ne(x, x))
    place = op.iota(shape, axis, float32)
    size = shape[axis]
    last = float(size) if isinstance(size, int) else float(EXACT)
    return op.convert(_reduce("reduce_min", op.select(hit, place, last), (axis,)), int32)


# Contractions -----------------------------------------------------------------------------------


@expansion("dot_general")
def _choose_dot(target: Target, avals: Sequence[Aval], params: Params) -> Any:
    lhs = avals[0]
    contracted = [lhs.shape[a] for a in params["contract"][0]]
    if is_complex(lhs.dtype) or _is_long(lhs.dtype, target):
        return None
    if any(isinstance(s, int) and s == 0 for s in contracted):
        return _empty_dot
    if not target.multiplies(lhs.dtype):
        return _dot_by_products
    return None


def _dot_shape(lhs: Array, rhs: Array, contract: Any, batch: Any) -> tuple[Any, ...]:
    a, b = op.shape_of(lhs), op.shape_of(rhs)
    gone_a, gone_b = {*contract[0], *batch[0]}, {*contract[1], *batch[1]}
    return (
        [a[i] for i in batch[0]],
        [i for i in range(len(a)) if i not in gone_a],
        [i for i in range(len(b)) if i not in gone_b],
    )


def _empty_dot(lhs: Array, rhs: Array, contract: Any, batch: Any, out_dtype: Any) -> Array:
    batches, rows, columns = _dot_shape(lhs, rhs, contract, batch)
    a, b = op.shape_of(lhs), op.shape_of(rhs)
    shape = (*batches, *(a[i] for i in rows), *(b[i] for i in columns))
    return op.broadcast(out_dtype.type(0), shape, ())


def _dot_by_products(lhs: Array, rhs: Array, contract: Any, batch: Any, out_dtype: Any) -> Array:
    """Integer contraction, exact: products over all axes, summed over the contracted ones."""
    lhs, rhs = op.convert(lhs, out_dtype), op.convert(rhs, out_dtype)
    batches, rows, columns = _dot_shape(lhs, rhs, contract, batch)
    a, b = op.shape_of(lhs), op.shape_of(rhs)
    first, second = len(batches), len(batches) + len(rows)
    third = second + len(columns)
    shape = (
        *batches, *(a[i] for i in rows), *(b[i] for i in columns), *(a[i] for i in contract[0]),
    )  # fmt: skip

    def places(own: int, contracted: Sequence[int], batched: Sequence[int],
               free: Sequence[int], start: int) -> list[int]:  # fmt: skip
        found = [0] * own
        for number, axis in enumerate(batched):
            found[axis] = number
        for number, axis in enumerate(free):
            found[axis] = start + number
        for number, axis in enumerate(contracted):
            found[axis] = third + number
        return found

    left = _spread(lhs, shape, places(len(a), contract[0], batch[0], rows, first))
    right = _spread(rhs, shape, places(len(b), contract[1], batch[1], columns, second))
    product = op.mul(left, right)
    return op.reduce_sum(product, tuple(range(third, len(shape))))


def _spread(x: Array, shape: Sequence[Size], places: Sequence[int]) -> Array:
    """Broadcast with axes that may land out of order."""
    order = sorted(range(len(places)), key=lambda i: places[i])
    return op.broadcast(op.transpose(x, order), shape, sorted(places))


# Indexing ---------------------------------------------------------------------------------------


def clamped(index: Array, size: Size) -> Array:
    """An int32 index held inside [0, size): exact, because it only compares and selects."""
    last = op.dim_size(size)
    index = op.select(op.lt(index, 0), 0, index)
    last_number = int(last) - 1 if isinstance(size, int) else op.sub(last, 1)
    return op.select(op.gt(index, last_number), last_number, index)


@expansion("take")
def _choose_take(target: Target, avals: Sequence[Aval], params: Params) -> Any:
    def take(x: Array, indices: Array, axis: int) -> Array:
        shape = op.shape_of(x)
        return as_is("take", x, clamped(indices, shape[axis]), axis=axis)

    return take


ONE_HOT_LIMIT = 65536
"""Row length up to which one pick per row is made by comparing the row with its index."""


@expansion("take_along")
def _choose_take_along(target: Target, avals: Sequence[Aval], params: Params) -> Any:
    x, indices = avals
    axis = params["axis"]
    size = x.shape[axis]
    one = isinstance(indices.shape[axis], int) and indices.shape[axis] == 1
    last = axis == len(x.shape) - 1
    if one and last and isinstance(size, int) and size <= ONE_HOT_LIMIT and is_float(x.dtype):
        return _pick_one
    return _take_flat


def _pick_one(x: Array, indices: Array, axis: int) -> Array:
    """One element per row: the row, zero but where its index says, summed inside a row kernel."""
    shape = op.shape_of(x)
    index = op.broadcast(clamped(indices, shape[axis]), shape, tuple(range(len(shape))))
    hit = op.eq(op.iota(shape, axis, int32), index)
    picked = op.reduce_sum(op.select(hit, x, 0.0), (axis,))
    return op.reshape(picked, op.shape_of(indices))


def _take_flat(x: Array, indices: Array, axis: int) -> Array:
    """Any number of picks: element offsets into the flat operand, then one gather."""
    shape, own = op.shape_of(x), op.shape_of(indices)
    index = clamped(indices, shape[axis])
    strides: list[Size] = [1] * len(shape)
    for a in range(len(shape) - 2, -1, -1):
        strides[a] = strides[a + 1] * shape[a + 1]
    offset = op.mul(index, strides[axis])
    for a in range(len(shape)):
        if a != axis and own[a] != 1:
            offset = op.add(offset, op.mul(op.iota(own, a, int32), strides[a]))
    flat = op.reshape(x, (_count(shape),))
    return as_is("take", flat, offset, axis=0)


@expansion("dim_size")
def _choose_dim_size(target: Target, avals: Sequence[Aval], params: Params) -> Any:
    size = params["size"]
    if isinstance(size, int):
        return lambda size, dtype: np.asarray(size).astype(dtype)[()]
    if params["dtype"] != int32:
        return lambda size, dtype: op.convert(op.dim_size(size), dtype)
    return None


# Functions of integers --------------------------------------------------------------------------


@expansion("abs")
def _choose_abs(target: Target, avals: Sequence[Aval], params: Params) -> Any:
    dtype = avals[0].dtype
    if is_unsigned_integer(dtype):
        return lambda x: x
    if is_integer(dtype):
        return lambda x: op.select(op.lt(x, 0), op.neg(x), x)
    return None


@expansion("sign")
def _choose_sign(target: Target, avals: Sequence[Aval], params: Params) -> Any:
    if is_integer(avals[0].dtype):
        return composite_of("sign")
    return None


@expansion("iota")
def _choose_iota(target: Target, avals: Sequence[Aval], params: Params) -> Any:
    dtype = params["dtype"]
    if dtype == int32 or is_complex(dtype):
        return None
    if is_float(dtype) and dtype.itemsize >= 4:
        return None
    return lambda shape, axis, dtype: op.convert(op.iota(shape, axis, int32), dtype)


@expansion("convert")
def _choose_convert(target: Target, avals: Sequence[Aval], params: Params) -> Any:
    source, dtype = avals[0].dtype, params["dtype"]
    if source == dtype:
        return lambda x, dtype, weak: x
    if is_bool(source) and _is_long(dtype, target):
        return lambda x, dtype, weak: op.convert(op.convert(x, int32), dtype)
    return None
