"""Runs tile programs on the host target for tests."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trnx.compiler.host import HostOptions, compile_program, load
from trnx.compiler.host.cpu import Cpu
from trnx.compiler.tile.expr import evaluate
from trnx.compiler.tile.ir import TileProgram

Array = NDArray[Any]
GUARD = 64
"""Bytes around every output that the program must leave alone."""


def run_native(
    program: TileProgram,
    inputs: Sequence[Array],
    registers: Sequence[int] = (),
    threads: int = 2,
    cpu: Cpu | None = None,
) -> list[Array]:
    """The outputs of ``program``; checks that nothing around the outputs was written."""
    native = load(compile_program(program, HostOptions(threads=threads), cpu), cpu)
    env = dict(zip(program.registers, registers, strict=True))
    given = iter(inputs)
    arrays: dict[str, Array] = {}
    guards: list[NDArray[np.uint8]] = []
    for buffer in program.buffers:
        if buffer.kind in ("input", "constant"):
            arrays[buffer.name] = np.ascontiguousarray(next(given)).copy()
    for buffer in program.buffers:
        if buffer.kind == "output" and buffer.alias is not None:
            arrays[buffer.name] = arrays[buffer.alias]
        elif buffer.kind == "output":
            shape = tuple(evaluate(n, env) for n in buffer.shape)
            size = int(np.prod(shape)) * buffer.dtype.itemsize
            block = np.full(size + 2 * GUARD, 0xA5, np.uint8)
            guards.append(block)
            body = block[GUARD : GUARD + size]
            arrays[buffer.name] = body.view(buffer.dtype).reshape(shape)
    arena = np.zeros(program.arena_bytes + 64, np.uint8)
    pointers = [arrays[name].ctypes.data for name in native.code.buffers]
    if program.arena_bytes:
        pointers.append(arena.ctypes.data + -arena.ctypes.data % 64)
    native(pointers, registers)
    for block in guards:
        assert (block[:GUARD] == 0xA5).all() and (block[-GUARD:] == 0xA5).all()
    return [arrays[name] for name in program.outputs]
