"""Normalisation layers: layer, RMS, group and batch norm with their gradients.

Statistics of bfloat16 and float16 are float32, as in PyTorch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import trnx.numpy as np
from trnx_torch.compile.aten.registry import lowers

Value = Any


def _wide(x: Value) -> Value:
    return x.astype(np.float32) if x.dtype.itemsize < 4 else x


def _moments(x: Value, axes: tuple[int, ...], eps: float) -> tuple[Value, Value]:
    """Mean and reciprocal standard deviation over axes, kept as size 1."""
    mean = np.mean(x, axis=axes, keepdims=True)
    centred = x - mean
    variance = np.mean(centred * centred, axis=axes, keepdims=True)
    return mean, np.reciprocal(np.sqrt(variance + eps))


def _scaled(x: Value, weight: Value | None, bias: Value | None, shape: Sequence[Any]) -> Value:
    if weight is not None:
        x = x * np.reshape(_wide(weight), tuple(shape))
    if bias is not None:
        x = x + np.reshape(_wide(bias), tuple(shape))
    return x


@lowers("native_layer_norm.default")
def _layer_norm(
    x: Value, normalized: Sequence[int], weight: Value | None, bias: Value | None, eps: float
) -> tuple[Value, Value, Value]:
    axes = tuple(range(x.ndim - len(normalized), x.ndim))
    wide = _wide(x)
    mean, scale = _moments(wide, axes, eps)
    shape = x.shape[x.ndim - len(normalized) :]
    out = _scaled((wide - mean) * scale, weight, bias, shape)
    return out.astype(x.dtype), mean, scale


@lowers("native_layer_norm_backward.default")
def _layer_norm_backward(
    grad: Value,
    x: Value,
    normalized: Sequence[int],
    mean: Value,
    scale: Value,
    weight: Value | None,
    bias: Value | None,
    mask: Sequence[bool],
) -> tuple[Value | None, Value | None, Value | None]:
    lead = x.ndim - len(normalized)
    axes, others = tuple(range(lead, x.ndim)), tuple(range(lead))
    wide = _wide(grad)
    hat = (_wide(x) - mean) * scale
    weighted = _scaled(wide, weight, None, x.shape[lead:])
    down = None
    if mask[0]:
        along = np.mean(weighted * hat, axis=axes, keepdims=True)
        down = (weighted - np.mean(weighted, axis=axes, keepdims=True) - hat * along) * scale
        down = down.astype(x.dtype)
    by_weight = np.sum(wide * hat, axis=others) if mask[1] else None
    by_bias = np.sum(wide, axis=others) if mask[2] else None
    return down, _like(by_weight, weight), _like(by_bias, bias)


def _like(value: Value | None, parameter: Value | None) -> Value | None:
    return value if value is None or parameter is None else value.astype(parameter.dtype)


@lowers("native_group_norm.default")
def _group_norm(
    x: Value,
    weight: Value | None,
    bias: Value | None,
    batch: int,
    channels: int,
    inner: int,
    groups: int,
    eps: float,
) -> tuple[Value, Value, Value]:
    grouped = np.reshape(_wide(x), (batch, groups, channels // groups * inner))
    mean, scale = _moments(grouped, (2,), eps)
    out = np.reshape((grouped - mean) * scale, x.shape)
    out = _scaled(out, weight, bias, (channels, *(1,) * (x.ndim - 2)))
    return out.astype(x.dtype), np.squeeze(mean, 2), np.squeeze(scale, 2)


@lowers("native_group_norm_backward.default")
def _group_norm_backward(
    grad: Value,
    x: Value,
    mean: Value,
    scale: Value,
    weight: Value | None,
    batch: int,
    channels: int,
    inner: int,
    groups: int,
    mask: Sequence[bool],
) -> tuple[Value | None, Value | None, Value | None]:
    split = (batch, groups, channels // groups, inner)
    hat = (np.reshape(_wide(x), split) - mean[:, :, None, None]) * scale[:, :, None, None]
    wide = np.reshape(_wide(grad), split)
    weighted = wide
    if weight is not None:
        weighted = wide * np.reshape(_wide(weight), (1, groups, channels // groups, 1))
    down = None
    if mask[0]:
        along = np.mean(weighted * hat, axis=(2, 3), keepdims=True)
        down = weighted - np.mean(weighted, axis=(2, 3), keepdims=True) - hat * along
        down = np.reshape(down * scale[:, :, None, None], x.shape).astype(x.dtype)
    own = grad.dtype if weight is None else weight.dtype
    by_weight = np.reshape(np.sum(wide * hat, axis=(0, 3)), (channels,)) if mask[1] else None
    by_bias = np.reshape(np.sum(wide, axis=(0, 3)), (channels,)) if mask[2] else None
    return down, _cast(by_weight, own), _cast(by_bias, own)


def _cast(value: Value | None, dtype: Any) -> Value | None:
    return None if value is None else value.astype(dtype)


def _per_channel(x: Value) -> tuple[tuple[int, ...], Callable[[Value], Value], Any]:
    """Axes that are reduced per channel, how a per-channel value is spread, and their count."""
    axes = (0, *range(2, x.ndim))
    spread = lambda v: np.reshape(v, (1, -1, *(1,) * (x.ndim - 2)))  # noqa: E731
    count: Any = 1
    for axis in axes:
        count = count * x.shape[axis]
    return axes, spread, count


def _batch_norm(
    x: Value, weight: Value | None, bias: Value | None, eps: float
) -> tuple[Value, Value, Value, Value]:
    """Output, mean, reciprocal deviation and unbiased variance of the batch, per channel."""
    axes, spread, count = _per_channel(x)
    wide = _wide(x)
    mean = np.mean(wide, axis=axes)
    centred = wide - spread(mean)
    variance = np.mean(centred * centred, axis=axes)
    scale = np.reciprocal(np.sqrt(variance + eps))
    shape = (1, -1, *(1,) * (x.ndim - 2))
    out = _scaled(centred * spread(scale), weight, bias, shape).astype(x.dtype)
    return out, mean, scale, variance * (count / (count - 1))


def _running(old: Value, new: Value, momentum: float) -> Value:
    return ((1 - momentum) * old + momentum * new).astype(old.dtype)


@lowers("_native_batch_norm_legit_functional.default")
def _batch_norm_functional(
    x: Value,
    weight: Value | None,
    bias: Value | None,
    running_mean: Value,
    running_var: Value,
    training: bool,
    momentum: float,
    eps: float,
) -> tuple[Value, ...]:
    if not training:
        out, mean, scale = _batch_norm_eval(x, weight, bias, running_mean, running_var, 0, eps)
        return out, mean, scale, running_mean, running_var
    out, mean, scale, unbiased = _batch_norm(x, weight, bias, eps)
    return (
        out,
        mean,
        scale,
        _running(running_mean, mean, momentum),
        _running(running_var, unbiased, momentum),
    )


@lowers("_native_batch_norm_legit.no_stats")
def _batch_norm_no_stats(
    x: Value,
    weight: Value | None,
    bias: Value | None,
    training: bool,
    momentum: float,
    eps: float,
) -> tuple[Value, Value, Value]:
    return _batch_norm(x, weight, bias, eps)[:3]


@lowers("_native_batch_norm_legit_no_training.default")
def _batch_norm_eval(
    x: Value,
    weight: Value | None,
    bias: Value | None,
    running_mean: Value,
    running_var: Value,
    momentum: float,
    eps: float,
) -> tuple[Value, Value, Value]:
    _, spread, _ = _per_channel(x)
    mean, scale = _wide(running_mean), np.reciprocal(np.sqrt(_wide(running_var) + eps))
    out = _scaled(
        (_wide(x) - spread(mean)) * spread(scale), weight, bias, (1, -1, *(1,) * (x.ndim - 2))
    )
    return out.astype(x.dtype), mean, scale


@lowers("native_batch_norm_backward.default")
def _batch_norm_backward(
    grad: Value,
    x: Value,
    weight: Value | None,
    running_mean: Value | None,
    running_var: Value | None,
    mean: Value | None,
    scale: Value | None,
    train: bool,
    eps: float,
    mask: Sequence[bool],
) -> tuple[Value | None, Value | None, Value | None]:
    axes, spread, _ = _per_channel(x)
    if not train:
        assert running_mean is not None
        assert running_var is not None
        mean, scale = _wide(running_mean), np.reciprocal(np.sqrt(_wide(running_var) + eps))
    wide = _wide(grad)
    hat = (_wide(x) - spread(mean)) * spread(scale)
    down = None
    if mask[0]:
        factor = scale if weight is None else scale * _wide(weight)
        centred = wide
        if train:
            along = np.mean(wide * hat, axis=axes)
            centred = wide - spread(np.mean(wide, axis=axes)) - hat * spread(along)
        down = (centred * spread(factor)).astype(x.dtype)
    own = grad.dtype if weight is None else weight.dtype
    by_weight = np.sum(wide * hat, axis=axes) if mask[1] else None
    by_bias = np.sum(wide, axis=axes) if mask[2] else None
    return down, _cast(by_weight, own), _cast(by_bias, own)
