"""Memory plan: where temporaries live, and which outputs take over donated inputs.

Temporaries share one arena per call: a block is free again after the last kernel that reads it.
Outputs are never reused and never hold a temporary. A donated input of the same type lends its
memory to an output when nothing reads it after the kernel that writes the output, and that kernel
either does not read it or reads each element exactly where it writes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from trnx.compiler.tile.analysis import Loop, visit
from trnx.compiler.tile.expr import symbols
from trnx.compiler.tile.ir import (
    Buffer,
    For,
    HbmAccess,
    HostCall,
    Instruction,
    Kernel,
    TileProgram,
)
from trnx.core import UnsupportedError, message

ALIGNMENT = 64
"""Bytes: a cache line of the host, and a multiple of every DMA element."""


@dataclass(frozen=True, slots=True)
class CallUse:
    """Buffers a call reads and writes, and pairs (read, written) that may be one block."""

    reads: tuple[str, ...]
    writes: tuple[str, ...]
    in_place: frozenset[tuple[str, str]] = frozenset()


def nbytes(buffer: Buffer) -> int:
    """Bytes of a dense buffer of static shape."""
    total = buffer.dtype.itemsize
    for size in buffer.shape:
        if not isinstance(size, int):
            raise UnsupportedError(
                message(f"buffer {buffer.name} has a run-time size", None, "Plan it at run time")
            )
        total *= size
    return total


def plan_memory(
    buffers: Sequence[Buffer], uses: Sequence[CallUse], donated: Sequence[str], returned: set[str]
) -> tuple[tuple[Buffer, ...], int]:
    """Give temporaries offsets and outputs the memory of donated inputs.

    Args:
        buffers: every buffer of the program.
        uses: what each call reads and writes, in order.
        donated: names of inputs whose memory may be taken over.
        returned: names of buffers that the program returns.

    Returns:
        The buffers with `offset` and `alias` filled in, and the bytes of the arena.
    """
    first: dict[str, int] = {}
    last: dict[str, int] = {}
    for number, use in enumerate(uses):
        for name in (*use.reads, *use.writes):
            first.setdefault(name, number)
            last[name] = number
    aliases = _aliases(buffers, uses, donated, returned, last)
    offsets, arena = _pack([b for b in buffers if b.kind == "temp"], first, last)
    planned = tuple(
        replace(b, offset=offsets.get(b.name), alias=aliases.get(b.name)) for b in buffers
    )
    return planned, arena


def _aliases(
    buffers: Sequence[Buffer],
    uses: Sequence[CallUse],
    donated: Sequence[str],
    returned: set[str],
    last: Mapping[str, int],
) -> dict[str, str]:
    by_name = {b.name: b for b in buffers}
    writer = {name: number for number, use in enumerate(uses) for name in use.writes}
    free = [name for name in donated if name not in returned]
    found: dict[str, str] = {}
    for buffer in buffers:
        if buffer.kind != "output" or buffer.name not in writer:
            continue
        number = writer[buffer.name]
        for name in free:
            given = by_name[name]
            same = (given.shape, given.dtype) == (buffer.shape, buffer.dtype)
            if not same or given.strides is not None or last.get(name, -1) > number:
                continue
            reads = name in uses[number].reads
            if reads and (name, buffer.name) not in uses[number].in_place:
                continue
            found[buffer.name] = name
            free.remove(name)
            break
    return found


def _pack(
    temps: Sequence[Buffer], first: Mapping[str, int], last: Mapping[str, int]
) -> tuple[dict[str, int], int]:
    """Offsets by first fit in order of size, so that live ranges never overlap in memory.

    A temporary whose size is only known at run time gets no offset: it is allocated by itself.
    """
    temps = [b for b in temps if all(isinstance(size, int) for size in b.shape)]
    placed: list[tuple[int, int, str]] = []
    offsets: dict[str, int] = {}
    arena = 0
    for buffer in sorted(temps, key=lambda b: (-nbytes(b), b.name)):
        size = -(-max(1, nbytes(buffer)) // ALIGNMENT) * ALIGNMENT
        begin, end = first.get(buffer.name, 0), last.get(buffer.name, 0)
        offset = 0
        for start, stop, other in sorted(placed):
            if last.get(other, 0) < begin or end < first.get(other, 0):
                continue
            if offset + size <= start:
                break
            offset = max(offset, stop)
        placed.append((offset, offset + size, buffer.name))
        offsets[buffer.name] = offset
        arena = max(arena, offset + size)
    return offsets, arena


def plan_program(program: TileProgram, donated: Sequence[int]) -> TileProgram:
    """The program with offsets for its temporaries and aliases for its outputs.

    Args:
        program: kernels need not be placed.
        donated: positions of inputs whose memory an output may take over.
    """
    pairs = [in_place_pairs(kernel) for kernel in program.kernels]
    uses: list[CallUse] = []
    for call in program.calls:
        if isinstance(call, HostCall):
            uses.append(CallUse(call.ins, call.outs))
            continue
        params = program.kernels[call.kernel].params
        of = dict(zip((p.name for p in params), call.buffers, strict=True))
        uses.append(
            CallUse(
                tuple(of[p.name] for p in params if p.role != "out"),
                tuple(of[p.name] for p in params if p.role != "in"),
                frozenset(
                    (of[a], of[b]) for a, b in pairs[call.kernel] if call.buffers.count(of[a]) == 1
                ),
            )
        )
    inputs = [b.name for b in program.buffers if b.kind == "input"]
    given = [inputs[i] for i in donated]
    planned, arena = plan_memory(program.buffers, uses, given, set(program.outputs))
    return replace(program, buffers=planned, arena_bytes=arena)


def in_place_pairs(kernel: Kernel) -> frozenset[tuple[str, str]]:
    """(read, written) parameters that may share memory.

    Each has one access in the kernel, both touch the same elements, and the read comes first: then
    every block has read its elements before it overwrites them, and no other block reads them. A
    loop around both that touches the same elements again would read what it has overwritten.
    """
    reads: dict[str, list[tuple[int, HbmAccess]]] = {}
    writes: dict[str, list[tuple[int, HbmAccess]]] = {}
    loops: list[tuple[Loop, ...]] = []
    for statement, _, around in visit(kernel):
        if not isinstance(statement, Instruction):
            continue
        for operands, found in ((statement.ins, reads), (statement.outs, writes)):
            for operand in operands:
                if isinstance(operand, HbmAccess):
                    found.setdefault(operand.buffer, []).append((len(loops), operand))
        loops.append(around)
    roles = {p.name: p.role for p in kernel.params}
    pairs: set[tuple[str, str]] = set()
    for a, read in reads.items():
        for b, written in writes.items():
            if len(read) != 1 or len(written) != 1 or (roles[a], roles[b]) != ("in", "out"):
                continue
            (first, source), (second, target) = read[0], written[0]
            same = (source.offset, source.spans) == (target.offset, target.spans)
            if not same or source.index is not None or target.index is not None:
                continue
            both = [loop for loop in loops[first] if loop in loops[second]]
            if first < second and all(_moves_along(source, loop) for loop in both):
                pairs.add((a, b))
    return frozenset(pairs)


def _moves_along(access: HbmAccess, loop: Loop) -> bool:
    """Whether every iteration of a loop touches elements of its own."""
    return isinstance(loop, For) and loop.index in symbols(access.offset)
