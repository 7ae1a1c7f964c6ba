"""Indexing against NumPy, out-of-range rules, and their gradients."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import trnx
import trnx.numpy as tnp
from tests.ops.table import NumpyEvaluation
from trnx.core import BoundsError, DTypeError, dim, make_aval
from trnx.core.tracing import trace_program

SHAPE = (4, 3, 5)
X = np.arange(60, dtype=np.float32).reshape(SHAPE)


@st.composite
def basic_indices(draw: Any) -> tuple[Any, ...]:
    """A tuple of ints, slices, None and at most one ellipsis that fits SHAPE."""
    count = draw(st.integers(0, 3))
    ellipsis_at = draw(st.integers(0, count)) if draw(st.booleans()) else None
    items: list[Any] = []
    for i in range(count):
        if i == ellipsis_at:
            items.append(Ellipsis)
        axis = i if ellipsis_at is None or i < ellipsis_at else i - count
        size = SHAPE[axis]
        bound = st.none() | st.integers(-size - 2, size + 2)
        step = st.none() | st.sampled_from([-3, -2, -1, 1, 2, 3])
        items.append(draw(st.integers(-size, size - 1) | st.builds(slice, bound, bound, step)))
    if ellipsis_at == count:
        items.append(Ellipsis)
    for _ in range(draw(st.integers(0, 2))):
        items.insert(draw(st.integers(0, len(items))), None)
    return tuple(items)


@given(basic_indices())
def test_basic_index_equals_numpy(index: tuple[Any, ...]) -> None:
    """Ints, slices with any step, None and ellipsis."""
    with NumpyEvaluation(arrays=True):
        np.testing.assert_array_equal(np.asarray(tnp.asarray(X)[index]), X[index])


@given(basic_indices(), st.booleans())
def test_basic_update_equals_numpy(index: tuple[Any, ...], scalar: bool) -> None:
    """at[index].set and .add, with a scalar and with an array of the indexed shape."""
    region = X[index].shape
    values = np.float32(-7) if scalar else -np.arange(np.prod(region), dtype=np.float32)
    values = values if scalar else values.reshape(region)
    want_set, want_add = X.copy(), X.copy()
    want_set[index] = values
    want_add[index] += values
    with NumpyEvaluation(arrays=True):
        at = tnp.asarray(X).at[index]
        np.testing.assert_array_equal(np.asarray(at.set(values)), want_set)
        np.testing.assert_array_equal(np.asarray(at.add(values)), want_add)


A = np.array([0, 2, 1, 2])
GRID = np.array([[0, -1], [3, 1]])
ADVANCED: dict[str, Any] = {
    "rows": (A,),
    "columns": (slice(None), A),
    "last": (..., A),
    "list": ([1, 3],),
    "grid": (GRID,),
    "pair": (A, A),
    "pair_broadcast": (GRID, A[:2]),
    "pair_apart": (A, slice(None), A),
    "pair_at_end": (slice(None), A, A),
    "with_slice": (slice(1, 3), A),
    "with_int": (1, A),
    "with_reversed": (slice(None, None, -1), A),
    "with_new_axis": (None, A),
    "triple": (A, A, A),
}


@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
@pytest.mark.parametrize("name", ADVANCED)
@pytest.mark.usefixtures("by_references")
def test_integer_array_index_equals_numpy(name: str, dynamic: bool) -> None:
    """One or several integer arrays, known when tracing or not."""
    index = ADVANCED[name]

    def as_index(item: Any) -> Any:
        return tnp.asarray(np.asarray(item)) if dynamic and not isinstance(item, slice) else item

    given = tuple(as_index(i) if isinstance(i, np.ndarray | list) else i for i in index)
    np.testing.assert_array_equal(np.asarray(tnp.asarray(X)[given]), X[index])


@pytest.mark.usefixtures("by_references")
def test_integer_array_update() -> None:
    """at[...].add sums repeated indices, whole rows or single elements."""
    x = tnp.asarray(X)
    want = X.copy()
    np.add.at(want, A, 1.5)
    np.testing.assert_array_equal(np.asarray(x.at[A].add(1.5)), want)
    want = X.copy()
    np.add.at(want, (A, A), X[0, 0])
    np.testing.assert_array_equal(np.asarray(x.at[A, A].add(X[0, 0])), want)
    got = x.at[tnp.asarray(np.array([1, 99, -1]))].add(1.0)
    want = np.asarray(jnp.asarray(X).at[np.array([1, 99, -1])].add(1.0))
    np.testing.assert_array_equal(np.asarray(got), want)


@pytest.mark.usefixtures("by_references")
def test_take_and_take_along_axis() -> None:
    """The functions behind indexing."""
    x = tnp.asarray(X)
    np.testing.assert_array_equal(np.asarray(tnp.take(x, A, 1)), np.take(X, A, 1))
    np.testing.assert_array_equal(np.asarray(tnp.take(x, A)), np.take(X, A))
    order = np.argsort(-X, axis=2)
    got = tnp.take_along_axis(x, tnp.asarray(order), 2)
    np.testing.assert_array_equal(np.asarray(got), np.take_along_axis(X, order, 2))
    first = tnp.take_along_axis(x, np.zeros((1, 1, 2), np.int32), 2)
    np.testing.assert_array_equal(np.asarray(first), np.repeat(X[..., :1], 2, -1))


# ---------------------------------------------------------------- the out-of-range rule
@pytest.mark.parametrize("dtype", [np.int8, np.int32, np.int64, np.uint8, np.uint32, np.uint64])
@pytest.mark.usefixtures("by_references")
def test_dynamic_reads_clamp(dtype: Any) -> None:
    """Whatever the integer dtype, an index beyond the end reads the last element."""
    v = tnp.asarray(np.array([1.0, 2.0, 3.0], np.float32))
    top = tnp.asarray(np.array(min(np.iinfo(dtype).max, 2**62), dtype))
    assert float(v[top]) == 3.0
    if np.iinfo(dtype).min < 0:
        assert float(v[tnp.asarray(np.array(-1, dtype))]) == 3.0
        assert float(v[tnp.asarray(np.array(np.iinfo(dtype).min, dtype))]) == 1.0


@pytest.mark.usefixtures("by_references")
def test_gradient_agrees_with_the_rule() -> None:
    """The gradient of a clamped read goes where it read; that of a dropped write is 0."""
    x = tnp.asarray(np.array([1.0, 2.0, 3.0], np.float32))

    def read(v: Any) -> Any:
        return v[tnp.asarray(3)] * 2

    gradient = np.asarray(trnx.grad(read)(x))
    np.testing.assert_array_equal(gradient, [0, 0, 2])
    assert float(trnx.jvp(read, (x,), (tnp.ones(3),))[1]) == gradient.sum()

    def write(updates: Any) -> Any:
        places = tnp.asarray(np.array([2, 3], np.int32))
        return tnp.zeros(2).at[places].add(updates).sum()

    np.testing.assert_array_equal(np.asarray(trnx.grad(write)(tnp.zeros(2))), [0, 0])


@pytest.mark.parametrize(
    ("index", "text"),
    [
        (4, r"Index 4 is out of range for axis 0 of size 4 \(at test_indexing.py.*from -4 to 3"),
        (-5, "Index -5 is out of range"),
        ((0, 0, 5), "Index 5 is out of range for axis 2 of size 5"),
        (np.array([0, 4]), "Index 4 is out of range for axis 0"),
        ((0, 0, 0, 0), "3 axes got 4 indices"),
        ((..., ...), "one ellipsis"),
        (slice(0, 3, 0), "step 0"),
    ],
    ids=str,
)
@pytest.mark.usefixtures("by_references")
def test_static_index_out_of_range(index: Any, text: str) -> None:
    """A static index out of range raises with axis, size and the allowed range."""
    x = tnp.asarray(X)
    with pytest.raises(BoundsError, match=f"(?s){text}"):
        x[index]


@pytest.mark.usefixtures("by_references")
def test_what_cannot_index() -> None:
    """Floats, bools and traced masks name the alternative."""
    x = tnp.asarray(X)
    for index in (1.0, True, "a"):
        with pytest.raises(DTypeError, match=r"cannot be an index.*where"):
            x[index]
    with pytest.raises(DTypeError, match=r"cannot be an index.*where"):
        trace_program(lambda x: [x[x > 3]], [make_aval((4,), np.float32)])
    with pytest.raises(BoundsError, match="stands for axes of sizes"):
        x[np.ones((3, 3), bool)]


def test_symbolic_sizes() -> None:
    """Slices that the bounds decide are allowed; the size of the result follows."""
    n = dim("n", min=4, max=64)
    shapes: list[Any] = []

    def record(x: Any) -> list[Any]:
        outs = [x[1:], x[:-1], x[-1], x[:, None], x[::-1], x[2:4], x[::2], x.reshape(-1), x[0]]
        shapes.extend(tuple(map(str, out.shape)) for out in outs)
        return outs

    trace_program(record, [make_aval((n, 3), np.float32)])
    assert shapes[:6] == [
        ("n-1", "3"),
        ("n-1", "3"),
        ("3",),
        ("n", "1", "3"),
        ("n", "3"),
        ("2", "3"),
    ]
    assert shapes[6] == ("((n+1)//2)", "3")
    assert shapes[7:] == [("3*n",), ("3",)]
