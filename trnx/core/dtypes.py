"""Element types: their names, kinds and promotion.

Types are plain ``numpy.dtype`` objects (bfloat16 and float8 from ml_dtypes). Short names are used
in IR, errors and docs alike: ``f32``, ``bf16``, ``i32``, ``u8``, ``bool``, ``c64``, ``f8e4m3``.
"""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np

from trnx.core.errors import DTypeError, IntegerRangeError, message

bool_ = np.dtype(np.bool_)
int8 = np.dtype(np.int8)
int16 = np.dtype(np.int16)
int32 = np.dtype(np.int32)
int64 = np.dtype(np.int64)
uint8 = np.dtype(np.uint8)
uint16 = np.dtype(np.uint16)
uint32 = np.dtype(np.uint32)
uint64 = np.dtype(np.uint64)
bfloat16 = np.dtype(ml_dtypes.bfloat16)
float16 = np.dtype(np.float16)
float32 = np.dtype(np.float32)
float64 = np.dtype(np.float64)
complex64 = np.dtype(np.complex64)
complex128 = np.dtype(np.complex128)
float8_e4m3 = np.dtype(ml_dtypes.float8_e4m3)
float8_e4m3fn = np.dtype(ml_dtypes.float8_e4m3fn)
float8_e5m2 = np.dtype(ml_dtypes.float8_e5m2)

_SHORT_NAMES: dict[np.dtype[Any], str] = {
    bool_: "bool",
    int8: "i8",
    int16: "i16",
    int32: "i32",
    int64: "i64",
    uint8: "u8",
    uint16: "u16",
    uint32: "u32",
    uint64: "u64",
    bfloat16: "bf16",
    float16: "f16",
    float32: "f32",
    float64: "f64",
    complex64: "c64",
    complex128: "c128",
    float8_e4m3: "f8e4m3",
    float8_e4m3fn: "f8e4m3fn",
    float8_e5m2: "f8e5m2",
}
_BY_SHORT_NAME = {name: dtype for dtype, name in _SHORT_NAMES.items()}
_BY_NAME = {dtype.name: dtype for dtype in _SHORT_NAMES} | _BY_SHORT_NAME
_BY_TYPE: dict[Any, np.dtype[Any]] = {dtype.type: dtype for dtype in _SHORT_NAMES}

ALL_DTYPES: tuple[np.dtype[Any], ...] = tuple(_SHORT_NAMES)
SIGNED: tuple[np.dtype[Any], ...] = (int8, int16, int32, int64)
UNSIGNED: tuple[np.dtype[Any], ...] = (uint8, uint16, uint32, uint64)
FLOAT8: tuple[np.dtype[Any], ...] = (float8_e4m3, float8_e4m3fn, float8_e5m2)
FLOATS: tuple[np.dtype[Any], ...] = (*FLOAT8, bfloat16, float16, float32, float64)
COMPLEXES: tuple[np.dtype[Any], ...] = (complex64, complex128)

# Python scalars are 32-bit by default; their own types are "weak" (see result_type).
_PYTHON_SCALARS: dict[type, np.dtype[Any]] = {
    bool: bool_,
    int: int32,
    float: float32,
    complex: complex64,
}
_BY_TYPE |= _PYTHON_SCALARS

_KIND: dict[np.dtype[Any], int] = {bool_: 0}
_KIND |= (
    dict.fromkeys(SIGNED + UNSIGNED, 1) | dict.fromkeys(FLOATS, 2) | dict.fromkeys(COMPLEXES, 3)
)
_DEFAULT_OF_KIND: tuple[np.dtype[Any], ...] = (bool_, int32, float32, complex64)
_INT_RANGE = {t: (int(np.iinfo(t).min), int(np.iinfo(t).max)) for t in SIGNED + UNSIGNED}


