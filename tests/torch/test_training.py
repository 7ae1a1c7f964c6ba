"""Whole training runs on the device against the same runs on the CPU."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest

torch = pytest.importorskip("torch")

import trnx_torch  # noqa: E402

nn = torch.nn
F = nn.functional


def mlp() -> torch.nn.Module:
    return nn.Sequential(
        nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 16), nn.ReLU(), nn.Linear(16, 3)
    )


def data() -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(96, 8, generator=generator)
    return x, (x @ torch.randn(8, 3, generator=generator)).argmax(1)


def train(model: torch.nn.Module, device: str, optimizer: Callable, epochs: int) -> list[float]:
    """Losses per epoch; the model is trained in place."""
    x, y = (t.to(device) for t in data())
    step = optimizer(model.parameters())
    losses = []
    for _ in range(epochs):
        total = 0.0
        for batch in range(0, len(x), 32):
            step.zero_grad()
            loss = F.cross_entropy(model(x[batch : batch + 32]), y[batch : batch + 32])
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            step.step()
            total += loss.item()
        losses.append(total)
    return losses


OPTIMIZERS = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.2),
    "sgd momentum": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, weight_decay=1e-3),
    "adamw": lambda p: torch.optim.AdamW(p, lr=1e-2),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_training_equals_cpu(name: str) -> None:
    torch.manual_seed(0)
    host = mlp()
    model = copy.deepcopy(host).to("neuron")
    expected = train(host, "cpu", OPTIMIZERS[name], epochs=8)
    actual = train(model, "neuron", OPTIMIZERS[name], epochs=8)
    assert expected[-1] < 0.9 * expected[0]
    assert actual == pytest.approx(expected, rel=1e-3)
    for p, q in zip(host.parameters(), model.parameters(), strict=True):
        assert q.device.type == "neuron"
        torch.testing.assert_close(q.detach().cpu(), p.detach(), rtol=1e-3, atol=1e-4)


def test_device_string_is_all_that_changes() -> None:
    """A loop as tutorials write it: DataLoader, train and eval mode, dropout, accuracy, saving."""

    def run(device: str) -> float:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Dropout(0.1), nn.Linear(64, 3))
        model.to(device)
        optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
        schedule = torch.optim.lr_scheduler.StepLR(optimizer, 5, 0.5)
        loader = torch.utils.data.DataLoader(
            torch.utils.data.TensorDataset(*data()), batch_size=32, shuffle=True
        )
        for _ in range(10):
            model.train()
            for x, y in loader:
                x, y = x.to(device), y.to(device)
                optimizer.zero_grad()
                F.cross_entropy(model(x), y).backward()
                optimizer.step()
            schedule.step()
        model.eval()
        correct = 0
        with torch.no_grad():
            for x, y in loader:
                prediction = model(x.to(device)).argmax(dim=1)
                correct += (prediction == y.to(device)).sum().item()
        return correct / len(loader.dataset)

    assert run("cpu") > 0.9
    assert run("neuron") > 0.9


def test_optimizer_step_has_no_fallback() -> None:
    model = mlp().to("neuron")
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    x, y = (t.to("neuron") for t in data())
    for _ in range(2):
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        trnx_torch.clear_op_tracking()
        optimizer.step()
        assert trnx_torch.get_fallback_ops() == {}
        assert sum(trnx_torch.get_executed_ops().values()) > 5
