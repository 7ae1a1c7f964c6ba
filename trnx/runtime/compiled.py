"""A compiled program: the tile program and its native code, as they go into the cache."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias, cast

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


class Compiled:
    """What the compiler made of one program.

    Calls need the tile program's buffers only, so its kernels stay packed until somebody looks:
    reading them takes longer than linking the code.

    Attributes:
        outline: the tile program without kernels and calls.
        code: its host code.
        segments: native segments and host fallbacks in order.
    """

    __slots__ = ("code", "outline", "segments", "_tiles")

    def __init__(
        self,
        outline: TileProgram,
        code: host.HostCode,
        segments: tuple[Segment, ...],
        tiles: TileProgram | bytes,
    ) -> None:
        self.outline = outline
        self.code = code
        self.segments = segments
        self._tiles = tiles

    @property
    def tile_program(self) -> TileProgram:
        """The one truth that simulator, host and NKI share."""
        tiles = self._tiles
        if isinstance(tiles, bytes):
            self._tiles = tiles = cast(TileProgram, pickle.loads(tiles))
        return tiles

    def serialize(self) -> bytes:
        """Bytes for the disk cache, which checks them before they are read again."""
        tiles = self._tiles
        packed = tiles if isinstance(tiles, bytes) else pickle.dumps(tiles)
        return pickle.dumps((self.outline, self.code, packed))


def _load_code(outline: TileProgram, code: host.HostCode, tiles: TileProgram | bytes) -> Compiled:
    """Load native code into the process and name buffers by position."""
    slots = {buffer.name: slot for slot, buffer in enumerate(outline.buffers)}
    segments: list[Segment] = []
    for step in host.load(code).packed_segments:
        if isinstance(step, int):
            segments.append(NativeSegment(step))
        else:
            ins, outs = (tuple(slots[name] for name in names) for names in (step.ins, step.outs))
            segments.append(HostSegment(step.function, ins, outs, step.attrs, step.source))
    return Compiled(outline, code, tuple(segments), tiles)


def load_code(tile_program: TileProgram, code: host.HostCode) -> Compiled:
    """A compiled program from what the compiler made just now."""
    return _load_code(replace(tile_program, kernels=(), calls=()), code, tile_program)


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
    outline, code, tiles = pickle.loads(data)
    return _load_code(outline, code, tiles)
