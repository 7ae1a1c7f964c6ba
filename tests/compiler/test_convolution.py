"""Convolution kernels: what is one kernel, and layers of many shapes against torch."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch

import trnx
from trnx.compiler.pipeline import compile_program
from trnx.compiler.sim.machine import SimOptions, simulate
from trnx.core import Aval, trace_program
from trnx.core.dtypes import float32

# images, window, stride, padding, dilation, groups
LAYERS: dict[str, tuple[tuple[int, ...], tuple[int, ...], int, int, int, int]] = {
    "3x3": ((2, 8, 12, 13), (10, 8, 3, 3), 1, 1, 1, 1),
    "strided": ((1, 16, 15, 14), (12, 16, 3, 3), 2, 1, 1, 1),
    "dilated": ((1, 5, 16, 15), (6, 5, 3, 3), 1, 2, 2, 1),
    "grouped": ((2, 12, 9, 9), (18, 4, 3, 3), 1, 1, 1, 3),
    "depthwise": ((2, 9, 10, 11), (18, 1, 3, 3), 1, 1, 1, 9),
    "one channel": ((3, 1, 14, 14), (6, 1, 5, 5), 1, 0, 1, 1),
    "stem": ((1, 3, 30, 31), (8, 3, 7, 7), 2, 3, 1, 1),
    "1x1": ((2, 20, 7, 7), (15, 20, 1, 1), 1, 0, 1, 1),
    "uneven channels": ((1, 131, 6, 6), (133, 131, 3, 3), 1, 1, 1, 1),
    "small images": ((9, 6, 5, 5), (7, 6, 3, 3), 1, 1, 1, 1),
    "rows over one bank": ((1, 4, 40, 40), (5, 4, 3, 3), 1, 1, 1, 1),
    "1-d": ((2, 6, 700), (5, 6, 9), 1, 4, 1, 1),
    "3-d": ((1, 3, 6, 7, 8), (4, 3, 3, 3, 3), 1, 1, 1, 1),
}


def _operands(name: str) -> tuple[Any, Any]:
    images, window, *_ = LAYERS[name]
    rng = np.random.default_rng(len(name))
    x = rng.normal(size=images).astype(np.float32)
    return x, (rng.normal(size=window) / np.sqrt(np.prod(window[1:]))).astype(np.float32)


@pytest.mark.parametrize("name", LAYERS)
def test_layer_equals_torch(name: str) -> None:
    """Values and both gradients of native code."""
    x, w = _operands(name)
    *_, stride, padding, dilation, groups = LAYERS[name]
    tensors = [torch.tensor(v, requires_grad=True) for v in (x, w)]
    apply = {3: torch.conv1d, 4: torch.conv2d, 5: torch.conv3d}[x.ndim]
    want = apply(*tensors, None, stride, padding, dilation, groups)
    weights = np.random.default_rng(2).normal(size=want.shape).astype(np.float32)
    (want * torch.tensor(weights)).sum().backward()

    def layer(x: Any, w: Any) -> Any:
        return trnx.nn.conv(x, w, None, stride, padding, dilation, groups)

    @trnx.jit
    def run(x: Any, w: Any, weights: Any) -> Any:
        def loss(x: Any, w: Any) -> Any:
            return trnx.numpy.sum(layer(x, w) * weights)

        return layer(x, w), trnx.grad(loss, argnums=(0, 1))(x, w)

    out, grads = run(x, w, weights)
    np.testing.assert_allclose(np.asarray(out), want.detach().numpy(), rtol=1e-4, atol=2e-5)
    for grad, tensor in zip(grads, tensors, strict=True):
        assert tensor.grad is not None
        scale = float(tensor.grad.abs().max())
        np.testing.assert_allclose(np.asarray(grad) / scale, tensor.grad / scale, atol=2e-5)


def _layer_program(name: str, dtype: Any = float32) -> Any:
    images, window, stride, padding, dilation, groups = LAYERS[name]

    def layer(x: Any, w: Any, b: Any) -> list[Any]:
        out = trnx.nn.conv(x, w, b, stride, padding, dilation, groups)
        return [trnx.nn.relu(out)]

    return trace_program(
        layer, [Aval(images, dtype), Aval(window, dtype), Aval(window[:1], dtype)], "layer"
    )


@pytest.mark.parametrize("name", ["3x3", "strided", "grouped", "stem", "uneven channels", "3-d"])
def test_simulator_agrees(name: str) -> None:
    """No hazard, and the values of the host, with bias and relu in the same kernel."""
    x, w = _operands(name)
    b = np.random.default_rng(3).normal(size=w.shape[:1]).astype(np.float32)
    program = compile_program(_layer_program(name), "trn2")
    result = simulate(program, [x, w, b], options=SimOptions(timeline=False))
    assert not result.findings
    *_, stride, padding, dilation, groups = LAYERS[name]
    ours = trnx.nn.relu(trnx.nn.conv(x, w, b, stride, padding, dilation, groups))
    np.testing.assert_allclose(result.outputs[0], np.asarray(ours), rtol=1e-4, atol=2e-5)


@pytest.mark.parametrize("name", ["3x3", "strided", "dilated", "stem", "1-d", "3-d"])
def test_padding_and_product_are_two_kernels(name: str) -> None:
    """Bias and relu leave no kernel of their own, and taps no copies of the operand."""
    program = compile_program(_layer_program(name), "trn2")
    assert len(program.calls) == 2
    temps = [buffer for buffer in program.buffers if buffer.kind == "temp"]
    padding = LAYERS[name][3]
    (images, *_), (only,) = LAYERS[name], temps
    assert only.shape == (*images[:2], *(n + 2 * padding for n in images[2:]))


def test_bfloat16_rounds_once() -> None:
    """Products of bf16 are summed in f32 over all taps and channels."""
    x, w = _operands("3x3")
    x, w = x.astype(ml_dtypes.bfloat16), w.astype(ml_dtypes.bfloat16)
    exact = torch.conv2d(*(torch.tensor(v.astype(np.float64)) for v in (x, w)), None, 1, 1).numpy()
    got = np.asarray(trnx.nn.conv(x, w, padding=1))
    assert got.dtype == ml_dtypes.bfloat16
    np.testing.assert_allclose(got.astype(np.float64), exact, rtol=2**-8, atol=1e-5)


def test_conv_net_step_runs_on_padded_batches() -> None:
    """A bucketed batch gives the loss and gradients of the exact one."""

    def loss(params: Any, x: Any) -> Any:
        first, second = params
        x = trnx.nn.max_pool(trnx.nn.relu(trnx.nn.conv(x, first, padding=1)), 2)
        x = trnx.nn.adaptive_avg_pool(trnx.nn.conv(x, second, padding=1, groups=2), 1)
        return trnx.numpy.sum(x * x)

    rng = np.random.default_rng(5)
    params = tuple(
        (0.2 * rng.normal(size=shape)).astype(np.float32) for shape in ((4, 2, 3, 3), (6, 2, 3, 3))
    )
    step = trnx.value_and_grad(loss)
    bucketed = trnx.jit(step, dynamic={"x": {0: "batch"}})
    x = rng.normal(size=(3, 2, 8, 6)).astype(np.float32)
    value, grads = bucketed(params, x)
    want, want_grads = trnx.jit(step)(params, x)
    np.testing.assert_allclose(np.asarray(value), np.asarray(want), rtol=1e-5)
    for grad, other in zip(grads, want_grads, strict=True):
        np.testing.assert_allclose(np.asarray(grad), np.asarray(other), rtol=1e-4, atol=1e-5)
