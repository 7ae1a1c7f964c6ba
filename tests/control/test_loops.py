"""scan, map, while_loop and fori_loop as users call them: trees, types, lengths, error texts."""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import pytest

import trnx
from trnx import lax
from trnx import numpy as tnp
from trnx.core import config, dim, make_aval, trace_program

Point = namedtuple("Point", "x y")
XS = np.arange(12, dtype=np.float32).reshape(4, 3)


def primitive_names(function: Callable[..., Any], *args: Any) -> list[str]:
    return [e.primitive.name for e in trnx.make_ir(function)(*args).equations]


# ---------------------------------------------------------------- meaning
@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("unroll", [1, 3, True])
def test_scan_is_its_python_loop(reverse: bool, unroll: Any) -> None:
    def step(carry: Any, x: Any) -> Any:
        carry = {"sum": carry["sum"] + x["a"] * x["b"], "n": (carry["n"][0] + 1,)}
        return carry, [carry["sum"] * 2.0, None, Point(x["b"], carry["n"][0])]

    init = {"sum": tnp.zeros(3), "n": (0,)}
    xs = {"a": tnp.asarray(XS), "b": tnp.asarray(XS[:, 0])}
    last, ys = lax.scan(step, init, xs, reverse=reverse, unroll=unroll)
    with config.disable_jit(True):
        want, want_ys = lax.scan(step, init, xs, reverse=reverse)
    order = range(3, -1, -1) if reverse else range(4)
    carry = init
    for i in order:
        carry, _ = step(carry, {"a": tnp.asarray(XS[i]), "b": tnp.asarray(XS[i, 0])})
    for found in (last, want):
        np.testing.assert_array_equal(np.asarray(found["sum"]), np.asarray(carry["sum"]))
        assert int(found["n"][0]) == 4
    assert ys[1] is None
    assert type(ys[2]) is Point
    for got, expected in zip(ys[::2], want_ys[::2], strict=True):
        for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(expected), strict=True):
            np.testing.assert_array_equal(np.asarray(a), np.asarray(b))


def test_scan_without_steps_and_without_outputs() -> None:
    carry, ys = lax.scan(lambda c, x: (c + x, (c, x)), 1.5, tnp.zeros((0,)))
    assert float(carry) == 1.5
    assert [y.shape for y in ys] == [(0,), (0,)]
    carry, ys = lax.scan(lambda c, x: (c * 2.0, None), tnp.ones(2), None, length=3)
    assert ys is None
    np.testing.assert_array_equal(np.asarray(carry), [8, 8])
    nothing, ys = lax.scan(lambda c, x: (None, x * 2), None, tnp.arange(3))
    assert nothing is None
    np.testing.assert_array_equal(np.asarray(ys), [0, 2, 4])


def test_map_is_a_loop() -> None:
    found = lax.map(lambda p: {"s": p.x @ p.x, "y": p.y}, Point(tnp.asarray(XS), tnp.arange(4)))
    np.testing.assert_array_equal(np.asarray(found["s"]), (XS * XS).sum(1))
    np.testing.assert_array_equal(np.asarray(found["y"]), np.arange(4))


@pytest.mark.parametrize(("lower", "upper"), [(0, 5), (2, 2), (3, 1), (-2, 3), (np.int32(1), 4)])
@pytest.mark.parametrize("dynamic", [False, True])
def test_fori_loop_is_its_python_loop(lower: int, upper: int, dynamic: bool) -> None:
    value = 1.0
    for i in range(lower, upper):
        value = value * 0.5 + i
    bounds = (tnp.asarray(lower), upper) if dynamic else (lower, upper)
    assert float(lax.fori_loop(*bounds, lambda i, v: v * 0.5 + i, 1.0)) == value


