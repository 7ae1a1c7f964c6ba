"""ALU operators and simple activations as LLVM instructions, for vectors and single elements.

Every operator computes what ``compiler/sim/alu.py`` computes, in one dtype for all operands.
Comparisons and logical operators return masks.
"""

from __future__ import annotations

from typing import Final

from trnx.compiler.host.emit import I1, Function, Value, element_type, lanes_of, vector_type
from trnx.compiler.host.types import DType, as_number, is_integral, storage

_FLOAT_COMPARE: Final = {
    "equal": "oeq",
    "not_equal": "une",
    "less": "olt",
    "less_equal": "ole",
    "greater": "ogt",
    "greater_equal": "oge",
}
_INT_COMPARE: Final = {
    "equal": "eq",
    "not_equal": "ne",
    "less": "lt",
    "less_equal": "le",
    "greater": "gt",
    "greater_equal": "ge",
}
_LOGICAL: Final = {"logical_and": "and", "logical_or": "or", "logical_xor": "xor"}


def is_mask(value: Value) -> bool:
    """Whether ``value`` is a compare result."""
    return element_type(value.type) == I1


def truth(f: Function, value: Value, dtype: DType) -> Value:
    """Mask of the non-zero lanes (NaN counts as non-zero)."""
    if is_mask(value):
        return value
    zero = f.number(0, value.type)
    return f.icmp("ne", value, zero) if is_integral(dtype) else f.fcmp("une", value, zero)


def apply(f: Function, op: str, a: Value, b: Value, dtype: DType) -> Value:
    """``a op b``, both of ``dtype`` (or masks); the result is of ``dtype`` or a mask."""
    if op in _LOGICAL:
        return f.binary(_LOGICAL[op], truth(f, a, dtype), truth(f, b, dtype))
    if op == "logical_not":
        mask = truth(f, a, dtype)
        return f.binary("xor", mask, f.number(1, mask.type))
    a, b = as_number(f, a, dtype), as_number(f, b, dtype)
    if op in _FLOAT_COMPARE:
        if is_integral(dtype):
            relation = _INT_COMPARE[op]
            signed = "s" if dtype.kind == "i" else "u"
            return f.icmp(relation if relation in ("eq", "ne") else signed + relation, a, b)
        return f.fcmp(_FLOAT_COMPARE[op], a, b)
    return _integer(f, op, a, b, dtype) if is_integral(dtype) else _float(f, op, a, b)


def _float(f: Function, op: str, a: Value, b: Value) -> Value:
    simple = {"add": "fadd", "subtract": "fsub", "multiply": "fmul", "divide": "fdiv"}
    if op in simple:
        return f.binary(simple[op], a, b)
    if op in ("maximum", "minimum"):
        return extremum(f, op, a, b)
    if op == "power":
        return _power(f, a, b)
    modulo = f.binary("frem", a, b)
    zero, one = f.number(0.0, a.type), f.number(1.0, a.type)
    no_divisor = f.fcmp("oeq", b, zero)
    has_rest = f.fcmp("une", modulo, zero)
    opposite = f.binary("xor", f.fcmp("olt", b, zero), f.fcmp("olt", modulo, zero))
    adjust = f.binary("and", has_rest, opposite)
    if op == "remainder":
        fixed = f.select(adjust, f.binary("fadd", modulo, b), modulo)
        signed_zero = f.intrinsic("copysign", a.type, zero, b)
        return f.select(
            no_divisor, modulo, f.select(f.fcmp("oeq", modulo, zero), signed_zero, fixed)
        )
    assert op == "floordivide", op
    ratio = f.binary("fdiv", a, b)
    quotient = f.binary("fdiv", f.binary("fsub", a, modulo), b)
    quotient = f.select(adjust, f.binary("fsub", quotient, one), quotient)
    floor = f.intrinsic("floor", a.type, quotient)
    above = f.fcmp("ogt", f.binary("fsub", quotient, floor), f.number(0.5, a.type))
    floor = f.select(above, f.binary("fadd", floor, one), floor)
    signed_zero = f.intrinsic("copysign", a.type, zero, ratio)
    floor = f.select(f.fcmp("oeq", quotient, zero), signed_zero, floor)
    return f.select(no_divisor, ratio, floor)


def extremum(f: Function, op: str, a: Value, b: Value) -> Value:
    """``maximum`` or ``minimum`` of floats; NaN when either side is NaN."""
    chosen = f.select(f.fcmp("ogt" if op == "maximum" else "olt", a, b), a, b)
    return f.select(f.fcmp("uno", a, a), a, chosen)


def _power(f: Function, a: Value, b: Value) -> Value:
    double = vector_type("double", lanes_of(a.type))
    result = f.each_lane("pow", f.convert("fpext", a, double), f.convert("fpext", b, double))
    return f.convert("fptrunc", result, a.type)


def _integer(f: Function, op: str, a: Value, b: Value, dtype: DType) -> Value:
    simple = {"add": "add", "subtract": "sub", "multiply": "mul"}
    if op in simple:
        return f.binary(simple[op], a, b)
    signed = dtype.kind == "i"
    if op in ("maximum", "minimum"):
        relation = ("s" if signed else "u") + ("gt" if op == "maximum" else "lt")
        return f.select(f.icmp(relation, a, b), a, b)
    if op == "power":
        return _integer_power(f, a, b, signed)
    zero, one = f.number(0, a.type), f.number(1, a.type)
    none = f.icmp("eq", b, zero)
    divisor = f.select(none, one, b)
    if not signed:
        quotient = f.binary("udiv", a, divisor)
        rest = f.binary("urem", a, divisor)
        return f.select(none, zero, quotient if op == "floordivide" else rest)
    # The smallest number divided by -1 traps; by 1 it gives the wrapped result.
    lowest = f.number(1 << (8 * dtype.itemsize - 1), a.type)
    trap = f.binary("and", f.icmp("eq", a, lowest), f.icmp("eq", b, f.number(-1, a.type)))
    divisor = f.select(trap, one, divisor)
    quotient = f.binary("sdiv", a, divisor)
    rest = f.binary("sub", a, f.binary("mul", quotient, divisor))
    opposite = f.icmp("slt", f.binary("xor", rest, divisor), zero)
    adjust = f.binary("and", f.icmp("ne", rest, zero), opposite)
    if op == "floordivide":
        fixed = f.select(adjust, f.binary("sub", quotient, one), quotient)
    else:
        assert op == "remainder", op
        fixed = f.select(adjust, f.binary("add", rest, divisor), rest)
    return f.select(none, zero, fixed)