def as_dtype(x: Any) -> np.dtype[Any]:
    """The dtype that `x` names.

    Args:
        x: a NumPy dtype, a scalar type (``np.float32``, ``ml_dtypes.bfloat16``), a name
            (``"float32"``), a short name (``"f32"``), or ``bool``/``int``/``float``/``complex``.

    Raises:
        DTypeError: `x` names no supported dtype.
    """
    found: np.dtype[Any] | None = None
    if isinstance(x, np.dtype):
        # A dtype of the other byte order compares unequal; storage here is always native.
        found = x if x in _SHORT_NAMES else _BY_NAME.get(x.newbyteorder("=").name)
    elif isinstance(x, str):
        found = _BY_NAME.get(x)
    elif isinstance(x, type):
        found = _BY_TYPE.get(x)
    elif isinstance(getattr(x, "dtype", None), np.dtype):
        return as_dtype(x.dtype)
    if found is None:
        raise DTypeError(
            message(
                f"{x!r} is not a supported dtype", None, f"Use one of {', '.join(_BY_SHORT_NAME)}"
            )
        )
    return found


def short_name(dtype: np.dtype[Any]) -> str:
    """The short text of a dtype: ``f32``, ``bf16``, ``i32``, ``u32``, ``bool``, ``f8e4m3``."""
    name = _SHORT_NAMES.get(dtype)
    return name if name is not None else _SHORT_NAMES[as_dtype(dtype)]


def from_short_name(name: str) -> np.dtype[Any]:
    """The dtype of a short name; DTypeError when there is none."""
    dtype = _BY_SHORT_NAME.get(name)
    return dtype if dtype is not None else as_dtype(name)


def is_bool(dtype: np.dtype[Any]) -> bool:
    """True for bool."""
    return _KIND[dtype] == 0


def is_integer(dtype: np.dtype[Any]) -> bool:
    """True for signed and unsigned integers, not for bool."""
    return _KIND[dtype] == 1


def is_signed_integer(dtype: np.dtype[Any]) -> bool:
    """True for int8 to int64."""
    return dtype in SIGNED


def is_unsigned_integer(dtype: np.dtype[Any]) -> bool:
    """True for uint8 to uint64."""
    return dtype in UNSIGNED


def is_float(dtype: np.dtype[Any]) -> bool:
    """True for real floating types, float8 and bfloat16 included."""
    return _KIND[dtype] == 2


def is_complex(dtype: np.dtype[Any]) -> bool:
    """True for complex64 and complex128."""
    return _KIND[dtype] == 3


def is_inexact(dtype: np.dtype[Any]) -> bool:
    """True for real and complex floating types: those that have derivatives."""
    return _KIND[dtype] >= 2


def itemsize(dtype: np.dtype[Any]) -> int:
    """Bytes of one element."""
    return dtype.itemsize


def integer_range(dtype: np.dtype[Any]) -> tuple[int, int]:
    """Smallest and largest value of an integer dtype."""
    return _INT_RANGE[dtype]


def python_scalar_dtype(x: bool | int | float | complex) -> tuple[np.dtype[Any], bool]:
    """Default dtype of a Python scalar and whether it is weak (all but bool are)."""
    kind = type(x)
    dtype = _PYTHON_SCALARS.get(kind)
    if dtype is None:  # subclasses such as IntEnum
        dtype = next(d for t, d in _PYTHON_SCALARS.items() if isinstance(x, t))
    return dtype, dtype is not bool_


def check_python_int(value: int, dtype: np.dtype[Any]) -> None:
    """Raise IntegerRangeError when `value` does not fit into the integer `dtype`."""
    low, high = _INT_RANGE[dtype]
    if not low <= value <= high:
        raise IntegerRangeError(
            message(
                f"Python int {value} does not fit into {short_name(dtype)} ({low}..{high})",
                None,
                "Give the value a wider dtype first, as in asarray(value, dtype='int64')",
            )
        )


def _no_promotion(a: np.dtype[Any], b: np.dtype[Any]) -> DTypeError:
    return DTypeError(
        message(
            f"{short_name(a)} and {short_name(b)} have no implicit common dtype",
            None,
            "Cast one of them with astype first",
        )
    )