def test_fori_loop_with_known_bounds_is_a_scan() -> None:
    x = tnp.ones(3)
    assert "scan" in primitive_names(lambda v: lax.fori_loop(0, 4, lambda i, w: w * i, v), x)
    names = primitive_names(lambda v, n: lax.fori_loop(0, n, lambda i, w: w * i, v), x, 4)
    assert "while_loop" in names
    n = dim("n", min=0, max=64)
    program = trace_program(
        lambda v: [lax.fori_loop(0, v.shape[0], lambda i, s: s + v[i], 0.0)],
        [make_aval((n,), "f32")],
    )
    (loop,) = [e for e in program.equations if e.primitive.name == "scan"]
    assert str(loop.params["length"]) == "n"
    n_less = dim("m", min=0, max=64)
    program = trace_program(
        lambda v: [lax.fori_loop(2, v.shape[0], lambda i, s: s + v[i], 0.0)],
        [make_aval((n_less,), "f32")],
    )
    assert "while_loop" in [e.primitive.name for e in program.equations]


def test_index_type_follows_the_bounds() -> None:
    kinds: list[Any] = []

    def body(i: Any, v: Any) -> Any:
        kinds.append(i.dtype)
        return v

    lax.fori_loop(0, 2, body, 0.0)
    lax.fori_loop(np.int64(0), 2, body, 0.0)
    lax.fori_loop(0, tnp.asarray(2, "u8"), body, 0.0)
    assert [np.dtype(k).name for k in dict.fromkeys(kinds)] == ["int32", "int64", "uint8"]


# ---------------------------------------------------------------- types
TYPES = [
    (0, lambda c: c + np.float32(1), "float32", False),
    (0.0, lambda c: c + 1, "float32", True),
    (0, lambda c: c * 2, "int32", True),
    (0, lambda c: c * 0.5, "float32", True),
    (1.0, lambda c: c * tnp.ones((), "bf16"), "bfloat16", False),
    (tnp.ones((), "bf16"), lambda c: 0.0, "bfloat16", False),
    (tnp.ones((), "f16"), lambda c: c * 2.0, "float16", False),
    (tnp.ones((), "f16"), lambda c: 3, "float16", False),
    (True, lambda c: ~c, "bool", False),
]


@pytest.mark.parametrize(("init", "step", "dtype", "weak"), TYPES, ids=range(len(TYPES)))
def test_numbers_give_way_to_the_type_of_the_body(
    init: Any, step: Any, dtype: str, weak: bool
) -> None:
    for result in (
        lax.scan(lambda c, x: (step(c), None), init, None, length=2)[0],
        lax.while_loop(lambda c: c != c, step, init),
        lax.fori_loop(0, 2, lambda i, c: step(c), init),
    ):
        assert result.dtype.name == dtype
        assert result.aval.weak == weak


# ---------------------------------------------------------------- errors
def shrink(carry: Any, x: Any) -> Any:
    return {**carry, "h": carry["h"][:2]}, x


def narrow(carry: Any, x: Any) -> Any:
    return {"h": carry["h"].astype("f16"), "n": carry["n"]}, x


def lose(carry: Any, x: Any) -> Any:
    return {"h": carry["h"]}, x


def forget(carry: Any, x: Any) -> Any:
    return carry


