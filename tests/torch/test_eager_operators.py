"""Operators made of launches: values against PyTorch on the CPU, no fallback, repetition."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import trnx_torch  # noqa: E402
from trnx_torch.registration import get_program_counts  # noqa: E402

F = torch.nn.functional
Tensor = torch.Tensor


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def places(high: int, *shape: int, seed: int = 1) -> Tensor:
    return torch.randint(high, shape, generator=torch.Generator().manual_seed(seed))


X = normal(3, 4, 5)
IMAGE = normal(2, 3, 6, 7)
ROWS = places(3, 4)
ALONG = places(4, 3, 2, 5)
MASK = normal(3, 4, 5, seed=3) > 0

CASES: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "cat": (lambda a, b: torch.cat([a, b, a], 1), (X, normal(3, 2, 5))),
    "cat of two dtypes": (lambda a: torch.cat([a, a.long()]), (X,)),
    "stack": (lambda a: torch.stack([a, a + 1], -1), (X,)),
    "roll": (lambda a: torch.roll(a, (1, -2), (0, 2)), (X,)),
    "repeat": (lambda a: a.repeat(2, 1, 3, 1), (X,)),
    "flip": (lambda a: a.flip(0, 2), (X,)),
    "transposed copy": (lambda a: a.permute(2, 0, 1).contiguous(), (X,)),
    "reflection_pad2d": (lambda a: F.pad(a, (2, 1, 0, 3), mode="reflect"), (IMAGE,)),
    "replication_pad2d": (lambda a: F.pad(a, (2, 1, 4, 3), mode="replicate"), (IMAGE,)),
    "pixel_shuffle": (lambda a: F.pixel_shuffle(a, 2), (normal(2, 8, 3, 3),)),
    "index": (lambda a, i: a[i], (X, ROWS)),
    "index of two axes": (lambda a, i, j: a[:, i, j], (X, places(4, 6), places(5, 6))),
    "index apart": (lambda a, i, j: a[i, :, j], (X, places(3, 6), places(5, 6))),
    "index from the end": (lambda a, i: a[i - 3], (X, ROWS)),
    "mask": (lambda a, m: a[m], (X, MASK)),
    "masked write": (lambda a, m: a.masked_fill(m, 2.0), (X, MASK)),
    "masked_scatter": (lambda a, m, b: a.masked_scatter(m, b), (X, MASK, normal(60))),
    "index_put": (lambda a, i: a.index_put((i,), a[:1]), (X, places(3, 1))),
    "index_put add": (
        lambda a, i, v: a.index_put((i,), v, accumulate=True),
        (X, ROWS, normal(4, 4, 5)),
    ),
    "index_select": (lambda a, i: a.index_select(1, i), (X, ROWS)),
    "index_add": (lambda a, i, v: a.index_add(1, i, v, alpha=2), (X, ROWS, normal(3, 4, 5))),
    "index_copy": (
        lambda a, i, v: a.index_copy(2, i, v),
        (X, torch.tensor([4, 0]), normal(3, 4, 2)),
    ),
    "index_fill": (lambda a, i: a.index_fill(1, i, 7.0), (X, ROWS)),
    "gather": (lambda a, i: a.gather(1, i), (X, ALONG)),
    "scatter": (lambda a, i: a.scatter(1, i, 3.0), (X, ALONG)),
    "scatter_add": (lambda a, i, v: a.scatter_add(1, i, v), (X, ALONG, normal(3, 2, 5))),
    "take": (lambda a, i: torch.take(a, i), (X, places(60, 2, 3))),
    "nonzero": (lambda m: m.nonzero(), (MASK,)),
    "embedding": (lambda w, i: F.embedding(i, w), (normal(9, 4), places(9, 2, 3))),
    "cumsum": (lambda a: a.cumsum(1), (X,)),
    "cumprod": (lambda a: a.cumprod(2), (X,)),
    "logcumsumexp": (lambda a: torch.logcumsumexp(a, 1), (X,)),
    "prod": (lambda a: (a.prod(), a.prod(1)), (X,)),
    "tril": (lambda a: a.tril(1), (X,)),
    "var": (lambda a: a.var((0, 2), correction=2), (X,)),
    "std_mean": (lambda a: torch.std_mean(a, 1), (X,)),
    "max with place": (lambda a: tuple(a.max(1)), (X,)),
    "any": (lambda m: m.any(1), (MASK,)),
    "all of nothing": (lambda m: m[:0].all(), (MASK,)),
    "sum of nothing": (lambda a: a[:, :0].sum(1), (X,)),
    "logsumexp": (lambda a: a.logsumexp((0, 1)), (X,)),
    "norm": (lambda a: torch.linalg.vector_norm(a, 3, dim=1), (X,)),
    "layer_norm": (lambda a: F.layer_norm(a, (5,)), (X,)),
    "group_norm": (lambda a: F.group_norm(a, 3), (IMAGE,)),
    "conv2d": (lambda a, w, b: F.conv2d(a, w, b, 2, 1), (IMAGE, normal(4, 3, 3, 3), normal(4))),
    "grouped conv": (lambda a, w: F.conv2d(a, w, groups=3), (IMAGE, normal(6, 1, 2, 2))),
    "conv_transpose2d": (
        lambda a, w: F.conv_transpose2d(a, w, stride=2, padding=1, output_padding=1),
        (IMAGE, normal(3, 4, 3, 3)),
    ),
    "max_pool2d": (lambda a: F.max_pool2d(a, 3, 2, 1, return_indices=True), (IMAGE,)),
    "avg_pool2d": (lambda a: F.avg_pool2d(a, 3, 2, 1, count_include_pad=False), (IMAGE,)),
    "adaptive_avg_pool2d": (lambda a: F.adaptive_avg_pool2d(a, (4, 3)), (IMAGE,)),
    "nearest": (lambda a: F.interpolate(a, scale_factor=2), (IMAGE,)),
    "bilinear": (lambda a: F.interpolate(a, (9, 5), mode="bilinear"), (IMAGE,)),
    "bicubic": (lambda a: F.interpolate(a, (9, 9), mode="bicubic", align_corners=True), (IMAGE,)),
    "mse_loss": (lambda a, b: F.mse_loss(a, b), (X, normal(3, 4, 5, seed=7))),
    "smooth_l1_loss": (lambda a, b: F.smooth_l1_loss(a, b), (X, normal(3, 4, 5, seed=7))),
    "bce": (lambda a, b: F.binary_cross_entropy(a, b), (torch.sigmoid(X), torch.sigmoid(-X))),
    "lgamma": (lambda a: torch.lgamma(a), (X,)),
    "digamma": (lambda a: torch.digamma(a), (X,)),
    "i0": (lambda a: torch.special.i0(a * 3), (X,)),
    "atan2": (lambda a, b: torch.atan2(a, b), (X, normal(3, 4, 5, seed=9))),
    "asinh": (lambda a: torch.asinh(a), (X,)),
    "softshrink": (lambda a: F.softshrink(a), (X,)),
    "mish": (lambda a: F.mish(a), (X,)),
}


def on_device(value: Any) -> Any:
    return value.to("neuron") if isinstance(value, Tensor) else value


def host(value: Any) -> Any:
    return tuple(map(host, value)) if isinstance(value, tuple) else value.cpu()


# What shows each way of making an operator; the rest is compiled every night.
DAILY = frozenset({
    "cat", "roll", "flip", "transposed copy", "reflection_pad2d", "index", "index apart", "mask",
    "index_put", "index_add", "gather", "scatter", "scatter_add", "nonzero", "embedding", "cumsum",
    "prod", "tril", "var",
    "max with place", "all of nothing", "sum of nothing", "layer_norm", "conv2d",
    "max_pool2d", "avg_pool2d", "bilinear", "mse_loss", "atan2",
})  # fmt: skip


def chosen(names: Any, daily: frozenset[str]) -> list[Any]:
    return [
        name if name in daily else pytest.param(name, marks=pytest.mark.nightly) for name in names
    ]


@pytest.mark.parametrize("name", chosen(CASES, DAILY))
def test_operator_agrees_and_repeats(name: str) -> None:
    fn, inputs = CASES[name]
    expected = fn(*inputs)
    given = [on_device(x) for x in inputs]
    trnx_torch.clear_op_tracking()
    first, second = fn(*given), fn(*given)
    assert trnx_torch.get_fallback_ops() == {}
    torch.testing.assert_close(host(first), expected, rtol=2e-5, atol=2e-5)
    torch.testing.assert_close(host(second), expected, rtol=2e-5, atol=2e-5)


GRADIENTS = {
    name: CASES[name]
    for name in (
        "cat", "reflection_pad2d", "replication_pad2d", "index", "index_add", "gather", "embedding",
        "cumsum", "var", "layer_norm", "group_norm", "conv2d", "grouped conv", "conv_transpose2d",
        "avg_pool2d", "adaptive_avg_pool2d", "bilinear", "bicubic", "mse_loss", "bce", "mish",
    )
}  # fmt: skip


@pytest.mark.parametrize(
    "name", chosen(GRADIENTS, frozenset({"cat", "gather", "layer_norm", "conv2d", "avg_pool2d"}))
)
def test_gradient_agrees(name: str) -> None:
    fn, inputs = GRADIENTS[name]

    def gradients(move: Callable[[Any], Any]) -> list[Tensor]:
        own = [move(x).clone() for x in inputs]
        leaves = [x.requires_grad_() for x in own if x.is_floating_point()]
        fn(*own).sum().backward()
        return [x.grad.cpu() for x in leaves]

    expected = gradients(lambda x: x)
    trnx_torch.clear_op_tracking()
    torch.testing.assert_close(gradients(on_device), expected, rtol=2e-5, atol=2e-5)
    assert trnx_torch.get_fallback_ops() == {}


def replayed(op: str) -> int:
    return get_program_counts().get(op, (0, 0))[1]


def test_second_call_repeats_the_launches_without_python() -> None:
    a, b = normal(5, 3).to("neuron"), normal(2, 3).to("neuron")
    torch.cat([a, b])
    before = replayed("aten::cat")
    for value in (1.0, 2.0):
        a.fill_(value)
        assert torch.cat([a, b])[0, 0].item() == value
    assert replayed("aten::cat") == before + 2


def test_a_plan_tells_shared_memory_apart() -> None:
    a, b = normal(4, 3).to("neuron"), normal(4, 3, seed=5).to("neuron")
    torch.cat([a, a])  # recorded with one tensor twice
    joined = torch.cat([a, b]).cpu()
    torch.testing.assert_close(joined, torch.cat([a.cpu(), b.cpu()]))


def test_what_reads_a_value_runs_each_time() -> None:
    x = torch.tensor([0.0, 1.0, 0.0, 2.0]).to("neuron")
    assert x.nonzero().flatten().tolist() == [1, 3]
    x.fill_(0.0)
    assert x.nonzero().numel() == 0


def test_index_outside_raises() -> None:
    w = normal(4, 2).to("neuron")
    with pytest.raises(IndexError, match="out of range"):
        F.embedding(torch.tensor([1, 4]).to("neuron"), w)


def test_out_and_in_place_forms() -> None:
    x = normal(3, 4)
    out = torch.empty(0, device="neuron")
    result = torch.cat([x.to("neuron"), x.to("neuron")], out=out)
    assert result is out
    torch.testing.assert_close(out.cpu(), torch.cat([x, x]))
    y = x.to("neuron")
    assert y.tril_() is y
    torch.testing.assert_close(y.cpu(), x.tril())


RANDOM: dict[str, Callable[[Tensor], Tensor]] = {
    "uniform_": lambda x: x.uniform_(-1, 3),
    "normal_": lambda x: x.normal_(2, 0.5),
    "bernoulli_": lambda x: x.bernoulli_(0.25),
    "random_": lambda x: x.random_(0, 10),
    "exponential_": lambda x: x.exponential_(2.0),
    "dropout": lambda x: F.dropout(torch.ones_like(x), 0.25),
}
MOMENTS = {
    "uniform_": (1.0, 4 / 3), "normal_": (2.0, 0.25), "bernoulli_": (0.25, 3 / 16),
    "random_": (4.5, 8.25), "exponential_": (0.5, 0.25), "dropout": (1.0, 1 / 3),
}  # fmt: skip


@pytest.mark.parametrize("name", RANDOM)
def test_random_stream(name: str) -> None:
    draw, (mean, variance) = RANDOM[name], MOMENTS[name]
    x = torch.empty(100, 100, device="neuron")
    trnx_torch.clear_op_tracking()
    torch.manual_seed(7)
    first, second = draw(x.clone()).cpu(), draw(x.clone()).cpu()
    torch.manual_seed(7)
    again = draw(x.clone()).cpu()
    assert trnx_torch.get_fallback_ops() == {}
    torch.testing.assert_close(first, again, rtol=0, atol=0)
    assert not torch.equal(first, second)
    # 10,000 draws: five standard errors of the mean, and a bound on the variance as wide.
    assert abs(first.mean().item() - mean) < 5 * (variance / 10_000) ** 0.5
    assert abs(first.var().item() - variance) < 0.15 * variance


def test_random_state_round_trip() -> None:
    x = torch.empty(50, device="neuron")
    torch.neuron.manual_seed(3)
    x.uniform_()
    state = torch.neuron.get_rng_state()
    first = x.clone().normal_().cpu()
    torch.neuron.set_rng_state(state)
    assert torch.equal(x.clone().normal_().cpu(), first)
    own = torch.Generator("neuron").manual_seed(3)
    assert torch.equal(x.clone().uniform_(generator=own).cpu(), x.cpu())


def test_batch_norm_trains_like_cpu() -> None:
    model = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.BatchNorm2d(4), torch.nn.ReLU())
    twin = copy.deepcopy(model).to("neuron")
    trnx_torch.clear_op_tracking()
    for _ in range(2):
        expected, actual = model(IMAGE), twin(IMAGE.to("neuron"))
        torch.testing.assert_close(actual.cpu(), expected, rtol=2e-5, atol=2e-5)
        expected.sum().backward()
        actual.sum().backward()
    assert trnx_torch.get_fallback_ops() == {}
    for p, q in zip(model.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(q.grad.cpu(), p.grad, rtol=2e-4, atol=2e-4)
    torch.testing.assert_close(twin[1].running_var.cpu(), model[1].running_var)
