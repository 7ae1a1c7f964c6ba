"""`jit(f, dynamic=...)`: one trace, one compile per bucket, exact results whatever pads them."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

import trnx
import trnx.numpy as tn
from tests.transforms.composites import BUCKETS, COMPOSITES, Composite, sizes_to_try
from trnx import nn, random, testing
from trnx.core import (
    DimError,
    Primitive,
    ShapeError,
    TraceError,
    aval_of,
    config,
    dim,
    eval_program,
    set_evaluator,
    tree,
)
from trnx.core.program import Program, dim_variables
from trnx.runtime import evaluate
from trnx.transforms import inline_calls, specialise

FILLS = ("nan", "inf", "-inf")


def by_references(primitive: Primitive, operands: Sequence[Any], params: Any) -> list[Any]:
    """What a primitive means in NumPy."""
    avals = [aval_of(x) for x in operands]
    arrays = [np.asarray(x).astype(a.dtype) for x, a in zip(operands, avals, strict=True)]
    assert primitive.reference is not None
    result = primitive.reference(*arrays, **params)
    return list(result) if primitive.multiple_results else [result]


@contextmanager
def references() -> Iterator[None]:
    """Evaluate by the references of the primitives: an independent meaning of every program."""
    old = set_evaluator(by_references)
    try:
        yield
    finally:
        set_evaluator(old or evaluate.evaluate)


def axes_of(composite: Composite) -> dict[str | int, Any]:
    """The `dynamic` argument that the symbolic shapes of a composite stand for."""
    axes = {
        index: {axis: size for axis, size in enumerate(shape) if not isinstance(size, int)}
        for index, shape in enumerate(composite.shapes)
    }
    return {index: sizes for index, sizes in axes.items() if sizes}


def exact(program: Program, sizes: dict[str, int], args: Sequence[Any]) -> list[np.ndarray]:
    used = {v.name: sizes[v.name] for v in dim_variables(program)}
    with references():
        return [np.asarray(x) for x in eval_program(specialise(program, used), args)]


@pytest.mark.parametrize("name", COMPOSITES)
@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # the references meet infinities
def test_composites_in_poisoned_buffers(name: str) -> None:
    composite = COMPOSITES[name]
    program = inline_calls(composite.program("f32"))
    function = trnx.jit(
        composite.function,
        dynamic=axes_of(composite),
        buckets={size: [largest] for size, largest in BUCKETS.items()},
    )
    with testing.count_compiles() as compiles:
        for number, sizes in enumerate(sizes_to_try(composite, 3, seed=len(name))):
            args = composite.arguments(sizes, number, "f32")
            with config.pad_fill(FILLS[number % 3]):
                found = tree.leaves(function(*map(tn.asarray, args)))
            for got, want in zip(found, exact(program, sizes, args), strict=True):
                assert got.shape == want.shape
                if want.dtype.kind == "f":
                    np.testing.assert_allclose(got, want, rtol=5e-4, atol=5e-5, err_msg=str(sizes))
                else:
                    np.testing.assert_array_equal(got, want, err_msg=str(sizes))
    assert len(function.entries()) == 1
    assert compiles() == 1


def vector(n: int) -> np.ndarray:
    return np.linspace(-1, 1, n, dtype=np.float32)


# ---------------------------------------------------------------- sizes, traces, compiles
def test_one_trace_and_one_compile_per_bucket() -> None:
    traced: list[Any] = []

    def f(x: Any, y: Any) -> Any:
        traced.append(x.shape)
        return tn.sum(x * y) / x.shape[0], x + y[:1]

    g = trnx.jit(f, dynamic={"x": {0: "n"}, "y": {0: dim("n", 1, 40)}})
    with testing.count_compiles() as compiles:
        for n in (1, 2, 3, 4, 5, 8, 17, 33, 40, 3, 1):
            x, y = vector(n), np.arange(n, dtype=np.float32)
            mean, total = g(x, y)
            np.testing.assert_allclose(mean, (x * y).mean(), rtol=1e-5, atol=1e-6)
            np.testing.assert_array_equal(total, x + y[:1])
    assert len(traced) == len(g.entries()) == 1
    assert str(traced[0][0]) == "n"
    assert compiles() == 6  # 1, 2, 4, 8, 32 and 40, the bound
    assert "1 traced" in repr(g)


@pytest.mark.parametrize(
    ("buckets", "expected"),
    [(None, 6), (trnx.powers_of_two(16), 2), (trnx.multiples(12), 3), ([10, 30], 2)],
    ids=str,
)
def test_policies_choose_the_buckets(buckets: Any, expected: int) -> None:
    f = trnx.jit(lambda x: x * 2, dynamic={0: "n"}, buckets=buckets)
    with testing.count_compiles() as compiles:
        for n in (0, 1, 2, 3, 4, 7, 9, 10, 12, 15, 24, 25, 29):
            assert f(vector(n)).shape == (n,)
    assert compiles() == expected


def test_size_above_the_largest_bucket() -> None:
    f = trnx.jit(lambda x: x * 2, dynamic={0: "n"}, buckets=[4, 8])
    with pytest.raises(DimError, match=r"n = 9 is above its largest bucket 8 .*Add a larger"):
        f(vector(9))


@dataclasses.dataclass
class Batch:
    x: Any
    mask: Any


tree.register_dataclass(Batch, ("x", "mask"))


def test_paths_into_containers() -> None:
    def f(batch: Batch, *, scale: Any, rest: Any) -> Any:
        return tn.where(batch.mask, batch.x, 0.0) * scale["s"] + rest[0]

    n = dim("n", 0, 50)
    g = trnx.jit(
        f, dynamic={"batch.x": {0: n}, "batch.mask": "n", "rest[0]": "n", "scale['s']": {-1: "n"}}
    )
    with testing.count_compiles() as compiles:
        for size in (5, 6, 7):
            x, mask = vector(size), vector(size) > 0
            out = g(Batch(x, mask), scale={"s": x}, rest=[x])
            np.testing.assert_allclose(out, np.where(mask, x, 0) * x + x, rtol=1e-6)
    assert compiles() == 1
    with pytest.raises(DimError, match=r"n is 3 in batch\.x, axis 0 .* 4 in batch\.mask, axis 0"):
        g(Batch(vector(3), vector(4) > 0), scale={"s": vector(3)}, rest=[vector(3)])
    with pytest.raises(DimError, match=r"Size n = 51 \(batch\.x, axis 0\) is outside.* 0\.\.50"):
        g(Batch(vector(51), vector(51) > 0), scale={"s": vector(51)}, rest=[vector(51)])


def test_derived_sizes_of_inputs() -> None:
    n = dim("n", 0)
    f = trnx.jit(lambda x: tn.sum(x.reshape(-1, 2), axis=1), dynamic={"x": {0: 2 * n}})
    np.testing.assert_array_equal(f(np.arange(6, dtype=np.float32)), [1, 5, 9])
    with pytest.raises(DimError, match=r"size 5, which is no 2\*n"):
        f(np.arange(5, dtype=np.float32))


def test_static_sizes_and_types_are_still_part_of_the_key() -> None:
    f = trnx.jit(lambda x, k: x * k, static_argnames="k", dynamic={"x": {0: "n"}})
    for shape, dtype, k in (
        ((2, 3), "float32", 2),
        ((5, 3), "float32", 2),
        ((2, 4), "float32", 2),
        ((2, 3), "int32", 2),
        ((2, 3), "float32", 3),
    ):
        x = np.ones(shape, dtype)
        np.testing.assert_array_equal(f(x, k=k), x * k)
    assert len(f.entries()) == 4


# ---------------------------------------------------------------- dynamic=True
def test_everything_dynamic() -> None:
    f = trnx.jit(lambda x, w: nn.softmax(x @ w), dynamic=True)
    rng = np.random.default_rng(0)
    for b, k, o in ((3, 4, 5), (1, 6, 2), (7, 1, 3), (2, 3, 1)):
        x = rng.normal(size=(b, k)).astype(np.float32)
        w = rng.normal(size=(k, o)).astype(np.float32)
        with config.pad_fill("nan"):
            out = np.asarray(f(x, w))
        e = np.exp(x @ w)
        np.testing.assert_allclose(out, e / e.sum(1, keepdims=True), rtol=1e-4, atol=1e-6)
    assert len(f.entries()) == 1


def test_everything_dynamic_keeps_equal_sizes_equal_until_they_differ() -> None:
    f = trnx.jit(lambda x, y: tn.concatenate([x, y]), dynamic=True)
    with testing.explain_recompiles() as why:
        for n, m in ((4, 4), (5, 5), (3, 4), (6, 6), (2, 9)):
            np.testing.assert_array_equal(f(vector(n), vector(m)), np.r_[vector(n), vector(m)])
    assert len(f.entries()) == 2
    assert "argument y: f32[x_0] became f32[y_0]" in why()


def test_everything_dynamic_broadcasts_axes_of_size_one() -> None:
    f = trnx.jit(lambda x, y: x + y, dynamic=True)
    for shape in ((5, 1), (7, 1), (5, 3)):
        x, y = np.ones(shape, np.float32), np.ones((shape[0], 3), np.float32)
        np.testing.assert_array_equal(f(x, y), x + y)
    assert len(f.entries()) == 2


def test_everything_dynamic_may_need_elements() -> None:
    f = trnx.jit(lambda x: x[-1], dynamic=True)
    for n in (4, 9, 2, 1):
        assert float(f(vector(n))) == vector(n)[-1]


def test_size_one_shares_the_trace_of_others() -> None:
    f = trnx.jit(lambda x: x + 1, dynamic=True)
    assert [f(vector(n)).shape for n in (2, 3, 4, 1, 0)] == [(2,), (3,), (4,), (1,), (0,)]
    assert len(f.entries()) == 1


# ---------------------------------------------------------------- sizes as values
def test_a_size_is_a_number_in_expressions() -> None:
    def f(x: Any) -> Any:
        n = x.shape[0]
        return n, 2 * n + 1, x * n, tn.arange(n) / n, tn.full((n + 1,), n), tn.sqrt(n)

    g = trnx.jit(f, dynamic={"x": "n"})
    x = vector(5)
    for got, want in zip(
        g(x), (5, 11, x * 5, np.arange(5) / 5, np.full(6, 5), np.sqrt(5.0)), strict=True
    ):
        np.testing.assert_allclose(got, want, rtol=1e-6)


def test_branch_on_an_undecidable_size_names_dim_line_and_remedy() -> None:
    def f(x: Any) -> Any:
        if x.shape[0] > 3:  # the line the error names
            return x
        return -x

    text = (
        r"The bounds do not decide n > 3 for n: 0\.\. "
        r"\(at test_bucketing\.py:\d+ \(f\)\)\. Narrow the bounds"
    )
    with pytest.raises(DimError, match=text):
        trnx.jit(f, dynamic={"x": "n"})(vector(5))
    with pytest.raises(DimError, match=r"do not decide x_0 > 3 for x_0: 2\.\."):
        trnx.jit(f, dynamic=True)(vector(5))
    wide = trnx.jit(f, dynamic={"x": {0: dim("n", 4)}})
    np.testing.assert_array_equal(wide(vector(5)), vector(5))


def test_empty_arrays_are_refused_where_exact_shapes_refuse_them() -> None:
    f = trnx.jit(lambda x: tn.argmax(x, axis=1), dynamic={"x": {1: "n"}})
    assert f(np.ones((2, 3), np.float32)).shape == (2,)
    with pytest.raises(ShapeError, match=r"argmax of f32\[2,0\] along axis 1, which is empty"):
        f(np.ones((2, 0), np.float32))


# ---------------------------------------------------------------- results and memory
def test_results_of_leading_sizes_share_the_buffer() -> None:
    f = trnx.jit(lambda x: (x * 2, x[0]), dynamic={"x": {0: dim("n", 1)}})
    big, row = f(np.ones((5, 3), np.float32))
    assert big.shape == (5, 3)
    assert big.nbytes == 60
    assert big.address % 64 == 0
    again, _ = f(big)  # its memory reaches to the end of the bucket: no copy on the way in
    np.testing.assert_array_equal(again, np.full((5, 3), 4, np.float32))
    np.testing.assert_array_equal(row, np.full(3, 2, np.float32) / 2)


def test_arguments_are_not_written() -> None:
    x = tn.asarray(vector(5))
    f = trnx.jit(lambda x: x * 0.0, dynamic={"x": "n"})
    for fill in ("", *FILLS):
        with config.pad_fill(fill):
            f(x)
    np.testing.assert_array_equal(x, vector(5))


def test_inputs_that_are_results_come_back_whole() -> None:
    f = trnx.jit(lambda x, y: (y, x, x), dynamic={"x": {1: "n"}, "y": "m"})
    x, y = np.ones((3, 5), np.float32), vector(6)
    for got, want in zip(f(x, y), (y, x, x), strict=True):
        np.testing.assert_array_equal(got, want)


def test_donation() -> None:
    f = trnx.jit(lambda x, y: x + y, donate_argnums=0, dynamic={"x": "n", "y": "n"})
    for n in (3, 4):
        x, y = tn.asarray(vector(n)), tn.asarray(vector(n))
        np.testing.assert_array_equal(f(x, y), 2 * vector(n))
        assert x.is_donated()
        assert not y.is_donated()


@pytest.mark.parametrize("dtype", ["bool", "int8", "uint32", "int64", "float16", "bfloat16"])
def test_dtypes(dtype: str) -> None:
    f = trnx.jit(lambda x: (x.T, tn.max(x, axis=0)), dynamic={"x": {0: "n", 1: "m"}})
    values = np.arange(15).reshape(3, 5)
    x = tn.asarray(values).astype(dtype)
    for fill in FILLS:
        with config.pad_fill(fill):
            turned, top = f(x)
        assert turned.dtype == x.dtype
        np.testing.assert_array_equal(np.asarray(turned), np.asarray(x).T)
        np.testing.assert_array_equal(np.asarray(top), np.asarray(x)[-1])


def test_random_numbers_do_not_depend_on_padding() -> None:
    def draw(x: Any) -> Any:
        key = random.key(3)
        return random.bits(key, x.shape), random.normal(key, (x.shape[1], x.shape[0]))

    x = np.zeros((3, 5), np.float32)
    bits, numbers = trnx.jit(draw, dynamic=True, buckets=[16])(x)
    want_bits, want_numbers = trnx.jit(draw)(x)
    np.testing.assert_array_equal(bits, want_bits)
    np.testing.assert_array_equal(numbers, want_numbers)


# ---------------------------------------------------------------- composition
def loss(w: Any, x: Any) -> Any:
    return tn.sum(tn.tanh(x @ w) ** 2) / x.shape[0]


@pytest.mark.parametrize("outside", [True, False], ids=["grad of jit", "jit of grad"])
def test_gradients_compile_once_per_bucket(outside: bool) -> None:
    axes = {"x": {0: "n"}}
    both = (
        trnx.value_and_grad(trnx.jit(loss, dynamic=axes))
        if outside
        else trnx.jit(trnx.value_and_grad(loss), dynamic=axes)
    )
    w = tn.asarray(np.eye(3, 2, dtype=np.float32))
    rng = np.random.default_rng(0)
    with testing.count_compiles() as compiles:
        for n in (5, 6, 7, 8, 5):
            x = rng.normal(size=(n, 3)).astype(np.float32)
            with config.pad_fill("nan"):
                value, gradient = both(w, tn.asarray(x))
            y = np.tanh(x @ np.asarray(w))
            np.testing.assert_allclose(value, (y**2).sum() / n, rtol=1e-4)
            np.testing.assert_allclose(
                gradient, x.T @ (2 * y * (1 - y**2)) / n, rtol=1e-3, atol=1e-5
            )
    assert compiles() == (2 if outside else 1)  # forward and backward, or both in one


def test_second_derivative_and_jvp_of_a_dynamic_function() -> None:
    f = trnx.jit(lambda x: tn.sum(tn.sin(x) * x), dynamic=True)
    for n in (3, 4):
        x = tn.asarray(vector(n))
        _, slope = trnx.jvp(f, (x,), (tn.ones_like(x),))
        np.testing.assert_allclose(
            slope, np.sum(np.sin(vector(n)) + vector(n) * np.cos(vector(n))), rtol=1e-4, atol=1e-5
        )
        second = trnx.grad(lambda v: tn.sum(trnx.grad(f)(v)))(x)
        expected = 2 * np.cos(vector(n)) - vector(n) * np.sin(vector(n))
        np.testing.assert_allclose(second, expected, rtol=1e-4, atol=1e-5)


def test_vmap_of_a_dynamic_function_compiles_per_bucket() -> None:
    f = trnx.vmap(trnx.jit(nn.softmax, dynamic={0: "n"}))
    with testing.count_compiles() as compiles:
        for n in (5, 6, 7):
            x = np.random.default_rng(n).normal(size=(3, n)).astype(np.float32)
            e = np.exp(x)
            out = f(tn.asarray(x))
            np.testing.assert_allclose(out, e / e.sum(1, keepdims=True), rtol=1e-5)
    assert compiles() == 1


def test_vmap_grad_and_scan_inside() -> None:
    def f(x: Any) -> Any:
        slopes = trnx.vmap(trnx.grad(lambda v: tn.sum(v**3)))(x)
        last, sums = trnx.lax.scan(lambda c, v: (c + v, c), tn.zeros(x.shape[1], x.dtype), x)
        return slopes, last, sums

    g = trnx.jit(f, dynamic=True)
    for shape in ((4, 3), (5, 2)):
        x = np.random.default_rng(0).normal(size=shape).astype(np.float32)
        slopes, last, sums = g(x)
        np.testing.assert_allclose(slopes, 3 * x**2, rtol=1e-4)
        np.testing.assert_allclose(last, x.sum(0), rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(sums, np.cumsum(x, 0) - x, rtol=1e-4, atol=1e-5)


def test_inside_another_jit_the_sizes_are_those_of_that_trace() -> None:
    inner = trnx.jit(lambda x: tn.mean(x), dynamic={"x": "n"})
    exact_outer = trnx.jit(lambda x: inner(x) + x.shape[0])
    dynamic_outer = trnx.jit(lambda y: inner(y[1:]) + y.shape[0], dynamic={"y": {0: dim("n", 2)}})
    assert float(exact_outer(np.arange(4.0, dtype=np.float32))) == 5.5
    with testing.count_compiles() as compiles:
        for n in (5, 6):
            x = np.arange(n, dtype=np.float32)
            assert float(dynamic_outer(x)) == pytest.approx(x[1:].mean() + n)
    assert compiles() == 1


def test_vjp_keeps_its_residuals_symbolic_and_may_be_used_inside_jit() -> None:
    f = trnx.jit(lambda x: tn.sin(x) * x.shape[0], dynamic={"x": "n"})
    x = tn.asarray(vector(3))
    out, pull = trnx.vjp(f, x)
    np.testing.assert_allclose(out, 3 * np.sin(vector(3)), rtol=1e-5)
    (gradient,) = trnx.jit(lambda ct: pull(ct))(tn.ones(3))
    np.testing.assert_allclose(gradient, 3 * np.cos(vector(3)), rtol=1e-5)


def test_options() -> None:
    f = trnx.jit(lambda x: tn.log(x), dynamic={"x": "n"})
    with config.disable_jit(True), testing.count_compiles() as compiles:
        np.testing.assert_allclose(f(np.ones(3, np.float32)), np.zeros(3))
    assert all(event.kind == "op" for event in compiles.events)
    with config.debug_nans(True), config.pad_fill("nan"):
        np.testing.assert_allclose(f(np.ones(3, np.float32)), np.zeros(3))  # padding is no result
        with pytest.raises(FloatingPointError, match=r"log made 1 NaN in 3 values"):
            f(np.array([1.0, -1.0, 2.0], np.float32))


# ---------------------------------------------------------------- looking in
def test_explained_buckets() -> None:
    f = trnx.jit(lambda x, y: x.sum() + y.sum(), dynamic={"x": "n", "y": "m"})
    with testing.explain_recompiles() as why:
        f(vector(3), vector(2))
        f(vector(4), vector(2))
        first = why()
        f(vector(5), vector(2))
    assert "is traced for the first time" in first
    assert first.count("is compiled for a new bucket") == 1
    assert "n = 3 takes bucket 4 (powers of two); the first one" in first
    assert why().count("is compiled for a new bucket") == 2
    assert "n = 5 takes bucket 8 (powers of two); compiled before: 4" in why()
    assert "m = 2 takes bucket 2 (powers of two); known, but not together" in why()


def test_lower_shows_the_padded_program() -> None:
    f = trnx.jit(lambda x: tn.mean(x), dynamic={"x": "n"})
    lowered = f.lower(vector(5))
    assert "(a: f32[8], b: i32[])" in lowered.as_text("trace")
    (out,) = lowered.simulate().outputs
    np.testing.assert_allclose(out, vector(5).mean(), atol=1e-6)
    assert "dims n: 0.." in str(trnx.make_ir(f)(vector(5)))


def test_methods_and_static_calls() -> None:
    class Model:
        scale = 3.0

        @trnx.jit(static_argnums=0, dynamic={"x": "n"})
        def __call__(self, x: Any) -> Any:
            return x * self.scale

    model = Model()
    for n in (3, 4):
        np.testing.assert_allclose(model(vector(n)), vector(n) * 3)


@pytest.mark.parametrize(
    ("make", "error", "text"),
    [
        (lambda: trnx.jit(abs, buckets=[4]), ValueError, "buckets but no dynamic"),
        (lambda: trnx.jit(abs, dynamic=3), TypeError, "dynamic=3"),
        (lambda: trnx.jit(abs, dynamic={"x": 3}), TypeError, "does not say which axes"),
        (lambda: trnx.jit(abs, dynamic=True, buckets="all"), TypeError, "no bucket policy"),
        (lambda: trnx.jit(lambda x: x, dynamic={"y": "n"})(vector(3)), DimError, "names 'y'"),
        (lambda: trnx.jit(lambda x: float(x), dynamic=True)(vector(3)), TraceError, "float"),
    ],
)
def test_errors(make: Any, error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        make()
