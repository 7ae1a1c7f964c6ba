"""``python -m benchmarks host``: run time of compiled programs, all peers in one process."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import torch

from benchmarks import peers_jax, peers_torch, peers_trnx
from benchmarks.harness import Workload
from benchmarks.workloads import CASES, Case

NAMES = tuple(case.name for case in CASES)
"""Workloads of this suite."""


def _leaves(result: Any) -> list[np.ndarray]:
    if isinstance(result, tuple | list):
        return [leaf for part in result for leaf in _leaves(part)]
    return [np.asarray(result.detach() if isinstance(result, torch.Tensor) else result)]


def workload(name: str) -> Workload:
    """Makes one workload; every peer gets its own copy of equal inputs."""
    (case,) = (c for c in CASES if c.name == name)
    arrays = case.arrays()
    ours, theirs = peers_trnx.inputs(arrays), peers_jax.inputs(arrays)
    tensors = peers_torch.inputs(arrays)
    jitted, jaxed = peers_trnx.jitted(case), peers_jax.jitted(case)
    eager, compiled = peers_torch.eager(case), peers_torch.compiled(case)
    calls: dict[str, Callable[[], Any]] = {
        "trnx": lambda: jitted(*ours),
        "jax": lambda: jax.block_until_ready(jaxed(*theirs)),
        "torch": lambda: eager(*tensors),
    }
    if compiled is not None:
        calls["inductor"] = lambda: compiled(*tensors)
    return _workload(case, calls)


def _workload(case: Case, calls: dict[str, Callable[[], Any]]) -> Workload:
    outputs = {peer: (lambda c=call: _leaves(c())) for peer, call in calls.items()}
    return Workload(
        case.name, calls, outputs, case.flops, case.bytes, rtol=case.rtol, atol=case.atol
    )
