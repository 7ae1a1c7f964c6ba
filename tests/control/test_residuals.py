"""What reverse mode keeps of loops and branches, and what checkpoints and policies save."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import trnx
from trnx import lax
from trnx import numpy as tnp
from trnx.core import Equation, Program, aval_of, trace_program
from trnx.ops import functions as op
from trnx.ops import scan as scan_op
from trnx.transforms import backward_pass

X = np.linspace(0.1, 0.9, 3).astype(np.float32)
XS = np.ones((4, 3), np.float32)


def equations(function: Callable[..., Any], *args: Any, name: str) -> list[Equation]:
    program = trnx.make_ir(function)(*args)
    return [e for e in program.equations if e.primitive.name == name]


def kinds(program: Program) -> list[str]:
    return [e.primitive.name for e in program.equations]


def scans(step: Callable[..., Any], length: int = 4) -> tuple[Equation, Equation]:
    """The forward and the backward scan of the gradient of a loop."""

    def loss(x: Any, xs: Any) -> Any:
        c, ys = lax.scan(step(x), x, xs)
        return c.sum() + (0.0 if ys is None else ys.sum())

    forward, backward = equations(trnx.value_and_grad(loss), X, XS[:length], name="scan")
    return forward, backward


def test_only_what_is_needed_is_stacked() -> None:
    """tanh keeps its result, which is the carry; the loop's inputs are not stacked again."""

    def step(_: Any) -> Any:
        return lambda h, x: (tnp.tanh(h + x), None)

    forward, backward = scans(step)
    assert [str(v.aval) for v in forward.outputs] == ["f32[3]", "f32[4,3]"]
    assert backward.params["reverse"] is True
    assert "tanh" not in kinds(backward.params["body"])


def test_a_linear_loop_stacks_nothing() -> None:
    def step(_: Any) -> Any:
        return lambda h, x: (h * 0.5 + x, h)

    forward, _ = scans(step)
    assert [str(v.aval) for v in forward.outputs] == ["f32[3]", "f32[4,3]"]


def test_results_and_inputs_serve_as_residuals() -> None:
    """x is read again from xs, and a result that is stacked anyway is not stacked twice."""

    def step(_: Any) -> Any:
        def body(h: Any, x: Any) -> Any:
            y = tnp.exp(x * h)
            return h + y, y

        return body

    forward, backward = scans(step)
    # Last carry, ys, and the carry of each step: d(x*h) needs h for x's sake only if x is linear.
    assert len(forward.outputs) == 2
    assert len(backward.inputs) == 1 + 1 + 2  # ct of the carry and of ys; residuals y and x


def test_what_is_the_same_in_every_step_is_computed_once() -> None:
    def step(x: Any) -> Any:
        return lambda h, row: (h * tnp.exp(tnp.sin(x)) + row, None)

    forward, backward = scans(step)
    body = forward.params["body"]
    assert "exp" not in kinds(body)
    assert "sin" not in kinds(body)
    assert [str(v.aval) for v in forward.outputs] == ["f32[3]", "f32[4,3]"]  # h, for exp's sake
    assert {"exp", "sin", "cos"}.isdisjoint(kinds(backward.params["body"]))


def test_gradients_of_constants_are_summed_after_the_loop() -> None:
    """One large product for each weight; nothing is accumulated inside the loop."""

    def loss(w: Any, b: Any, s: Any, xs: Any) -> Any:
        h, _ = lax.scan(lambda h, x: (tnp.tanh(w @ h + b + x) * s, None), tnp.asarray(X), xs)
        return h.sum()

    program = trnx.make_ir(trnx.grad(loss, (0, 1, 2)))(W, X, X, XS)
    _, backward = [e for e in program.equations if e.primitive.name == "scan"]
    # The cotangent of h is the carry; s is accumulated, because its share is a product of two
    # values of the loop that nothing else needs stacked.
    assert [str(v.aval) for v in backward.outputs] == ["f32[3]", "f32[3]", "f32[4,3]"]
    names = kinds(program)
    (outside,) = [e for e in program.equations if e.primitive.name == "dot_general"]
    assert outside.params["contract"] == ((0,), (0,))
    assert names.count("reduce_sum") == 1
    assert kinds(backward.params["body"]).count("dot_general") == 1


