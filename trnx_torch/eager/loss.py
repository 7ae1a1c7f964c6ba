"""Device kernels over rows: the softmax family and the negative log-likelihood loss.

Operands are seen as rows; a kernel serves every size. The loss enters through Python, so that one
call of it costs some microseconds more than a softmax.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

import trnx.lax as lax
import trnx.nn as nn
import trnx.numpy as np
from trnx_torch import _loader, registration
from trnx_torch.eager.generic import build, place, sizes, strides, supported
from trnx_torch.registration import Kernel, KernelRequest, Layout, Operand

Value = Any

_NONE, _MEAN = 0, 1  # values of `reduction` in aten


@dataclass(frozen=True, slots=True)
class RowKernels:
    """Kernels of one formula over ``rows`` rows of ``n`` elements, one per dtypes and layouts.

    An operand is a ``[rows, n]`` matrix or, if its name ends in ``_row``, one value per row.
    """

    op: str
    formula: Callable[..., Any]
    made: dict[Any, Kernel | None]

    @classmethod
    def of(cls, op: str, formula: Callable[..., Any]) -> RowKernels:
        """No kernels yet."""
        return cls(op, formula, {})

    def run(
        self,
        outputs: dict[str, Tensor],
        inputs: dict[str, Tensor],
        options: tuple[tuple[str, Any], ...] = (),
    ) -> None:
        """Fill ``outputs`` (matrices or vectors with one length of rows) from ``inputs``.

        Raises:
            NoKernel: the device has no such kernel for these dtypes.
        """
        named = [*outputs.items(), *inputs.items()]
        key = (options, tuple((t.dtype, _layout(t)) for _, t in named))
        if key not in self.made:
            self.made[key] = self._make(outputs, inputs, options)
        kernel = self.made[key]
        if kernel is None:
            raise registration.NoKernel(f"{self.op} of {[str(t.dtype) for _, t in named]}")
        matrix = next(t for _, t in named if t.ndim == 2)
        if matrix.shape[0]:
            registers = list(matrix.shape)
            for _, tensor in named:
                registers += tensor.stride()
            registration.launch(kernel.address, [t for _, t in named], registers)

    def _make(
        self,
        outputs: dict[str, Tensor],
        inputs: dict[str, Tensor],
        options: tuple[tuple[str, Any], ...],
    ) -> Kernel | None:
        registers = ["rows", "n"]
        places = []
        for name, tensor in (*outputs.items(), *inputs.items()):
            own = [f"{name}_{axis}" for axis in range(tensor.ndim)]
            registers += own
            places.append(place(sizes(registers[: tensor.ndim]), own, _layout(tensor)))
        compute = next(t.dtype for t in inputs.values() if t.is_floating_point())
        request = KernelRequest(
            "rows",
            self.op,
            tuple(Operand(n, t.dtype, _layout(t)) for n, t in outputs.items()),
            tuple(Operand(n, t.dtype, _layout(t)) for n, t in inputs.items()),
            (),
            options,
            compute,
            (2,),
        )
        if not supported(request):
            return None
        count = len(outputs)
        indices = frozenset(n for n, t in inputs.items() if not t.is_floating_point())
        return build(
            request,
            self.formula,
            places[count:],
            places[:count],
            registers,
            dict(options),
            indices,
        )


def _layout(tensor: Tensor) -> Layout:
    step = tensor.stride(-1)
    return "contiguous" if step == 1 else "broadcast" if step == 0 else "strided"


def _row_maker(formula: Callable[..., Any]) -> Callable[[KernelRequest], Kernel | None]:
    """Kernels of a formula over arrays whose last axis is the row; it takes them in order."""

    def make(request: KernelRequest) -> Kernel | None:
        if not supported(request):
            return None
        (rank,) = request.ranks
        shape = sizes([f"n{axis}" for axis in range(rank)])
        registers = [f"n{axis}" for axis in range(rank)]
        places = []
        for number, operand in enumerate((*request.outputs, *request.inputs)):
            own = strides(f"s{number}", rank)
            registers += own
            places.append(place(shape, own, operand.layout))

        def run(**operands: Value) -> Value:
            return formula(*operands.values())

        return build(request, run, places[1:], places[:1], registers, {})

    return make


def _softmax_backward(grad: Value, output: Value) -> Value:
    weighted = grad * output
    return weighted - output * np.sum(weighted, axis=-1, keepdims=True)


def _log_softmax_backward(grad: Value, output: Value) -> Value:
    return grad - np.exp(output) * np.sum(grad, axis=-1, keepdims=True)


def _softmax_family() -> None:
    for name, formula in (
        ("_softmax", lambda x: nn.softmax(x, axis=-1)),
        ("_log_softmax", lambda x: nn.log_softmax(x, axis=-1)),
        ("_softmax_backward_data", _softmax_backward),
        ("_log_softmax_backward_data", _log_softmax_backward),
    ):
        registration.rowwise(f"aten::{name}", f"aten::{name}.out")(_row_maker(formula))


def _pick(self: Value, target_row: Value, ignore_index: int) -> tuple[Value, Value]:
    """Per row: minus the element at ``target``, and 1; both 0 where the target is ignored."""
    target = np.astype(target_row, np.int32)
    keep = target != ignore_index
    found = lax.iota(self.shape, 1) == np.expand_dims(target, 1)
    picked = np.sum(np.where(found, self, 0.0), axis=1)
    return np.where(keep, -picked, 0.0), np.where(keep, 1.0, 0.0)


def _spread(grad_row: Value, target_row: Value, like: Value, ignore_index: int) -> Value:
    """Minus ``grad`` at the target's position, 0 elsewhere and in ignored rows."""
    target = np.expand_dims(np.astype(target_row, np.int32), 1)
    positions = lax.iota(like.shape, 1)
    grad = np.expand_dims(-grad_row, 1)
    # 0 is no multiple of grad: where every row is ignored, the mean makes grad infinite.
    return np.where((positions == target) & (target != ignore_index), grad, 0.0)


