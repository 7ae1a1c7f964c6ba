"""Native programs compute by themselves: NumPy, JAX and torch are gone while they run."""

from __future__ import annotations

import contextlib
import functools
import importlib
import types
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import trnx
import trnx.nn as nn
import trnx.numpy as tnp
from trnx.runtime.compiled import NativeSegment
from trnx.runtime.memory import allocate, copy_bytes


def normal(*shape: int) -> np.ndarray:
    return np.random.default_rng(sum(shape)).standard_normal(shape, dtype=np.float32)


def integers(high: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(high).integers(0, high, shape).astype(np.int32)


def mlp_loss(params: list[Any], x: Any, labels: Any) -> Any:
    for weight, bias in params[:-1]:
        x = tnp.tanh(x @ weight.T + bias)
    weight, bias = params[-1]
    return nn.cross_entropy(x @ weight.T + bias, labels)


def adamw(p: Any, g: Any, m: Any, v: Any) -> Any:
    m, v = m + (g - m) * 0.1, v * 0.999 + 0.001 * g * g
    return p - 3e-3 * m / (tnp.sqrt(v) + 1e-8), m, v


PARAMS = [(normal(16, 8), normal(16)), (normal(4, 16), normal(4))]

PROGRAMS: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "softmax": (nn.softmax, (normal(130, 300),)),
    "linear gelu": (
        lambda x, w, b: nn.gelu(x @ w + b),
        (normal(64, 96), normal(96, 200), normal(200)),
    ),
    "mlp value and grad": (trnx.value_and_grad(mlp_loss), (PARAMS, normal(32, 8), integers(4, 32))),
    "adamw": (adamw, (normal(70, 30), normal(70, 30), normal(70, 30), normal(70, 30) ** 2)),
    "layer norm": (
        lambda x: (x - x.mean(-1, keepdims=True)) / x.std(-1, keepdims=True),
        (normal(50, 70),),
    ),
    "transpose and slice": (lambda x: x.T[1:, ::2] + 1, (normal(33, 65),)),
    "concatenate": (lambda x, y: tnp.concatenate([x, y], axis=1), (normal(9, 5), normal(9, 7))),
    "gather": (lambda x, i: tnp.take(x, i, axis=0), (normal(40, 24), integers(40, 17))),
    "argmax": (lambda x: tnp.argmax(x, axis=1), (normal(31, 50),)),
    "integers": (lambda x, y: x // (y + 1) + x % 7, (integers(1000, 90), integers(50, 90))),
    "random bits": (lambda k: trnx.random.bits(k, (65,)), (np.array([1, 2], np.uint32),)),
    "batched product": (lambda x, y: x @ y, (normal(3, 40, 20), normal(3, 20, 30))),
}


def refuse_libraries(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every public function and ufunc of the three libraries raises when called."""

    def refuse(*args: object, **kwargs: object) -> None:
        raise AssertionError("another library took part in a native run")

    kinds = (types.FunctionType, types.BuiltinFunctionType, np.ufunc)
    for module in _libraries():
        for key, value in list(vars(module).items()):
            if not key.startswith("_") and isinstance(value, kinds):
                monkeypatch.setattr(module, key, refuse)


@functools.cache
def _libraries() -> tuple[types.ModuleType, ...]:
    """The libraries that are installed, imported before anything is replaced."""
    found = []
    for name in ("numpy", "numpy.linalg", "jax.numpy", "jax.lax", "torch", "torch.nn.functional"):
        with contextlib.suppress(ModuleNotFoundError):
            found.append(importlib.import_module(name))
    return tuple(found)


@pytest.mark.parametrize("name", PROGRAMS)
def test_only_native_segments_on_raw_addresses(name: str) -> None:
    function, arguments = PROGRAMS[name]
    lowered = trnx.jit(function).lower(*arguments)
    expected = trnx.core.tree.leaves(trnx.jit(function)(*arguments))
    executable = lowered.compile()
    assert all(type(s) is NativeSegment for s in executable.compiled.segments)
    leaves = [tnp.asarray(leaf) for leaf in trnx.core.tree.leaves(arguments)]
    addresses = [a.address for a in (*executable.bound, *leaves)]
    sizes = [int(np.prod(a.shape)) * a.dtype.itemsize for a in executable.out_avals]
    blocks = [allocate(size) for size in sizes]
    with pytest.MonkeyPatch.context() as patch:
        refuse_libraries(patch)
        executable.run(addresses, [block.address for block in blocks])
    for result, block, size in zip(expected, blocks, sizes, strict=True):
        copy = bytearray(size)
        view = (np.ctypeslib.ctypes.c_char * size).from_buffer(copy)
        copy_bytes(np.ctypeslib.ctypes.addressof(view), block.address, size)
        np.testing.assert_array_equal(
            np.frombuffer(bytes(copy), result.dtype).reshape(result.shape), np.asarray(result)
        )
