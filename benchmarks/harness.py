"""Timing by alternating blocks, so peers meet the same machine state.

Each peer runs in blocks of at least ``BLOCK_SECONDS``; blocks of all peers alternate, because the
spinning worker threads of one peer slow down whoever runs right after it. The first call of a
block is dropped (it meets the other peer's spinning workers and a cold cache), a block gives the
mean time per call, and a peer's figure is the median over ``BLOCKS`` blocks.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass

import numpy as np

BLOCK_SECONDS = 0.2
BLOCKS = 5


@dataclass(frozen=True, slots=True)
class Row:
    """One workload. Times are milliseconds per call; ``None`` where a peer did not run.

    ``ratio`` is best peer / trnx (above 1 trnx is faster). ``limit_share`` is the share of the
    measured machine limit trnx reaches (floating point or memory copy, whichever binds).
    """

    workload: str
    trnx_ms: float
    jax_ms: float | None
    torch_ms: float | None
    inductor_ms: float | None
    ratio: float
    limit_share: float

    def as_dict(self) -> dict[str, object]:
        """The row as JSON-ready values."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Workload:
    """A named computation with one callable per peer.

    Each callable runs once and returns only when its result is complete. ``outputs`` returns the
    peer's results as NumPy arrays for the correctness check. ``flops`` and ``bytes`` are what the
    algorithm needs at least.
    """

    name: str
    peers: Mapping[str, Callable[[], object]]
    outputs: Mapping[str, Callable[[], list[np.ndarray]]]
    flops: float
    bytes: float
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


def run(workload: Workload, limits: Mapping[str, float]) -> Row:
    """Checks, then measures one workload.

    ``limits`` holds ``flops`` (per second) and ``bytes`` (per second) of the machine.
    """
    check_agreement(workload)
    times = measure(workload)
    ours = times["trnx"]
    others = [t for peer, t in times.items() if peer != "trnx"]
    bound_ms = 1e3 * max(workload.flops / limits["flops"], workload.bytes / limits["bytes"])
    return Row(
        workload.name,
        ours,
        times.get("jax"),
        times.get("torch"),
        times.get("inductor"),
        min(others) / ours,
        bound_ms / ours,
    )
