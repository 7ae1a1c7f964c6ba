"""What shares memory: updates in place, donated buffers, temps; and where tiles live."""

from __future__ import annotations

import numpy as np
import pytest

from tests.host.cpus import CPUS
from tests.host.native import run_native
from tests.sim.programs import Write, compile_program, rng
from trnx.compiler import host
from trnx.compiler.host.cpu import host_cpu
from trnx.compiler.host.layout import panel_layouts
from trnx.compiler.host.plan import GroupNode, LoopNode, Planner
from trnx.compiler.host.staging import elide_staging
from trnx.compiler.tile.build import KernelBuilder, predicate
from trnx.compiler.tile.expr import minimum
from trnx.compiler.tile.ir import Access, HbmAccess, Instruction, Kernel, TileAccess, tiles, walk
from trnx.core.dtypes import float32

ROWS, COLUMNS = 200, 37


def _in_place(write: Write, x: np.ndarray) -> np.ndarray:
    """The memory of ``x`` after a program whose input and output are both it."""
    program = compile_program(write)
    native = host.load(host.compile_program(program, overlapping=True))
    memory = x.copy()
    native([memory.ctypes.data, memory.ctypes.data])
    return memory


def test_elementwise_update_in_place() -> None:
    """Every element is read before it is written."""

    def write(b: KernelBuilder) -> None:
        x = b.param("x", (128, COLUMNS), float32, "in")
        y = b.param("y", (128, COLUMNS), float32, "out")
        t, u = b.sbuf((128, COLUMNS), float32), b.sbuf((128, COLUMNS), float32)
        b.dma_copy(t, x)
        b.tensor_scalar(u, t, 2.0, op0="multiply")
        b.tensor_tensor(u, u, t, op="subtract")
        b.dma_copy(y, u)

    x = rng().standard_normal((128, COLUMNS)).astype(np.float32)
    np.testing.assert_array_equal(_in_place(write, x), x)


def test_row_update_in_place_reads_the_old_row() -> None:
    """A phase after a reduction must not load again what an earlier store has replaced."""

    def write(b: KernelBuilder) -> None:
        x = b.param("x", (64, COLUMNS), float32, "in")
        y = b.param("y", (64, COLUMNS), float32, "out")
        t, u = b.sbuf((64, COLUMNS), float32), b.sbuf((64, COLUMNS), float32)
        top = b.sbuf((64, 1), float32)
        b.dma_copy(t, x)
        b.tensor_scalar(u, t, 1.0, op0="add")
        b.dma_copy(y, u)
        b.tensor_reduce(top, u, op="maximum", axis=(1,))
        b.tensor_scalar(u, t, top, op0="subtract")
        b.dma_copy(y, u)

    x = rng().standard_normal((64, COLUMNS)).astype(np.float32)
    expected = x - (x + 1).max(axis=1, keepdims=True)
    np.testing.assert_allclose(_in_place(write, x), expected, rtol=1e-6)


def test_rotation_in_place() -> None:
    """Stores to other places of the row come after all loads of the tile."""

    def write(b: KernelBuilder) -> None:
        x = b.param("x", (64, COLUMNS), float32, "in")
        y = b.param("y", (64, COLUMNS), float32, "out")
        t = b.sbuf((64, COLUMNS), float32)
        b.dma_copy(t, x)
        b.dma_copy(y[:, 1:], t[:, : COLUMNS - 1])
        b.dma_copy(y[:, :1], t[:, COLUMNS - 1 :])

    x = rng().standard_normal((64, COLUMNS)).astype(np.float32)
    np.testing.assert_array_equal(_in_place(write, x), np.roll(x, 1, axis=1))


def _dtype_of(kernel: Kernel):
    dtypes = {p.name: p.dtype for p in kernel.params}
    dtypes.update({name: t.dtype for name, t in tiles(kernel).items()})

    def dtype_of(access: Access) -> np.dtype:
        return dtypes[access.tile if isinstance(access, TileAccess) else access.buffer]

    return dtype_of


def _groups(kernel: Kernel) -> list[GroupNode]:
    found: list[GroupNode] = []

    def visit(nodes) -> None:
        for node in nodes:
            if isinstance(node, GroupNode):
                found.append(node)
            elif isinstance(node, LoopNode):
                visit(node.body.nodes)

    visit(Planner(kernel, _dtype_of(kernel), lambda a, b: int(a == b)).plan().nodes)
    return found


