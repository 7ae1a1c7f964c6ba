"""The compiler's own identity primitive: writes a value to a buffer of its own."""

from __future__ import annotations

from trnx.core import Aval, Primitive


def _abstract(x: Aval) -> Aval:
    return x


COPY = Primitive(
    "copy",
    abstract=_abstract,
    doc="The operand in memory of its own; only passes make it.",
    register=False,
)
