"""Native eager kernels against PyTorch on the CPU: values, dtypes, layouts, counts."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest

torch = pytest.importorskip("torch")

import trnx_torch  # noqa: E402
from trnx.testing import count_compiles  # noqa: E402

F = torch.nn.functional
Tensor = torch.Tensor


@pytest.fixture(autouse=True)
def _count_from_zero() -> None:
    trnx_torch.clear_op_tracking()


def both(fn: Callable[..., Tensor], *tensors: Tensor) -> tuple[Tensor, Tensor]:
    """``fn`` on the CPU and on the device; inputs are cloned so that in-place forms work."""
    expected = fn(*(t.clone() for t in tensors))
    actual = fn(*(t.clone().to("neuron") for t in tensors))
    assert actual.device.type == "neuron"
    return actual.cpu(), expected


def agree(fn: Callable[..., Tensor], *tensors: Tensor, native: bool = True, **tol: float) -> None:
    actual, expected = both(fn, *tensors)
    torch.testing.assert_close(actual, expected, **tol)
    if native:
        assert trnx_torch.get_fallback_ops() == {}


def normal(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


POINTWISE: dict[str, Callable[..., Tensor]] = {
    "add": lambda a, b: a + b,
    "add alpha": lambda a, b: torch.add(a, b, alpha=3),
    "sub alpha": lambda a, b: torch.sub(a, b, alpha=0.5),
    "rsub": lambda a, b: 2 - a,
    "mul number": lambda a, b: a * 3 + 1,
    "div": lambda a, b: a / (b.abs() + 1),
    "maximum": torch.maximum,
    "minimum": torch.minimum,
    "neg": lambda a, b: -a,
    "abs": lambda a, b: a.abs(),
    "exp": lambda a, b: torch.exp(a),
    "log": lambda a, b: torch.log(a.abs() + 0.1),
    "sqrt": lambda a, b: torch.sqrt(a.abs()),
    "rsqrt": lambda a, b: torch.rsqrt(a.abs() + 0.1),
    "reciprocal": lambda a, b: torch.reciprocal(a.abs() + 0.5),
    "tanh": lambda a, b: torch.tanh(a),
    "sigmoid": lambda a, b: torch.sigmoid(a),
    "erf": lambda a, b: torch.erf(a),
    "relu": lambda a, b: torch.relu(a),
    "silu": lambda a, b: F.silu(a),
    "gelu": lambda a, b: F.gelu(a),
    "gelu tanh": lambda a, b: F.gelu(a, approximate="tanh"),
    "less": lambda a, b: a < b,
    "not equal": lambda a, b: a != b,
    "where": lambda a, b: torch.where(a > b, a, b),
    "addcmul": lambda a, b: torch.addcmul(a, a, b, value=0.5),
    "addcdiv": lambda a, b: torch.addcdiv(a, a, b.abs() + 1, value=0.5),
    "lerp": lambda a, b: torch.lerp(a, b, 0.25),
    "in place": lambda a, b: a.mul_(2).add_(b),
    "in place lerp": lambda a, b: a.lerp_(b, 0.1),
    "out": lambda a, b: torch.add(a, b, out=torch.empty_like(a)),
    "out onto an input": lambda a, b: torch.mul(a, b, out=b),
    "transposed": lambda a, b: (a.t() + b.t()).t(),
    "broadcast row": lambda a, b: a + b[0],
    "broadcast column": lambda a, b: a * b[:, :1],
    "strided": lambda a, b: a[:, ::2] + b[:, 1::2],
    "strided in place": lambda a, b: _add_to_columns(a),
    "foreach": lambda a, b: torch._foreach_add([a, b], [b, a], alpha=2)[0],
    "foreach in place": lambda a, b: _foreach_in_place(a, b),
}


def _add_to_columns(a: Tensor) -> Tensor:
    a[:, ::2].add_(1)
    return a


def _foreach_in_place(a: Tensor, b: Tensor) -> Tensor:
    torch._foreach_mul_([a, b], [2.0, 3.0])
    torch._foreach_addcmul_([a], [a], [b], value=0.5)
    return a


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", POINTWISE)
def test_pointwise(name: str, dtype: torch.dtype) -> None:
    tolerance = {"rtol": 3e-6, "atol": 2e-6} if dtype == torch.float32 else {}
    a, b = normal(6, 10, dtype=dtype), normal(6, 10, dtype=dtype, seed=1)
    agree(POINTWISE[name], a, b, **tolerance)


@pytest.mark.parametrize("shape", [(), (1,), (0,), (3, 0), (1, 1, 1), (300, 1000), (2, 3, 5, 7)])
def test_pointwise_shapes(shape: tuple[int, ...]) -> None:
    agree(lambda a: a * 2 + 1, torch.rand(shape))


REDUCTIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "sum": lambda x: x.sum(),
    "sum last": lambda x: x.sum(-1),
    "sum first": lambda x: x.sum(0),
    "sum keep": lambda x: x.sum(1, keepdim=True),
    "sum two": lambda x: x.sum((0, 2)),
    "amax": lambda x: x.amax(-1),
    "amin first": lambda x: x.amin(0),
    "argmax": lambda x: x.argmax(-1),
    "argmin first": lambda x: x.argmin(0),
    "transposed": lambda x: x.transpose(0, 2).sum(1),
}


@pytest.mark.parametrize("name", REDUCTIONS)
def test_reductions(name: str) -> None:
    agree(REDUCTIONS[name], normal(5, 33, 70), rtol=1e-5, atol=1e-5)


def test_bfloat16_sums_accumulate_in_float32() -> None:
    agree(lambda x: x.sum(), torch.ones(70000, dtype=torch.bfloat16))


MATMULS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "mm": lambda a, b: a @ b,
    "left transposed": lambda a, b: a.t().contiguous().t() @ b,
    "right transposed": lambda a, b: a @ b.t().contiguous().t(),
    "addmm": lambda a, b: torch.addmm(b[0], a, b),
    "addmm scaled": lambda a, b: torch.addmm(b[:1], a, b, beta=0.5, alpha=2),
    "bmm": lambda a, b: torch.bmm(a.expand(3, -1, -1), b.expand(3, -1, -1)),
    "linear": lambda a, b: F.linear(a, b.t(), b[0]),
}


@pytest.mark.parametrize("name", MATMULS)
@pytest.mark.parametrize("sizes", [(1, 1, 1), (3, 5, 7), (130, 70, 530)], ids=str)
def test_matmul(name: str, sizes: tuple[int, int, int]) -> None:
    m, k, n = sizes
    agree(MATMULS[name], normal(m, k), normal(k, n, seed=1), rtol=1e-4, atol=1e-4)


def test_addmm_with_beta_zero_ignores_nan() -> None:
    bias = torch.full((4,), float("nan"))
    agree(lambda a, b, c: torch.addmm(c, a, b, beta=0), normal(3, 2), normal(2, 4), bias)


@pytest.mark.parametrize("dim", [0, 1, -1])
def test_softmax_family_and_gradients(dim: int) -> None:
    x, weight = normal(7, 9), normal(7, 9, seed=1)

    def loss(t: Tensor, fn: Callable[..., Tensor]) -> Tensor:
        leaf = t.detach().requires_grad_()
        (fn(leaf, dim) * weight.to(t.device)).sum().backward()
        assert leaf.grad is not None
        return leaf.grad

    for fn in (torch.softmax, torch.log_softmax):
        agree(lambda t, fn=fn: fn(t, dim), x, rtol=1e-5, atol=1e-6)
        agree(lambda t, fn=fn: loss(t, fn), x, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("ignored", [False, True])
def test_cross_entropy(reduction: str, ignored: bool) -> None:
    labels = torch.arange(9) % 4
    if ignored:
        labels[3] = -100

    def gradient(x: Tensor) -> Tensor:
        leaf = x.detach().requires_grad_()
        F.cross_entropy(leaf, labels.to(x.device), reduction=reduction).sum().backward()
        assert leaf.grad is not None
        return leaf.grad

    agree(
        lambda x: F.cross_entropy(x, labels.to(x.device), reduction=reduction),
        normal(9, 4),
        rtol=1e-5,
        atol=1e-6,
    )
    agree(gradient, normal(9, 4), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("ignored", [2, 7, -100])
def test_ignored_targets_are_no_classes(reduction: str, ignored: int) -> None:
    """All rows ignored, and an ignored label that no class has."""
    for target in ([ignored] * 3, [0, ignored, 1]):
        grads = []
        for device in ("cpu", "neuron"):
            x = normal(3, 4).to(device).requires_grad_()
            labels = torch.tensor(target, device=device)
            weight = torch.tensor([1.0, 2.0, 0.5, 3.0], device=device)
            loss = F.cross_entropy(x, labels, weight, ignore_index=ignored, reduction=reduction)
            loss.sum().backward()
            grads += [loss.detach().cpu(), x.grad.cpu()]
        torch.testing.assert_close(grads[2:], grads[:2], equal_nan=True)


def test_a_target_that_is_no_class_is_refused() -> None:
    x, target = normal(3, 4).to("neuron"), torch.tensor([0, 4, 1], device="neuron")
    with pytest.raises(IndexError, match=r"Target 4 is out of bounds\."):
        F.nll_loss(x, target)


def test_one_kernel_serves_every_shape() -> None:
    def work(rows: int, columns: int) -> None:
        a = torch.ones(rows, columns, device="neuron")
        (torch.tanh(a) + a).sum().item()
        (a @ a.t()).cpu()
        torch.log_softmax(a, -1)

    work(4, 6)
    with count_compiles() as compiles:
        for shape in [(4, 7), (129, 5), (33, 1), (1, 300)]:
            work(*shape)
    assert compiles() <= 2  # (33, 1) and (1, 300) have other innermost layouts


@pytest.mark.parametrize("options", [{}, {"foreach": False}], ids=["foreach", "single"])
def test_adamw_step_is_native_and_equal(options: dict[str, bool]) -> None:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 3))
    x, y = normal(20, 8), torch.arange(20) % 3
    weights = []
    for device in ("cpu", "neuron"):
        own = copy.deepcopy(model).to(device)
        optimizer = torch.optim.AdamW(own.parameters(), lr=3e-3, **options)
        for _ in range(5):
            optimizer.zero_grad()
            F.cross_entropy(own(x.to(device)), y.to(device)).backward()
            optimizer.step()
        weights.append([p.detach().cpu() for p in own.parameters()])
    for expected, actual in zip(*weights, strict=True):
        torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-5)
    assert trnx_torch.get_fallback_ops() == {}


def test_complex_runs_as_counted_fallbacks() -> None:
    agree(lambda a: a * 2, torch.rand(3, dtype=torch.complex64), native=False)
    assert sum(trnx_torch.get_fallback_ops().values()) >= 1


@pytest.mark.parametrize("name", ["add", "sub", "mul", "div", "rsub", "eq", "lt", "ge"])
@pytest.mark.parametrize("number", [2, 2.5, -3])
@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.uint8, torch.float32])
def test_a_number_takes_part_in_promotion(name: str, number: float, dtype: torch.dtype) -> None:
    packet = getattr(torch.ops.aten, name)
    x = torch.arange(5).to(dtype)
    agree(lambda x: packet.Scalar(x, number), x)
    agree(lambda x: packet.Tensor(x, torch.tensor(number)), x)
    if name in ("add", "sub", "mul", "div"):
        foreach = getattr(torch, f"_foreach_{name}")
        agree(lambda x: foreach([x], number)[0], x)
        agree(lambda x: foreach([x], [number])[0], x)


def test_subtracting_bools_is_refused_as_torch_does() -> None:
    mask = torch.tensor([True, False], device="neuron")
    with pytest.raises(RuntimeError, match="with two bool tensors is not supported"):
        mask - mask