def test_elementwise_chain_needs_no_memory() -> None:
    """A chain is one phase; no intermediate tile is stored."""

    def write(b: KernelBuilder) -> None:
        x, y = b.param("x", (128, 64), float32, "in"), b.param("y", (128, 64), float32, "out")
        t, u, v = (b.sbuf((128, 64), float32) for _ in range(3))
        b.dma_copy(t, x)
        b.activation(u, t, op="tanh")
        b.tensor_tensor(v, u, t, op="multiply")
        b.dma_copy(y, v)

    (group,) = _groups(compile_program(write).kernels[0])
    assert len(group.schedule.phases) == 1
    assert group.schedule.stored == frozenset()


def test_softmax_stores_one_row() -> None:
    """Three passes over a row; only the exponentials are kept, x is loaded again."""

    def write(b: KernelBuilder) -> None:
        x, y = b.param("x", (128, 64), float32, "in"), b.param("y", (128, 64), float32, "out")
        t, e, z = (b.sbuf((128, 64), float32, name) for name in ("t", "e", "z"))
        top, total = b.sbuf((128, 1), float32), b.sbuf((128, 1), float32)
        b.dma_copy(t, x)
        b.tensor_reduce(top, t, op="maximum", axis=(1,), negate=True)
        b.activation(e, t, bias=top, reduce_res=total, op="exp", reduce_op="add")
        b.reciprocal(total, total)
        b.tensor_scalar(z, e, total, op0="multiply")
        b.dma_copy(y, z)

    (group,) = _groups(compile_program(write).kernels[0])
    assert [len(p.nest) for p in group.schedule.phases] == [1, 1, 0, 1]
    assert group.schedule.stored == {"e"}


def _matmul(b: KernelBuilder) -> None:
    a = b.param("a", (128, 256), float32, "in")
    w = b.param("w", (256, 512), float32, "in")
    y = b.param("y", (128, 512), float32, "out")
    moving = b.sbuf((128, 2, 512), float32, "moving")
    rows = b.sbuf((128, 256), float32, "rows")
    stationary = b.sbuf((128, 2, 128), float32, "stationary")
    out, total = b.sbuf((128, 512), float32), b.psum((128, 512), float32)
    b.dma_copy(moving, w.reshape(2, 128, 512).permute(1, 0, 2))
    b.dma_copy(rows, a)
    for k in range(2):
        turned = b.psum((128, 128), float32)
        b.nc_transpose(turned, rows[:, k * 128 : k * 128 + 128])
        b.tensor_copy(stationary[:, k], turned)
        b.nc_matmul(total, stationary[:, k], moving[:, k], accumulate=k > 0)
    b.tensor_copy(out, total)
    b.dma_copy(y, out)


def test_matmul_operands_lie_in_panels_and_staging_is_dropped() -> None:
    """Transposes read HBM in place; both operands of the product are paneled."""
    kernel = compile_program(_matmul).kernels[0]
    in_place = elide_staging(kernel, _dtype_of(kernel), lambda name: True)
    assert "rows" in tiles(kernel) and "rows" not in tiles(in_place)
    turns = [s for s in walk(in_place.body) if isinstance(s, Instruction)]
    turns = [s for s in turns if s.op == "nc_transpose"]
    assert len(turns) == 2 and all(isinstance(s.ins[0], HbmAccess) for s in turns)
    written = elide_staging(kernel, _dtype_of(kernel), lambda name: name != "a")
    assert "rows" in tiles(written)
    _, panels = panel_layouts(in_place, host_cpu())
    assert set(panels) == {"moving", "stationary"}
    assert panels["stationary"].width == 128


