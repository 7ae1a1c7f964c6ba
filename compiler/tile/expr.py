"""Integer index expressions: loop indices, registers and the arithmetic access patterns need.

An expression is a plain ``int`` or an ``Expr``: a canonical sum ``const + Σ coefficient·atom``
whose atoms are symbols (a loop index or a register) or one of a few non-linear forms (``min``,
``max``, ``//``, ``%``, and the product of two expressions). Canonical means equal sums are equal
objects to ``==`` and ``hash``, so tile programs compare by value and print the same everywhere.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TypeAlias

Index: TypeAlias = "int | Expr"
Bounds: TypeAlias = tuple[int | None, int | None]


@dataclass(frozen=True, slots=True)
class Symbol:
    """A loop index or a register, unique by name inside its kernel."""

    name: str

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True, slots=True)
class Call:
    """A non-linear form: ``min``, ``max``, ``floordiv``, ``mod`` or ``mul`` of two expressions."""

    op: str
    args: tuple[Index, Index]

    def __str__(self) -> str:
        left, right = self.args
        if self.op in ("min", "max"):
            return f"{self.op}({left}, {right})"
        sign = {"floordiv": "//", "mod": "%", "mul": "*"}[self.op]
        return f"({_group(left)} {sign} {_group(right)})"


Atom: TypeAlias = "Symbol | Call"


def _group(value: Index) -> str:
    text = str(value)
    return text if isinstance(value, int) or " " not in text else f"({text})"


@dataclass(frozen=True)
class Expr:
    """``const + Σ coefficient·atom`` with at least one atom, sorted by the atoms' text."""

    const: int
    terms: tuple[tuple[Atom, int], ...]

    @cached_property
    def _text(self) -> str:
        # A leading constant saves a leading minus sign: 1000 - 128*i.
        leads = self.const > 0 and self.terms[0][1] < 0
        parts: list[str] = [str(self.const)] if leads else []
        for atom, coefficient in self.terms:
            body = str(atom) if coefficient in (1, -1) else f"{abs(coefficient)}*{atom}"
            if not parts:
                parts.append(body if coefficient > 0 else f"-{body}")
            else:
                parts.append(f"{'+' if coefficient > 0 else '-'} {body}")
        if self.const and not leads:
            parts.append(f"{'+' if self.const > 0 else '-'} {abs(self.const)}")
        return " ".join(parts)

    @cached_property
    def _hash(self) -> int:
        return hash((self.const, self.terms))

    def __hash__(self) -> int:
        return self._hash

    def __str__(self) -> str:
        return self._text

    def __repr__(self) -> str:
        return f"Expr({self._text})"

    def __add__(self, other: Index) -> Index:
        return add(self, other)

    def __radd__(self, other: Index) -> Index:
        return add(other, self)

    def __sub__(self, other: Index) -> Index:
        return add(self, scale(other, -1))

    def __rsub__(self, other: Index) -> Index:
        return add(other, scale(self, -1))

    def __neg__(self) -> Index:
        return scale(self, -1)

    def __mul__(self, other: Index) -> Index:
        return mul(self, other)

    def __rmul__(self, other: Index) -> Index:
        return mul(other, self)

    def __floordiv__(self, other: Index) -> Index:
        return floordiv(self, other)

    def __mod__(self, other: Index) -> Index:
        return mod(self, other)


def symbol(name: str) -> Expr:
    """The expression that is just the loop index or register ``name``."""
    return Expr(0, ((Symbol(name), 1),))


def _build(const: int, terms: Mapping[Atom, int]) -> Index:
    kept = tuple(sorted(((a, c) for a, c in terms.items() if c), key=lambda item: str(item[0])))
    return Expr(const, kept) if kept else const


def _single(op: str, left: Index, right: Index) -> Expr:
    return Expr(0, ((Call(op, (left, right)), 1),))


def _parts(value: Index) -> tuple[int, tuple[tuple[Atom, int], ...]]:
    return (value, ()) if isinstance(value, int) else (value.const, value.terms)


def add(left: Index, right: Index) -> Index:
    """``left + right``."""
    if isinstance(left, int) and isinstance(right, int):
        return left + right
    (c0, t0), (c1, t1) = _parts(left), _parts(right)
    terms = dict(t0)
    for atom, coefficient in t1:
        terms[atom] = terms.get(atom, 0) + coefficient
    return _build(c0 + c1, terms)


def scale(value: Index, factor: int) -> Index:
    """``value * factor`` for a constant factor."""
    if isinstance(value, int):
        return value * factor
    return _build(value.const * factor, {atom: c * factor for atom, c in value.terms})


