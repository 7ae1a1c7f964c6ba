"""Tracing: recording, captures, errors of traced values, leaks, nesting."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from trnx.core import (
    RecordTrace,
    TraceError,
    Tracer,
    UnsupportedError,
    current_trace,
    dim,
    is_tracing,
    make_aval,
    set_evaluator,
    trace_program,
    use_trace,
)
from trnx.core.errors import user_traceback
from trnx.core.tracing import EVAL_TRACE
from trnx.ops import functions as op

X = make_aval((2, 3), "f32")


def trace(function: Callable[..., Any], *avals: Any, names: tuple[str, ...] = ("x", "y")) -> Any:
    return user_traceback(trace_program)(function, avals or (X,), function.__name__, names)


def test_scalars_are_literals_and_arrays_constants() -> None:
    array = np.ones((2, 3), np.float32)

    def function(x):
        return [op.add(op.add(op.mul(x, 2.0), array), op.add(x, array))]

    program = trace(function)
    assert len(program.constants) == 1
    assert "2.0:f32[]" in str(program)
    zero_dim = trace_program(lambda x: [op.mul(x, np.array(2.0, np.float32))], [X])
    assert len(zero_dim.constants) == 1  # an array without axes is still an array


def test_captured_array_keeps_the_value_of_its_moment() -> None:
    array = np.ones((2, 3), np.float32)

    def function(x):
        y = op.add(x, array)
        array[:] = 5
        return [op.mul(y, array)]

    program = trace(function)
    first, second = program.constant_values
    assert first.max() == 1
    assert second.min() == 5
    array[:] = 7
    assert second.max() == 5
    with pytest.raises(ValueError, match="read-only"):
        second[0] = 0


def test_tracer_describes_itself() -> None:
    def function(x):
        assert (x.shape, x.ndim, x.size, len(x), x.dtype.name) == ((2, 3), 2, 6, 2, "float32")
        assert not x.weak
        assert repr(x) == "<f32[2,3] traced by trace of function>"
        assert is_tracing()
        return [x]

    trace(function)
    assert not is_tracing()


USES: list[tuple[str, Callable[[Any], Any], str, str]] = [
    ("if", lambda x: [x if x else 0], "has no truth value", "trnx.numpy.where or lax.cond"),
    ("int", lambda x: [int(x)], "cannot become a Python int", "make the argument static"),
    ("float", lambda x: [float(x)], "cannot become a Python float", "make the argument static"),
    ("complex", lambda x: [complex(x)], "cannot become a Python complex", "make the argument"),
    ("item", lambda x: [x.item()], "cannot become a Python number", "make the argument static"),
    ("tolist", lambda x: [x.tolist()], "cannot become a list", "make the argument static"),
    ("index", lambda x: [range(x)], "cannot be a Python index", "trnx.numpy.take"),
    ("numpy ufunc", lambda x: [np.sin(x)], "was passed to NumPy", "Use trnx.numpy functions"),
    ("numpy", lambda x: [np.sum(x)], "was passed to numpy.sum", "Use trnx.numpy.sum instead"),
    ("asarray", lambda x: [np.asarray(x)], "was passed to NumPy", "Use trnx.numpy functions"),
]


@pytest.mark.parametrize(("name", "use", "cause", "remedy"), USES, ids=[u[0] for u in USES])
def test_concrete_value_wanted(
    name: str, use: Callable[[Any], Any], cause: str, remedy: str
) -> None:
    def loss(x):
        y = op.exp(op.mul(x, 2.0))
        return use(y)

    with pytest.raises(TypeError) as error:
        trace(loss)
    text = str(error.value)
    assert f"A traced value f32[2,3] in trace of loss {cause}" in text
    assert "it is the exp of test_tracing.py:" in text
    assert "(loss)" in text
    assert "it depends on x" in text
    assert remedy in text
    assert len(text) < 500
    frames = traceback.extract_tb(error.value.__traceback__)
    assert "core/tracing.py" not in frames[-1].filename


def test_provenance_is_short() -> None:
    def function(*args):
        total = args[0]
        for arg in args[1:]:
            total = op.add(total, arg)
        if total:
            return [total]
        return [args[0]]

    with pytest.raises(TraceError, match="it depends on a, b, c and 2 more"):
        trace(function, *[X] * 5, names=("a", "b", "c"))


def test_numpy_operand_on_the_left_defers() -> None:
    calls = []

    class Probe(Tracer):
        def __rmul__(self, other: Any) -> str:
            calls.append(other)
            return "reflected"

    probe = Probe(RecordTrace("f"), X)
    assert np.ones((2, 3), np.float32) * probe == "reflected"
    assert np.float32(2) * probe == "reflected"
    assert len(calls) == 2


def test_tracers_are_not_hashable() -> None:
    with pytest.raises(TypeError, match="is not hashable"):
        trace_program(lambda x: [{x: 1}], [X])


def test_length_needs_a_static_axis() -> None:
    with pytest.raises(TypeError, match="f32\\[\\] has no length"):
        trace_program(lambda x: [len(x)], [make_aval((), "f32")])
    with pytest.raises(ValueError, match="symbolic"):
        trace_program(lambda x: [len(x)], [make_aval((dim("n"),), "f32")])


def test_leak_names_the_creating_line() -> None:
    kept: list[Any] = []

    def leaky(x):
        kept.append(op.exp(x))
        return [x]

    trace(leaky)
    uses: list[Callable[[], Any]] = [
        lambda: trace_program(lambda x: [op.add(x, kept[0])], [X]),
        lambda: trace_program(lambda x: [kept[0]], [X]),
        lambda: op.neg(kept[0]),
        lambda: bool(kept[0]),
        lambda: np.asarray(kept[0]),
    ]
    for use in uses:
        with pytest.raises(TraceError) as error:
            use()
        text = str(error.value)
        assert "made at test_tracing.py:" in text
        assert "leaked out of the trace of leaky, which has ended" in text
        assert "Return the value from the traced function" in text


def test_inner_value_used_in_outer_trace() -> None:
    outer = RecordTrace("outer")
    with use_trace(outer):
        inner = RecordTrace("inner")
        with use_trace(inner):
            value = inner.add_input(X)
            with use_trace(outer), pytest.raises(TraceError, match="used outside of it"):
                op.exp(value)


def test_outer_value_is_a_constant_of_the_inner_program() -> None:
    inner = None

    def outer(x):
        nonlocal inner
        y = op.exp(x)
        inner = trace_program(lambda z: [op.mul(z, y), op.add(y, y)], [X])
        assert inner.constant_values == (y,) or inner.constant_values[0] is y
        return [x]

    program = trace(outer)
    assert len(program.equations) == 1
    assert inner is not None
    assert [e.primitive.name for e in inner.equations] == ["mul", "add"]
    assert "#traced" in str(inner)


def test_failed_trace_restores_the_outer_one() -> None:
    with pytest.raises(ZeroDivisionError):
        trace_program(lambda x: [1 / 0], [X])
    assert current_trace.get() is EVAL_TRACE


def test_evaluation_goes_through_the_slot() -> None:
    seen = []

    def evaluator(primitive, operands, params):
        seen.append((primitive.name, len(operands), dict(params)))
        return [np.zeros(3)]

    old = set_evaluator(evaluator)
    try:
        assert op.iota((3,), 0).shape == (3,)
        op.neg(np.ones(2, np.float32))
        set_evaluator(None)
        with pytest.raises(UnsupportedError, match="Nothing can evaluate neg"):
            op.neg(np.ones(2, np.float32))
    finally:
        set_evaluator(old)
    assert [name for name, _, _ in seen] == ["iota", "neg"]
    assert seen[0][2]["shape"] == (3,)


def test_ended_trace_records_no_more() -> None:
    record = RecordTrace("f")
    record.end()
    with use_trace(record), pytest.raises(TraceError, match="trace of f has ended"):
        op.iota((3,), 0)
