"""What becomes one kernel: counts of kernels, reads and writes, asserted on the tile program."""

from __future__ import annotations

import pytest

import trnx
from tests.compiler import harness as h
from trnx import nn
from trnx import numpy as tnp
from trnx.compiler.pipeline import compile_program
from trnx.ops import functions as op


def test_softmax_is_one_kernel_with_one_read_and_one_write() -> None:
    tiles = compile_program(h.record(h.softmax, ((1024, 4096), "f32")), "trn2")
    assert len(tiles.calls) == 1
    assert h.hbm_traffic(tiles) == ({"in0": 1}, {"out0": 1})
    assert h.ops_of(tiles) == ["tensor_reduce", "activation", "reciprocal", "tensor_scalar"]


def test_linear_bias_gelu_is_one_kernel() -> None:
    program = h.record(
        lambda x, w, b: h.gelu(h.linear(x, w, b)),
        ((512, 768), "f32"), ((768, 3072), "f32"), ((3072,), "f32"),
    )  # fmt: skip
    tiles = compile_program(program, "trn2")
    reads, writes = h.hbm_traffic(tiles)
    assert len(tiles.calls) == 1
    assert reads == {"in0": 1, "in1": 1, "in2": 1}
    assert set(writes) == {"out0"}


@pytest.mark.parametrize(
    ("name", "function", "avals", "kernels"),
    [
        ("layer norm", h.layer_norm, [((200, 64), "f32"), ((64,), "f32"), ((64,), "f32")], 1),
        ("cross-entropy", h.cross_entropy, [((64, 10), "f32"), ((64,), "i32")], 1),
        ("AdamW of one parameter", h.adamw, [((64, 128), "f32")] * 4, 1),
        ("batched linear", h.linear, [((6, 50, 40), "f32"), ((40, 30), "f32"), ((30,), "f32")], 1),
        (
            "view, product, view, bias, tanh",
            lambda x, w, b: op.tanh(
                h_add(op.reshape(op.dot_general(op.reshape(x, (300, 40)), w, ((1,), (0,))),
                                 (6, 50, 30)), b)
            ),
            [((6, 50, 40), "f32"), ((40, 30), "f32"), ((30,), "f32")],
            1,
        ),
        (
            "elementwise in front of a product",
            lambda dy, y, w: op.dot_general(
                op.mul(dy, op.sub(1.0, op.mul(y, y))), w, ((1,), (1,))
            ),
            [((300, 128), "f32"), ((300, 128), "f32"), ((64, 128), "f32")],
            1,
        ),
        (
            "softmax of a product",
            lambda x, w: h.softmax(op.dot_general(x, w, ((1,), (0,)))),
            [((300, 64), "f32"), ((64, 200), "f32")],
            1,
        ),
        ("sum over rows", lambda x: op.reduce_sum(x, (0,)), [((300, 257), "f32")], 1),
        (
            "one number of a large array takes two steps",
            lambda x: op.reduce_sum(op.mul(x, x), (0, 1)),
            [((512, 1024), "f32")],
            2,
        ),
        (
            "two independent results stay apart",
            lambda x, y: (op.exp(x), op.tanh(y)),
            [((40, 50), "f32"), ((60,), "f32")],
            2,
        ),
    ],
)  # fmt: skip
def test_kernel_count(name: str, function: object, avals: list[object], kernels: int) -> None:
    tiles = h.check(function, *avals, tolerance=1e-4)  # type: ignore[arg-type]
    assert len(tiles.calls) == kernels, name


def h_add(y: object, b: object) -> object:
    """Bias over the last axis."""
    return op.add(y, h.columns(b, y))