def mul(left: Index, right: Index) -> Index:
    """``left * right``; distributes over constants, keeps a product of two symbols as an atom."""
    if isinstance(right, int):
        return scale(left, right)
    if isinstance(left, int):
        return scale(right, left)
    total: Index = left.const * right.const
    for atom, c in left.terms:
        total = add(total, scale(Expr(0, ((atom, 1),)), c * right.const))
    for atom, c in right.terms:
        total = add(total, scale(Expr(0, ((atom, 1),)), c * left.const))
    for a0, k0 in left.terms:
        for a1, k1 in right.terms:
            first, second = sorted((Expr(0, ((a0, 1),)), Expr(0, ((a1, 1),))), key=str)
            total = add(total, scale(_single("mul", first, second), k0 * k1))
    return total


def minimum(left: Index, right: Index) -> Index:
    """``min(left, right)``, folded when the difference is a constant."""
    difference = add(left, scale(right, -1))
    if isinstance(difference, int):
        return left if difference <= 0 else right
    first, second = sorted((left, right), key=lambda v: (not isinstance(v, int), str(v)))
    return _single("min", first, second)


def maximum(left: Index, right: Index) -> Index:
    """``max(left, right)``, folded when the difference is a constant."""
    difference = add(left, scale(right, -1))
    if isinstance(difference, int):
        return left if difference >= 0 else right
    first, second = sorted((left, right), key=lambda v: (not isinstance(v, int), str(v)))
    return _single("max", first, second)


def _divides(divisor: int, value: Expr) -> bool:
    return value.const % divisor == 0 and all(c % divisor == 0 for _, c in value.terms)


