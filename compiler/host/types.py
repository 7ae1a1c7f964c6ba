"""How dtypes are stored and converted in generated code.

A dtype has a storage type (narrow floats and ``bool`` are integers of their width). ``convert``
follows the simulator's casts (``compiler/sim/cast.py``) bit for bit. Compare results travel as
LLVM masks (``i1``) until somebody needs them as numbers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from trnx.compiler.host.emit import (
    I1,
    Function,
    Value,
    element_type,
    float_text,
    lanes_of,
    mangle,
    vector_type,
)
from trnx.compiler.sim.moves import immediate as element_of
from trnx.core.dtypes import (
    bfloat16,
    bool_,
    complex64,
    complex128,
    float8_e4m3,
    float8_e4m3fn,
    float8_e5m2,
    float16,
    float32,
    float64,
    short_name,
)
from trnx.core.errors import TileError, message

DType = np.dtype[Any]

_FLOATS: Final = {float32: "float", float64: "double"}


def storage(dtype: DType) -> str:
    """The LLVM element type that holds ``dtype`` in memory and in forwarded values."""
    if dtype in _FLOATS:
        return _FLOATS[dtype]
    return f"i{dtype.itemsize * 8}"


def is_integral(dtype: DType) -> bool:
    """Whether ``dtype`` is an integer or bool."""
    return dtype.kind in "iub"


@dataclass(frozen=True, slots=True)
class NarrowFloat:
    """Layout of a float of ``bits`` bits: mantissa bits, exponent bias, patterns of overflow, nan.

    ``first_overflow`` is the smallest fp32 magnitude that rounds past the largest finite value.
    """

    bits: int
    mantissa: int
    bias: int
    overflow: int
    nan: int
    first_overflow: float


_FLOAT8: Final = {
    float8_e4m3: NarrowFloat(8, 3, 7, 0x78, 0x7C, 248.0),
    float8_e4m3fn: NarrowFloat(8, 3, 7, 0x7F, 0x7F, 464.0000305),
    float8_e5m2: NarrowFloat(8, 2, 15, 0x7C, 0x7E, 61440.0),
}
_HALF: Final = NarrowFloat(16, 10, 15, 0x7C00, 0x7E00, 65520.0)


def _unsupported(dtype: DType) -> TileError:
    return TileError(
        message(
            f"the host target cannot compute with {short_name(dtype)}",
            None,
            "Convert to a float or integer dtype first",
        )
    )


def as_number(f: Function, value: Value, dtype: DType) -> Value:
    """A mask as 1 and 0 of ``dtype``; any other value unchanged."""
    if element_type(value.type) != I1:
        return value
    kind = vector_type(storage(dtype), lanes_of(value.type))
    if dtype in (float32, float64):
        return f.select(value, f.number(1.0, kind), f.number(0.0, kind))
    return f.convert("zext", value, kind)


def convert(f: Function, value: Value, source: DType, target: DType) -> Value:
    """``value`` (stored as ``source``, or a mask) cast to ``target`` by the rules of a write."""
    if element_type(value.type) == I1:
        # 1 and 0 are exact in every dtype.
        if target == bool_ or is_integral(target) or target in (float32, float64):
            return as_number(f, value, target)
        value, source = as_number(f, value, float32), float32
    if source == target:
        return value
    if complex64 in (source, target) or complex128 in (source, target):
        raise _unsupported(source if source.kind == "c" else target)
    if is_integral(source):
        return _from_integer(f, value, source, target)
    if source not in (float32, float64):
        value, source = _widen(f, value, source), float32
        if source == target:
            return value
    lanes = lanes_of(value.type)
    if target == bool_:
        mask = f.fcmp("une", value, f.number(0.0, value.type))
        return as_number(f, mask, bool_)
    if is_integral(target):
        rounded = f.intrinsic("rint", value.type, value)
        kind = vector_type(storage(target), lanes)
        name = "fptosi" if target.kind == "i" else "fptoui"
        suffix = f"{mangle(kind)}.{mangle(value.type)}"
        return f.intrinsic(f"{name}.sat", kind, rounded, suffix=suffix)
    if source == float64:
        value = f.convert("fptrunc", value, vector_type("float", lanes))
        if target == float32:
            return value
    elif target == float64:
        return f.convert("fpext", value, vector_type("double", lanes))
    return _narrow(f, value, target)


def _from_integer(f: Function, value: Value, source: DType, target: DType) -> Value:
    lanes = lanes_of(value.type)
    if target == bool_:
        return as_number(f, f.icmp("ne", value, f.number(0, value.type)), bool_)
    if is_integral(target):
        kind = vector_type(storage(target), lanes)
        if target.itemsize == source.itemsize:
            return value
        if target.itemsize < source.itemsize:
            return f.convert("trunc", value, kind)
        return f.convert("sext" if source.kind == "i" else "zext", value, kind)
    op = "sitofp" if source.kind == "i" else "uitofp"
    if target == float64:
        return f.convert(op, value, vector_type("double", lanes))
    single = f.convert(op, value, vector_type("float", lanes))
    return single if target == float32 else _narrow(f, single, target)


def _widen(f: Function, value: Value, source: DType) -> Value:
    """A 16- or 8-bit float as fp32, exactly."""
    lanes = lanes_of(value.type)
    single = vector_type("float", lanes)
    word = vector_type("i32", lanes)
    if source == float16 and f.cpu.half:
        return f.convert("fpext", f.convert("bitcast", value, vector_type("half", lanes)), single)
    wide = f.convert("zext", value, word)
    if source == bfloat16:
        return f.convert("bitcast", f.binary("shl", wide, f.number(16, word)), single)
    if source == float16:
        return _widen_half(f, wide, single)
    if source not in _FLOAT8:
        raise _unsupported(source)
    table = np.arange(256, dtype=np.uint8).view(source).astype(np.float32)
    entries = ", ".join(f"float {float_text(float(x), 'float')}" for x in table)
    base = f.module.constant("[256 x float]", f"[{entries}]")
    result = Value(single, "poison")
    for lane in range(lanes):
        index = f.extract(wide, lane)
        address = f.pointer(base, f.convert("zext", index, "i64"), "float")
        result = f.insert(result, f.load("float", address), lane)
    return result


def _widen_half(f: Function, bits: Value, single: str) -> Value:
    """fp16 bits as fp32 without hardware: shift into place, then scale, which fits denormals."""
    word = bits.type
    magnitude = f.binary("shl", f.binary("and", bits, f.number(0x7FFF, word)), f.number(13, word))
    shifted = f.convert("bitcast", magnitude, single)
    scaled = f.convert("bitcast", f.binary("fmul", shifted, f.number(2.0**112, single)), word)
    special = f.icmp("uge", magnitude, f.number(0x0F800000, word))
    infinite = f.binary("or", magnitude, f.number(0x7F800000, word))
    sign = f.binary("shl", f.binary("and", bits, f.number(0x8000, word)), f.number(16, word))
    return f.convert("bitcast", f.binary("or", f.select(special, infinite, scaled), sign), single)


def _narrow(f: Function, value: Value, target: DType) -> Value:
    """fp32 to a 16- or 8-bit float, round to nearest even."""
    lanes = lanes_of(value.type)
    if target == float16 and f.cpu.half:
        half = f.convert("fptrunc", value, vector_type("half", lanes))
        return f.convert("bitcast", half, vector_type("i16", lanes))
    word = vector_type("i32", lanes)
    bits = f.convert("bitcast", value, word)
    nan = f.fcmp("uno", value, value)
    if target == bfloat16:
        odd = f.binary("and", f.binary("lshr", bits, f.number(16, word)), f.number(1, word))
        bias = f.binary("add", odd, f.number(0x7FFF, word))
        rounded = f.binary("lshr", f.binary("add", bits, bias), f.number(16, word))
        sign = f.binary("and", f.binary("lshr", bits, f.number(16, word)), f.number(0x8000, word))
        quiet = f.binary("or", sign, f.number(0x7FC0, word))
        return f.convert("trunc", f.select(nan, quiet, rounded), vector_type("i16", lanes))
    layout = _HALF if target == float16 else _FLOAT8.get(target)
    if layout is None:
        raise _unsupported(target)
    return _to_narrow(f, bits, nan, layout)


def _to_narrow(f: Function, bits: Value, nan: Value, layout: NarrowFloat) -> Value:
    word, lanes = bits.type, lanes_of(bits.type)
    single = vector_type("float", lanes)

    def const(value: int) -> Value:
        return f.number(value, word)

    magnitude = f.binary("and", bits, const(0x7FFFFFFF))
    size = f.convert("bitcast", magnitude, single)
    shift = 23 - layout.mantissa
    odd = f.binary("and", f.binary("lshr", magnitude, const(shift)), const(1))
    carry = f.binary("add", odd, const((1 << (shift - 1)) - 1))
    normal = f.binary("lshr", f.binary("add", magnitude, carry), const(shift))
    normal = f.binary("sub", normal, const((127 - layout.bias) << layout.mantissa))
    # Adding a power of two whose last place is the denormal step rounds in hardware.
    step = 1 - layout.bias - layout.mantissa
    magic = f.number(2.0 ** (step + 23), single)
    shifted = f.convert("bitcast", f.binary("fadd", size, magic), word)
    denormal = f.binary("sub", shifted, f.convert("bitcast", magic, word))
    small = f.fcmp("olt", size, f.number(2.0 ** (1 - layout.bias), single))
    result = f.select(small, denormal, normal)
    large = f.fcmp("oge", size, f.number(layout.first_overflow, single))
    result = f.select(large, const(layout.overflow), result)
    result = f.select(nan, const(layout.nan), result)
    place = const(32 - layout.bits)
    sign = f.binary("and", f.binary("lshr", bits, place), const(1 << (layout.bits - 1)))
    return f.convert("trunc", f.binary("or", result, sign), vector_type(f"i{layout.bits}", lanes))


def constant(f: Function, value: bool | int | float, dtype: DType, lanes: int) -> Value:
    """A Python number as an element of ``dtype``: integers wrap, floats round and saturate."""
    kind = vector_type(storage(dtype), lanes)
    element = immediate(value, dtype)
    if dtype in _FLOATS:
        return f.number(float(element), kind)
    bits = int.from_bytes(element.tobytes(), "little")
    return f.number(bits, kind)


def immediate(value: bool | int | float, dtype: DType) -> Any:
    """A Python number as a NumPy scalar of ``dtype``, by the simulator's rule for immediates."""
    return element_of(value, dtype)[()]
