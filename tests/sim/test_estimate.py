"""The cost walk: equal to the simulator, closed form for loops, assumptions listed."""

from __future__ import annotations

import html

import numpy as np
import pytest

from tests.sim.programs import Write, compile_program, rng
from trnx.compiler.sim import CostReport, estimate, simulate
from trnx.compiler.sim.estimate import Estimate
from trnx.compiler.sim.walk import Walk
from trnx.compiler.tile.build import KernelBuilder, predicate
from trnx.compiler.tile.expr import minimum
from trnx.compiler.tile.ir import TileProgram
from trnx.core.dtypes import float32, int32

F = float32


def softmax(rows: int, columns: int) -> Write:
    """Row softmax with a tail."""

    def write(b: KernelBuilder) -> None:
        x, y = b.param("x", (rows, columns), F), b.param("y", (rows, columns), F, "out")
        with b.loop("i", 0, -(-rows // 128)) as i:
            r = minimum(128, rows - i * 128)
            t, e = b.sbuf((128, columns), F), b.sbuf((128, columns), F)
            m, s = b.sbuf((128, 1), F), b.sbuf((128, 1), F)
            b.dma_copy(t[:r], x[i * 128 : i * 128 + r])
            b.tensor_reduce(m[:r], t[:r], op="maximum", axis=(1,), negate=True)
            b.activation(e[:r], t[:r], bias=m[:r], op="exp", reduce_op="add", reduce_res=s[:r])
            b.reciprocal(s[:r], s[:r])
            b.tensor_scalar(e[:r], e[:r], s[:r], op0="multiply")
            b.dma_copy(y[i * 128 : i * 128 + r], e[:r], engine="scalar")

    return write


def matmul(m: int, k: int, n: int) -> Write:
    """Blocked matmul that loads both sides again for every block."""

    def write(b: KernelBuilder) -> None:
        x, w = b.param("x", (k, m), F), b.param("w", (k, n), F)
        y = b.param("y", (m, n), F, "out")
        with b.loop("i", 0, m // 128) as i, b.loop("j", 0, n // 512) as j:
            p, o = b.psum((128, 512), F), b.sbuf((128, 512), F)
            with b.loop("l", 0, k // 128) as c:
                s, v = b.sbuf((128, 128), F), b.sbuf((128, 512), F)
                b.dma_copy(s, x[c * 128 : c * 128 + 128, i * 128 : i * 128 + 128])
                b.dma_copy(v, w[c * 128 : c * 128 + 128, j * 512 : j * 512 + 512], engine="gpsimd")
                b.nc_matmul(p, s, v, accumulate=predicate(c, ">", 0))
            b.tensor_copy(o, p)
            b.dma_copy(y[i * 128 : i * 128 + 128, j * 512 : j * 512 + 512], o, engine="scalar")

    return write


def walked(program: TileProgram) -> Estimate:
    """The cost walk with every iteration taken."""
    plain = Estimate(program, (), {}, 1)
    plain.for_loop = lambda loop: Walk.for_loop(plain, loop)  # type: ignore[method-assign]
    plain.run()
    return plain


@pytest.mark.parametrize(
    "write",
    [softmax(3000, 64), softmax(128 * 40, 512), matmul(1024, 2048, 1024), matmul(256, 8192, 512)],
    ids=["softmax tail", "softmax", "matmul", "matmul deep"],
)
def test_closed_form_equals_the_walk(write: Write) -> None:
    """Time, instructions, bytes and busy time, to rounding."""
    program = compile_program(write)
    plain, report = walked(program), estimate(program)
    assert report.total_us == pytest.approx(plain.clock.total_ns / 1e3, rel=1e-6)
    assert report.hbm_bytes == plain.clock.hbm_read + plain.clock.hbm_write
    assert report.flops == plain.clock.flops
    for use in report.queues:
        assert use.instructions == plain.clock.usage[use.name].instructions
        assert use.busy_us * 1e3 == pytest.approx(plain.clock.usage[use.name].busy_ns, rel=1e-6)


def test_large_loops_are_not_walked(monkeypatch: pytest.MonkeyPatch) -> None:
    """A million rows take a handful of iterations; bytes and instructions are exact."""
    rows = 1_000_000
    count = 0
    original = Estimate.instruction

    def counting(self: Estimate, instruction: object) -> None:
        nonlocal count
        count += 1
        original(self, instruction)  # type: ignore[arg-type]

    monkeypatch.setattr(Estimate, "instruction", counting)
    report = estimate(compile_program(softmax(rows, 64)))
    assert count < 1000
    assert report.hbm_bytes == 2 * rows * 64 * 4
    assert sum(use.instructions for use in report.queues) == 6 * -(-rows // 128)


def test_estimate_equals_the_simulator() -> None:
    """Every figure of the report."""
    program = compile_program(softmax(700, 96))
    x = rng().standard_normal((700, 96)).astype(F)
    simulated, report = simulate(program, [x]).cost, estimate(program)
    assert report.total_us == pytest.approx(simulated.total_us, rel=1e-9)
    assert report.queues == tuple(
        type(u)(u.name, u.instructions, pytest.approx(u.busy_us), pytest.approx(u.total_us))
        for u in simulated.queues
    )
    assert (report.hbm_read, report.hbm_write) == (simulated.hbm_read, simulated.hbm_write)


def test_assumptions_are_listed() -> None:
    """Loaded registers and while loops have no values without data."""

    def write(b: KernelBuilder) -> None:
        n, y = b.param("n", (1, 1), int32), b.param("y", (1, 64), F, "out")
        t = b.sbuf((1, 64), F)
        b.memset(t, 1.0)
        trips = b.load_register(n, "trips")
        with b.loop("i", 0, trips):
            b.tensor_scalar(t, t, 2.0, op0="multiply")
        with b.while_loop(trips):
            b.move_register(trips, 0)
        b.dma_copy(y, t)

    program = compile_program(write)
    report = estimate(program)
    assert report.assumptions == ("register trips holds 1", "while trips runs 1 times")
    known = estimate(program, loaded_registers={"trips": 9})
    assert known.assumptions == ("while trips runs 1 times",)
    assert known.total_us > report.total_us


def test_report_text_and_shares() -> None:
    """Units, the busiest engine, a line per queue and kernel."""
    report: CostReport = estimate(compile_program(matmul(256, 1024, 512)))
    text = str(report)
    assert report.summary().startswith(f"{report.total_us:,.2f} us on trn2 (+ 30.0 us launch)")
    assert "kernel k: 1 x" in text and "instr" in text and "GB/s" in text
    assert 0 < report.share("tensor") < 1 and report.share("gpsimd") == 0.0
    assert report.busiest in ("tensor", "dma")
    assert report.flops == 2 * 256 * 1024 * 512
    page = report._repr_html_()
    assert page.count("<tr>") == 2 + len(report.queues) + len(report.kernels)
    assert html.escape(report.summary()) in page and "busy µs" in page
    idle = report.queues[0]
    assert idle.idle_us + idle.busy_us == pytest.approx(report.total_us)


def test_double_buffering_shows_in_the_estimate() -> None:
    """More rows cost less than proportionally: loads overlap with work."""
    short = estimate(compile_program(softmax(128, 512))).total_us
    long = estimate(compile_program(softmax(128 * 16, 512))).total_us
    assert long < 0.75 * 16 * short


def test_targets_differ() -> None:
    """trn3 moves bytes faster than trn1."""
    times = {
        name: estimate(compile_program(softmax(128 * 64, 1024), name)).total_us
        for name in ("trn1", "trn2", "trn3", "cpu")
    }
    assert times["trn3"] < times["trn2"] < times["trn1"] < times["cpu"]
    assert np.isfinite(list(times.values())).all()