def test_mlp_step_is_few_kernels_and_weight_gradients_need_no_transpose() -> None:
    def loss(w1, b1, w2, b2, x, y):  # type: ignore[no-untyped-def]
        return nn.cross_entropy(tnp.tanh(x @ w1 + b1) @ w2 + b2, y)

    def step(*args):  # type: ignore[no-untyped-def]
        value, grads = trnx.value_and_grad(loss, argnums=(0, 1, 2, 3))(*args)
        return [value, *grads]

    tiles = h.check(
        step,
        ((64, 128), "f32"), ((128,), "f32"), ((128, 10), "f32"), ((10,), "f32"),
        ((32, 64), "f32"), ((32,), "i32"),
    )  # fmt: skip
    # Forward of each layer (the second with the loss and its gradient), the mean, the hidden
    # gradient, and per layer the weight gradient with the bias gradient beside it.
    assert len(tiles.calls) == 6
    ops = [[i.op for i in h.instructions(kernel)] for kernel in tiles.kernels]
    beside = [o for o in ops if o.count("nc_matmul") == 2 and "nc_transpose" not in o]
    assert len(beside) == 2


def test_a_value_used_twice_is_written_once_and_read_by_both() -> None:
    def function(x, w, v):  # type: ignore[no-untyped-def]
        y = op.exp(x)
        return op.dot_general(y, w, ((1,), (0,))), op.dot_general(y, v, ((1,), (0,)))

    tiles = h.check(
        function, ((64, 32), "f32"), ((32, 16), "f32"), ((32, 8), "f32"), tolerance=1e-4
    )
    reads, writes = h.hbm_traffic(tiles)
    assert writes["t0"] == 1 and reads["t0"] == 2


def test_no_group_waits_for_itself() -> None:
    """exp(x) feeds a product whose result meets exp(x) again: one group would be a cycle."""

    def function(x, w):  # type: ignore[no-untyped-def]
        y = op.exp(x)
        z = op.tanh(op.dot_general(op.transpose(y, (1, 0)), w, ((0,), (0,))))
        return op.add(op.mul(y, 2.0), z)

    h.check(function, ((24, 24), "f32"), ((24, 24), "f32"), tolerance=1e-4)


def test_views_are_access_patterns() -> None:
    """Slices, reversals, transposes and broadcasts in front of a kernel add no kernel."""

    def function(x, b):  # type: ignore[no-untyped-def]
        part = op.slice(op.reverse(op.transpose(x, (1, 0)), (0,)), (1, 2), (7, 12), (2, 5))
        return op.add(part, op.broadcast(b, part.shape, (0,)))

    tiles = h.check(function, ((20, 9), "f32"), ((3,), "f32"))
    assert len(tiles.calls) == 1


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        (lambda x: nn.gelu(x), ["activation", "tensor_scalar", "scalar_tensor_tensor"]),
        (lambda x: nn.silu(x), ["activation"]),
        (lambda x: op.exp(op.sub(op.mul(x, 2.0), 1.0)), ["activation"]),
        (lambda x: op.mul(op.add(x, 1.0), 3.0), ["tensor_scalar"]),
        (lambda x: op.max(op.min(x, 1.0), -1.0), ["tensor_scalar"]),
        (lambda x: op.sub(op.mul(x, 2.0), op.tanh(x)), ["activation", "scalar_tensor_tensor"]),
        (lambda x: op.reduce_sum(op.mul(x, x), (1,)), ["activation"]),
        (lambda x: op.convert(op.add(x, 1.0), "bf16"), ["tensor_scalar"]),
        (lambda x: op.select(op.gt(x, 0.0), x, 0.0),
         ["tensor_scalar", "memset", "tensor_copy_predicated"]),
        (lambda x: op.div(op.exp(x), 3.0), ["activation", "tensor_scalar"]),
    ],
    ids=["gelu", "silu", "scale and bias", "two scalars", "clamp",
         "scalar and tile", "sum of squares", "cast at the write", "relu by select", "x / 3"],
)  # fmt: skip
def test_instructions_chosen(function: object, expected: list[str]) -> None:
    """As few instructions as the engines need."""
    tiles = h.check(function, ((130, 20), "f32"), tolerance=1e-2)  # type: ignore[arg-type]
    assert sorted(h.ops_of(tiles)) == sorted(expected)
