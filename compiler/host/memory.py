"""Addresses, loads and stores of rows in generated code."""

from __future__ import annotations

from dataclasses import dataclass

from trnx.compiler.host.arithmetic import is_mask
from trnx.compiler.host.emit import (
    I1,
    I32,
    I64,
    PTR,
    Function,
    Value,
    element_type,
    i64,
    mangle,
    size_of,
    vector_type,
)
from trnx.compiler.tile.expr import Index


@dataclass(frozen=True, slots=True)
class TileMemory:
    """Where a tile lives: address of its first row and bytes from row to row (0: one row).

    ``panel`` is the distance of its panels in elements, 0 for a plain tile (see ``layout``).
    """

    base: Value
    pitch: int
    panel: int = 0


def row_pitch(row_bytes: int, rows: int) -> int:
    """Bytes from row to row, a multiple of 64 whose lines spread over all cache sets.

    A pitch near a multiple of 4 KiB would put the same column of every row into one set of the
    first-level cache.
    """
    if rows == 1 or row_bytes <= 64:
        return -(-row_bytes // 64) * 64
    lines = -(-row_bytes // 64)
    # An odd number of lines visits every set before it repeats one.
    return (lines | 1) * 64


def load_elements(
    f: Function, kind: str, address: Value, stride: Index | Value, lanes: int, mask: Value | None
) -> Value:
    """``lanes`` elements of LLVM type ``kind`` from ``address`` on, ``stride`` elements apart."""
    if lanes == 1:
        return f.load(kind, address)
    if isinstance(stride, int) and stride == 0:
        return f.splat(f.load(kind, address), lanes)
    vector = vector_type(kind, lanes)
    align = size_of(kind)
    alignment = Value(I32, str(align))
    if isinstance(stride, int) and stride == 1:
        if mask is None:
            return f.load(vector, address)
        zero = Value(vector, "zeroinitializer")
        suffix = f"{mangle(vector)}.p0"
        return f.intrinsic("masked.load", vector, address, alignment, mask, zero, suffix=suffix)
    if f.cpu.masked and align >= 4:
        pointers = _pointers(f, kind, address, stride, lanes)
        zero = Value(vector, "zeroinitializer")
        every = f.number(1, vector_type(I1, lanes)) if mask is None else mask
        suffix = f"{mangle(vector)}.v{lanes}p0"
        return f.intrinsic("masked.gather", vector, pointers, alignment, every, zero, suffix=suffix)
    result = Value(vector, "zeroinitializer")
    for lane in range(lanes):
        result = _load_lane(f, kind, address, stride, lane, result, mask)
    return result


def _offset(f: Function, stride: Index | Value, lane: int) -> Value:
    if isinstance(stride, int):
        return i64(stride * lane)
    assert isinstance(stride, Value)
    return f.binary("mul nsw", stride, i64(lane))


def _load_lane(
    f: Function,
    kind: str,
    address: Value,
    stride: Index | Value,
    lane: int,
    into: Value,
    mask: Value | None,
) -> Value:
    place = f.pointer(address, _offset(f, stride, lane), kind)
    if mask is None:
        return f.insert(into, f.load(kind, place), lane)
    before, inside, after = f.block, f.new_block(), f.new_block()
    f.branch(f.extract(mask, lane), inside, after)
    f.place(inside)
    loaded = f.insert(into, f.load(kind, place), lane)
    f.jump(after)
    f.place(after)
    return f.phi(into.type, [(into, before), (loaded, inside)])


def _pointers(f: Function, kind: str, address: Value, stride: Index | Value, lanes: int) -> Value:
    """A vector of the addresses of ``lanes`` strided elements."""
    if isinstance(stride, int) and abs(stride) * lanes < 2**31:
        steps = ", ".join(f"i32 {stride * k}" for k in range(lanes))
        offsets = Value(f"<{lanes} x i32>", f"<{steps}>")
    else:
        steps = ", ".join(f"i64 {k}" for k in range(lanes))
        value = i64(stride) if isinstance(stride, int) else stride
        assert isinstance(value, Value)
        ramp = Value(f"<{lanes} x i64>", f"<{steps}>")
        offsets = f.binary("mul nsw", ramp, f.splat(value, lanes))
    return f.emit(f"<{lanes} x ptr>", f"getelementptr {kind}, {address}, {offsets}")


def store_elements(
    f: Function, value: Value, address: Value, stride: Index | Value, lanes: int, mask: Value | None
) -> None:
    """Store ``lanes`` elements; with stride 0 the last (active) lane stays."""
    assert not is_mask(value)
    kind = element_type(value.type)
    align = size_of(kind)
    if lanes == 1:
        f.store(value, address)
        return
    if isinstance(stride, int) and stride == 1:
        if mask is None:
            f.store(value, address)
            return
        name = f"llvm.masked.store.{mangle(value.type)}.p0"
        f.call_void(name, value, address, Value(I32, str(align)), mask)
        return
    if f.cpu.masked and align >= 4:
        pointers = _pointers(f, kind, address, stride, lanes)
        every = f.number(1, vector_type(I1, lanes)) if mask is None else mask
        name = f"llvm.masked.scatter.{mangle(value.type)}.v{lanes}p0"
        f.call_void(name, value, pointers, Value(I32, str(align)), every)
        return
    for lane in range(lanes):
        place = f.pointer(address, _offset(f, stride, lane), kind)
        if mask is None:
            f.store(f.extract(value, lane), place)
            continue
        inside, after = f.new_block(), f.new_block()
        f.branch(f.extract(mask, lane), inside, after)
        f.place(inside)
        f.store(f.extract(value, lane), place)
        f.jump(after)
        f.place(after)


def tail_mask(f: Function, position: Value, end: Value, lanes: int) -> Value:
    """Mask of the lanes of a chunk at ``position`` that lie before ``end``."""
    left = f.convert("trunc", f.binary("sub nsw", end, position), I32)
    steps = ", ".join(f"i32 {k}" for k in range(lanes))
    ramp = Value(f"<{lanes} x i32>", f"<{steps}>")
    return f.icmp("slt", ramp, f.splat(left, lanes))


def byte_address(f: Function, base: Value, elements: Value, itemsize: int, extra: Value) -> Value:
    """``base + elements·itemsize + extra`` bytes."""
    offset = f.binary("mul nsw", elements, i64(itemsize)) if elements.text != "0" else i64(0)
    if extra.text != "0":
        offset = extra if offset.text == "0" else f.binary("add nsw", offset, extra)
    if offset.text == "0":
        return base
    return f.emit(PTR, f"getelementptr i8, {base}, {I64} {offset.text}")
