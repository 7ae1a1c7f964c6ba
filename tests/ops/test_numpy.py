"""trnx.numpy against jax.numpy: one expression, both modules, equal shapes, dtypes and values."""

from __future__ import annotations

import operator
import warnings
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

import trnx.numpy as tnp
from trnx.core import config, errors

pytestmark = pytest.mark.usefixtures("by_references")

_RNG = np.random.default_rng(0)
F = _RNG.normal(size=(3, 4)).astype(np.float32)
P = np.abs(F) + np.float32(0.5)
V = _RNG.normal(size=4).astype(np.float32)
COLUMN = _RNG.normal(size=(3, 1)).astype(np.float32)
CUBE = _RNG.normal(size=(2, 3, 4)).astype(np.float32)
I = _RNG.integers(-9, 9, (3, 4)).astype(np.int32)  # noqa: E741
J = np.where(I == 0, 1, I[::-1]).astype(np.int32)
J[J == 0] = 2
U = _RNG.integers(0, 200, (3, 4)).astype(np.uint8)
B = F > 0
BF = F.astype(ml_dtypes.bfloat16)
SPECIAL = np.array([np.nan, np.inf, -np.inf, 0.0, -0.0, 1.5, -2.5], np.float32)

Expression = Callable[..., Any]

# name -> (expression of a module and operands, operands)
ELEMENTWISE: dict[str, tuple[Expression, tuple[Any, ...]]] = {
    "add": (lambda m, x, y: m.add(x, y), (F, V)),
    "add_column": (lambda m, x, y: x + y, (F, COLUMN)),
    "add_row_and_column": (lambda m, x, y: x + y, (V, COLUMN)),
    "add_int_float": (lambda m, x, y: x + y, (I, F)),
    "add_bf16_f32": (lambda m, x, y: x + y, (BF, F)),
    "add_bool": (lambda m, x, y: m.add(x, y), (B, ~B)),
    "add_scalar": (lambda m, x: x + 2, (F,)),
    "add_float_to_int": (lambda m, x: x + 2.5, (I,)),
    "add_to_bf16": (lambda m, x: x + 2.5, (BF,)),
    "radd": (lambda m, x: 2 + x, (U,)),
    "subtract": (lambda m, x, y: x - y, (F, V)),
    "rsub": (lambda m, x: 1.0 - x, (F,)),
    "multiply": (lambda m, x, y: x * y, (I, F)),
    "multiply_bool": (lambda m, x, y: m.multiply(x, y), (B, B)),
    "divide": (lambda m, x, y: x / y, (F, P)),
    "divide_ints": (lambda m, x, y: x / y, (I, J)),
    "reciprocal_of_int": (lambda m, x: 1 / x, (J,)),
    "floor_divide": (lambda m, x, y: x // y, (I, J)),
    "floor_divide_float": (lambda m, x, y: x // y, (F, P)),
    "floor_divide_scalar": (lambda m, x: x // 2, (I,)),
    "remainder": (lambda m, x, y: x % y, (I, J)),
    "remainder_float": (lambda m, x, y: x % y, (F, P)),
    "divmod": (lambda m, x: divmod(x, 3)[1], (I,)),
    "power_square": (lambda m, x: x**2, (F,)),
    "power_int": (lambda m, x: x**3, (I,)),
    "power_negative": (lambda m, x: x**-2, (P,)),
    "power_float": (lambda m, x: x**0.5, (P,)),
    "power_array": (lambda m, x, y: x**y, (P, F)),
    "rpow": (lambda m, x: 2.0**x, (F,)),
    "negative": (lambda m, x: -x, (I,)),
    "absolute": (lambda m, x: abs(x), (F,)),
    "sign": (lambda m, x: m.sign(x), (I,)),
    "square": (lambda m, x: m.square(x), (F,)),
    "reciprocal": (lambda m, x: m.reciprocal(x), (P,)),
    "maximum": (lambda m, x, y: m.maximum(x, y), (F, V)),
    "minimum_scalar": (lambda m, x: m.minimum(x, 0), (F,)),
    "clip": (lambda m, x: m.clip(x, -0.5, 0.5), (F,)),
    "clip_low": (lambda m, x: m.clip(x, 0), (I,)),
    "exp": (lambda m, x: m.exp(x), (F,)),
    "exp_int": (lambda m, x: m.exp(x), (I,)),
    "expm1": (lambda m, x: m.expm1(x), (F,)),
    "exp2": (lambda m, x: m.exp2(x), (F,)),
    "log": (lambda m, x: m.log(x), (P,)),
    "log1p": (lambda m, x: m.log1p(x), (P,)),
    "log2": (lambda m, x: m.log2(x), (P,)),
    "log10": (lambda m, x: m.log10(x), (P,)),
    "sqrt": (lambda m, x: m.sqrt(x), (P,)),
    "sqrt_int": (lambda m, x: m.sqrt(x), (U,)),
    "tanh": (lambda m, x: m.tanh(x), (F,)),
    "sin": (lambda m, x: m.sin(x), (F,)),
    "cos": (lambda m, x: m.cos(x), (F,)),
    "tan": (lambda m, x: m.tan(x), (F,)),
    "sinh": (lambda m, x: m.sinh(x), (F,)),
    "cosh": (lambda m, x: m.cosh(x), (F,)),
    "logaddexp": (lambda m, x, y: m.logaddexp(x, y), (F, V)),
    "floor": (lambda m, x: m.floor(x), (F,)),
    "ceil": (lambda m, x: m.ceil(x), (F,)),
    "rint": (lambda m, x: m.rint(x * 2), (F,)),
    "trunc": (lambda m, x: m.trunc(x * 3), (F,)),
    "round": (lambda m, x: m.round(x, 1), (F,)),
    "equal": (lambda m, x, y: x == y, (I, J)),
    "not_equal": (lambda m, x: x != 2, (I,)),
    "less": (lambda m, x, y: x < y, (F, V)),
    "greater_equal": (lambda m, x: x >= 0, (F,)),
    "logical": (lambda m, x, y: m.logical_and(x, m.logical_not(y)), (I, B)),
    "logical_xor": (lambda m, x, y: m.logical_xor(x, y), (I, B)),
    "invert": (lambda m, x: ~x, (I,)),
    "invert_bool": (lambda m, x: ~x, (B,)),
    "bits": (lambda m, x, y: (x & y) | (x ^ 3), (I, J)),
    "shift": (lambda m, x: (x << 2) >> 1, (I,)),
    "isnan": (lambda m, x: m.isnan(x), (SPECIAL,)),
    "isinf": (lambda m, x: m.isinf(x), (SPECIAL,)),
    "isfinite": (lambda m, x: m.isfinite(x), (SPECIAL,)),
    "isnan_int": (lambda m, x: m.isnan(x), (I,)),
    "where": (lambda m, c, x: m.where(c, x, 0), (B, F)),
    "where_broadcast": (lambda m, c, x, y: m.where(c, x, y), (B, V, COLUMN)),
    "where_int_condition": (lambda m, c: m.where(c, 1.0, 0.0), (I,)),
    "astype": (lambda m, x: x.astype(m.int32), (F,)),
    "astype_bool": (lambda m, x: x.astype(bool), (I,)),
}

REDUCTIONS: dict[str, tuple[Expression, tuple[Any, ...]]] = {
    "sum": (lambda m, x: m.sum(x), (F,)),
    "sum_axis": (lambda m, x: x.sum(axis=0), (F,)),
    "sum_axes": (lambda m, x: x.sum(axis=(0, -1), keepdims=True), (CUBE,)),
    "sum_bool": (lambda m, x: m.sum(x), (B,)),
    "sum_u8": (lambda m, x: m.sum(x, axis=1), (U,)),
    "sum_dtype": (lambda m, x: m.sum(x, dtype=m.float32), (I,)),
    "sum_empty": (lambda m, x: x[:0].sum(axis=0), (F,)),
    "mean": (lambda m, x: m.mean(x, axis=1), (F,)),
    "mean_int": (lambda m, x: m.mean(x), (I,)),
    "mean_bf16": (lambda m, x: m.mean(x, axis=0), (BF,)),
    "var": (lambda m, x: m.var(x, axis=1), (F,)),
    "var_ddof": (lambda m, x: m.var(x, ddof=1), (F,)),
    "std": (lambda m, x: m.std(x, axis=0), (F,)),
    "prod": (lambda m, x: m.prod(x, axis=1), (F,)),
    "prod_int": (lambda m, x: m.prod(x), (U,)),
    "max": (lambda m, x: m.max(x, axis=0), (F,)),
    "min_all": (lambda m, x: x.min(), (I,)),
    "max_keepdims": (lambda m, x: x.max(axis=1, keepdims=True), (F,)),
    "any": (lambda m, x: m.any(x, axis=1), (B,)),
    "all": (lambda m, x: m.all(x), (I,)),
    "argmax": (lambda m, x: m.argmax(x, axis=1), (F,)),
    "argmin_flat": (lambda m, x: m.argmin(x), (F,)),
    "argmax_keepdims": (lambda m, x: m.argmax(x, axis=0, keepdims=True), (F,)),
    "count_nonzero": (lambda m, x: m.count_nonzero(x, axis=0), (I,)),
    "ptp": (lambda m, x: m.ptp(x, axis=0), (F,)),
    "average": (lambda m, x, w: m.average(x, axis=1, weights=w), (F, P)),
    "cumsum": (lambda m, x: m.cumsum(x, axis=1), (F,)),
    "cumsum_flat": (lambda m, x: m.cumsum(x), (I,)),
    "norm": (lambda m, x: m.linalg.norm(x), (F,)),
    "norm_axis": (lambda m, x: m.linalg.norm(x, axis=1, keepdims=True), (F,)),
    "norm_1": (lambda m, x: m.linalg.norm(x, 1, axis=0), (F,)),
    "norm_inf": (lambda m, x: m.linalg.norm(x, np.inf, axis=0), (F,)),
}

SHAPES: dict[str, tuple[Expression, tuple[Any, ...]]] = {
    "reshape": (lambda m, x: x.reshape(4, 3), (F,)),
    "reshape_unknown": (lambda m, x: m.reshape(x, (2, -1)), (F,)),
    "ravel": (lambda m, x: m.ravel(x), (F,)),
    "transpose": (lambda m, x: x.T, (CUBE,)),
    "transpose_axes": (lambda m, x: x.transpose(1, 0, 2), (CUBE,)),
    "mT": (lambda m, x: x.mT, (CUBE,)),
    "swapaxes": (lambda m, x: m.swapaxes(x, 0, 2), (CUBE,)),
    "moveaxis": (lambda m, x: m.moveaxis(x, 0, -1), (CUBE,)),
    "moveaxis_many": (lambda m, x: m.moveaxis(x, (0, 1), (-1, 0)), (CUBE,)),
    "squeeze": (lambda m, x: m.squeeze(x), (COLUMN,)),
    "expand_dims": (lambda m, x: m.expand_dims(x, (0, -1)), (F,)),
    "broadcast_to": (lambda m, x: m.broadcast_to(x, (2, 3, 4)), (V,)),
    "concatenate": (lambda m, x, y: m.concatenate([x, y, x], axis=1), (F, COLUMN)),
    "concatenate_promotes": (lambda m, x, y: m.concatenate([x, y]), (F, I)),
    "concatenate_flat": (lambda m, x, y: m.concatenate([x, y], axis=None), (F, V)),
    "stack": (lambda m, x, y: m.stack([x, y], axis=1), (F, P)),
    "hstack": (lambda m, x: m.hstack([x, x]), (F,)),
    "vstack": (lambda m, x, y: m.vstack([x, y]), (F, V)),
    "split": (lambda m, x: m.split(x, 2, axis=1)[1], (F,)),
    "split_at": (lambda m, x: m.split(x, [1, 3], axis=1)[1], (F,)),
    "unstack": (lambda m, x: m.unstack(x, axis=1)[2], (CUBE,)),
    "flip": (lambda m, x: m.flip(x, axis=1), (F,)),
    "roll": (lambda m, x: m.roll(x, 2, axis=1), (F,)),
    "roll_flat": (lambda m, x: m.roll(x, -5), (F,)),
    "repeat": (lambda m, x: m.repeat(x, 3, axis=0), (F,)),
    "tile": (lambda m, x: m.tile(x, (2, 1, 3)), (F,)),
    "pad": (lambda m, x: m.pad(x, ((1, 2), (0, 3))), (F,)),
    "meshgrid": (lambda m, x, y: m.meshgrid(x, y)[1], (V, V)),
    "meshgrid_ij": (lambda m, x, y: m.meshgrid(x, y, indexing="ij")[0], (V, V)),
    "tril": (lambda m, x: m.tril(x), (F,)),
    "triu": (lambda m, x: m.triu(x, 1), (CUBE,)),
}

CONTRACTIONS: dict[str, tuple[Expression, tuple[Any, ...]]] = {
    "matmul": (lambda m, x, y: x @ y, (F, F.T.copy())),
    "matmul_vector": (lambda m, x, y: x @ y, (F, V)),
    "matmul_row": (lambda m, x, y: y @ x, (F.T.copy(), V)),
    "matmul_vectors": (lambda m, x: x @ x, (V,)),
    "matmul_batch": (lambda m, x, y: x @ m.swapaxes(y, 1, 2), (CUBE, CUBE)),
    "matmul_broadcast": (lambda m, x, y: m.matmul(x, y), (CUBE, F.T.copy())),
    "matmul_broadcast_left": (lambda m, x, y: m.matmul(y.mT[0], x.mT), (CUBE, CUBE.mT.copy())),
    "matmul_row_batch": (lambda m, x, y: m.matmul(y, x.mT), (CUBE, V)),
    "matmul_bf16": (lambda m, x: x @ x.T, (BF,)),
    "matmul_int": (lambda m, x, y: x @ y.T, (I, J)),
    "dot": (lambda m, x, y: m.dot(x, y), (CUBE, F.T.copy())),
    "vecdot": (lambda m, x, y: m.vecdot(x, y), (CUBE, F)),
    "outer": (lambda m, x, y: m.outer(x, y), (V, F)),
    "tensordot": (lambda m, x, y: m.tensordot(x, y, axes=([1, 2], [0, 1])), (CUBE, F)),
    "einsum": (lambda m, x, y: m.einsum("bij,kj->bik", x, y), (CUBE, F)),
    "einsum_sum": (lambda m, x, y: m.einsum("bij,ij->b", x, y), (CUBE, F)),
    "einsum_implicit": (lambda m, x, y: m.einsum("ij,kj", x, y), (F, F)),
    "einsum_three": (lambda m, x, y, z: m.einsum("bij,j,ij->bi", x, y, z), (CUBE, V, F)),
    "einsum_transpose": (lambda m, x: m.einsum("bij->jb", x), (CUBE,)),
}

CREATION: dict[str, tuple[Expression, tuple[Any, ...]]] = {
    "zeros": (lambda m: m.zeros((2, 3)), ()),
    "ones_dtype": (lambda m: m.ones(3, m.bfloat16), ()),
    "full": (lambda m: m.full((2, 2), 7), ()),
    "full_like": (lambda m, x: m.full_like(x, 2), (I,)),
    "zeros_like": (lambda m, x: m.zeros_like(x), (BF,)),
    "arange": (lambda m: m.arange(5), ()),
    "arange_range": (lambda m: m.arange(2, 11, 3), ()),
    "arange_down": (lambda m: m.arange(5, 0, -2), ()),
    "arange_float": (lambda m: m.arange(0.0, 1.0, 0.25), ()),
    "arange_dtype": (lambda m: m.arange(4, dtype=m.float32), ()),
    "linspace": (lambda m: m.linspace(-1.0, 2.0, 7), ()),
    "linspace_open": (lambda m: m.linspace(0, 1, 4, endpoint=False), ()),
    "linspace_one": (lambda m: m.linspace(3.0, 5.0, 1), ()),
    "eye": (lambda m: m.eye(3, 4, 1), ()),
    "tri": (lambda m: m.tri(3, 4, -1), ()),
    "asarray_list": (lambda m: m.asarray([[1, 2], [3, 4]]), ()),
    "asarray_mixed": (lambda m, x: m.asarray([x[0], 2.0, x[1]]), (V,)),
}

TABLES = {
    f"{kind}-{name}": entry
    for kind, table in {
        "elementwise": ELEMENTWISE,
        "reductions": REDUCTIONS,
        "shapes": SHAPES,
        "contractions": CONTRACTIONS,
        "creation": CREATION,
    }.items()
    for name, entry in table.items()
}


@pytest.mark.parametrize("name", TABLES)
def test_equals_jax(name: str) -> None:
    """Shape, dtype and value of one expression."""
    expression, operands = TABLES[name]
    got = np.asarray(expression(tnp, *map(tnp.asarray, operands)))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # jax warns where it computes in another type
        want = np.asarray(expression(jnp, *map(jnp.asarray, operands)))
    assert got.shape == want.shape
    assert got.dtype == want.dtype
    if want.dtype.kind in "biu":
        np.testing.assert_array_equal(got, want)
    else:
        bound = 1e-5 if want.dtype.itemsize >= 4 else 2e-2
        np.testing.assert_allclose(
            got.astype(np.float64), want.astype(np.float64), rtol=bound, atol=bound
        )


def test_low_precision_sums_accumulate_in_f32() -> None:
    """A bf16 sum does not stick and an f16 mean does not overflow on the way."""
    b = tnp.ones(70000, tnp.bfloat16)
    assert float(tnp.sum(b)) == 70144
    assert float(tnp.mean(b)) == 1
    assert float(tnp.sum(tnp.ones(20000, tnp.float16))) == 20000
    assert abs(float(tnp.mean(tnp.ones(1048576, tnp.float16) * 1e-5)) - 1e-5) < 1e-7
    assert float(tnp.cumsum(tnp.ones(1000, tnp.bfloat16))[-1]) == 1000


def test_weak_numbers_do_not_widen() -> None:
    """A Python number takes the dtype of the array beside it, within its kind."""
    one = tnp.ones(1, tnp.int8)
    assert (one + 1).dtype == np.int8
    assert (tnp.ones(1, tnp.bfloat16) * 2.0).dtype == tnp.bfloat16
    assert (tnp.ones(1, tnp.complex64) + 1.5).dtype == np.complex64
    assert (tnp.ones(1, tnp.float32) + 1j).dtype == np.complex64
    assert (tnp.ones(1, tnp.bfloat16) + tnp.ones(1, tnp.float16)).dtype == np.float32
    with pytest.raises(OverflowError, match=r"300 does not fit into i8"):
        one + 300


def test_unsigned_with_signed_is_exact() -> None:
    """u32 + i8 is i64; a shift keeps the kind of its left operand."""
    top = tnp.asarray(np.array([2**32 - 1], np.uint32))
    assert int((top + tnp.asarray(np.array([1], np.int8)))[0]) == 2**32
    shifted = top >> tnp.asarray(np.array([31], np.int32))
    assert shifted.dtype == np.uint32 and int(shifted[0]) == 1


def test_operators_with_foreign_types() -> None:
    """NumPy arrays combine; lists and strings are refused by Python itself."""
    x = tnp.asarray(F)
    np.testing.assert_allclose(np.asarray(F * x), F * F)
    np.testing.assert_allclose(np.asarray(x * F), F * F)
    with pytest.raises(TypeError, match="unsupported operand"):
        operator.add(x, [1.0])
    assert (x == None) is False  # noqa: E711


# expression -> words of the error, in order
ERRORS: dict[str, tuple[type[Exception], Callable[[], Any], str]] = {
    "matmul": (
        errors.ShapeError,
        lambda: tnp.ones((2, 3)) @ tnp.ones((4, 5)),
        r"matmul of f32\[2,3\] and f32\[4,5\].*size 3.*size 4 \(at test_numpy.py:\d+.*transposing",
    ),
    "matmul_scalar": (errors.ShapeError, lambda: tnp.matmul(2.0, tnp.ones(2)), "no axes"),
    "add": (
        errors.ShapeError,
        lambda: tnp.ones((2, 3)) + tnp.ones((4, 3)),
        r"add of f32\[2,3\] and f32\[4,3\].*axis -2 has sizes 2 and 4 \(at .*reshape",
    ),
    "reshape": (
        errors.ShapeError,
        lambda: tnp.ones((2, 3)).reshape(4, -1),
        r"reshape of f32\[2,3\], which has 6 elements, to \(4,-1\)",
    ),
    "axis": (
        errors.ShapeError,
        lambda: tnp.ones((2, 3)).sum(axis=2),
        r"sum of f32\[2,3\] got axis 2 \(at .*from -2 to 1",
    ),
    "axis_twice": (errors.ShapeError, lambda: tnp.ones((2, 3)).sum((0, -2)), "Name each axis once"),
    "concatenate": (
        errors.ShapeError,
        lambda: tnp.concatenate([tnp.ones((2, 3)), tnp.ones((2, 4))]),
        r"concatenate of f32\[2,3\] and f32\[2,4\] along axis 0",
    ),
    "stack": (errors.ShapeError, lambda: tnp.stack([tnp.ones(2), tnp.ones(3)]), "one shape"),
    "max_empty": (errors.ShapeError, lambda: tnp.max(tnp.ones((0, 2)), axis=0), "no elements"),
    "squeeze": (errors.ShapeError, lambda: tnp.squeeze(tnp.ones((2, 3)), 0), "size is 2"),
    "split": (errors.ShapeError, lambda: tnp.split(tnp.ones(5), 2), "into 2 equal parts"),
    "broadcast_to": (
        errors.ShapeError,
        lambda: tnp.broadcast_to(tnp.ones((2, 3)), (3,)),
        r"broadcast_to of f32\[2,3\] to \(3\)",
    ),
    "einsum": (
        errors.ShapeError,
        lambda: tnp.einsum("ij,jk->ik", tnp.ones((2, 3)), tnp.ones((4, 5))),
        "j has sizes 3 and 4",
    ),
    "dtype": (errors.DTypeError, lambda: tnp.ones(2, "float31"), "float31.*Use one of"),
    "float8": (
        errors.DTypeError,
        lambda: tnp.ones(2, tnp.float8_e5m2) + tnp.ones(2),
        r"add of f8e5m2\[2\] and f32\[2\].*astype",
    ),
    "u64": (
        errors.DTypeError,
        lambda: tnp.ones(2, tnp.uint64) + tnp.ones(2, tnp.int32),
        r"add of u64\[2\] and i32\[2\].*no implicit common dtype",
    ),
    "bits": (errors.DTypeError, lambda: tnp.ones(2) & 1, "bitwise_and.*integers and bools only"),
    "power": (errors.DTypeError, lambda: tnp.ones(2, tnp.int32) ** -1, "negative exponent -1"),
    "subtract_bool": (errors.DTypeError, lambda: (tnp.ones(2) > 0) - True, "logical_xor"),
    "arange": (errors.DTypeError, lambda: tnp.arange(tnp.asarray(3)), "length is not known"),
    "negative_size": (errors.ShapeError, lambda: tnp.zeros((2, -1)), "negative size -1"),
    "unknown_type": (TypeError, lambda: tnp.exp("x"), "builtins.str is not an array"),
}


@pytest.mark.parametrize("name", ERRORS)
def test_error_text(name: str) -> None:
    """Cause in the user's terms, the user's line, a remedy."""
    kind, call, pattern = ERRORS[name]
    with pytest.raises(kind, match=f"(?s){pattern}") as caught:
        call()
    text = str(caught.value)
    assert len(text) < 400 and "test_numpy.py:" in text and text.endswith(".")


def test_python_ints_of_64_bits() -> None:
    """A Python int takes the width of the array beside it, and raises where it has none."""
    wide = tnp.asarray(np.array([1, 2], np.int64)) + 2**40
    np.testing.assert_array_equal(np.asarray(wide), [2**40 + 1, 2**40 + 2])
    with pytest.raises(OverflowError, match="does not fit into i32"):
        tnp.ones(2, tnp.int32) + 2**40
    with pytest.raises(OverflowError, match="does not fit"):
        tnp.asarray(2**40)


def test_traceback_shows_the_users_frames_only() -> None:
    """One internal frame at most; all of them on demand, and for errors that are not trnx's own."""

    def frames(call: Callable[[], Any]) -> list[str]:
        with pytest.raises(errors.ShapeError) as caught:
            call()
        return [entry.path.name for entry in caught.traceback]

    def wrong() -> Any:
        return tnp.ones((2, 3)) @ tnp.ones((4, 5))

    own = frames(wrong)
    assert own == ["test_numpy.py", "test_numpy.py", "_public.py"]
    with config.traceback_filter(False):
        assert "contraction.py" in frames(wrong)
