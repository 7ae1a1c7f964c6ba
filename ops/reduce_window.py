"""Reductions over windows that slide over every axis, and what their derivatives need.

Per axis: a window size, a stride, a pair of padding widths (negative ones cut), dilation of the
array and of the window. Padding, and what dilation puts between elements, is the identity of the
reduction. bf16 and f16 sums and products are computed in f32 and rounded once.

The derivative of a maximum takes, for each window, the tangent of the element that the window
chose: the first one that is equal to the result. `select_and_gather` does that; its transpose,
`select_and_scatter_add`, adds a number per window to the elements that the windows chose.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from trnx.core import (
    Aval,
    Cost,
    Linear,
    OpCase,
    Primitive,
    ShapeError,
    Size,
    TestRecord,
    UnsupportedError,
    dtypes,
    message,
    same_shape,
)
from trnx.ops import functions as op
from trnx.ops._factories import (
    BOOL,
    FLOAT,
    NOT_LINEAR,
    NUMBER,
    REAL,
    DTypes,
    NumpyArray,
    check_dtypes,
    elements,
    nbytes,
)
from trnx.ops._windows import (
    Pairs,
    Sizes,
    check_window_params,
    dilated,
    padded_limits,
    strided_windows,
    tap_slices,
    window_counts,
)
from trnx.ops.reduce import highest, lowest

Array = Any
DType = np.dtype[Any]

_PARAMS = ("window", "strides", "padding", "base_dilation", "window_dilation")


def _counts(
    name: str,
    x: Aval,
    window: Sizes,
    strides: Sizes,
    padding: Pairs,
    base_dilation: Sizes,
    window_dilation: Sizes,
) -> tuple[Size, ...]:
    check_window_params(name, x.ndim, strides, padding, base_dilation, window_dilation)
    if len(window) != x.ndim or any(size < 1 for size in window):
        raise ShapeError(
            message(f"{name} of {x} got window {window}", None, "Give a size from 1 up per axis")
        )
    return window_counts(name, x.shape, window, strides, padding, base_dilation, window_dilation)


def _forms() -> list[tuple[tuple[int, ...], dict[str, Any]]]:
    def form(shape: tuple[int, ...], window: Sizes, **given: Any) -> tuple[Any, dict[str, Any]]:
        ones = (1,) * len(shape)
        defaults = {"strides": ones, "padding": ((0, 0),) * len(shape), "base_dilation": ones,
                    "window_dilation": ones}  # fmt: skip
        return shape, {"window": window, **defaults, **given}

    return [
        form((7,), (3,)),
        form((7,), (2,), strides=(2,)),
        form((3, 6), (1, 3), strides=(1, 2), padding=((0, 0), (1, 1))),
        form((5, 6), (3, 2), padding=((1, 1), (0, 2)), strides=(2, 1)),
        form((4, 5), (2, 2), base_dilation=(2, 1), padding=((0, 1), (-1, 1))),
        form((8, 7), (2, 3), window_dilation=(3, 2)),
        form((2, 3, 4, 4), (1, 1, 2, 2), strides=(1, 1, 2, 2)),
        form((2, 3), (1, 4)),
        form((0, 3), (1, 2)),
        form((), ()),
        # more taps than one kernel takes, and more rows than a tile has
        form((3, 40), (1, 19), padding=((0, 0), (9, 9))),
        form((3, 40), (1, 19), window_dilation=(1, 2), strides=(1, 2)),
        form((4, 5), (4, 5)),
        form((131, 6), (2, 2), strides=(2, 2)),
    ]


def _cases(arity: int, second: bool = False) -> tuple[OpCase, ...]:
    """Calls of a primitive whose first operand (`second`: the other one) has the result's shape."""
    found = []
    for shape, params in _forms()[: None if arity == 1 else 8]:
        counts = _counts("windows", Aval(shape, dtypes.float32), **params)
        assert all(isinstance(n, int) for n in counts)
        first: Any = counts if second else shape
        found.append(OpCase((first, shape)[-arity:] if arity == 1 else (first, shape), params))
    return tuple(found)


