"""Elementwise primitives as instructions, merged two or three to an instruction where one exists.

What merges: a chain of two scalar operations (`tensor_scalar`), a scalar operation and a second
tile (`scalar_tensor_tensor`), scale and bias of a function and the sum of its results
(`activation`), widening conversions of operands and narrowing ones of results (every instruction
casts on the way in and out). A merged node has one use, so nothing is computed twice.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from trnx.compiler.kernels.emitter import Emitter, Number, Value
from trnx.compiler.kernels.group import Node
from trnx.compiler.kernels.registry import Kind, lowers
from trnx.compiler.targets import Target
from trnx.compiler.tile import isa
from trnx.compiler.tile.views import TileView
from trnx.core import LoweringError, message, short_name
from trnx.core.dtypes import (
    float32,
    float64,
    int32,
    int64,
    is_bool,
    is_complex,
    is_float,
    is_integer,
    is_unsigned_integer,
    uint32,
    uint64,
)

ALU = {
    "add": "add",
    "sub": "subtract",
    "mul": "multiply",
    "max": "maximum",
    "min": "minimum",
    "pow": "power",
    "eq": "equal",
    "ne": "not_equal",
    "lt": "less",
    "le": "less_equal",
    "gt": "greater",
    "ge": "greater_equal",
    "and": "bitwise_and",
    "or": "bitwise_or",
    "xor": "bitwise_xor",
    "shift_left": "left_shift",
    "shift_right_logical": "right_shift",
    "shift_right_arithmetic": "arithmetic_shift_right",
    "floor_divide": "floordivide",
    "remainder": "remainder",
}
"""Binary primitives -> ALU operators."""

_ON_BOOL = {
    "and": "logical_and",
    "or": "logical_or",
    "xor": "logical_xor",
    "max": "logical_or",
    "min": "logical_and",
}
_COMMUTATIVE = frozenset(
    {"add", "multiply", "maximum", "minimum", "equal", "not_equal"}
    | {"bitwise_and", "bitwise_or", "bitwise_xor", "logical_and", "logical_or", "logical_xor"}
)
FUNCTIONS = {
    "exp": "exp",
    "log": "log",
    "tanh": "tanh",
    "logistic": "sigmoid",
    "erf": "erf",
    "sqrt": "sqrt",
    "rsqrt": "rsqrt",
    "abs": "abs",
    "sign": "sign",
    "sin": "sin",
    "square": "square",
    "silu": "silu",
}
"""Primitives and merged patterns -> functions of `activation`."""


def is_native(target: Target) -> bool:
    """Whether the target has the operators no NeuronCore has (true division, 64-bit)."""
    return target.native_f64


def alu_name(node: Node) -> str:
    """The ALU operator of a binary node, which depends on bool operands."""
    if is_bool(node.operands[0].dtype) and node.op in _ON_BOOL:
        return _ON_BOOL[node.op]
    return ALU[node.op]


# Forms ------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ScalarForm:
    """``data op scalar`` (``scalar op data`` when reversed), scalar a number or row scalar."""

    op: str
    data: Node
    scalar: Node | Number
    reverse: bool

    @property
    def is_bitvec(self) -> bool:
        """Whether the operator works on bits."""
        return isa.ALU[self.op].kind == "bitvec"


def scalar_form(e: Emitter, node: Node) -> ScalarForm | None:
    """The node as an operation of a tile with a row scalar, if it is one."""
    if node.op == "neg":
        return ScalarForm("multiply", node.operands[0], -1 if _is_int(node.dtype) else -1.0, False)
    if node.op not in ALU:
        return None
    x, y = node.operands
    op = alu_name(node)
    if e.is_number(x) and e.is_number(y):
        return None
    if e.is_row(y) and not e.is_number(x):
        return ScalarForm(op, x, y, False)
    if e.is_row(x):
        return ScalarForm(op, y, x, op not in _COMMUTATIVE)
    return None


def _is_int(dtype: np.dtype[Any]) -> bool:
    return is_integer(dtype)


def _merges(inner: ScalarForm, dtype: np.dtype[Any], outer: str, result: np.dtype[Any]) -> bool:
    """Whether `inner` (of `dtype`) may be computed inside the instruction of `outer`."""
    outer_bits = isa.ALU[outer].kind == "bitvec"
    if inner.is_bitvec or outer_bits:
        return inner.is_bitvec and outer_bits and dtype == result
    if "power" in (inner.op, outer):
        return False
    return is_float(dtype) or (is_bool(dtype) and is_float(inner.data.dtype))


def _operand(e: Emitter, node: Node, peer: Node | Number) -> Node:
    """The node an instruction may read instead: widening casts happen on the way in.

    Only where the instruction computes in fp32 anyway: the peer is a float.
    """
    if node.op != "convert" or node in e.values or node.dtype != float32:
        return node
    (source,) = node.operands
    floats = isinstance(peer, float) or (isinstance(peer, Node) and is_float(peer.dtype))
    narrow = source.dtype.itemsize <= 4 and source.op != "literal" and not is_complex(source.dtype)
    return source if floats and narrow and source.dtype != float64 else node


# Binary -----------------------------------------------------------------------------------------


@lowers(Kind.ELEMENTWISE, *ALU)
def binary(e: Emitter, node: Node) -> Value:
    """An ALU operation on two operands."""
    x, y = node.operands
    op = alu_name(node)
    if op == "multiply" and x is y and node in e.sums and is_float(node.dtype):
        return function(e, Node("square", (x,), node.dtype, node.axes), key=node)
    gated = _silu_operand(e, node) if op == "multiply" else None
    if gated is not None:
        return function(e, Node("silu", (gated,), node.dtype, node.axes), key=node)
    form = scalar_form(e, node)
    if form is not None:
        return scalar_operation(e, node, form)
    merged = _with_tile(e, node, op)
    if merged is not None:
        return merged
    left, right = _operand(e, x, y), _operand(e, y, x)
    if is_float(left.dtype) is False and is_float(right.dtype) is False and left is not x:
        left = x
    data1, data2 = e.spread(left, node), e.spread(right, node)
    if (e.in_psum(data1) and e.in_psum(data2)) or (op == "power" and e.in_psum(data1)):
        data1 = e.expand(e.in_sbuf(left), node)
    if op == "power" and e.in_psum(data2):
        data2 = e.expand(e.in_sbuf(right), node)
    result = e.tile(node)
    e.builder.tensor_tensor(result, data1, data2, op=op)
    return result


def _silu_operand(e: Emitter, node: Node) -> Node | None:
    """x, when the product is x·logistic(x), one function of the Scalar engine.

    The gelu functions are not recognised likewise: accurate in both tails, they cost the host
    three times what the written-out formula costs.
    """
    x, y = node.operands
    for gate, data in ((x, y), (y, x)):
        if gate.op == "logistic" and gate.operands[0] is data and e.is_private(gate):
            return data if node.dtype in (float32, float64) else None
    return None


def scalar_operation(e: Emitter, node: Node, form: ScalarForm) -> TileView:
    """``tensor_scalar``, with the operation before it when that has this one use."""
    data = _operand(e, form.data, form.scalar)
    inner = scalar_form(e, data) if e.is_private(data) and e.same_shape(data, node) else None
    merges = inner is not None and not e.is_number(inner.data)
    if inner is not None and merges and _merges(inner, data.dtype, form.op, node.dtype):
        source = e.view(_operand(e, inner.data, inner.scalar))
        first = _scalar(e, inner, source)
        second = _scalar(e, form, source)
        result = e.tile(node)
        e.builder.tensor_scalar(
            result,
            source,
            first,
            second,
            op0=inner.op,
            reverse0=inner.reverse,
            op1=form.op,
            reverse1=form.reverse,
        )
        return result
    source = e.view(data)
    if form.op == "power" and e.in_psum(source):
        source = e.in_sbuf(data)
    scalar = _scalar(e, form, source)
    result = e.tile(node)
    e.builder.tensor_scalar(result, source, scalar, op0=form.op, reverse0=form.reverse)
    return result


def _scalar(e: Emitter, form: ScalarForm, data: TileView) -> TileView | Number:
    """The scalar operand; integers stay integers for exact and bitwise operations."""
    if not isinstance(form.scalar, Node):
        return form.scalar
    integers = is_integer(data.dtype) and is_integer(form.scalar.dtype)
    long = data.dtype.itemsize == 8  # 64-bit integers are computed exactly
    exact = integers and (long or form.op in ("add", "subtract", "multiply") or is_native(e.target))
    return e.scalar(form.scalar, exact=exact or form.is_bitvec)


def _with_tile(e: Emitter, node: Node, op: str) -> TileView | None:
    """``scalar_tensor_tensor`` when one operand is a scalar operation with this one use."""
    if isa.ALU[op].kind == "bitvec" or op == "power" or not is_float(node.operands[0].dtype):
        return None
    x, y = node.operands
    for data, other, reverse in ((x, y, False), (y, x, True)):
        if x is y or not e.is_private(data) or not e.same_shape(data, node):
            continue
        inner = scalar_form(e, data)
        if inner is None or e.is_number(inner.data) or e.is_row(inner.data):
            continue
        if not _merges(inner, data.dtype, op, node.dtype):
            continue
        source = e.view(_operand(e, inner.data, inner.scalar))
        scalar = _scalar(e, inner, source)
        second = e.spread(_operand(e, other, data), node)
        if e.in_psum(source) and e.in_psum(second):
            second = e.expand(e.in_sbuf(other), node)
        result = e.tile(node)
        e.builder.scalar_tensor_tensor(
            result,
            source,
            scalar,
            second,
            op0=inner.op,
            reverse0=inner.reverse,
            op1=op,
            reverse1=reverse and op not in _COMMUTATIVE,
        )
        return result
    return None


@lowers(Kind.ELEMENTWISE, "neg")
def negate(e: Emitter, node: Node) -> Value:
    """-x as a product with -1: exact for floats and wrapping integers."""
    form = scalar_form(e, node)
    assert form is not None
    return scalar_operation(e, node, form)


@lowers(Kind.ELEMENTWISE, "not")
def invert(e: Emitter, node: Node) -> Value:
    """Bits of integers inverted, bools negated."""
    (x,) = node.operands
    op = "logical_not" if is_bool(node.dtype) else "bitwise_not"
    source, result = e.view(x), e.tile(node)
    e.builder.tensor_scalar(result, source, 0, op0=op)
    return result


@lowers(Kind.ELEMENTWISE, "div")
def divide(e: Emitter, node: Node) -> Value:
    """x / y: true division where the target has one, else reciprocal and multiply (<= 2 ulp)."""
    x, y = node.operands
    if is_native(e.target):
        as_node = Node("true_divide", (x, y), node.dtype, node.axes, source=node.source)
        return _true_divide(e, as_node)
    if e.is_number(y):
        with np.errstate(all="ignore"):
            inverse: Number = float(np.float32(1.0) / np.float32(y.value))
        form = ScalarForm("multiply", x, inverse, False)
        if not e.is_number(x):
            return scalar_operation(e, node, form)
    inverse_node = e.derived("reciprocal", y, float32)
    if e.is_number(x) and x.value == 1.0 and node.dtype == float32:
        return e.value(inverse_node)
    product = Node("mul", (x, inverse_node), node.dtype, node.axes, source=node.source)
    e.adopt(product, node)
    return binary(e, product)


def _true_divide(e: Emitter, node: Node) -> Value:
    x, y = node.operands
    if e.is_row(y) and not e.is_number(x):
        return scalar_operation(e, node, ScalarForm("divide", x, y, False))
    if e.is_row(x):
        return scalar_operation(e, node, ScalarForm("divide", y, x, True))
    left, right = e.spread(x, node), e.spread(y, node)
    if e.in_psum(left) and e.in_psum(right):
        left = e.expand(e.in_sbuf(x), node)
    result = e.tile(node)
    e.builder.tensor_tensor(result, left, right, op="divide")
    return result


@lowers(Kind.ELEMENTWISE, "reciprocal")
def reciprocal(e: Emitter, node: Node) -> Value:
    """1 / x, correctly rounded to fp32."""
    source, result = e.view(node.operands[0]), e.tile(node)
    e.builder.reciprocal(result, source)
    return result


# Functions --------------------------------------------------------------------------------------


@lowers(Kind.ELEMENTWISE, *FUNCTIONS)
def function(e: Emitter, node: Node, key: Node | None = None) -> Value:
    """``activation`` with scale, bias and the sum of its results merged in.

    Args:
        e: the emitter.
        node: what to compute.
        key: the node of the graph it stands for, when that is another one.
    """
    if not is_float(node.operands[0].dtype):
        raise LoweringError(
            message(
                f"{node.op} of {short_name(node.operands[0].dtype)} has no instruction",
                node.source,
                "Convert to float first",
            )
        )
    key = node if key is None else key
    data, scale, bias = _affine(e, node.operands[0])
    source = e.view(data)
    scale_operand = e.scalar(scale) if isinstance(scale, Node) else scale
    bias_operand: Any = None
    if isinstance(bias, _Negative):
        bias_operand = negative(e, bias.node)
    elif bias is not None:
        bias_operand = e.scalar(bias) if isinstance(bias, Node) else bias
    result = e.tile(key)
    options: dict[str, Any] = {}
    total = e.sums.get(key)
    if total is not None and total not in e.values and is_float(total.dtype):
        column = e.column(total.dtype)
        options = {"reduce_res": e.as_column(column), "reduce_op": "add"}
        e.values[total] = column
    e.builder.activation(
        result, source, bias_operand, scale_operand, op=FUNCTIONS[node.op], **options
    )
    return result


@dataclass(frozen=True, slots=True)
class _Negative:
    """The negative of a row scalar."""

    node: Node


def _affine(
    e: Emitter, node: Node
) -> tuple[Node, Node | Number | None, Node | Number | _Negative | None]:
    """``(data, scale, bias)`` with node = data·scale + bias, as far as private nodes allow."""
    scale: Node | Number | None = None
    bias: Node | Number | _Negative | None = None
    data = node
    form = scalar_form(e, data) if e.is_private(data) and data.op in ("add", "sub") else None
    if form is not None and not e.is_number(form.data) and e.same_shape(form.data, data):
        scalar = form.scalar
        assert isinstance(scalar, Node)
        is_number = e.is_number(scalar)
        if form.op == "add" or form.reverse:
            bias = scalar.value if is_number else scalar
        else:
            bias = -scalar.value if is_number else _Negative(scalar)
        if form.reverse:
            scale = -1.0
        data = form.data
    form = scalar_form(e, data) if e.is_private(data) and data.op in ("mul", "neg") else None
    if form is not None and not e.is_number(form.data) and e.same_shape(form.data, data):
        factor = form.scalar
        if isinstance(factor, Node) and e.is_number(factor):
            factor = factor.value
        if scale is None:
            scale, data = factor, form.data
        elif not isinstance(factor, Node):
            scale, data = -factor, form.data
    if data.op == "convert" and is_float(data.dtype) and (scale, bias) == (None, None):
        data = _operand(e, data, 1.0)
    return data, scale, bias


def negative(e: Emitter, node: Node) -> TileView | Number:
    """The negative of a row scalar, made once; a reduction gives it directly."""
    if e.is_number(node):
        return -node.value
    known = e.negated.get(node)
    if known is None:
        from trnx.compiler.kernels.reduction import reduce_negated

        if node.is_reduction and node not in e.values and is_float(node.dtype):
            known = reduce_negated(e, node)
        if known is None:
            source = e.view(node)
            known = e.scratch(node.axes, float64 if node.dtype == float64 else float32)
            e.builder.tensor_scalar(known, source, -1.0, op0="multiply")
        e.negated[node] = known
    return e.as_column(known[: e.region.rows])


# Select, cast -----------------------------------------------------------------------------------


@lowers(Kind.ELEMENTWISE, "select")
def select(e: Emitter, node: Node) -> Value:
    """Copies one side, then the other where the predicate says so: never a product with a mask."""
    predicate, on_true, on_false = node.operands
    flags = e.spread(predicate, node)
    if _owns_tile(e, on_true, node) and not _owns_tile(e, on_false, node):
        result, other, reverse = _own(e, on_true, node), on_false, True
    else:
        result, other, reverse = _own(e, on_false, node), on_true, False
    value: TileView | Number
    if e.is_number(other):
        value = other.value
    else:
        value = e.spread(other, node)
    e.builder.tensor_copy_predicated(result, value, flags, reverse_pred=reverse)
    return result


def _owns_tile(e: Emitter, side: Node, node: Node) -> bool:
    """Whether the side's own tile may become the result."""
    fresh = e.uses[side] == 1 and side not in e.values and side.op not in ("literal", "dot_general")
    return fresh and e.same_shape(side, node) and e.dtype_of(side) == e.dtype_of(node)


