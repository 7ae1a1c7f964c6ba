"""The tile program: NeuronCore instructions over HBM buffers, SBUF tiles and PSUM tiles.

This is the one form that the host code generator, the simulator and the NKI printer consume.
A ``TileProgram`` calls kernels in order over HBM buffers. A ``Kernel`` is a tree of statements:
tile allocations, instructions and loops. Instruction names, operand names and attributes are
declared in ``isa``; this module only gives the data.

Two kinds of access pattern exist, both counted in elements and written outer to inner:

* ``HbmAccess``: ``offset + Σ stride·index``; with ``index`` each partition row ``p`` of the
  transfer adds ``index_tile[p]·index_stride`` (indirect DMA).
* ``TileAccess``: partitions ``start .. start+partitions-1``, and per partition
  ``offset + Σ stride·index`` inside the tile's free storage.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np

from trnx.compiler.tile.expr import Expr, Index, mul, scale
from trnx.core.source import Source

SBUF = "sbuf"
PSUM = "psum"


@dataclass(frozen=True, slots=True)
class Span:
    """One dimension of an access pattern: ``count`` steps of ``stride`` elements."""

    stride: Index
    count: Index


@dataclass(frozen=True, slots=True)
class Tile:
    """An on-chip tile. ``shape[0]`` counts partitions, the rest is the free size in elements.

    ``address`` is ``(start partition, byte offset inside the partition)`` once placed. ``copies``
    rotating buffers let iteration i+1 of the enclosing loop load while iteration i computes;
    copy ``c`` lives ``c`` times the tile's size in bytes per partition further on.
    """

    name: str
    memory: str
    shape: tuple[int, ...]
    dtype: np.dtype
    address: tuple[int, int] | None = None
    copies: int = 1

    @property
    def free_size(self) -> int:
        """Elements per partition."""
        return math.prod(self.shape[1:])

    @property
    def free_bytes(self) -> int:
        """Bytes per partition of one copy."""
        return self.free_size * self.dtype.itemsize

    def access(
        self,
        partitions: Index | None = None,
        spans: tuple[Span, ...] | None = None,
        *,
        start: int = 0,
        offset: Index = 0,
    ) -> TileAccess:
        """An access to this tile; the whole tile by default."""
        if spans is None:
            spans = row_major(self.shape[1:])
        count = self.shape[0] if partitions is None else partitions
        return TileAccess(self.name, start, count, offset, spans)


@dataclass(frozen=True, slots=True)
class TileAccess:
    """An access pattern into a tile; every partition uses the same free pattern."""

    tile: str
    start: int
    partitions: Index
    offset: Index
    spans: tuple[Span, ...]

    @property
    def shape(self) -> tuple[Index, ...]:
        """``(partitions, free counts …)``."""
        return (self.partitions, *(s.count for s in self.spans))


@dataclass(frozen=True, slots=True)
class HbmAccess:
    """An access pattern into an HBM buffer, in elements from the buffer's base.

    With ``index`` (a ``[P, 1]`` int32/uint32 tile) the first span's stride is ignored and row
    ``p`` starts at ``offset + index[p]·spans[0].stride`` instead (indirect gather or scatter).
    """

    buffer: str
    offset: Index
    spans: tuple[Span, ...]
    index: TileAccess | None = None

    @property
    def shape(self) -> tuple[Index, ...]:
        """Counts of the spans."""
        return tuple(s.count for s in self.spans)


@dataclass(frozen=True, slots=True)
class Predicate:
    """An affine predicate of loop indices, e.g. ``k > 0``; ``relation`` is ``> >= == < <= !=``."""

    left: Index
    relation: str
    right: Index

    def __str__(self) -> str:
        return f"{self.left} {self.relation} {self.right}"


Access: TypeAlias = TileAccess | HbmAccess
Immediate: TypeAlias = "int | float | bool"
Operand: TypeAlias = "Access | Immediate | RegisterValue | None"


@dataclass(frozen=True, slots=True)
class RegisterValue:
    """A register (or an expression of registers) used as a scalar operand."""

    value: Index


Attribute: TypeAlias = (
    "str | int | float | bool | None | Expr | Predicate | tuple[Index, ...] "
    "| tuple[tuple[Index, ...], ...]"
)


@dataclass(frozen=True, slots=True)
class Instruction:
    """One NeuronCore instruction.

    ``outs`` and ``ins`` follow the operand order ``isa.SPECS[op]`` declares; an absent optional
    input is ``None``. ``deps`` holds ids of instructions on other queues; of each, the latest
    instance before this one in program order that conflicts with it must have finished (filled by
    ``schedule``; waiting for the latest instance of all is stricter and also right).
    """

    op: str
    outs: tuple[Access, ...]
    ins: tuple[Operand, ...]
    attrs: tuple[tuple[str, Attribute], ...] = ()
    engine: str = ""
    id: int = -1
    deps: tuple[int, ...] = ()
    source: Source | None = field(default=None, compare=False)

    def attr(self, name: str, default: Attribute = None) -> Attribute:
        """The attribute ``name`` or ``default``."""
        for key, value in self.attrs:
            if key == name:
                return value
        return default


@dataclass(frozen=True, slots=True)
class Alloc:
    """Brings a tile into scope until the end of the enclosing body. Contents are undefined."""

    tile: Tile


@dataclass(frozen=True, slots=True)
class For:
    """``for index in range(low, high, step)``.

    Bounds made of constants and outer indices are a static loop (unrolled by NKI's tracer); a
    register in a bound makes it a device loop. ``parallel`` states that iterations touch disjoint
    HBM elements, so they may run in any order or at once; ``legality`` proves it or refuses it.
    """

    index: str
    low: Index
    high: Index
    body: tuple[Statement, ...]
    step: int = 1
    parallel: bool = False


@dataclass(frozen=True, slots=True)
class While:
    """Repeats ``body`` while register ``condition`` is non-zero; the body updates it."""

    condition: str
    body: tuple[Statement, ...]


@dataclass(frozen=True, slots=True)
class RegisterLoad:
    """``register = access[0]``: reads one int32/uint32 element of a ``[1, 1]`` tile or of HBM.

    It waits for everything before it, because the sequencer of every engine reads the register.
    """

    register: str
    access: Access


@dataclass(frozen=True, slots=True)
class RegisterMove:
    """``register = value``."""

    register: str
    value: Index


Statement: TypeAlias = "Alloc | Instruction | For | While | RegisterLoad | RegisterMove"


@dataclass(frozen=True, slots=True)
class Param:
    """An HBM argument of a kernel. ``role`` is ``in``, ``out`` or ``inout``.

    ``strides`` (elements) default to row major; sizes and strides may be registers.
    """

    name: str
    shape: tuple[Index, ...]
    dtype: np.dtype
    role: str
    strides: tuple[Index, ...] | None = None

    @property
    def element_strides(self) -> tuple[Index, ...]:
        """Strides in elements, row major when none were given."""
        if self.strides is not None:
            return self.strides
        return tuple(s.stride for s in row_major(self.shape))


@dataclass(frozen=True, slots=True)
class Kernel:
    """A kernel: HBM params, integer register arguments, and a body."""

    name: str
    params: tuple[Param, ...]
    body: tuple[Statement, ...]
    registers: tuple[str, ...] = ()
    source: Source | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class Buffer:
    """A program-level HBM buffer.

    ``kind`` is ``input``, ``output``, ``constant`` or ``temp``. A temp lives at byte ``offset`` of
    the per-call arena. An output with ``alias`` reuses the memory of that donated input.
    """

    name: str
    shape: tuple[Index, ...]
    dtype: np.dtype
    kind: str
    offset: int | None = None
    alias: str | None = None
    strides: tuple[Index, ...] | None = None


@dataclass(frozen=True, slots=True)
class KernelCall:
    """Runs ``kernels[kernel]`` on program buffers (in param order) with register values."""

    kernel: int
    buffers: tuple[str, ...]
    registers: tuple[Index, ...] = ()


@dataclass(frozen=True, slots=True)
class HostCall:
    """A counted fallback: a named host function over HBM buffers. Never silent."""

    function: str
    ins: tuple[str, ...]
    outs: tuple[str, ...]
    attrs: tuple[tuple[str, Attribute], ...] = ()
    source: Source | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class TileProgram:
    """Kernels called in order over HBM buffers; equal kernels are stored once.

    ``target`` names a row of ``targets.TARGETS``; ``registers`` are run-time integers (sizes and
    strides) that the caller passes; ``arena_bytes`` is the size of the memory the temps share.
    Buffers of kind ``input`` come first in call order, then ``constant``; ``outputs`` gives the
    names of returned buffers in order (an input may be returned directly).
    """

    name: str
    target: str
    buffers: tuple[Buffer, ...]
    kernels: tuple[Kernel, ...]
    calls: tuple[KernelCall | HostCall, ...]
    outputs: tuple[str, ...]
    registers: tuple[str, ...] = ()
    arena_bytes: int = 0

    def __str__(self) -> str:
        from trnx.compiler.tile.text import program_text

        return program_text(self, sources=True)

    def __repr__(self) -> str:
        sizes = (f"{len(self.kernels)} kernel", f"{len(self.calls)} call")
        counts = ", ".join(text if text.startswith("1 ") else f"{text}s" for text in sizes)
        return f"<TileProgram {self.name} for {self.target}: {counts}>"

    def _repr_html_(self) -> str:
        from trnx.compiler.tile.text import program_html

        return program_html(self)


def row_major(shape: tuple[Index, ...]) -> tuple[Span, ...]:
    """Spans of a dense row-major array of ``shape``."""
    spans: list[Span] = []
    stride: Index = 1
    for count in reversed(shape):
        spans.append(Span(stride, count))
        stride = mul(stride, count) if not isinstance(count, int) else scale(stride, count)
    return tuple(reversed(spans))


def walk(body: tuple[Statement, ...]) -> Iterator[Statement]:
    """All statements of a body in program order, loops before their contents."""
    for statement in body:
        yield statement
        if isinstance(statement, For | While):
            yield from walk(statement.body)


def tiles(kernel: Kernel) -> dict[str, Tile]:
    """Every tile of the kernel by name."""
    return {s.tile.name: s.tile for s in walk(kernel.body) if isinstance(s, Alloc)}


def instructions(kernel: Kernel) -> Iterator[Instruction]:
    """Every instruction of the kernel in program order (loop bodies once)."""
    return (s for s in walk(kernel.body) if isinstance(s, Instruction))