# ---------------------------------------------------------------- reductions
def _reduction(
    name: str,
    doc: str,
    accepts: DTypes,
    identity: Callable[[DType], Any],
    combine: Any,
    **record: Any,
) -> Primitive:
    """Declare a reduction over windows.

    Args:
        name: primitive name.
        doc: what it computes, one sentence.
        accepts: dtypes it takes.
        identity: the value, for a dtype, that changes no result.
        combine: the NumPy function of two arrays that is reduced with.
        record: further fields of the `TestRecord`.
    """

    def abstract(x: Aval, **params: Any) -> Aval:
        check_dtypes(name, (x,), accepts)
        return Aval(_counts(name, x, **params), x.dtype, x.weak)

    def reference(
        x: NumpyArray,
        *,
        window: Sizes,
        strides: Sizes,
        padding: Any,
        base_dilation: Sizes,
        window_dilation: Sizes,
    ) -> NumpyArray:
        exact = combine in (np.add, np.multiply) and dtypes.is_float(x.dtype)
        wide = x.astype(np.float64) if exact else x
        start = np.asarray(identity(x.dtype)).astype(wide.dtype)
        parts = strided_windows(
            wide, window, strides, padding, base_dilation, window_dilation, start
        )
        axes = tuple(range(x.ndim, 2 * x.ndim))
        with np.errstate(all="ignore"):
            out = combine.reduce(parts, axis=axes, initial=start, dtype=wide.dtype)
            return np.asarray(out).astype(x.dtype)

    primitive = Primitive(
        name,
        abstract=abstract,
        doc=doc,
        reference=reference,
        tests=TestRecord(_cases(1), accepts, **record),
    )
    primitive.file = "ops/reduce_window.py"

    @primitive.def_vmap
    def _vmap(
        ctx: Any, args: Sequence[Array], dims: Sequence[int], size: Size, **params: Any
    ) -> tuple[Array, int]:
        return primitive.bind(args[0], **_with_axis(params, dims[0])), dims[0]

    @primitive.def_pad
    def _pad(
        ctx: Any,
        args: Sequence[Array],
        true_shapes: Sequence[tuple[Size, ...]],
        *,
        window: Sizes,
        strides: Sizes,
        padding: Pairs,
        base_dilation: Sizes,
        window_dilation: Sizes,
    ) -> Array:
        (x,), (shape,) = args, true_shapes
        start = identity(op.dtype_of(x))
        counts = window_counts(
            name, shape, window, strides, padding, base_dilation, window_dilation
        )
        x, pairs, dilation = padded_limits(
            ctx, ctx.mask(x, shape, start), start, 0, shape, window, counts, strides, padding,
            base_dilation, window_dilation,
        )  # fmt: skip
        return primitive.bind(
            x,
            window=window,
            strides=strides,
            padding=pairs,
            base_dilation=dilation,
            window_dilation=window_dilation,
        )

    @primitive.def_cost
    def _cost(x: Aval, **params: Any) -> Cost:
        out = abstract(x, **params)
        taps = elements(Aval(params["window"], x.dtype))
        return Cost(elements(out) * taps, nbytes(x), nbytes(out))

    return primitive


def _with_axis(params: dict[str, Any], axis: int) -> dict[str, Any]:
    """The parameters with one more axis that windows do not slide over."""
    fresh = {"padding": (0, 0)}
    return {
        name: (*values[:axis], fresh.get(name, 1), *values[axis:])
        for name, values in params.items()
        if name in _PARAMS
    } | {name: value for name, value in params.items() if name not in _PARAMS}


_SUMS = {"f32": 2e-6, "f64": 4e-15, "bf16": 1.6e-2, "f16": 2e-3, "c64": 2e-6, "c128": 4e-15}

reduce_window_sum_p = _reduction(
    "reduce_window_sum",
    "Sum over every place of a window; bf16 and f16 accumulate in f32.",
    NUMBER,
    lambda dtype: 0,
    np.add,
    tolerance=_SUMS,
    floor=1.0,
    grad_order=1,
)
reduce_window_sum_p.def_linear()


@reduce_window_sum_p.def_transpose
def _sum_transpose(
    ct: Array,
    x: Linear,
    *,
    window: Sizes,
    strides: Sizes,
    padding: Pairs,
    base_dilation: Sizes,
    window_dilation: Sizes,
) -> tuple[Array]:
    """Every element gets the sum of the cotangents of the windows it lies in."""
    pairs = []
    for d, (low, _) in enumerate(padding):
        reach = dilated(window[d], window_dilation[d])
        before = reach - low - 1
        whole = dilated(x.aval.shape[d], base_dilation[d])
        slid = dilated(op.shape_of(ct)[d], strides[d])
        pairs.append((before, whole + reach - 1 - slid - before))
    out = reduce_window_sum_p.bind(
        ct,
        window=window,
        strides=base_dilation,
        padding=tuple(pairs),
        base_dilation=strides,
        window_dilation=window_dilation,
    )
    return (out,)