def _own(e: Emitter, side: Node, node: Node) -> TileView:
    """A tile of the result's shape that holds one side and may be overwritten."""
    if _owns_tile(e, side, node):
        view = e.view(side)
        if view.tile.memory != "psum" and view.tile.name in e.fresh:
            return view
        side_view = e.expand(view, node)
    elif e.is_number(side):
        filled = e.tile(node)
        e.builder.memset(filled, side.value)
        return filled
    else:
        side_view = e.spread(side, node)
    result = e.tile(node)
    e.builder.tensor_copy(result, side_view)
    return result


@lowers(Kind.ELEMENTWISE, "stop_gradient", "copy")
def identity(e: Emitter, node: Node) -> Value:
    """The operand itself."""
    return e.value(node.operands[0])


@lowers(Kind.ELEMENTWISE, "convert")
def convert(e: Emitter, node: Node) -> Value:
    """A cast: exact between integers, truncating from float to integer."""
    (x,) = node.operands
    source, target = x.dtype, e.dtype_of(node)
    if is_complex(source) or is_complex(target):
        raise LoweringError(
            message("complex numbers have no tiles", node.source, "Split real and imaginary parts")
        )
    if source == target:
        return e.value(x)
    if is_bool(target):
        flags, data = e.tile(node), e.view(x)
        e.builder.tensor_scalar(flags, data, 0, op0="not_equal")
        return flags
    if is_float(source) and is_integer(target):
        return _truncate(e, x, node)
    if is_float(source) and is_float(target) and _writes_any_dtype(e, x):
        # The instruction that makes x rounds once at its write: let it write the other dtype.
        e.out_dtypes[x] = target
        return e.value(x)
    long = 8 in (source.itemsize, target.itemsize)
    narrows = source.itemsize == 8 and is_integer(target) and target.itemsize < 8
    if narrows and x.op == "load" and not is_native(e.target):
        return _narrowed(e, x, node)
    data = e.view(x)
    result = e.tile(node)
    if is_integer(source) and is_integer(target) and not long and not is_native(e.target):
        integer_cast(e, result, data, lambda dtype: e.tile(node, dtype))
    else:
        e.builder.tensor_copy(result, data)
    return result


