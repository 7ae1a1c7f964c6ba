"""Merged axes stay apart: the same results, and no element moved where rows are treated alike."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import trnx.numpy as tn
from tests.transforms.composites import COMPOSITES
from trnx import nn, random
from trnx.core import check, dim, eval_program, evaluate, make_aval, trace_program, tree
from trnx.core.program import Program, dim_variables
from trnx.transforms import grad, pad_program, specialise, vmap
from trnx.transforms.factored import factor_merges

B, N = dim("b", 0, 4), dim("n", 0, 5)
SIZES = [{"b": 3, "n": 5}, {"b": 4, "n": 1}, {"b": 1, "n": 4}, {"b": 2, "n": 0}]


def rows(x: Any) -> Any:
    """[b, n, ...] with the first two axes merged."""
    return x.reshape(x.shape[0] * x.shape[1], *x.shape[2:])


def normalised(x: Any) -> Any:
    return tn.sum(nn.softmax(x) * tn.cos(x))


# Functions of x [b, n, 4] and k [b, n], ints in 0..3, that need no merged array.
KEPT: dict[str, Callable[[Any, Any], Any]] = {
    "elementwise, scalars and rows": lambda x, k: (rows(x) * 2.0 + tn.mean(x, (0, 1))).reshape(
        x.shape
    ),
    "transpose": lambda x, k: tn.sum(rows(x).T @ rows(x)),
    "reductions": lambda x, k: (tn.sum(rows(x)), tn.max(rows(x), axis=0), tn.mean(rows(x), 0)),
    "argmax of all": lambda x, k: (tn.argmin(rows(k)), tn.argmax(rows(x), 0), tn.argmax(x)),
    "moments of all": lambda x, k: tn.std(x.reshape(-1)),
    "argmax of rows": lambda x, k: tn.argmax(rows(x), axis=1).reshape(k.shape),
    "bias and position": lambda x, k: (
        rows(x) + tn.arange(x.shape[0] * x.shape[1])[:, None]
    ).reshape(x.shape),
    "mask of its own": lambda x, k: tn.sum(
        tn.where(tn.arange(x.shape[0] * x.shape[1]) % 2 == 0, rows(k), 0)
    ),
    "pieces of columns": lambda x, k: tn.concatenate([rows(x)[:, 1:], rows(x)[:, :2]], 1).reshape(
        *x.shape[:2], 5
    ),
    "padded and reversed": lambda x, k: tn.sum(
        tn.flip(tn.pad(rows(x), ((0, 0), (1, 0))), (0, 1)) * 2.0, axis=1
    ).reshape(k.shape),
    "embedding": lambda x, k: nn.embedding(rows(k), tn.ones((4, 3)) * 2.0).reshape(*k.shape, 3),
    "picked": lambda x, k: tn.sum(tn.take_along_axis(rows(x), rows(k)[:, None], axis=1)),
    "cross entropy": lambda x, k: nn.cross_entropy(rows(x), rows(k)),
    "gradient of picked": grad(
        lambda x, k: tn.sum(tn.take_along_axis(rows(x), rows(k)[:, None], axis=1) ** 2)
    ),
    "gradient of embedding": lambda x, k: grad(
        lambda t: tn.sum(nn.embedding(rows(k), t) * rows(x)[:, :3])
    )(tn.ones((4, 3), x.dtype)),
    "layer norm and product": lambda x, k: (nn.layer_norm(rows(x)) @ tn.ones((4, 2), x.dtype))
    .reshape(*x.shape[:2], 2),
    "gradient": grad(lambda x, k: normalised(rows(x))),
    "segments": lambda x, k: tn.zeros((4, 4), x.dtype).at[rows(k)].add(rows(x)),
    "three axes": lambda x, k: tn.sum(x.reshape(-1, 2) ** 2, axis=1).reshape(*k.shape, 2),
    "split elsewhere": lambda x, k: rows(rows(x).reshape(k.size, 2, 2).sum(axis=2)).sum(),
    "example by example": vmap(lambda x, k: tn.sum(nn.softmax(x), axis=1) + k),
    "random": lambda x, k: random.uniform(random.key(1), k.shape) + rows(k).reshape(k.shape),
}  # fmt: skip

# Functions that do need it: the gaps are closed once.
MERGED: dict[str, Callable[[Any, Any], Any]] = {
    "result": lambda x, k: rows(x) + 1.0,
    "cut rows": lambda x, k: tn.concatenate([rows(x), rows(x)], axis=0),
    "other factors": lambda x, k: rows(x) + rows(tn.swapaxes(x, 0, 1)),
}


def traced(function: Callable[[Any, Any], Any]) -> Program:
    avals = [make_aval((B, N, 4), "f64"), make_aval((B, N), "i32")]
    return trace_program(lambda *args: tree.leaves(function(*args)), avals, "f")


def moved(program: Program) -> int:
    """Equations of the padded program that close gaps."""
    buckets = {"b": 4, "n": 5}
    used = {v.name: buckets[v.name] for v in dim_variables(program)}
    padded = pad_program(program, used).program
    # The gather of a reshape works on one flat axis of all merged places.
    return sum(
        e.primitive.name == "take" and 20 in e.inputs[0].aval.shape for e in padded.equations
    )


@pytest.mark.parametrize("name", [*KEPT, *MERGED])
@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # means over no elements
def test_factored_programs_compute_the_same(name: str) -> None:
    function = {**KEPT, **MERGED}[name]
    program = traced(function)
    factored = factor_merges(program)
    check(factored)
    assert factored.in_avals == program.in_avals
    assert factored.out_avals == program.out_avals
    rng = np.random.default_rng(0)
    for sizes in SIZES:
        if "argmax" in name and not sizes["n"]:
            continue  # nothing has no first element
        args = [
            rng.normal(size=tuple(evaluate(s, sizes) for s in (B, N, 4))),
            rng.integers(0, 4, tuple(evaluate(s, sizes) for s in (B, N))).astype(np.int32),
        ]
        expected = eval_program(specialise(program, sizes), args)
        found = eval_program(specialise(factored, sizes), args)
        for got, want in zip(found, expected, strict=True):
            np.testing.assert_allclose(got, want, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", KEPT)
def test_rows_are_not_moved(name: str) -> None:
    assert moved(traced(KEPT[name])) == 0


@pytest.mark.parametrize("name", MERGED)
def test_gaps_are_closed_where_they_must(name: str) -> None:
    assert moved(traced(MERGED[name])) > 0


def test_linear_layer_of_merged_rows_is_one_product() -> None:
    composite = COMPOSITES["linear over merged rows"]
    padded = pad_program(composite.program("f32"), {"n": 8, "m": 6}).program
    assert [e.primitive.name for e in padded.equations] == ["dot_general", "broadcast", "add"]


def test_programs_without_merges_stay_as_they_are() -> None:
    program = traced(lambda x, k: nn.softmax(x.reshape(x.shape[0], x.shape[1] * 4)))
    assert factor_merges(program) is program
