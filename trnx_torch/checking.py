"""`trnx_torch.check`: a model on `neuron` against the same model on the CPU, module by module."""

from __future__ import annotations

import copy
import math
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_flatten, tree_map

from trnx.core.errors import TrnxError
from trnx_torch import _loader, report

RELATIVE: dict[torch.dtype, float] = {
    torch.float64: 1e-4,  # computed as float32
    torch.float32: 1e-4,
    torch.complex128: 1e-4,
    torch.complex64: 1e-4,
    torch.float16: 4e-3,
    torch.bfloat16: 3e-2,
}
"""`rtol` by dtype; other dtypes must be equal."""

CANCELLATION = 1e-2
"""Share of what a tensor is made of that counts as its magnitude when it nearly cancels to zero.

The gradient of a bias in front of a normalisation is zero but for rounding, and so is a sum of
values that are symmetric: such tensors are measured by the operator's inputs, or by the largest of
all tensors of their kind.
"""


class DivergenceError(TrnxError, AssertionError):
    """A model gives other values on device `neuron` than on the CPU; the text is the report."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """One tensor on the device against the CPU's.

    Attributes:
        kind: "output", "output gradient", "parameter gradient", "input gradient", "buffer" or
            "operator".
        path: module path; of a parameter, buffer or input its own name.
        name: class of the module, name of the operator, "" for the others.
        dtype: of the CPU's tensor.
        shape: of the CPU's tensor.
        max_error: largest absolute difference; infinite where only one is NaN or infinite, or where
            dtype or shape differ or one of the tensors is missing.
        largest: largest finite magnitude of the CPU's tensor.
        ok: whether every element is within ``atol + rtol * |cpu|``.
    """

    kind: str
    path: str
    name: str
    dtype: torch.dtype
    shape: tuple[int, ...]
    max_error: float
    largest: float
    ok: bool

    def __str__(self) -> str:
        name = f" ({self.name})" if self.name else ""
        where = self.path or "the whole model"
        size = "x".join(map(str, self.shape)) or "scalar"
        kind = str(self.dtype).removeprefix("torch.")
        return (
            f"{self.kind} of {where}{name}, {kind} {size}: max error {self.max_error:.2e} "
            f"where the CPU's largest value is {self.largest:.2e}"
        )


@dataclass(frozen=True, slots=True)
class CheckReport:
    """What `check` found. Prints as a text for people.

    Attributes:
        comparisons: every comparison in the order of execution: forward, backward, parameters.
        operators: comparisons of single operators, each on the device's own inputs.
        fallbacks: operators that ran on the CPU -> calls.
    """

    comparisons: tuple[Comparison, ...]
    operators: tuple[Comparison, ...]
    fallbacks: dict[str, int]

    @property
    def ok(self) -> bool:
        """Whether everything agrees, each operator included."""
        return self.first is None and self.first_operator is None

    @property
    def first(self) -> Comparison | None:
        """The first module output, gradient or buffer that diverges; None if all agree."""
        return next((c for c in self.comparisons if not c.ok), None)

    @property
    def first_operator(self) -> Comparison | None:
        """The first operator that gives another result for equal inputs; None if there is none."""
        return next((c for c in self.operators if not c.ok), None)

    def raise_if_diverged(self) -> None:
        """Raise unless everything agrees.

        Raises:
            DivergenceError: with this report as text.
        """
        if not self.ok:
            raise DivergenceError(str(self))

    def __str__(self) -> str:
        kinds = Counter(c.kind for c in self.comparisons)
        good = Counter(c.kind for c in self.comparisons if c.ok)
        parts = [f"{good[kind]} of {count} {kind}s" for kind, count in kinds.items()]
        agree = sum(c.ok for c in self.operators)
        parts.append(f"{agree} of {len(self.operators)} operator calls")
        lines = [f"neuron agrees with cpu in {', '.join(parts)}."]
        first, operator = self.first, self.first_operator
        if first is not None:
            lines.append(f"First divergence: {first}.")
        if operator is not None:
            lines.append(f"First operator that differs on equal inputs: {operator}.")
        elif first is not None:
            lines.append(
                "Every operator agrees on equal inputs: either the model branches on its device, "
                "or rounding differences grow from module to module."
            )
        if self.fallbacks:
            names = ", ".join(f"{name} ({count})" for name, count in sorted(self.fallbacks.items()))
            lines.append(f"Ran on the CPU as fallbacks: {names}.")
        return "\n".join(lines)

    __repr__ = __str__


def check(
    model: torch.nn.Module,
    *inputs: Any,
    loss: Callable[[Any], torch.Tensor] | None = None,
    rtol: float | None = None,
    atol: float | None = None,
    **keywords: Any,
) -> CheckReport:
    """Run a model forward and backward on the CPU and on `neuron`, and compare all the way.

    Compared are the output of every module call and the gradient that arrives at it, gradients of
    parameters and of inputs that require them, and the buffers afterwards. Every operator on the
    device is also run on the CPU with the device's own inputs, which tells an operator at fault
    from differences that only grew. Random operators draw the CPU's numbers in both runs, so that
    dropout can be compared. The model and the inputs are copied and stay as they are.

    Args:
        model: a module on any device.
        inputs: its arguments; tensors in nested containers are moved.
        loss: makes a scalar of the model's result; without it, every output gets one fixed
            cotangent. There is no backward if nothing requires gradients.
        rtol: allowed difference relative to the CPU's value; by dtype if None (float32 1e-4,
            float16 4e-3, bfloat16 3e-2, integers 0).
        atol: allowed absolute difference; if None, rtol times the tensor's largest magnitude, or
            times a hundredth of what it is made of where that is more.
        keywords: keyword arguments of the model.

    Raises:
        TypeError: `model` is no module.
    """
    if not isinstance(model, torch.nn.Module):
        raise TypeError(
            f"check takes a torch.nn.Module, not {type(model).__name__}. Wrap a function in one."
        )
    tolerance = _Tolerance(rtol, atol)
    seed = torch.initial_seed()
    operators = _OperatorCheck(tolerance)
    with torch.random.fork_rng(range(torch.neuron.device_count()), device_type="neuron"):
        host = _Run(model, "cpu", None)
        torch.manual_seed(seed)
        host.run(inputs, keywords, loss)
        device = _Run(model, "neuron", operators)
        torch.manual_seed(seed)
        before = report.get_fallback_ops()
        device.run(inputs, keywords, loss)
    after = report.get_fallback_ops()
    fallbacks = {n: c - before.get(n, 0) for n, c in after.items() if c > before.get(n, 0)}
    scales: dict[str, float] = {}
    for (kind, _, _), (_, expected) in host.seen.items():
        scales[kind] = max(scales.get(kind, 0.0), _largest(expected))
    found = []
    for key, (name, expected) in host.seen.items():
        kind, path, _ = key
        actual = device.seen.get(key, (name, None))[1]
        found.append(tolerance.compare(kind, path, name, actual, expected, scales[kind]))
    return CheckReport(tuple(found), tuple(operators.found), fallbacks)


@dataclass(frozen=True, slots=True)
class _Tolerance:
    rtol: float | None
    atol: float | None

    def compare(
        self,
        kind: str,
        path: str,
        name: str,
        actual: torch.Tensor | None,
        expected: torch.Tensor,
        scale: float,
    ) -> Comparison:
        """Compare tensors on the CPU; `scale` is the magnitude of what they are made of."""
        shape, dtype = tuple(expected.shape), expected.dtype

        def made(error: float, largest: float, ok: bool) -> Comparison:
            return Comparison(kind, path, name, dtype, shape, error, largest, ok)

        if actual is None or actual.shape != expected.shape or actual.dtype != dtype:
            return made(math.inf, math.nan, False)
        if expected.numel() == 0:
            return made(0.0, 0.0, True)
        if not (dtype.is_floating_point or dtype.is_complex):
            same = torch.equal(actual, expected)
            wide = expected.double().abs().max().item()
            error = 0.0 if same else (actual.double() - expected.double()).abs().max().item()
            return made(error, wide, same)
        wide_dtype = torch.complex128 if dtype.is_complex else torch.float64
        left, right = actual.to(wide_dtype), expected.to(wide_dtype)
        magnitude = right.abs()
        largest = _largest(right)
        equal = (left == right) | (torch.isnan(left) & torch.isnan(right))
        error = torch.where(equal, 0.0, (left - right).abs()).nan_to_num(nan=math.inf)
        rtol = RELATIVE.get(dtype, 3e-2) if self.rtol is None else self.rtol
        atol = rtol * max(largest, CANCELLATION * scale) if self.atol is None else self.atol
        ok = error <= atol + rtol * torch.where(torch.isfinite(magnitude), magnitude, 0.0)
        return made(error.max().item(), largest, bool(ok.all()))


def _largest(tensor: torch.Tensor) -> float:
    """The largest finite magnitude of a floating or complex cpu tensor; 0 for other dtypes."""
    if not (tensor.dtype.is_floating_point or tensor.dtype.is_complex):
        return 0.0
    magnitude = tensor.abs().double()
    finite = magnitude[torch.isfinite(magnitude)]
    return finite.max().item() if finite.numel() else 0.0


def _tensors(tree: Any) -> list[torch.Tensor]:
    return [leaf for leaf in tree_flatten(tree)[0] if isinstance(leaf, torch.Tensor)]


def _to_host(tensor: torch.Tensor) -> torch.Tensor:
    """A cpu tensor of its own, since in-place operators may still change the original."""
    with torch.no_grad(), _disable_current_modes():
        return tensor.detach().clone().cpu()


class _OperatorCheck(TorchDispatchMode):
    """Runs every operator on device tensors a second time on the CPU, with the same inputs."""

    def __init__(self, tolerance: _Tolerance) -> None:
        super().__init__()
        self.tolerance = tolerance
        self.found: list[Comparison] = []
        self.path = ""

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        keywords = kwargs or {}
        if all(t.device.type != "neuron" for t in _tensors((args, keywords))):
            return func(*args, **keywords)
        if torch.Tag.nondeterministic_seeded in func.tags:
            return self._draw_on_host(func, args, keywords)
        name = func.name()
        views = any(r.alias_info and not r.alias_info.is_write for r in func._schema.returns)
        on_host = torch._C._dispatch_has_computed_kernel_for_dispatch_key(name, "CPU")
        if views or not on_host or _only_moves(name):
            return func(*args, **keywords)
        host_args, host_keywords = self._host_arguments(args, keywords)
        scale = max(map(_largest, _tensors((host_args, host_keywords))))
        result = func(*args, **keywords)
        expected = func(*host_args, **host_keywords)
        for actual, wanted in zip(_tensors(result), _tensors(expected), strict=True):
            host = _to_host(actual)
            own = wanted.detach()
            found = self.tolerance.compare("operator", self.path, name, host, own, scale)
            self.found.append(found)
        return result

    def _host_arguments(
        self, args: tuple[Any, ...], keywords: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Arguments as cpu tensors of their own.

        Copies, because not every operator that writes to an argument says so in its schema (batch
        normalisation with its running statistics does not).
        """

        def to_host(value: Any) -> Any:
            if isinstance(value, torch.Tensor):
                own = value.detach()
                host = _loader.extension().as_cpu(own) if own.device.type == "neuron" else own
                return host.clone()
            if isinstance(value, torch.device) and value.type == "neuron":
                return torch.device("cpu")
            return value

        return tree_map(to_host, args), tree_map(to_host, keywords)

    def _draw_on_host(self, func: Any, args: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
        """Run a random operator on the CPU with the CPU's generator, in place if it is."""
        host_args, host_keywords = self._host_arguments(args, keywords)
        if host_keywords.get("generator") is not None:
            host_keywords["generator"] = None
        result = func(*host_args, **host_keywords)
        if func._schema.is_mutable:
            with torch.no_grad():
                args[0].copy_(host_args[0])
            return args[0]
        return tree_map(lambda t: t.to("neuron") if isinstance(t, torch.Tensor) else t, result)


def _only_moves(name: str) -> bool:
    """Whether an operator computes nothing: it copies between devices, or makes raw memory."""
    base = name.split("::")[1].split(".")[0]
    moves = ("_to_copy", "copy_", "_copy_from", "_local_scalar_dense", "record_stream")
    return base in moves or base.startswith(("empty", "new_empty", "set_", "resize_"))


class _Run:
    """One run of a copy of the model; `seen` holds host copies of all there is to compare."""

    def __init__(self, model: torch.nn.Module, device: str, mode: _OperatorCheck | None) -> None:
        self.model = copy.deepcopy(model).to(device)
        self.device, self.mode = device, mode
        self.seen: dict[tuple[str, str, int], tuple[str, torch.Tensor]] = {}
        self._calls: Counter[tuple[str, str]] = Counter()
        for path, module in self.model.named_modules():
            leaf = next(module.children(), None) is None
            module.register_forward_pre_hook(self._entered(path))
            module.register_forward_hook(self._left(path, type(module).__name__, leaf))

    def _record(self, kind: str, path: str, name: str, tensor: torch.Tensor) -> None:
        number = self._calls[kind, path]
        self._calls[kind, path] += 1
        self.seen[kind, path, number] = (name, _to_host(tensor))

    def _entered(self, path: str) -> Callable[..., None]:
        def hook(module: torch.nn.Module, args: Any) -> None:
            if self.mode is not None:
                self.mode.path = path

        return hook

    def _left(self, path: str, name: str, leaf: bool) -> Callable[..., None]:
        def hook(module: torch.nn.Module, args: Any, output: Any) -> None:
            for tensor in _tensors(output):
                self._record("output", path, name, tensor)
                if tensor.requires_grad:
                    tensor.register_hook(arrived)
            if self.mode is not None:
                self.mode.path = path.rpartition(".")[0]

        def arrived(gradient: torch.Tensor) -> None:
            if self.mode is not None and leaf:
                self.mode.path = path
            self._record("output gradient", path, name, gradient)

        return hook

    def run(
        self,
        inputs: tuple[Any, ...],
        keywords: dict[str, Any],
        loss: Callable[[Any], torch.Tensor] | None,
    ) -> None:
        def move(value: Any) -> Any:
            if not isinstance(value, torch.Tensor):
                return value
            moved = value.detach().to(self.device, copy=True)
            return moved.requires_grad_(value.requires_grad)

        inputs, keywords = tree_map(move, inputs), tree_map(move, keywords)
        if self.mode is None:
            self._forward_and_backward(inputs, keywords, loss)
        else:
            with self.mode:
                self._forward_and_backward(inputs, keywords, loss)
        for name, parameter in self.model.named_parameters():
            if parameter.grad is not None:
                self._record("parameter gradient", name, "", parameter.grad)
        for number, tensor in enumerate(_tensors((inputs, keywords))):
            if tensor.grad is not None:
                self._record("input gradient", f"input {number}", "", tensor.grad)
        for name, buffer in self.model.named_buffers():
            self._record("buffer", name, "", buffer)

    def _forward_and_backward(
        self,
        inputs: tuple[Any, ...],
        keywords: dict[str, Any],
        loss: Callable[[Any], torch.Tensor] | None,
    ) -> None:
        output = self.model(*inputs, **keywords)
        if loss is not None:
            loss(output).backward()
            return
        outputs = [t for t in _tensors(output) if t.requires_grad]
        if outputs:
            torch.autograd.backward(outputs, [_cotangent(t) for t in outputs])


def _cotangent(tensor: torch.Tensor) -> torch.Tensor:
    """Values in [0.5, 1.5] / count that differ from element to element, equal on every device."""
    count = max(tensor.numel(), 1)
    steps = torch.arange(count, dtype=torch.float64).mul_(0.61803398875).frac_().add_(0.5)
    return (steps / count).reshape(tensor.shape).to(tensor.dtype).to(tensor.device)
