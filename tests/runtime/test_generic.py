"""Native code over run-time sizes: one address serves every shape, temporaries included."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import trnx.numpy as tnp
from trnx import nn
from trnx.compiler.passes.groups import Layouts
from trnx.core import Dim, dim, dtypes, evaluate, make_aval, trace_program
from trnx.runtime.devices import default_device
from trnx.runtime.generic import GenericKernel, generic_kernel
from trnx.testing import count_compiles

N, M, K = (dim(name, min=1) for name in "nmk")
Shape = tuple[Dim | int, ...]

CASES: dict[str, tuple[Callable[..., Any], list[Shape]]] = {
    "two products": (lambda x, y, z: (x @ y) @ z, [(N, K), (K, M), (M, N)]),
    "product of a softmax": (lambda x, y: nn.softmax(x @ y, axis=0), [(N, K), (K, M)]),
    "sums along both axes": (lambda x: x / x.sum(0) / x.sum(1, keepdims=True), [(N, M)]),
    "temporaries of fixed size": (lambda x, w: nn.gelu(x.sum(0) @ w) @ w, [(N, 8), (8, 8)]),
}


def run(kernel: GenericKernel, arrays: list[Any], sizes: dict[str, int]) -> None:
    """Call the address on the memory of these arrays: outputs, then inputs."""
    pointers = (ctypes.c_void_p * len(arrays))(*[a.ctypes.data for a in arrays])
    registers = kernel.tile_program.registers
    values = (ctypes.c_int64 * max(len(registers), 1))(*[sizes[name] for name in registers])
    assert ctypes.CFUNCTYPE(ctypes.c_int32)(kernel.address)(pointers, values) == 0


@pytest.mark.parametrize("name", CASES)
def test_several_kernels_at_one_address(name: str) -> None:
    """Compiled once; the code allocates what lies between its kernels, for each size anew."""
    function, shapes = CASES[name]
    program = trace_program(
        lambda *args: [function(*args)], [make_aval(s, dtypes.float32) for s in shapes], "generic"
    )
    with count_compiles() as compiles:
        kernel = generic_kernel(program, default_device(), Layouts())
        assert any(buffer.kind == "temp" for buffer in kernel.tile_program.buffers)
        for seed, (n, m, k) in enumerate([(1, 1, 1), (5, 3, 2), (130, 200, 70), (2, 600, 513)]):
            sizes = {"n": n, "m": m, "k": k}
            rng = np.random.default_rng(seed)
            args = [
                rng.uniform(0.5, 1.5, [evaluate(size, sizes) for size in shape]).astype(np.float32)
                for shape in shapes
            ]
            (aval,) = program.out_avals
            got = np.full([evaluate(size, sizes) for size in aval.shape], np.nan, np.float32)
            run(kernel, [got, *args], sizes)
            wanted = np.asarray(function(*map(tnp.asarray, args)))
            np.testing.assert_allclose(got, wanted, 2e-5, 1e-5 * k)
    assert sum(event.kind == "eager" for event in compiles.events) <= 1