def _extremum_jvp(name: str) -> Callable[..., Array]:
    def jvp(t: Array, x: Array, *, out: Array, **params: Any) -> Array:
        return select_and_gather_p.bind(t, x, chooses=name, **params)

    return jvp


reduce_window_max_p = _reduction(
    "reduce_window_max",
    "Maximum over every place of a window; NaN wins.",
    REAL + BOOL,
    lowest,
    np.maximum,
    grad_order=2,
)
reduce_window_min_p = _reduction(
    "reduce_window_min",
    "Minimum over every place of a window; NaN wins.",
    REAL + BOOL,
    highest,
    np.minimum,
    grad_order=2,
)
reduce_window_max_p.def_jvp(_extremum_jvp("max"))
reduce_window_min_p.def_jvp(_extremum_jvp("min"))

reduce_window_prod_p = _reduction(
    "reduce_window_prod",
    "Product over every place of a window; bf16 and f16 accumulate in f32.",
    NUMBER,
    lambda dtype: 1,
    np.multiply,
    tolerance={"f32": 8e-6, "f64": 1e-14, "bf16": 1.6e-2, "f16": 2e-3, "c64": 8e-6, "c128": 1e-14},
    grad_order=2,
)


@reduce_window_prod_p.def_jvp
def _prod_jvp(t: Array, x: Array, *, out: Array, **params: Any) -> Array:
    """The sum over taps of its tangent times the product of all other taps, zeros or not."""
    taps, tangents = windows_by_taps(x, 1, **params), windows_by_taps(t, 0, **params)
    total: Array = None
    before: list[Array] = [None]
    for part in taps[:-1]:
        before.append(part if before[-1] is None else op.mul(before[-1], part))
    after: Array = None
    for part, tangent, ahead in reversed(list(zip(taps, tangents, before, strict=True))):
        share = tangent
        for factor in (ahead, after):
            share = share if factor is None else op.mul(share, factor)
        total = share if total is None else op.add(total, share)
        after = part if after is None else op.mul(after, part)
    return total


@reduce_window_prod_p.def_composite
def _prod_composite(x: Array, **params: Any) -> Array:
    """The product of its taps."""
    dtype = op.dtype_of(x)
    wide = dtypes.float32 if dtypes.is_float(dtype) and dtype.itemsize < 4 else dtype
    total: Array = None
    for part in windows_by_taps(op.convert(x, wide), 1, **params):
        total = part if total is None else op.mul(total, part)
    return op.convert(total, dtype)


for _primitive in (reduce_window_max_p, reduce_window_min_p, reduce_window_prod_p):
    _primitive.not_needed["transpose"] = NOT_LINEAR


def windows_by_taps(
    x: Array,
    fill: Any,
    *,
    window: Sizes,
    strides: Sizes,
    padding: Pairs,
    base_dilation: Sizes,
    window_dilation: Sizes,
) -> list[Array]:
    """x as each tap of a window sees it: one array of the result's shape per tap, in order."""
    low, high = [a for a, _ in padding], [b for _, b in padding]
    x = op.pad(x, fill, low, high, [d - 1 for d in base_dilation])
    rank = len(window)
    counts = window_counts(
        "windows", op.shape_of(x), window, strides, ((0, 0),) * rank, (1,) * rank, window_dilation
    )
    return tap_slices(x, window, counts, strides, window_dilation)


# ---------------------------------------------------------------- what a window chose
_CHOICES: dict[str, tuple[Callable[[DType], Any], Any]] = {
    "max": (lowest, np.maximum),
    "min": (highest, np.minimum),
}


def _check_choice(name: str, first: Aval, x: Aval, chooses: str, **params: Any) -> Any:
    check_dtypes(name, (first, x), FLOAT)
    if chooses not in _CHOICES:
        raise ShapeError(message(f"{name} got chooses={chooses!r}", None, "Use max or min"))
    return _counts(name, x, **params)


def _mismatch(name: str, first: Aval, x: Aval, wanted: Sequence[Size]) -> ShapeError:
    return ShapeError(
        message(
            f"{name} got {first} for {x}",
            None,
            f"Its first operand needs the shape ({','.join(map(str, wanted))})",
        )
    )


