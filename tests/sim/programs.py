"""Small kernels for the simulator's tests."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trnx.compiler.sim import SimOptions, SimResult, simulate
from trnx.compiler.tile.build import KernelBuilder, single_kernel_program
from trnx.compiler.tile.ir import (
    SBUF,
    Alloc,
    For,
    Instruction,
    Kernel,
    Statement,
    TileProgram,
    While,
)
from trnx.compiler.tile.parallel import mark_parallel
from trnx.compiler.tile.place import place
from trnx.compiler.tile.schedule import schedule

Array = NDArray[Any]
Write = Callable[[KernelBuilder], None]


def compile_kernel(write: Write, target: str = "trn2", name: str = "k") -> Kernel:
    """A kernel written by ``write``: placed, marked parallel and scheduled."""
    builder = KernelBuilder(name, target)
    write(builder)
    return schedule(mark_parallel(place(builder.finish(), target)))


def compile_program(write: Write, target: str = "trn2") -> TileProgram:
    """A program that calls the kernel once."""
    return single_kernel_program(compile_kernel(write, target), target)


def run(
    write: Write,
    inputs: Sequence[Array] = (),
    target: str = "trn2",
    registers: Sequence[int] = (),
    **options: Any,
) -> SimResult:
    """Compile and simulate; findings raise unless the options say otherwise."""
    options.setdefault("raise_findings", True)
    return simulate(compile_program(write, target), inputs, registers, SimOptions(**options))


def run_op(
    instruction: str,
    inputs: Sequence[Array],
    out_shape: tuple[int, ...],
    out_dtype: Any,
    /,
    *operands: Any,
    target: str = "trn2",
    memory: str = "sbuf",
    **keywords: Any,
) -> Array:
    """One instruction on whole tiles.

    ``operands`` are source operands: an int picks an input tile when given as ``Tile(i)``, other
    values are immediates.
    """

    def write(b: KernelBuilder) -> None:
        tiles = []
        for i, array in enumerate(inputs):
            param = b.param(f"x{i}", array.shape, array.dtype, "in")
            tile = b.sbuf(array.shape, array.dtype)
            b.dma_copy(tile, param)
            tiles.append(tile)
        y = b.param("y", out_shape, out_dtype, "out")
        out = b.tile(memory, out_shape, out_dtype)
        given = [tiles[o.index] if isinstance(o, Tile) else o for o in operands]
        named = {k: tiles[v.index] if isinstance(v, Tile) else v for k, v in keywords.items()}
        b.instruction(instruction, out, *given, **named)
        if memory == "psum":
            copy = b.sbuf(out_shape, out_dtype)
            b.tensor_copy(copy, out)
            out = copy
        b.dma_copy(y, out)

    return run(write, inputs, target).outputs[0]


class Tile:
    """Names input tile ``index`` in ``run_op``."""

    def __init__(self, index: int) -> None:
        self.index = index


def drop_deps(program: TileProgram, op: str | None = None) -> TileProgram:
    """The program without the dependency edges of instructions named ``op`` (all when None)."""

    def strip(body: tuple[Statement, ...]) -> tuple[Statement, ...]:
        made: list[Statement] = []
        for s in body:
            if isinstance(s, Instruction) and op in (None, s.op):
                s = replace(s, deps=())
            elif isinstance(s, For | While):
                s = replace(s, body=strip(s.body))
            made.append(s)
        return tuple(made)

    kernels = tuple(replace(k, body=strip(k.body)) for k in program.kernels)
    return replace(program, kernels=kernels)


def with_copies(program: TileProgram, copies: int) -> TileProgram:
    """The program with ``copies`` buffers for each SBUF tile that rotates, laid out anew."""
    offset = 0

    def rebuild(body: tuple[Statement, ...]) -> tuple[Statement, ...]:
        nonlocal offset
        made: list[Statement] = []
        for s in body:
            if isinstance(s, Alloc) and s.tile.memory == SBUF:
                count = copies if s.tile.copies > 1 else 1
                s = Alloc(replace(s.tile, address=(0, offset), copies=count))
                offset += count * s.tile.free_bytes
            elif isinstance(s, For | While):
                s = replace(s, body=rebuild(s.body))
            made.append(s)
        return tuple(made)

    kernels = tuple(schedule(replace(k, body=rebuild(k.body))) for k in program.kernels)
    return replace(program, kernels=kernels)


def rng(seed: int = 0) -> np.random.Generator:
    """A seeded generator."""
    return np.random.default_rng(seed)