def _matrix(self: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    return (self, target) if self.ndim == 2 else (self.unsqueeze(0), target.reshape(1))


def _check_targets(targets: Tensor, classes: int, ignore_index: int) -> None:
    """Raise torch's error for a target that is no class; its memory is the host's."""
    host = _loader.extension().as_cpu(targets)
    wrong = ((host < 0) | (host >= classes)) & (host != ignore_index)
    if bool(wrong.any()):
        raise IndexError(f"Target {int(host[wrong][0])} is out of bounds.")


def _weights(weight: Tensor, targets: Tensor) -> Tensor:
    """The weight of each row's class; any class' where the target is ignored."""
    return weight[targets.clamp(min=0, max=weight.shape[0] - 1)]


def _nll_loss() -> None:
    picks = RowKernels.of("aten::nll_loss_forward", _pick)
    spreads = RowKernels.of("aten::nll_loss_backward", _spread)

    def forward(
        self: Tensor,
        target: Tensor,
        weight: Tensor | None,
        reduction: int,
        ignore_index: int,
    ) -> tuple[Tensor, Tensor]:
        rows, targets = _matrix(self, target)
        _check_targets(targets, rows.shape[1], ignore_index)
        picked = torch.empty(rows.shape[0], dtype=self.dtype, device=self.device)
        keep = torch.empty_like(picked)
        options = (("ignore_index", ignore_index),)
        picks.run({"picked": picked, "keep": keep}, {"self": rows, "target_row": targets}, options)
        if weight is not None:
            keep = keep * _weights(weight, targets)
            picked = picked * keep
        if reduction == _NONE:
            return picked.reshape(target.shape), torch.zeros(
                (), dtype=self.dtype, device=self.device
            )
        total = keep.sum()
        loss = picked.sum()
        return (loss / total if reduction == _MEAN else loss), total

    def backward(
        grad_output: Tensor,
        self: Tensor,
        target: Tensor,
        weight: Tensor | None,
        reduction: int,
        ignore_index: int,
        total_weight: Tensor,
    ) -> Tensor:
        rows, targets = _matrix(self, target)
        grad = grad_output / total_weight if reduction == _MEAN else grad_output
        if weight is not None:
            grad = grad * _weights(weight, targets)
        out = torch.empty(rows.shape, dtype=self.dtype, device=self.device)
        spreads.run(
            {"out": out},
            {
                "grad_row": grad.reshape(-1).expand(rows.shape[0]),
                "target_row": targets,
                "like": rows,
            },
            (("ignore_index", ignore_index),),
        )
        return out.reshape(self.shape)

    registration.python_kernel("aten::nll_loss_forward")(forward)
    registration.python_kernel("aten::nll_loss_backward")(backward)


def register() -> None:
    """Registers the softmax family and the negative log-likelihood loss."""
    _softmax_family()
    _nll_loss()


__all__: Sequence[str] = ("RowKernels", "register")
