"""What the instructions of a row group compute for a few elements at once.

A ``Chunk`` is a run of ``lanes`` neighbouring elements of a phase's innermost dimension (one
element for the tails of CPUs without masks, and for row scalars). It hands out operand values,
from registers where the phase already has them, and takes results.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from trnx.compiler.host import arithmetic
from trnx.compiler.host.emit import Function, Value, lanes_of, vector_type
from trnx.compiler.host.functions_llvm import transcendental
from trnx.compiler.host.rowops import RowOp
from trnx.compiler.host.types import DType, as_number, constant, convert, is_integral, storage
from trnx.compiler.sim import alu
from trnx.compiler.tile import isa
from trnx.compiler.tile.ir import Access, HbmAccess, RegisterValue, TileAccess
from trnx.core.dtypes import bool_, float32, float64, int32
from trnx.core.errors import TileError, message


@dataclass(frozen=True, slots=True)
class Partial:
    """A reduction's contribution from one chunk: the values to be combined with ``op``."""

    op: str
    value: Value
    dtype: DType


Result = Value | Partial


@dataclass(slots=True)
class Chunk:
    """Access to operands at the present position; see the module docstring.

    ``read`` returns a walk's elements in its own dtype; ``index_value`` an expression as i64;
    ``affine`` the int32 value of an operation's affine pattern.
    """

    f: Function
    lanes: int
    native: bool
    dtype_of: Callable[[Access], DType]
    read: Callable[[RowOp, Any], Value]
    index_value: Callable[[Any], Value]
    affine: Callable[[RowOp], Value]
    _converted: dict[tuple[str, DType, DType], Value] = field(default_factory=dict)

    # Operands ---------------------------------------------------------------------------------

    def cast(self, value: Value, source: DType, target: DType) -> Value:
        """``convert`` that does each conversion of a value once."""
        if source == target and not arithmetic.is_mask(value):
            return value
        key = (value.text, source, target)
        if key not in self._converted:
            self._converted[key] = convert(self.f, value, source, target)
        return self._converted[key]

    def tile(self, op: RowOp, position: int, dtype: DType) -> Value:
        """Source operand ``position`` as ``dtype``."""
        walk = op.sources[position]
        if walk is None:
            raise _error(op, f"operand {position} is no tile", "Pass an access")
        return self.cast(self.read(op, walk), walk.dtype, dtype)

    def scalar(self, op: RowOp, position: int, dtype: DType) -> Value | None:
        """A tile, immediate or register operand as ``dtype``; None when absent."""
        if position >= len(op.instruction.ins):
            return None
        operand = op.instruction.ins[position]
        if operand is None:
            return None
        if isinstance(operand, TileAccess | HbmAccess):
            return self.tile(op, position, dtype)
        if isinstance(operand, RegisterValue):
            whole = self.index_value(operand.value)
            return self.f.splat(convert(self.f, whole, np.dtype(np.int64), dtype), self.lanes)
        return self.number(operand, dtype)

    def number(self, value: bool | int | float, dtype: DType) -> Value:
        """An immediate operand of an arithmetic instruction."""
        kind = vector_type(storage(dtype), self.lanes)
        if is_integral(dtype) and isinstance(value, float):
            return constant(self.f, value, dtype, self.lanes)
        return self.f.number(value, kind)


def _error(op: RowOp, cause: str, remedy: str) -> TileError:
    return TileError(message(f"{op.instruction.op}: {cause}", op.instruction.source, remedy))


def _name(op: RowOp, key: str, default: str = "") -> str:
    value = op.instruction.attr(key)
    return value if isinstance(value, str) else default


def compute(chunk: Chunk, op: RowOp) -> list[Result]:
    """The results of ``op``: values in the dtype of each destination, or partial reductions."""
    return _TABLE[op.instruction.op](chunk, op)


