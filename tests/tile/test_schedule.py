"""Dependency edges order every conflicting pair, and none of them is superfluous."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.tile import kernels
from trnx.compiler.sim import simulate
from trnx.compiler.tile import isa
from trnx.compiler.tile.build import KernelBuilder, predicate, single_kernel_program
from trnx.compiler.tile.ir import Alloc, Instruction, Kernel, instructions, walk
from trnx.compiler.tile.legality import check_kernel
from trnx.compiler.tile.schedule import map_instructions, number, schedule
from trnx.compiler.tile.text import kernel_text
from trnx.core.dtypes import float32, int32

SMALL = {
    "softmax": lambda: kernels.softmax(700, 32),
    "matmul": lambda: kernels.matmul(130, 300, 520),
    "gather": lambda: kernels.gather(600, 90, 8),
    "control": kernels.control,
}


def inputs_of(kernel: Kernel) -> list[np.ndarray[Any, Any]]:
    """Inputs for the sample kernels: small integers, so that indices are in range."""
    rng = np.random.default_rng(0)
    made = []
    for param in sorted(kernel.params, key=lambda p: p.role == "out"):
        if param.role != "out":
            values = rng.integers(0, 9, tuple(int(str(s)) for s in param.shape))
            made.append(values.astype(param.dtype))
    return made


def races(kernel: Kernel) -> list[str]:
    """What the simulator, which knows every address, says about the order of accesses."""
    found = simulate(single_kernel_program(kernel, "trn2"), inputs_of(kernel)).findings
    return [str(f) for f in found if f.kind in ("race", "parallel")]


def without(kernel: Kernel, instruction: int, dependency: int) -> Kernel:
    """The kernel with one edge removed."""

    def cut(i: Instruction) -> Instruction:
        kept = tuple(d for d in i.deps if d != dependency)
        return replace(i, deps=kept) if i.id == instruction else i

    return replace(kernel, body=map_instructions(kernel.body, cut))


def edges(kernel: Kernel) -> Iterator[tuple[int, int]]:
    """Every (instruction, dependency)."""
    return ((i.id, d) for i in instructions(kernel) for d in i.deps)


@pytest.mark.parametrize("name", SMALL)
def test_sample_kernels_are_race_free(name: str) -> None:
    """With all edges the simulator finds no unordered conflict."""
    kernel = kernels.finish(SMALL[name]())
    assert races(kernel) == []


@pytest.mark.parametrize("name", SMALL)
def test_every_edge_is_needed(name: str) -> None:
    """Without any one edge the simulator finds a race: lists are as short as they can be."""
    kernel = kernels.finish(SMALL[name]())
    assert list(edges(kernel))
    for instruction, dependency in edges(kernel):
        assert races(without(kernel, instruction, dependency)), (instruction, dependency)


@pytest.mark.parametrize("name", kernels.ALL)
def test_ids_count_in_program_order(name: str) -> None:
    """Ids are 0, 1, … and edges name instructions on other queues."""
    kernel = kernels.finish(kernels.ALL[name]())
    found = list(instructions(kernel))
    assert [i.id for i in found] == list(range(len(found)))
    for instruction in found:
        for dependency in instruction.deps:
            assert isa.queue(found[dependency]) != isa.queue(instruction)
    assert schedule(kernel) == kernel
    assert all(not i.deps for i in instructions(number(kernel)))


COMPUTE = ("vector", "gpsimd", "scalar")


@st.composite
def shuffled_kernel(draw: st.DrawFn) -> Kernel:
    """Loops over a few tiles that copies on many queues read and write in any order."""
    b = KernelBuilder("shuffled")
    x = b.param("x", (8, 64), float32, "in")
    y = b.param("y", (8, 64), float32, "inout")
    tiles = [b.sbuf((8, 8), float32, "outer") for _ in range(draw(st.integers(1, 3)))]
    for tile in tiles:
        b.memset(tile, 0.0, engine=draw(st.sampled_from(("vector", "gpsimd"))))

    def body(depth: int, scope: list[Any], column: Any) -> None:
        local = list(scope)
        for _ in range(draw(st.integers(0, 2))):
            tile = b.sbuf((8, 8), float32, "local")
            b.dma_copy(tile, x[:, column], engine=draw(st.sampled_from(("sync", "scalar"))))
            local.append(tile)
        for _ in range(draw(st.integers(1, 4))):
            kind = draw(st.sampled_from(("copy", "load", "store", "loop")))
            tile = draw(st.sampled_from(local))
            if kind == "copy":
                other = draw(st.sampled_from(local))
                rows = draw(st.sampled_from((slice(0, 4), slice(0, 8))))
                engine = draw(st.sampled_from(COMPUTE))
                b.tensor_copy(tile[rows], other[rows], engine=engine)
            elif kind == "load":
                source = draw(st.sampled_from((x, y)))
                b.dma_copy(
                    tile, source[:, column], engine=draw(st.sampled_from(("sync", "gpsimd")))
                )
            elif kind == "store":
                b.dma_copy(y[:, column], tile, engine=draw(st.sampled_from(("scalar", "gpsimd"))))
            elif depth < 2:
                trips = draw(st.integers(1, 5))
                with b.loop("i", 0, trips) as i:
                    inner = draw(st.sampled_from((slice(0, 8), slice(i * 8, i * 8 + 8))))
                    body(depth + 1, local, inner)

    body(0, tiles, slice(0, 8))
    return b.finish()


@given(shuffled_kernel())
def test_random_orders_are_race_free(kernel: Kernel) -> None:
    """Whatever the order of engines and queues, the edges are enough."""
    made = kernels.finish(kernel)
    check_kernel(made, "trn2")
    assert races(made) == [], kernel_text(made)


def test_double_buffering_survives() -> None:
    """A load waits for the reader of the copy it overwrites, so two iterations overlap."""
    kernel = kernels.finish(kernels.softmax(128 * 8, 2048))
    tiles = {s.tile.name: s.tile for s in walk(kernel.body) if isinstance(s, Alloc)}
    assert tiles["t0"].copies == 2
    single = [
        replace(s, tile=replace(s.tile, copies=1))
        for s in walk(kernel.body)
        if isinstance(s, Alloc)
    ]
    assert single
    program = single_kernel_program(kernel, "trn2")
    fast = simulate(program, inputs_of(kernel)).total_us

    def one_copy(statement: Any) -> Any:
        if isinstance(statement, Alloc):
            return Alloc(replace(statement.tile, copies=1))
        if hasattr(statement, "body"):
            return replace(statement, body=tuple(one_copy(s) for s in statement.body))
        return statement

    slow_kernel = schedule(replace(kernel, body=tuple(one_copy(s) for s in kernel.body)))
    slow = simulate(single_kernel_program(slow_kernel, "trn2"), inputs_of(kernel)).total_us
    assert fast < 0.8 * slow


def test_unplaced_tiles_are_ordered_by_name() -> None:
    """Without addresses, tiles are memory of their own."""
    b = KernelBuilder("plain")
    t, u = b.sbuf((4, 4), float32), b.sbuf((4, 4), float32)
    b.memset(t, 0.0)
    b.memset(u, 0.0, engine="gpsimd")
    b.tensor_tensor(u, t, t, op="add", engine="vector")
    found = list(instructions(schedule(b.finish())))
    assert [i.deps for i in found] == [(), (), (1,)]


def test_register_load_orders_everything() -> None:
    """Every engine reads the register: nothing after the load waits for what is before."""
    b = KernelBuilder("barrier")
    t = b.sbuf((1, 1), int32)
    b.memset(t, 3)
    count = b.load_register(t)
    u = b.sbuf((1, 1), int32)
    with b.loop("i", 0, count):
        b.tensor_copy(u, t, engine="gpsimd")
    found = list(instructions(schedule(b.finish())))
    assert [i.deps for i in found] == [(), ()]


def test_accumulating_matmuls_need_no_edges_among_themselves() -> None:
    """One queue runs in order."""
    b = KernelBuilder("accumulate")
    a, w = b.sbuf((128, 128), float32), b.sbuf((128, 128), float32)
    b.memset(a, 1.0)
    b.memset(w, 1.0)
    p = b.psum((128, 128), float32)
    with b.loop("k", 0, 4) as k:
        b.nc_matmul(p, a, w, accumulate=predicate(k, ">", 0))
    matmul = list(instructions(schedule(b.finish())))[2]
    assert matmul.deps == (1,)