def _gather_abstract(t: Aval, x: Aval, *, chooses: str, **params: Any) -> Aval:
    counts = _check_choice("select_and_gather", t, x, chooses, **params)
    if not same_shape(t.shape, x.shape):
        raise _mismatch("select_and_gather", t, x, x.shape)
    return Aval(counts, t.dtype)


def _scatter_abstract(source: Aval, x: Aval, *, chooses: str, **params: Any) -> Aval:
    counts = _check_choice("select_and_scatter_add", source, x, chooses, **params)
    if not same_shape(source.shape, counts):
        raise _mismatch("select_and_scatter_add", source, x, counts)
    return Aval(x.shape, source.dtype)


def _chosen_places(x: NumpyArray, chooses: str, params: dict[str, Any]) -> NumpyArray:
    """Flat place in x, one past its end for padding, of what each window chose."""
    identity, _ = _CHOICES[chooses]
    rank = x.ndim

    def windows(values: NumpyArray, fill: Any) -> NumpyArray:
        return strided_windows(
            values,
            params["window"],
            params["strides"],
            params["padding"],
            params["base_dilation"],
            params["window_dilation"],
            fill,
        )

    values = windows(x.astype(np.float64), float(identity(np.dtype(np.float64))))
    places = windows(np.arange(x.size).reshape(x.shape), x.size)
    flat = values.reshape(*values.shape[:rank], -1)
    pick = (np.argmax if chooses == "max" else np.argmin)(flat, axis=-1)
    return np.take_along_axis(places.reshape(flat.shape), pick[..., None], -1)[..., 0]


def _gather_reference(t: NumpyArray, x: NumpyArray, *, chooses: str, **params: Any) -> NumpyArray:
    counts = _counts("select_and_gather", Aval(x.shape, x.dtype), **params)
    if any(n == 0 for n in counts):
        return np.zeros([int(str(n)) for n in counts], t.dtype)
    return np.append(t.ravel(), np.zeros(1, t.dtype))[_chosen_places(x, chooses, params)]


def _scatter_reference(
    source: NumpyArray, x: NumpyArray, *, chooses: str, **params: Any
) -> NumpyArray:
    total = np.zeros(x.size + 1, np.float64)
    if source.size:
        np.add.at(total, _chosen_places(x, chooses, params).ravel(), source.ravel())
    return total[:-1].reshape(x.shape).astype(source.dtype)


def _select_primitive(
    name: str, doc: str, abstract: Any, reference: Any, second: bool
) -> Primitive:
    cases = tuple(
        OpCase(case.shapes, {**case.params, "chooses": ("max", "min")[number % 2]}, case.ranges)
        for number, case in enumerate(_cases(2, second))
    )
    primitive = Primitive(
        name,
        abstract=abstract,
        doc=doc,
        reference=reference,
        tests=TestRecord(
            cases,
            FLOAT,
            {"f32": 1e-6, "f64": 1e-14, "bf16": 1.6e-2, "f16": 2e-3},
            grad_order=1,
            floor=1.0,
        ),
    )

    def jvp(t: Array, first: Array, x: Array, *, out: Array, **params: Any) -> Array:
        return primitive.bind(t, x, **params)

    primitive.def_jvp(jvp, None)

    @primitive.def_vmap
    def _vmap(
        ctx: Any, args: Sequence[Array], dims: Sequence[int | None], size: Size, **params: Any
    ) -> tuple[Array, int]:
        first, x = (ctx.to_front(a, dim, size) for a, dim in zip(args, dims, strict=True))
        return primitive.bind(first, x, **_with_axis(params, 0)), 0

    @primitive.def_cost
    def _cost(first: Aval, x: Aval, **params: Any) -> Cost:
        out = abstract(first, x, **params)
        places = elements(first) if second else elements(out)
        taps = elements(Aval(params["window"], x.dtype))
        return Cost(3 * places * taps, nbytes(first, x), nbytes(out))

    return primitive


select_and_gather_p = _select_primitive(
    "select_and_gather",
    "For each window over the second operand, the element of the first at the place of its first "
    "maximum or minimum.",
    _gather_abstract,
    _gather_reference,
    False,
)
select_and_scatter_add_p = _select_primitive(
    "select_and_scatter_add",
    "Zeros of the shape of the second operand, with an element of the first added per window, at "
    "the place of its first maximum or minimum.",
    _scatter_abstract,
    _scatter_reference,
    True,
)


@select_and_gather_p.def_transpose
def _gather_transpose(ct: Array, t: Linear, x: Array, **params: Any) -> tuple[Array, None]:
    return select_and_scatter_add_p.bind(ct, x, **params), None


