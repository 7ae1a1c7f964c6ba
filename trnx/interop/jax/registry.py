"""The table from JAX primitive names to rules in trnx terms."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias, TypeVar

from trnx.core import Aval, UnsupportedError, message
from trnx.core.source import Source
from trnx.ops import functions as op

Value: TypeAlias = Any
Rule: TypeAlias = Callable[..., Any]
R = TypeVar("R", bound=Rule)

RULES: dict[str, Rule] = {}
"""JAX primitive name -> ``rule(site, *operands, **params)``, which gives a value or a list of them
(one per result)."""


@dataclass(frozen=True, slots=True)
class Site:
    """One equation of a jaxpr, as a rule sees it.

    Attributes:
        primitive: JAX's name of the primitive.
        operands: types of the operands; a key array of shape [...] is a u32[..., 2].
        results: types of the results.
        source: the user's line.
        run: ``run(jaxpr, operands) -> results`` evaluates a closed jaxpr, such as a body.
    """

    primitive: str
    operands: tuple[Aval, ...]
    results: tuple[Aval, ...]
    source: Source
    run: Callable[[Any, Sequence[Value]], list[Value]]

    @property
    def result(self) -> Aval:
        """Type of the only result."""
        (aval,) = self.results
        return aval

    def sizes(self, operand: int) -> tuple[int, ...]:
        """Shape of an operand; the sizes of a jaxpr are static."""
        return tuple(int(size) for size in self.operands[operand].shape)

    def refuse(self, what: str, remedy: str) -> UnsupportedError:
        """The error for an equation whose rule does not cover it.

        Args:
            what: what is not covered, for example ``with pivoting``.
            remedy: what to do instead, without the final stop.
        """
        types = ", ".join(map(str, self.operands))
        cause = f"The JAX primitive {self.primitive} of ({types}) {what} has no meaning in trnx"
        return UnsupportedError(message(cause, self.source, remedy))


def rule(*names: str) -> Callable[[R], R]:
    """Decorator: the function is the rule of these JAX primitives.

    Raises:
        ValueError: a primitive has a rule already.
    """

    def enter(function: R) -> R:
        for name in names:
            if name in RULES:
                raise ValueError(f"The JAX primitive {name} has a rule already. Drop one.")
            RULES[name] = function
        return function

    return enter


def elementwise(*names: str) -> Callable[[R], R]:
    """Decorator like :func:`rule`: operands arrive with the shape of the result, or without axes.

    Axes of size 1 broadcast in JAX's elementwise primitives.
    """

    def enter(function: R) -> R:
        def aligned(site: Site, *operands: Value, **params: Any) -> Value:
            shape = site.results[0].shape
            values = [
                op.broadcast(x, shape, range(len(shape)))
                if aval.shape and aval.shape != shape
                else x
                for x, aval in zip(operands, site.operands, strict=True)
            ]
            return function(site, *values, **params)

        rule(*names)(aligned)
        return function

    return enter


def elementwise_table(functions: dict[str, Callable[..., Value]]) -> None:
    """Enter elementwise primitives that are one function, whatever their parameters."""
    for name, function in functions.items():
        elementwise(name)(lambda site, *operands, _f=function, **params: _f(*operands))
