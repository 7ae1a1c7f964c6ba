"""Trains a model on the CPU and on `neuron` and compares every step."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch

import trnx_torch

Batch = dict[str, torch.Tensor]
Loss = Callable[[torch.nn.Module, Batch], torch.Tensor]
STEPS = 3


class Training:
    """Copies of a model on the CPU and on `neuron`, trained side by side by AdamW.

    Args:
        model: on the CPU.
        batch: tensors on the CPU.
        loss: scalar loss of model and batch.
        compiled: run the model's copy through ``torch.compile(fullgraph=True)``.
    """

    def __init__(self, model: torch.nn.Module, batch: Batch, loss: Loss, compiled: bool) -> None:
        self.reference = copy.deepcopy(model)
        self.model = copy.deepcopy(model).to("neuron")
        self._optimizers = [
            torch.optim.AdamW(m.parameters(), lr=1e-3) for m in (self.reference, self.model)
        ]
        self._batch = batch
        self._moved = {name: tensor.to("neuron") for name, tensor in batch.items()}
        self._loss = loss
        run: Callable[[Batch], torch.Tensor] = lambda batch: loss(self.model, batch)  # noqa: E731
        self._run = torch.compile(run, backend="neuron", fullgraph=True) if compiled else run

    def check(self, rtol: float, atol: float) -> None:
        """Forward, backward and three steps agree: losses, gradients, parameters and buffers.

        AdamW divides by the gradient's size, so a gradient that is zero but for rounding moves its
        parameter either way; parameters are compared where the CPU's gradient is larger than that.
        """
        for _ in range(STEPS):
            expected = self._loss(self.reference, self._batch)
            actual = self._run(self._moved)
            torch.testing.assert_close(actual.cpu(), expected, rtol=rtol, atol=atol)
            for optimizer, value in zip(self._optimizers, (expected, actual), strict=True):
                optimizer.zero_grad()
                value.backward()
            self._compare_gradients(rtol, atol)
            for optimizer in self._optimizers:
                optimizer.step()
        for (name, own), (_, wanted) in zip(
            self.model.named_buffers(), self.reference.named_buffers(), strict=True
        ):
            torch.testing.assert_close(own.cpu(), wanted, rtol=rtol, atol=atol, msg=_named(name))
        for (name, own), (_, wanted) in zip(
            self.model.named_parameters(), self.reference.named_parameters(), strict=True
        ):
            firm = torch.ones_like(wanted, dtype=torch.bool)
            if wanted.grad is not None:
                firm = wanted.grad.abs() > 1e-4 * wanted.grad.abs().max()
            torch.testing.assert_close(
                own.detach().cpu()[firm], wanted.detach()[firm], rtol=0, atol=3e-4, msg=_named(name)
            )

    def _compare_gradients(self, rtol: float, atol: float) -> None:
        for (name, own), (_, wanted) in zip(
            self.model.named_parameters(), self.reference.named_parameters(), strict=True
        ):
            assert (own.grad is None) == (wanted.grad is None), name
            if wanted.grad is not None:
                assert own.grad is not None
                scale = float(wanted.grad.abs().max())
                torch.testing.assert_close(
                    own.grad.cpu(),
                    wanted.grad,
                    rtol=rtol,
                    atol=max(atol, 2e-5 * scale),
                    msg=_named(name),
                )


def _named(name: str) -> Callable[[str], str]:
    return lambda text: f"{name}: {text}"


def check(
    model: torch.nn.Module,
    batch: Batch,
    loss: Loss,
    *,
    compiled: bool,
    fallbacks: bool = False,
    rtol: float = 1e-4,
    atol: float = 1e-5,
) -> dict[str, Any]:
    """Trains and compares; no operator may have fallen back to the CPU unless `fallbacks`.

    Returns:
        The operators that fell back, with counts.
    """
    training = Training(model, batch, loss, compiled)
    trnx_torch.clear_op_tracking()
    # Dynamo leaves recurrent modules out of graphs unless it is told otherwise.
    with torch._dynamo.config.patch(allow_rnn=True):
        training.check(rtol, atol)
    found = trnx_torch.get_fallback_ops()
    if not fallbacks:
        assert found == {}, found
    return found