def compute_dtype(
    native: bool, dtype_of: Callable[[Access], DType], op: RowOp, names: list[str]
) -> DType:
    """The dtype ``op`` computes in, by the simulator's rule."""
    instruction = op.instruction
    native = native or isa.is_extension(instruction, dtype_of)
    exact = instruction.engine == isa.GPSIMD and isa.is_exact_integer(instruction, dtype_of)
    return alu.compute_dtype(
        [w.dtype for w in op.sources if w is not None],
        op.results[0][0].dtype,
        names,
        native=native,
        float_immediate=any(isinstance(v, float) for v in instruction.ins),
        exact_integer=exact,
    )


def reduction_dtype(
    native: bool, dtype_of: Callable[[Access], DType], op: RowOp, name: str
) -> DType:
    """The dtype in which the reduction of ``op`` by operator ``name`` is combined."""
    data = op.sources[0]
    assert data is not None
    if op.instruction.op == "activation":
        return _float_dtype(native, op)
    if alu.is_bitvec([name]):
        return np.dtype(f"u{data.dtype.itemsize}")
    return compute_dtype(native, dtype_of, op, [name])


def _float_dtype(native: bool, op: RowOp) -> DType:
    dtypes = [w.dtype for w in op.sources if w is not None]
    double = native and float64 in (*dtypes, op.results[0][0].dtype)
    return float64 if double else float32


def _dma_add(chunk: Chunk, op: RowOp) -> list[Result]:
    source, old = op.sources[0], op.old
    assert source is not None and old is not None
    dtype = accumulation_dtype(old.dtype)
    addend = copy_cast(chunk, chunk.read(op, source), source.dtype, dtype, True)
    kept = chunk.cast(chunk.read(op, old), old.dtype, dtype)
    total = arithmetic.apply(chunk.f, "add", kept, as_number(chunk.f, addend, dtype), dtype)
    return [chunk.cast(total, dtype, old.dtype)]


def accumulation_dtype(destination: DType) -> DType:
    """The dtype in which a DMA adds to ``destination``."""
    if is_integral(destination):
        return destination
    return float64 if destination == float64 else float32


def copy_cast(chunk: Chunk, value: Value, source: DType, target: DType, exact: bool) -> Value:
    """The cast of a copy: through fp32 or f64, exact between integers where ``exact``."""
    if source == target:
        return value
    if not (exact and is_integral(source) and is_integral(target)):
        middle = float64 if float64 in (source, target) else float32
        value, source = chunk.cast(value, source, middle), middle
    return chunk.cast(value, source, target)


def _move(chunk: Chunk, op: RowOp) -> list[Result]:
    walk = op.sources[0]
    assert walk is not None
    long = isa.is_extension(op.instruction, chunk.dtype_of)
    exact = op.instruction.op == "dma_copy" or chunk.native or long
    value = chunk.read(op, walk)
    return [copy_cast(chunk, value, walk.dtype, op.results[0][0].dtype, exact)]


def _memset(chunk: Chunk, op: RowOp) -> list[Result]:
    value = op.instruction.ins[0]
    assert isinstance(value, bool | int | float)
    return [constant(chunk.f, value, op.results[0][0].dtype, chunk.lanes)]


def _activation(chunk: Chunk, op: RowOp) -> list[Result]:
    f, dtype = chunk.f, _float_dtype(chunk.native, op)
    x = chunk.tile(op, 0, dtype)
    scale, bias = chunk.scalar(op, 2, dtype), chunk.scalar(op, 1, dtype)
    if scale is not None:
        x = f.binary("fmul", x, scale)
    if bias is not None:
        x = f.binary("fadd", x, bias)
    name = _name(op, "op")
    y = arithmetic.activation(f, name, x)
    if y is None:
        y = transcendental(f, name, x)
    results: list[Result] = [chunk.cast(y, dtype, op.results[0][0].dtype)]
    if len(op.results) > 1:
        if _name(op, "reduce_op", "add") != "add":
            raise _error(op, "activation reduces with add only", "Use reduce_op='add'")
        results.append(Partial("add", y, dtype))
    return results


