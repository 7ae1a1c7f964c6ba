"""In which precision the device computes: float64 as float32 and said so, int64 exactly."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import trnx_torch  # noqa: E402
from trnx.runtime.narrow import PrecisionWarning  # noqa: E402
from trnx_torch import precision  # noqa: E402

F = torch.nn.functional
THIRD = 1 / 3


@pytest.fixture
def caught(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Any]]:
    """Warnings of the test, as if no line had warned before."""
    monkeypatch.setattr(precision, "_warned", set())
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        yield found


def wide(*shape: int) -> Any:
    generator = torch.Generator().manual_seed(0)
    return torch.rand(*shape, dtype=torch.float64, generator=generator) + 0.5


# ---- float64 -------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    "function",
    [
        lambda x: x * 3 + THIRD,
        lambda x: x.exp().sum(1),
        lambda x: x @ x.t(),
        lambda x: x.softmax(1),
        lambda x: (x / x.t()).mean(),
        lambda x: torch.addcmul(x, x, x, value=0.1),
    ],
)
def test_float64_computes_as_float32(function: Callable[[Any], Any], caught: list[Any]) -> None:
    x = wide(4, 4)
    trnx_torch.clear_op_tracking()
    actual = function(x.to("neuron"))
    assert trnx_torch.get_fallback_ops() == {}
    assert actual.dtype == torch.float64
    expected = function(x)
    error = (actual.cpu() - expected).abs().max().item()
    scale = expected.abs().max().item()
    assert 0 < error < 1e-5 * scale  # seven digits, not sixteen
    torch.testing.assert_close(actual.cpu().float(), function(x.float()), rtol=1e-5, atol=1e-6)
    assert any(w.category is PrecisionWarning for w in caught)


def test_every_line_warns_once(caught: list[Any]) -> None:
    x = wide(8).to("neuron")
    for _ in range(3):
        x = x * 1.5  # one
    y = x + 1  # two
    assert y.dtype == torch.float64
    found = [w for w in caught if w.category is PrecisionWarning]
    assert [w.filename for w in found] == [__file__] * 2
    assert found[1].lineno == found[0].lineno + 1
    assert str(found[0].message) == (
        "aten::mul.Tensor computes float64 as float32 on device neuron, with 7 digits. "
        "Use float32, or move to cpu for float64."
    )


def test_memory_keeps_float64(caught: list[Any]) -> None:
    """Moving, copying, indexing and reading values is exact and does not warn."""
    x = torch.tensor([THIRD, 1e300, 5e-324], dtype=torch.float64)
    y = x.to("neuron")
    assert torch.equal(y.cpu(), x)
    assert y[0].item() == THIRD
    assert y.clone()[1:].contiguous().tolist() == [1e300, 5e-324]
    assert torch.equal(y.view(torch.int64).cpu(), x.view(torch.int64))
    assert not [w for w in caught if w.category is PrecisionWarning]


def test_backward_warns_without_a_line(caught: list[Any]) -> None:
    x = wide(4).to("neuron").requires_grad_()
    x.exp().backward(torch.full((4,), THIRD, dtype=torch.float64, device="neuron"))
    texts = [str(w.message) for w in caught if w.category is PrecisionWarning]
    assert any(text.startswith("in backward: aten::mul.Tensor computes float64") for text in texts)


def test_a_warning_that_is_an_error_stops_the_operator(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(precision, "_warned", set())
    x = wide(4).to("neuron")
    with warnings.catch_warnings():
        warnings.simplefilter("error", PrecisionWarning)
        with pytest.raises(RuntimeError, match=f"status {precision.REFUSED}"):
            x * 2
    assert (
        "PrecisionWarning: aten::mul.Tensor computes float64 as float32" in capfd.readouterr().err
    )


# ---- int64 ---------------------------------------------------------------------------------------
BIG = torch.tensor([2**53 + 1, -(2**62) - 3, 2**31 + 5, -7, 2**63 - 1, 0, 12, 9])


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x + 1,
        lambda x: x - x.flip(0),
        lambda x: x * 3,
        lambda x: x.abs(),
        lambda x: x.sum(),
        lambda x: x.max(),
        lambda x: x.argmax(),
        lambda x: x.sort()[0],
        lambda x: x == x + 1,
        lambda x: x > x.flip(0),
        lambda x: torch.maximum(x, x.flip(0)),
        lambda x: torch.where(x > 0, x, -x),
        lambda x: x.cumsum(0),
        lambda x: x // 7,
        lambda x: x % 1000,
        lambda x: x & 0xFFFF_FFFF_FFFF,
        lambda x: x >> 3,
        lambda x: x[torch.tensor([3, 0, 1], device=x.device)],
        lambda x: x.unique(),
    ],
)
def test_int64_is_exact(function: Callable[[Any], Any]) -> None:
    actual = function(BIG.to("neuron"))
    assert torch.equal(actual.cpu(), function(BIG))


# ---- 16-bit floats -------------------------------------------------------------------------------
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize(
    "function",
    [
        lambda x: x.sum(),
        lambda x: x.mean(0),
        lambda x: x.t() @ x,
        lambda x: F.linear(x.t(), x.t()),
        lambda x: x.softmax(0),
        lambda x: F.layer_norm(x.t(), (4096,)),
        lambda x: x.square().sum(0),
        lambda x: F.cross_entropy(x, torch.zeros(4096, dtype=torch.int64, device=x.device)),
    ],
)
def test_short_floats_accumulate_in_float32(
    function: Callable[[Any], Any], dtype: torch.dtype
) -> None:
    """The result is the float32 result rounded once: adding 4096 numbers in 16 bits would stall."""
    generator = torch.Generator().manual_seed(1)
    x = (torch.rand(4096, 2, generator=generator) * 0.25 + 0.5).to(dtype)
    actual = function(x.to("neuron"))
    expected = function(x.float())
    limit = 2 * torch.finfo(dtype).eps
    torch.testing.assert_close(actual.cpu().float(), expected, rtol=limit, atol=limit)


def test_a_compiled_graph_has_the_same_rules(caught: list[Any]) -> None:
    x = wide(4, 4)

    @torch.compile(backend="neuron", fullgraph=True)
    def function(x: Any) -> Any:
        return (x * THIRD).sum(1)

    actual = function(x.to("neuron"))
    assert actual.dtype == torch.float64
    torch.testing.assert_close(actual.cpu(), (x * THIRD).sum(1), rtol=1e-6, atol=0)
    assert [w for w in caught if w.category is PrecisionWarning]
    count = torch.compile(lambda n: n * 3 + 1, backend="neuron", fullgraph=True)
    assert torch.equal(count(BIG.to("neuron")).cpu(), BIG * 3 + 1)
