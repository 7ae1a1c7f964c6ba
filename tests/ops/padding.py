"""The pad column: a pad rule on padded arrays full of garbage gives the exact result in front.

Sizes of a call become symbolic (equal sizes the same name), operands get a longer buffer whose
rest is NaN or an extreme value, and the part of the result within its true shape must equal the
reference on the true operands.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tests.ops.table import Call, NumpyArray, reference
from trnx.core import Aval, Dim, Primitive, Size, dim, dtypes, evaluate, primitives
from trnx.core.program import Params, sub_programs
from trnx.ops._windows import window_counts
from trnx.transforms.pad import PadContext

_EXTRA = 3  # how much longer than its true size a padded axis is


# Calls whose parameters hold sizes that do not follow from equal numbers: n and m are symbolic.
_N, _M = dim("n", max=64), dim("m", max=64)
_TRUE = {"n": 5, "m": 3}


def _conv(**changed: Any) -> dict[str, Any]:
    params = {"strides": (1, 1), "padding": ((1, 1), (1, 1)), "lhs_dilation": (1, 1),
              "rhs_dilation": (1, 1), "groups": 1, "out_dtype": dtypes.float32}  # fmt: skip
    return params | changed


def _windows(window: tuple[int, ...], **changed: Any) -> dict[str, Any]:
    ones = (1,) * len(window)
    params = {"window": window, "strides": ones, "padding": ((0, 0),) * len(window),
              "base_dilation": ones, "window_dilation": ones}  # fmt: skip
    return params | changed


_WINDOWED: list[tuple[tuple[Size, ...], dict[str, Any]]] = [
    ((_N, 4), _windows((1, 3))),
    ((_N, 4), _windows((2, 2), strides=(2, 2))),
    ((_N, _M), _windows((3, 2), padding=((1, 1), (0, 1)))),
    ((_N, 5), _windows((3, 3), padding=((2, 1), (-1, 1)), strides=(2, 1))),
    ((_N, 5), _windows((3, 2), padding=((2, _M), (0, 0)), window_dilation=(2, 1))),
    ((_N, 5), _windows((3, 2), padding=((1, 1), (0, 0)), base_dilation=(2, 1))),
]


def _chosen(gather: bool) -> list[tuple[tuple[tuple[Size, ...], ...], dict[str, Any]]]:
    found = []
    for shape, params in _WINDOWED:
        given = [params[n] for n in ("window", "strides", "padding", "base_dilation")]
        counts = window_counts("windows", shape, *given, params["window_dilation"])
        first = shape if gather else counts
        found += [((first, shape), {**params, "chooses": chooses}) for chooses in ("max", "min")]
    return found


WRITTEN: dict[str, list[tuple[tuple[tuple[Size, ...], ...], dict[str, Any]]]] = {
    "conv": [
        (((_N, 3, 4, 6), (2, 3, 3, 3)), _conv()),
        (((2, _M, _N, 5), (4, _M, 3, 3)), _conv()),
        (((2, 3, _N, _M), (_N, 3, 3, 3)), _conv(strides=(2, 2))),
        (((2, 3, _N, 7), (4, 3, 2, 3)), _conv(lhs_dilation=(2, 1), rhs_dilation=(2, 2))),
        (((2, 4, _N, 5), (4, 2, 3, 3)), _conv(groups=2, padding=((1, 1), (1, 1)))),
        (((2, 2 * _N, 4, 5), (2 * _M, _N, 3, 3)), _conv(groups=2)),
        (((2, 3, 2 * _N, 5), (_M, 3, _N, 3)), _conv(rhs_dilation=(2, 1))),
        (((2, 3, _N, 5), (2, 3, 3, 3)), _conv(padding=((_M, 1), (1, 1)), lhs_dilation=(2, 1))),
        (((2, 3, _N, 5), (2, 3, 2, 3)), _conv(padding=((1, _M), (-1, 1)), strides=(2, 1))),
    ],
    "reduce_window_sum": [((shape,), params) for shape, params in _WINDOWED],
    "reduce_window_max": [
        *(((shape,), params) for shape, params in _WINDOWED),
        (((_N, 5),), _windows((3, 2), padding=((_M, 1), (0, 0)))),
    ],
    "reduce_window_min": [((shape,), params) for shape, params in _WINDOWED],
    "reduce_window_prod": [((shape,), params) for shape, params in _WINDOWED],
    "select_and_gather": _chosen(True),
    "select_and_scatter_add": _chosen(False),
    # Matrices of a symbolic size are refused, stacks of a symbolic number of them are not.
    "lu": [(((_N, 3, 4),), {})],
    "qr": [(((_N, 4, 3),), {"full_matrices": False})],
    "svd": [(((_N, 4, 3),), {"full_matrices": False, "compute_uv": True})],
    "eigh": [(((_N, 3, 3),), {})],
    "bitcast": [(((_N, _M),), {"dtype": dtypes.int32})],
    "fft": [(((_N, 6),), {"kind": "rfft", "lengths": (6,)})],
    "reshape": [
        (((_N, 4),), {"shape": (_N * 4,)}),
        (((_N * 4,),), {"shape": (_N, 4)}),
        (((2, _N, 4),), {"shape": (2 * _N, 4)}),
        (((2 * _N, 4),), {"shape": (2, _N, 4)}),
        (((_N, _M),), {"shape": (_N * _M,)}),
        (((2, _N, _M, 3),), {"shape": (2 * _N, _M * 3)}),
        (((_N, 1, _M),), {"shape": (_N, _M)}),
        (((_N, 6),), {"shape": (_N, 2, 3)}),
    ],
    "slice": [
        (((_N, 4),), {"start": (1, 0), "limit": (_N, 4), "strides": (1, 1)}),
        (((_N, 4),), {"start": (0, 1), "limit": (_N - 1, 3), "strides": (1, 1)}),
        (((_N, 4),), {"start": (_N - 1, 0), "limit": (_N, 4), "strides": (1, 2)}),
        (((2 * _N,),), {"start": (0,), "limit": (2 * _N,), "strides": (2,)}),
        (((2 * _N,),), {"start": (_N,), "limit": (2 * _N,), "strides": (1,)}),
    ],
    "pad": [
        (((_N, 4), ()), {"low": (2, 0), "high": (1, 1), "interior": (0, 0)}),
        (((_N, _M), ()), {"low": (0, 1), "high": (0, 0), "interior": (1, 2)}),
        (((_N, 4), ()), {"low": (_M, 0), "high": (2, 0), "interior": (0, 0)}),
        (((_N, 4), ()), {"low": (0, 0), "high": (_M, 0), "interior": (0, 0)}),
    ],
    "iota": [
        ((), {"shape": (_N, 3), "axis": 0, "dtype": dtypes.int32}),
        ((), {"shape": (2, _N), "axis": 1, "dtype": dtypes.float32}),
    ],
    "dim_size": [
        ((), {"size": _N * 2 + 1, "dtype": dtypes.int32}),
        ((), {"size": _M, "dtype": dtypes.float32}),
    ],
    "concatenate": [
        (((_N, 4), (_M, 4)), {"axis": 0}),
        (((2, _N), (2, 3), (2, _M), (2, 1)), {"axis": 1}),
        (((2, 4), (_M, 4)), {"axis": 0}),
    ],
    "broadcast": [
        (((_N, 1),), {"shape": (_N, _M), "dims": (0, 1)}),
        (((),), {"shape": (_N, 2), "dims": ()}),
    ],
}


def _values(value: Any, sizes: dict[str, int]) -> Any:
    """A parameter with every size replaced by its number."""
    if isinstance(value, Dim):
        return evaluate(value, sizes)
    return tuple(_values(v, sizes) for v in value) if isinstance(value, tuple) else value


def garbage(dtype: np.dtype[Any]) -> Any:
    """What fills padding: NaN, True, or the largest integer."""
    if dtypes.is_inexact(dtype):
        return np.nan
    return True if dtype == dtypes.bool_ else dtypes.integer_range(dtype)[1]


def _filled(true: NumpyArray, shape: Sequence[int]) -> NumpyArray:
    out = np.full(shape, garbage(true.dtype), true.dtype)
    out[tuple(map(slice, true.shape))] = true
    return out


def check_rule(
    primitive: Primitive,
    shapes: Sequence[tuple[Size, ...]],
    params: dict[str, Any],
    operands: Sequence[NumpyArray],
    true: dict[str, int],
    compare: Any,
) -> None:
    """Run a pad rule and compare the part within the true shape with the reference."""
    context = PadContext(
        {name: size + _EXTRA for name, size in true.items()},
        {name: np.int32(size) for name, size in true.items()},
    )
    expected = reference(primitive, operands, {k: _values(v, true) for k, v in params.items()})
    padded = [
        _filled(x, [context.padded(size) for size in shape])
        for x, shape in zip(operands, shapes, strict=True)
    ]
    result = primitive.rule("pad")(context, padded, list(shapes), **params)
    results = result if primitive.multiple_results else [result]
    avals = primitive.out_avals(
        tuple(Aval(s, x.dtype) for s, x in zip(shapes, operands, strict=True)), Params(params)
    )
    for got, want, aval in zip(results, expected, avals, strict=True):
        got = np.asarray(got)
        assert got.shape == tuple(context.padded(size) for size in aval.shape), (got.shape, aval)
        compare(got[tuple(map(slice, want.shape))], want, "pad")


def check_pad(call: Call) -> None:
    """Every axis longer than 1 symbolic, where parameters hold no sizes; WRITTEN has the rest.

    Programs in parameters have sizes in their types: tests/control/test_padding.py pads those.
    """
    if call.primitive.name in WRITTEN or not call.case.shapes or any(sub_programs(call.params)):
        return
    sizes = sorted({s for shape in call.case.shapes for s in shape if s > 1})
    names = {size: dim(f"d{size}", max=1000) for size in sizes}
    shapes = [tuple(names.get(size, size) for size in shape) for shape in call.case.shapes]
    true = {f"d{size}": size for size in sizes}
    check_rule(call.primitive, shapes, dict(call.case.params), call.operands(), true, call.compare)


def check_written(name: str, number: int) -> None:
    """One call of WRITTEN, in f32."""
    shapes, params = WRITTEN[name][number]
    rng = np.random.default_rng(number)
    operands = [
        np.asarray(rng.normal(size=[evaluate(s, _TRUE) for s in shape]), np.float32)
        for shape in shapes
    ]

    def equal(got: NumpyArray, want: NumpyArray, what: str) -> None:
        assert got.dtype == want.dtype
        np.testing.assert_array_equal(got, want)

    check_rule(primitives[name], shapes, params, operands, _TRUE, equal)
