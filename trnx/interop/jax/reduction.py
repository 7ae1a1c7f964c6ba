"""Rules of reductions over whole axes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from trnx import numpy as tnp
from trnx.core import dtypes
from trnx.interop.jax.registry import Site, Value, rule
from trnx.ops import functions as op


@rule("reduce_sum")
def _sum(site: Site, x: Value, *, axes: Sequence[int], **_: Any) -> Value:
    return op.reduce_sum(x, axes)


@rule("reduce_max")
def _max(site: Site, x: Value, *, axes: Sequence[int], **_: Any) -> Value:
    return op.reduce_max(x, axes)


@rule("reduce_min")
def _min(site: Site, x: Value, *, axes: Sequence[int], **_: Any) -> Value:
    return op.reduce_min(x, axes)


@rule("reduce_prod")
def _prod(site: Site, x: Value, *, axes: Sequence[int], **_: Any) -> Value:
    return op.convert(tnp.prod(x, axis=tuple(axes)), site.result.dtype) if axes else x


@rule("reduce_and")
def _all(site: Site, x: Value, *, axes: Sequence[int], **_: Any) -> Value:
    return tnp.all(x, axis=tuple(axes)) if axes else x


@rule("reduce_or")
def _any(site: Site, x: Value, *, axes: Sequence[int], **_: Any) -> Value:
    return tnp.any(x, axis=tuple(axes)) if axes else x


_ARG = {"argmax": op.argmax, "argmin": op.argmin}


@rule("argmax", "argmin")
def _arg(site: Site, x: Value, *, axes: Sequence[int], index_dtype: Any) -> Value:
    (axis,) = axes
    (operand,) = site.operands
    if operand.dtype == dtypes.bool_:
        x = op.convert(x, dtypes.int8)
    return op.convert(_ARG[site.primitive](x, axis), site.result.dtype)
