"""The LLVM builder of ``compiler/tile/functions``, and the C library for f64."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Final

from trnx.compiler.host.emit import Function, Value, float_text, lanes_of, mangle, vector_type
from trnx.compiler.tile.functions import FUNCTIONS

_MAGIC: Final = 12582912.0
_MAGIC_BITS: Final = 0x4B400000


class LlvmBuilder:
    """Emits ``VectorBuilder`` operations for a fixed number of lanes."""

    def __init__(self, f: Function, lanes: int) -> None:
        self.f = f
        self.lanes = lanes
        self._single = vector_type("float", lanes)
        self._double = vector_type("double", lanes)
        self._word = vector_type("i32", lanes)

    def const(self, value: float) -> Value:
        return self.f.number(value, self._single)

    def const_int(self, value: int) -> Value:
        return self.f.number(value, self._word)

    def add(self, a: Value, b: Value) -> Value:
        return self.f.binary("fadd", a, b)

    def sub(self, a: Value, b: Value) -> Value:
        return self.f.binary("fsub", a, b)

    def mul(self, a: Value, b: Value) -> Value:
        return self.f.binary("fmul", a, b)

    def div(self, a: Value, b: Value) -> Value:
        return self.f.binary("fdiv", a, b)

    def inverse(self, a: Value) -> Value:
        f = self.f
        if not (f.cpu.scale and self.lanes == 16):
            return f.binary("fdiv", self.const(1.0), a)
        # 14 good bits, and one Newton step: a third of a division's time.
        every = Value("i16", "-1")
        start = f.call("llvm.x86.avx512.rcp14.ps.512", a.type, a, a, every)
        rest = self.fma(self.neg(a), start, self.const(1.0))
        return self.fma(start, rest, start)

    def sqrt(self, a: Value) -> Value:
        return self.f.intrinsic("sqrt", a.type, a)

    def fma(self, a: Value, b: Value, c: Value) -> Value:
        if self.f.cpu.fma:
            return self.f.intrinsic("fma", a.type, a, b, c)
        # The fp32 product is exact in fp64, so only the sum is rounded twice.
        wide = [self.widen(v) for v in (a, b, c)]
        return self.narrow(self.add(self.mul(wide[0], wide[1]), wide[2]))

    def abs(self, a: Value) -> Value:
        return self.f.intrinsic("fabs", a.type, a)

    def neg(self, a: Value) -> Value:
        return self.f.unary("fneg", a)

    def copysign(self, magnitude: Value, sign: Value) -> Value:
        return self.f.intrinsic("copysign", magnitude.type, magnitude, sign)

    def minimum(self, a: Value, b: Value) -> Value:
        return self.f.select(self.f.fcmp("olt", a, b), a, b)

    def maximum(self, a: Value, b: Value) -> Value:
        return self.f.select(self.f.fcmp("ogt", a, b), a, b)

    def less(self, a: Value, b: Value) -> Value:
        return self.f.fcmp("olt", a, b)

    def equal(self, a: Value, b: Value) -> Value:
        return self.f.fcmp("oeq", a, b)

    def select(self, mask: Value, a: Value, b: Value) -> Value:
        return self.f.select(mask, a, b)

    def round(self, a: Value) -> Value:
        return self.f.intrinsic("rint", a.type, a)

    def scale_by_power(self, a: Value, n: Value) -> Value:
        f = self.f
        if f.cpu.scale and self.lanes == 16:
            every = Value("i16", "-1")
            rounding = Value("i32", "4")
            return f.call("llvm.x86.avx512.mask.scalef.ps.512", a.type, a, n, a, every, rounding)
        # Adding 1.5·2^23 leaves the integer in the low bits, also for nan, where it is arbitrary.
        shifted = self.bits(self.add(n, self.const(_MAGIC)))
        whole = self.int_add(shifted, self.const_int(-_MAGIC_BITS))
        half = self.int_shift_right(whole, 1)
        rest = f.binary("sub", whole, half)
        for part in (half, rest):
            exponent = self.int_shift_left(self.int_add(part, self.const_int(127)), 23)
            a = self.mul(a, self.from_bits(exponent))
        return a

    def bits(self, a: Value) -> Value:
        return self.f.convert("bitcast", a, self._word)

    def from_bits(self, a: Value) -> Value:
        return self.f.convert("bitcast", a, self._single)

    def int_add(self, a: Value, b: Value) -> Value:
        return self.f.binary("add", a, b)

    def int_and(self, a: Value, b: Value) -> Value:
        return self.f.binary("and", a, b)

    def int_shift_left(self, a: Value, count: int) -> Value:
        return self.f.binary("shl", a, self.const_int(count))

    def int_shift_right(self, a: Value, count: int) -> Value:
        return self.f.binary("ashr", a, self.const_int(count))

    def int_to_float(self, a: Value) -> Value:
        return self.f.convert("sitofp", a, self._single)

    def float_to_int(self, a: Value) -> Value:
        return self.f.convert("fptosi", a, self._word)

    def widen(self, a: Value) -> Value:
        return self.f.convert("fpext", a, self._double)

    def narrow(self, a: Value) -> Value:
        return self.f.convert("fptrunc", a, self._single)

    def table(self, entries: Sequence[float], index: Value) -> Value:
        f = self.f
        body = ", ".join(f"double {float_text(x, 'double')}" for x in entries)
        base = f.module.constant(f"[{len(entries)} x double]", f"[{body}]")
        result = Value(self._double, "poison")
        for lane in range(self.lanes):
            position = f.convert("sext", f.extract(index, lane), "i64")
            entry = f.load("double", f.pointer(base, position, "double"))
            result = f.insert(result, entry, lane)
        return result

    def where_any(self, mask: Value, rare: Callable[[], Value], usual: Value) -> Value:
        f = self.f
        some = mask
        if self.lanes > 1:
            some = f.intrinsic("vector.reduce.or", "i1", mask, suffix=mangle(mask.type))
        before, slow, after = f.block, f.new_block("rare"), f.new_block("join")
        f.branch(some, slow, after)
        f.place(slow)
        chosen = f.select(mask, rare(), usual)
        end = f.block
        f.jump(after)
        f.place(after)
        return f.phi(usual.type, [(usual, before), (chosen, end)])


def transcendental(f: Function, name: str, x: Value) -> Value:
    """The activation ``name`` of an fp32 or f64 value.

    Raises:
        KeyError: there is no such function.
    """
    if x.type.startswith(("double", "<")) and "double" in x.type:
        return _double(f, name, x)
    return FUNCTIONS[name](LlvmBuilder(f, lanes_of(x.type)), x)


def _double(f: Function, name: str, x: Value) -> Value:
    """f64 by the C library, one lane at a time; compositions as in the simulator."""
    direct = {"exp": "exp", "log": "log", "tanh": "tanh", "sin": "sin", "arctan": "atan"}
    direct["erf"] = "erf"
    if name in direct:
        return f.each_lane(direct[name], x)
    one, half = f.number(1.0, x.type), f.number(0.5, x.type)

    def mul(a: Value, b: Value) -> Value:
        return f.binary("fmul", a, b)

    if name in ("sigmoid", "silu"):
        e = f.each_lane("exp", f.unary("fneg", x))
        return f.binary("fdiv", one if name == "sigmoid" else x, f.binary("fadd", one, e))
    if name == "softplus":
        e = f.each_lane("exp", f.unary("fneg", f.intrinsic("fabs", x.type, x)))
        positive = f.select(f.fcmp("olt", x, f.number(0.0, x.type)), f.number(0.0, x.type), x)
        return f.binary("fadd", positive, f.each_lane("log1p", e))
    if name == "gelu":
        argument = f.binary("fdiv", f.unary("fneg", x), f.number(math.sqrt(2.0), x.type))
        return mul(mul(half, x), f.each_lane("erfc", argument))
    if name == "gelu_apprx_tanh":
        cube = mul(mul(mul(f.number(0.044715, x.type), x), x), x)
        inner = mul(f.number(math.sqrt(2 / math.pi), x.type), f.binary("fadd", x, cube))
        return mul(mul(half, x), f.binary("fadd", one, f.each_lane("tanh", inner)))
    if name == "rsqrt":
        return f.binary("fdiv", one, f.intrinsic("sqrt", x.type, x))
    if name == "reciprocal":
        return f.binary("fdiv", one, x)
    raise KeyError(name)
