"""Samples of the operator database: moved to the device as they lie in memory, and compared."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.utils._pytree import tree_flatten, tree_map

import trnx_torch

DEVICE = "neuron"

HOST_ARGUMENTS: dict[str, tuple[int, ...]] = {"tensor_split": (1,)}
"""Operator -> positions of tensors that every device takes from the CPU."""

Tolerance = dict[torch.dtype, tuple[float, float]]

TOLERANCE: Tolerance = {
    torch.float64: (1.3e-6, 1e-5),  # computed as float32
    torch.complex128: (1.3e-6, 1e-5),
    torch.float32: (1.3e-6, 1e-5),
    torch.complex64: (1.3e-6, 1e-5),
    torch.bfloat16: (1.6e-2, 1e-5),
    torch.float16: (1e-3, 1e-5),
}
"""(rtol, atol) by dtype: `torch.testing.assert_close`'s, with float32's for float64."""

ROUNDINGS = 8
"""Roundings of a tensor's largest element that sums in another order may differ by."""


class Mover:
    """Copies arguments to a device with their sizes, strides, offsets and shared storages."""

    def __init__(self, device: str) -> None:
        self.device = device
        self._storages: dict[int, torch.Tensor] = {}
        self._kept: list[torch.Tensor] = []

    def tensor(self, tensor: torch.Tensor) -> torch.Tensor:
        if tensor.layout != torch.strided or tensor.is_conj() or tensor.is_neg():
            return tensor.detach().to(self.device).requires_grad_(tensor.requires_grad)
        storage = tensor.untyped_storage()
        memory = self._storages.get(storage._cdata)
        if memory is None:
            host = torch.empty(0, dtype=torch.uint8).set_(storage)
            memory = self._storages[storage._cdata] = host.to(self.device, copy=True)
            self._kept.append(tensor)
        moved = torch.empty(0, dtype=tensor.dtype, device=self.device)
        with torch.no_grad():
            moved.set_(
                memory.untyped_storage(), tensor.storage_offset(), tensor.shape, tensor.stride()
            )
        return moved.requires_grad_(tensor.requires_grad)

    def __call__(self, value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            return self.tensor(value)
        if isinstance(value, str):
            return self.device if value == "cpu" else value
        if isinstance(value, torch.device) and value.type == "cpu":
            return torch.device(self.device)
        return value

    def tree(self, tree: Any) -> Any:
        return tree_map(self, tree)

    def keywords(self, keywords: dict[str, Any]) -> dict[str, Any]:
        return self.tree(keywords)


def seed_all(seed: int) -> None:
    """Seed both generators in use; `torch.manual_seed` formats a stack for each absent backend."""
    torch.default_generator.manual_seed(seed)
    torch.neuron.manual_seed_all(seed)


@dataclass
class Tracking:
    """Names of the operators that ran as device kernels, and of those that fell back."""

    executed: set[str] = field(default_factory=set)
    fallbacks: set[str] = field(default_factory=set)

    def __enter__(self) -> None:
        trnx_torch.clear_op_tracking()

    def __exit__(self, *error: object) -> None:
        self.executed |= set(trnx_torch.get_executed_ops())
        self.fallbacks |= set(trnx_torch.get_fallback_ops())


class Sample:
    """One call: fresh arguments on either device, as often as wanted."""

    def __init__(self, name: str, function: Callable[..., Any], sample: Any) -> None:
        self.name, self.function, self.sample = name, function, sample

    def arguments(self, device: str) -> tuple[list[Any], dict[str, Any]]:
        mover = Mover(device)
        host = HOST_ARGUMENTS.get(self.name, ())
        given = [self.sample.input, *self.sample.args]
        args = [a if i in host else mover.tree(a) for i, a in enumerate(given)]
        return args, mover.keywords(self.sample.kwargs)

    def run(
        self,
        device: str,
        tracking: Tracking | None = None,
        function: Callable[..., Any] | None = None,
        seed: int = 7,
    ) -> Any:
        """The result of the call (of ``function`` in place of the operator).

        A factory that is given no device makes its result on the CPU, so it is asked again with the
        device as torch's default.
        """
        args, keywords = self.arguments(device)
        function = function or self.function
        seed_all(seed)
        if device == "cpu":
            return function(*args, **keywords)
        with tracking or Tracking():
            result = function(*args, **keywords)
        if not any(t.device.type == DEVICE for t in tensors((args, result))):
            with tracking or Tracking(), torch.device(DEVICE):
                result = function(*args, **keywords)
        return result

    def differentiate(self, device: str, tracking: Tracking | None = None) -> tuple[Any, ...]:
        """Gradients of all inputs that require them, for ramps as cotangents; () for none."""
        args, keywords = self.arguments(device)
        seed_all(7)
        inputs = [t for t in tensors((args, keywords)) if t.requires_grad]
        with tracking or Tracking():
            result = self.function(*args, **keywords)
        outputs = [t for t in tensors(result) if t.requires_grad]
        if not outputs or not inputs:
            return ()
        ramps = [torch.linspace(-1, 1, t.numel()).reshape(t.shape) for t in outputs]
        weights = [r.to(t.dtype).to(t.device) for r, t in zip(ramps, outputs, strict=True)]
        with tracking or Tracking():
            return torch.autograd.grad(outputs, inputs, weights, allow_unused=True)


def tolerance_of(op: Any) -> Tolerance:
    """The (rtol, atol) by dtype that PyTorch's own tests allow this operator."""
    found: Tolerance = {}
    for entry in op.decorators:
        for decorator in getattr(entry, "decorators", ()):
            for dtype, allowed in getattr(decorator, "d", {}).items():
                rtol, atol = found.get(dtype, (0.0, 0.0))
                own = (0.0, allowed) if isinstance(allowed, float) else (allowed.rtol, allowed.atol)
                found[dtype] = max(rtol, own[0]), max(atol, own[1])
    return found


def tensors(tree: Any) -> list[torch.Tensor]:
    """The tensors of nested containers, in order."""
    return [leaf for leaf in tree_flatten(tree)[0] if isinstance(leaf, torch.Tensor)]


def difference(
    actual: Any, expected: Any, *, values: bool = True, tolerance: Tolerance | None = None
) -> str | None:
    """What is different between a result on the device and one on the CPU; None for nothing.

    Types, sizes, dtypes, values, and that every tensor is on the device.
    """
    left, left_tree = tree_flatten(actual)
    right, right_tree = tree_flatten(expected)
    if left_tree != right_tree:
        return f"structure {left_tree} instead of {right_tree}"
    for one, other in zip(left, right, strict=True):
        text = _leaf_difference(one, other, values, tolerance or {})
        if text is not None:
            return text
    return None


def _leaf_difference(actual: Any, expected: Any, values: bool, tolerance: Tolerance) -> str | None:
    if not isinstance(expected, torch.Tensor):
        if isinstance(expected, float):
            same = abs(actual - expected) <= 1e-5 + 1.3e-6 * abs(expected) or actual == expected
            return None if same or expected != expected else f"{actual} instead of {expected}"
        if isinstance(expected, torch.device):
            return None
        return None if actual == expected or not values else f"{actual} instead of {expected}"
    if not isinstance(actual, torch.Tensor):
        return f"{type(actual).__name__} instead of a tensor"
    if expected.device.type == "cpu" and actual.device.type != DEVICE:
        return f"result on {actual.device}"
    if actual.shape != expected.shape or actual.dtype != expected.dtype:
        return (
            f"{actual.dtype}{list(actual.shape)} instead of {expected.dtype}{list(expected.shape)}"
        )
    if not values:
        return None
    return value_difference(actual.detach(), expected.detach(), tolerance)


def value_difference(
    actual: torch.Tensor, expected: torch.Tensor, tolerance: Tolerance
) -> str | None:
    """How values differ beyond the tolerance of their dtype; None if they do not."""
    host = actual.cpu()
    if expected.layout != torch.strided or expected.is_quantized:
        host, expected = host.to_dense(), expected.to_dense()
    rtol, atol = TOLERANCE.get(expected.dtype, (0.0, 0.0))
    own = tolerance.get(expected.dtype, (0.0, 0.0))
    rtol, atol = max(rtol, own[0]), max(atol, own[1])
    if expected.dtype in TOLERANCE and expected.numel():
        wide = expected.abs().double()
        largest = wide[wide.isfinite()].amax().item() if wide.isfinite().any() else 0.0
        kind = torch.float32 if rtol < 1e-3 else expected.dtype
        atol = max(atol, ROUNDINGS * torch.finfo(kind).eps * largest)
    try:
        torch.testing.assert_close(
            host, expected, rtol=rtol, atol=atol, equal_nan=True, check_stride=False
        )
    except AssertionError as error:
        lines = [line for line in str(error).splitlines() if line.strip()]
        return " ".join(lines[1:3])
    return None
