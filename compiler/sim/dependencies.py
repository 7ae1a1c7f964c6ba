"""Which earlier instances an instance waits for.

An id ``d`` in ``Instruction.deps`` means: the latest earlier instance of ``d`` whose accesses
conflict with this instance has finished. Conflict is overlap with a write on one side; on chip
by partition range and byte range, in HBM by the bytes touched.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass

from trnx.compiler.sim.memory import View
from trnx.compiler.tile.ir import Instruction

HISTORY = 32
"""Instances of an instruction that are kept. An instance that conflicts with none of them waits for
the youngest one dropped, which is more than it has to."""


@dataclass(frozen=True, slots=True)
class Touch:
    """Memory one operand of an instance touches.

    ``box`` is ``(first partition, end, first byte, end)`` on chip. ``view`` holds the exact bytes;
    it is None for HBM in the cost walk, which has no addresses.
    """

    writes: bool
    memory: str
    box: tuple[int, int, int, int] | None
    view: View | None = None

    @property
    def on_chip(self) -> bool:
        """Whether the memory is SBUF or PSUM."""
        return self.box is not None


@dataclass(slots=True)
class Instance:
    """One executed instance: its place in its queue, what it knew, when it finished."""

    queue: str
    position: int
    touches: tuple[Touch, ...]
    known: Mapping[str, int]
    finish: float = 0.0


def boxes_meet(a: tuple[int, int, int, int], b: tuple[int, int, int, int]) -> bool:
    """Whether two partition-and-byte boxes overlap."""
    return a[0] < b[1] and b[0] < a[1] and a[2] < b[3] and b[2] < a[3]


def conflict(first: tuple[Touch, ...], second: tuple[Touch, ...]) -> bool:
    """Whether two instances touch common memory, one of them writing it."""
    unknown = False
    for a in first:
        for b in second:
            if not (a.writes or b.writes) or a.memory != b.memory:
                continue
            if a.box is not None and b.box is not None:
                if boxes_meet(a.box, b.box):
                    return True
            elif a.view is not None and b.view is not None:
                if a.view.overlaps(b.view):
                    return True
            elif a.box is None and b.box is None:
                unknown = True
    return unknown


class Dependencies:
    """The instances of one kernel call that later ones may wait for."""

    def __init__(self) -> None:
        self.history: dict[int, deque[Instance]] = {}
        self.dropped: dict[int, Instance] = {}

    def waits(self, instruction: Instruction, touches: tuple[Touch, ...]) -> list[Instance]:
        """The instances that must finish before this one starts."""
        found: list[Instance] = []
        for dependency in instruction.deps:
            kept = self.history.get(dependency)
            if not kept:
                continue
            for other in reversed(kept):
                if conflict(other.touches, touches):
                    found.append(other)
                    break
            else:
                if dependency in self.dropped:
                    found.append(self.dropped[dependency])
        return found

    def record(self, instruction: Instruction, instance: Instance) -> None:
        """Remember an executed instance."""
        kept = self.history.setdefault(instruction.id, deque())
        if len(kept) == HISTORY:
            self.dropped[instruction.id] = kept.popleft()
        kept.append(instance)
