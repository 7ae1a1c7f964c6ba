"""The numbered constraints of tile programs, and the one form of their error texts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, NoReturn

from trnx.compiler.targets import Target
from trnx.compiler.tile.analysis import Env
from trnx.compiler.tile.expr import Index, bounds
from trnx.compiler.tile.ir import (
    Access,
    HbmAccess,
    Instruction,
    Kernel,
    Operand,
    Param,
    Tile,
    TileAccess,
)
from trnx.core.dtypes import short_name
from trnx.core.errors import TileError, message
from trnx.core.source import UNKNOWN_SOURCE, Source


@dataclass(frozen=True, slots=True)
class Constraint:
    """A rule: what must hold, whether only NeuronCores ask for it, and what to do otherwise."""

    number: str
    rule: str
    remedy: str
    hardware: bool = False


def _table(*rows: Constraint) -> dict[str, Constraint]:
    return {row.number: row for row in rows}


CONSTRAINTS: Final = _table(
    Constraint(
        "T1",
        "Names are declared once, before they are used and in scope; ids are unique.",
        "Declare it in this body or in one around it",
    ),
    Constraint(
        "T2",
        "A tile has at most 128 partitions and ends at the last one.",
        "Loop over blocks of at most 128 rows",
    ),
    Constraint(
        "T3",
        "An access stays inside its tile.",
        "Make the tile larger or bound the access with minimum()",
    ),
    Constraint(
        "T4",
        "An access stays inside its HBM parameter.",
        "Bound the access with minimum(), as in minimum(128, n - 128*i) rows",
    ),
    Constraint(
        "T5",
        "Operands of one instruction have one shape (a scalar operand is [P, 1]).",
        "Slice, reshape or broadcast the operands to one shape",
    ),
    Constraint(
        "T6",
        "An on-chip access has at most 4 free dimensions of at most 65,535 steps with strides "
        "that fit into 16 bits.",
        "Split the instruction, or copy to a dense tile first",
        hardware=True,
    ),
    Constraint(
        "T7",
        "Operands are in memories the instruction and its engine reach: GpSimd and DMA do not "
        "reach PSUM, TensorE reads SBUF and writes PSUM.",
        "Copy the tile with tensor_copy on the vector or scalar engine first",
    ),
    Constraint(
        "T8",
        "The instruction and its operators exist on the chosen engine of the target.",
        "Leave the engine out to get the default, or choose another operator",
    ),
    Constraint(
        "T9",
        "At most one of two tile inputs is in PSUM.",
        "Copy one of them to SBUF with tensor_copy",
        hardware=True,
    ),
    Constraint(
        "T10",
        "Dtypes are those the target holds and the instruction computes with, or 64-bit integers.",
        "Cast with tensor_copy or dma_copy, or compile for target cpu",
    ),
    Constraint(
        "T11",
        "Operators are known, native to the target and of the kind the instruction needs.",
        "Choose one of the operators named",
    ),
    Constraint(
        "T12",
        "A matmul has K and M of at most 128 and N of at most one PSUM bank; its shapes are "
        "dst [M, N], stationary [K, M], moving [K, N].",
        "Loop over blocks of 128 along K and M and of 512 along N",
    ),
    Constraint(
        "T13",
        "The destination of a matmul lies in one PSUM bank (2 KiB per partition).",
        "Use at most 512 fp32 columns per matmul, starting at a multiple of 512",
    ),
    Constraint(
        "T14",
        "A transpose writes [F, P] of data [P, F]: at most 128x128 on TensorE (SBUF to PSUM), "
        "32x32 on VectorE.",
        "Transpose block by block",
    ),
    Constraint(
        "T15",
        "Tiles fit into SBUF and PSUM; tiles alive at the same time do not share memory.",
        "Let place() choose the addresses, or use smaller tiles",
    ),
    Constraint(
        "T16",
        "A compute operand starts at partition 0, 32, 64 or 96 if it has at most 32 partitions, "
        "at 0 or 64 up to 64, else at 0.",
        "Start at such a partition, or move the rows with dma_copy",
        hardware=True,
    ),
    Constraint(
        "T17",
        "Only out and inout parameters are written.",
        "Declare the parameter with role out or inout",
    ),
    Constraint(
        "T18",
        "A predicate compares indices of the loops around the instruction.",
        "Use loop indices and constants",
    ),
    Constraint(
        "T19",
        "A reduction names trailing free axes and writes what remains, [P, 1] if nothing does.",
        "Reduce the last axes, or permute the access first",
    ),
    Constraint(
        "T20",
        "An indirect DMA has one HBM side with an SBUF index tile [P, 1] of int32 or uint32, one "
        "index per row.",
        "Load the indices into a [P, 1] int32 tile, at most 128 rows at a time",
    ),
    Constraint(
        "T21",
        "A loop marked parallel touches disjoint data in each iteration.",
        "Leave parallel to mark_parallel()",
    ),
    Constraint(
        "T22",
        "A PSUM tile in which matmuls accumulate is written by TensorE only.",
        "Start the accumulation with accumulate=False instead of a memset",
        hardware=True,
    ),
    Constraint(
        "T23",
        "Calls bind existing buffers and registers of the right number and width; temporaries "
        "fit into the arena.",
        "Bind each parameter to a buffer of its dtype",
    ),
    Constraint(
        "T24",
        "Patterns and immediates fit the instruction: iota and affine_select have at most 4 steps "
        "that count the destination; max8 and nc_find_index8 read 8 to 16,384 values and write 8; "
        "row_sort writes no more than it reads.",
        "Adjust the pattern to the destination",
    ),
)
"""Every constraint by number."""


def fail(number: str, cause: str, source: Source | None, remedy: str = "") -> NoReturn:
    """Raise the TileError of constraint ``number``."""
    text = message(
        f"{number}: {cause}", source or UNKNOWN_SOURCE, remedy or CONSTRAINTS[number].remedy
    )
    raise TileError(text)


@dataclass(frozen=True, slots=True)
class Context:
    """What a rule sees: the kernel, the target, the names in scope and the instruction."""

    kernel: Kernel
    target: Target
    params: Mapping[str, Param]
    tiles: Mapping[str, Tile]
    env: Env
    instruction: Instruction | None

    @property
    def hardware(self) -> bool:
        """Whether the target is a NeuronCore."""
        return bool(self.target.nki_name)

    def fail(self, number: str, cause: str, remedy: str = "") -> NoReturn:
        """Raise the TileError of constraint ``number`` for the instruction."""
        instruction = self.instruction
        source = self.kernel.source if instruction is None else instruction.source
        if instruction is not None:
            shown = ", ".join(
                self.text(o)
                for o in (*instruction.outs, *instruction.ins)
                if isinstance(o, TileAccess | HbmAccess)
            )
            cause = f"{instruction.op} on {instruction.engine or 'no engine'}: {cause} ({shown})"
        fail(number, f"{cause} in kernel '{self.kernel.name}'", source, remedy)

    def tile_text(self, tile: Tile) -> str:
        """``t0 f32[128,512] in sbuf``."""
        shape = ",".join(map(str, tile.shape))
        return f"{tile.name} {short_name(tile.dtype)}[{shape}] in {tile.memory}"

    def text(self, operand: Operand) -> str:
        """An operand with the shape of the access and of what it accesses."""
        if isinstance(operand, TileAccess):
            tile = self.tiles.get(operand.tile)
            shape = ", ".join(map(str, operand.shape))
            whole = f"of {self.tile_text(tile)}" if tile else f"of {operand.tile}"
            return f"[{shape}] {whole}"
        if isinstance(operand, HbmAccess):
            param = self.params.get(operand.buffer)
            shape = ", ".join(map(str, operand.shape))
            if param is None:
                return f"[{shape}] of {operand.buffer}"
            sizes = ",".join(map(str, param.shape))
            return f"[{shape}] of {param.name} {short_name(param.dtype)}[{sizes}] in hbm"
        return str(operand)

    def upper(self, value: Index) -> int | None:
        """Largest value, None when unknown."""
        return bounds(value, self.env)[1]

    def lower(self, value: Index) -> int | None:
        """Smallest value, None when unknown."""
        return bounds(value, self.env)[0]

    def dtype_name(self, access: Access) -> str:
        """Short name of an access's dtype."""
        if isinstance(access, TileAccess):
            return short_name(self.tiles[access.tile].dtype)
        return short_name(self.params[access.buffer].dtype)


def render_markdown() -> str:
    """The text of ``docs/legality.md``: every constraint with its remedy."""
    lines = [
        "# Legality of tile programs",
        "",
        "Written from `compiler/tile/constraints.py` by",
        "`python -m trnx.compiler.tile.constraints`. `check_program` in `legality.py`",
        "checks them before anything runs; a violation is one `TileError` that starts with the",
        "number. Hardware rules do not bind target `cpu`.",
        "",
        "| number | rule | hardware only | remedy |",
        "| --- | --- | --- | --- |",
    ]
    for row in CONSTRAINTS.values():
        only = "yes" if row.hardware else "no"
        lines.append(f"| {row.number} | {row.rule} | {only} | {row.remedy}. |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    print(render_markdown(), end="")
