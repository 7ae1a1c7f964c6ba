"""Kernels put together from kernels: what loops and branches are made of.

An `Assembly` is a kernel under construction. `splice` copies the statements of a finished kernel
into it: tiles, loop indices and registers get names of their own, and every HBM access goes to the
place where the value lies in the assembly, such as slice ``i`` of a stacked array. Loops around
spliced kernels are opened and closed by the caller.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from trnx.compiler.kernels.row import LoweredKernel
from trnx.compiler.kernels.space import to_indices
from trnx.compiler.targets import Target
from trnx.compiler.tile.analysis import Env, accesses, index_bounds
from trnx.compiler.tile.build import RESERVED
from trnx.compiler.tile.expr import Expr, Index, add, mul, substitute, symbol
from trnx.compiler.tile.invariant import free_symbols, split_invariant
from trnx.compiler.tile.ir import (
    SBUF,
    Access,
    Alloc,
    For,
    HbmAccess,
    Instruction,
    Kernel,
    Operand,
    Param,
    Predicate,
    RegisterLoad,
    RegisterMove,
    RegisterValue,
    Span,
    Statement,
    TileAccess,
    While,
    walk,
)
from trnx.compiler.tile.pinning import pin, transfers
from trnx.core import Source, Var
from trnx.core.dtypes import int32

INDEX = "index"
"""What names of registers begin with that stand for the index of a loop around a kernel."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where a value lies: elements of a variable's buffer from `offset` on."""

    root: Var
    offset: Index = 0


