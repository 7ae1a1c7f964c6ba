"""trnx.nn for images against torch, values and gradients; windows of any kind against jax.lax."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import pytest
import torch
import torch.nn.functional as F

import trnx
from trnx.core import ShapeError, UnsupportedError

pytestmark = pytest.mark.usefixtures("by_references")

_RNG = np.random.default_rng(7)


def _floats(*shape: int) -> Any:
    return _RNG.normal(size=shape).astype(np.float32)


X1, X2, X3 = _floats(2, 4, 9), _floats(2, 4, 9, 7), _floats(1, 2, 5, 4, 6)
W1, W2, W3 = _floats(6, 4, 3), _floats(6, 2, 3, 2), _floats(3, 2, 2, 3, 2)
T2 = _floats(4, 3, 3, 2)
B, MEAN, VAR, SCALE = _floats(6), _floats(4), np.abs(_floats(4)) + 0.5, _floats(4)
SHIFT = _floats(4)

Functions = tuple[Callable[..., Any], Callable[..., Any], tuple[Any, ...]]

# name -> (ours, torch's, operands); derivatives are taken in all operands
CASES: dict[str, Functions] = {
    "conv1d": (trnx.nn.conv, F.conv1d, (X1, W1, B)),
    "conv1d_same": (
        lambda x, w: trnx.nn.conv(x, w, padding="same"),
        lambda x, w: F.conv1d(x, w, padding="same"),
        (X1, W1),
    ),
    "conv2d_groups": (
        lambda x, w, b: trnx.nn.conv(x, w, b, stride=(2, 1), padding=1, groups=2),
        lambda x, w, b: F.conv2d(x, w, b, stride=(2, 1), padding=1, groups=2),
        (X2, W2, B),
    ),
    "conv2d_dilation": (
        lambda x, w: trnx.nn.conv(x, w, padding=(2, 0), dilation=(2, 3), groups=2),
        lambda x, w: F.conv2d(x, w, padding=(2, 0), dilation=(2, 3), groups=2),
        (X2, W2),
    ),
    "conv3d": (
        lambda x, w: trnx.nn.conv(x, w, stride=2, padding=1),
        lambda x, w: F.conv3d(x, w, stride=2, padding=1),
        (X3, W3),
    ),
    "conv_transpose1d": (
        lambda x, w: trnx.nn.conv_transpose(x, w, stride=3, padding=1, output_padding=2),
        lambda x, w: F.conv_transpose1d(x, w, stride=3, padding=1, output_padding=2),
        (X1, _floats(4, 2, 5)),
    ),
    "conv_transpose2d": (
        lambda x, w, b: trnx.nn.conv_transpose(x, w, b, stride=2, dilation=(1, 2), groups=2),
        lambda x, w, b: F.conv_transpose2d(x, w, b, stride=2, dilation=(1, 2), groups=2),
        (X2, T2, B),
    ),
    "max_pool": (
        lambda x: trnx.nn.max_pool(x, 3, 2, 1),
        lambda x: F.max_pool2d(x, 3, 2, 1),
        (X2,),
    ),
    "max_pool_ceil": (
        lambda x: trnx.nn.max_pool(x, (2, 3), (2, 2), dilation=(2, 1), ceil_mode=True),
        lambda x: F.max_pool2d(x, (2, 3), (2, 2), 0, (2, 1), True),
        (X2,),
    ),
    "avg_pool": (lambda x: trnx.nn.avg_pool(x, 2), lambda x: F.avg_pool2d(x, 2), (X2,)),
    "avg_pool_ceil": (
        lambda x: trnx.nn.avg_pool(x, 3, 2, 1, ceil_mode=True),
        lambda x: F.avg_pool2d(x, 3, 2, 1, True),
        (X2[:, :, :8, :6],),
    ),
    "avg_pool_uncounted": (
        lambda x: trnx.nn.avg_pool(x, 3, 2, 1, ceil_mode=True, count_include_pad=False),
        lambda x: F.avg_pool3d(x, 3, 2, 1, True, False),
        (X3,),
    ),
    "adaptive_avg_pool": (
        lambda x: trnx.nn.adaptive_avg_pool(x, (4, 1)),
        lambda x: F.adaptive_avg_pool2d(x, (4, 1)),
        (X2,),
    ),
    "adaptive_max_pool": (
        lambda x: trnx.nn.adaptive_max_pool(x, (3, 5)),
        lambda x: F.adaptive_max_pool2d(x, (3, 5)),
        (X2,),
    ),
    "batch_norm": (
        lambda x, w, b: trnx.nn.batch_norm(x, weight=w, bias=b),
        lambda x, w, b: F.batch_norm(x, None, None, w, b, True),
        (X2, SCALE, SHIFT),
    ),
    "batch_norm_given": (
        lambda x, m, v, w, b: trnx.nn.batch_norm(x, m, v, w, b),
        lambda x, m, v, w, b: (
            (x - m[:, None]) * torch.rsqrt(v[:, None] + 1e-5) * w[:, None] + b[:, None]
        ),
        (X1, MEAN, VAR, SCALE, SHIFT),
    ),
    "group_norm": (
        lambda x, w, b: trnx.nn.group_norm(x, 2, w, b),
        lambda x, w, b: F.group_norm(x, 2, w, b),
        (X2, SCALE, SHIFT),
    ),
    "instance_norm": (
        lambda x, w, b: trnx.nn.instance_norm(x, w, b),
        lambda x, w, b: F.instance_norm(x, weight=w, bias=b),
        (X2, SCALE, SHIFT),
    ),
    "resize_nearest": (
        lambda x: trnx.nn.resize(x, (18, 5)),
        lambda x: F.interpolate(x, (18, 5)),
        (X2,),
    ),
    "resize_linear": (
        lambda x: trnx.nn.resize(x, (4, 15), "linear"),
        lambda x: F.interpolate(x, (4, 15), mode="bilinear"),
        (X2,),
    ),
    "resize_corners": (
        lambda x: trnx.nn.resize(x, 12, "linear", align_corners=True),
        lambda x: F.interpolate(x, 12, mode="linear", align_corners=True),
        (X1,),
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_equals_torch(name: str) -> None:
    """Values, and the gradients of a weighted sum of them."""
    ours, theirs, operands = CASES[name]
    tensors = [torch.tensor(x, requires_grad=True) for x in operands]
    want = theirs(*tensors)
    weights = np.random.default_rng(1).normal(size=want.shape).astype(np.float32)
    (want * torch.tensor(weights)).sum().backward()
    got = ours(*operands)
    np.testing.assert_allclose(np.asarray(got), want.detach().numpy(), rtol=2e-4, atol=2e-5)

    def loss(*values: Any) -> Any:
        return trnx.numpy.sum(ours(*values) * weights)

    grads = trnx.grad(loss, argnums=tuple(range(len(operands))))(*operands)
    for grad, tensor in zip(grads, tensors, strict=True):
        assert tensor.grad is not None
        np.testing.assert_allclose(np.asarray(grad), tensor.grad.numpy(), rtol=1e-3, atol=1e-4)


def _layouts() -> list[tuple[str, str, str]]:
    lefts, rights = ("NHWC", "CNHW"), ("HWIO", "OHWI")
    return list(itertools.product(lefts, rights, ("NHWC", "NCHW")))


@pytest.mark.parametrize("layout", _layouts(), ids="-".join)
def test_conv_layouts(layout: tuple[str, str, str]) -> None:
    """Any order of axes, SAME padding and groups as in jax.lax."""
    sizes = {"N": 2, "C": 4, "H": 6, "W": 5, "O": 6, "I": 2}
    x = _floats(*(sizes[c] for c in layout[0]))
    window = sizes | {"H": 3, "W": 2}
    w = _floats(*(window[c] for c in layout[1]))
    options: dict[str, Any] = {"dimension_numbers": layout, "feature_group_count": 2}
    want = jax.lax.conv_general_dilated(x, w, (2, 1), "SAME", **options)
    got = trnx.lax.conv_general_dilated(x, w, (2, 1), "SAME", **options)
    np.testing.assert_allclose(np.asarray(got), np.asarray(want), rtol=1e-4, atol=1e-5)


def test_conv_groups_of_the_batch() -> None:
    """batch_group_count gives each share of the batch its share of the out channels."""
    x, w = _floats(4, 3, 7), _floats(6, 3, 3)
    want = jax.lax.conv_general_dilated(x, w, (1,), "VALID", batch_group_count=2)
    got = trnx.lax.conv_general_dilated(x, w, (1,), "VALID", batch_group_count=2)
    np.testing.assert_allclose(np.asarray(got), np.asarray(want), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", ["add", "max", "min", "mul"])
@pytest.mark.parametrize("init", [0.0, 1.5, "identity"])
def test_reduce_window(name: str, init: float | str) -> None:
    """Any first value; padding and dilation take no part."""
    x = _floats(5, 6)
    identities = {"add": 0.0, "max": -np.inf, "min": np.inf, "mul": 1.0}
    start = identities[name] if init == "identity" else init
    options = ((2, 3), (1, 2), ((1, 1), (0, 2)), (2, 1), (1, 2))
    want = jax.lax.reduce_window(x, np.float32(start), getattr(jax.lax, name), *options)
    got = trnx.lax.reduce_window(x, start, getattr(trnx.lax, name), *options)
    np.testing.assert_allclose(np.asarray(got), np.asarray(want), rtol=1e-5, atol=1e-6)


def test_errors_say_what_to_do() -> None:
    """One sentence with the cause, one with a remedy."""
    with pytest.raises(ShapeError, match=r"channels per|Channels must"):
        trnx.nn.conv(X2, _floats(6, 3, 3, 3))
    with pytest.raises(ShapeError, match="axes of space"):
        trnx.nn.conv(X2, W1)
    with pytest.raises(ShapeError, match="half a window"):
        trnx.nn.max_pool(X2, 2, padding=2)
    with pytest.raises(ShapeError, match="dimension_numbers"):
        trnx.lax.conv_general_dilated(X2, W2, (1, 1), "SAME", dimension_numbers=("NCHW", "OIHW"))
    with pytest.raises(ShapeError, match="SAME"):
        trnx.lax.conv_general_dilated(X2, W2, (1, 1), "FULL", feature_group_count=2)
    with pytest.raises(UnsupportedError, match="combine slices"):
        trnx.lax.reduce_window(X2, 0.0, trnx.lax.sub, (1, 1, 2, 2))
    with pytest.raises(ShapeError, match="method"):
        trnx.nn.resize(X2, 3, "cubic")
