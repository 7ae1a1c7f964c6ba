"""Graphs that write to their inputs, return views of them, or draw random numbers."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest

torch = pytest.importorskip("torch")

from trnx_torch import philox  # noqa: E402

F = torch.nn.functional


def compiled(function: Callable) -> Callable:
    return torch.compile(function, backend="neuron", fullgraph=True)


def test_buffers_of_batch_norm() -> None:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(6, 4), torch.nn.BatchNorm1d(4))
    own = copy.deepcopy(model).to("neuron")
    run = compiled(own)
    for _ in range(3):
        x = torch.randn(8, 6)
        expected, actual = model(x), run(x.to("neuron"))
        expected.square().sum().backward()
        actual.square().sum().backward()
        torch.testing.assert_close(actual.cpu(), expected, rtol=1e-4, atol=1e-5)
    for (name, mine), (_, wanted) in zip(own.named_buffers(), model.named_buffers(), strict=True):
        torch.testing.assert_close(mine.cpu(), wanted, msg=lambda text, n=name: f"{n}: {text}")
    for mine, wanted in zip(own.parameters(), model.parameters(), strict=True):
        torch.testing.assert_close(mine.grad.cpu(), wanted.grad, rtol=1e-3, atol=1e-4)
    torch.testing.assert_close(compiled(own.eval())(x.to("neuron")).cpu(), model.eval()(x))


def test_input_mutation_keeps_memory_and_version() -> None:
    def step(state: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        state.mul_(0.5).add_(x)
        return state.sum()

    run = compiled(step)
    state, x = torch.ones(5, 3), torch.randn(5, 3)
    own = state.to("neuron")
    address, version = own.data_ptr(), own._version
    for _ in range(2):
        torch.testing.assert_close(run(own, x.to("neuron")).cpu(), step(state, x))
    assert own.data_ptr() == address
    assert own._version > version
    torch.testing.assert_close(own.cpu(), state)


def test_inputs_exchange_their_values() -> None:
    def exchange(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        old = a.clone()
        a.copy_(b)
        b.copy_(old)
        return a - b

    a, b = torch.randn(4), torch.randn(4)
    own = [a.to("neuron"), b.to("neuron")]
    actual = compiled(exchange)(*own)
    torch.testing.assert_close(actual.cpu(), exchange(a, b))
    torch.testing.assert_close([t.cpu() for t in own], [a, b])


def test_mutated_view_and_overlapping_inputs() -> None:
    def update(x: torch.Tensor, row: torch.Tensor) -> torch.Tensor:
        x[1:3, ::2] = 7.0
        row.add_(1)
        return x * 2

    x = torch.arange(24.0).reshape(4, 6)
    own = x.to("neuron")
    actual = compiled(update)(own, own[0])
    torch.testing.assert_close(actual.cpu(), update(x, x[0]))
    torch.testing.assert_close(own.cpu(), x)


def test_transposed_input_is_mutated() -> None:
    def update(x: torch.Tensor) -> torch.Tensor:
        x.mul_(3)
        return x.sum(0)

    x = torch.randn(3, 5).t()
    own = x.to("neuron")
    torch.testing.assert_close(compiled(update)(own).cpu(), update(x))
    torch.testing.assert_close(own.cpu(), x)


def test_outputs_that_are_views_of_inputs() -> None:
    def views(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return x.t(), x[1:], x.view(-1), x + 1

    x = torch.randn(3, 4).to("neuron")
    t, rows, flat, _ = compiled(views)(x)
    assert t.data_ptr() == flat.data_ptr() == x.data_ptr()
    x.zero_()
    assert t.abs().sum().item() == rows.abs().sum().item() == flat.abs().sum().item() == 0


@pytest.mark.filterwarnings("ignore:.*torch.jit.script_method:DeprecationWarning")
def test_optimizer_step_in_a_graph() -> None:
    torch.manual_seed(0)
    model = torch.nn.Linear(4, 3)
    own = copy.deepcopy(model).to("neuron")
    x = torch.randn(5, 4)
    optimizers = [torch.optim.SGD(m.parameters(), lr=0.1, momentum=0.9) for m in (model, own)]
    step = torch.compile(optimizers[1].step, backend="neuron")
    for _ in range(3):
        for m, optimizer in ((model, optimizers[0]), (own, optimizers[1])):
            optimizer.zero_grad()
            m(x.to(m.weight.device)).square().mean().backward()
        optimizers[0].step()
        step()
    torch.testing.assert_close(own.weight.detach().cpu(), model.weight.detach())


def test_dropout_follows_the_seed_and_keeps_the_mean() -> None:
    run = compiled(lambda x: F.dropout(x, 0.25, training=True))
    x = torch.ones(64, 64).to("neuron")
    torch.manual_seed(3)
    first, second = run(x), run(x)
    torch.manual_seed(3)
    again = run(x)
    assert torch.equal(first.cpu(), again.cpu())
    assert not torch.equal(first.cpu(), second.cpu())
    assert first.cpu().unique().tolist() == pytest.approx([0.0, 1 / 0.75])
    assert abs(first.mean().item() - 1) < 0.05


def test_dropout_backward_uses_the_mask_of_forward() -> None:
    x = torch.ones(32, 32).to("neuron").requires_grad_()
    y = compiled(lambda x: F.dropout(x * 2, 0.5, training=True))(x)
    y.sum().backward()
    torch.testing.assert_close(x.grad.cpu(), y.detach().cpu())


def test_random_tensors_of_a_graph() -> None:
    def draw(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return torch.rand_like(x), torch.randn_like(x), torch.randint(3, 9, (500,), device="neuron")

    torch.manual_seed(0)
    uniform, normal, integers = (t.cpu() for t in compiled(draw)(torch.zeros(40, 50).to("neuron")))
    assert uniform.min() >= 0 and uniform.max() < 1
    assert abs(uniform.mean().item() - 0.5) < 0.03
    assert abs(normal.mean().item()) < 0.1 and abs(normal.std().item() - 1) < 0.05
    assert set(integers.tolist()) == set(range(3, 9))


def test_philox_known_answers() -> None:
    """The published vectors for a counter and key of zeros, and of ones."""
    import trnx.numpy as np

    word = lambda value: np.full((1,), value, dtype=np.uint32)  # noqa: E731
    zeros = philox.blocks((word(0), word(0)), (word(0), word(0)))
    assert [int(w[0]) for w in zeros] == [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]


def test_float64_is_computed_in_float32() -> None:
    run = compiled(lambda x: (x * 3 + 1).sum(0))
    x = torch.randn(4, 3, dtype=torch.float64)
    with pytest.warns(UserWarning, match="f32"):
        result = run(x.to("neuron"))
    assert result.dtype == torch.float64
    torch.testing.assert_close(result.cpu(), (x * 3 + 1).sum(0), rtol=1e-6, atol=1e-6)
    other = compiled(lambda x: x * 5)
    with pytest.warns(UserWarning, match=r"test_compile_state\.py:\d+ .*f32"):  # each line warns
        other(x.to("neuron"))
