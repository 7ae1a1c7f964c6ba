"""A compiled program: the tile program and its native code, as they go into the cache."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from trnx.compiler import host, pipeline
from trnx.compiler.tile.ir import TileProgram
from trnx.core.program import Program
from trnx.core.source import Source


@dataclass(frozen=True, slots=True)
class NativeSegment:
    """One native function over packed slots; loaded code stays as long as the process."""

    address: int


@dataclass(frozen=True, slots=True)
class HostSegment:
    """A counted host fallback over buffers, given by their positions in the tile program."""

    function: str
    ins: tuple[int, ...]
    outs: tuple[int, ...]
    attrs: tuple[tuple[str, Any], ...]
    source: Source | None


Segment: TypeAlias = NativeSegment | HostSegment


@dataclass(frozen=True, slots=True)
class Compiled:
    """What the compiler made of one program.

    Attributes:
        tile_program: the one truth that simulator, host and NKI share.
        code: its host code.
        segments: native segments and host fallbacks in order.
    """

    tile_program: TileProgram
    code: host.HostCode
    segments: tuple[Segment, ...]

    def serialize(self) -> bytes:
        """Bytes for the disk cache, which checks them before they are read again."""
        return pickle.dumps((self.tile_program, self.code))


def load_code(tile_program: TileProgram, code: host.HostCode) -> Compiled:
    """Load native code into the process and name buffers by position."""
    slots = {buffer.name: slot for slot, buffer in enumerate(tile_program.buffers)}
    segments: list[Segment] = []
    for step in host.load(code).packed_segments:
        if isinstance(step, int):
            segments.append(NativeSegment(step))
        else:
            ins, outs = (tuple(slots[name] for name in names) for names in (step.ins, step.outs))
            segments.append(HostSegment(step.function, ins, outs, step.attrs, step.source))
    return Compiled(tile_program, code, tuple(segments))


def compile_program(program: Program, target: str, donated: Sequence[int] = ()) -> Compiled:
    """Run the whole pipeline and generate host code.

    Args:
        program: closed (no constants), of static sizes.
        target: row of the hardware table.
        donated: positions of inputs whose memory results may take.
    """
    tile_program = pipeline.compile_program(program, target, donated)
    return load_code(tile_program, host.compile_program(tile_program))


def load(data: bytes) -> Compiled:
    """A compiled program from its serialized form."""
    tile_program, code = pickle.loads(data)
    return load_code(tile_program, code)