@lowers(Kind.ELEMENTWISE, "high_word")
def high_word(e: Emitter, node: Node) -> Value:
    """The upper 32 bits of a 64-bit integer, read from memory as words."""
    (x,) = node.operands
    if x.op == "load":
        return e.load_words(x, 1)
    shifted, result = e.tile(node, int64), e.tile(node)
    e.builder.tensor_scalar(shifted, e.view(x), 32, op0="arith_shift_right")
    e.builder.tensor_copy(result, shifted)
    return result


def _narrowed(e: Emitter, x: Node, node: Node) -> TileView:
    """A 64-bit integer as a shorter one: its low words, read from memory, keep the low bits."""
    low = e.load_words(x, 0)
    target = e.dtype_of(node)
    if target == int32:
        return low
    result = e.tile(node)
    integer_cast(e, result, low, lambda dtype: e.tile(node, dtype))
    return result


def _writes_any_dtype(e: Emitter, x: Node) -> bool:
    """Whether x is an fp32 result that only this cast reads."""
    made = x.op in ALU or x.op in FUNCTIONS or x.op == "neg"
    return made and e.is_private(x) and x not in e.sums and x.dtype == float32


def integer_cast(
    e: Emitter, result: TileView, data: TileView, scratch: Callable[[np.dtype[Any]], TileView]
) -> None:
    """Integer to integer, keeping the low bits, where a plain copy would go through fp32.

    Args:
        e: the emitter.
        result: where to write.
        data: what to cast.
        scratch: gives a tile of a dtype in the shape of the data.
    """
    source, target = data.dtype, result.dtype
    if source.itemsize <= 2 and _holds(target, source):
        e.builder.tensor_copy(result, data)
    elif source.itemsize == target.itemsize:
        e.builder.tensor_scalar(result, data, 0, op0="bitwise_or")
    elif source.itemsize < target.itemsize:  # a signed number as a wider unsigned one
        wide = scratch(int32)
        e.builder.tensor_copy(wide, data)
        integer_cast(e, result, wide, scratch)
    else:
        bits = 8 * target.itemsize
        low = scratch(source)
        mask, half = (1 << bits) - 1, 1 << (bits - 1)
        if is_unsigned_integer(target):
            e.builder.tensor_scalar(low, data, mask, op0="bitwise_and")
            e.builder.tensor_copy(result, low)
        else:
            # (x & mask ^ half) - half is the low bits as a signed number, exact in fp32.
            e.builder.tensor_scalar(low, data, mask, half, op0="bitwise_and", op1="bitwise_xor")
            e.builder.tensor_scalar(result, low, half, op0="subtract", engine="vector")


