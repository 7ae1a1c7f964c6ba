"""Rules of convolution, windows and running reductions."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from trnx.core import dtypes, primitives
from trnx.core.avals import static_size
from trnx.interop.jax.control import closed
from trnx.interop.jax.registry import Site, Value, rule
from trnx.ops import functions as op
from trnx.ops.windows import ConvDimensionNumbers, conv_general_dilated
from trnx.transforms import vmap

_CUMULATIVE: dict[str, Callable[..., Value]] = {
    "cumsum": op.cumsum,
    "cumprod": op.cumprod,
    "cummax": op.cummax,
    "cummin": op.cummin,
    "cumlogsumexp": op.cumlogsumexp,
}


@rule(*_CUMULATIVE)
def _cumulative(site: Site, x: Value, *, axis: int, reverse: bool) -> Value:
    return _CUMULATIVE[site.primitive](x, axis, reverse)


@rule("conv_general_dilated")
def _conv(
    site: Site,
    lhs: Value,
    rhs: Value,
    *,
    window_strides: Sequence[int],
    padding: Sequence[tuple[int, int]],
    lhs_dilation: Sequence[int],
    rhs_dilation: Sequence[int],
    dimension_numbers: Any,
    feature_group_count: int,
    batch_group_count: int,
    preferred_element_type: Any = None,
    **_: Any,
) -> Value:
    out = site.result.dtype
    left, right = site.operands
    common = left.dtype if left.dtype == right.dtype else out
    if dtypes.is_float(out) and (not dtypes.is_float(common) or out.itemsize > 4):
        common = out
    numbers = ConvDimensionNumbers(
        tuple(dimension_numbers.lhs_spec),
        tuple(dimension_numbers.rhs_spec),
        tuple(dimension_numbers.out_spec),
    )
    return conv_general_dilated(
        op.convert(lhs, common),
        op.convert(rhs, common),
        window_strides,
        [(low, high) for low, high in padding],
        lhs_dilation,
        rhs_dilation,
        numbers,
        feature_group_count,
        batch_group_count,
        out,
    )


# ---------------------------------------------------------------- windows
def _window_params(params: Any) -> dict[str, Any]:
    """JAX's window parameters under trnx's names."""
    rank = len(params["window_dimensions"])
    ones = (1,) * rank
    return {
        "window": tuple(params["window_dimensions"]),
        "strides": tuple(params["window_strides"]),
        "padding": tuple(tuple(pair) for pair in params["padding"]),
        "base_dilation": tuple(params.get("base_dilation") or ones),
        "window_dilation": tuple(params.get("window_dilation") or ones),
    }


_MONOIDS = {
    "reduce_window_sum": "reduce_window_sum",
    "reduce_window_max": "reduce_window_max",
    "reduce_window_min": "reduce_window_min",
}


@rule(*_MONOIDS)
def _reduce_window(site: Site, x: Value, **params: Any) -> Value:
    return primitives[_MONOIDS[site.primitive]].bind(x, **_window_params(params))


_BY_COMBINER: dict[str, tuple[str, Callable[[Value, Value], Value]]] = {
    "add": ("reduce_window_sum", op.add),
    "mul": ("reduce_window_prod", op.mul),
    "max": ("reduce_window_max", op.max),
    "min": ("reduce_window_min", op.min),
}


@rule("reduce_window")
def _reduce_window_by_body(
    site: Site, *operands: Value, jaxpr: Any, consts: Any = (), **params: Any
) -> Value:
    """A body of one monoid operation, with any initial value, which also fills the padding."""
    names = [equation.primitive.name for equation in closed(jaxpr).jaxpr.eqns]
    if len(operands) != 2 or len(names) != 1 or names[0] not in _BY_COMBINER:
        raise site.refuse(f"with the body {names}", "Use add, mul, max or min of one operand")
    x, init = operands
    name, combine = _BY_COMBINER[names[0]]
    given = _window_params(params)
    # Dilate and pad with the initial value: then the windows need neither.
    low = [pair[0] for pair in given["padding"]]
    high = [pair[1] for pair in given["padding"]]
    interior = [step - 1 for step in given["base_dilation"]]
    x = op.pad(x, init, low, high, interior)
    rank = len(low)
    plain = {**given, "padding": ((0, 0),) * rank, "base_dilation": (1,) * rank}
    return combine(primitives[name].bind(x, **plain), init)


def _chooses(site: Site, select_prim: Any) -> str:
    name = getattr(select_prim, "name", str(select_prim))
    if name not in ("ge", "le"):
        raise site.refuse(f"by {name}", "Choose by ge or le")
    return "max" if name == "ge" else "min"


@rule("select_and_gather_add")
def _select_and_gather(site: Site, t: Value, x: Value, *, select_prim: Any, **params: Any) -> Value:
    chosen = {**_window_params(params), "chooses": _chooses(site, select_prim)}
    return primitives["select_and_gather"].bind(t, x, **chosen)


@rule("select_and_scatter_add")
def _select_and_scatter(
    site: Site, source: Value, x: Value, *, select_prim: Any, **params: Any
) -> Value:
    chosen = {**_window_params(params), "chooses": _chooses(site, select_prim)}
    return primitives["select_and_scatter_add"].bind(source, x, **chosen)


# ---------------------------------------------------------------- reductions by a body
@rule("reduce")
def _reduce(
    site: Site, *operands: Value, jaxpr: Any, dimensions: Sequence[int], **_: Any
) -> list[Value]:
    """A tree of halves: the body combines the two halves of the reduced axes until one is left."""
    count = len(operands) // 2
    values, inits = list(operands[:count]), operands[count:]
    shape = site.sizes(0)
    kept = [d for d in range(len(shape)) if d not in dimensions]
    size = math.prod(shape[d] for d in dimensions)
    flat = [
        op.reshape(op.transpose(x, [*dimensions, *kept]), (size, *(shape[d] for d in kept)))
        for x in values
    ]
    body = _mapped(site, jaxpr)
    while size > 1:
        half = size // 2
        low = [op.slice_axis(x, 0, half, 0) for x in flat]
        high = [op.slice_axis(x, half, 2 * half, 0) for x in flat]
        rest = [op.slice_axis(x, 2 * half, size, 0) for x in flat]
        flat = body(low, high)
        if size % 2:
            flat = [op.concatenate([x, y], 0) for x, y in zip(flat, rest, strict=True)]
        size = half + size % 2
    starts = [op.broadcast(i, (1, *(shape[d] for d in kept)), ()) for i in inits]
    if size:
        starts = body(starts, flat)
    return [op.reshape(x, tuple(shape[d] for d in kept)) for x in starts]


def _mapped(site: Site, jaxpr: Any) -> Callable[..., list[Value]]:
    """A body of scalars over arrays of one shape."""

    def run(left: Sequence[Value], right: Sequence[Value]) -> list[Value]:
        shape = op.shape_of(left[0])
        total = static_size(shape)
        given = [op.reshape(x, (total,)) for x in (*left, *right)]
        results = vmap(lambda *args: site.run(closed(jaxpr), args))(*given)
        return [op.reshape(x, shape) for x in results]

    return run