@pytest.mark.parametrize("rows", [1, 5, 13, 64, 128])
@pytest.mark.parametrize("columns", [1, 31, 32, 96, 500])
def test_matmul_of_every_block_shape(rows: int, columns: int) -> None:
    """Tall, short and single rows; full and partial panels; sums start fresh or go on."""

    def write(b: KernelBuilder) -> None:
        a, w = b.param("a", (40, rows), float32), b.param("w", (40, columns), float32)
        y = b.param("y", (rows, columns), float32, "out")
        s, m = b.sbuf((40, rows), float32), b.sbuf((40, columns), float32)
        p, o = b.psum((rows, columns), float32), b.sbuf((rows, columns), float32)
        b.dma_copy(s, a)
        b.dma_copy(m, w)
        b.nc_matmul(p, s, m)
        b.nc_matmul(p, s, m, accumulate=True)
        b.tensor_copy(o, p)
        b.dma_copy(y, o)

    a = rng(1).standard_normal((40, rows)).astype(np.float32)
    w = rng(2).standard_normal((40, columns)).astype(np.float32)
    got = run_native(compile_program(write), [a, w])[0]
    expected = 2 * (a.astype(np.float64).T @ w)
    np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("cpu", CPUS)
def test_paneled_matmul(cpu: str) -> None:
    """Packing, panels and transposes in place give the product."""
    a = rng(3).standard_normal((128, 256)).astype(np.float32)
    w = rng(4).standard_normal((256, 512)).astype(np.float32)
    got = run_native(compile_program(_matmul), [a, w], cpu=CPUS[cpu])[0]
    np.testing.assert_allclose(got, a.astype(np.float64) @ w, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("dtype", [np.uint8, np.float16, np.float32, np.int64])
@pytest.mark.parametrize("order", [(1, 0, 2), (0, 2, 1), (2, 1, 0), (1, 2, 0)])
def test_copies_that_turn_a_matrix(dtype: type, order: tuple[int, int, int]) -> None:
    """Permuted loads and stores, with sizes that no block divides."""
    shape = (37, 19, 21)
    source = np.dtype(dtype)

    def write(b: KernelBuilder) -> None:
        turned = tuple(shape[k] for k in order)
        x = b.param("x", shape, source, "in")
        y = b.param("y", turned, source, "out")
        z = b.param("z", shape, source, "out")
        t = b.sbuf(turned, source)
        b.dma_copy(t, x.permute(*order))
        b.dma_copy(y, t)
        b.dma_copy(z.permute(*order), t)

    raw = rng(5).integers(0, 256, (*shape, source.itemsize), np.uint8)
    x = raw.view(source).reshape(shape)
    y, z = run_native(compile_program(write), [x])
    bits = np.dtype(f"u{source.itemsize}")
    np.testing.assert_array_equal(y.view(bits), np.ascontiguousarray(x.transpose(order)).view(bits))
    np.testing.assert_array_equal(z.view(bits), x.view(bits))


@pytest.mark.parametrize("target", ["trn2", "cpu"])
@pytest.mark.parametrize(("k", "low"), [(512, 0), (300, 0), (1500, 0), (512, 1), (128, 1)])
def test_accumulating_loop_is_one_product(k: int, low: int, target: str) -> None:
    """A loop of accumulating products, short last tile and empty loop included."""
    tiles = -(-k // 128)

    def write(b: KernelBuilder) -> None:
        a, w = b.param("a", (k, 70), float32), b.param("w", (k, 90), float32)
        y = b.param("y", (70, 90), float32, "out")
        s, m = b.sbuf((128, tiles, 70), float32), b.sbuf((128, tiles, 90), float32)
        p, o = b.psum((70, 90), float32), b.sbuf((70, 90), float32)
        for t in range(tiles):
            rows = min(128, k - 128 * t)
            b.dma_copy(s[:rows, t], a[128 * t : 128 * t + rows])
            b.dma_copy(m[:rows, t], w[128 * t : 128 * t + rows])
        b.memset(p, 7.0)
        with b.loop("k", low, tiles) as t:
            rows = minimum(128, k - t * 128)
            b.nc_matmul(
                p, s[:rows, t : t + 1], m[:rows, t : t + 1], accumulate=predicate(t, ">", low)
            )
        b.tensor_copy(o, p)
        b.dma_copy(y, o)

    a = rng(1).standard_normal((k, 70)).astype(np.float32)
    w = rng(2).standard_normal((k, 90)).astype(np.float32)
    got = run_native(compile_program(write, target), [a, w])[0]
    expected = a[128 * low :].astype(np.float64).T @ w[128 * low :]
    if low == tiles:
        expected = np.full((70, 90), 7.0)
    np.testing.assert_allclose(got, expected, rtol=1e-4, atol=2e-4)
