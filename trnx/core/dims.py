"""Symbolic sizes: integer polynomials over named, bounded sizes.

``dim("n", min=1, max=4096)`` is a size that is known only when the program runs. Arithmetic with
ints and other sizes gives :class:`Dim` expressions in one canonical form, so equal expressions are
equal objects of the text ``2*n+1``. A comparison that the bounds decide returns a bool; any other
raises :class:`DimError`, because guessing would make a program silently wrong for some size.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TypeAlias, Union

from trnx.core.errors import DimError, message


@dataclass(frozen=True, slots=True)
class DimVar:
    """A named size with inclusive bounds; `max` None means unbounded above."""

    name: str
    min: int
    max: int | None

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True, slots=True)
class DimQuotient:
    """An integer division that does not simplify: the floor (``//``) or the rest (``%``)."""

    operator: str
    numerator: Size
    denominator: Size

    def __str__(self) -> str:
        return f"({_operand(self.numerator)}{self.operator}{_operand(self.denominator)})"


_Atom: TypeAlias = DimVar | DimQuotient
_Monomial: TypeAlias = tuple[tuple[_Atom, int], ...]
Size: TypeAlias = Union[int, "Dim"]
_Interval: TypeAlias = tuple[float, float]


class Dim:
    """An immutable integer expression over named sizes. Make one with :func:`dim`."""

    __slots__ = ("_terms", "_hash", "_text")

    _terms: tuple[tuple[_Monomial, int], ...]

    def __init__(self, terms: tuple[tuple[_Monomial, int], ...]) -> None:
        self._terms = terms
        self._hash = hash(terms)
        self._text: str | None = None

    def __hash__(self) -> int:
        return self._hash

    def __str__(self) -> str:
        if self._text is None:
            self._text = _text_of(self._terms)
        return self._text

    def __repr__(self) -> str:
        return f"Dim({self})"

    # Arithmetic -----------------------------------------------------------------------------------

    def __add__(self, other: object) -> Size:
        if not isinstance(other, int | Dim):
            return NotImplemented
        total = dict(self._terms)
        for monomial, factor in _terms_of(other):
            total[monomial] = total.get(monomial, 0) + factor
        return _make(total)

    __radd__ = __add__

    def __neg__(self) -> Size:
        return _make({monomial: -factor for monomial, factor in self._terms})

    def __pos__(self) -> Size:
        return self

    def __sub__(self, other: object) -> Size:
        if not isinstance(other, int | Dim):
            return NotImplemented
        return self + (-other)

    def __rsub__(self, other: object) -> Size:
        if not isinstance(other, int | Dim):
            return NotImplemented
        return (-self) + other

    def __mul__(self, other: object) -> Size:
        if not isinstance(other, int | Dim):
            return NotImplemented
        total: dict[_Monomial, int] = {}
        for left, a in self._terms:
            for right, b in _terms_of(other):
                product = _multiply(left, right)
                total[product] = total.get(product, 0) + a * b
        return _make(total)

    __rmul__ = __mul__

    def __floordiv__(self, other: object) -> Size:
        if not isinstance(other, int | Dim):
            return NotImplemented
        return _divide(self, other)[0]

    def __rfloordiv__(self, other: object) -> Size:
        if not isinstance(other, int | Dim):
            return NotImplemented
        return _divide(other, self)[0]

    def __mod__(self, other: object) -> Size:
        if not isinstance(other, int | Dim):
            return NotImplemented
        return _divide(self, other)[1]

    def __rmod__(self, other: object) -> Size:
        if not isinstance(other, int | Dim):
            return NotImplemented
        return _divide(other, self)[1]

    def __divmod__(self, other: Size) -> tuple[Size, Size]:
        return _divide(self, other)

    # Comparison -----------------------------------------------------------------------------------

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, int | Dim):
            return NotImplemented
        answer = decide_equal(self, other)
        if answer is None:
            raise _undecidable(self, "==", other)
        return answer

    def __ne__(self, other: object) -> bool:
        equal = self.__eq__(other)
        return NotImplemented if equal is NotImplemented else not equal

    def __lt__(self, other: Size) -> bool:
        return _order(self, "<", other)

    def __le__(self, other: Size) -> bool:
        return _order(self, "<=", other)

    def __gt__(self, other: Size) -> bool:
        return _order(self, ">", other)

    def __ge__(self, other: Size) -> bool:
        return _order(self, ">=", other)

    def __bool__(self) -> bool:
        return self != 0

    def __index__(self) -> int:
        raise DimError(
            message(
                f"Size {self} is symbolic and has no value while the program is traced",
                None,
                f"Use a static size, or keep {self} in shapes and array expressions",
            )
        )

    __int__ = __index__
    __float__ = __index__