def floordiv(left: Index, right: Index) -> Index:
    """``left // right`` (floor); exact multiples of a constant divisor fold."""
    if right == 1:
        return left
    if isinstance(left, int) and isinstance(right, int):
        return left // right
    if isinstance(right, int) and not isinstance(left, int) and _divides(right, left):
        return _build(left.const // right, {a: c // right for a, c in left.terms})
    return _single("floordiv", left, right)


def ceildiv(left: Index, right: Index) -> Index:
    """``ceil(left / right)`` for a positive divisor."""
    return floordiv(add(left, add(right, -1)), right)


def mod(left: Index, right: Index) -> Index:
    """``left % right`` with the sign of the divisor, as in Python."""
    if right == 1:
        return 0
    if isinstance(left, int) and isinstance(right, int):
        return left % right
    if isinstance(right, int) and not isinstance(left, int) and _divides(right, left):
        return 0
    return _single("mod", left, right)


def symbols(value: Index) -> frozenset[str]:
    """Names of all loop indices and registers in ``value``."""
    if isinstance(value, int):
        return frozenset()
    found: set[str] = set()
    for atom, _ in value.terms:
        if isinstance(atom, Symbol):
            found.add(atom.name)
        else:
            found |= symbols(atom.args[0]) | symbols(atom.args[1])
    return frozenset(found)


def _apply(op: str, left: Index, right: Index) -> Index:
    table: dict[str, Callable[[Index, Index], Index]] = {
        "min": minimum,
        "max": maximum,
        "floordiv": floordiv,
        "mod": mod,
        "mul": mul,
    }
    return table[op](left, right)


def quotient(value: Index, divisor: Index) -> Index | None:
    """``value / divisor`` when every term is a multiple of ``divisor``, else None."""
    if isinstance(divisor, int):
        if divisor == 0:
            return None
        if isinstance(value, int):
            return None if value % divisor else value // divisor
        return floordiv(value, divisor) if _divides(divisor, value) else None
    if isinstance(value, int):
        return 0 if value == 0 else None
    if value == divisor:
        return 1
    if value.const or divisor.const or len(divisor.terms) != 1 or divisor.terms[0][1] != 1:
        return None
    total: Index = 0
    for atom, coefficient in value.terms:
        if atom == divisor.terms[0][0]:
            part: Index = 1
        elif isinstance(atom, Call) and atom.op == "mul" and divisor in atom.args:
            part = atom.args[1] if atom.args[0] == divisor else atom.args[0]
        else:
            return None
        total = add(total, scale(part, coefficient))
    return total


def substitute(value: Index, env: Mapping[str, Index]) -> Index:
    """Replace symbols by expressions; the result is folded."""
    if isinstance(value, int):
        return value
    total: Index = value.const
    for atom, coefficient in value.terms:
        if isinstance(atom, Symbol):
            replaced = env.get(atom.name)
            term: Index = Expr(0, ((atom, 1),)) if replaced is None else replaced
        else:
            term = _apply(atom.op, *(substitute(a, env) for a in atom.args))
        total = add(total, scale(term, coefficient))
    return total


def evaluate(value: Index, env: Mapping[str, int]) -> int:
    """The integer ``value`` denotes when every symbol has the given value.

    Raises:
        KeyError: a symbol of ``value`` has no entry in ``env``.
    """
    if isinstance(value, int):
        return value
    total = value.const
    for atom, coefficient in value.terms:
        if isinstance(atom, Symbol):
            total += coefficient * env[atom.name]
        else:
            left, right = evaluate(atom.args[0], env), evaluate(atom.args[1], env)
            result = _apply(atom.op, left, right)
            assert isinstance(result, int)
            total += coefficient * result
    return total


_SPLIT_LIMIT = 5


def bounds(value: Index, env: Mapping[str, Bounds]) -> Bounds:
    """Inclusive ``(low, high)`` of ``value`` by interval arithmetic; ``None`` is unbounded.

    ``env`` maps each symbol to its inclusive ``(low, high)``; a missing symbol is unbounded. A
    ``min`` or ``max`` is split into its two sides with the rest of the sum added to each, so the
    end of a tail, ``128*i + min(128, n - 128*i)``, is found to be at most ``n``.
    """
    if isinstance(value, int):
        return value, value
    splits = [a for a, _ in value.terms if isinstance(a, Call) and a.op in ("min", "max")]
    if not splits or len(splits) > _SPLIT_LIMIT:
        return _plain_bounds(value, env)
    atom = splits[0]
    coefficient = dict(value.terms)[atom]
    rest = _build(value.const, {a: c for a, c in value.terms if a != atom})
    (a_lo, a_hi), (b_lo, b_hi) = (
        bounds(add(rest, scale(side, coefficient)), env) for side in atom.args
    )
    if (atom.op == "min") == (coefficient > 0):
        return _both(a_lo, b_lo, min), _either(a_hi, b_hi, min)
    return _either(a_lo, b_lo, max), _both(a_hi, b_hi, max)


def _both(a: int | None, b: int | None, pick: Callable[[int, int], int]) -> int | None:
    return None if a is None or b is None else pick(a, b)


def _either(a: int | None, b: int | None, pick: Callable[[int, int], int]) -> int | None:
    if a is None or b is None:
        return b if a is None else a
    return pick(a, b)


def _plain_bounds(value: Expr, env: Mapping[str, Bounds]) -> Bounds:
    low: int | None = value.const
    high: int | None = value.const
    for atom, coefficient in value.terms:
        if isinstance(atom, Symbol):
            lo, hi = env.get(atom.name, (None, None))
        else:
            lo, hi = _call_bounds(atom, env)
        if coefficient < 0:
            lo, hi = hi, lo
        low = None if low is None or lo is None else low + coefficient * lo
        high = None if high is None or hi is None else high + coefficient * hi
    return low, high


def _call_bounds(atom: Call, env: Mapping[str, Bounds]) -> Bounds:
    (a_lo, a_hi), (b_lo, b_hi) = bounds(atom.args[0], env), bounds(atom.args[1], env)
    if atom.op == "min":
        highs = [h for h in (a_hi, b_hi) if h is not None]
        low = None if a_lo is None or b_lo is None else min(a_lo, b_lo)
        return low, min(highs) if highs else None
    if atom.op == "max":
        lows = [v for v in (a_lo, b_lo) if v is not None]
        high = None if a_hi is None or b_hi is None else max(a_hi, b_hi)
        return max(lows) if lows else None, high
    if atom.op == "mod" and b_lo is not None and b_lo > 0:
        if a_lo is not None and a_lo >= 0 and a_hi is not None and a_hi < b_lo:
            return a_lo, a_hi
        return 0, None if b_hi is None else b_hi - 1
    if atom.op == "floordiv" and b_lo is not None and b_lo > 0:
        low = None if a_lo is None else (a_lo // b_lo if a_lo < 0 else a_lo // (b_hi or a_lo + 1))
        high = None if a_hi is None else (a_hi // b_lo if a_hi >= 0 else -1)
        return low, high
    if atom.op == "mul" and None not in (a_lo, a_hi, b_lo, b_hi):
        corners = [x * y for x in (a_lo, a_hi) for y in (b_lo, b_hi)]  # type: ignore[operator]
        return min(corners), max(corners)
    if atom.op == "mul" and a_lo is not None and a_lo >= 0 and b_lo is not None and b_lo >= 0:
        return a_lo * b_lo, None
    return None, None
