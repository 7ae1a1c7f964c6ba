"""vmap against a loop, its axes, and its errors."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.transforms.functions import FUNCTIONS, called, total
from trnx.core import ShapeError, aval_of, check, dim, make_aval, trace_program
from trnx.ops import functions as op
from trnx.transforms import grad, vmap

X = np.linspace(-1.0, 1.0, 24).reshape(4, 2, 3)


def close(a: Any, b: Any) -> None:
    np.testing.assert_allclose(np.asarray(a), np.asarray(b), rtol=1e-12)


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("axis", [0, 1, -1])
def test_vmap_is_a_loop(name: str, axis: int) -> None:
    f = FUNCTIONS[name]
    x = np.moveaxis(X, 0, axis)
    expected = np.stack([f(example) for example in X], axis)
    close(vmap(f, in_axes=axis, out_axes=axis)(x), expected)


def test_nested_vmap_maps_two_axes() -> None:
    a, b = np.arange(3.0), np.arange(4.0)
    outer = vmap(vmap(op.mul, in_axes=(None, 0)), in_axes=(0, None))
    close(outer(a, b), np.outer(a, b))


def test_axes_are_tree_prefixes() -> None:
    def f(p: Any, x: Any) -> Any:
        return {"y": op.add(op.mul(p["w"], x), p["b"]), "w": p["w"]}

    p = {"w": np.arange(12.0).reshape(3, 4), "b": np.arange(4.0)}
    x = np.ones((3, 4))
    out = vmap(f, in_axes=({"w": 0, "b": None}, 0), out_axes={"y": 1, "w": 0})(p, x)
    close(out["y"], (p["w"] * x + p["b"]).T)
    close(out["w"], p["w"])


def test_shared_outputs_and_axis_size() -> None:
    y = np.ones(3)
    out = vmap(lambda x: (op.sin(x), op.exp(y)), out_axes=(0, None))(X[:, 0])
    close(out[1], np.exp(y))
    assert vmap(lambda x: op.exp(y))(X[:, 0]).shape == (4, 3)
    assert vmap(lambda: op.exp(y), axis_size=5)().shape == (5, 3)
    with pytest.raises(ShapeError, match="depends on the example but has out_axes None"):
        vmap(op.sin, out_axes=None)(X)


def test_keyword_arguments_are_mapped() -> None:
    out = vmap(lambda x, y: op.add(x, y))(np.ones((2, 3)), y=np.ones((2, 3)))
    assert out.shape == (2, 3)


def test_recorded_vmap_with_symbolic_size() -> None:
    n = dim("n", max=64)
    program = trace_program(
        lambda x: [vmap(lambda row: op.mul(row, total(row)))(x)], [make_aval((n, 3), "f32")]
    )
    check(program)
    assert str(program.out_avals[0]) == "f32[n,3]"


def test_call_stays_a_call() -> None:
    f = called(lambda x: total(op.exp(x)))
    program = trace_program(lambda x: [vmap(grad(f))(x)], [aval_of(X)])
    check(program)
    assert "call" in {equation.primitive.name for equation in program.equations}


def h(a: Any, b: Any) -> Any:
    return op.add(total(a), total(b))


ERRORS = [
    (
        lambda: vmap(h, in_axes=(0, 1))(np.ones((10, 4)), np.ones((10, 2))),
        "sizes: a has shape (10,4), mapped axis 0 of size 10; b has shape (10,2), mapped axis 1",
    ),
    (lambda: vmap(h)(np.ones(1), b=np.ones(2)), "b has shape (2), mapped axis 0 of size 2"),
    (
        lambda: vmap(h)({"w": [np.ones(1)]}, np.ones(2)),
        "a['w'][0] has shape (1), mapped axis 0 of size 1; b has shape (2)",
    ),
    (lambda: vmap(h, axis_size=3)(np.ones(2), np.ones(2)), "axis_size is 3"),
    (lambda: vmap(h)(np.ones(2), 1.0), "maps axis 0 of b, which has type f32[]"),
    (lambda: vmap(h, in_axes=(0, 3))(X, X), "maps axis 3 of b, which has type f64[4,2,3]"),
    (lambda: vmap(h, in_axes=None)(X, X), "maps no argument, so the number of examples"),
    (lambda: vmap(h, in_axes=(0,))(X, X), "in_axes for 1 positional arguments but is called"),
    (
        lambda: vmap(h, in_axes=({"w": 0}, 0))({"v": X}, X),
        "The in_axes of a is {'w': 0}, which does not match",
    ),
    (lambda: vmap(op.sin, out_axes=5)(X), "out_axes 5 of vmap of sin is out of range"),
    (lambda: vmap(op.sin, out_axes=(0, 0))(X), "The out_axes is (0, 0)"),
]


@pytest.mark.parametrize(("use", "text"), ERRORS, ids=range(len(ERRORS)))
def test_errors(use: Any, text: str) -> None:
    with pytest.raises(ValueError, match=r"\. [A-Z]") as error:
        use()
    assert text in str(error.value)
    assert "test_vmap.py:" in str(error.value)