def dim(name: str, min: int = 1, max: int | None = None) -> Dim:
    """A named symbolic size.

    Args:
        name: an identifier; sizes of one program with one name must have the same bounds.
        min: smallest value, at least 0.
        max: largest value, inclusive; None leaves it unbounded.

    Raises:
        DimError: bad name, or bounds that are no integers or an empty range.
    """
    if not isinstance(name, str) or not name.isidentifier():
        raise DimError(message(f"{name!r} is not a size name", None, "Use an identifier"))
    if not isinstance(min, int) or not isinstance(max, int | None):
        raise DimError(
            message(f"Size {name} has the bounds {min!r} and {max!r}", None, "Use Python ints")
        )
    if min < 0 or (max is not None and max < min):
        top = "" if max is None else max
        raise DimError(
            message(f"Size {name} has the empty range {min}..{top}", None, "Give 0 <= min <= max")
        )
    return Dim(((((DimVar(name, min, max), 1),), 1),))


# Canonical form ---------------------------------------------------------------------------------


def _terms_of(size: Size) -> tuple[tuple[_Monomial, int], ...]:
    if isinstance(size, Dim):
        return size._terms
    return (((), int(size)),) if size else ()


def _key(monomial: _Monomial) -> tuple[int, str]:
    """Sort key: higher degree first, then by text."""
    return (-sum(power for _, power in monomial), _monomial_text(monomial))


def _make(terms: Mapping[_Monomial, int]) -> Size:
    kept = [(monomial, factor) for monomial, factor in terms.items() if factor]
    if not kept:
        return 0
    if len(kept) == 1 and not kept[0][0]:
        return kept[0][1]
    kept.sort(key=lambda term: _key(term[0]))
    return Dim(tuple(kept))


def _multiply(left: _Monomial, right: _Monomial) -> _Monomial:
    powers = dict(left)
    for atom, power in right:
        powers[atom] = powers.get(atom, 0) + power
    return tuple(sorted(powers.items(), key=lambda item: str(item[0])))


def _monomial_quotient(monomial: _Monomial, divisor: _Monomial) -> _Monomial | None:
    powers = dict(monomial)
    for atom, power in divisor:
        left = powers.get(atom, 0) - power
        if left < 0:
            return None
        powers[atom] = left
    return tuple((atom, power) for atom, power in powers.items() if power)


def _divide(numerator: Size, denominator: Size) -> tuple[Size, Size]:
    """Floor quotient and rest. Whole terms divide out; what is left stays symbolic."""
    if isinstance(denominator, int):
        if denominator == 0:
            raise DimError(
                message(f"Size {numerator} is divided by zero", None, "Check the divisor")
            )
    else:
        low, high = _interval(denominator)
        if low <= 0 <= high:
            raise DimError(
                message(
                    f"Size {numerator} is divided by {denominator}, which may be zero",
                    None,
                    "Give the divisor bounds above zero",
                )
            )
    if isinstance(numerator, int) and isinstance(denominator, int):
        return divmod(numerator, denominator)
    whole: dict[_Monomial, int] = {}
    rest: dict[_Monomial, int] = {}
    divisor = _terms_of(denominator)
    for monomial, factor in _terms_of(numerator):
        share = _monomial_quotient(monomial, divisor[0][0]) if len(divisor) == 1 else None
        if share is not None and factor % divisor[0][1] == 0:
            whole[share] = whole.get(share, 0) + factor // divisor[0][1]
        else:
            rest[monomial] = factor
    quotient, remainder = _make(whole), _make(rest)
    if not isinstance(remainder, Dim) and remainder == 0:
        return quotient, 0
    if len(divisor) > 1 and structurally_equal(remainder, denominator):
        return quotient + 1, 0
    if isinstance(remainder, int) and isinstance(denominator, int):
        return quotient + remainder // denominator, remainder % denominator
    low, high = _interval(remainder)
    d_low, _ = _interval(denominator)
    if low >= 0 and high < d_low:  # the rest is smaller than the divisor: nothing more to divide
        return quotient, remainder
    floor = DimQuotient("//", remainder, denominator)
    modulo = DimQuotient("%", remainder, denominator)
    return quotient + _of_atom(floor), _of_atom(modulo)


