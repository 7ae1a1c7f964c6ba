"""Races are found where an edge is missing, and never where queue order or edges give an order."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given

from tests.sim.programs import compile_program, drop_deps, rng, run
from tests.sim.random_programs import RandomCase, random_case
from trnx.compiler.sim import SimOptions, simulate
from trnx.compiler.tile import isa
from trnx.compiler.tile.build import KernelBuilder, predicate
from trnx.compiler.tile.ir import For, Instruction, TileProgram, instructions, walk
from trnx.core.dtypes import float32, int32
from trnx.core.errors import TileError

F = float32


def _two_engines(b: KernelBuilder) -> None:
    x, y = b.param("x", (64, 32), F), b.param("y", (64, 32), F, "out")
    t, u = b.sbuf((64, 32), F), b.sbuf((64, 32), F)
    b.dma_copy(t, x)
    b.tensor_scalar(u, t, 2.0, op0="multiply")
    b.activation(u, u, op="square")
    b.dma_copy(y, u, engine="scalar")


def test_missing_edge_is_a_race() -> None:
    """The text names both instructions, queues, kernel, access and line."""
    program = compile_program(_two_engines)
    x = rng().standard_normal((64, 32)).astype(F)
    assert not simulate(program, [x]).findings
    # The store waits for the activation only, so it loses its order after the scale as well.
    finding, second = simulate(drop_deps(program, "activation"), [x]).findings
    assert finding.kind == "race"
    assert "dma_copy #3 on dma:scalar and tensor_scalar #1" in second.text
    assert (
        "activation #2 on scalar and tensor_scalar #1 on vector of kernel 'k' touch the same bytes "
        "of SBUF with no order between them (access f32[64, 32]) (at test_hazards.py:"
    ) in finding.text
    with pytest.raises(TileError, match="with no order between them"):
        simulate(drop_deps(program), [x], options=SimOptions(raise_findings=True))
    assert not simulate(drop_deps(program), [x], options=SimOptions(races=False)).findings


def test_order_is_transitive() -> None:
    """store after square after scale after load: the store needs no edge to the scale."""
    program = compile_program(_two_engines)
    store = list(instructions(program.kernels[0]))[-1]
    assert store.deps == (2,)


def test_disjoint_accesses_on_two_queues_do_not_race() -> None:
    """Left and right columns, even and odd elements, two partition halves."""

    def write(b: KernelBuilder) -> None:
        y = b.param("y", (64, 32), F, "out")
        t = b.sbuf((64, 32), F)
        b.memset(t[:, 0:16:2], 1.0, engine="vector")
        b.memset(t[:, 1:16:2], 2.0, engine="gpsimd")
        b.memset(t[:32, 16:], 3.0, engine="vector")
        b.memset(t[32:, 16:], 4.0, engine="gpsimd")
        b.dma_copy(y[:, :16], t[:, :16], engine="sync")
        b.dma_copy(y[:, 16:], t[:, 16:], engine="scalar")

    program = compile_program(write)
    assert not simulate(program, []).findings
    # Without edges only the stores race with the fills; the fills and stores among themselves do
    # not.
    found = simulate(drop_deps(program), []).findings
    assert found and all("dma_copy" in f.text and "memset" in f.text for f in found)


def test_dma_queues_race_in_hbm() -> None:
    """Two queues write the same HBM rows."""

    def write(b: KernelBuilder) -> None:
        y = b.param("y", (16, 8), F, "out")
        t, u = b.sbuf((16, 8), F), b.sbuf((16, 8), F)
        b.memset(t, 1.0)
        b.memset(u, 2.0)
        b.dma_copy(y, t, engine="sync")
        b.dma_copy(y[4:8], u[4:8], engine="scalar")

    program = compile_program(write)
    assert not simulate(program, []).findings
    found = simulate(drop_deps(program, "dma_copy"), []).findings
    assert any("dma:scalar and dma_copy" in f.text and "bytes of HBM" in f.text for f in found)


def test_write_after_read_across_iterations() -> None:
    """One buffer for every iteration: the next load must wait for the last use."""

    def write(b: KernelBuilder) -> None:
        x, y = b.param("x", (256, 16), F), b.param("y", (256, 16), F, "out")
        t = b.sbuf((128, 16), F)
        with b.loop("i", 0, 2) as i:
            b.dma_copy(t, x[i * 128 : i * 128 + 128])
            b.dma_copy(y[i * 128 : i * 128 + 128], t, engine="scalar")

    program = compile_program(write)
    x = rng().standard_normal((256, 16)).astype(F)
    assert not simulate(program, [x]).findings
    load = next(instructions(program.kernels[0]))
    assert load.deps == (1,)
    body = tuple(
        replace(s, body=(replace(load, deps=()), *s.body[1:])) if isinstance(s, For) else s
        for s in program.kernels[0].body
    )
    broken = replace(program, kernels=(replace(program.kernels[0], body=body),))
    (finding,) = simulate(broken, [x]).findings
    assert "dma_copy #0 on dma:sync and dma_copy #1 on dma:scalar" in finding.text


def test_rotating_copies_need_no_order_between_neighbours() -> None:
    """With two copies the load of the next iteration is free, that of the one after is not."""

    def write(b: KernelBuilder) -> None:
        x, y = b.param("x", (512, 16), F), b.param("y", (512, 16), F, "out")
        with b.loop("i", 0, 4) as i:
            t = b.sbuf((128, 16), F)
            b.dma_copy(t, x[i * 128 : i * 128 + 128])
            b.dma_copy(y[i * 128 : i * 128 + 128], t, engine="scalar")

    program = compile_program(write)
    x = rng().standard_normal((512, 16)).astype(F)
    result = simulate(program, [x])
    assert not result.findings
    loads = [e for e in result.timeline.events if e.instruction.id == 0]
    stores = [e for e in result.timeline.events if e.instruction.id == 1]
    assert loads[1].issue < stores[0].end < loads[2].issue
    assert simulate(drop_deps(program), [x]).findings


def test_register_load_orders_everything() -> None:
    """A loop whose bound was loaded sees all that was before it."""

    def write(b: KernelBuilder) -> None:
        n, y = b.param("n", (1, 1), int32), b.param("y", (4, 8), F, "out")
        t, k = b.sbuf((4, 8), F), b.sbuf((1, 1), int32)
        b.memset(t, 0.0)
        b.dma_copy(k, n)
        trips = b.load_register(k)
        with b.loop("i", 0, trips):
            b.activation(t, t, op="exp")
        b.dma_copy(y, t)

    program = compile_program(write)
    assert not simulate(program, [np.array([[2]], int32)]).findings


def test_accumulation_in_psum_is_ordered_by_its_queue() -> None:
    """TensorE alone writes PSUM; only the eviction needs an edge."""

    def write(b: KernelBuilder) -> None:
        x, y = b.param("x", (256, 64), F), b.param("y", (64, 64), F, "out")
        p, o = b.psum((64, 64), F), b.sbuf((64, 64), F)
        with b.loop("k", 0, 2) as k:
            t = b.sbuf((128, 64), F)
            b.dma_copy(t, x[k * 128 : k * 128 + 128])
            b.nc_matmul(p, t, t, accumulate=predicate(k, ">", 0))
        b.tensor_copy(o, p)
        b.dma_copy(y, o)

    program = compile_program(write)
    x = rng().standard_normal((256, 64)).astype(F)
    assert not simulate(program, [x]).findings
    found = simulate(drop_deps(program, "tensor_copy"), [x]).findings
    assert any("bytes of PSUM" in f.text for f in found)


@given(random_case(target="trn2"))
def test_every_edge_between_queues_matters(case: RandomCase) -> None:
    """Dropping all edges of a program that has some gives at least one race."""
    edges = [i for k in case.program.kernels for i in instructions(k) if i.deps]
    bare = drop_deps(case.program)
    findings = simulate(bare, case.inputs).findings
    assert bool(edges) == any(f.kind == "race" for f in findings) or _only_empty_loops(case.program)


def _only_empty_loops(program: TileProgram) -> bool:
    """Edges inside a loop that runs no iteration cannot be missed."""
    for kernel in program.kernels:
        for statement in kernel.body:
            if isinstance(statement, Instruction) and statement.deps:
                return False
            if isinstance(statement, For) and isinstance(statement.high, int):
                inner = [i for i in walk(statement.body) if isinstance(i, Instruction)]
                if any(i.deps for i in inner):
                    return False
    return True


# Parallel loops -------------------------------------------------------------------------------


def _mark(program: TileProgram) -> TileProgram:
    body = tuple(
        replace(s, parallel=True) if isinstance(s, For) else s for s in program.kernels[0].body
    )
    return replace(program, kernels=(replace(program.kernels[0], body=body),))


@pytest.mark.parametrize(
    ("step", "rows", "conflict"), [(8, 8, False), (7, 8, True), (8, 9, True), (9, 8, False)]
)
def test_parallel_iterations_must_not_meet_in_hbm(step: int, rows: int, conflict: bool) -> None:
    """Stores of iteration i cover rows i*step .. i*step+rows-1."""

    def write(b: KernelBuilder) -> None:
        y = b.param("y", (40, 4), F, "out")
        with b.loop("i", 0, 4) as i:
            t = b.sbuf((16, 4), F)
            b.memset(t, 1.0)
            b.dma_copy(y[i * step : i * step + rows], t[:rows])

    findings = simulate(_mark(compile_program(write)), []).findings
    kinds = [f.kind for f in findings if f.kind == "parallel"]
    assert bool(kinds) == conflict
    if conflict:
        text = next(f.text for f in findings if f.kind == "parallel")
        assert "in different iterations of parallel loop 'i'" in text and "dma_copy #1" in text


def test_parallel_reads_may_meet_writes_may_not() -> None:
    """In-place work on disjoint rows is parallel; reading a neighbour's row is not."""

    def program(shift: int) -> TileProgram:
        def write(b: KernelBuilder) -> None:
            x = b.param("x", (6, 4), F, "inout")
            with b.loop("i", 0, 4) as i:
                t = b.sbuf((1, 4), F)
                b.dma_copy(t, x[i + shift : i + shift + 1])
                b.tensor_scalar(t, t, 1.0, op0="add")
                b.dma_copy(x[i : i + 1], t)

        return _mark(compile_program(write))

    x = rng().standard_normal((6, 4)).astype(F)
    kinds = [[f.kind for f in simulate(program(s), [x]).findings] for s in (0, 1)]
    assert kinds[0] == [] and "parallel" in kinds[1]


def test_findings_are_bounded() -> None:
    """Beyond the limit they are counted."""

    def write(b: KernelBuilder) -> None:
        y = b.param("y", (8, 4), F, "out")
        for row in range(8):
            t = b.sbuf((1, 4), F)
            b.dma_copy(y[row : row + 1], t)

    result = run(write, raise_findings=False, max_findings=3)
    assert len(result.findings) == 4
    assert result.findings[-1].text == "5 further findings."


def test_queues_are_those_of_the_instruction_set() -> None:
    """The lanes of reports are all queues an instruction can wait in."""
    from trnx.compiler.sim.report import QUEUES

    names = {*isa.COMPUTE_ENGINES, *(f"dma:{q}" for q in isa.DMA_QUEUES)}
    assert set(QUEUES) == names
