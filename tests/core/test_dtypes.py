"""Names, kinds and promotion of dtypes."""

from __future__ import annotations

import enum
import itertools

import ml_dtypes
import numpy as np
import pytest

from trnx.core import DTypeError, IntegerRangeError, make_aval
from trnx.core import dtypes as dt

STRONG = [d for d in dt.ALL_DTYPES if d not in dt.FLOAT8]


@pytest.mark.parametrize("dtype", dt.ALL_DTYPES, ids=str)
def test_names_read_back(dtype: np.dtype) -> None:
    assert dt.from_short_name(dt.short_name(dtype)) == dtype
    for spelling in (dtype, dtype.type, dtype.name, dt.short_name(dtype), np.zeros(1, dtype)):
        assert dt.as_dtype(spelling) == dtype


def test_python_types_and_byte_order() -> None:
    assert [dt.as_dtype(t) for t in (bool, int, float, complex)] == [
        dt.bool_,
        dt.int32,
        dt.float32,
        dt.complex64,
    ]
    swapped = np.dtype(np.float32).newbyteorder()
    assert dt.as_dtype(swapped) == dt.float32
    assert dt.as_dtype(swapped).isnative
    assert float(ml_dtypes.finfo(dt.float8_e4m3).max) == 240


@pytest.mark.parametrize("bad", ["float13", np.dtype("U3"), object, 3.5, None])
def test_unknown_dtype_says_what_there_is(bad: object) -> None:
    with pytest.raises(DTypeError, match=r"is not a supported dtype .*Use one of bool, i8"):
        dt.as_dtype(bad)


TABLE = [
    ("i8", "i32", "i32"),
    ("u8", "i8", "i16"),
    ("u32", "i8", "i64"),
    ("u16", "i32", "i32"),
    ("u64", "u8", "u64"),
    ("bool", "u8", "u8"),
    ("i32", "f32", "f32"),
    ("i64", "f16", "f16"),
    ("u64", "bf16", "bf16"),
    ("bf16", "f16", "f32"),
    ("bf16", "f32", "f32"),
    ("f32", "f64", "f64"),
    ("f64", "c64", "c128"),
    ("f32", "c64", "c64"),
    ("i64", "c64", "c64"),
    ("f8e5m2", "f8e5m2", "f8e5m2"),
]


@pytest.mark.parametrize(("a", "b", "result"), TABLE)
def test_promotion_table(a: str, b: str, result: str) -> None:
    x, y = dt.from_short_name(a), dt.from_short_name(b)
    assert dt.short_name(dt.promote_types(x, y)) == result
    assert dt.short_name(dt.promote_types(y, x)) == result


@pytest.mark.parametrize(("a", "b"), [("u64", "i8"), ("f8e4m3", "f32"), ("f8e5m2", "f8e4m3fn")])
def test_no_promotion_is_an_error(a: str, b: str) -> None:
    with pytest.raises(DTypeError, match=r"no implicit common dtype.*Cast one of them"):
        dt.promote_types(dt.from_short_name(a), dt.from_short_name(b))


def test_promotion_agrees_with_jax() -> None:
    jax = pytest.importorskip("jax")
    with jax.enable_x64(True):
        for a, b in itertools.product(STRONG, STRONG):
            if dt.uint64 in (a, b) and (a in dt.SIGNED or b in dt.SIGNED):
                continue  # JAX goes to a float there, trnx refuses
            assert dt.promote_types(a, b) == jax.numpy.promote_types(a, b), (a, b)


@pytest.mark.parametrize("scalar", [1, 1.0, 1j], ids=["int", "float", "complex"])
@pytest.mark.parametrize("dtype", STRONG, ids=str)
def test_python_scalars_are_weak_as_in_jax(dtype: np.dtype, scalar: complex) -> None:
    jnp = pytest.importorskip("jax.numpy")
    if dtype.itemsize // (1 + dt.is_complex(dtype)) == 8:
        expected = jnp.promote_types(dtype, type(scalar)) if dt.is_bool(dtype) else None
        if dt.is_integer(dtype):
            expected = {int: dtype, float: dt.float32, complex: dt.complex64}[type(scalar)]
        elif dt.is_float(dtype):
            expected = dt.complex128 if isinstance(scalar, complex) else dtype
        else:
            expected = dtype
    else:
        expected = (jnp.ones((), dtype) + scalar).dtype
    assert dt.result_type(make_aval((), dtype), scalar)[0] == expected


def test_weakness_of_results() -> None:
    i32, f16 = make_aval((2,), "i32"), make_aval((2,), "f16")
    assert dt.result_type(1, 2.0) == (dt.float32, True)
    assert dt.result_type(i32, 1.5) == (dt.float32, True)
    assert dt.result_type(i32, 1) == (dt.int32, False)
    assert dt.result_type(f16, 1.5) == (dt.float16, False)
    assert dt.result_type(i32, 1.5, f16) == (dt.float16, False)
    assert dt.result_type(True, 1) == (dt.int32, True)
    assert dt.result_type(np.float32(1), f16) == (dt.float32, False)


def test_python_int_must_fit() -> None:
    with pytest.raises(OverflowError, match=r"300 does not fit into i8 \(-128\.\.127\)"):
        dt.result_type(make_aval((), "i8"), 300)
    with pytest.raises(IntegerRangeError, match="-1 does not fit into u8"):
        dt.result_type(make_aval((), "u8"), -1)
    assert dt.result_type(make_aval((), "i8"), 300.0)[0] == dt.float32
    assert dt.result_type(make_aval((), "i64"), 2**40)[0] == dt.int64


def test_enum_members_count_as_ints() -> None:
    class Level(enum.IntEnum):
        LOW = 1

    assert dt.result_type(Level.LOW) == (dt.int32, True)


def test_kinds_partition_the_dtypes() -> None:
    for dtype in dt.ALL_DTYPES:
        kinds = [f(dtype) for f in (dt.is_bool, dt.is_integer, dt.is_float, dt.is_complex)]
        assert sum(kinds) == 1
        assert dt.is_inexact(dtype) == (kinds[2] or kinds[3])
        signs = dt.is_signed_integer(dtype), dt.is_unsigned_integer(dtype)
        assert sum(signs) == kinds[1]