class Assembly:
    """A kernel made of kernels.

    Args:
        name: name of the kernel.
        source: the user's line.
        target: the hardware table's row.
        results: variables that are read after the kernel.
        room: bytes per partition that loops may hold on chip: what all iterations read, and what
            each hands to the next.
    """

    def __init__(
        self,
        name: str,
        source: Source | None,
        target: Target,
        results: Collection[Var],
        room: int,
    ) -> None:
        self.name = name
        self.target = target
        self.results = frozenset(results)
        self.room = room
        self.source = source
        self._params: dict[tuple[Var, np.dtype[Any]], Param] = {}
        self._bodies: list[list[Statement]] = [[]]
        self._names: set[str] = set(RESERVED)
        self._counters: dict[str, int] = {}
        self._stale: set[tuple[Var, np.dtype[Any]]] = set()

    # Names and parameters -------------------------------------------------------------------------

    def unique(self, wish: str) -> str:
        """The name itself while it is free, else its letters with the next free number."""
        base = wish.rstrip("0123456789") or "v"
        name = wish
        while name in self._names or name.startswith(INDEX):
            number = self._counters.get(base, 0)
            self._counters[base] = number + 1
            name = f"{base}{number}"
        self._names.add(name)
        return name

    def parameter(self, root: Var, dtype: np.dtype[Any], written: bool) -> str:
        """The parameter that sees a variable's buffer as this dtype: its own, or 32-bit words."""
        known = self._params.get((root, dtype))
        if known is None:
            shape = to_indices(root.aval.shape)
            if dtype != root.aval.dtype:
                shape = (*shape, 2)
            name = self.unique("y0" if written else "x0")
            known = self._params[root, dtype] = Param(name, shape, dtype, "in")
        if written and known.role == "in":
            known = self._params[root, dtype] = replace(known, role="out")
        return known.name

    # Statements -----------------------------------------------------------------------------------

    @contextmanager
    def loop(
        self, index: str, low: Index, high: Index, carried: Collection[Var] = ()
    ) -> Iterator[Expr]:
        """A loop around what the block adds; yields its index.

        What does the same in every iteration is done once before; buffers that an iteration hands
        on or uses for itself are on chip where they can be. `carried` variables have a value when
        the loop begins.
        """
        name = self.unique(index)
        self._bodies.append([])
        yield symbol(name)
        body = self._varying(self._bodies.pop(), name)
        empty = For(name, low, high, ())
        body, after = self._pinned(body, {name: index_bounds(empty, {})}, carried)
        self._emit(replace(empty, body=body))
        self._bodies[-1].extend(after)

    @contextmanager
    def once(self, register: Expr) -> Iterator[None]:
        """Run what the block adds if a register is 1, not if it is 0."""
        name = self.unique("once")
        self._bodies.append([])
        yield
        self._emit(For(name, 0, register, tuple(self._bodies.pop())))

    @contextmanager
    def repeat(self, condition: Expr, carried: Collection[Var]) -> Iterator[None]:
        """A loop that runs while a register is not zero; otherwise as `loop`."""
        self._bodies.append([])
        yield
        body = self._varying(self._bodies.pop(), str(condition))
        body, after = self._pinned(body, {}, carried)
        self._emit(While(str(condition), body))
        self._bodies[-1].extend(after)

    def _pinned(
        self, body: tuple[Statement, ...], env: Env, carried: Collection[Var]
    ) -> tuple[tuple[Statement, ...], list[Statement]]:
        """The body with buffers on chip, and what copies them back; they are filled here."""
        views = Counter(root for root, _ in self._params)
        roots = {p.name: root for (root, _), p in self._params.items() if views[root] == 1}
        candidates = [p for p in self._params.values() if p.role != "in" and p.name in roots]
        body, found = pin(body, env, candidates, self.target.partitions, self.room, self.unique)
        self.room -= sum(item.tile.free_bytes for item in found)
        names = [item.param.name for item in found]
        front, after = transfers(
            found,
            {name for name in names if roots[name] in carried},
            {name for name in names if roots[name] in self.results},
        )
        self._bodies[-1].extend(front)
        return body, after

    def _varying(self, body: Sequence[Statement], name: str) -> tuple[Statement, ...]:
        """A loop's body without what is the same in every iteration, which is emitted here."""
        roots = {param.name: root for (root, _), param in self._params.items()}
        front, rest = split_invariant(body, name, self.room, roots)
        for statement in front:
            self._emit(statement)
            if isinstance(statement, Alloc) and statement.tile.memory == SBUF:
                self.room -= statement.tile.free_bytes
        return rest

    def load_register(self, place: Place, name: str = "r0", into: Expr | None = None) -> Expr:
        """Read one int32 of HBM into a new register, or into `into`."""
        register = self.unique(name) if into is None else str(into)
        param = self.parameter(place.root, int32, False)
        access = HbmAccess(param, place.offset, (Span(1, 1),))
        self._emit(RegisterLoad(register, access))
        self._stale.clear()
        return symbol(register)

    def _emit(self, statement: Statement) -> None:
        self._bodies[-1].append(statement)

    def splice(
        self,
        lowered: LoweredKernel,
        places: Mapping[Var, Place],
        registers: Mapping[str, Index],
    ) -> None:
        """Append the statements of a kernel.

        Args:
            lowered: the kernel and the variables behind its parameters.
            places: where variables lie that are not buffers of their own.
            registers: values of registers that the kernel reads; others become registers of the
                assembly.
        """
        kernel = lowered.kernel
        env: dict[str, Index] = dict(registers)
        buffers: dict[str, tuple[str, Index]] = {}
        touched: list[tuple[Var, np.dtype[Any], bool]] = []
        for param, var in zip(kernel.params, lowered.variables, strict=True):
            place = places.get(var, Place(var))
            written = param.role != "in"
            words = param.dtype != place.root.aval.dtype
            name = self.parameter(place.root, param.dtype, written)
            buffers[param.name] = (name, mul(place.offset, 2) if words else place.offset)
            touched.append((place.root, param.dtype, written))
        self._order_words(touched)
        rename = _Rename(self, env, buffers)
        self._bodies[-1].extend(rename.body(kernel.body))

    def _order_words(self, touched: Sequence[tuple[Var, np.dtype[Any], bool]]) -> None:
        """Wait where a kernel reads or writes a buffer that another wrote through other words.

        A 64-bit buffer seen as 32-bit words is another parameter, so the schedule knows no order
        between the two; a register load waits for everything before it.
        """
        for root, dtype, _ in touched:
            others = [d for (r, d) in self._stale if r is root and d != dtype]
            if others:
                self.load_register(Place(root), "wait0")
                break
        for root, dtype, written in touched:
            if written and root.aval.dtype.itemsize == 8:
                self._stale.add((root, dtype))

    def finish(self) -> LoweredKernel:
        """The kernel."""
        assert len(self._bodies) == 1
        body = tuple(self._bodies[0])
        used = {
            access.buffer
            for statement in walk(body)
            for access, _ in accesses(statement)
            if isinstance(access, HbmAccess)
        }
        kept = {key: param for key, param in self._params.items() if param.name in used}
        registers = tuple(sorted(free_symbols(body)))
        kernel = Kernel(self.name, tuple(kept.values()), body, registers, source=self.source)
        return LoweredKernel(kernel, tuple(var for var, _ in kept))