CARRY = {"h": tnp.zeros(3), "n": 0}
ERRORS: list[tuple[Callable[[], Any], type[Exception], list[str]]] = [
    (
        lambda: lax.scan(shrink, CARRY, XS),
        ValueError,
        [
            "scan of shrink takes carry['h'] as f32[3] and returns it as f32[2], made at test_",
            "Return it with the shape it comes in with",
        ],
    ),
    (
        lambda: lax.scan(narrow, CARRY, XS),
        TypeError,
        ["takes carry['h'] as f32[3] and returns it as f16[3]", "Return it with astype('f32')"],
    ),
    (
        lambda: lax.scan(lose, CARRY, XS),
        TypeError,
        [
            "takes carry as a dict with keys ['h', 'n'] and returns it as a dict with keys ['h']",
            "Return carry in the containers it comes in",
        ],
    ),
    (
        lambda: lax.scan(lambda c, x: ((c[0], [c[1]]), x), (1.0, (2.0,)), XS),
        TypeError,
        ["takes c[1] as a tuple of 1 and returns it as a list of 1"],
    ),
    (
        lambda: lax.scan(lambda c, x: (Point(c.x, None), x), Point(1.0, 2.0), XS),
        TypeError,
        ["takes c.y as f32[]~ and returns it as None"],
    ),
    (
        lambda: lax.scan(forget, CARRY, XS),
        TypeError,
        [
            "needs a body that returns a pair (carry, y), and it returns a dict",
            "Return (carry, None)",
        ],
    ),
    (
        lambda: lax.scan(lambda c, x: (c, x), 0.0, {"a": XS, "b": XS[:3]}),
        ValueError,
        ["xs['a'] is f32[4,3] and xs['b'] is f32[3,3]", "Make the leading axes equal"],
    ),
    (
        lambda: lax.scan(lambda c, x: (c, x), 0.0, XS, length=5),
        ValueError,
        ["length is 5 and xs is f32[4,3]"],
    ),
    (
        lambda: lax.scan(lambda c, x: (c, x), 0.0, [XS, 2.0]),
        ValueError,
        ["runs over the leading axis of xs[1], which is f32[]~"],
    ),
    (lambda: lax.scan(lambda c, x: (c, x), 0.0), ValueError, ["has no xs", "Pass length"]),
    (lambda: lax.scan(lambda c, x: (c, x), 0.0, None, -1), ValueError, ["has length -1"]),
    (lambda: lax.scan(lambda c, x: (c, x), 0.0, XS, unroll=0), ValueError, ["has unroll 0"]),
    (
        lambda: lax.scan(lambda c, x: (c, "text"), 0.0, XS),
        TypeError,
        ["The value y has type builtins.str"],
    ),
    (lambda: lax.scan(lambda c, x: (c, x), "text", XS), TypeError, ["The argument init has type"]),
    (
        lambda: lax.scan(lambda c, x: (c if x > 0 else -c, x), 0.0, XS[:, 0]),
        TypeError,
        ["has no truth value", "it depends on x", "lax.cond"],
    ),
    (
        lambda: lax.while_loop(lambda v: v < 3, lambda v: v + 1, tnp.zeros(2)),
        TypeError,
        ["needs a condition that returns one bool, and it returns bool[2]", "any or all"],
    ),
    (
        lambda: lax.while_loop(lambda v: v, lambda v: v + 1, 3),
        TypeError,
        ["it returns i32[]"],
    ),
    (
        lambda: lax.while_loop(lambda v: v[0] < 3, lambda v: (v[0] + 1, v[1].sum()), (0, XS)),
        ValueError,
        ["takes v[1] as f32[4,3] and returns it as f32[]"],
    ),
    (
        lambda: lax.fori_loop(0, 3, lambda i, v: {"a": v["a"][None]}, {"a": XS}),
        ValueError,
        ["fori_loop of <lambda> takes v['a'] as f32[4,3] and returns it as f32[1,4,3]"],
    ),
    (
        lambda: lax.fori_loop(0, 2.5, lambda i, v: v, 0.0),
        TypeError,
        ["fori_loop has a bound of type f32[]~"],
    ),
    (
        lambda: lax.fori_loop(0, tnp.arange(2), lambda i, v: v, 0.0),
        TypeError,
        ["fori_loop has a bound of type i32[2]"],
    ),
]


@pytest.mark.parametrize(("use", "kind", "texts"), ERRORS, ids=range(len(ERRORS)))
def test_error_texts(use: Callable[[], Any], kind: type[Exception], texts: list[str]) -> None:
    with pytest.raises(kind) as error:
        use()
    text = str(error.value)
    for part in texts:
        assert part in text
    assert "(at test_loops.py:" in text
    assert text.endswith(".")


def test_errors_come_before_anything_runs_under_jit() -> None:
    with pytest.raises(ValueError, match=r"takes carry\['h'\] as f32\[3\]"):
        trnx.jit(lambda xs: lax.scan(shrink, {"h": tnp.zeros(3), "n": 0}, xs))(XS)


@pytest.mark.parametrize("dtype", [np.int32, np.int64, np.uint32])
def test_a_counter_of_any_integer_type_ends_the_loop(dtype: Any) -> None:
    """Words of an int64 counter are read again in each iteration, although its sum is written."""

    @trnx.jit
    def powers(count: Any, x: Any) -> Any:
        return lax.while_loop(
            lambda value: value[0] < 5, lambda value: (value[0] + 1, value[1] * 1.5), (count, x)
        )

    count, x = powers(np.zeros((), dtype), np.ones(4, np.float32))
    assert int(count) == 5
    np.testing.assert_allclose(np.asarray(x), 1.5**5 * np.ones(4))
