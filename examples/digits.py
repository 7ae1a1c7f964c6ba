"""Real handwritten digits, learned three ways from the same weights and batches.

(a) trnx array functions: ``jit(value_and_grad(loss))`` and a jitted AdamW.
(b) an unchanged ``torch.nn`` model on device ``neuron`` under ``torch.compile``.
(c) the same model in plain PyTorch on the CPU, as the reference.

Run it with ``make demo``, or ``python examples/digits.py``. It prints a table and writes
``build/demo.json`` and an HTML timeline of one modelled training step on Trainium2.
"""

from __future__ import annotations

import argparse
import copy
import itertools
import json
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from sklearn.datasets import load_digits

import trnx
import trnx.nn as nn
import trnx.numpy as tnp
import trnx_torch
from trnx.testing import CompileCount, count_compiles

LAYERS = (64, 128, 64, 10)
TRAIN, TEST = 1437, 360
BATCH = 64
LEARNING_RATE, BETA1, BETA2, EPSILON, WEIGHT_DECAY = 3e-3, 0.9, 0.999, 1e-8, 1e-2

Params = dict[str, trnx.Array]


@dataclass
class Digits:
    """Images scaled to 0..1 as ``f32[n, 64]``, labels as ``int64[n]``."""

    train_x: np.ndarray
    train_y: np.ndarray
    test_x: np.ndarray
    test_y: np.ndarray

    def batches(self, epoch: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Full batches in an order that depends on the epoch only."""
        order = np.random.default_rng(epoch).permutation(TRAIN)
        for start in range(0, TRAIN - BATCH + 1, BATCH):
            pick = order[start : start + BATCH]
            yield self.train_x[pick], self.train_y[pick]


@dataclass
class Outcome:
    """What one way of training gave."""

    weights: dict[str, np.ndarray]
    accuracy: float
    epoch_seconds: list[float] = field(default_factory=list)


def load() -> Digits:
    """The bundled data, shuffled with a fixed seed and split 1437 / 360."""
    data = load_digits()
    order = np.random.default_rng(0).permutation(len(data.target))
    x = (data.data[order] / 16.0).astype(np.float32)
    y = data.target[order].astype(np.int64)
    return Digits(x[:TRAIN], y[:TRAIN], x[TRAIN : TRAIN + TEST], y[TRAIN : TRAIN + TEST])


def build_model() -> torch.nn.Module:
    """The MLP 64-128-64-10 with tanh."""
    torch.manual_seed(0)
    layers: list[torch.nn.Module] = []
    for inputs, outputs in itertools.pairwise(LAYERS):
        layers += [torch.nn.Linear(inputs, outputs), torch.nn.Tanh()]
    return torch.nn.Sequential(*layers[:-1])


def progress(label: str, epoch: int, epochs: int, loss: float) -> None:
    """One line per way of training, rewritten in place on a terminal."""
    end = "\r" if sys.stdout.isatty() and epoch + 1 < epochs else "\n"
    if end == "\r" or epoch + 1 == epochs or (epoch + 1) % 5 == 0:
        print(f"  {label:28} epoch {epoch + 1:2}/{epochs}  loss {loss:.4f}", end=end, flush=True)


# ------------------------------------------------------------------ (a) array functions


def forward(params: Params, x: trnx.Array) -> trnx.Array:
    """Logits ``f32[batch, 10]``; weights are stored ``[out, in]`` as PyTorch does."""
    names = [name for name in params if name.endswith("weight")]
    for name in names:
        x = x @ params[name].T + params[name.replace("weight", "bias")]
        if name != names[-1]:
            x = tnp.tanh(x)
    return x


def loss_fn(params: Params, x: trnx.Array, labels: trnx.Array) -> trnx.Array:
    """Mean cross-entropy."""
    return nn.cross_entropy(forward(params, x), labels)


def adamw(
    params: Params,
    grads: Params,
    first: Params,
    second: Params,
    correction1: float,
    correction2: float,
) -> tuple[Params, Params, Params]:
    """One AdamW update, in the order of operations ``torch.optim.AdamW`` uses."""
    new_params, new_first, new_second = {}, {}, {}
    for name, p in params.items():
        g = grads[name]
        p = p * (1 - LEARNING_RATE * WEIGHT_DECAY)
        m = first[name] + (g - first[name]) * (1 - BETA1)
        v = second[name] * BETA2 + (1 - BETA2) * g * g
        scale = tnp.sqrt(v) / tnp.sqrt(correction2) + EPSILON
        new_params[name] = p - (LEARNING_RATE / correction1) * (m / scale)
        new_first[name], new_second[name] = m, v
    return new_params, new_first, new_second


step_fn = trnx.jit(trnx.value_and_grad(loss_fn))
update_fn = trnx.jit(adamw, donate_argnums=(0, 2, 3))
predict_fn = trnx.jit(forward)


def train_trnx(digits: Digits, initial: dict[str, np.ndarray], epochs: int) -> Outcome:
    """Way (a)."""
    params = {name: tnp.asarray(w) for name, w in initial.items()}
    first = {name: tnp.zeros_like(p) for name, p in params.items()}
    second = {name: tnp.zeros_like(p) for name, p in params.items()}
    seconds, step = [], 0
    for epoch in range(epochs):
        start = time.perf_counter()
        for x, y in digits.batches(epoch):
            step += 1
            loss, grads = step_fn(params, tnp.asarray(x), tnp.asarray(y.astype(np.int32)))
            params, first, second = update_fn(
                params, grads, first, second, 1 - BETA1**step, 1 - BETA2**step
            )
        value = float(loss)
        seconds.append(time.perf_counter() - start)
        progress("trnx array functions", epoch, epochs, value)
    logits = np.asarray(predict_fn(params, tnp.asarray(digits.test_x)))
    accuracy = float((logits.argmax(1) == digits.test_y).mean())
    return Outcome({n: np.asarray(p) for n, p in params.items()}, accuracy, seconds)


# ------------------------------------------------------------------ (b), (c) PyTorch


def train_torch(
    label: str,
    digits: Digits,
    model: torch.nn.Module,
    device: str,
    epochs: int,
    wrap: Callable[[torch.nn.Module], Callable[[torch.Tensor], torch.Tensor]],
) -> Outcome:
    """Ways (b) and (c): one training loop; only the device string and ``wrap`` differ."""
    model = model.to(device)
    compiled = wrap(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, weight_decay=WEIGHT_DECAY)
    criterion = torch.nn.CrossEntropyLoss()
    seconds = []
    for epoch in range(epochs):
        start = time.perf_counter()
        for x, y in digits.batches(epoch):
            inputs, labels = torch.from_numpy(x).to(device), torch.from_numpy(y).to(device)
            optimizer.zero_grad()
            loss = criterion(compiled(inputs), labels)
            loss.backward()
            optimizer.step()
        value = loss.item()
        seconds.append(time.perf_counter() - start)
        progress(label, epoch, epochs, value)
    with torch.no_grad():
        logits = compiled(torch.from_numpy(digits.test_x).to(device)).cpu()
    accuracy = (logits.argmax(1) == torch.from_numpy(digits.test_y)).double().mean().item()
    weights = {name: p.detach().cpu().numpy() for name, p in model.named_parameters()}
    return Outcome(weights, accuracy, seconds)


# ------------------------------------------------------------------ report


def largest_difference(ours: Outcome, reference: Outcome) -> float:
    """Largest absolute difference of any weight."""
    return max(
        float(np.abs(ours.weights[name] - reference.weights[name]).max())
        for name in reference.weights
    )


def model_step(digits: Digits, initial: dict[str, np.ndarray], build: Path) -> tuple[float, str]:
    """Runs one training step in the simulator as Trainium2 would.

    Returns:
        Modelled microseconds of forward, backward and update, and the busiest engine of the
        forward and backward part. Writes its timeline to ``build/timeline.html``.
    """
    params = {name: tnp.asarray(w) for name, w in initial.items()}
    zeros = {name: tnp.zeros_like(p) for name, p in params.items()}
    x, y = next(digits.batches(0))
    step = step_fn.lower(params, tnp.asarray(x), tnp.asarray(y.astype(np.int32)))
    run = step.simulate()
    if run.findings:
        raise RuntimeError("The simulator found: " + "; ".join(map(str, run.findings)))
    run.timeline.to_html(build / "timeline.html")
    cost = step.cost()
    update = update_fn.lower(params, zeros, zeros, zeros, 0.1, 0.001).cost()
    return cost.total_us + update.total_us, cost.busiest


def report(
    outcomes: dict[str, Outcome],
    differences: dict[str, float],
    compiles: CompileCount,
    fallbacks: dict[str, int],
    step_us: float,
    busiest: str,
    build: Path,
) -> None:
    """Prints the table and writes ``build/demo.json``."""
    print(f"\n{'':28}{'accuracy':>10}{'max |dw|':>12}{'s / epoch':>12}")
    for name, outcome in outcomes.items():
        difference = f"{differences[name]:.1e}" if name in differences else "reference"
        # The first epoch holds the compiles, so the median speaks for the rest.
        seconds = float(np.median(outcome.epoch_seconds))
        print(f"{name:28}{outcome.accuracy:10.4f}{difference:>12}{seconds:12.3f}")
    print(f"\ncompiles            {compiles()} for {len(compiles.keys)} distinct program keys")
    for event in compiles.events:
        print(f"  {event.key[:12]}  {event.kind:5} {event.name} ({event.origin})")
    print(f"fallback ops        {sum(fallbacks.values())} {fallbacks or ''}")
    print(f"Trn2 step, modelled {step_us:.1f} us, busiest engine of forward+backward: {busiest}")
    print(f"timeline            {build / 'timeline.html'}")
    document = {
        "accuracy": {name: o.accuracy for name, o in outcomes.items()},
        "max_weight_diff": differences,
        "epoch_seconds": {name: o.epoch_seconds for name, o in outcomes.items()},
        "compiles": {"count": compiles(), "keys": list(compiles.keys)},
        "fallback_ops": fallbacks,
        "trn2_step_us": step_us,
        "timeline": str(build / "timeline.html"),
    }
    (build / "demo.json").write_text(json.dumps(document, indent=2) + "\n")


def main() -> None:
    """Trains three ways and reports."""
    parser = argparse.ArgumentParser(description="Learn handwritten digits three ways.")
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--build", type=Path, default=Path("build"), help="output folder")
    options = parser.parse_args()
    options.build.mkdir(parents=True, exist_ok=True)

    digits = load()
    model = build_model()
    initial = {name: p.detach().numpy().copy() for name, p in model.named_parameters()}
    print(f"digits: {TRAIN} training and {TEST} test images, {options.epochs} epochs")
    trnx_torch.clear_op_tracking()
    with count_compiles() as compiles:
        ours = train_trnx(digits, initial, options.epochs)
        neuron = train_torch(
            "torch on neuron, compiled",
            digits,
            copy.deepcopy(model),
            "neuron",
            options.epochs,
            lambda m: torch.compile(m, backend="neuron", fullgraph=True),
        )
    fallbacks = trnx_torch.get_fallback_ops()
    reference = train_torch(
        "torch on cpu", digits, copy.deepcopy(model), "cpu", options.epochs, lambda m: m
    )
    step_us, busiest = model_step(digits, initial, options.build)
    report(
        {"trnx": ours, "torch_neuron": neuron, "torch_cpu": reference},
        {
            "trnx": largest_difference(ours, reference),
            "torch_neuron": largest_difference(neuron, reference),
        },
        compiles,
        fallbacks,
        step_us,
        busiest,
        options.build,
    )


if __name__ == "__main__":
    main()
