"""cond and switch as users call them: predicates, results, error texts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import trnx
from trnx import lax
from trnx import numpy as tnp
from trnx.core import config

X = np.arange(3, dtype=np.float32)


@pytest.mark.parametrize(
    ("pred", "holds"),
    [
        (True, True), (False, False), (np.bool_(True), True), (2, True), (0, False), (0.5, True),
        (np.int8(0), False), (tnp.asarray(False), False), (tnp.asarray(3.0), True),
        (float("nan"), True),
    ],
)  # fmt: skip
def test_cond_takes_one_branch(pred: Any, holds: bool) -> None:
    def run(p: Any) -> Any:
        return lax.cond(p, lambda x, y: {"r": x * y}, lambda x, y: {"r": x - y}, tnp.asarray(X), 2)

    want = X * 2 if holds else X - 2
    np.testing.assert_array_equal(np.asarray(run(pred)["r"]), want)
    with config.disable_jit(True):
        np.testing.assert_array_equal(np.asarray(run(pred)["r"]), want)


@pytest.mark.parametrize("dtype", ["int32", "int8", "uint8", "int64", "uint32"])
def test_switch_clamps_its_index(dtype: str) -> None:
    branches = [lambda x: x, lambda x: x * 2, lambda x: x * 3]
    low, high = np.iinfo(dtype).min, np.iinfo(dtype).max
    for index, want in [(0, 1), (1, 2), (2, 3), (5, 3), (high, 3), (low, 1)]:
        value = np.asarray(index, dtype)[()]
        assert float(lax.switch(value, branches, 1.0)) == want
        assert float(trnx.vmap(lambda i: lax.switch(i, branches, 1.0))(value[None])[0]) == want
    assert float(lax.switch(7, branches, 1.0)) == 3
    assert float(lax.switch(7, branches[:1], 1.0)) == 1


def test_results_of_branches_get_one_type() -> None:
    both = lax.cond(
        True, lambda x: (x, 1, 2.0), lambda x: (0.0, tnp.ones((), "i32"), 3), tnp.ones((), "bf16")
    )
    assert [r.dtype.name for r in both] == ["bfloat16", "int32", "float32"]
    assert [r.aval.weak for r in both] == [False, False, True]


def test_captured_values_are_operands_once() -> None:
    shared, own = tnp.ones(3), tnp.arange(3.0)

    def f(x: Any) -> Any:
        y = x * 2.0
        return lax.cond(x[0] > 0, lambda: y + shared + own, lambda: y - shared)

    (equation,) = [e for e in trnx.make_ir(f)(X).equations if e.primitive.name == "cond"]
    assert len(equation.inputs) == 4  # index, y, shared, own
    one, two = equation.params["branches"]
    assert len(one.inputs) == len(two.inputs) == 3


ERRORS: list[tuple[Callable[[], Any], type[Exception], list[str]]] = [
    (
        lambda: lax.cond(True, lambda x: {"a": x}, lambda x: {"a": x[:2]}, X),
        ValueError,
        [
            "cond branches return different types: output['a'] is f32[3] in <lambda>, and f32[2]",
            "in <lambda>, made at test_branches.py:",
            "Return the same shape from every branch",
        ],
    ),
    (
        lambda: lax.cond(True, lambda x: x > 0, lambda x: x.astype("i32"), X),
        TypeError,
        ["output is bool[3] in <lambda>", "i32[3] in <lambda>", "Cast one of them with astype"],
    ),
    (
        lambda: lax.cond(True, lambda x: {"a": x}, lambda x: {"b": x}, X),
        TypeError,
        ["output is a dict with keys ['a'] in <lambda> and a dict with keys ['b'] in <lambda>"],
    ),
    (
        lambda: lax.switch(0, [lambda x: [x, x], lambda x: [x, (x,)]], X),
        TypeError,
        ["switch branches return different structures: output[1] is f32[3]", "a tuple of 1"],
    ),
    (
        lambda: lax.cond(X > 0, lambda x: x, lambda x: x, X),
        TypeError,
        ["needs one bool and got bool[3]", "trnx.numpy.where"],
    ),
    (lambda: lax.cond("a", lambda x: x, lambda x: x, X), TypeError, ["got a value of type str"]),
    (lambda: lax.switch(1.0, [lambda: 1, lambda: 2]), TypeError, ["an integer without axes"]),
    (lambda: lax.switch(1, []), ValueError, ["switch has no branches"]),
    (
        lambda: lax.cond(True, lambda x: "a", lambda x: "b", X),
        TypeError,
        ["The value output has type builtins.str"],
    ),
    (lambda: lax.cond(True, lambda x: x, lambda x: x, "text"), TypeError, ["The argument x has"]),
]


@pytest.mark.parametrize(("use", "kind", "texts"), ERRORS, ids=range(len(ERRORS)))
def test_error_texts(use: Callable[[], Any], kind: type[Exception], texts: list[str]) -> None:
    with pytest.raises(kind) as error:
        use()
    for part in texts:
        assert part in str(error.value)
    assert "(at test_branches.py:" in str(error.value)
