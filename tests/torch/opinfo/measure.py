"""What an operator of the database does on the device: results, fallbacks, gradients, graphs."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import torch
from torch.testing._internal import common_methods_invocations
from torch.testing._internal.common_methods_invocations import op_db

from tests.torch.opinfo.samples import (
    DEVICE,
    Sample,
    Tracking,
    difference,
    seed_all,
    tensors,
    tolerance_of,
)

DTYPES: dict[str, torch.dtype] = {
    "float32": torch.float32,
    "int64": torch.int64,
    "bool": torch.bool,
    "bfloat16": torch.bfloat16,
}
GRADIENT_SAMPLES = 4
WHY = 140
"""Characters of an error that are kept."""
SEEDS = range(8, 14)
"""What a random operator is tried with: few outcomes may be equal by chance."""

UNINITIALISED = ("empty", "new_empty")
"""Operators whose values nobody has set."""


def _unseeded(operator: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Stands in for the database's wrapper that seeds in every call: here `Sample` seeds."""
    return operator(*args, **kwargs)


common_methods_invocations.wrapper_set_seed = _unseeded


@cache
def operators() -> dict[str, Any]:
    """Full name with variant -> its entry in PyTorch's database."""
    return {op.full_name: op for op in op_db}


def samples(op: Any, dtype: torch.dtype, requires_grad: bool = False) -> Iterator[Sample]:
    """The database's samples, made on the CPU from one seed."""
    seed_all(0)
    for sample in op.sample_inputs("cpu", dtype, requires_grad=requires_grad):
        function = op.op
        if requires_grad and sample.output_process_fn_grad is not None:
            process, original = sample.output_process_fn_grad, op.op

            def function(
                *args: Any, process: Any = process, original: Any = original, **kw: Any
            ) -> Any:
                return process(original(*args, **kw))

        yield Sample(op.name, function, sample)


def _is_random(sample: Sample, expected: Any) -> bool:
    """Whether the CPU disagrees with itself under another seed."""
    if sample.name.startswith(UNINITIALISED):
        return True
    for seed in SEEDS:
        pairs = zip(tensors(sample.run("cpu", seed=seed)), tensors(expected), strict=True)
        if any(a.shape == b.shape and not torch.equal(a, b) for a, b in pairs):
            return True
    return False


def _compare(op: Any, sample: Sample, actual: Any, expected: Any) -> str | None:
    """What is wrong with a result; random and uninitialised values only need type and size."""
    wrong = difference(actual, expected, tolerance=tolerance_of(op))
    if wrong is not None and _is_random(sample, expected):
        return difference(actual, expected, values=False)
    return wrong


def _short(error: BaseException) -> str:
    text = " ".join(str(error).split())
    text = text.removeprefix("backend='neuron' raised: ")
    return f"{type(error).__name__}: {text}"[:WHY]


class Count:
    """Samples, failures and fallbacks of one kind of run."""

    def __init__(self) -> None:
        self.samples = self.failed = self.raised = 0
        self.why = ""
        self.tracking = Tracking()

    def add(self, run: Callable[[], str | None]) -> None:
        """Count a run that returns what is wrong, or None."""
        self.samples += 1
        try:
            wrong = run()
        except Exception as error:
            wrong = _short(error)
            self.raised += 1
        if wrong is not None:
            self.failed += 1
            self.why = self.why or wrong

    def entry(self, own: str | None = None) -> dict[str, Any]:
        """The committed form; `own` is the operator's ATen name, to tell native from composite."""
        entry: dict[str, Any] = {"samples": self.samples}
        if own is not None:
            entry["runs"] = self._kind(own)
        if self.failed:
            entry["failed"], entry["why"] = self.failed, self.why[:WHY]
        if self.tracking.fallbacks:
            entry["fallbacks"] = sorted(self.tracking.fallbacks)
        return entry

    def _kind(self, own: str) -> str:
        if self.raised and self.raised == self.samples:
            return "unsupported"
        if self.tracking.fallbacks:
            return "fallback"
        bases = {n.split("::")[1].split(".")[0].strip("_") for n in self.tracking.executed}
        bases -= {"copy_from", "copy_from_and_resize", "fill", "zero"}  # memory, set and moved
        return "native" if not bases or own.strip("_") in bases else "composite"


def eager(op: Any, dtype: torch.dtype, limit: int | None = None) -> dict[str, Any] | None:
    """Every sample of a dtype on the device against the CPU; None if the database has none."""
    if dtype not in op.dtypes:
        return None
    count = Count()
    for sample in itertools.islice(samples(op, dtype), limit):
        try:
            expected = sample.run("cpu")
        except Exception:
            continue  # what the CPU refuses is no sample
        count.add(
            lambda sample=sample, expected=expected: _compare(
                op, sample, sample.run(DEVICE, count.tracking), expected
            )
        )
    return count.entry(op.aten_name or op.name) if count.samples else None


def gradient(op: Any, limit: int = GRADIENT_SAMPLES) -> dict[str, Any] | None:
    """Gradients of the first samples in float32 against the CPU; None without autograd support."""
    dtype = torch.float32
    if not op.supports_autograd or dtype not in op.dtypes or dtype not in op.backward_dtypes:
        return None
    count = Count()
    for sample in itertools.islice(samples(op, dtype, requires_grad=True), limit):
        try:
            expected = sample.differentiate("cpu")
        except Exception:
            continue
        if not expected:
            continue

        def run(sample: Sample = sample, expected: Any = expected) -> str | None:
            actual = sample.differentiate(DEVICE, count.tracking)
            wrong = difference(actual, expected, tolerance=tolerance_of(op))
            if wrong is not None and _is_random(sample, sample.run("cpu")):
                return difference(actual, expected, values=False)
            return wrong

        count.add(run)
    return count.entry() if count.samples else None


def compiled(op: Any) -> dict[str, Any] | None:
    """One sample through ``torch.compile(backend="neuron", fullgraph=True)`` against the CPU."""
    order = (torch.float32, *(d for d in DTYPES.values() if d is not torch.float32))
    dtype = next((d for d in order if d in op.dtypes), None)
    if dtype is None:
        return None
    for sample in samples(op, dtype):
        try:
            expected = sample.run("cpu")
        except Exception:
            continue
        count = Count()

        def run(
            sample: Sample = sample, expected: Any = expected, count: Count = count
        ) -> str | None:
            torch._dynamo.reset()

            def call(*args: Any, **kwargs: Any) -> Any:
                return sample.function(*args, **kwargs)

            function = torch.compile(call, backend="neuron", fullgraph=True)
            actual = sample.run(DEVICE, count.tracking, function)
            return _compare(op, sample, actual, expected)

        count.add(run)
        return count.entry()
    return None


def measure(name: str, *, limit: int | None = None, parts: str = "all") -> dict[str, Any]:
    """Everything the table says about one operator: its part "eager", "compiled" or "all"."""
    op = operators()[name]
    entry: dict[str, Any] = {}
    if parts != "compiled":
        for label, dtype in DTYPES.items():
            entry[label] = eager(op, dtype, limit)
        entry["gradient"] = gradient(op, limit or GRADIENT_SAMPLES)
    if parts != "eager":
        entry["compiled"] = compiled(op)
    return {part: found for part, found in entry.items() if found is not None}