def _reciprocal(chunk: Chunk, op: RowOp) -> list[Result]:
    dtype = _float_dtype(chunk.native, op)
    x = chunk.tile(op, 0, dtype)
    y = chunk.f.binary("fdiv", chunk.f.number(1.0, x.type), x)
    return [chunk.cast(y, dtype, op.results[0][0].dtype)]


def _raw_bits(chunk: Chunk, op: RowOp, position: int, width: int) -> Value:
    """An operand as unsigned integers of ``width`` bytes: raw bits, or an integer cast."""
    kind = vector_type(f"i{8 * width}", chunk.lanes)
    operand = op.instruction.ins[position] if position < len(op.instruction.ins) else None
    walk = op.sources[position] if position < len(op.sources) else None
    if walk is None:
        if isinstance(operand, float):
            raise _error(op, "a bitwise operator with a float", "Pass an integer")
        if isinstance(operand, RegisterValue):
            whole = chunk.index_value(operand.value)
            narrow = chunk.f.convert("trunc", whole, f"i{8 * width}")
            return chunk.f.splat(narrow, chunk.lanes)
        assert operand is None or isinstance(operand, bool | int)
        return chunk.f.number(int(operand or 0), kind)
    value = as_number(chunk.f, chunk.read(op, walk), walk.dtype)
    if walk.dtype.itemsize == width:
        return chunk.f.convert("bitcast", value, kind)
    return chunk.cast(value, walk.dtype, np.dtype(f"u{width}"))


def _from_bits(chunk: Chunk, bits: Value, data: DType, destination: DType) -> Value:
    f = chunk.f
    if data == bool_:
        bits = f.binary("and", bits, f.number(1, bits.type))
    if destination.itemsize == data.itemsize and destination != bool_:
        return f.convert("bitcast", bits, vector_type(storage(destination), chunk.lanes))
    unsigned = data if data.kind == "i" else np.dtype(f"u{data.itemsize}")
    return chunk.cast(bits, unsigned, destination)


def _chain(chunk: Chunk, op: RowOp, steps: list[tuple[str, int, bool]]) -> list[Result]:
    """Operand 0 through ``(operator, operand position, reverse)`` steps."""
    names = [name for name, _, _ in steps]
    data, destination = op.sources[0], op.results[0][0].dtype
    if data is None:
        raise _error(op, "operand 0 is no tile", "Pass an access")
    if alu.is_bitvec(names):
        width = data.dtype.itemsize
        bits = _raw_bits(chunk, op, 0, width)
        for name, position, reverse in steps:
            other = _raw_bits(chunk, op, position, width)
            left, right = (other, bits) if reverse else (bits, other)
            bits = arithmetic.bits(chunk.f, name, left, right)
        return [_from_bits(chunk, bits, data.dtype, destination)]
    dtype = compute_dtype(chunk.native, chunk.dtype_of, op, names)
    result = chunk.tile(op, 0, dtype)
    for name, position, reverse in steps:
        operand = chunk.scalar(op, position, dtype)
        if operand is None:
            operand = chunk.number(0, dtype)
        left, right = (operand, result) if reverse else (result, operand)
        result = arithmetic.apply(chunk.f, name, left, right, dtype)
    return [chunk.cast(result, dtype, destination)]


def _tensor_tensor(chunk: Chunk, op: RowOp) -> list[Result]:
    return _chain(chunk, op, [(_name(op, "op"), 1, False)])


def _tensor_scalar(chunk: Chunk, op: RowOp) -> list[Result]:
    attr = op.instruction.attr
    steps = [(_name(op, "op0"), 1, bool(attr("reverse0", False)))]
    if _name(op, "op1"):
        steps.append((_name(op, "op1"), 2, bool(attr("reverse1", False))))
    return _chain(chunk, op, steps)


def _tensor_reduce(chunk: Chunk, op: RowOp) -> list[Result]:
    name = _name(op, "op")
    data = op.sources[0]
    assert data is not None
    if alu.is_bitvec([name]):
        return [Partial(name, _raw_bits(chunk, op, 0, data.dtype.itemsize), _unsigned(data.dtype))]
    dtype = compute_dtype(chunk.native, chunk.dtype_of, op, [name])
    value = chunk.tile(op, 0, dtype)
    if name in ("logical_and", "logical_or"):
        value = arithmetic.truth(chunk.f, value, dtype)
    return [Partial(name, value, dtype)]