class _Rename:
    """Copies statements with other names and places."""

    def __init__(
        self,
        assembly: Assembly,
        env: dict[str, Index],
        buffers: Mapping[str, tuple[str, Index]],
    ) -> None:
        self.assembly = assembly
        self.env = env
        self.buffers = buffers
        self.tiles: dict[str, str] = {}
        self.written: set[str] = set()

    def body(self, statements: Sequence[Statement]) -> Iterator[Statement]:
        for statement in statements:
            yield self.statement(statement)

    def statement(self, statement: Statement) -> Statement:
        if isinstance(statement, Alloc):
            name = self.tiles[statement.tile.name] = self.assembly.unique(statement.tile.name)
            return Alloc(replace(statement.tile, name=name))
        if isinstance(statement, Instruction):
            return replace(
                statement,
                outs=tuple(self.access(a) for a in statement.outs),
                ins=tuple(self.operand(o) for o in statement.ins),
                attrs=tuple((name, self.attribute(value)) for name, value in statement.attrs),
            )
        if isinstance(statement, For):
            low, high = self.index(statement.low), self.index(statement.high)
            name = self.assembly.unique(statement.index)
            self.env[statement.index] = symbol(name)
            return replace(
                statement, index=name, low=low, high=high, body=tuple(self.body(statement.body))
            )
        if isinstance(statement, While):
            condition = self.register(statement.condition)
            return While(condition, tuple(self.body(statement.body)))
        if isinstance(statement, RegisterLoad):
            access = self.access(statement.access)
            return RegisterLoad(self.register(statement.register), access)
        value = self.index(statement.value)
        return RegisterMove(self.register(statement.register), value)

    def register(self, name: str) -> str:
        if name not in self.written:
            self.written.add(name)
            self.env[name] = symbol(self.assembly.unique(name))
        return str(self.env[name])

    def index(self, value: Index) -> Index:
        return value if isinstance(value, int) else substitute(value, self.env)

    def spans(self, spans: Sequence[Span]) -> tuple[Span, ...]:
        return tuple(Span(self.index(s.stride), self.index(s.count)) for s in spans)

    def access(self, access: Access) -> Access:
        if isinstance(access, TileAccess):
            return TileAccess(
                self.tiles[access.tile],
                access.start,
                self.index(access.partitions),
                self.index(access.offset),
                self.spans(access.spans),
            )
        name, offset = self.buffers[access.buffer]
        index = None if access.index is None else self.access(access.index)
        assert index is None or isinstance(index, TileAccess)
        return HbmAccess(
            name, add(self.index(access.offset), offset), self.spans(access.spans), index
        )

    def operand(self, operand: Operand) -> Operand:
        if isinstance(operand, TileAccess | HbmAccess):
            return self.access(operand)
        if isinstance(operand, RegisterValue):
            return RegisterValue(self.index(operand.value))
        return operand

    def attribute(self, value: Any) -> Any:
        if isinstance(value, Expr):
            return self.index(value)
        if isinstance(value, Predicate):
            return Predicate(self.index(value.left), value.relation, self.index(value.right))
        if isinstance(value, tuple):
            return tuple(self.attribute(part) for part in value)
        return value


def reads_and_writes(lowered: LoweredKernel) -> tuple[set[Var], set[Var]]:
    """Variables that a kernel reads, and those that it writes."""
    variables = dict(zip((p.name for p in lowered.kernel.params), lowered.variables, strict=True))
    read: set[Var] = set()
    written: set[Var] = set()
    for statement in walk(lowered.kernel.body):
        for access, writes in accesses(statement):
            if isinstance(access, HbmAccess):
                (written if writes else read).add(variables[access.buffer])
    return read, written
