"""Gathers: loads whose rows start where an index says (indirect DMA).

A gather needs its index as one number per partition, so an axis the index runs over lies on the
partitions and the free axes are among those it does not depend on.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from trnx.compiler.kernels.blocks import known
from trnx.compiler.kernels.group import Graph, NotFusable
from trnx.compiler.kernels.registry import Kind, declare
from trnx.compiler.kernels.space import Axis

declare(Kind.TAKE, "take")


@dataclass(frozen=True, slots=True)
class GatherPlan:
    """Axes of a nest with gathers: which one lies on the partitions, which one is free."""

    partition: Axis | None
    free: Axis | None


def index_axes(graph: Graph) -> frozenset[Axis] | None:
    """Axes the gathers' indices run over; None when the graph has no gather."""
    found: frozenset[Axis] = frozenset()
    gathers = [n for n in graph.loads if n.access is not None and n.access.index is not None]
    for load in gathers:
        assert load.access is not None and load.access.index is not None
        found |= load.access.index.axes
    return found if gathers else None


def check_gathers(graph: Graph) -> None:
    """Raise NotFusable when one region cannot hold all gathers of the graph."""
    blocked = index_axes(graph)
    if blocked is None:
        return
    if graph.reduced & blocked:
        raise NotFusable("a reduction over an axis of a gather's index")
    if graph.dot is not None:
        raise NotFusable("a gather beside a contraction")
    for load in graph.loads:
        access = load.access
        assert access is not None
        if access.index is None:
            continue
        if access.index.axes != blocked:
            raise NotFusable("gathers with indices over different axes")
        if blocked & frozenset(access.strides):
            raise NotFusable("a gather that also moves along its index")


def plan_gathers(graph: Graph, outer: Sequence[Axis]) -> GatherPlan | None:
    """Where the axes of a nest with gathers go; None when the graph has no gather."""
    blocked = index_axes(graph)
    if blocked is None:
        return None
    partition = max(
        (a for a in outer if a in blocked), key=lambda a: known(a.size, 1 << 40), default=None
    )
    free = next((a for a in reversed(outer) if a not in blocked), None)
    return GatherPlan(partition, free)
