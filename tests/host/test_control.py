"""The simulator's control-flow tests again, on native code."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tests.host.native import run_native
from tests.sim import test_control as cases
from tests.sim.programs import Array, Write, compile_program, rng
from tests.sim.test_control import (  # noqa: F401
    test_accumulate_predicates,
    test_loop_with_loaded_bound,
    test_registers_as_operands_offsets_and_moves,
    test_step_and_non_linear_indices,
    test_triangular_loops,
    test_while,
)
from trnx.compiler import host
from trnx.compiler.tile.build import KernelBuilder
from trnx.compiler.tile.ir import Buffer, HostCall, KernelCall, TileProgram
from trnx.core.dtypes import float32


@pytest.fixture(autouse=True)
def on_host(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every ``run`` of the imported tests compiles and runs natively."""

    def run(
        write: Write,
        inputs: Sequence[Array] = (),
        target: str = "trn2",
        registers: Sequence[int] = (),
        **options: Any,
    ) -> SimpleNamespace:
        program = compile_program(write, target)
        return SimpleNamespace(outputs=run_native(program, inputs, registers))

    monkeypatch.setattr(cases, "run", run)


def _copy(b: KernelBuilder) -> None:
    x, y = b.param("x", (4, 4), float32), b.param("y", (4, 4), float32, "out")
    t = b.sbuf((4, 4), float32)
    b.dma_copy(t, x)
    b.dma_copy(y, t)


def test_host_calls_split_a_program_into_segments() -> None:
    """Native segments keep their order; temps live in the arena between them."""
    kernel = compile_program(_copy).kernels[0]
    shape = (4, 4)
    buffers = (
        Buffer("x", shape, float32, "input"),
        Buffer("a", shape, float32, "temp", 0),
        Buffer("b", shape, float32, "temp", 64),
        Buffer("y", shape, float32, "output"),
    )
    calls = (KernelCall(0, ("x", "a")), HostCall("flip", ("a",), ("b",)), KernelCall(0, ("b", "y")))
    program = TileProgram("p", "trn2", buffers, (kernel,), calls, ("y",), (), 128)
    native = host.load(host.compile_program(program))
    assert [isinstance(s, HostCall) for s in native.segments] == [False, True, False]
    x, y = rng().standard_normal(shape).astype(float32), np.zeros(shape, float32)
    arena = np.zeros(32, float32)
    pointers = [x.ctypes.data, y.ctypes.data, arena.ctypes.data]
    with pytest.raises(RuntimeError, match=r"'p' calls host function 'flip'\. Walk its segments"):
        native(pointers)
    np.testing.assert_array_equal(arena[:16].reshape(shape), x)
    with pytest.raises(RuntimeError, match="'p' has 3 steps"):
        _ = native.address
    with pytest.raises(ValueError, match="takes 3 addresses and 0 registers, not 2 and 0"):
        native(pointers[:2])


def test_equal_kernels_are_compiled_once() -> None:
    """One object per content, within a program and across programs."""
    kernel = compile_program(_copy).kernels[0]
    shape = (4, 4)
    buffers = tuple(
        Buffer(n, shape, float32, k, o)
        for n, k, o in (("x", "input", None), ("a", "temp", 0), ("y", "output", None))
    )
    calls = (KernelCall(0, ("x", "a")), KernelCall(1, ("a", "y")))
    program = TileProgram("p", "trn2", buffers, (kernel, kernel), calls, ("y",), (), 64)
    code = host.compile_program(program)
    assert len(code.objects) == 1
    again = host.compile_program(compile_program(_copy))
    assert again.objects == code.objects
