"""``python -m benchmarks compile``: time to the first result in a fresh process.

Each figure is one process of one library: it imports the library, makes the inputs, warms the
library itself up with a program of another kind (device and thread start-up are not the
compiler), then takes the time of the first call, which traces, compiles and runs. ``cold`` keeps no
cache on disk; ``warm`` reads what an earlier process left on disk: JAX from its persistent
cache, trnx from its own. Processes of the two libraries alternate, the first one of each is
dropped, and the figure is the median of the rest.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from typing import Any, Final

import numpy as np

from benchmarks.harness import Row, row
from benchmarks.workloads import CASES, Case, case

PEERS: Final = ("trnx", "jax")
REPEATS: Final = 3
MODES: Final = ("cold", "warm")
NAMES: Final = tuple(f"{mode} {c.name}" for mode in MODES for c in CASES)
"""Workloads of this suite."""


def run(name: str) -> Row:
    """Measures one workload in one mode.

    Raises:
        AssertionError: the peers' results disagree.
        subprocess.CalledProcessError: a process failed; its error went to stderr.
    """
    mode, workload = name.split(" ", 1)
    found = case(workload)
    with tempfile.TemporaryDirectory() as folder:
        times: dict[str, list[float]] = {peer: [] for peer in PEERS}
        for repeat in range(REPEATS + 1):
            results = {}
            for peer in PEERS:
                seconds, results[peer] = _process(peer, workload, mode, folder)
                if repeat:  # in mode warm the first one fills the cache
                    times[peer].append(seconds)
            _compare(found, results)
    return row(name, {peer: 1e3 * statistics.median(s) for peer, s in times.items()})


def _compare(found: Case, results: dict[str, list[list[float]]]) -> None:
    for ours, theirs in zip(results["trnx"], results["jax"], strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=found.rtol, atol=found.atol)


def _process(peer: str, workload: str, mode: str, folder: str) -> tuple[float, list[list[float]]]:
    """Seconds of the first call in a process of its own, and samples of its results."""
    environment = dict(os.environ)
    if mode == "warm":
        environment.update(
            TRNX_CACHE_DIR=os.path.join(folder, "trnx"),
            JAX_COMPILATION_CACHE_DIR=os.path.join(folder, "jax"),
            JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS="0",
            JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES="-1",
        )
    else:
        environment.update(TRNX_DISK_CACHE="0", JAX_ENABLE_COMPILATION_CACHE="false")
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.compile", peer, workload],
        env=environment,
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    seconds, samples = json.loads(done.stdout)
    return seconds, samples


def _first_result(peer: str, workload: str) -> tuple[float, list[list[float]]]:
    module: Any
    if peer == "trnx":
        from benchmarks import peers_trnx as module
    else:
        from benchmarks import peers_jax as module
    found = case(workload)
    arguments = module.inputs(found.arrays())
    module.wait(module.warm_up())
    function = module.jitted(found)
    start = time.perf_counter()
    result = module.wait(function(*arguments))
    seconds = time.perf_counter() - start
    return seconds, [_sample(leaf) for leaf in _flat(result)]


def _flat(result: Any) -> list[Any]:
    if isinstance(result, tuple | list):
        return [leaf for part in result for leaf in _flat(part)]
    return [result]


def _sample(leaf: Any) -> list[float]:
    """A few hundred elements spread over an array."""
    flat = np.asarray(leaf).reshape(-1)
    return flat[:: max(1, flat.size // 256)].astype(float).tolist()


if __name__ == "__main__":
    json.dump(_first_result(sys.argv[1], sys.argv[2]), sys.stdout)