def _holds(target: np.dtype[Any], source: np.dtype[Any]) -> bool:
    return np.can_cast(source, target)


def _truncate(e: Emitter, x: Node, node: Node) -> TileView:
    """Float to integer: the hardware rounds to nearest, so step back where that went too far.

    With a = |x|, r = nearest(a): trunc(x) = sign(x)·(r - (r > a)). The last write saturates; NaN
    becomes 0.
    """
    target = e.dtype_of(node)
    precise = x.dtype == float64 or target.itemsize == 8
    wide = float64 if precise and is_native(e.target) else float32
    holder: np.dtype[Any] = int64 if target.itemsize == 8 else int32
    if is_unsigned_integer(target) and target.itemsize >= 4:
        holder = uint64 if target.itemsize == 8 else uint32
    data = e.view(x)
    size, whole = e.tile(node, wide), e.tile(node, holder)
    e.builder.activation(size, data, op="abs")
    e.builder.tensor_copy(whole, size)
    nearest, excess = e.tile(node, wide), e.tile(node, wide)
    e.builder.tensor_copy(nearest, whole)
    e.builder.tensor_tensor(excess, nearest, size, op="greater")
    floor, sign = e.tile(node, wide), e.tile(node, wide)
    e.builder.tensor_tensor(floor, nearest, excess, op="subtract")
    e.builder.activation(sign, data, op="sign")
    result = e.tile(node)
    e.builder.tensor_tensor(result, floor, sign, op="multiply")
    return result
