"""PyTorch dtypes and trnx dtypes, both ways, once."""

from __future__ import annotations

import numpy as np
import torch

from trnx.core import dtypes as td

_PAIRS: tuple[tuple[torch.dtype, np.dtype], ...] = (
    (torch.bool, td.bool_),
    (torch.int8, td.int8),
    (torch.int16, td.int16),
    (torch.int32, td.int32),
    (torch.int64, td.int64),
    (torch.uint8, td.uint8),
    (torch.uint16, td.uint16),
    (torch.uint32, td.uint32),
    (torch.uint64, td.uint64),
    (torch.bfloat16, td.bfloat16),
    (torch.float16, td.float16),
    (torch.float32, td.float32),
    (torch.float64, td.float64),
    (torch.complex64, td.complex64),
    (torch.complex128, td.complex128),
    (torch.float8_e4m3fn, td.float8_e4m3fn),
    (torch.float8_e5m2, td.float8_e5m2),
)
_TO_TRNX = dict(_PAIRS)
_TO_TORCH = {numpy: torch_dtype for torch_dtype, numpy in _PAIRS}


def to_trnx_dtype(dtype: torch.dtype) -> np.dtype:
    """The trnx dtype of a PyTorch dtype.

    Raises:
        TypeError: trnx has no such dtype (quantised and complex32 types).
    """
    try:
        return _TO_TRNX[dtype]
    except KeyError:
        known = ", ".join(str(t) for t, _ in _PAIRS)
        raise TypeError(f"{dtype} has no trnx dtype. Cast the tensor to one of {known}.") from None


def to_torch_dtype(dtype: np.dtype) -> torch.dtype:
    """The PyTorch dtype of a trnx dtype.

    Raises:
        TypeError: PyTorch has no such dtype (float8_e4m3 with maximum 240).
    """
    try:
        return _TO_TORCH[dtype]
    except KeyError:
        raise TypeError(
            f"PyTorch has no dtype for {td.short_name(dtype)}. Cast the array first."
        ) from None
