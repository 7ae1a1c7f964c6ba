"""A compiled program: the tile program and its native code, as they go into the cache."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from trnx.compiler import host, pipeline
from trnx.compiler.tile.ir import TileProgram
from trnx.core.program import Program


@dataclass(frozen=True, slots=True)
class Compiled:
    """What the compiler made of one program.

    Attributes:
        tile_program: the one truth that simulator, host and NKI share.
        native: its host code.
    """

    tile_program: TileProgram
    native: host.HostProgram

    @property
    def segments(self) -> Sequence[Any]:
        """Native segments and host fallbacks in order."""
        return self.native.segments

    def serialize(self) -> bytes:
        """Bytes for the disk cache, which checks them before they are read again."""
        return pickle.dumps((self.tile_program, self.native.serialize()))


def compile_program(program: Program, target: str, donated: Sequence[int] = ()) -> Compiled:
    """Run the whole pipeline and generate host code.

    Args:
        program: closed (no constants), of static sizes.
        target: row of the hardware table.
        donated: positions of inputs whose memory results may take.
    """
    tile_program = pipeline.compile_program(program, target, donated)
    return Compiled(tile_program, host.compile_tile_program(tile_program))


def load(data: bytes) -> Compiled:
    """A compiled program from its serialized form."""
    tile_program, code = pickle.loads(data)
    return Compiled(tile_program, host.load_host_program(tile_program, code))