def _unsigned(dtype: DType) -> DType:
    return np.dtype(f"u{dtype.itemsize}")


def finish_reduction(chunk: Chunk, op: RowOp, total: Value, partial_dtype: DType) -> Value:
    """The combined elements of a reduction as the destination's dtype."""
    walk = op.results[-1][0]
    instruction = op.instruction
    if instruction.op == "tensor_reduce":
        name = _name(op, "op")
        data = op.sources[0]
        assert data is not None
        if alu.is_bitvec([name]):
            return _from_bits(chunk, total, data.dtype, walk.dtype)
        if instruction.attr("negate", False):
            total = as_number(chunk.f, total, partial_dtype)
            if is_integral(partial_dtype):
                total = chunk.f.binary("sub", chunk.f.number(0, total.type), total)
            else:
                total = chunk.f.unary("fneg", total)
    return chunk.cast(total, partial_dtype, walk.dtype)


def _predicated(chunk: Chunk, op: RowOp) -> list[Result]:
    predicate, old = op.sources[1], op.old
    assert predicate is not None and old is not None
    if not is_integral(predicate.dtype):
        raise _error(
            op, f"a predicate of dtype {predicate.dtype}", "Use a bool, uint8, int32 or uint32 tile"
        )
    mask = arithmetic.truth(chunk.f, chunk.read(op, predicate), predicate.dtype)
    if op.instruction.attr("reverse_pred", False):
        mask = chunk.f.binary("xor", mask, chunk.f.number(1, mask.type))
    source = op.instruction.ins[0]
    if isinstance(source, bool | int | float):
        value = constant(chunk.f, source, old.dtype, chunk.lanes)
    else:
        value = chunk.tile(op, 0, old.dtype)
    value = as_number(chunk.f, value, old.dtype)
    kept = as_number(chunk.f, chunk.read(op, old), old.dtype)
    return [chunk.f.select(mask, value, kept)]


def _iota(chunk: Chunk, op: RowOp) -> list[Result]:
    return [chunk.cast(chunk.affine(op), int32, op.results[0][0].dtype)]


def _affine_select(chunk: Chunk, op: RowOp) -> list[Result]:
    f = chunk.f
    affine = chunk.affine(op)
    zero = f.number(0, affine.type)
    mask = arithmetic.apply(f, _name(op, "cmp_op", "equal"), affine, zero, int32)
    walk = op.sources[0]
    assert walk is not None
    target = op.results[0][0].dtype
    kept = as_number(f, copy_cast(chunk, chunk.read(op, walk), walk.dtype, target, False), target)
    other = op.instruction.ins[1]
    assert isinstance(other, bool | int | float)
    value = f.select(mask, kept, constant(f, other, target, lanes_of(affine.type)))
    return [value]


def _scalar_tensor_tensor(chunk: Chunk, op: RowOp) -> list[Result]:
    attr = op.instruction.attr
    return _chain(
        chunk,
        op,
        [
            (_name(op, "op0"), 1, bool(attr("reverse0", False))),
            (_name(op, "op1"), 2, bool(attr("reverse1", False))),
        ],
    )


_TABLE: dict[str, Callable[[Chunk, RowOp], list[Result]]] = {
    "dma_copy": _move,
    "tensor_copy": _move,
    "memset": _memset,
    "activation": _activation,
    "reciprocal": _reciprocal,
    "tensor_tensor": _tensor_tensor,
    "tensor_scalar": _tensor_scalar,
    "scalar_tensor_tensor": _scalar_tensor_tensor,
    "tensor_reduce": _tensor_reduce,
    "tensor_copy_predicated": _predicated,
    "iota": _iota,
    "affine_select": _affine_select,
    "dma_compute": _dma_add,
}
