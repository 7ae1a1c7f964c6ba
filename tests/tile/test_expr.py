"""Index expressions: canonical sums, exact values, sound ranges."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from trnx.compiler.tile import expr
from trnx.compiler.tile.expr import (
    Index,
    add,
    bounds,
    ceildiv,
    evaluate,
    floordiv,
    maximum,
    minimum,
    mod,
    mul,
    quotient,
    scale,
    substitute,
    symbol,
    symbols,
)

NAMES = ("i", "j", "n")
RANGES = {"i": (0, 9), "j": (-3, 4), "n": (1, 40)}


@st.composite
def values(draw: st.DrawFn) -> dict[str, int]:
    """A value in its range for each symbol."""
    return {name: draw(st.integers(*RANGES[name])) for name in NAMES}


def combine(pair: tuple[str, tuple[Index, Index]]) -> Index:
    """One operation; divisors are made positive."""
    name, (a, b) = pair
    if name in ("floordiv", "mod", "ceildiv"):
        divisor = b if isinstance(b, int) and b > 0 else 5
        return {"floordiv": floordiv, "mod": mod, "ceildiv": ceildiv}[name](a, divisor)
    operations: dict[str, Any] = {"add": add, "mul": mul, "min": minimum, "max": maximum}
    return operations[name](a, b)  # type: ignore[no-any-return]


OPERATIONS = ("add", "add", "mul", "min", "max", "floordiv", "mod", "ceildiv")
expressions: st.SearchStrategy[Index] = st.recursive(
    st.one_of(st.integers(-20, 20), st.sampled_from(NAMES).map(symbol)),
    lambda inner: st.tuples(st.sampled_from(OPERATIONS), st.tuples(inner, inner)).map(combine),
    max_leaves=6,
)


@given(expressions, expressions, values())
def test_arithmetic_is_exact(a: Index, b: Index, env: dict[str, int]) -> None:
    """Every operation evaluates to what Python computes."""
    x, y = evaluate(a, env), evaluate(b, env)
    assert evaluate(add(a, b), env) == x + y
    assert evaluate(add(a, scale(b, -3)), env) == x - 3 * y
    assert evaluate(mul(a, b), env) == x * y
    assert evaluate(minimum(a, b), env) == min(x, y)
    assert evaluate(maximum(a, b), env) == max(x, y)
    assert evaluate(floordiv(a, 7), env) == x // 7
    assert evaluate(ceildiv(a, 7), env) == -(-x // 7)
    assert evaluate(mod(a, 7), env) == x % 7


@given(expressions, expressions)
def test_sums_are_canonical(a: Index, b: Index) -> None:
    """Equal sums are equal objects with one hash and one text."""
    left, right = add(add(a, b), 5), add(5, add(b, a))
    assert left == right and hash(left) == hash(right) and str(left) == str(right)
    assert add(add(a, b), scale(b, -1)) == a


@given(expressions, values())
def test_bounds_hold(value: Index, env: dict[str, int]) -> None:
    """The value is never outside the range, and folding by substitution agrees."""
    low, high = bounds(value, RANGES)
    exact = evaluate(value, env)
    assert low is None or low <= exact
    assert high is None or exact <= high
    assert substitute(value, dict(env)) == exact
    assert symbols(value) <= set(NAMES)


@given(expressions, st.integers(1, 6))
def test_quotient_is_exact_division(value: Index, divisor: int) -> None:
    """A quotient exists for multiples and gives the factor back."""
    assert quotient(scale(value, divisor), divisor) == value
    found = quotient(value, divisor)
    assert found is None or scale(found, divisor) == value


def test_tail_ends_are_found() -> None:
    """The end of a tail is at most the size, also with a symbolic size."""
    i, n = symbol("i"), symbol("n")
    end = add(scale(i, 128), minimum(128, 1000 - i * 128))
    assert bounds(end, {"i": (0, 7)}) == (128, 1000)
    symbolic = add(add(scale(i, 128), minimum(128, n - i * 128)), scale(n, -1))
    assert bounds(symbolic, {"i": (0, None), "n": (0, None)})[1] == 0


def test_symbolic_quotients() -> None:
    """Strides that are registers divide the products they appear in."""
    i, s = symbol("i"), symbol("s")
    assert quotient(mul(s, i) * 128, s) == i * 128
    assert quotient(s, s) == 1 and quotient(0, s) == 0
    assert quotient(s + 1, s) is None and quotient(i, s) is None and quotient(4, 0) is None


def test_texts() -> None:
    """How expressions print."""
    i, j = symbol("i"), symbol("j")
    assert str(i * 128 - j + 3) == "128*i - j + 3"
    assert str(minimum(128, 1000 - i * 128)) == "min(128, 1000 - 128*i)"
    assert str((i + 1) // 3) == "((i + 1) // 3)"
    assert repr(i % 4) == "Expr((i % 4))"
    assert expr.Symbol("i") in {expr.Symbol("i")}
