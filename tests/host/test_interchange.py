"""Loops over pieces of rows run row by row where rows never meet, and only there."""

from __future__ import annotations

import numpy as np
import pytest

from tests.host.native import run_native
from tests.host.test_memory import _dtype_of
from tests.sim.programs import Write, compile_program, rng, run
from trnx.compiler.host.nodes import LoopNode, Node, RowsNode
from trnx.compiler.host.phases import APART, SAME_BASE
from trnx.compiler.host.plan import Planner
from trnx.compiler.tile.build import KernelBuilder
from trnx.compiler.tile.expr import Index, minimum
from trnx.compiler.tile.ir import HbmAccess, Span
from trnx.core.dtypes import float32

ROWS, PIECE, PIECES = 96, 24, 5
COLUMNS = PIECE * PIECES - 7


def _nodes(write: Write) -> list[Node]:
    (kernel,) = compile_program(write).kernels

    def aliases(a: str, b: str) -> int:
        return SAME_BASE if a == b else APART

    found: list[Node] = []

    def visit(nodes: tuple[Node, ...]) -> None:
        for node in nodes:
            found.append(node)
            if isinstance(node, LoopNode):
                visit(node.body.nodes)

    visit(Planner(kernel, _dtype_of(kernel), aliases).plan().nodes)
    return found


def _spans(width: Index, step: int = COLUMNS) -> tuple[Span, ...]:
    return Span(step, ROWS), Span(1, width)


def _softmax(b: KernelBuilder) -> None:
    """Softmax of rows in pieces, the last one short: three loops, two of which read again."""
    b.param("x", (2 * ROWS, COLUMNS), float32)
    b.param("y", (2 * ROWS, COLUMNS), float32, "out")
    with b.loop("i", 0, 2) as i:
        top, total = b.sbuf((ROWS, 1), float32), b.sbuf((ROWS, 1), float32)
        b.memset(top, -np.inf)
        b.memset(total, 0.0)
        for step in ("top", "total", "out"):
            with b.loop("j", 0, PIECES) as j:
                width = minimum(PIECE, COLUMNS - PIECE * j)
                place, spans = ROWS * COLUMNS * i + PIECE * j, _spans(width)
                t, part = b.sbuf((ROWS, PIECE), float32)[:, :width], b.sbuf((ROWS, 1), float32)
                b.dma_copy(t, HbmAccess("x", place, spans))
                if step == "top":
                    b.tensor_reduce(part, t, op="maximum", axis=(1,))
                    b.tensor_tensor(top, top, part, op="maximum")
                    continue
                b.tensor_scalar(t, t, top, op0="subtract")
                b.activation(t, t, op="exp")
                if step == "total":
                    b.tensor_reduce(part, t, op="add", axis=(1,))
                    b.tensor_tensor(total, total, part, op="add")
                else:
                    b.tensor_scalar(t, t, total, op0="multiply")
                    b.dma_copy(HbmAccess("y", place, spans), t)
            if step == "total":
                b.reciprocal(total, total)


def _shifted(gap: int) -> Write:
    """Pieces written ``gap`` elements apart into rows that begin 24 elements apart."""

    def write(b: KernelBuilder) -> None:
        b.param("x", (ROWS, COLUMNS), float32)
        b.param("y", (ROWS * PIECE + 2 * PIECE,), float32, "out")
        with b.loop("j", 0, 2) as j:
            t = b.sbuf((ROWS, 12), float32)
            b.dma_copy(t, HbmAccess("x", 12 * j, _spans(12)))
            b.dma_copy(HbmAccess("y", gap * j, _spans(12, PIECE)), t)

    return write


def test_pieces_of_rows_run_row_by_row() -> None:
    """One node holds all loops of a block of rows, and the values are those of the simulator."""
    (node,) = [node for node in _nodes(_softmax) if isinstance(node, RowsNode)]
    assert sum(isinstance(inner, LoopNode) for inner in node.nodes) == 3
    x = rng().standard_normal((2 * ROWS, COLUMNS)).astype(np.float32)
    (native,) = run_native(compile_program(_softmax), [x])
    np.testing.assert_allclose(native, run(_softmax, [x]).outputs[0], rtol=2e-6)
    expected = np.exp(x - x.max(1, keepdims=True))
    np.testing.assert_allclose(native, expected / expected.sum(1, keepdims=True), rtol=1e-5)


@pytest.mark.parametrize(("gap", "apart"), [(12, True), (13, False), (24, False)])
def test_rows_that_meet_keep_their_order(gap: int, apart: bool) -> None:
    """From 12 on a second piece reaches into the next row; the later piece has to win there."""
    write = _shifted(gap)
    assert any(isinstance(node, RowsNode) for node in _nodes(write)) == apart
    x = rng().standard_normal((ROWS, COLUMNS)).astype(np.float32)
    expected = np.zeros(ROWS * PIECE + 2 * PIECE, np.float32)
    for j in range(2):
        for row in range(ROWS):
            at = gap * j + PIECE * row
            expected[at : at + 12] = x[row, 12 * j : 12 * j + 12]
    (native,) = run_native(compile_program(write), [x])
    written = expected != 0
    np.testing.assert_array_equal(native[written], expected[written])
