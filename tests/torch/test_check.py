"""`trnx_torch.check` finds what is wrong, where it begins, and nothing else."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402

import trnx_torch  # noqa: E402


class Block(nn.Module):
    """Two layers with a module of the test between them."""

    def __init__(self, middle: nn.Module) -> None:
        super().__init__()
        self.first = nn.Linear(6, 8)
        self.middle = middle
        self.last = nn.Linear(8, 3)

    def forward(self, x: Any) -> Any:
        return self.last(self.middle(self.first(x)))


def net(middle: nn.Module) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(Block(nn.Tanh()), nn.ReLU(inplace=True), nn.Linear(3, 6), Block(middle))


X = torch.linspace(-2, 2, 30).reshape(5, 6)


@torch.library.custom_op("trnx_check::twice", mutates_args=(), device_types="cpu")
def twice(x: torch.Tensor) -> torch.Tensor:
    return x * 2


@twice.register_kernel("neuron")
def _wrong_twice(x: torch.Tensor) -> torch.Tensor:
    return x * 2.01


@torch.library.custom_op("trnx_check::twice_grad", mutates_args=(), device_types="cpu")
def twice_grad(g: torch.Tensor) -> torch.Tensor:
    return g * 2


@twice_grad.register_kernel("neuron")
def _wrong_twice_grad(g: torch.Tensor) -> torch.Tensor:
    wrong = g * 2
    wrong[0, 0] = float("nan")
    return wrong


class Wrong(nn.Module):
    """An operator whose device kernel is wrong."""

    def forward(self, x: Any) -> Any:
        return twice(x.detach()) + x - x.detach()


class WrongBackward(nn.Module):
    """An operator whose backward is wrong on the device."""

    class Function(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            return x * 2

        @staticmethod
        def backward(ctx: Any, g: Any) -> Any:
            return twice_grad(g)

    def forward(self, x: Any) -> Any:
        return self.Function.apply(x)


class Branches(nn.Module):
    """A module that does something else on the device."""

    def forward(self, x: Any) -> Any:
        return x + 0.5 if x.device.type == "neuron" else x


def test_a_right_model() -> None:
    model = net(nn.GELU())
    before = [p.clone() for p in model.parameters()]
    found = trnx_torch.check(model, X)
    assert found.ok
    assert found.first is None
    found.raise_if_diverged()
    kinds = {c.kind for c in found.comparisons}
    assert kinds == {"output", "output gradient", "parameter gradient"}
    assert sum(c.kind == "parameter gradient" for c in found.comparisons) == 10
    assert sum(c.kind == "output" for c in found.comparisons) == 11
    names = {c.name for c in found.operators}
    assert {"aten::addmm", "aten::gelu", "aten::gelu_backward", "aten::mm"} <= names
    assert str(found).startswith("neuron agrees with cpu in 11 of 11 outputs")
    for p, q in zip(model.parameters(), before, strict=True):
        assert torch.equal(p, q)
        assert p.grad is None
        assert p.device.type == "cpu"


def test_a_wrong_kernel_is_named_with_its_module() -> None:
    found = trnx_torch.check(net(Wrong()), X)
    assert not found.ok
    assert found.first is not None
    assert (found.first.kind, found.first.path) == ("output", "3.middle")
    assert found.first.name == "Wrong"
    operator = found.first_operator
    assert operator is not None
    assert (operator.name, operator.path) == ("trnx_check::twice", "3.middle")
    assert operator.dtype == torch.float32
    assert operator.shape == (5, 8)
    assert math.isclose(operator.max_error, 0.005 * operator.largest, rel_tol=1e-3)
    text = str(found)
    assert "First divergence: output of 3.middle (Wrong), float32 5x8: max error" in text
    assert "operator of 3.middle (trnx_check::twice), float32 5x8: max error" in text
    with pytest.raises(trnx_torch.DivergenceError, match=r"3\.middle"):
        found.raise_if_diverged()


def test_a_wrong_backward_is_named_with_its_module() -> None:
    found = trnx_torch.check(net(WrongBackward()), X)
    first, operator = found.first, found.first_operator
    assert first is not None
    assert operator is not None
    assert (first.kind, first.path) == ("output gradient", "3.first")
    assert first.max_error == math.inf
    assert (operator.name, operator.path) == ("trnx_check::twice_grad", "3.middle")
    bad = [c.path for c in found.comparisons if c.kind == "parameter gradient" and not c.ok]
    assert "3.first.weight" in bad
    assert "3.last.weight" not in bad


def test_a_model_that_branches_on_its_device() -> None:
    found = trnx_torch.check(net(Branches()), X)
    assert found.first is not None
    assert found.first.path == "3.middle"
    assert found.first_operator is None
    assert "branches on its device" in str(found)


def test_dropout_draws_the_same_numbers_and_batch_norm_is_compared() -> None:
    state = torch.neuron.get_rng_state(), torch.get_rng_state()
    model = nn.Sequential(
        nn.Linear(6, 8), nn.Dropout(0.5), nn.BatchNorm1d(8), nn.Dropout1d(), nn.Linear(8, 2)
    )
    found = trnx_torch.check(model, X)
    assert found.ok, found
    assert [c.path for c in found.comparisons if c.kind == "buffer"] == [
        f"2.{name}" for name, _ in model[2].named_buffers()
    ]
    assert torch.equal(torch.neuron.get_rng_state(), state[0])
    assert int(model[2].num_batches_tracked) == 0


def test_loss_inputs_and_nested_results() -> None:
    class Pair(nn.Module):
        def forward(self, x: Any, *, scale: Any) -> Any:
            return {"a": x.square() * scale["s"], "b": [x.sum(), 3]}

    x = X.clone().requires_grad_()
    found = trnx_torch.check(
        Pair(), x, scale={"s": torch.full((6,), 2.0)}, loss=lambda out: out["a"].mean()
    )
    assert found.ok
    assert [c.path for c in found.comparisons if c.kind == "input gradient"] == ["input 0"]
    assert x.grad is None


@pytest.mark.parametrize(
    ("dtype", "error", "ok"),
    [
        (torch.float32, 5e-5, True),
        (torch.float32, 5e-4, False),
        (torch.bfloat16, 1e-2, True),
        (torch.bfloat16, 0.2, False),
        (torch.int64, 1, False),
    ],
)
def test_tolerance_follows_the_dtype(dtype: torch.dtype, error: float, ok: bool) -> None:
    class Off(nn.Module):
        def forward(self, x: Any) -> Any:
            return x + error if x.device.type == "neuron" else x

    found = trnx_torch.check(Off(), torch.ones(4).to(dtype))
    assert (found.first is None) == ok
    loose = trnx_torch.check(Off(), torch.ones(4).to(dtype), rtol=0.0, atol=2.0)
    assert loose.first is None or dtype == torch.int64
    tight = trnx_torch.check(Off(), torch.ones(4).to(dtype), rtol=0.0, atol=0.0)
    assert tight.first is not None


def test_fallbacks_are_listed() -> None:
    class Rare(nn.Module):
        def forward(self, x: Any) -> Any:
            return torch.special.airy_ai(x)

    found = trnx_torch.check(Rare(), X)
    assert found.ok
    assert found.fallbacks == {"aten::special_airy_ai": 1}
    assert "Ran on the CPU as fallbacks: aten::special_airy_ai (1)." in str(found)


def test_takes_modules_only() -> None:
    with pytest.raises(TypeError, match=r"check takes a torch\.nn\.Module, not function"):
        trnx_torch.check(lambda x: x, X)  # type: ignore[arg-type]


@pytest.mark.parametrize("make", [lambda: nn.LSTM(6, 4), lambda: nn.MultiheadAttention(6, 2)])
def test_modules_with_operators_of_their_own(make: Callable[[], nn.Module]) -> None:
    torch.manual_seed(0)
    model = make()
    inputs = (X,) if isinstance(model, nn.LSTM) else (X, X, X)
    found = trnx_torch.check(model, *inputs)
    assert found.ok, found
