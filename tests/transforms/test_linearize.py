"""What linearize and transpose compute, and what they do not compute."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.transforms.conftest import Evaluations
from tests.transforms.functions import called, mix, total
from trnx.core import (
    Linear,
    Primitive,
    RuleError,
    TraceError,
    Zero,
    check,
    make_aval,
    trace_program,
)
from trnx.ops import functions as op
from trnx.transforms import (
    backward_pass,
    grad,
    jvp_program,
    linearize,
    linearize_program,
    transpose_program,
    vjp,
    vmap_program,
)
from trnx.transforms.linearize import linearize_flat

X = np.linspace(0.1, 1.0, 3)
AVAL = make_aval((3,), "f64")


def names(program: Any) -> list[str]:
    return [equation.primitive.name for equation in program.equations]


def test_linear_program_holds_linear_operations_only() -> None:
    result = linearize_flat(lambda x: [op.sin(op.mul(x, x))], [X], (True,))
    assert set(names(result.program)) <= {"mul", "add"}
    assert len(result.program.inputs) == 1
    assert result.out_nonzero == (True,)
    residuals = [np.asarray(value) for value in result.program.constant_values]
    assert any(np.allclose(value, np.cos(X * X)) for value in residuals)


def test_primal_runs_once(evaluations: Evaluations) -> None:
    _, push_forward = linearize(lambda x: op.exp(op.sin(x)), X)
    assert evaluations.count("exp") == 1
    assert evaluations.count("sin") == 1
    assert evaluations.count("cos") == 1
    evaluations.clear()
    push_forward(X)
    push_forward(X)
    assert set(evaluations) == {"mul"}


def test_work_without_tangent_leaves_no_trace(evaluations: Evaluations) -> None:
    y = np.arange(3.0)

    def f(x: Any) -> Any:
        noise = op.tanh(op.exp(y))
        return total(op.mul(op.add(x, noise), 2.0))

    gradient = grad(f)(X)
    np.testing.assert_allclose(gradient, 2.0)
    assert evaluations.count("tanh") == 1
    assert "sub" not in evaluations  # no derivative of tanh was taken


def test_cotangents_of_dead_branches_are_not_computed(evaluations: Evaluations) -> None:
    _, pull_back = vjp(lambda x: (op.sin(x), op.exp(x)), X)
    evaluations.clear()
    result = linearize_flat(lambda x: [op.sin(x), op.exp(x)], [X], (True,))
    evaluations.clear()
    (ct,) = backward_pass(result.program, (True,), [None], [np.ones(3), Zero(AVAL)])
    np.testing.assert_allclose(ct, np.cos(X))
    assert evaluations == ["mul"]
    (ct,) = backward_pass(result.program, (True,), [None], [Zero(AVAL), Zero(AVAL)])
    assert isinstance(ct, Zero)
    assert pull_back((np.ones(3), np.ones(3)))[0].shape == (3,)


def test_backward_pass_keeps_source_lines() -> None:
    def f(x: Any) -> Any:
        y = op.sin(x)
        return total(op.mul(y, y))

    program = trace_program(lambda x: [grad(f)(x)], [AVAL])
    functions = {equation.source.function for equation in program.equations}
    assert functions <= {"f", "total", "<lambda>"}
    muls = [e.source for e in program.equations if e.primitive.name == "mul"]
    assert {source.function for source in muls} == {"f"}


# Programs ---------------------------------------------------------------------------------------


def two_outputs(x: Any, y: Any, n: Any) -> list[Any]:
    return [op.mul(op.sin(x), y), op.exp(y), op.add(n, n)]


PROGRAM = trace_program(two_outputs, [AVAL, AVAL, make_aval((3,), "i32")], "two")


def test_jvp_program_signature() -> None:
    derived, nonzero = jvp_program(PROGRAM, (True, False, False))
    check(derived)
    assert nonzero == (True, False, False)
    assert [str(a) for a in derived.in_avals] == ["f64[3]", "f64[3]", "i32[3]", "f64[3]"]
    assert [str(a) for a in derived.out_avals] == ["f64[3]", "f64[3]", "i32[3]", "f64[3]"]
    full, nonzero = jvp_program(PROGRAM, (True, False, False), True)
    assert nonzero == (True, True, False)
    assert len(full.outputs) == 5


def test_linearize_program_signature() -> None:
    parts = linearize_program(PROGRAM, (True, False, False))
    check(parts.forward)
    check(parts.linear)
    assert parts.out_nonzero == (True, False, False)
    assert len(parts.forward.outputs) == 3 + parts.residual_inputs.count(None)
    assert 1 in parts.residual_inputs  # y is passed on, not computed again
    full = linearize_program(PROGRAM, (True, False, False), True)
    assert full.out_nonzero == (True, True, False)
    assert len(full.linear.outputs) == 2
    check(full.linear)


def test_transpose_program_signature() -> None:
    linear = trace_program(
        lambda r, t, u: [op.mul(r, t), op.add(t, u), op.neg(u)], [AVAL] * 3, "linear"
    )
    derived, nonzero = transpose_program(linear, (False, True, True), (True, False, True))
    check(derived)
    assert nonzero == (True, True)
    assert [str(a) for a in derived.in_avals] == ["f64[3]"] * 3  # r and two cotangents
    derived, nonzero = transpose_program(linear, (False, True, True), (True, False, False))
    assert nonzero == (True, False)
    assert len(derived.outputs) == 1


def test_transforms_of_one_program_are_one_object() -> None:
    mask = (True, False, False)
    assert jvp_program(PROGRAM, mask) is jvp_program(PROGRAM, mask)
    assert linearize_program(PROGRAM, mask) is linearize_program(PROGRAM, mask)
    assert vmap_program(PROGRAM, 4, (0, None, None)) is vmap_program(PROGRAM, 4, (0, None, None))
    assert jvp_program(PROGRAM, mask) is not jvp_program(PROGRAM, (True, True, False))


def test_transposed_program_computes_residual_work_itself() -> None:
    mixed = trace_program(lambda r, t: [op.mul(op.exp(r), t)], [AVAL, AVAL], "mixed")
    derived, _ = transpose_program(mixed, (False, True), (True,))
    assert names(derived) == ["exp", "mul"]


# Errors -----------------------------------------------------------------------------------------


@pytest.fixture
def scratch() -> Primitive:
    primitive = Primitive("scratch", abstract=lambda x: x, register=False)
    primitive.def_reference(lambda x: 2 * x)
    return primitive


def test_missing_rules_are_named(scratch: Primitive) -> None:
    with pytest.raises(RuleError, match=r"scratch has no jvp rule \(at test_linearize.py"):
        grad(lambda x: total(scratch.bind(x)))(X)
    scratch.def_linear()
    with pytest.raises(RuleError, match=r"scratch has no transpose rule .*Add def_transpose"):
        grad(lambda x: total(scratch.bind(x)))(X)
    scratch.def_transpose(lambda ct, x: (op.mul(ct, 2.0),))
    np.testing.assert_allclose(grad(lambda x: total(scratch.bind(x)))(X), 2.0)


def test_wrong_rules_are_caught(scratch: Primitive) -> None:
    scratch.def_jvp(lambda t, x, out: op.broadcast(t, (2, 3), (1,)))
    with pytest.raises(TraceError, match=r"jvp rule of scratch gives a tangent f64\[2,3\] for"):
        grad(lambda x: total(scratch.bind(x)))(X)
    scratch.def_jvp(lambda t, x, out: scratch.bind(t))
    scratch.def_transpose(lambda ct, x: (total(ct),))
    with pytest.raises(TraceError, match=r"gives a cotangent f64\[\] for an operand f64\[3\]"):
        grad(lambda x: total(scratch.bind(x)))(X)
    scratch.def_transpose(lambda ct, x: ct)
    with pytest.raises(TraceError, match="gives no sequence of 1 cotangents"):
        grad(lambda x: total(scratch.bind(x)))(X)


def test_joint_rule_cannot_be_linearized(scratch: Primitive) -> None:
    joint = Primitive("joint", abstract=lambda x, t: (x, x), multiple_results=True, register=False)

    def rule(ctx: Any, primals: Any, tangents: Any) -> Any:
        out, tangent = joint.bind(*primals, *tangents)
        return [out], [tangent]

    scratch.def_jvp_all(rule)
    with pytest.raises(RuleError, match="scratch has no linearize rule"):
        grad(lambda x: total(scratch.bind(x)))(X)


def test_linear_operands_are_placeholders(scratch: Primitive) -> None:
    seen: list[Any] = []

    def rule(ct: Any, x: Any) -> Any:
        seen.append(x)
        return (op.mul(ct, 2.0),)

    scratch.def_linear()
    scratch.def_transpose(rule)
    grad(lambda x: total(scratch.bind(x)))(X)
    assert seen == [Linear(AVAL)]


def test_residuals_of_a_call_are_not_recomputed(evaluations: Evaluations) -> None:
    f = called(mix)
    _, pull_back = vjp(lambda x: total(f(x)), X)
    evaluations.clear()
    pull_back(np.float64(1.0))
    assert not {"sin", "exp", "cos"} & set(evaluations)
