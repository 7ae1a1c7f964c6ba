"""What a kernel's body is planned as: row groups, single instructions, loops."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from trnx.compiler.host.phases import Schedule
from trnx.compiler.host.rowops import RowOp
from trnx.compiler.tile.expr import Index
from trnx.compiler.tile.ir import For, Instruction, RegisterLoad, RegisterMove, Tile, While

ALL_ROWS = "rows"
ONE_ROW = "row"


@dataclass(frozen=True, slots=True)
class GroupNode:
    """A row group."""

    partitions: Index
    ops: tuple[RowOp, ...]
    schedule: Schedule


@dataclass(frozen=True, slots=True)
class InstructionNode:
    """An instruction that works across partitions."""

    instruction: Instruction


@dataclass(frozen=True, slots=True)
class LoopNode:
    """A ``for`` or ``while`` with its planned body."""

    statement: For | While
    body: Body


@dataclass(frozen=True, slots=True)
class RegisterNode:
    """A register assignment."""

    statement: RegisterLoad | RegisterMove


@dataclass(frozen=True, slots=True)
class RowsNode:
    """Groups, and loops of groups, over the same rows, done row by row."""

    partitions: Index
    nodes: tuple[GroupNode | LoopNode | RowsNode, ...]


Node: TypeAlias = "GroupNode | InstructionNode | LoopNode | RegisterNode | RowsNode"


@dataclass(frozen=True, slots=True)
class Body:
    """Planned statements and the tiles they bring into scope with their storage kind."""

    nodes: tuple[Node, ...]
    tiles: tuple[tuple[Tile, str], ...]
