"""Parallel regions: a range of independent iterations as a function of its own.

The function ``void part(ptr context, i64 first, i64 last, ptr scratch)`` does the iterations first
.. last - 1. The context holds the addresses and integers that the iterations need. Whether the
range goes to the thread pool is decided by its estimated work, while compiling where that is known.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

from trnx.compiler.host.cost import PARALLEL_CYCLES
from trnx.compiler.host.emit import I64, PTR, Function, Module, Value, i64
from trnx.compiler.host.index import Indices
from trnx.compiler.host.memory import TileMemory, byte_address
from trnx.compiler.tile.expr import Expr, Index, mul, symbols

PARALLEL = "trnx_parallel"


@dataclass(slots=True)
class Frame:
    """The function being written, and what is in scope in it.

    ``used`` bytes of the scratch block at ``scratch`` are taken, ``peak`` is the most there ever
    were; ``slots`` are the registers that the kernel assigns; ``nested`` says that the function
    is itself part of a region.
    """

    f: Function
    indices: Indices
    params: dict[str, Value]
    tiles: dict[str, TileMemory] = field(default_factory=dict)
    scratch: Value = field(default_factory=lambda: Value(PTR, "null"))
    used: int = 0
    peak: int = 0
    slots: dict[str, Value] = field(default_factory=dict)
    nested: bool = False


@dataclass(frozen=True, slots=True)
class Region:
    """Iterations to be done.

    ``mentions`` is anything whose expressions the iterations evaluate; ``tiles`` are tiles of the
    enclosing scopes that they use; ``cost`` are the estimated cycles of one iteration. ``emit``
    writes the iterations first .. last - 1 into a frame.
    """

    trips: Index
    cost: Index
    mentions: object
    tiles: frozenset[str]
    emit: Callable[[Frame, Value, Value], None]

    @property
    def is_small(self) -> bool:
        """Whether the work is known to be too little for a second thread."""
        work = mul(self.trips, self.cost)
        return isinstance(work, int) and work <= PARALLEL_CYCLES


def emit_region(module: Module, frame: Frame, region: Region, name: str, threads: int) -> None:
    """Write ``region`` as function ``name`` and the call that runs it on up to ``threads``."""
    f, indices = frame.f, frame.indices
    mentioned = symbols_in((region.mentions, region.trips, region.cost))
    known = {n: v for n, v in indices.snapshot().items() if n in mentioned}
    shared = sorted(region.tiles & set(frame.tiles))
    words = [*frame.params.values(), *(frame.tiles[t].base for t in shared), *known.values()]
    context = f.stack(I64, max(len(words), 1))
    for k, value in enumerate(words):
        f.store(value, f.pointer(context, i64(k), I64), 8)
    bytes_needed = _emit_part(module, name, frame, region, shared, list(known))
    own = byte_address(f, frame.scratch, i64(0), 1, i64(frame.used))
    frame.peak = max(frame.peak, frame.used + bytes_needed)
    with indices.scope():
        trips = indices.value(region.trips)
        work = indices.value(mul(region.trips, region.cost))
    part = Value(PTR, f"@{name}")
    together, alone, after = f.new_block(), f.new_block(), f.new_block()
    f.branch(f.icmp("sgt", work, i64(PARALLEL_CYCLES)), together, alone)
    f.place(together)
    f.call_void(PARALLEL, part, context, trips, i64(bytes_needed), own, i64(threads))
    f.jump(after)
    f.place(alone)
    f.line(f"call void @{name}({context}, {i64(0)}, {trips}, {own})")
    f.jump(after)
    f.place(after)


def _emit_part(
    module: Module, name: str, outer: Frame, region: Region, shared: list[str], known: list[str]
) -> int:
    """The function of a region; returns the scratch bytes it needs."""
    arguments = [(PTR, "context"), (I64, "first"), (I64, "last"), (PTR, "scratch")]
    f = Function(module, name, "void", arguments, internal=True)
    context = f.argument("context")
    position = 0

    def next_word(kind: str) -> Value:
        nonlocal position
        position += 1
        return f.load(kind, f.pointer(context, i64(position - 1), I64), 8)

    params = {param: next_word(PTR) for param in outer.params}
    tiles = {t: replace(outer.tiles[t], base=next_word(PTR)) for t in shared}
    values = {symbol: next_word(I64) for symbol in known}
    frame = Frame(f, Indices(f, values), params, tiles, f.argument("scratch"), nested=True)
    region.emit(frame, f.argument("first"), f.argument("last"))
    f.finish()
    return frame.peak


def symbols_in(value: object) -> set[str]:
    """Names of all symbols in the expressions anywhere inside a value."""
    if isinstance(value, Expr):
        return set(symbols(value))
    if isinstance(value, tuple | frozenset):
        return set().union(*(symbols_in(part) for part in value))
    fields = getattr(value, "__dataclass_fields__", {})
    return set().union(*(symbols_in(getattr(value, part)) for part in fields))
