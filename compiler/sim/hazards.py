"""Race detection: overlapping accesses on different queues with no order between them.

Order is tracked with vector clocks. The clock of an instance holds, per queue, how many instances
of that queue have certainly finished when it starts: what its own queue's predecessor knew, plus
each instance it waits for and everything that one knew. An access races with an earlier one on
another queue if the bytes overlap, one side writes, and the earlier instance is not known.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from trnx.compiler.sim.dependencies import Instance, Touch
from trnx.compiler.sim.memory import View
from trnx.compiler.tile.ir import Instruction
from trnx.core.source import Source

ON_CHIP_BLOCK = 4096
HBM_BLOCK = 1 << 20


@dataclass(frozen=True, slots=True)
class Finding:
    """Something wrong the simulator saw.

    Attributes:
        kind: ``race``, ``uninitialised``, ``parallel``, ``capacity`` or ``output``.
        text: one sentence with instruction, shapes and the user's line.
        source: the user's line.
    """

    kind: str
    text: str
    source: Source | None = None

    def __str__(self) -> str:
        return f"{self.kind}: {self.text}"


@dataclass(frozen=True, slots=True)
class _Entry:
    position: int
    view: View
    instruction: Instruction


@dataclass(frozen=True, slots=True)
class Race:
    """Two unordered accesses: the earlier and the later instruction in program order."""

    first: Instruction
    second: Instruction
    view: View
    first_queue: str
    second_queue: str


class Races:
    """Vector clocks and the last accesses of every queue, within one kernel call."""

    def __init__(self) -> None:
        self._length: dict[str, int] = {}
        self._known: dict[str, dict[str, int]] = {}
        self._floor: dict[str, int] = {}
        # memory, block -> queue -> (extent, writes) -> last access
        self._log: dict[tuple[int, int], dict[str, dict[tuple[object, ...], _Entry]]] = {}

    def barrier(self) -> None:
        """Everything later is ordered after everything so far."""
        self._floor = dict(self._length)

    def start(self, queue: str, waits: list[Instance]) -> tuple[int, dict[str, int]]:
        """Position and clock of the next instance of ``queue``."""
        known = dict(self._known.get(queue, {}))
        for name, count in self._floor.items():
            if known.get(name, 0) < count:
                known[name] = count
        for other in waits:
            for name, count in other.known.items():
                if known.get(name, 0) < count:
                    known[name] = count
            if known.get(other.queue, 0) < other.position:
                known[other.queue] = other.position
        position = self._length.get(queue, 0) + 1
        self._length[queue] = position
        self._known[queue] = known
        return position, known

    def check(self, instruction: Instruction, instance: Instance) -> Iterator[Race]:
        """Races of an instance with earlier ones; its own accesses are then remembered."""
        for touch in instance.touches:
            if touch.view is None or touch.view.empty:
                continue
            yield from self._against(instruction, instance, touch)
        for touch in instance.touches:
            if touch.view is None or touch.view.empty:
                continue
            entry = _Entry(instance.position, touch.view, instruction)
            key = (touch.writes, touch.view.offset, touch.view.shape, touch.view.strides)
            for block in _blocks(touch.view):
                self._log.setdefault(block, {}).setdefault(instance.queue, {})[key] = entry

    def _against(
        self, instruction: Instruction, instance: Instance, touch: Touch
    ) -> Iterator[Race]:
        assert touch.view is not None
        seen: set[int] = set()
        for block in _blocks(touch.view):
            for queue, entries in self._log.get(block, {}).items():
                if queue == instance.queue:
                    continue
                known = instance.known.get(queue, 0)
                for key, entry in entries.items():
                    if entry.position <= known or not (touch.writes or key[0]):
                        continue
                    if id(entry) in seen:
                        continue
                    seen.add(id(entry))
                    if entry.view.overlaps(touch.view):
                        yield Race(
                            entry.instruction, instruction, touch.view, queue, instance.queue
                        )


def _blocks(view: View) -> Iterator[tuple[int, int]]:
    size = HBM_BLOCK if view.partitions is None else ON_CHIP_BLOCK
    low, high = view.extent
    for block in range(low // size, (high - 1) // size + 1):
        yield id(view.memory), block


class ParallelLoop:
    """HBM bytes touched by the iterations of one ``parallel`` loop."""

    def __init__(self) -> None:
        self._spans: dict[tuple[int, bool], list[tuple[int, np.ndarray, int, Instruction]]] = {}
        self.iteration = -1

    def record(self, instruction: Instruction, touches: tuple[Touch, ...]) -> None:
        """Remember the HBM accesses of an instance of the current iteration."""
        for touch in touches:
            view = touch.view
            if view is None or view.partitions is not None or view.empty:
                continue
            starts, length = view.runs
            group = self._spans.setdefault((id(view.memory), touch.writes), [])
            group.append((self.iteration, starts, length, instruction))

    def conflict(self) -> tuple[Instruction, Instruction] | None:
        """A write and another access to the same byte from two iterations, if there are any."""
        memories = {memory for memory, _ in self._spans}
        for memory in sorted(memories):
            writes = _table(self._spans.get((memory, True), []))
            both = _table(
                self._spans.get((memory, True), []) + self._spans.get((memory, False), [])
            )
            found = _first_conflict(writes, both)
            if found is not None:
                return found
        return None


@dataclass(frozen=True, slots=True)
class _Table:
    starts: np.ndarray
    ends: np.ndarray
    iterations: np.ndarray
    owners: np.ndarray
    instructions: list[Instruction]


def _table(group: list[tuple[int, np.ndarray, int, Instruction]]) -> _Table:
    if not group:
        none = np.empty(0, np.int64)
        return _Table(none, none, none, none, [])
    starts = np.concatenate([s for _, s, _, _ in group])
    ends = np.concatenate([s + n for _, s, n, _ in group])
    iterations = np.concatenate([np.full(len(s), i, np.int64) for i, s, _, _ in group])
    owners = np.concatenate([np.full(len(g[1]), k, np.int64) for k, g in enumerate(group)])
    order = np.argsort(starts, kind="stable")
    return _Table(
        starts[order],
        ends[order],
        iterations[order],
        owners[order],
        [i for _, _, _, i in group],
    )


def _first_conflict(writes: _Table, other: _Table) -> tuple[Instruction, Instruction] | None:
    if not writes.starts.size:
        return None
    # Furthest end among the runs that begin no later: nothing before it can reach a later start.
    furthest = np.maximum.accumulate(other.ends)
    for k in range(writes.starts.size):
        begin, end = writes.starts[k], writes.ends[k]
        low = int(np.searchsorted(furthest, begin, side="right"))
        high = int(np.searchsorted(other.starts, end, side="left"))
        window = slice(low, high)
        hits = (other.ends[window] > begin) & (other.iterations[window] != writes.iterations[k])
        if hits.any():
            position = low + int(np.argmax(hits))
            return (
                writes.instructions[int(writes.owners[k])],
                other.instructions[int(other.owners[position])],
            )
    return None
