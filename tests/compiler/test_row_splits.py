"""Row reductions after a product whose columns another result walks as several axes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.compiler import harness as h
from trnx.ops import functions as op

F = "f32"


def heads(x: Any, count: int) -> Any:
    """[b, n, h*d] as [b, h, n, d]."""
    b, n, width = x.shape
    return op.transpose(op.reshape(x, (b, n, count, width // count)), (0, 2, 1, 3))


def centred(x: Any) -> Any:
    total = op.reduce_sum(x, (2,))
    return op.sub(x, op.broadcast(op.div(total, 4.0), x.shape, (0, 1)))


def product(x: Any, w: Any) -> Any:
    return op.dot_general(x, w, ((2,), (0,)))


@pytest.mark.parametrize("device", ["trn2", "cpu"])
@pytest.mark.parametrize(
    ("function", "avals"),
    [
        (
            lambda x, w: heads(centred(product(x, w)), 2),
            [((6, 8, 6), F), ((6, 4), F)],
        ),
        (
            lambda x, w, q: op.reduce_sum(
                op.reshape(
                    op.transpose(
                        op.dot_general(q, heads(product(x, w), 2), ((3,), (2,)), ((0, 1), (0, 1))),
                        (0, 2, 1, 3),
                    ),
                    (1, 1, 4),
                ),
                (2,),
            ),
            [((1, 1, 4), F), ((4, 4), F), ((1, 2, 1, 1), F)],
        ),
    ],
    ids=["centred rows by heads", "sum over heads and their elements"],
)
def test_the_whole_row_is_reduced(
    function: Callable[..., Any], avals: list[Any], device: str
) -> None:
    """Each head on its own would reduce only its part of the row."""
    h.check(function, *avals, target=device, tolerance=1e-4)