def _of_atom(atom: _Atom) -> Dim:
    return Dim(((((atom, 1),), 1),))


# Text -------------------------------------------------------------------------------------------


def _operand(size: Size) -> str:
    text = str(size)
    simple = text.isidentifier() or text.isdecimal() or _is_wrapped(size)
    return text if simple else f"({text})"


def _is_wrapped(size: Size) -> bool:
    if not isinstance(size, Dim) or len(size._terms) != 1:
        return False
    monomial, factor = size._terms[0]
    return factor == 1 and len(monomial) == 1 and monomial[0][1] == 1


def _monomial_text(monomial: _Monomial) -> str:
    return "*".join(str(atom) for atom, power in monomial for _ in range(power))


def _text_of(terms: tuple[tuple[_Monomial, int], ...]) -> str:
    parts: list[str] = []
    for monomial, factor in terms:
        body = _monomial_text(monomial)
        if not monomial:
            text = str(abs(factor))
        elif abs(factor) == 1:
            text = body
        else:
            text = f"{abs(factor)}*{body}"
        parts.append(("-" if factor < 0 else "+" if parts else "") + text)
    return "".join(parts)


# Bounds and comparison --------------------------------------------------------------------------


def _times(a: float, b: float) -> float:
    return 0 if a == 0 or b == 0 else a * b


def _product(a: _Interval, b: _Interval) -> _Interval:
    corners = [_times(x, y) for x in a for y in b]
    return min(corners), max(corners)


def _floor_divide(a: float, b: float) -> float:
    if math.isinf(a):
        return a if b > 0 else -a
    if math.isinf(b):
        return 0 if (a >= 0) == (b > 0) or a == 0 else -1
    return a // b


def _atom_interval(atom: _Atom) -> _Interval:
    if isinstance(atom, DimVar):
        return atom.min, math.inf if atom.max is None else atom.max
    n, d = _interval(atom.numerator), _interval(atom.denominator)
    if atom.operator == "//":
        corners = [_floor_divide(x, y) for x in n for y in d]
        return min(corners), max(corners)
    if d[0] > 0:
        return 0, min(d[1] - 1, n[1]) if n[0] >= 0 else d[1] - 1
    return d[0] + 1, 0


def _interval(size: Size) -> _Interval:
    if not isinstance(size, Dim):
        return size, size
    low: float = 0
    high: float = 0
    for monomial, factor in size._terms:
        term: _Interval = (1, 1)
        for atom, power in monomial:
            base = _atom_interval(atom)
            for _ in range(power):
                term = _product(term, base)
        term = _product(term, (factor, factor))
        low, high = low + term[0], high + term[1]
    return low, high


def bounds(size: Size) -> tuple[int | None, int | None]:
    """Inclusive bounds of a size, from the bounds of its names; None means unbounded.

    They always hold and are sharp for linear expressions without quotients.
    """
    low, high = _interval(size)
    return (None if math.isinf(low) else int(low), None if math.isinf(high) else int(high))


def structurally_equal(a: Size, b: Size) -> bool:
    """True when both are the same int or the same expression; never raises."""
    if isinstance(a, Dim):
        return isinstance(b, Dim) and a._terms == b._terms
    return not isinstance(b, Dim) and a == b


