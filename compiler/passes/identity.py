"""The compiler's own primitives that only say where values lie."""

from __future__ import annotations

from trnx.core import Aval, Primitive, Size


def _abstract(x: Aval) -> Aval:
    return x


COPY = Primitive(
    "copy",
    abstract=_abstract,
    doc="The operand in memory of its own; only passes make it.",
    register=False,
)


def _update_abstract(x: Aval, update: Aval, *, start: tuple[Size, ...]) -> Aval:
    return x


UPDATE = Primitive(
    "update_at",
    abstract=_update_abstract,
    doc="The operand with a slice replaced that is known to lie inside; only passes make it.",
    register=False,
)