def _promote_uncached(a: np.dtype[Any], b: np.dtype[Any]) -> np.dtype[Any]:
    if a == b:
        return a
    if a in FLOAT8 or b in FLOAT8:
        raise _no_promotion(a, b)
    low, high = (a, b) if _KIND[a] <= _KIND[b] else (b, a)
    kind_low, kind_high = _KIND[low], _KIND[high]
    if kind_low == 0:
        return high
    if kind_high == 1:
        if (low in SIGNED) == (high in SIGNED):
            return low if low.itemsize >= high.itemsize else high
        signed, unsigned = (low, high) if low in SIGNED else (high, low)
        if signed.itemsize > unsigned.itemsize:
            return signed
        if unsigned == uint64:
            raise _no_promotion(a, b)
        return SIGNED[UNSIGNED.index(unsigned) + 1]
    if kind_low == 1:
        return high
    if kind_high == 2:
        if low.itemsize == high.itemsize:  # bfloat16 with float16
            return float32
        return low if low.itemsize > high.itemsize else high
    if float64 in (low, high) or complex128 in (low, high):
        return complex128
    return complex64


_promotion: dict[tuple[np.dtype[Any], np.dtype[Any]], np.dtype[Any]] = {}


def promote_types(a: np.dtype[Any], b: np.dtype[Any]) -> np.dtype[Any]:
    """The common dtype of two strong dtypes.

    Same kind: the Array API table. Mixed kinds as JAX: the higher kind keeps its width
    (``i32 + f16 -> f16``), ``bf16 + f16 -> f32``, ``u32 + i8 -> i64``.

    Raises:
        DTypeError: no implicit common dtype (float8 with another type, ``u64`` with a signed int).
    """
    result = _promotion.get((a, b))
    if result is None:
        result = _promotion[a, b] = _promote_uncached(as_dtype(a), as_dtype(b))
    return result


def promote_weak(
    a: np.dtype[Any], a_weak: bool, b: np.dtype[Any], b_weak: bool
) -> tuple[np.dtype[Any], bool]:
    """Common dtype of two types of which either may be weak, and whether the result is weak.

    A weak type never widens a strong one of the same or a higher kind; over a lower kind it gives
    its 32-bit default and stays weak (``i32 + 1.5 -> f32``). A weak complex with a strong float
    takes the float's precision and is strong.
    """
    if a_weak == b_weak:
        return promote_types(a, b), a_weak
    weak, strong = (a, b) if a_weak else (b, a)
    if _KIND[weak] <= _KIND[strong]:
        return strong, False
    if _KIND[weak] == 3 and _KIND[strong] == 2:
        return (complex128 if strong == float64 else complex64), False
    return _DEFAULT_OF_KIND[_KIND[weak]], True


def result_type(*operands: Any) -> tuple[np.dtype[Any], bool]:
    """Common dtype of avals, arrays, dtypes and Python scalars, and whether it is weak.

    Python ints are checked to fit into the result when that is an integer dtype.

    Raises:
        DTypeError: no common dtype, or an operand without a dtype.
        IntegerRangeError: a Python int does not fit.
    """
    if not operands:
        raise DTypeError(message("result_type needs at least one operand", None, "Pass some"))
    dtype: np.dtype[Any] | None = None
    weak = False
    for x in operands:
        if isinstance(x, bool | int | float | complex) and not isinstance(x, np.generic):
            next_dtype, next_weak = python_scalar_dtype(x)
        elif isinstance(x, np.dtype | str | type):
            next_dtype, next_weak = as_dtype(x), False
        else:
            next_dtype, next_weak = as_dtype(x), bool(getattr(x, "weak", False))
        if dtype is None:
            dtype, weak = next_dtype, next_weak
        else:
            dtype, weak = promote_weak(dtype, weak, next_dtype, next_weak)
    assert dtype is not None
    if _KIND[dtype] == 1:
        for x in operands:
            if isinstance(x, int) and not isinstance(x, bool):
                check_python_int(x, dtype)
    return dtype, weak
