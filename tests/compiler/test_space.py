"""Iteration spaces: unification against brute force, and strided views against NumPy's."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trnx.compiler.kernels.space import (
    AxisSpace,
    StridedView,
    axis_strides,
    dense_view,
    to_index,
)
from trnx.compiler.tile.expr import evaluate
from trnx.core import Var, dim, make_aval


@st.composite
def two_shapes(draw: st.DrawFn) -> tuple[list[int], list[int]]:
    """Two factorizations of one size."""
    parts = draw(st.lists(st.integers(1, 4), min_size=1, max_size=5))

    def grouped() -> list[int]:
        cuts = sorted(draw(st.sets(st.integers(1, len(parts) - 1)))) if len(parts) > 1 else []
        return [math.prod(parts[a:b]) for a, b in zip([0, *cuts], [*cuts, len(parts)], strict=True)]

    return grouped(), grouped()


@given(two_shapes())
def test_unified_shapes_enumerate_alike(shapes: tuple[list[int], list[int]]) -> None:
    """After unification both sides run over one list of axes whose sizes give both shapes."""
    space = AxisSpace()
    left, right = space.fresh(shapes[0]), space.fresh(shapes[1])
    flat = [[a for d in side for a in d] for side in (left, right)]
    assert space.unify(*flat)
    assert space.resolve(flat[0]) == space.resolve(flat[1])
    for side, shape in zip((left, right), shapes, strict=True):
        sizes = [math.prod(int(str(a.size)) for a in space.resolve(d)) for d in side]
        assert sizes == shape


def test_sizes_without_a_common_refinement_do_not_unify() -> None:
    """[4, 6] and [6, 4] cut the 24 elements at places that do not nest."""
    space = AxisSpace()
    left, right = space.fresh((4, 6)), space.fresh((6, 4))
    assert not space.unify([a for d in left for a in d], [a for d in right for a in d])


def test_a_copy_is_independent() -> None:
    """A trial unification leaves the original as it was."""
    space = AxisSpace()
    (x,), (y,) = space.fresh((4,)), space.fresh((4,))
    trial = space.copy()
    assert trial.unify(x, y)
    assert trial.resolve(x) == trial.resolve(y)
    assert space.resolve(x) != space.resolve(y)


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("permute"), st.integers(0, 5)),
        st.tuples(st.just("slice"), st.integers(0, 100)),
        st.tuples(st.just("reverse"), st.integers(0, 2)),
        st.tuples(st.just("reshape"), st.integers(0, 5)),
        st.tuples(st.just("broadcast"), st.integers(1, 3)),
    ),
    max_size=5,
)


@given(st.lists(st.integers(1, 4), min_size=1, max_size=3), STEPS)
def test_views_are_numpys(shape: list[int], steps: list[tuple[str, int]]) -> None:
    """Any chain of views reads the elements NumPy reads, or says that it cannot."""
    view: StridedView | None = dense_view(Var(make_aval(shape, "f32")))
    data = np.arange(math.prod(shape)).reshape(shape)
    flat = data.reshape(-1)
    for kind, number in steps:
        assert view is not None
        if kind == "permute":
            order = np.random.default_rng(number).permutation(data.ndim)
            view, data = view.permute([int(o) for o in order]), data.transpose(order)
        elif kind == "slice":
            rng = np.random.default_rng(number)
            start = [int(rng.integers(0, n)) for n in data.shape]
            stop = [int(rng.integers(a + 1, n + 1)) for a, n in zip(start, data.shape, strict=True)]
            step = [int(rng.integers(1, 3)) for _ in start]
            view = view.slice(start, stop, step)
            data = data[tuple(map(slice, start, stop, step))]
        elif kind == "reverse":
            axis = number % data.ndim
            view, data = view.reverse([axis]), np.flip(data, axis)
        elif kind == "broadcast":
            wide = (number, *data.shape)
            view = view.broadcast(wide, range(1, data.ndim + 1))
            data = np.broadcast_to(data, wide)
        else:
            wanted = (data.size,) if number % 2 else (1, data.size, 1)
            view, data = view.reshape(wanted), data.reshape(wanted)
            if view is None:
                return
    assert view is not None
    assert view.shape == data.shape
    assert isinstance(view.offset, int)
    indices = np.full(data.shape, view.offset)
    for axis, span in enumerate(view.spans):
        ramp = np.arange(data.shape[axis]) * int(str(span.stride))
        indices += ramp.reshape([-1 if i == axis else 1 for i in range(data.ndim)])
    np.testing.assert_array_equal(flat[indices], data)


def test_axis_strides_of_split_dimensions() -> None:
    """A dimension of two axes walks the outer one in steps of the whole inner one."""
    space = AxisSpace()
    (outer, inner) = (space.fresh((3,))[0][0], space.fresh((4,))[0][0])
    view = StridedView(
        Var(make_aval((12,), "f32")), 0, dense_view(Var(make_aval((12,), "f32"))).spans
    )
    assert axis_strides(view.spans, [(outer, inner)]) == {outer: 4, inner: 1}


@pytest.mark.parametrize("n", [1, 7, 130])
def test_symbolic_sizes_become_registers(n: int) -> None:
    """A Dim is the expression of the register of its name."""
    size = dim("n", min=1, max=4096)
    for expression in (size, 2 * size + 3, size * size, size // 4, (size + 1) % 5):
        wanted = eval(str(expression), {"n": n})  # the text of a Dim is Python
        assert evaluate(to_index(expression), {"n": n}) == wanted