@select_and_scatter_add_p.def_transpose
def _scatter_transpose(ct: Array, source: Linear, x: Array, **params: Any) -> tuple[Array, None]:
    return select_and_gather_p.bind(ct, x, **params), None


def _pad_selection(
    ctx: Any, first: Array, x: Array, first_true: Any, x_true: Any, chooses: str, params: Any
) -> tuple[Array, Array, dict[str, Any]]:
    identity, _ = _CHOICES[chooses]
    window, strides, padding, base_dilation, window_dilation = (params[name] for name in _PARAMS)
    if any(not isinstance(low, int) for low, _ in padding):
        raise UnsupportedError(
            message(
                f"The derivative of a maximum over windows with padding {padding}",
                None,
                "Pad with a static width in front, or pad the array first",
            )
        )
    start = identity(op.dtype_of(x))
    counts = window_counts(
        "windows", x_true, window, strides, padding, base_dilation, window_dilation
    )
    x, pairs, _ = padded_limits(
        ctx, ctx.mask(x, x_true, start), start, 0, x_true, window, counts, strides, padding,
        base_dilation, window_dilation,
    )  # fmt: skip
    return ctx.mask(first, first_true, 0), x, {**params, "padding": pairs}


def _pad_rule(primitive: Primitive) -> None:
    @primitive.def_pad
    def _pad(
        ctx: Any,
        args: Sequence[Array],
        true_shapes: Sequence[tuple[Size, ...]],
        *,
        chooses: str,
        **params: Any,
    ) -> Array:
        (first, x), (first_true, x_true) = args, true_shapes
        first, x, given = _pad_selection(ctx, first, x, first_true, x_true, chooses, params)
        return primitive.bind(first, x, chooses=chooses, **given)


_pad_rule(select_and_gather_p)
_pad_rule(select_and_scatter_add_p)


# ---------------------------------------------------------------- array code
def _hits(x: Array, chooses: str, params: dict[str, Any]) -> list[Array]:
    """For each tap, where it is the first that its window chose."""
    identity, _ = _CHOICES[chooses]
    taps = windows_by_taps(x, identity(op.dtype_of(x)), **params)
    better = op.gt if chooses == "max" else op.lt
    best, number = taps[0], op.full(op.shape_of(taps[0]), 0, dtypes.int32)
    for i, part in enumerate(taps[1:], 1):
        # The first NaN wins, and nothing after it.
        wins = op.bitwise_and(
            op.bitwise_or(better(part, best), op.ne(part, part)), op.eq(best, best)
        )
        best = op.select(wins, part, best)
        number = op.select(wins, i, number)
    return [op.eq(number, i) for i in range(len(taps))]


@select_and_gather_p.def_composite
def _gather_composite(t: Array, x: Array, *, chooses: str, **params: Any) -> Array:
    """The sum over taps of the first operand where the tap was chosen."""
    total: Array = None
    for hit, part in zip(_hits(x, chooses, params), windows_by_taps(t, 0, **params), strict=True):
        share = op.select(hit, part, 0.0)
        total = share if total is None else op.select(hit, part, total)
    return total


@select_and_scatter_add_p.def_composite
def _scatter_composite(source: Array, x: Array, *, chooses: str, **params: Any) -> Array:
    """Every tap puts its numbers, where it was chosen, at its places: between zeros, then added."""
    dtype = op.dtype_of(source)
    wide = dtypes.float32 if dtype.itemsize < 4 else dtype
    source = op.convert(source, wide)
    window, strides, padding, base_dilation, window_dilation = (params[name] for name in _PARAMS)
    shape = op.shape_of(x)
    total: Array = None
    for tap, hit in zip(np.ndindex(*window), _hits(x, chooses, params), strict=True):
        shares = op.select(hit, source, 0.0)
        low, high = [], []
        for d, place in enumerate(tap):
            before = place * window_dilation[d] - padding[d][0]
            spread = dilated(op.shape_of(source)[d], strides[d])
            low.append(before)
            high.append(dilated(shape[d], base_dilation[d]) - before - spread)
        placed = op.pad(shares, 0, low, high, [s - 1 for s in strides])
        total = placed if total is None else op.add(total, placed)
    if any(d > 1 for d in base_dilation):
        whole = op.shape_of(total)
        total = op.slice(total, [0] * len(whole), whole, base_dilation)
    return op.convert(total, dtype)
