"""custom_jvp and custom_vjp as users call them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import trnx
from trnx import lax
from trnx import numpy as tnp
from trnx.core import TraceError, check, equal, parse_program

X = np.array([0.5, -1.0, 2.0], np.float32)
BATCH = np.stack([X, X * 2, X - 1])


def close(a: Any, b: Any) -> None:
    np.testing.assert_allclose(np.asarray(a), np.asarray(b), rtol=1e-5, atol=1e-6)


def scaled(factor: float = 10.0) -> Any:
    """x * y with a derivative that is `factor` times too large, to tell the rule from the truth."""

    @trnx.custom_jvp
    def f(x: Any, y: Any) -> Any:
        return x * y

    @f.defjvp
    def f_jvp(primals: Any, tangents: Any) -> Any:
        (x, y), (t, u) = primals, tangents
        return f(x, y), factor * (t * y + x * u)

    return f


def reverse_scaled(factor: float = 10.0) -> Any:
    """The same with a reverse rule."""

    @trnx.custom_vjp
    def f(x: Any, y: Any) -> Any:
        return x * y

    def fwd(x: Any, y: Any) -> Any:
        return x * y, {"x": x, "y": y}

    def bwd(residuals: Any, ct: Any) -> Any:
        x, y = residuals["x"], residuals["y"]
        by_x, by_y = factor * ct * y, factor * ct * x
        return by_x if x.ndim else by_x.sum(), by_y if y.ndim else by_y.sum()

    f.defvjp(fwd, bwd)
    return f


MAKERS = pytest.mark.parametrize("make", [scaled, reverse_scaled])


@MAKERS
def test_rule_is_used_under_every_order_of_transforms(make: Callable[..., Any]) -> None:
    f = make()
    y = tnp.asarray(3.0)

    def loss(x: Any, y: Any) -> Any:
        return f(x, y).sum()

    close(f(X, y), X * 3)
    for gradient in (
        trnx.grad(loss, (0, 1)),
        trnx.jit(trnx.grad(loss, (0, 1))),
        trnx.grad(trnx.jit(loss), (0, 1)),
        trnx.grad(trnx.checkpoint(loss), (0, 1)),
    ):
        by_x, by_y = gradient(tnp.asarray(X), y)
        close(by_x, np.full(3, 30.0))
        close(by_y, 10 * X.sum())
    rows = trnx.vmap(trnx.grad(loss, (0, 1)), (0, None))(tnp.asarray(BATCH), y)
    close(rows[0], np.full((3, 3), 30.0))
    close(rows[1], 10 * BATCH.sum(1))
    total = trnx.grad(lambda x, y: trnx.vmap(loss, (1, None))(x, y).sum(), (0, 1))
    by_x, by_y = total(tnp.asarray(BATCH.T), y)
    close(by_x, np.full((3, 3), 30.0))
    close(by_y, 10 * BATCH.sum())
    other = trnx.grad(lambda x, y: trnx.vmap(f, (None, 0))(x, y).sum(), (0, 1))
    by_x, by_y = other(tnp.asarray(2.0), tnp.asarray(X))
    close(by_x, 10 * X.sum())
    close(by_y, np.full(3, 20.0))


@MAKERS
def test_rule_in_loops_and_branches(make: Callable[..., Any]) -> None:
    f = make(1.0)

    def loss(x: Any, use: Callable[..., Any]) -> Any:
        h, ys = lax.scan(lambda c, r: (use(c, x) + r, use(c, c)), x, tnp.asarray(BATCH))
        return lax.cond(h[0] > 0, lambda v: use(v, x).sum(), lambda v: v.sum(), h) + ys.sum()

    x = tnp.asarray(X)
    close(trnx.grad(lambda v: loss(v, f))(x), trnx.grad(lambda v: loss(v, lambda a, b: a * b))(x))
    rows = trnx.vmap(trnx.grad(lambda v: loss(v, f)))(tnp.asarray(BATCH))
    plain = trnx.vmap(trnx.grad(lambda v: loss(v, lambda a, b: a * b)))(tnp.asarray(BATCH))
    close(rows, plain)


@MAKERS
def test_second_derivatives_go_through_the_rule(make: Callable[..., Any]) -> None:
    f = make()
    second = trnx.grad(lambda x: trnx.grad(lambda v: f(v, v).sum())(x).sum())
    close(second(tnp.asarray(X)), np.full(3, 20.0))


def test_defjvps_sums_shares() -> None:
    @trnx.custom_jvp
    def f(x: Any, y: Any, n: Any) -> Any:
        return {"p": x * y, "q": x + n}

    f.defjvps(
        lambda t, out, x, y, n: {"p": 7.0 * t * y, "q": t},
        lambda t, out, x, y, n: {"p": out["p"] * t, "q": t * 0.0},
        None,
    )
    x, y = tnp.asarray(2.0), tnp.asarray(3.0)
    out, tangent = trnx.jvp(lambda a, b: f(a, b, 1), (x, y), (x, y))
    close(out["p"], 6)
    close(tangent["p"], 7 * 2 * 3 + 6 * 3)
    close(tangent["q"], 2)


def test_trees_keywords_defaults_and_static_arguments() -> None:
    @trnx.custom_vjp
    def f(p: Any, scale: Any = 2.0, *, unused: Any = None) -> Any:
        return p

    f.defvjp(lambda p, s: (p, ()), lambda r, ct: (ct, None))
    with pytest.raises(TraceError, match="keyword-only arguments unused"):
        trnx.grad(lambda x: f({"w": x})["w"])(1.0)

    def power(n: int, p: Any, scale: Any = 2.0) -> Any:
        return [p["w"] ** n * scale, p["n"]]

    g = trnx.custom_vjp(power, nondiff_argnums=0)

    def fwd(n: int, p: Any, scale: Any) -> Any:
        assert n == 3
        return power(n, p, scale), (p, scale)

    def bwd(n: int, residuals: Any, cts: Any) -> Any:
        p, scale = residuals
        assert cts[1].dtype == np.float32  # of an integer output: f32 zeros
        return {"w": 5.0 * n * p["w"] ** (n - 1) * scale * cts[0], "n": None}, None

    g.defvjp(fwd, bwd)
    params = {"w": tnp.asarray(2.0), "n": tnp.asarray(4)}

    def loss(w: Any, s: Any) -> Any:
        return g(3, {"w": w, "n": params["n"]}, scale=s)[0]

    by_w, by_s = trnx.grad(loss, (0, 1))(params["w"], tnp.asarray(2.0))
    close(by_w, 5 * 3 * 4 * 2)
    close(by_s, 0)
    close(trnx.grad(lambda w: g(3, {"w": w, "n": 1})[0])(2.0), 5 * 3 * 4 * 2)


def test_methods_can_have_rules() -> None:
    class Model:
        def __init__(self) -> None:
            self.scale = 4.0

        @trnx.custom_jvp
        def apply(self, x: Any) -> Any:
            return x * 2.0

    Model.apply.nondiff_argnums = (0,)
    Model.apply.defjvp(lambda self, p, t: (p[0] * 2.0, t[0] * self.scale))
    close(trnx.grad(Model().apply)(1.0), 4)


def test_integer_arguments_get_zero_tangents() -> None:
    seen: list[Any] = []

    @trnx.custom_jvp
    def f(x: Any, n: Any) -> Any:
        return x * n

    @f.defjvp
    def f_jvp(primals: Any, tangents: Any) -> Any:
        seen.append((tangents[1].dtype, float(tangents[1])))
        return f(*primals), tangents[0] * primals[1]

    close(trnx.grad(lambda x: f(x, tnp.asarray(3)))(2.0), 3)
    assert seen == [(np.dtype(np.float32), 0.0)]


def test_numbers_reach_rules_as_arrays() -> None:
    @trnx.custom_jvp
    def f(x: Any, y: Any) -> Any:
        return x * y

    @f.defjvp
    def f_jvp(primals: Any, tangents: Any) -> Any:
        assert all(value.ndim == 0 for value in (*primals, *tangents))
        return f(*primals), tangents[0] * primals[1].astype("f32")

    for gradient in (trnx.grad(lambda x: f(x, 2)), trnx.jit(trnx.grad(lambda x: f(x, 2)))):
        close(gradient(3.0), 2)


def test_plain_calls_are_the_function() -> None:
    f = trnx.custom_jvp(lambda x: x * 2.0 if float(x) > 0 else x)
    f.defjvp(lambda p, t: (p[0], t[0]))
    close(f(tnp.asarray(2.0)), 4)


def test_text_keeps_the_name_of_the_rule() -> None:
    f = scaled()
    program = trnx.make_ir(lambda x: f(x, x))(X)
    check(program)
    assert "rule=<'f_jvp'>" in str(program)
    again = parse_program(str(program))
    assert equal(again, program)
    assert equal(program, again)
    from trnx.core import eval_program

    close(eval_program(again, [tnp.asarray(X)])[0], X * X)
    with pytest.raises(TraceError, match="rule f_jvp is not part of the text"):
        trnx.grad(lambda x: eval_program(again, [x])[0].sum())(tnp.asarray(X))


# ---------------------------------------------------------------- errors
def with_jvp(rule: Callable[..., Any]) -> Callable[[], Any]:
    f = trnx.custom_jvp(lambda x: {"y": x * 2.0})
    f.defjvp(rule)
    return lambda: trnx.grad(lambda x: f(x)["y"].sum())(tnp.asarray(X))


def with_vjp(fwd: Callable[..., Any], bwd: Callable[..., Any]) -> Callable[[], Any]:
    @trnx.custom_vjp
    def f(p: Any, y: Any) -> Any:
        return p["w"] * y

    f.defvjp(fwd, bwd)
    return lambda: trnx.grad(lambda w, y: f({"w": w}, y).sum(), (0, 1))(
        tnp.asarray(X), tnp.asarray(2.0)
    )


def forward(p: Any, y: Any) -> Any:
    return p["w"] * y, (p, y)


def captured() -> Any:
    def loss(x: Any) -> Any:
        f = trnx.custom_jvp(lambda y: x * y)
        f.defjvp(lambda p, t: (x * p[0], x * t[0]))
        return f(2.0)

    return trnx.grad(loss)(3.0)


ERRORS: list[tuple[Callable[[], Any], type[Exception], str]] = [
    (lambda: trnx.custom_jvp(lambda x: x)(1.0), TypeError, "has no derivative rule"),
    (lambda: trnx.custom_vjp(lambda x: x)(1.0), TypeError, "Give it one with <lambda>.defvjp"),
    (lambda: trnx.custom_jvp(3), TypeError, "custom_jvp needs a function and got int"),
    (with_jvp(lambda p, t: t[0]), TypeError, "Return (output, output tangent)"),
    (with_jvp(lambda p, t: (p[0], t[0])), TypeError, "returns an output of structure"),
    (
        with_jvp(lambda p, t: ({"y": p[0] * 2.0}, t[0])),
        TypeError,
        "returns a tangent of structure",
    ),
    (
        with_jvp(lambda p, t: ({"y": p[0] * 2.0}, {"y": t[0][:2]})),
        ValueError,
        "returns a tangent for output['y'] of type f32[2], which should be f32[3]",
    ),
    (
        with_jvp(lambda p, t: ({"y": p[0][:2]}, {"y": t[0][:2]})),
        ValueError,
        "gives output 0 as f32[2], and the function gives f32[3]",
    ),
    (captured, TypeError, "captures a value that is differentiated"),
    (
        with_vjp(lambda p, y: p["w"], lambda r, ct: (None, None)),
        TypeError,
        "Return (output, residuals)",
    ),
    (
        with_vjp(forward, lambda r, ct: (None,)),
        TypeError,
        "returns 1 values for 2 arguments",
    ),
    (with_vjp(forward, lambda r, ct: None), TypeError, "returns no tuple for 2 arguments"),
    (
        with_vjp(forward, lambda r, ct: ([ct], None)),
        TypeError,
        "in another structure than its argument (p['w'])",
    ),
    (
        with_vjp(forward, lambda r, ct: ({"w": ct[:1]}, None)),
        ValueError,
        "returns a cotangent for p['w'] of type f32[1], which should be f32[3]",
    ),
    (
        lambda: trnx.jvp(lambda x: reverse_scaled()(x, x), (X,), (X,)),
        NotImplementedError,
        "Use reverse mode (grad, vjp), or give a forward rule with custom_jvp",
    ),
    (
        lambda: trnx.linearize(lambda x: reverse_scaled()(x, x), X)[1](X),
        NotImplementedError,
        "a custom_vjp function gives only its reverse derivative",
    ),
    (
        lambda: trnx.vmap(lambda x: trnx.grad(static_traced(x))(1.0))(X),
        TypeError,
        "is in nondiff_argnums and holds a traced value f32[]",
    ),
]


def static_traced(n: Any) -> Callable[[Any], Any]:
    f = trnx.custom_jvp(lambda n, x: x * n, nondiff_argnums=0)
    f.defjvp(lambda n, p, t: (p[0] * n, t[0] * n))
    return lambda x: f(n, x)


@pytest.mark.parametrize(("use", "kind", "text"), ERRORS, ids=range(len(ERRORS)))
def test_error_texts(use: Callable[[], Any], kind: type[Exception], text: str) -> None:
    with pytest.raises(kind) as error:
        use()
    assert text in str(error.value)
    assert "test_custom.py:" in str(error.value)
