"""``unroll``: a kernel with its static loops written out, as NKI's tracer sees them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from trnx.compiler.tile import isa
from trnx.compiler.tile.analysis import trip_count
from trnx.compiler.tile.build import KernelBuilder, predicate
from trnx.compiler.tile.expr import Expr, Index, substitute, symbol
from trnx.compiler.tile.ir import (
    Alloc,
    For,
    HbmAccess,
    Instruction,
    Kernel,
    Predicate,
    RegisterLoad,
    RegisterMove,
    RegisterValue,
    Span,
    Statement,
    TileAccess,
    While,
)


def unroll(kernel: Kernel) -> Kernel:
    """The kernel without static loops; register loops stay.

    Every iteration gets tiles of its own, named as a ``KernelBuilder`` numbers repeated names.
    Addresses, ids and edges are dropped: place and schedule the result again.
    """
    return _Unroller(kernel).run()


class _Unroller:
    """Replays a kernel on a builder with loop indices replaced by numbers."""

    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel
        self.builder = KernelBuilder(kernel.name, source=kernel.source)
        self.env: dict[str, Index] = {}
        self.names: dict[str, str] = {}

    def run(self) -> Kernel:
        for param in self.kernel.params:
            self.builder.param(param.name, param.shape, param.dtype, param.role, param.strides)
        for register in self.kernel.registers:
            self.builder.register_argument(register)
        self.body(self.kernel.body)
        return self.builder.finish()

    def body(self, body: Sequence[Statement]) -> None:
        for statement in body:
            if isinstance(statement, Alloc):
                tile = statement.tile
                view = self.builder.tile(tile.memory, tile.shape, tile.dtype, tile.name)
                self.names[tile.name] = view.tile.name
            elif isinstance(statement, For):
                self.loop(statement)
            elif isinstance(statement, While):
                with self.builder.while_loop(self.value(symbol(statement.condition))):
                    self.body(statement.body)
            elif isinstance(statement, RegisterLoad | RegisterMove):
                self.register(statement)
            else:
                self.instruction(statement)

    def loop(self, loop: For) -> None:
        low, high = self.value(loop.low), self.value(loop.high)
        if trip_count(replace(loop, low=low, high=high)) is None:
            with self.builder.loop(loop.index, low, high, loop.step) as index:
                self.env[loop.index] = index
                self.body(loop.body)
            return
        assert isinstance(low, int) and isinstance(high, int)
        for number in range(low, high, loop.step):
            self.env[loop.index] = number
            self.body(loop.body)

    def register(self, statement: RegisterLoad | RegisterMove) -> None:
        name = statement.register
        known = self.env.get(name)
        if isinstance(statement, RegisterLoad):
            target = self.builder.declare_register(name) if known is None else known
            self.builder.load_register(self.access(statement.access), into=target)
            self.env[name] = target
        elif known is None:
            self.env[name] = self.builder.register(name, self.value(statement.value))
        else:
            self.builder.move_register(known, self.value(statement.value))

    def value(self, value: Index) -> Index:
        return substitute(value, self.env)

    def access(self, access: TileAccess | HbmAccess) -> TileAccess | HbmAccess:
        spans = tuple(Span(self.value(s.stride), self.value(s.count)) for s in access.spans)
        offset = self.value(access.offset)
        if isinstance(access, TileAccess):
            tile, rows = self.names[access.tile], self.value(access.partitions)
            return TileAccess(tile, access.start, rows, offset, spans)
        index = None if access.index is None else self.access(access.index)
        assert index is None or isinstance(index, TileAccess)
        return HbmAccess(access.buffer, offset, spans, index)

    def operand(self, operand: Any) -> Any:
        if isinstance(operand, TileAccess | HbmAccess):
            return self.access(operand)
        if isinstance(operand, RegisterValue):
            return RegisterValue(self.value(operand.value))
        return operand

    def attribute(self, value: Any) -> Any:
        if isinstance(value, Predicate):
            left, right = self.value(value.left), self.value(value.right)
            return predicate(left, value.relation, right)
        if isinstance(value, Expr):
            return self.value(value)
        if isinstance(value, tuple):
            return tuple(self.attribute(v) for v in value)
        return value

    def instruction(self, instruction: Instruction) -> None:
        with self.builder.at(instruction.source):
            spec = isa.spec(instruction.op)
            outs = [self.operand(o) for o in instruction.outs]
            ins = [self.operand(o) for o in instruction.ins]
            given = {slot.name: o for slot, o in zip(spec.outs, outs, strict=False)}
            given |= {slot.name: o for slot, o in zip(spec.ins, ins, strict=True)}
            given |= {name: self.attribute(value) for name, value in instruction.attrs}
            self.builder.instruction(instruction.op, engine=instruction.engine, **given)
