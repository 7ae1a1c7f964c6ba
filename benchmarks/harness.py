"""Timing by alternating blocks, so peers meet the same machine state.

Each peer runs in blocks of at least ``BLOCK_SECONDS``; blocks of all peers alternate, because the
spinning worker threads of one peer slow down whoever runs right after it. The first call of a
block is dropped (it meets the other peer's spinning workers and a cold cache), a block gives the
mean time per call, and a peer's figure is the median over ``BLOCKS`` blocks.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass

import numpy as np

BLOCK_SECONDS = 0.2
BLOCKS = 5


@dataclass(frozen=True, slots=True)
class Row:
    """One workload. Times are milliseconds per call; ``None`` where a peer did not run.

    ``ratio`` is best peer / trnx (above 1 trnx is faster). ``limit_share`` is the share of the
    measured machine limit trnx reaches (floating point or memory copy, whichever binds); None
    where neither binds, as in compiling and dispatching.
    """

    workload: str
    trnx_ms: float
    jax_ms: float | None
    torch_ms: float | None
    inductor_ms: float | None
    ratio: float
    limit_share: float | None

    def as_dict(self) -> dict[str, object]:
        """The row as JSON-ready values, rounded to four significant digits."""
        return {
            k: float(f"{v:.4g}") if isinstance(v, float) else v for k, v in asdict(self).items()
        }


@dataclass(frozen=True, slots=True)
class Workload:
    """A named computation with one callable per peer.

    Each callable runs once and, but for dispatch, returns only when its result is complete.
    ``outputs`` returns the peer's results as NumPy arrays for the correctness check. ``flops`` and
    ``bytes`` are what the algorithm needs at least; 0 for both when neither is the point.
    """

    name: str
    peers: Mapping[str, Callable[[], object]]
    outputs: Mapping[str, Callable[[], list[np.ndarray]]]
    flops: float = 0.0
    bytes: float = 0.0
    rtol: float = 2e-4
    atol: float = 2e-5


def check_agreement(workload: Workload) -> None:
    """Compares every peer with trnx before anything is timed.

    Raises:
        AssertionError: a peer's result differs beyond the workload's tolerance.
    """
    ours = workload.outputs["trnx"]()
    for peer, results in workload.outputs.items():
        if peer == "trnx":
            continue
        for mine, theirs in zip(ours, results(), strict=True):
            np.testing.assert_allclose(
                mine,
                theirs,
                rtol=workload.rtol,
                atol=workload.atol,
                err_msg=f"{workload.name}: trnx and {peer} disagree",
            )


def _block(call: Callable[[], object]) -> float:
    call()
    count, start = 0, time.perf_counter()
    while True:
        call()
        count += 1
        elapsed = time.perf_counter() - start
        if elapsed >= BLOCK_SECONDS:
            return elapsed / count


def measure(workload: Workload) -> dict[str, float]:
    """Median milliseconds per call of each peer, by alternating blocks."""
    for call in workload.peers.values():
        call()
    blocks: dict[str, list[float]] = {peer: [] for peer in workload.peers}
    for _ in range(BLOCKS):
        for peer, call in workload.peers.items():
            blocks[peer].append(_block(call))
    return {peer: 1e3 * statistics.median(times) for peer, times in blocks.items()}


def row(name: str, times: Mapping[str, float], bound_ms: float = 0.0) -> Row:
    """A row from each peer's milliseconds and the least time the machine could take."""
    ours = times["trnx"]
    return Row(
        name,
        ours,
        times.get("jax"),
        times.get("torch"),
        times.get("inductor"),
        min(t for peer, t in times.items() if peer != "trnx") / ours,
        bound_ms / ours if bound_ms else None,
    )


def run(workload: Workload, limits: Mapping[str, float]) -> Row:
    """Checks, then measures one workload.

    ``limits`` holds ``flops`` (per second) and ``bytes`` (per second) of the machine.
    """
    check_agreement(workload)
    times = measure(workload)
    bound_ms = 1e3 * max(workload.flops / limits["flops"], workload.bytes / limits["bytes"])
    return row(workload.name, times, bound_ms)


def geometric_mean(values: Iterable[float]) -> float:
    """The geometric mean; of at least one value."""
    found = list(values)
    return math.exp(sum(map(math.log, found)) / len(found))


def grouped(ratios: Iterable[tuple[str, float]]) -> list[tuple[str, list[float]]]:
    """Ratios by the mode a row's name starts with (", cold"), in one group when it has none."""
    groups: dict[str, list[float]] = {}
    for name, ratio in ratios:
        mode = name.split(" ", 1)[0]
        groups.setdefault(f", {mode}" if mode in ("cold", "warm") else "", []).append(ratio)
    return list(groups.items())
