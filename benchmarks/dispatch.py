"""``python -m benchmarks dispatch``: what a call costs when the arrays are small.

No peer waits for its results, as a program that goes on would not. JAX and trnx run jitted
functions, PyTorch eager and compiled ones.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import jax
import jax.numpy as jnp
import numpy as np
import torch

import trnx
import trnx.numpy as tnp
from benchmarks.harness import Workload


def _first(*arrays: Any) -> Any:
    return arrays[0] + 1


def _tree(parameters: Any) -> Any:
    return {name: value + 1 for name, value in parameters.items()}


def _add(x: Any, y: Any) -> Any:
    return x + y


def _arrays(count: int) -> Callable[[], list[np.ndarray]]:
    return lambda: [np.arange(4, dtype=np.float32) + k for k in range(count)]


def _leaves(result: Any) -> list[np.ndarray]:
    parts = list(result.values()) if isinstance(result, dict) else [result]
    return [np.asarray(part) for part in parts]


def _calls(
    function: Callable[..., Any], arguments: Callable[[Callable[[Any], Any]], list[Any]], jit: bool
) -> dict[str, Callable[[], Any]]:
    ours, theirs = arguments(tnp.asarray), arguments(jnp.asarray)
    tensors = arguments(torch.from_numpy)
    first = trnx.jit(function) if jit else function
    second = jax.jit(function) if jit else function
    calls: dict[str, Callable[[], Any]] = {
        "trnx": lambda: first(*ours),
        "jax": lambda: second(*theirs),
        "torch": lambda: function(*tensors),
    }
    if jit:
        compiled = torch.compile(function, dynamic=False)
        calls["inductor"] = lambda: compiled(*tensors)
    return calls


def _flat(count: int) -> Callable[[Callable[[Any], Any]], list[Any]]:
    return lambda own: [own(a) for a in _arrays(count)()]


def _as_dict(own: Callable[[Any], Any]) -> list[Any]:
    return [{f"p{k}": own(a) for k, a in enumerate(_arrays(10)())}]


_WORKLOADS: Final[dict[str, Callable[[], dict[str, Callable[[], Any]]]]] = {
    "jit call, 1 array of 4": lambda: _calls(_first, _flat(1), jit=True),
    "jit call, 10 arrays of 4": lambda: _calls(_first, _flat(10), jit=True),
    "jit call, 100 arrays of 4": lambda: _calls(_first, _flat(100), jit=True),
    "jit call, dict of 10 arrays in and out": lambda: _calls(_tree, _as_dict, jit=True),
    "eager add of 4 elements": lambda: _calls(_add, _flat(2), jit=False),
}

NAMES: Final = tuple(_WORKLOADS)
"""Workloads of this suite."""


def workload(name: str) -> Workload:
    """Makes one workload."""
    calls = _WORKLOADS[name]()
    outputs = {peer: (lambda c=call: _leaves(c())) for peer, call in calls.items()}
    return Workload(name, calls, outputs)
