"""PyTorch's symbolic sizes as trnx sizes.

A graph with dynamic shapes names its sizes by SymPy symbols with ranges. A symbol that is a size
becomes a named size with these bounds; derived expressions become expressions of it. A symbol that
may be negative is a number the user passes, not a size: the graph is compiled per value of it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import Node

from trnx.core.dims import Dim, Size, dim, evaluate
from trnx.core.errors import DimError, message


@dataclass(frozen=True, slots=True)
class _Read:
    """Where a symbol's value is found: ``factor * value + offset`` is an argument or its size."""

    argument: int
    axis: int | None
    factor: int
    offset: int

    def value(self, arguments: Sequence[Any]) -> int:
        """The symbol's value in a call."""
        given = arguments[self.argument]
        size = int(given) if self.axis is None else given.shape[self.axis]
        return (size - self.offset) // self.factor


class Symbols:
    """The symbols of a graph and how a call's arguments give their values.

    Args:
        placeholders: the graph's inputs, with fake values in ``meta["val"]``.
        exact: treat every symbol as a number, so that the graph is compiled per size.

    Attributes:
        sizes: named size per symbol that is one.
        numbers: symbols that are numbers, in order.
        names: names of all symbols, in order of ``reads``.
    """

    def __init__(self, placeholders: Sequence[Node], exact: bool = False) -> None:
        self.sizes: dict[Any, Dim] = {}
        self.numbers: list[Any] = []
        self._values: dict[Any, int] = {}
        self._reads: dict[Any, _Read] = {}
        for position, node in enumerate(placeholders):
            value = node.meta["val"]
            if isinstance(value, torch.SymInt):
                self._add(value, position, None, exact)
            elif isinstance(value, torch.Tensor):
                for axis, size in enumerate(value.shape):
                    if isinstance(size, torch.SymInt):
                        self._add(size, position, axis, exact)
        self.unread = [s for s in (*self.sizes, *self.numbers) if s not in self._reads]

    def __bool__(self) -> bool:
        return bool(self.sizes or self.numbers)

    def _add(self, size: torch.SymInt, position: int, axis: int | None, exact: bool) -> None:
        expression, shape_env = size.node.expr, size.node.shape_env
        for symbol in sorted(expression.free_symbols, key=str):
            if symbol not in self.sizes and symbol not in self.numbers:
                low, high = _bounds(shape_env, symbol)
                if exact or low is None:
                    self.numbers.append(symbol)
                else:
                    self.sizes[symbol] = dim(str(symbol), low, high)
            known = self._reads.get(symbol)
            if known is not None and (known.factor, known.offset) == (1, 0):
                continue
            linear = _linear(expression, symbol)
            if linear is not None and (known is None or linear == (1, 0)):
                self._reads[symbol] = _Read(position, axis, *linear)

    def fix(self, numbers: Mapping[Any, int]) -> Symbols:
        """A copy in which the symbols that are numbers have these values."""
        made = Symbols(())
        made.sizes, made.numbers, made._reads = self.sizes, self.numbers, self._reads
        made._values = dict(numbers)
        return made

    def values(self, arguments: Sequence[Any]) -> dict[Any, int]:
        """Every symbol's value in a call."""
        return {symbol: read.value(arguments) for symbol, read in self._reads.items()}

    def __call__(self, size: Any) -> Size:
        """A size of the graph: an int, or a named size and expressions of it.

        Raises:
            DimError: an expression trnx has no sizes for.
        """
        if not isinstance(size, torch.SymInt):
            return int(size)
        return self._size(size.node.expr)

    def all(self, sizes: Iterable[Any]) -> tuple[Size, ...]:
        """Several sizes."""
        return tuple(map(self, sizes))

    def _size(self, expression: Any) -> Size:
        if expression.is_Integer:
            return int(expression)
        if expression.is_Symbol:
            if expression in self.sizes:
                return self.sizes[expression]
            if expression in self._values:
                return self._values[expression]
            raise DimError(message(f"Size {expression} depends on values", None, _VALUES))
        kind = type(expression).__name__
        if expression.is_Add:
            total: Size = 0
            for part in expression.args:
                total = total + self._size(part)
            return total
        if expression.is_Mul:
            product: Size = 1
            for part in expression.args:
                product = product * self._size(part)
            return product
        if expression.is_Pow and expression.exp.is_Integer and int(expression.exp) > 0:
            base, result = self._size(expression.base), 1
            for _ in range(int(expression.exp)):
                result = base * result  # type: ignore[assignment]
            return result
        if kind in ("FloorDiv", "CleanDiv", "IntTrueDiv"):
            return self._size(expression.args[0]) // self._size(expression.args[1])
        if kind in ("Mod", "PythonMod"):
            return self._size(expression.args[0]) % self._size(expression.args[1])
        if kind == "ModularIndexing":
            base, divisor, modulus = map(self._size, expression.args)
            return (base // divisor) % modulus
        if kind in ("Max", "Min"):
            return self._extreme(kind, [self._size(part) for part in expression.args])
        raise DimError(message(f"The size {expression} has no form here", None, _EXPRESSION))

    def _extreme(self, kind: str, sizes: Sequence[Size]) -> Size:
        """The largest or smallest, when the bounds decide it."""
        best = sizes[0]
        for size in sizes[1:]:
            if (size >= best) if kind == "Max" else (size <= best):
                best = size
        return best


_VALUES = "Pass it as an argument, or leave the operator that makes it out of the graph"
_EXPRESSION = "Use sums, products, quotients and remainders of sizes"


def _bounds(shape_env: Any, symbol: Any) -> tuple[int | None, int | None]:
    """Bounds of a symbol: (None, …) if it may be negative, (…, None) without an upper one."""
    known = shape_env.var_to_range.get(symbol)
    if known is None:
        return 0, None
    low = int(known.lower) if known.lower.is_Integer else None
    high = int(known.upper) if known.upper.is_Integer else None
    if high is not None and high >= 2**31:  # PyTorch writes "no bound" as the largest int, too
        high = None
    return (None if low is None or low < 0 else low), high


def _linear(expression: Any, symbol: Any) -> tuple[int, int] | None:
    """(factor, offset) of ``factor * symbol + offset`` with a positive factor."""
    if expression == symbol:
        return 1, 0
    if expression.free_symbols != {symbol}:
        return None
    factor = expression.coeff(symbol)
    rest = (expression - factor * symbol).expand()
    if factor.is_Integer and rest.is_Integer and int(factor) > 0:
        return int(factor), int(rest)
    return None


def hint(size: Any) -> int:
    """The value a size had when the graph was captured; never adds a guard."""
    if not isinstance(size, torch.SymInt):
        return int(size)
    node = size.node
    return int(node.shape_env.optimization_hint(node.expr, fallback=64))


def at(sizes: Sequence[Size], values: Mapping[str, int]) -> tuple[int, ...]:
    """Sizes as ints, for values of the named ones."""
    return tuple([s if isinstance(s, int) else evaluate(s, values) for s in sizes])
