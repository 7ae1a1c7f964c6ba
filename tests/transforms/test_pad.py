"""Padded programs give exactly what exact-shape programs give, whatever is in the padding."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.transforms.composites import BUCKETS as COMPOSITE_BUCKETS
from tests.transforms.composites import COMPOSITES, sizes_to_try
from tests.transforms.functions import total
from trnx.core import (
    DimError,
    Primitive,
    RuleError,
    TraceError,
    aval_of,
    check,
    dim,
    eval_program,
    make_aval,
    trace_program,
)
from trnx.core.dims import evaluate
from trnx.core.program import dim_variables
from trnx.ops import functions as op
from trnx.transforms import call, grad, inline_calls, pad_program, specialise, vmap
from trnx.transforms.pad import largest

N = dim("n", min=1, max=8)
M = dim("m", min=2, max=5)
BUCKETS = {"n": 8, "m": 5}
SIZES = [{"n": 1, "m": 2}, {"n": 3, "m": 5}, {"n": 7, "m": 4}, {"n": 8, "m": 5}]


def softmax(x: Any) -> Any:
    shape = aval_of(x).shape
    last = len(shape) - 1
    e = op.exp(op.sub(x, op.broadcast(op.reduce_max(x, (last,)), shape, range(last))))
    return op.div(e, op.broadcast(op.reduce_sum(e, (last,)), shape, range(last)))


def mean(x: Any) -> Any:
    return op.div(total(x), op.dim_size(aval_of(x).size, "f64"))


def matmul(x: Any, y: Any) -> Any:
    return op.dot_general(x, y, contract=((1,), (0,)))


def called(x: Any) -> Any:
    program = trace_program(lambda y: [softmax(y)], [aval_of(x)], "softmax")
    return call(program, [x])[0]


CASES: dict[str, tuple[Any, list[tuple[Any, ...]]]] = {
    "elementwise": (lambda x: op.add(op.exp(x), op.mul(x, x)), [(N, M)]),
    "sum of padded axis": (lambda x: op.reduce_sum(x, (0,)), [(N, M)]),
    "sum of other axis": (lambda x: op.reduce_sum(x, (1,)), [(N, 3)]),
    "sum of all": (total, [(N, M)]),
    "max": (lambda x: op.reduce_max(x, (1,)), [(N, M)]),
    "argmax": (lambda x: op.argmax(x, 0), [(N, M)]),
    "argmin": (lambda x: op.argmin(x, 1), [(N, M)]),
    "mean": (mean, [(N, M)]),
    "softmax": (softmax, [(N, M)]),
    "matmul over padded": (matmul, [(3, N), (N, M)]),
    "matmul of padded rows": (matmul, [(N, 4), (4, M)]),
    "broadcast": (lambda x: op.broadcast(x, (N, M, 2), (1,)), [(M,)]),
    "transpose": (lambda x: op.transpose(x, (1, 0)), [(N, M)]),
    "reshape, padded axis leads": (lambda x: op.reshape(x, (N * 3, 2)), [(N, 6)]),
    "reshape, padded axis inside": (lambda x: op.reshape(x, (2 * N, M)), [(2, N, M)]),
    "reshape, two padded axes": (lambda x: op.reshape(x, (N * M,)), [(N, M)]),
    "reshape, split": (lambda x: op.reshape(x, (N, 2)), [(2 * N,)]),
    "concatenate": (lambda x, y: op.concatenate([x, y], 0), [(N, 2), (M, 2)]),
    "concatenate with itself": (lambda x: op.concatenate([x, x, x], 1), [(2, N)]),
    "reverse": (lambda x: op.reverse(x, (0, 1)), [(N, 3)]),
    "iota": (lambda x: op.add(op.convert(op.iota((N, M), 0), "f64"), x), [(N, M)]),
    "first": (lambda x: op.slice_axis(x, 0, 1, 0), [(N, M)]),
    "last": (lambda x: op.slice_axis(x, N - 1, N, 0), [(N, M)]),
    "all but first": (lambda x: op.slice_axis(x, 1, N, 0), [(N, M)]),
    "select": (lambda x: op.select(op.gt(x, 0.0), x, op.neg(x)), [(N,)]),
    "call": (called, [(N, M)]),
    "derived input": (lambda x: op.reduce_sum(x, (0,)), [(2 * N + 1, M)]),
    "gradient": (grad(lambda x: total(op.mul(softmax(x), x))), [(N, M)]),
    "gradient of matmul": (
        lambda x, y: grad(lambda w: total(op.exp(matmul(w, y))))(x),
        [(3, N), (N, M)],
    ),
    "vmap over a padded axis": (vmap(softmax), [(N, M)]),
    "static part": (lambda x, y: op.add(total(x), total(y)), [(N,), (3, 2)]),
}


def exact_and_padded(function: Any, shapes: list[Any], sizes: dict[str, int]) -> Any:
    avals = [make_aval(shape, "f64") for shape in shapes]
    program = trace_program(lambda *args: [function(*args)], avals, "f")
    check(program)
    padded = pad_program(program, BUCKETS)
    check(padded.program)
    assert all(aval.is_static for aval in padded.program.out_avals)
    values = np.random.default_rng(0)
    exact_args, padded_args = [], []
    for shape, aval in zip(shapes, padded.program.in_avals, strict=False):
        true = tuple(evaluate(size, sizes) for size in shape)
        valid = values.normal(size=true)
        buffer = np.where(values.random(aval.shape) < 0.5, np.nan, np.inf)
        buffer[tuple(slice(size) for size in true)] = valid
        exact_args.append(valid)
        padded_args.append(buffer)
    used = {name: sizes[name] for name in padded.size_names}
    exact = eval_program(specialise(program, used), exact_args)
    scalars = [np.int32(used[name]) for name in padded.size_names]
    (out,) = eval_program(padded.program, [*padded_args, *scalars])
    (shape,) = padded.out_shapes(used)
    return exact[0], np.asarray(out)[tuple(slice(size) for size in shape)]


@pytest.mark.parametrize("sizes", SIZES, ids=str)
@pytest.mark.parametrize("name", CASES)
def test_padded_is_exact(name: str, sizes: dict[str, int]) -> None:
    function, shapes = CASES[name]
    expected, found = exact_and_padded(function, shapes, sizes)
    assert found.shape == np.shape(expected)
    np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-12)


def filled(fill: float, shape: Any, valid: np.ndarray) -> np.ndarray:
    """A buffer with `valid` in its corner and an extreme value everywhere else."""
    if valid.dtype.kind == "f":
        value: Any = fill
    elif valid.dtype.kind == "b":
        value = True
    else:
        limits = np.iinfo(valid.dtype)
        value = limits.min if fill == np.inf else limits.max
    buffer = np.full(shape, value, valid.dtype)
    buffer[tuple(map(slice, valid.shape))] = valid
    return buffer


@pytest.mark.parametrize("name", COMPOSITES)
@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # NumPy computes with the garbage
def test_padded_composites_are_exact(name: str) -> None:
    composite = COMPOSITES[name]
    program = composite.program("f64")
    names = [variable.name for variable in dim_variables(program)]
    padded = pad_program(program, {name: COMPOSITE_BUCKETS[name] for name in names})
    check(padded.program)
    for number, sizes in enumerate(sizes_to_try(composite, 6, seed=len(name))):
        used = {name: sizes[name] for name in names}
        args = composite.arguments(sizes, number, "f64")
        expected = eval_program(specialise(inline_calls(program), used), args)
        fill = (np.nan, np.inf, -np.inf)[number % 3]
        buffers = [
            filled(fill, aval.shape, x)
            for aval, x in zip(padded.program.in_avals, args, strict=False)
        ]
        scalars = [np.int32(used[name]) for name in padded.size_names]
        found = eval_program(padded.program, [*buffers, *scalars])
        shapes = padded.out_shapes(used)
        for out, want, shape in zip(found, expected, shapes, strict=True):
            corner = np.asarray(out)[tuple(map(slice, shape))]
            assert corner.shape == np.shape(want)
            if corner.dtype.kind == "f":
                np.testing.assert_allclose(corner, want, rtol=1e-10, atol=1e-10, err_msg=str(sizes))
            else:
                np.testing.assert_array_equal(corner, want, err_msg=str(sizes))


def test_signature_and_text() -> None:
    program = trace_program(lambda x: [total(x)], [make_aval((N, 2 * N), "f32")], "f")
    padded = pad_program(program, {"n": 4})
    assert str(padded.program).splitlines()[0] == "program f(a: f32[4,8], b: i32[]) {"
    assert padded.size_names == ("n",)
    assert padded.true_in_shapes == ((N, 2 * N),)
    assert padded.out_shapes({"n": 3}) == ((),)


def test_static_equations_stay_as_they_are() -> None:
    program = trace_program(
        lambda x, y: [op.exp(y), op.reduce_sum(x, (0,))],
        [make_aval((N,), "f32"), make_aval((3,), "f32")],
    )
    padded = pad_program(program, {"n": 4}).program
    exp = padded.equations[0]
    assert exp.primitive.name == "exp"
    assert exp.source == program.equations[0].source


def test_largest_value() -> None:
    assert largest(5, {}) == 5
    assert largest(2 * N + M, BUCKETS) == 21
    assert largest((N + 3) // 4, BUCKETS) == 2
    assert largest(N % 4, {"n": 8}) == 3
    assert largest(9 - N, {"n": 8}) == 8
    assert largest((N - 1) * (N - 2), {"n": 8}) == 42
    assert largest(N - M, BUCKETS) == 6
    assert largest(dim("k") * 2, {"k": 50}) == 100


def test_errors() -> None:
    program = trace_program(lambda x: [op.exp(x)], [make_aval((N, M), "f32")])
    with pytest.raises(DimError, match=r"Size m has no bucket.*Give one for m"):
        pad_program(program, {"n": 4})
    with pytest.raises(DimError, match=r"bucket 9 of size n is outside 1\.\.8"):
        pad_program(program, {"n": 9, "m": 5})
    bare = Primitive("bare", abstract=lambda x: x, register=False)
    unruled = trace_program(lambda x: [bare.bind(x)], [make_aval((N,), "f32")])
    with pytest.raises(RuleError, match=r"bare has no pad rule \(at test_pad\.py:"):
        pad_program(unruled, {"n": 4})
    bare.def_pad(lambda ctx, args, shapes: op.reduce_sum(args[0], (0,)))
    with pytest.raises(TraceError, match=r"pad rule of bare gives a buffer f32\[\] for f32\[n\]"):
        pad_program(unruled, {"n": 4})


def test_specialise() -> None:
    program = trace_program(
        lambda x: [op.broadcast(op.reduce_sum(x, (0,)), (N, M), (1,)), op.dim_size(N)],
        [make_aval((N, M), "f32")],
        "f",
    )
    exact = specialise(program, {"n": 3, "m": 2})
    check(exact)
    assert str(exact).splitlines()[0] == "program f(a: f32[3,2]) {"
    half = specialise(program, {"m": 4})
    check(half)
    assert [str(aval) for aval in half.out_avals] == ["f32[n,4]", "i32[]"]
    assert specialise(exact, {}) is exact
    with pytest.raises(DimError, match="no size named k"):
        specialise(program, {"k": 3})
    with pytest.raises(DimError, match=r"n = 9 is outside n: 1\.\.8"):
        specialise(program, {"n": 9})
