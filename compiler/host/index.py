"""Integer expressions of tile programs as 64-bit LLVM values."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from trnx.compiler.host.emit import I64, Function, Value, i64
from trnx.compiler.tile.expr import Call, Index, Symbol, symbols
from trnx.compiler.tile.ir import Predicate

_RELATIONS = {">": "sgt", ">=": "sge", "==": "eq", "!=": "ne", "<": "slt", "<=": "sle"}


class Indices:
    """Emits index expressions into one function and remembers what is already computed.

    Args:
        f: the function.
        values: loop indices and registers that do not change.
        slots: stack addresses of the registers that the kernel assigns; read at every use.
    """

    def __init__(
        self, f: Function, values: Mapping[str, Value], slots: Mapping[str, Value] | None = None
    ) -> None:
        self.f = f
        self._values = dict(values)
        self._slots = dict(slots or {})
        self._known: list[dict[Index, Value]] = [{}]

    @contextmanager
    def scope(self) -> Iterator[None]:
        """Forget at the end what was computed inside: code after may not be dominated by it."""
        self._known.append({})
        try:
            yield
        finally:
            self._known.pop()

    @contextmanager
    def bound(self, name: str, value: Value) -> Iterator[None]:
        """A scope in which the loop index ``name`` has a value."""
        saved = self._values.get(name)
        self._values[name] = value
        with self.scope():
            yield
        if saved is None:
            del self._values[name]
        else:
            self._values[name] = saved

    def value(self, index: Index) -> Value:
        """The i64 value of an expression."""
        if isinstance(index, int):
            return i64(index)
        volatile = bool(self._slots) and not symbols(index).isdisjoint(self._slots)
        if not volatile:
            for known in reversed(self._known):
                if index in known:
                    return known[index]
        total: Value | None = None if index.const == 0 else i64(index.const)
        for atom, coefficient in index.terms:
            term = self._atom(atom)
            if coefficient != 1:
                term = self.f.binary("mul nsw", term, i64(coefficient))
            total = term if total is None else self.f.binary("add nsw", total, term)
        assert total is not None
        if not volatile:
            self._known[-1][index] = total
        return total

    def _atom(self, atom: Symbol | Call) -> Value:
        f = self.f
        if isinstance(atom, Symbol):
            if atom.name in self._slots:
                return f.load(I64, self._slots[atom.name])
            return self._values[atom.name]
        a, b = self.value(atom.args[0]), self.value(atom.args[1])
        if atom.op in ("min", "max"):
            smaller = f.icmp("slt" if atom.op == "min" else "sgt", a, b)
            return f.select(smaller, a, b)
        if atom.op == "mul":
            return f.binary("mul nsw", a, b)
        divisor = atom.args[1]
        if isinstance(divisor, int) and divisor > 0 and divisor & (divisor - 1) == 0:
            if atom.op == "mod":
                return f.binary("and", a, i64(divisor - 1))
            return f.binary("ashr", a, i64(divisor.bit_length() - 1))
        quotient = f.binary("sdiv", a, b)
        rest = f.binary("sub nsw", a, f.binary("mul nsw", quotient, b))
        # Division truncates; the floor is one less when the rest and the divisor differ in sign.
        inexact = f.icmp("ne", rest, i64(0))
        opposite = f.icmp("slt", f.binary("xor", rest, b), i64(0))
        adjust = f.binary("and", inexact, opposite)
        if atom.op == "mod":
            return f.select(adjust, f.binary("add nsw", rest, b), rest)
        return f.select(adjust, f.binary("sub nsw", quotient, i64(1)), quotient)

    def predicate(self, predicate: Predicate) -> Value:
        """An affine predicate as an i1 value."""
        left, right = self.value(predicate.left), self.value(predicate.right)
        return self.f.icmp(_RELATIONS[predicate.relation], left, right)

    def snapshot(self) -> dict[str, Value]:
        """The symbols in scope and their present values."""
        values = dict(self._values)
        values.update({name: self.f.load(I64, slot) for name, slot in self._slots.items()})
        return values
