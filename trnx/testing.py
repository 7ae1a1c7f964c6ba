"""Public test utilities: count compiles, listen to explanations of recompiles."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from trnx.runtime import explain, programs
from trnx.runtime.programs import CompileEvent


class CompileCount:
    """What was compiled inside a :func:`count_compiles` block.

    Calling it gives the number of executables that were made: one per new key, also if the code
    itself came from the disk or from an equal program, so that the number does not depend on what
    an earlier process left in the cache.
    """

    def __init__(self) -> None:
        self.events: list[CompileEvent] = []

    def __call__(self) -> int:
        return len(self.events)

    @property
    def keys(self) -> tuple[str, ...]:
        """Digests of the distinct program keys, in order of first use."""
        return tuple(dict.fromkeys(event.key for event in self.events))

    def __repr__(self) -> str:
        names = ", ".join(f"{event.kind} {event.name}" for event in self.events)
        return f"<{len(self.events)} compiles: {names}>"


@contextmanager
def count_compiles() -> Iterator[CompileCount]:
    """Count the executables that are made inside a ``with`` block, in every thread."""
    count = CompileCount()
    programs.compile_listeners.append(count.events.append)
    try:
        yield count
    finally:
        programs.compile_listeners.remove(count.events.append)


@contextmanager
def assert_compiles(expected: int) -> Iterator[CompileCount]:
    """Fail with the list of what was compiled unless exactly `expected` executables are made."""
    with count_compiles() as count:
        yield count
    if count() != expected:
        raise AssertionError(f"expected {expected} compiles: {count!r}")


@contextmanager
def explain_recompiles() -> Iterator[Callable[[], str]]:
    """Collect why jitted functions are traced inside a ``with`` block; gives the text so far."""
    misses: list[explain.Miss | explain.NewBucket] = []
    explain.miss_listeners.append(misses.append)
    try:
        yield lambda: "\n".join(map(str, misses))
    finally:
        explain.miss_listeners.remove(misses.append)
