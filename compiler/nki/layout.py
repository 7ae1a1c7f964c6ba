"""Lines and pieces of printed NKI source, and the index expressions a body will print."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

from trnx.compiler.tile.expr import Call, Expr, Index
from trnx.compiler.tile.ir import (
    Access,
    For,
    HbmAccess,
    Instruction,
    Predicate,
    RegisterLoad,
    Statement,
    TileAccess,
    walk,
)

WIDTH: Final = 96
"""Columns of a printed line."""


def tuple_text(items: Iterable[str]) -> str:
    """A Python tuple, with the comma a single item needs."""
    shown = list(items)
    return f"({shown[0]},)" if len(shown) == 1 else f"({', '.join(shown)})"


def call_lines(function: str, arguments: Sequence[str], indent: int) -> list[str]:
    """A call on one line if it fits, else its arguments on one or on several lines."""
    line = f"{function}({', '.join(arguments)})"
    if len(line) + indent <= WIDTH:
        return [line]
    joined = ", ".join(arguments)
    if len(joined) + indent + 4 <= WIDTH:
        return [f"{function}(", f"    {joined}", ")"]
    lines = [f"{function}("]
    for argument in arguments:
        if len(argument) + indent + 5 <= WIDTH or ".ap(" not in argument:
            lines.append(f"    {argument},")
            continue
        head, _, tail = argument.partition(".ap(")
        inner = call_lines(f"{head}.ap", split_commas(tail[:-1]), indent + 4)
        lines += [f"    {line}" for line in inner[:-1]]
        lines.append(f"    {inner[-1]},")
    return [*lines, ")"]


def split_commas(text: str) -> list[str]:
    """The arguments of a call, split at the commas outside brackets."""
    parts, depth = [""], 0
    for character in text:
        depth += {"(": 1, "[": 1, ")": -1, "]": -1}.get(character, 0)
        if character == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += character
    return [part.strip() for part in parts]


def indices(body: Sequence[Statement]) -> Iterator[tuple[Index, bool]]:
    """Every index expression of a body, nested loops included, and whether it counts rows."""
    for statement in walk(tuple(body)):
        if isinstance(statement, Instruction):
            for operand in (*statement.outs, *statement.ins):
                if isinstance(operand, TileAccess | HbmAccess):
                    yield from _access_indices(operand)
            for _, value in statement.attrs:
                yield from ((v, False) for v in _flat(value))
        elif isinstance(statement, RegisterLoad):
            yield from _access_indices(statement.access)
        elif isinstance(statement, For):
            yield statement.low, False
            yield statement.high, False


def _access_indices(access: Access) -> Iterator[tuple[Index, bool]]:
    if isinstance(access, TileAccess):
        yield access.partitions, True
    elif access.index is not None:
        yield from _access_indices(access.index)
    yield access.offset, False
    for span in access.spans:
        yield span.count, False
        yield span.stride, False


def _flat(value: Any) -> Iterator[Index]:
    if isinstance(value, Expr):
        yield value
    elif isinstance(value, Predicate):
        yield value.left
        yield value.right
    elif isinstance(value, tuple):
        for item in value:
            yield from _flat(item)


def non_linear_atoms(value: Expr) -> Iterator[Call]:
    """The non-linear atoms of an expression, inner ones first."""
    for atom, _ in value.terms:
        if isinstance(atom, Call):
            for arg in atom.args:
                if not isinstance(arg, int):
                    yield from non_linear_atoms(arg)
            yield atom