def _integer_power(f: Function, a: Value, b: Value, signed: bool) -> Value:
    """Square and multiply; a negative exponent gives 0 unless the base is 1 or -1."""
    zero, one = f.number(0, a.type), f.number(1, a.type)
    negative = f.icmp("slt", b, zero) if signed else f.number(0, f.icmp("eq", a, a).type)
    left = f.select(negative, zero, b)
    bits = int(element_type(a.type)[1:])
    loop = f.begin_loop(
        Value("i64", "0"), Value("i64", str(bits)), carried=[one, a, left], runs=True
    )
    result, square, rest = loop.carried
    odd = f.icmp("ne", f.binary("and", rest, one), zero)
    product = f.select(odd, f.binary("mul", result, square), result)
    after = [product, f.binary("mul", square, square), f.binary("lshr", rest, one)]
    result = f.end_loop(loop, after)[0]
    if not signed:
        return result
    minus = f.number(-1, a.type)
    odd = f.icmp("ne", f.binary("and", b, one), zero)
    alternating = f.select(odd, minus, one)
    of_minus = f.select(f.icmp("eq", a, minus), alternating, zero)
    return f.select(negative, f.select(f.icmp("eq", a, one), one, of_minus), result)


def bits(f: Function, op: str, a: Value, b: Value) -> Value:
    """A bit operator on integers of one width; shift counts are unsigned."""
    simple = {"bitwise_and": "and", "bitwise_or": "or", "bitwise_xor": "xor"}
    if op in simple:
        return f.binary(simple[op], a, b)
    if op == "bitwise_not":
        return f.binary("xor", a, f.number(-1, a.type))
    width = int(element_type(a.type)[1:])
    inside = f.icmp("ult", b, f.number(width, a.type))
    if op == "arithmetic_shift_right":
        return f.binary("ashr", a, f.select(inside, b, f.number(width - 1, a.type)))
    shift = {"left_shift": "shl", "right_shift": "lshr"}[op]
    zero = f.number(0, a.type)
    return f.select(inside, f.binary(shift, a, f.select(inside, b, zero)), zero)


def identity(op: str, dtype: DType) -> float | int:
    """The value that leaves a reduction by ``op`` unchanged, for lanes that hold no element."""
    if op in ("add", "subtract", "bitwise_or", "logical_or", "bitwise_xor"):
        return 0
    if op in ("multiply", "logical_and"):
        return 1
    if op == "bitwise_and":
        return -1
    assert op in ("maximum", "minimum"), op
    if not is_integral(dtype):
        return float("-inf") if op == "maximum" else float("inf")
    width = 8 * dtype.itemsize
    if dtype.kind == "i":
        return -(1 << (width - 1)) if op == "maximum" else (1 << (width - 1)) - 1
    return 0 if op == "maximum" else (1 << width) - 1


def fold(f: Function, op: str, vector: Value, dtype: DType) -> Value:
    """One element: the lanes of ``vector`` combined by a reduction operator, pairwise."""
    lanes = lanes_of(vector.type)
    while lanes > 1:
        lanes //= 2
        halves = []
        for start in (0, lanes):
            order = ", ".join(f"i32 {start + k}" for k in range(lanes))
            kind = vector_type(element_type(vector.type), lanes)
            if lanes == 1:
                halves.append(f.extract(vector, start))
            else:
                text = f"shufflevector {vector}, {vector.type} poison, <{lanes} x i32> <{order}>"
                halves.append(f.emit(kind, text))
        vector = combine(f, op, halves[0], halves[1], dtype)
    return vector


def combine(f: Function, op: str, a: Value, b: Value, dtype: DType) -> Value:
    """Two partial results of a reduction by ``op``; logical operators work on masks."""
    if op in ("bitwise_and", "bitwise_or", "bitwise_xor"):
        return bits(f, op, a, b)
    # A difference is reduced as the sum of what is subtracted.
    return apply(f, "add" if op == "subtract" else op, a, b, dtype)


def activation(f: Function, name: str, x: Value) -> Value | None:
    """The activations that are single float operations; None for the transcendentals."""
    zero = f.number(0.0, x.type)
    if name == "copy":
        return x
    if name == "square":
        return f.binary("fmul", x, x)
    if name == "abs":
        return f.intrinsic("fabs", x.type, x)
    if name == "relu":
        return extremum(f, "maximum", x, zero)
    if name == "sqrt":
        return f.intrinsic("sqrt", x.type, x)
    if name == "sign":
        one = f.number(1.0, x.type)
        size = f.select(f.fcmp("une", x, zero), f.intrinsic("copysign", x.type, one, x), zero)
        return f.select(f.fcmp("uno", x, x), x, size)
    return None


def stored(dtype: DType, lanes: int) -> str:
    """LLVM type of ``lanes`` stored elements."""
    return vector_type(storage(dtype), lanes)
