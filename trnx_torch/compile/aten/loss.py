"""Loss functions whose core decomposition would gather and scatter."""

from __future__ import annotations

from typing import Any

import trnx.numpy as np
from trnx_torch.compile.aten.registry import lowers

Value = Any

_NONE, _MEAN = 0, 1  # values of `reduction` in ATen


def _class_axis(x: Value) -> int:
    return 0 if x.ndim == 1 else 1


def _hits(x: Value, target: Value) -> Value:
    """Where the class axis equals the target."""
    axis = _class_axis(x)
    classes = np.arange(x.shape[axis], dtype=np.int32)
    classes = np.reshape(classes, tuple(-1 if a == axis else 1 for a in range(x.ndim)))
    return np.expand_dims(target.astype(np.int32), axis) == classes


def _weights(x: Value, target: Value, weight: Value | None, ignore_index: int) -> Value:
    """The weight of each target; 0 where it is ignored."""
    keep = target != ignore_index
    if weight is None:
        return keep.astype(x.dtype)
    axis = _class_axis(x)
    spread = np.reshape(weight, tuple(-1 if a == axis else 1 for a in range(x.ndim)))
    own = np.sum(np.where(_hits(x, target), spread, np.zeros_like(spread)), axis=axis)
    return np.where(keep, own, np.zeros_like(own))


@lowers("nll_loss_forward.default", "nll_loss2d_forward.default")
def _nll_loss(
    x: Value, target: Value, weight: Value | None, reduction: int, ignore_index: int
) -> tuple[Value, Value]:
    axis = _class_axis(x)
    picked = np.sum(np.where(_hits(x, target), x, np.zeros_like(x)), axis=axis)
    weights = _weights(x, target, weight, ignore_index)
    # A weight of 0 must not meet what an ignored target picks: it could be infinite.
    losses = np.where(weights == 0, np.zeros_like(picked), -picked * weights)
    if reduction == _NONE:
        return losses, np.zeros((), dtype=x.dtype)
    total = np.sum(weights)
    loss = np.sum(losses)
    return (loss / total if reduction == _MEAN else loss), total


@lowers("nll_loss_backward.default", "nll_loss2d_backward.default")
def _nll_loss_backward(
    grad: Value,
    x: Value,
    target: Value,
    weight: Value | None,
    reduction: int,
    ignore_index: int,
    total_weight: Value,
) -> Value:
    weights = _weights(x, target, weight, ignore_index)
    scale = grad / total_weight if reduction == _MEAN else grad
    rows = np.expand_dims(-(scale * weights), _class_axis(x))
    return np.where(_hits(x, target), rows, np.zeros_like(rows)).astype(x.dtype)
