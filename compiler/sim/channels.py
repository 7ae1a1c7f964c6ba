"""Shared resources that serve work in time: DMA engines, HBM, memory ports.

The simulator visits instructions in program order, but a queue that runs ahead reaches a resource
earlier in time than work visited before it. A ``Channel`` therefore keeps its busy intervals and
serves work in the idle time between them, in pieces if need be, as round-robin hardware would.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence

MAX_INTERVALS = 64
"""Busy intervals kept per channel; the idle time before the oldest is given up beyond that."""


class Channel:
    """One server that does one thing at a time. Times in ns."""

    __slots__ = ("starts", "ends", "busy")

    def __init__(self) -> None:
        self.starts: list[float] = []
        self.ends: list[float] = []
        self.busy = 0.0

    def copy(self) -> Channel:
        """An independent channel with the same intervals."""
        made = Channel()
        made.starts, made.ends, made.busy = list(self.starts), list(self.ends), self.busy
        return made

    def take(self, begin: float, amount: float) -> tuple[float, float]:
        """Serve ``amount`` of time from ``begin`` on; returns when it starts and ends."""
        self.busy += amount
        if amount <= 0.0:
            return begin, begin
        position = bisect_right(self.ends, begin)
        first: float | None = None
        at = begin
        left = amount
        low = position
        while position < len(self.starts):
            idle = self.starts[position] - at
            if idle > 0.0:
                first = at if first is None else first
                if idle >= left:
                    break
                left -= idle
            at = max(at, self.ends[position])
            position += 1
        first = at if first is None else first
        end = at + left
        # The served pieces close every gap between the first interval passed and the end.
        start = min(first, self.starts[low]) if low < position else first
        if low > 0 and self.ends[low - 1] >= start:
            low -= 1
            start = self.starts[low]
        high = position
        if high < len(self.starts) and self.starts[high] <= end:
            end_of_run = self.ends[high]
            high += 1
        else:
            end_of_run = end
        self.starts[low:high] = [start]
        self.ends[low:high] = [end_of_run]
        if len(self.starts) > MAX_INTERVALS:
            del self.starts[1], self.ends[0]
        return first, end

    def forget(self) -> None:
        """Drop the intervals: nothing later begins before they end."""
        self.starts.clear()
        self.ends.clear()

    def edges(self) -> list[float]:
        """Ends and starts of the youngest intervals, youngest first."""
        found: list[float] = []
        for start, end in zip(self.starts[-1:-3:-1], self.ends[-1:-3:-1], strict=True):
            found += [end, start]
        return found

    def shift(self, time: float) -> None:
        """Move every interval later."""
        self.starts = [s + time for s in self.starts]
        self.ends = [e + time for e in self.ends]


class DmaEngines:
    """The DMA engines of a core. While all carry equal loads, one channel stands for all."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.channels = [Channel()]

    def take(self, begin: float, amounts: Sequence[float]) -> tuple[float, float]:
        """Serve ``amounts[e]`` on engine ``e``; returns the first start and the last end."""
        equal = all(a == amounts[0] for a in amounts)
        if len(self.channels) == 1:
            if equal:
                return self.channels[0].take(begin, amounts[0])
            self.channels = [self.channels[0].copy() for _ in range(self.count)]
        first, last = float("inf"), begin
        for channel, amount in zip(self.channels, amounts, strict=True):
            if amount > 0.0:
                start, end = channel.take(begin, amount)
                first, last = min(first, start), max(last, end)
        return min(first, last), last

    def forget(self) -> None:
        """Drop the intervals; see ``Channel.forget``."""
        for channel in self.channels:
            channel.forget()

    @property
    def busiest(self) -> float:
        """Busy time of the busiest engine in ns."""
        return max(channel.busy for channel in self.channels)
