"""Which kernel family lowers which primitive: the one table that joins primitives with lowerings.

Every family file enters its primitives here when it is imported (`lowers`), so the table is
complete after ``import trnx.compiler.kernels``. A primitive that is in no family and has no
composite has no lowering on NeuronCores: the compiler makes a counted host call of it.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from typing import Any, TypeVar


class Kind(enum.Enum):
    """How the compiler treats an equation of a primitive."""

    ELEMENTWISE = "elementwise"
    BROADCAST = "broadcast"
    RESHAPE = "reshape"
    TRANSPOSE = "transpose"
    LEAF_VIEW = "leaf view"
    IOTA = "iota"
    REDUCE = "reduce"
    CONTRACTION = "contraction"
    TAKE = "take"
    MOVEMENT = "movement"
    SCATTER = "scatter"
    CUMULATIVE = "cumulative"
    DYNAMIC = "dynamic"
    SORT = "sort"
    CONTROL = "control"
    CALL = "call"
    HOST = "host"


VIEWS = frozenset({Kind.BROADCAST, Kind.RESHAPE, Kind.TRANSPOSE, Kind.LEAF_VIEW})
"""Kinds that move no data when their operand is in memory."""

ALONE = frozenset(
    {Kind.MOVEMENT, Kind.SCATTER, Kind.CUMULATIVE, Kind.DYNAMIC, Kind.SORT, Kind.CONTROL}
)
"""Kinds whose equations are kernels of their own: operands in memory, nothing fused."""

KINDS: dict[str, Kind] = {}
"""Primitive name -> kind; filled by `lowers` and `declare`."""

RULES: dict[str, Callable[..., Any]] = {}
"""Primitive name -> its lowering function, for kinds that have one per primitive."""

R = TypeVar("R", bound=Callable[..., Any])


def declare(kind: Kind, *names: str) -> None:
    """Enter primitives whose kind says everything.

    Raises:
        ValueError: a primitive is entered twice.
    """
    for name in names:
        if name in KINDS:
            raise ValueError(f"{name} is lowered as {KINDS[name].value} already. Drop one.")
        KINDS[name] = kind


def lowers(kind: Kind, *names: str) -> Callable[[R], R]:
    """Decorator: the function lowers these primitives, which are of `kind`."""

    def enter(rule: R) -> R:
        declare(kind, *names)
        for name in names:
            RULES[name] = rule
        return rule

    return enter


def kind_of(name: str) -> Kind:
    """The kind of a primitive; `Kind.HOST` when no family lowers it."""
    return KINDS.get(name, Kind.HOST)


def has_lowering(name: str) -> bool:
    """Whether a kernel family lowers the primitive itself (composites not counted)."""
    return name in KINDS


declare(Kind.BROADCAST, "broadcast")
declare(Kind.RESHAPE, "reshape")
declare(Kind.TRANSPOSE, "transpose")
declare(Kind.LEAF_VIEW, "slice", "reverse", "windows")
declare(Kind.IOTA, "iota", "dim_size")
declare(Kind.CONTRACTION, "dot_general")
declare(Kind.CONTROL, "scan", "while_loop", "cond")
declare(Kind.CALL, "call", "checkpoint", "custom_jvp", "custom_vjp")