def test_a_sum_that_would_stack_more_than_it_saves_stays_in_the_loop() -> None:
    """A small weight between large rows: the rows are not stacked for its sake."""

    def loss(w: Any, xs: Any) -> Any:
        def step(h: Any, x: Any) -> Any:
            return tnp.sin(h * 0.5 + (w @ x)[:, None] * tnp.ones(50)), None

        h, _ = lax.scan(step, tnp.zeros((2, 50)), xs)
        return h.sum()

    w = np.ones((2, 3), np.float32)
    program = trnx.make_ir(trnx.grad(loss))(w, XS)
    _, backward = [e for e in program.equations if e.primitive.name == "scan"]
    stacked = [v.aval.shape for v in backward.outputs[backward.params["carries"] :]]
    assert (4, 2, 50) not in stacked


def test_integer_carries_have_no_tangents() -> None:
    def loss(x: Any) -> Any:
        (v, _), _ = lax.scan(lambda c, _: ((c[0] * 2.0, c[1] + 1), None), (x, 0), None, 3)
        return v.sum()

    _, backward = equations(trnx.value_and_grad(loss), X, name="scan")
    assert all(v.aval.dtype == np.float32 for v in backward.outputs)


def test_branches_share_residual_slots() -> None:
    """Two residuals of one type in each branch are two slots, not four."""

    def loss(x: Any) -> Any:
        def one(v: Any) -> Any:
            return tnp.sin(tnp.exp(v)).sum()

        def two(v: Any) -> Any:
            return tnp.tanh(tnp.exp(v) * 2.0).sum()

        return lax.cond(x[0] > 0, one, two, x)

    forward, backward = equations(trnx.value_and_grad(loss), X, name="cond")
    assert [str(v.aval) for v in forward.outputs] == ["f32[]", "f32[3]", "f32[3]"]
    assert [str(v.aval) for v in backward.outputs] == ["f32[3]"]


def test_transpose_of_a_loop_with_a_counter() -> None:
    """A linear loop whose factors come from a carry that is not linear."""

    def step(w: Any, n: Any, t: Any, x: Any) -> list[Any]:
        return [op.add(n, 1.0), op.add(op.mul(t, n), op.mul(x, w)), op.mul(t, 2.0)]

    scalar, row = aval_of(np.float64(0)), aval_of(np.zeros(3))
    body = trace_program(step, [scalar, scalar, row, row], "step")

    def linear(t: Any, xs: Any) -> list[Any]:
        return scan_op.bind((), [np.float64(0.5)], [np.float64(2.0), t], [xs], body=body, length=4)

    xs = np.cos(np.arange(12.0)).reshape(4, 3)
    program = trace_program(lambda t, x: linear(t, x)[1:], [row, aval_of(xs)], "linear")
    t = np.array([1.0, 2.0, 3.0])
    outs = linear(t, xs)[1:]
    cts = [np.sin(np.arange(np.size(o))).reshape(np.shape(o)) for o in outs]
    grads = backward_pass(program, (True, True), [None, None], cts)
    left = sum(np.sum(np.asarray(o) * ct) for o, ct in zip(outs, cts, strict=True))
    right = sum(np.sum(np.asarray(g) * x) for g, x in zip(grads, (t, xs), strict=True))
    np.testing.assert_allclose(left, right, rtol=1e-12)


# ---------------------------------------------------------------- checkpoint
def layer(w: Any, x: Any) -> Any:
    return tnp.sin(tnp.tanh(w @ x) * 2.0)


W = np.eye(3, dtype=np.float32) * 0.7


