"""64-bit integers against short ones: 32-bit words decide, for every value of either side."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import trnx
import trnx.numpy as tn
from trnx import nn

_EDGES = [number + d for number in (0, 2**31, -(2**31), 2**32, -(2**32)) for d in (-1, 0, 1, 5)]
VALUES = np.array([*_EDGES, 2**62, -(2**62), 2**63 - 1, -(2**63), 10**12], np.int64)
SHORT = (0, 5, -1, 2**31 - 1, -(2**31))
RELATIONS: dict[str, Callable[[Any, Any], Any]] = {
    "==": lambda x, y: x == y,
    "!=": lambda x, y: x != y,
    "<": lambda x, y: x < y,
    ">": lambda x, y: x > y,
    "<=": lambda x, y: x <= y,
    ">=": lambda x, y: x >= y,
}


@pytest.mark.parametrize("name", RELATIONS)
def test_against_short_integers(name: str) -> None:
    """Numbers, widened int32 and int8 arrays, on either side, and values computed before."""
    relation = RELATIONS[name]
    numbers = [np.int64(number) for number in SHORT]
    table = np.array(SHORT, np.int32)[:, None]

    def every(x: Any, t: Any) -> Any:
        wide, tiny = t.astype(tn.int64), t.astype(tn.int8).astype(tn.int64)
        return (
            [relation(x, n) for n in numbers], [relation(n, x) for n in numbers],
            relation(x, wide), relation(wide, x), relation(tiny, x), relation(wide, tiny),
            relation(x + 1, wide), relation(x[::-1], wide),
        )  # fmt: skip

    found = trnx.jit(every)(VALUES, table)
    with np.errstate(over="ignore"):
        wide, tiny = table.astype(np.int64), table.astype(np.int8).astype(np.int64)
        want = (
            [relation(VALUES, n) for n in numbers], [relation(n, VALUES) for n in numbers],
            relation(VALUES, wide), relation(wide, VALUES), relation(tiny, VALUES),
            relation(wide, tiny), relation(VALUES + 1, wide), relation(VALUES[::-1], wide),
        )  # fmt: skip
    for got, expected in zip(trnx.core.tree.leaves(found), _flat(want), strict=True):
        np.testing.assert_array_equal(got, expected)


def _flat(x: Any) -> list[Any]:
    return [leaf for part in x for leaf in _flat(part)] if isinstance(x, list | tuple) else [x]


def test_losses_over_int64_labels_have_nki_source() -> None:
    """The loss of every torch training loop needs no 64-bit instruction."""
    logits, labels = np.ones((4, 10), np.float32), np.arange(4)
    loss = trnx.jit(trnx.value_and_grad(nn.cross_entropy))
    source = loss.lower(logits, labels).as_text("nki")
    assert "nl.int64" not in source
