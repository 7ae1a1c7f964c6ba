"""Abstract values and what can be an operand."""

from __future__ import annotations

import numpy as np
import pytest

from trnx.core import Aval, aval_of, dim, dtypes, make_aval, parse_aval
from trnx.core.avals import is_array_like, to_numpy
from trnx.core.errors import ShapeError, UnknownTypeError


@pytest.mark.parametrize(
    "text", ["f32[128,256]", "f32[]~", "bool[]", "i64[0]", "bf16[1,2,3]", "f8e4m3[4]", "c64[2]"]
)
def test_text_reads_back(text: str) -> None:
    assert str(parse_aval(text)) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (True, "bool[]"),
        (3, "i32[]~"),
        (3.0, "f32[]~"),
        (3j, "c64[]~"),
        (np.float64(3), "f64[]"),
        (np.bool_(True), "bool[]"),
        (np.zeros((2, 3), np.int8), "i8[2,3]"),
        (np.zeros(2, ">f4"), "f32[2]"),
    ],
)
def test_operands(value: object, text: str) -> None:
    assert str(aval_of(value)) == text
    assert is_array_like(value)


def test_sizes() -> None:
    n = dim("n", max=9)
    aval = make_aval((n, 4), "f16")
    assert str(aval) == "f16[n,4]"
    assert aval.size == 4 * n
    assert aval.nbytes == 8 * n
    assert aval.ndim == 2
    assert not aval.is_static
    assert make_aval(3, "f32").shape == (3,)
    assert make_aval((np.int64(3),), "f32").shape == (3,)
    assert make_aval((n,), "f32") != make_aval((3,), "f32")  # structural: does not raise
    assert aval.with_dtype(dtypes.int8) == make_aval((n, 4), "i8")
    assert Aval((), dtypes.float32, True).strong() == Aval((), dtypes.float32)
    weak = Aval((2,), dtypes.float32, True)
    assert len({make_aval((2,), "f32"), make_aval((2,), "f32"), weak}) == 2


def test_bad_values() -> None:
    with pytest.raises(UnknownTypeError, match=r"builtins\.str is not an array .*Pass an array"):
        aval_of("text")
    with pytest.raises(TypeError, match="not an array"):
        aval_of(None)
    assert not is_array_like([1.0])
    with pytest.raises(OverflowError, match="does not fit into i32"):
        aval_of(2**31)
    with pytest.raises(ShapeError, match="negative size"):
        make_aval((-1,), "f32")
    with pytest.raises(ShapeError, match="no integer"):
        make_aval((1.5,), "f32")


def test_contents_are_native() -> None:
    swapped = np.arange(3, dtype=">i4")
    assert to_numpy(swapped).dtype.isnative
    assert to_numpy(swapped).tolist() == [0, 1, 2]


@pytest.mark.parametrize(
    ("shape", "cause"),
    [
        ((3, -7), r"A shape \[3,-7\] with the negative size -7 \(at test_avals.py:\d+ \(test_"),
        ((2.5,), r"A shape with 2.5, which is no integer \(at test_avals.py:\d+ \(test_"),
    ],
)
def test_no_type_has_an_impossible_size(shape: tuple[object, ...], cause: str) -> None:
    """Whatever computes a size: a negative one would let native code write before its memory."""
    with pytest.raises(ShapeError, match=cause + r".*Use integers of at least 0"):
        Aval(shape, dtypes.float32)  # type: ignore[arg-type]