def gradient_program(policy: Any = None, **options: Any) -> Program:
    wrapped = trnx.checkpoint(layer, policy=policy, **options)
    return trnx.make_ir(trnx.value_and_grad(lambda w, x: wrapped(w, x).sum()))(W, X)


def test_checkpoint_keeps_operands_only() -> None:
    program = gradient_program()
    forward, backward = [e for e in program.equations if e.primitive.name == "checkpoint"]
    assert len(forward.outputs) == 1
    assert forward.params["recompute"] is False
    assert backward.params["recompute"] is True
    inside = kinds(backward.params["program"])
    assert inside.count("dot_general") == 2  # the product again, and its transpose
    assert "tanh" in inside
    assert "sin" not in inside  # the last result is not needed again


@pytest.mark.parametrize(
    ("policy", "saved", "again"),
    [
        ("nothing_saveable", [], {"tanh", "dot_general"}),
        ("dots_saveable", ["f32[3]"], {"tanh"}),
        ("dots_with_no_batch_dims_saveable", ["f32[3]"], {"tanh"}),
        ("everything_saveable", None, set()),
    ],
)
def test_policies(policy: str, saved: list[str] | None, again: set[str]) -> None:
    program = gradient_program(getattr(trnx.checkpoint_policies, policy))
    forward, backward = [e for e in program.equations if e.primitive.name == "checkpoint"]
    if saved is not None:
        assert [str(v.aval) for v in forward.outputs[1:]] == saved
    inside = kinds(backward.params["program"])
    assert ("tanh" in inside) == ("tanh" in again)
    assert inside.count("dot_general") == (2 if "dot_general" in again else 1)
    assert f"<'{policy}'>" in str(program)


def test_prevent_cse_is_told_to_the_compiler() -> None:
    program = gradient_program(prevent_cse=False)
    assert not any(e.params["recompute"] for e in program.equations if "recompute" in e.params)


def test_checkpoint_changes_no_value() -> None:
    def nested(x: Any, y: Any, flag: bool = True) -> Any:
        inner = trnx.checkpoint(lambda v: tnp.exp(v) * y["s"])
        return {"out": inner(inner(x)) if flag else x}

    wrapped = trnx.checkpoint(nested, static_argnums=2)
    y = {"s": tnp.asarray(0.25)}
    for function in (nested, wrapped):
        gradients = trnx.grad(lambda x, y, f=function: f(x, y, True)["out"].sum(), (0, 1))(X, y)
        second = trnx.hessian(lambda x, f=function: f(x, y)["out"].sum())(X)
        if function is nested:
            want, want_second = gradients, second
    np.testing.assert_allclose(np.asarray(gradients[0]), np.asarray(want[0]), rtol=1e-6)
    np.testing.assert_allclose(float(gradients[1]["s"]), float(want[1]["s"]), rtol=1e-6)
    np.testing.assert_allclose(np.asarray(second), np.asarray(want_second), rtol=1e-5, atol=1e-6)
    batch = trnx.vmap(trnx.grad(lambda x: wrapped(x, y)["out"].sum()))(XS)
    assert batch.shape == (4, 3)


def test_checkpoint_of_plain_arrays_is_the_function() -> None:
    """No transform, no trace: Python branches on values work."""
    wrapped = trnx.checkpoint(lambda x: x * 2.0 if float(x) > 0 else -x)
    assert float(wrapped(tnp.asarray(3.0))) == 6
    with pytest.raises(TypeError, match="cannot become a Python float"):
        trnx.grad(wrapped)(3.0)


def test_static_argument_of_a_checkpoint_must_be_known() -> None:
    wrapped = trnx.checkpoint(lambda x, n: x * n, static_argnums=1)
    with pytest.raises(
        TypeError, match="Static argument n of checkpoint of <lambda> holds a traced"
    ):
        trnx.grad(lambda x: wrapped(x, x))(2.0)
