"""Symbolic sizes against integer arithmetic."""

from __future__ import annotations

import operator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trnx.core import DimError, bounds, dim, evaluate, structurally_equal, substitute
from trnx.core.avals import Aval, broadcast_shapes
from trnx.core.dims import Size, names, same_shape
from trnx.core.dtypes import float32
from trnx.core.errors import ShapeError
from trnx.core.parsing import parse_program

N = dim("n", min=1, max=6)
M = dim("m", min=2, max=5)
OPERATORS = [operator.add, operator.sub, operator.mul, operator.floordiv, operator.mod]


@st.composite
def expressions(draw: st.DrawFn, depth: int = 3) -> tuple[Size, object]:
    """An expression and the same as a Python function of n and m."""
    if depth == 0 or draw(st.booleans()):
        choice = draw(st.sampled_from(["n", "m", "int"]))
        if choice == "n":
            return N, lambda n, m: n
        if choice == "m":
            return M, lambda n, m: m
        value = draw(st.integers(-4, 4))
        return value, lambda n, m: value
    op = draw(st.sampled_from(OPERATORS))
    left, f = draw(expressions(depth=depth - 1))
    right, g = draw(expressions(depth=depth - 1))
    try:
        return op(left, right), lambda n, m: op(f(n, m), g(n, m))
    except (DimError, ZeroDivisionError):  # the divisor may be zero
        return left, f


@given(expressions(), st.integers(1, 6), st.integers(2, 5))
def test_expressions_have_the_value_of_integers(pair: tuple, n: int, m: int) -> None:
    size, function = pair
    value = function(n, m)
    assert evaluate(size, {"n": n, "m": m}) == value
    low, high = bounds(size)
    assert low is not None
    assert high is not None
    assert low <= value <= high
    half = substitute(size, {"n": n})
    assert evaluate(half, {"m": m}) == value


@given(expressions(), expressions())
def test_decided_comparisons_hold_for_every_value(a: tuple, b: tuple) -> None:
    (x, f), (y, g) = a, b
    for compare in (operator.eq, operator.lt, operator.le, operator.gt, operator.ge):
        try:
            answer = compare(x, y)
        except DimError:
            continue
        for n in range(1, 7):
            for m in range(2, 6):
                assert compare(f(n, m), g(n, m)) == answer


@given(expressions())
def test_text_reads_back(pair: tuple) -> None:
    size, _ = pair
    if isinstance(size, int):
        return
    aval = Aval((size,), float32)
    text = f"dims m: 2..5, n: 1..6\nprogram p(a: {aval}) {{ return a }}"
    assert parse_program(text).inputs[0].aval == aval


def test_canonical_form_and_text() -> None:
    assert str(2 * N + 1) == "2*n+1"
    assert structurally_equal((N + 1) * (N - 1), N * N - 1)
    assert str(N * M - 3 * N) == "m*n-3*n"
    assert hash(N + M) == hash(M + N)
    assert (4 * N + 2) // 2 == 2 * N + 1
    assert (N * M) // M == N
    assert (4 * N) % 2 == 0
    assert str((N + 3) // 4) == "((n+3)//4)"
    assert bounds((N + 3) // 4) == (1, 2)
    assert bounds(dim("k") * 2) == (2, None)
    assert bounds(5) == (5, 5)
    assert N - N == 0
    assert type(N - N) is int
    assert names(N * M + N) == ("m", "n")
    assert N % 7 == N  # n is at most 6
    assert divmod(N, 7)[0] == 0


def test_bounds_decide() -> None:
    assert N + M > N
    assert N >= 1
    assert not N > 6
    assert N != 7
    assert N != 0
    assert bool(N)


@pytest.mark.parametrize(
    "question", [lambda: N == 3, lambda: N < M, lambda: N >= 2, lambda: bool(dim("z", min=0))]
)
def test_undecided_names_size_line_and_remedy(question: object) -> None:
    with pytest.raises(DimError) as error:
        question()
    text = str(error.value)
    assert "do not decide" in text
    assert "test_dims.py:" in text
    assert "Narrow the bounds" in text


def test_misuse() -> None:
    with pytest.raises(DimError, match="symbolic and has no value"):
        range(N)
    with pytest.raises(DimError, match=r"n = 7 is outside n: 1\.\.6"):
        evaluate(N, {"n": 7})
    with pytest.raises(DimError, match="needs a value for m"):
        evaluate(N + M, {"n": 1})
    with pytest.raises(DimError, match="may be zero"):
        _ = 5 // (N - 1)
    with pytest.raises(DimError, match="divided by zero"):
        _ = N // 0
    with pytest.raises(DimError, match=r"empty range 4\.\.2"):
        dim("x", min=4, max=2)
    with pytest.raises(DimError, match="not a size name"):
        dim("two words")


def test_broadcasting() -> None:
    assert broadcast_shapes((N, 1), (M,)) == (N, M)
    assert broadcast_shapes((3, 1), (4,)) == (3, 4)
    assert same_shape(broadcast_shapes((N,), (N,), ()), (N,))
    with pytest.raises(ShapeError, match=r"\(2,3\) and \(4\) do not broadcast: axis -1 has sizes"):
        broadcast_shapes((2, 3), (4,))
    with pytest.raises(ShapeError, match="do not broadcast"):
        broadcast_shapes((N,), (9,))
    with pytest.raises(DimError, match="do not decide"):
        broadcast_shapes((N,), (3,))
