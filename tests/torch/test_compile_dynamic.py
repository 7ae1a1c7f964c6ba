"""Dynamic shapes: one compile per bucket, true sizes and values, number of compiles."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest

torch = pytest.importorskip("torch")

import trnx_torch  # noqa: E402
from trnx.core import config  # noqa: E402
from trnx.testing import count_compiles  # noqa: E402

F = torch.nn.functional


def block(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Attention-like: every reduction over the dynamic axis would see the padding."""
    y = torch.tanh(x @ w)
    weights = torch.softmax(y @ y.t(), -1)
    return (weights @ y).mean(0) + y.amax(0) + y.sum() / x.shape[0], weights


def agree(actual: object, expected: object) -> None:
    torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("fill", ["", "nan", "inf"])
def test_dynamic_true_compiles_once_per_bucket(fill: str) -> None:
    run = torch.compile(block, backend="neuron", fullgraph=True, dynamic=True)
    w = torch.randn(4, 6)
    with count_compiles() as compiles, config.pad_fill(fill):
        for n, expected in ((5, 1), (6, 1), (8, 1), (9, 2), (16, 2), (7, 2)):
            x = torch.randn(n, 4)
            results = [t.cpu() for t in run(x.to("neuron"), w.to("neuron"))]
            agree(results, list(block(x, w)))
            assert compiles() == expected


def test_gradient_of_a_dynamic_graph() -> None:
    def loss(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return (block(x, w)[0] * x.shape[0]).square().sum()

    run = torch.compile(loss, backend="neuron", fullgraph=True, dynamic=True)
    w = torch.randn(4, 6, requires_grad=True)
    own = w.detach().to("neuron").requires_grad_()
    with count_compiles() as compiles:
        for n in (5, 7, 8, 6):
            x = torch.randn(n, 4)
            expected, actual = loss(x, w), run(x.to("neuron"), own)
            w.grad = own.grad = None
            expected.backward()
            actual.backward()
            torch.testing.assert_close(actual.cpu(), expected, rtol=1e-3, atol=1e-3)
            torch.testing.assert_close(own.grad.cpu(), w.grad, rtol=1e-3, atol=1e-2)
    assert compiles() <= 3  # forward, backward, and the scalar that starts the gradient


def test_mark_dynamic_with_bounds_and_lists_of_buckets() -> None:
    options = {"buckets": [8, 24]}
    run = torch.compile(block, backend="neuron", fullgraph=True, options=options)
    w = torch.randn(4, 6)
    trnx_torch.reset_dynamo_metrics()
    for n in (3, 7, 9, 20):
        x = torch.randn(n, 4).to("neuron")
        torch._dynamo.mark_dynamic(x, 0, min=2, max=20)
        agree([t.cpu() for t in run(x, w.to("neuron"))], list(block(x.cpu(), w)))
    sizes = [tuple(record.sizes.values()) for record in trnx_torch.get_dynamo_metrics()]
    assert sizes == [(8,), (20,)]  # a bucket is never above the bound


def test_dynamic_false_is_exact() -> None:
    run = torch.compile(lambda x: x.sum(0) * 2, backend="neuron", fullgraph=True, dynamic=False)
    trnx_torch.reset_dynamo_metrics()
    for n in (5, 6, 5):
        x = torch.randn(n, 3)
        agree(run(x.to("neuron")).cpu(), x.sum(0) * 2)
    assert [record.sizes for record in trnx_torch.get_dynamo_metrics()] == [{}, {}]


def merged(x: torch.Tensor) -> torch.Tensor:
    return F.layer_norm(x.reshape(-1, x.shape[-1]), (x.shape[-1],)).cumsum(0)


def doubled(x: torch.Tensor) -> torch.Tensor:
    return torch.cat([x, x.flip(0)], 0)[1:].t().contiguous()


def counted(x: torch.Tensor) -> torch.Tensor:
    positions = torch.arange(x.shape[0], device=x.device)
    return x * positions[:, None, None] + torch.ones(2 * x.shape[0], device=x.device).sum()


def masked(x: torch.Tensor) -> torch.Tensor:
    length = x.shape[0]
    mask = torch.ones(length, length, dtype=torch.bool, device=x.device).tril()
    scores = torch.einsum("ibd,jbd->bij", x, x).masked_fill(~mask, float("-inf"))
    return torch.softmax(scores, -1)


DERIVED: dict[str, Callable] = {f.__name__: f for f in (merged, counted, masked)}


@pytest.mark.parametrize("name", DERIVED)
def test_derived_sizes(name: str) -> None:
    function = DERIVED[name]
    run = torch.compile(function, backend="neuron", fullgraph=True, dynamic=True)
    with count_compiles() as compiles:
        for n, b in itertools.product((5, 7), (3, 4)):
            x = torch.randn(n, b, 4)
            agree(run(x.to("neuron")).cpu(), function(x))
    assert compiles() == 1


def test_result_is_no_view_and_keeps_its_strides() -> None:
    run = torch.compile(doubled, backend="neuron", fullgraph=True, dynamic=True)
    for n in (5, 6):
        x = torch.randn(n, 3)
        result, expected = run(x.to("neuron")), doubled(x)
        assert result.stride() == expected.stride() and not result._is_view()
        agree(result.cpu(), expected)


def test_dynamic_input_is_mutated() -> None:
    def update(x: torch.Tensor) -> torch.Tensor:
        x.add_(x.sum(0))
        return x.mean()

    run = torch.compile(update, backend="neuron", fullgraph=True, dynamic=True)
    for n in (5, 6):
        x = torch.randn(n, 3)
        own = x.to("neuron")
        agree(run(own).cpu(), update(x))
        agree(own.cpu(), x)


def test_numbers_that_change_are_no_sizes() -> None:
    run = torch.compile(lambda x, k: x * k, backend="neuron", fullgraph=True, dynamic=True)
    x = torch.randn(4, 3)
    for k in (3, 5, -2):
        agree(run(x.to("neuron"), k).cpu(), x * k)
