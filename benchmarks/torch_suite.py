"""``python -m benchmarks torch``: device and backend `neuron` against PyTorch on the CPU.

``trnx`` is the same PyTorch program with tensors on `neuron`; ``torch`` is CPU eager and
``inductor`` ``torch.compile`` on the CPU. Rows begin with how trnx runs: ``eager`` or ``compiled``.
A ``cold`` row is the time from a captured function to its first forward and backward result in a
process of its own, imports done, caches on disk off.
"""

from __future__ import annotations

import copy
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from typing import Any, Final

import numpy as np
import torch
from torch import nn

from benchmarks.harness import Row, Workload, measure, row

Step = Callable[[], Any]
Made = tuple[nn.Module, tuple[torch.Tensor, ...]]
F = nn.functional


def mlp() -> Made:
    """Four layers, a batch of 64."""
    torch.manual_seed(0)
    layers = [nn.Linear(256, 512), nn.GELU(), nn.Linear(512, 512), nn.GELU(), nn.Linear(512, 10)]
    return nn.Sequential(*layers), (torch.randn(64, 256), torch.randint(0, 10, (64,)))


def transformer() -> Made:
    """One encoder layer of width 256 on 8 sequences of 64."""
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(256, 4, 1024, 0.0, "gelu", batch_first=True)
    return layer, (torch.randn(8, 64, 256),)


def loss(model: nn.Module, *inputs: torch.Tensor) -> torch.Tensor:
    """Cross-entropy where there are labels, else the mean square."""
    out = model(inputs[0])
    return F.cross_entropy(out, inputs[1]) if len(inputs) > 1 else out.square().mean()


def _step(made: Made, device: str, backend: str | None, optimizer: bool) -> Step:
    """Forward and backward, and with `optimizer` a step of SGD, on a copy of the model."""
    model = copy.deepcopy(made[0]).to(device)
    inputs = tuple(t.to(device) for t in made[1])
    run = loss if backend is None else torch.compile(loss, backend=backend, dynamic=False)
    update = torch.optim.SGD(model.parameters(), lr=1e-4) if optimizer else None

    def step() -> Any:
        value = run(model, *inputs)
        for parameter in model.parameters():
            parameter.grad = None
        value.backward()
        if update is not None:
            update.step()
        return value

    return step


def _peers(made: Made, compiled: bool, optimizer: bool) -> dict[str, Step]:
    peers = {
        "trnx": _step(made, "neuron", "neuron" if compiled else None, optimizer),
        "torch": _step(made, "cpu", None, optimizer),
    }
    if compiled:
        peers["inductor"] = _step(made, "cpu", "inductor", optimizer)
    return peers


def _add() -> dict[str, Step]:
    cpu = torch.arange(4.0), torch.arange(4.0)
    own = tuple(t.to("neuron") for t in cpu)
    return {"trnx": lambda: own[0] + own[1], "torch": lambda: cpu[0] + cpu[1]}


def _call() -> dict[str, Step]:
    """A compiled function that does next to nothing: what a call costs."""
    cpu = torch.arange(4.0)
    own = cpu.to("neuron")
    function = lambda x: x + 1  # noqa: E731
    ours = torch.compile(function, backend="neuron", dynamic=False)
    theirs = torch.compile(lambda x: x + 1, backend="inductor", dynamic=False)
    return {
        "trnx": lambda: ours(own),
        "torch": lambda: function(cpu),
        "inductor": lambda: theirs(cpu),
    }


_WORKLOADS: Final[dict[str, Callable[[], dict[str, Step]]]] = {
    "eager add of 4 elements": _add,
    "eager MLP train step": lambda: _peers(mlp(), False, True),
    "compiled MLP train step": lambda: _peers(mlp(), True, True),
    "eager transformer layer forward and backward": lambda: _peers(transformer(), False, False),
    "compiled transformer layer forward and backward": lambda: _peers(transformer(), True, False),
    "compiled call of x + 1, 4 elements": _call,
}
_COLD: Final[dict[str, str]] = {
    "cold compile of the MLP step": "mlp",
    "cold compile of the transformer layer": "transformer",
}

NAMES: Final = (*_WORKLOADS, *_COLD)
"""Workloads of this suite."""


def _results(step: Step) -> list[np.ndarray]:
    return [step().detach().cpu().numpy()]


def run(name: str) -> tuple[Row, dict[str, object]]:
    """The row of one workload, and what aot_eager takes where calls are measured."""
    if name in _COLD:
        times = {peer: _cold(_COLD[name], peer) for peer in ("trnx", "inductor")}
        return row(name, {peer: 1e3 * seconds for peer, seconds in times.items()}), {}
    peers = _WORKLOADS[name]()
    outputs = {peer: (lambda s=step: _results(s)) for peer, step in peers.items()}
    workload = Workload(name, peers, outputs, rtol=1e-3, atol=1e-4)
    expected = outputs["torch"]()
    for peer, result in outputs.items():
        np.testing.assert_allclose(result()[0], expected[0], 1e-3, 1e-4, err_msg=f"{name}: {peer}")
    times = measure(workload)
    facts: dict[str, object] = {}
    if name.startswith("compiled call"):
        own = torch.arange(4.0).to("neuron")
        eager = torch.compile(lambda x: x + 1, backend="aot_eager", dynamic=False)
        alone = Workload(name, {"trnx": lambda: eager(own)}, {})
        facts["aot_eager_ms"] = float(f"{measure(alone)['trnx']:.4g}")
    return row(name, times), facts


_PROGRAM: Final = """
import sys, time
import torch
from benchmarks import torch_suite
name, device, backend = sys.argv[1:]
made = getattr(torch_suite, name)()
warm = torch.compile(lambda x: x + 1, backend=backend)
warm(torch.ones(3, device=device, requires_grad=True)).sum().backward()
step = torch_suite._step(made, device, backend, False)
start = time.perf_counter()
step()
print(time.perf_counter() - start)
"""


def _cold(model: str, peer: str) -> float:
    """Seconds to the first result in a process of its own, with empty caches."""
    device, backend = ("neuron", "neuron") if peer == "trnx" else ("cpu", "inductor")
    with tempfile.TemporaryDirectory() as empty:
        environment = {
            **os.environ,
            "TRNX_CACHE_DIR": empty,
            "TORCHINDUCTOR_CACHE_DIR": empty,
            "TORCHINDUCTOR_FORCE_DISABLE_CACHES": "1",
        }
        done = subprocess.run(
            [sys.executable, "-c", _PROGRAM, model, device, backend],
            capture_output=True,
            text=True,
            env=environment,
            check=True,
        )
    return float(done.stdout.split()[-1])
