"""Tensors made inside a graph."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

import trnx.numpy as np
from trnx_torch.compile.aten.registry import lowers
from trnx_torch.dtypes import to_trnx_dtype

Value = Any


def _dtype(dtype: Any, value: object = 0.0) -> Any:
    if dtype is not None:
        return to_trnx_dtype(dtype)
    if isinstance(value, bool):
        return np.bool_
    return np.int64 if isinstance(value, int) else to_trnx_dtype(torch.get_default_dtype())


@lowers("scalar_tensor.default")
def _scalar_tensor(value: Any, *, dtype: Any = None, **_: Any) -> Value:
    return np.full((), value, dtype=_dtype(dtype))


@lowers("full.default")
def _full(shape: Sequence[int], value: Any, *, dtype: Any = None, **_: Any) -> Value:
    return np.full(tuple(shape), value, dtype=_dtype(dtype, value))


@lowers("full_like.default")
def _full_like(x: Value, value: Any, *, dtype: Any = None, **_: Any) -> Value:
    return np.full(x.shape, value, dtype=x.dtype if dtype is None else to_trnx_dtype(dtype))


@lowers("arange.start_step")
def _arange(start: Any, end: Any, step: Any = 1, *, dtype: Any = None, **_: Any) -> Value:
    kind = dtype if dtype is None else to_trnx_dtype(dtype)
    whole = all(isinstance(v, int) for v in (start, end, step))
    return np.arange(start, end, step, dtype=kind or _dtype(None, 0 if whole else 0.0))
