"""Reductions, softmax family and arg-reductions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import trnx.nn as nn
import trnx.numpy as np
from trnx.core.dtypes import is_bool, is_integer
from trnx.ops import functions as op
from trnx_torch.compile.aten.registry import lowers
from trnx_torch.dtypes import to_trnx_dtype

Value = Any
Dims = int | Sequence[int] | None


def _axes(x: Value, dim: Dims) -> tuple[int, ...]:
    """PyTorch's reading of ``dim``: none and an empty list both mean every axis."""
    if dim is None or (not isinstance(dim, int) and len(dim) == 0):
        return tuple(range(x.ndim))
    dims = (dim,) if isinstance(dim, int) else tuple(dim)
    return tuple(d % x.ndim for d in dims) if x.ndim else ()


@lowers("sum.dim_IntList", "sum.default")
def _sum(x: Value, dim: Dims = None, keepdim: bool = False, *, dtype: Any = None) -> Value:
    if dtype is not None:
        x = x.astype(to_trnx_dtype(dtype))
    elif is_bool(x.dtype) or is_integer(x.dtype):
        x = x.astype(np.int64)
    return np.sum(x, axis=_axes(x, dim), keepdims=keepdim)


@lowers("mean.dim", "mean.default")
def _mean(x: Value, dim: Dims = None, keepdim: bool = False, *, dtype: Any = None) -> Value:
    if dtype is not None:
        x = x.astype(to_trnx_dtype(dtype))
    return np.mean(x, axis=_axes(x, dim), keepdims=keepdim)


@lowers("prod.default", "prod.dim_int")
def _prod(x: Value, dim: Dims = None, keepdim: bool = False, *, dtype: Any = None) -> Value:
    if dtype is not None:
        x = x.astype(to_trnx_dtype(dtype))
    elif is_bool(x.dtype) or is_integer(x.dtype):
        x = x.astype(np.int64)
    return np.prod(x, axis=_axes(x, dim), keepdims=keepdim)


@lowers("any.default", "any.dim", "any.dims")
def _any(x: Value, dim: Dims = None, keepdim: bool = False) -> Value:
    return np.any(x, axis=_axes(x, dim), keepdims=keepdim)


@lowers("all.default", "all.dim", "all.dims")
def _all(x: Value, dim: Dims = None, keepdim: bool = False) -> Value:
    return np.all(x, axis=_axes(x, dim), keepdims=keepdim)


@lowers("max.default")
def _max(x: Value) -> Value:
    return np.max(x)


@lowers("min.default")
def _min(x: Value) -> Value:
    return np.min(x)


@lowers("max.dim")
def _max_dim(x: Value, dim: int, keepdim: bool = False) -> tuple[Value, Value]:
    if x.ndim == 0:
        return x, np.zeros((), dtype=np.int64)
    return _amax(x, dim, keepdim), _argmax(x, dim, keepdim)


@lowers("min.dim")
def _min_dim(x: Value, dim: int, keepdim: bool = False) -> tuple[Value, Value]:
    if x.ndim == 0:
        return x, np.zeros((), dtype=np.int64)
    return _amin(x, dim, keepdim), _argmin(x, dim, keepdim)


@lowers("cumsum.default")
def _cumsum(x: Value, dim: int, *, dtype: Any = None) -> Value:
    if dtype is not None:
        x = x.astype(to_trnx_dtype(dtype))
    elif is_bool(x.dtype) or is_integer(x.dtype):
        x = x.astype(np.int64)
    return x if x.ndim == 0 else op.cumsum(x, dim % x.ndim)


@lowers("cumprod.default")
def _cumprod(x: Value, dim: int, *, dtype: Any = None) -> Value:
    if dtype is not None:
        x = x.astype(to_trnx_dtype(dtype))
    elif is_bool(x.dtype) or is_integer(x.dtype):
        x = x.astype(np.int64)
    return x if x.ndim == 0 else op.cumprod(x, dim % x.ndim)


@lowers("logcumsumexp.default", "_logcumsumexp.default")
def _logcumsumexp(x: Value, dim: int) -> Value:
    return x if x.ndim == 0 else op.cumlogsumexp(x, dim % x.ndim)


@lowers("logsumexp.default")
def _logsumexp(x: Value, dim: Dims, keepdim: bool = False) -> Value:
    return np.logsumexp(x, axis=_axes(x, dim), keepdims=keepdim)


@lowers("var_mean.correction")
def _var_mean(
    x: Value, dim: Dims = None, *, correction: float | None = None, keepdim: bool = False
) -> tuple[Value, Value]:
    return (
        _var(x, dim, correction=correction, keepdim=keepdim),
        np.mean(x, axis=_axes(x, dim), keepdims=keepdim),
    )


@lowers("var.correction")
def _var(
    x: Value, dim: Dims = None, *, correction: float | None = None, keepdim: bool = False
) -> Value:
    ddof = 1 if correction is None else correction
    return np.var(x, axis=_axes(x, dim), ddof=ddof, keepdims=keepdim)


@lowers("amax.default")
def _amax(x: Value, dim: Dims = (), keepdim: bool = False) -> Value:
    return np.max(x, axis=_axes(x, dim), keepdims=keepdim)


@lowers("amin.default")
def _amin(x: Value, dim: Dims = (), keepdim: bool = False) -> Value:
    return np.min(x, axis=_axes(x, dim), keepdims=keepdim)


@lowers("argmax.default")
def _argmax(x: Value, dim: int | None = None, keepdim: bool = False) -> Value:
    return np.argmax(x, axis=dim if x.ndim else None, keepdims=keepdim).astype(np.int64)


@lowers("argmin.default")
def _argmin(x: Value, dim: int | None = None, keepdim: bool = False) -> Value:
    return np.argmin(x, axis=dim if x.ndim else None, keepdims=keepdim).astype(np.int64)


@lowers("_softmax.default")
def _softmax(x: Value, dim: int, half_to_float: bool) -> Value:
    return nn.softmax(x.astype(np.float32) if half_to_float else x, axis=dim)


@lowers("_log_softmax.default")
def _log_softmax(x: Value, dim: int, half_to_float: bool) -> Value:
    return nn.log_softmax(x.astype(np.float32) if half_to_float else x, axis=dim)


@lowers("_softmax_backward_data.default")
def _softmax_backward(grad: Value, out: Value, dim: int, input_dtype: Any) -> Value:
    weighted = grad * out
    result = weighted - out * np.sum(weighted, axis=dim, keepdims=True)
    return result.astype(to_trnx_dtype(input_dtype))


@lowers("_log_softmax_backward_data.default")
def _log_softmax_backward(grad: Value, out: Value, dim: int, input_dtype: Any) -> Value:
    result = grad - np.exp(out) * np.sum(grad, axis=dim, keepdims=True)
    return result.astype(to_trnx_dtype(input_dtype))