def same_shape(a: Iterable[Size], b: Iterable[Size]) -> bool:
    """True when two shapes are structurally equal; never raises (``==`` may)."""
    left, right = tuple(a), tuple(b)
    if len(left) != len(right):
        return False
    for x, y in zip(left, right, strict=True):
        if x is not y and not structurally_equal(x, y):
            return False
    return True


def decide_equal(a: Size, b: Size) -> bool | None:
    """True or False when the bounds decide ``a == b``, else None."""
    if structurally_equal(a, b):
        return True
    if not isinstance(a, Dim) and not isinstance(b, Dim):
        return False
    low, high = _interval(a - b)
    if low > 0 or high < 0:
        return False
    return True if low == high == 0 else None


def _order(a: Size, operator: str, b: Size) -> bool:
    if not isinstance(b, int | Dim):
        return NotImplemented
    low, high = _interval(a - b)
    yes, no = {
        "<": (high < 0, low >= 0),
        "<=": (high <= 0, low > 0),
        ">": (low > 0, high <= 0),
        ">=": (low >= 0, high < 0),
    }[operator]
    if not yes and not no:
        raise _undecidable(a, operator, b)
    return yes


def _undecidable(a: Size, operator: str, b: Size) -> DimError:
    ranges = ", ".join(_range_text(variable) for variable in variables(a - b))
    return DimError(
        message(
            f"The bounds do not decide {a} {operator} {b} for {ranges}",
            None,
            "Narrow the bounds of the size, make it static, or compare values with where",
        )
    )


def _range_text(variable: DimVar) -> str:
    return f"{variable.name}: {variable.min}..{'' if variable.max is None else variable.max}"


# Names and values -------------------------------------------------------------------------------


def variables(size: Size) -> tuple[DimVar, ...]:
    """The named sizes in an expression, sorted by name."""
    found: dict[DimVar, None] = {}

    def visit(value: Size) -> None:
        if isinstance(value, Dim):
            for monomial, _ in value._terms:
                for atom, _ in monomial:
                    if isinstance(atom, DimVar):
                        found[atom] = None
                    else:
                        visit(atom.numerator)
                        visit(atom.denominator)

    visit(size)
    return tuple(sorted(found, key=lambda v: (v.name, v.min, v.max or -1)))


def names(size: Size) -> tuple[str, ...]:
    """The names in an expression, sorted and unique."""
    return tuple(dict.fromkeys(variable.name for variable in variables(size)))


def evaluate(size: Size, values: Mapping[str, int]) -> int:
    """The value of a size when every name has the given value.

    Raises:
        DimError: a name has no value, or a value is outside the bounds of its name.
    """
    result = substitute(size, values)
    if isinstance(result, Dim):
        missing = ", ".join(names(result))
        raise DimError(message(f"Size {size} needs a value for {missing}", None, "Pass one"))
    return result


def substitute(size: Size, values: Mapping[str, Size]) -> Size:
    """`size` with some names replaced by ints or other sizes; ints must be within bounds."""
    if not isinstance(size, Dim):
        return size
    total: Size = 0
    for monomial, factor in size._terms:
        term: Size = factor
        for atom, power in monomial:
            if isinstance(atom, DimVar):
                value = values.get(atom.name)
                if value is None:
                    base: Size = _of_atom(atom)
                else:
                    base = value
                    if isinstance(value, int):
                        _check_value(atom, value)
            else:
                numerator = substitute(atom.numerator, values)
                denominator = substitute(atom.denominator, values)
                base = _divide(numerator, denominator)[0 if atom.operator == "//" else 1]
            for _ in range(power):
                term = term * base
        total = total + term
    return total


def _check_value(variable: DimVar, value: int) -> None:
    if value < variable.min or (variable.max is not None and value > variable.max):
        raise DimError(
            message(
                f"Size {variable.name} = {value} is outside {_range_text(variable)}",
                None,
                "Pass an array of a size within the bounds, or widen them",
            )
        )


def is_static(shape: Iterable[Size]) -> bool:
    """True when every size of the shape is an int."""
    return all(not isinstance(size, Dim) for size in shape)
