"""What was compiled for torch.compile: one record per executable, in order."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from trnx.runtime.programs import CompileEvent, compile_listeners

_LIMIT = 4096  # records that are kept; the oldest go first


@dataclass(slots=True)
class GraphMetrics:
    """One executable of one graph.

    Attributes:
        name: name of the graph, with its role: forward, backward or inference.
        nodes: operators in the captured graph.
        equations: equations of its program.
        sizes: bucket per symbolic size; empty for a graph of fixed shapes.
        lowering_seconds: from the graph to a program.
        compile_seconds: from the program to an executable.
        origin: ``compiled``, ``cache`` when memory or disk had the code, ``eager`` when the graph
            runs eagerly because of ``fallback_execution``.
        host_calls: host functions the program falls back to.
    """

    name: str
    nodes: int
    equations: int = 0
    sizes: dict[str, int] = field(default_factory=dict)
    lowering_seconds: float = 0.0
    compile_seconds: float = 0.0
    origin: str = "compiled"
    host_calls: tuple[str, ...] = ()


_records: list[GraphMetrics] = []


def add(record: GraphMetrics) -> None:
    """Keep a record."""
    _records.append(record)
    del _records[:-_LIMIT]


def get_dynamo_metrics() -> list[GraphMetrics]:
    """What ``torch.compile(backend="neuron")`` compiled since the last reset, oldest first.

    Forward and backward of a model are graphs of their own; a graph of symbolic sizes has one
    record per bucket.
    """
    return list(_records)


def reset_dynamo_metrics() -> None:
    """Forget the records."""
    _records.clear()


@contextmanager
def compiling(record: GraphMetrics) -> Iterator[None]:
    """Time the block as the compile of `record`, learn where the code came from, and keep it."""

    def listen(event: CompileEvent) -> None:
        record.origin = event.origin
        record.host_calls = event.fallbacks

    compile_listeners.append(listen)
    start = time.perf_counter()
    try:
        yield
    finally:
        compile_listeners.remove(listen)
    record.compile_seconds = time.perf_counter() - start
    add(record)
