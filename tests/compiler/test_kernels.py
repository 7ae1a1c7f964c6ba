"""Numbers of every kernel family through the simulator, with races and poison checked."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tests.compiler import harness as h
from trnx.compiler.kernels import contraction
from trnx.compiler.pipeline import compile_program
from trnx.compiler.targets import target
from trnx.compiler.tile.ir import For, HostCall, walk
from trnx.core import dim, evaluate
from trnx.ops import functions as op

F = "f32"

CASES: list[tuple[str, Callable[..., Any], list[Any]]] = [
    ("one number", op.exp, [((), F)]),
    ("a prime count", op.exp, [((1009,), F)]),
    ("tails in both directions", lambda x, y: op.add(op.tanh(x), y), [((1437, 64), F)] * 2),
    ("a bias hoisted out of the rows", lambda x, b: op.mul(x, h.columns(b, x)),
     [((300, 70), F), ((70,), F)]),
    ("row and column broadcasts", lambda x, r, c: op.mul(op.add(x, h.rows(r, x)), h.columns(c, x)),
     [((5, 30, 40), F), ((5, 30), F), ((40,), F)]),
    ("a transposed operand", lambda x, y: op.add(x, op.transpose(y, (1, 0))),
     [((70, 90), F), ((90, 70), F)]),
    ("softmax, one pass", h.softmax, [((300, 100), F)]),
    ("softmax, rows in chunks", h.softmax, [((3, 20000), F)]),
    ("layer norm", h.layer_norm, [((200, 64), F), ((64,), F), ((64,), F)]),
    ("cross-entropy", h.cross_entropy, [((64, 10), F), ((64,), "i32")]),
    ("cross-entropy, rows in chunks", h.cross_entropy, [((2, 20000), F), ((2,), "i32")]),
    ("maximum over leading axes", lambda x: op.reduce_max(x, (0,)), [((130, 25), F)]),
    ("sum over outer and inner axes", lambda x: op.reduce_sum(x, (0, 2)), [((30, 25, 17), F)]),
    ("sum of everything", lambda x: op.reduce_sum(x, (0, 1)), [((300, 257), F)]),
    ("sum of a repeated value", lambda x: op.reduce_sum(op.broadcast(x, (3, 5), (0,)), (1,)),
     [((3,), F)]),
    ("integer sum", lambda x: op.reduce_sum(x, (1,)), [((9, 300), "i32")]),
    ("product", lambda x, y: op.dot_general(x, y, ((1,), (0,))),
     [((300, 200), F), ((200, 130), F)]),
    ("product, k first", lambda x, y: op.dot_general(x, y, ((0,), (0,))),
     [((300, 200), F), ((300, 130), F)]),
    ("product, k last", lambda x, y: op.dot_general(x, y, ((1,), (1,))),
     [((300, 200), F), ((130, 200), F)]),
    ("few rows, many columns", lambda x, y: op.dot_general(x, y, ((1,), (0,))),
     [((40, 300), F), ((300, 1500), F)]),
    ("batched product", lambda x, y: op.dot_general(x, y, ((2,), (1,)), ((0,), (0,))),
     [((3, 70, 40), F), ((3, 40, 50), F)]),
    ("two contracted axes", lambda x, y: op.dot_general(x, y, ((1, 2), (1, 0))),
     [((20, 5, 40), F), ((40, 5, 30), F)]),
    ("matrix times vector", lambda x, y: op.dot_general(x, y, ((1,), (0,))),
     [((300, 200), F), ((200,), F)]),
    ("dot of vectors", lambda x, y: op.dot_general(x, y, ((0,), (0,))), [((300,), F), ((300,), F)]),
    ("outer product", lambda x, y: op.dot_general(op.reshape(x, (30, 1)), op.reshape(y, (1, 40)),
     ((1,), (0,))), [((30,), F), ((40,), F)]),
    ("product of one array with itself", lambda x: op.dot_general(x, x, ((1,), (1,))),
     [((140, 60), F)]),
    ("integer product", lambda x, y: op.dot_general(x, y, ((1,), (0,))),
     [((7, 9), "i32"), ((9, 5), "i32")]),
    ("concatenation", lambda x, y: op.concatenate([x, op.transpose(y, (1, 0)), x], 1),
     [((30, 4), F), ((9, 30), F)]),
    ("padding", lambda x: op.pad(x, -1.0, (2, 0), (1, 3)), [((30, 4), F)]),
    ("padding between", lambda x: op.pad(x, 5.0, (1, 0), (0, 2), (2, 1)), [((7, 4), F)]),
    ("rows by index", lambda x, i: op.mul(op.take(x, i, 0), 2.0), [((50, 12), F), ((9,), "i32")]),
    ("columns by index", lambda x, i: op.take(x, i, 1), [((5, 40, 3), F), ((2, 7), "i32")]),
    ("many picks per row", lambda x, i: op.take_along(x, i, 1), [((6, 40), F), ((6, 9), "i32")]),
    ("scatter-add of rows", lambda x, i, u: op.scatter_add(x, i, u, 0),
     [((50, 12), F), ((200,), "i32"), ((200, 12), F)]),
    ("scatter-add along", lambda x, i, u: op.scatter_add_along(x, i, u, 1),
     [((6, 40), F), ((6, 9), "i32"), ((6, 9), F)]),
    ("argmax", lambda x: op.argmax(x, 1), [((140, 33), F)]),
    ("zero elements", lambda x: op.add(op.exp(x), 1.0), [((0, 4), F)]),
    ("sum over nothing", lambda x: op.reduce_sum(x, (0,)), [((0, 4), F)]),
    ("an input returned", lambda x: (x, op.exp(x)), [((5,), F)]),
    ("one value returned twice", lambda x: [op.exp(x)] * 2, [((5,), F)]),
    ("a view returned", lambda x: op.transpose(x, (1, 0)), [((5, 3), F)]),
    ("a number returned", lambda x: (np.float32(3.0), x), [((5,), F)]),
    ("a slice of a computed value", lambda x: op.slice(op.exp(x), (1, 0), (4, 3)), [((5, 3), F)]),
    ("heads merged after a transpose", lambda x: op.exp(op.reshape(op.transpose(x, (0, 2, 1, 3)),
     (2, 5, 12))), [((2, 3, 5, 4), F)]),
]  # fmt: skip


@pytest.mark.parametrize("device", ["trn2", "cpu"])
@pytest.mark.parametrize(("function", "avals"), [c[1:] for c in CASES], ids=[c[0] for c in CASES])
def test_kernel_against_numpy(function: Callable[..., Any], avals: list[Any], device: str) -> None:
    """Equal to the NumPy meaning of its primitives, no race, nothing uninitialised read."""
    tiles = h.check(function, *avals, target=device, tolerance=1e-4)
    assert not any(isinstance(call, HostCall) for call in tiles.calls)


@pytest.mark.parametrize("device", ["trn1", "trn2", "trn3", "cpu"])
def test_every_target_takes_a_layer(device: str) -> None:
    """Limits of each generation hold: the legality check is part of the pipeline."""
    h.check(
        lambda x, w, b: h.gelu(h.linear(x, w, b)),
        ((130, 140), "bf16"), ((140, 600), "bf16"), ((600,), "bf16"),
        target=device, tolerance=5e-2,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("function", "avals"),
    [
        (h.softmax, [((70, 40), "f64")]),
        (h.layer_norm, [((50, 64), "f64"), ((64,), "f64"), ((64,), "f64")]),
        (h.linear, [((130, 140), "f64"), ((140, 30), "f64"), ((30,), "f64")]),
        (lambda x, y: op.floor_divide(x, op.add(y, 1)), [((50,), "i64"), ((50,), "i64")]),
    ],
)
def test_f64_and_int64_on_cpu(function: Callable[..., Any], avals: list[Any]) -> None:
    """Finite-difference tests run here: nothing is computed in fp32."""
    h.check(function, *avals, target="cpu", tolerance=1e-12)


def test_long_integers_move_and_narrow_natively_on_a_neuron_core() -> None:
    """int64 labels become int32 indices through words, widening writes words; no host call."""

    def function(x: Any, i: Any, flag: Any) -> Any:
        narrow = op.convert(i, "i32")
        picked = op.take(x, narrow, 0)
        return picked, op.convert(op.add(narrow, -9), "i64"), op.select(flag, i, op.reverse(i, [0]))

    labels = np.array([3, 0, 1, 2, 3, 1, 0], np.int64)
    tiles = h.check(
        function, ((4, 6), F), ((7,), "i64"), ((7,), "bool"),
        args=[np.arange(24, dtype=np.float32).reshape(4, 6), labels, labels > 1],
    )  # fmt: skip
    assert not any(isinstance(call, HostCall) for call in tiles.calls)


LONG: dict[str, Callable[..., Any]] = {
    "add": lambda x, y: op.add(x, y),
    "mul": lambda x, y: op.mul(x, y),
    "floor_divide": lambda x, y: op.floor_divide(x, y),
    "remainder": lambda x, y: op.remainder(x, y),
    "less": lambda x, y: op.lt(x, y),
    "max": lambda x, y: op.max(x, y),
    "abs": lambda x, y: op.abs(x),
    "row sum": lambda x, y: op.reduce_sum(x, (1,)),
    "column maximum": lambda x, y: op.reduce_max(x, (0,)),
    "to f32": lambda x, y: op.convert(y, np.dtype(np.float32)),
    "to i32": lambda x, y: op.convert(op.add(x, y), np.dtype(np.int32)),
    "from bool": lambda x, y: op.reduce_sum(op.convert(op.lt(x, y), np.dtype(np.int64)), (1,)),
}


@pytest.mark.parametrize("name", LONG)
def test_long_integers_are_an_exact_extension(name: str) -> None:
    """One kernel and no host call: host and simulator compute 64-bit integers exactly."""
    rng = np.random.default_rng(0)
    x = rng.integers(-(2**62), 2**62, (37, 50))
    y = rng.integers(1, 2**40, (37, 50))
    tiles = h.check(LONG[name], ((37, 50), "i64"), ((37, 50), "i64"), args=[x, y])
    assert len(tiles.calls) == 1
    assert not any(isinstance(call, HostCall) for call in tiles.calls)


n, m, k = dim("n"), dim("m"), dim("k")


@pytest.mark.parametrize(
    ("function", "avals", "sizes"),
    [
        (lambda x, y: op.exp(op.add(x, y)), [((n,), F), ((n,), F)], [5, 512, 1000, 70000]),
        (lambda x, y: op.add(op.tanh(x), h.columns(y, x)), [((n, m), F), ((m,), F)], [5, 300]),
        (h.softmax, [((n, m), F)], [5, 300, 700]),
        (lambda x, y: op.dot_general(x, y, ((1,), (0,))), [((m, k), F), ((k, n), F)], [5, 300]),
        (lambda x, y: op.dot_general(x, y, ((0,), (1,))), [((k, m), F), ((n, k), F)], [5, 300]),
        (lambda x: op.reduce_sum(x, (0,)), [((m, k), F)], [5, 300]),
        (lambda x: op.reduce_max(x, (0,)), [((m, k), F)], [5, 300]),
    ],
    ids=["flat", "bias", "softmax", "product", "transposed product", "column sum", "column max"],
)
def test_shape_generic_kernels(
    function: Callable[..., Any], avals: list[Any], sizes: list[int]
) -> None:
    """One program with sizes in registers serves every size."""
    tiles = compile_program(h.record(function, *avals), "trn2")
    assert len(tiles.calls) == 1
    for number, size in enumerate(sizes):
        env = {"n": size, "m": size + 3 * number + 1, "k": 2 * size - number}
        static = [
            (tuple(s if isinstance(s, int) else evaluate(s, env) for s in shape), dtype)
            for shape, dtype in avals
        ]
        program = h.record(function, *static)
        args = h.draw(number, program)
        (got,) = h.run(tiles, args, [env[r] for r in tiles.registers])
        (wanted,) = h.evaluate(program, args)
        np.testing.assert_allclose(got, wanted, 1e-4, 1e-4)


def test_blocks_of_rows_are_parallel() -> None:
    """The row loop of a row kernel and of a contraction is proved parallel."""
    for function, avals in (
        (h.softmax, [((1024, 64), F)]),
        (h.linear, [((1024, 64), F), ((64, 32), F), ((32,), F)]),
    ):
        tiles = compile_program(h.record(function, *avals), "trn2")
        loops = [s for s in walk(tiles.kernels[0].body) if isinstance(s, For)]
        assert loops[0].parallel


def test_resident_operands_are_read_once() -> None:
    """1024x1024 products keep one operand in SBUF: each input is read once."""
    program = h.record(
        lambda x, y: op.dot_general(x, y, ((1,), (0,))), ((1024, 1024), F), ((1024, 1024), F)
    )
    tiles = compile_program(program, "trn2")
    body = tiles.kernels[0].body
    inside = [s for loop in body if isinstance(loop, For) for s in walk(loop.body)]
    loads = [s for s in inside if getattr(s, "op", "") == "dma_copy"]
    assert len(loads) == 2  # rows of lhs and the store; rhs was loaded before the loop


@pytest.mark.parametrize(
    ("budget", "rows", "columns", "order"),
    [
        (200_000, 300, 700, "rows"),
        (200_000, 100, 1500, "columns"),
        (13_000, 300, 1500, "rows"),
        (20_000, 300, 1500, "columns"),
        (2_500, 300, 700, "stream"),
    ],
)
def test_contraction_plans(budget: int, rows: int, columns: int, order: str) -> None:
    """Every loop order and a rhs cut into strips, by how much SBUF there is."""
    row = replace(target("trn2"), sbuf_usable_bytes=budget)
    program = h.record(
        lambda x, y: op.dot_general(x, y, ((1,), (0,))), ((rows, 200), F), ((200, columns), F)
    )
    orders = []
    original = contraction.ContractionLowering._plan

    def spy(self: contraction.ContractionLowering) -> contraction.Plan:
        plan = original(self)
        orders.append(plan.order)
        return plan

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(contraction.ContractionLowering, "_plan", spy)
        tiles = compile_program(program, row)
    assert orders == [order]
    args = h.draw(0, program)
    (got,), (wanted,) = h.run(tiles, args), h.evaluate(program, args)
    np.testing.assert_allclose(got, wanted, 1e-4, 1e-4)


def test_long_chains_compile() -> None:
    """A chain of more operations than Python nests calls; one of them feeds a gather's index."""

    def function(x: Any, table: Any) -> Any:
        for _ in range(150):
            x = op.add(op.mul(x, 0.99), x)
            x = op.sub(x, op.mul(x, 0.98))
        return x, op.take(table, op.convert(x, "i32"), 0)

    tiles = h.check(
        function, ((5,), F), ((4,), F),
        args=[np.linspace(0, 3, 5, dtype=np.float32), np.arange(4, dtype=np.float32)],
    )  # fmt: skip
    assert not any(isinstance(call, HostCall) for call in tiles.calls)
