"""Bucket policies: which buffer size a run-time size is padded to.

A dynamic function compiles once per bucket. Few buckets mean few compiles, narrow ones little
padding; :func:`powers_of_two` needs one compile per doubling and at most doubles a size.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from trnx.core.dims import DimVar
from trnx.core.errors import DimError, message
from trnx.core.program import Annotation


@dataclass(frozen=True, slots=True)
class PowersOfTwo:
    """1, 2, 4, 8, … from `least` on."""

    least: int = 1

    def bucket(self, name: str, size: int) -> int:
        """The bucket of a size."""
        return max(self.least, 1 << max(size - 1, 0).bit_length())

    def __str__(self) -> str:
        return "powers of two" + (f" from {self.least}" if self.least > 1 else "")


@dataclass(frozen=True, slots=True)
class Multiples:
    """step, 2 * step, 3 * step, …"""

    step: int

    def bucket(self, name: str, size: int) -> int:
        """The bucket of a size."""
        return max(1, -(-size // self.step)) * self.step

    def __str__(self) -> str:
        return f"multiples of {self.step}"


@dataclass(frozen=True, slots=True)
class Listed:
    """The given sizes, in increasing order."""

    sizes: tuple[int, ...]

    def bucket(self, name: str, size: int) -> int:
        """The bucket of a size.

        Raises:
            DimError: the size is above the largest bucket.
        """
        place = bisect_left(self.sizes, size)
        if place == len(self.sizes):
            raise DimError(
                message(
                    f"Size {name} = {size} is above its largest bucket {self.sizes[-1]}",
                    None,
                    "Add a larger bucket to buckets=, or cut the array",
                )
            )
        return self.sizes[place]

    def __str__(self) -> str:
        return f"the buckets {', '.join(map(str, self.sizes))}"


Policy: TypeAlias = PowersOfTwo | Multiples | Listed


def powers_of_two(least: int = 1) -> PowersOfTwo:
    """Buckets 1, 2, 4, 8, …: at most one compile per doubling of a size.

    Args:
        least: the smallest bucket, a power of two.

    Raises:
        ValueError: `least` is no power of two.
    """
    if not isinstance(least, int) or least < 1 or least & (least - 1):
        raise ValueError(message(f"The least bucket {least!r} is no power of two", None, "Use 16"))
    return PowersOfTwo(least)


def multiples(step: int) -> Multiples:
    """Buckets step, 2 * step, 3 * step, …: little padding, more compiles.

    Raises:
        ValueError: `step` is below 1.
    """
    if not isinstance(step, int) or step < 1:
        cause = f"Buckets cannot be multiples of {step!r}"
        raise ValueError(message(cause, None, "Use an int of at least 1"))
    return Multiples(step)


@dataclass(frozen=True, slots=True)
class Buckets(Annotation):
    """The policies of a dynamic function: one for all names, and those of some names.

    A parameter of `call` equations; it never changes what they compute.
    """

    default: Policy = PowersOfTwo()
    named: tuple[tuple[str, Policy], ...] = ()

    @property
    def name(self) -> str:  # type: ignore[override]
        """Text of the parameter."""
        return "buckets"

    def policy(self, name: str) -> Policy:
        """The policy of a named size."""
        return dict(self.named).get(name, self.default)

    def bucket(self, variable: DimVar, size: int) -> int:
        """The bucket of a size; never above the bound of its name.

        Raises:
            DimError: an explicit list has no bucket that large.
        """
        chosen = self.policy(variable.name).bucket(variable.name, size)
        return chosen if variable.max is None else max(min(chosen, variable.max), 1)


def as_buckets(given: Any) -> Buckets:
    """Buckets from what `jit` takes.

    Args:
        given: None (powers of two), a policy, a list of sizes, or a mapping from size name to one
            of these; names that are missing use powers of two.

    Raises:
        TypeError: nothing of the kind.
        ValueError: a list that is empty or has sizes below 1.
    """
    if isinstance(given, Mapping):
        named = tuple(sorted((str(name), _as_policy(value)) for name, value in given.items()))
        return Buckets(named=named)
    return Buckets(_as_policy(given))


def _as_policy(given: Any) -> Policy:
    if given is None or given is powers_of_two:
        return PowersOfTwo()
    if isinstance(given, PowersOfTwo | Multiples | Listed):
        return given
    if isinstance(given, Iterable) and not isinstance(given, str | bytes):
        sizes = list(given)
        if all(isinstance(size, int) and not isinstance(size, bool) for size in sizes):
            if not sizes or min(sizes) < 1:
                raise ValueError(
                    message(f"buckets={sizes} has no size of at least 1", None, "List some")
                )
            return Listed(tuple(sorted(set(sizes))))
    raise TypeError(
        message(
            f"buckets={given!r} is no bucket policy",
            None,
            "Use powers_of_two(), multiples(128) or a list such as [64, 256, 1024]",
        )
    )
