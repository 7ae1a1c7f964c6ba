"""PyTorch's databases of modules and optimizers on the device, against the CPU."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from functools import cache
from typing import Any

import torch
from torch.nn.modules.lazy import LazyModuleMixin
from torch.testing._internal.common_modules import module_db
from torch.testing._internal.common_optimizers import optim_db
from torch.utils._pytree import tree_map

from tests.torch.opinfo.measure import Count
from tests.torch.opinfo.samples import DEVICE, Tolerance, difference, seed_all, tensors

STEPS = 3
TOLERANCE: Tolerance = {torch.float32: (1e-4, 1e-4)}
"""Gradients of parameters are sums that may nearly cancel."""


@cache
def modules() -> dict[str, Any]:
    """Name of a module class -> its entry in PyTorch's database."""
    return {info.name: info for info in module_db}


@cache
def optimizers() -> dict[str, Any]:
    """Name of an optimizer class -> its entry in PyTorch's database."""
    return {info.optim_cls.__name__: info for info in optim_db}


def _module_inputs(info: Any, training: bool) -> Iterator[Any]:
    seed_all(0)
    yield from info.module_inputs_func(
        info, device="cpu", dtype=torch.float32, requires_grad=True, training=training
    )


def _moved(tree: Any, device: str) -> Any:
    def move(value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        return value.detach().clone().to(device).requires_grad_(value.requires_grad)

    return tree_map(move, tree)


def _run_module(info: Any, given: Any, training: bool, device: str) -> tuple[Any, list[Any]]:
    """Output, then gradients of parameters and inputs where there are any."""
    seed_all(1)
    made = given.constructor_input
    module = info.module_cls(*made.args, **made.kwargs)
    call = (given.forward_input.args, given.forward_input.kwargs)
    if isinstance(module, LazyModuleMixin):  # draws its parameters in the first call
        args, keywords = _moved(call, "cpu")
        module(*args, **keywords)
    module = module.to(device).train(training)
    args, keywords = _moved(call, device)
    seed_all(2)
    output = module(*args, **keywords)
    leaves = [*module.parameters(), *tensors((args, keywords))]
    wanted = [t for t in leaves if t.requires_grad]
    outputs = [t for t in tensors(output) if t.requires_grad]
    if not wanted or not outputs:
        return output, []
    ramps = [torch.linspace(-1, 1, t.numel()).reshape(t.shape) for t in outputs]
    weights = [r.to(t.dtype).to(t.device) for r, t in zip(ramps, outputs, strict=True)]
    return output, list(torch.autograd.grad(outputs, wanted, weights, allow_unused=True))


def module(name: str, limit: int | None = None) -> dict[str, Any]:
    """Forward and backward of every sample of a module, in training and evaluation."""
    info = modules()[name]
    entry: dict[str, Any] = {}
    for label, training in (("train", True), ("eval", False)):
        count = Count()
        for given in itertools.islice(_module_inputs(info, training), limit):
            if given.forward_input is None:
                continue
            try:
                expected = _run_module(info, given, training, "cpu")
            except Exception:
                continue

            def run(
                given: Any = given,
                expected: Any = expected,
                training: bool = training,
                count: Count = count,
            ) -> str | None:
                with count.tracking:
                    actual = _run_module(info, given, training, DEVICE)
                wrong = difference(actual, expected, tolerance=TOLERANCE)
                if wrong is not None and "Dropout" in name:
                    return difference(actual, expected, values=False)
                return wrong

            count.add(run)
        if count.samples:
            entry[label] = count.entry()
    return entry


def _run_optimizer(cls: type, parameters: list[Any], options: dict[str, Any], device: str) -> Any:
    """Parameters after some steps with gradients that depend on them."""
    made = [p.detach().clone().to(device).requires_grad_() for p in parameters]
    optimizer = cls(made, **_moved(options, device))

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = sum(((p - 0.3) ** 2).sum() for p in made)
        loss.backward()
        return loss

    for _ in range(STEPS):
        optimizer.step(closure)
    return [p.detach() for p in made]


def optimizer(name: str, limit: int | None = None) -> dict[str, Any]:
    """Three steps of every configuration of an optimizer, plain, foreach and fused."""
    info = optimizers()[name]
    entry: dict[str, Any] = {}
    shapes = ((3, 4), (2, 2)) if name == "Muon" else ((3, 4), (4,), (2, 3, 2))  # matrices only
    parameters = [
        torch.linspace(-1, 1, torch.Size(shape).numel()).reshape(shape) * (number + 1)
        for number, shape in enumerate(shapes)
    ]
    for mode in ("plain", *info.supported_impls):
        if mode not in ("plain", "foreach", "fused"):
            continue
        count = Count()
        for given in itertools.islice(info.optim_inputs_func(device="cpu"), limit):
            options = dict(given.kwargs)
            if mode != "plain":
                options[mode] = True
            elif "foreach" in info.supported_impls:
                options["foreach"] = False
            if mode != "plain" and options.get("differentiable"):
                continue
            try:
                expected = _run_optimizer(info.optim_cls, parameters, options, "cpu")
            except Exception:
                continue  # a combination that torch refuses

            def run(
                options: dict[str, Any] = options, expected: Any = expected, count: Count = count
            ) -> str | None:
                with count.tracking:
                    actual = _run_optimizer(info.optim_cls, parameters, options, DEVICE)
                return difference(actual, expected)

            count.add(run)
        if count.samples:
            entry[mode] = count.entry()
    return entry
