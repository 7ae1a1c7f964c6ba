"""torch.compile(backend="neuron"): forward, backward and errors, against PyTorch on the CPU."""

from __future__ import annotations

import copy
import itertools
import re
from collections.abc import Callable

import pytest

torch = pytest.importorskip("torch")


import trnx_torch  # noqa: E402
from trnx.testing import count_compiles  # noqa: E402

F = torch.nn.functional


def mlp(activation: torch.nn.Module, *sizes: int) -> torch.nn.Module:
    layers: list[torch.nn.Module] = []
    for inputs, outputs in itertools.pairwise(sizes):
        layers += [torch.nn.Linear(inputs, outputs), copy.deepcopy(activation)]
    return torch.nn.Sequential(*layers[:-1])


def run_both(
    model: torch.nn.Module, loss: Callable, *inputs: torch.Tensor
) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """Loss, output and parameter gradients on CPU eager and on neuron compiled."""
    results = []
    for device in ("cpu", "neuron"):
        own = copy.deepcopy(model).to(device)
        run = own if device == "cpu" else torch.compile(own, backend="neuron", fullgraph=True)
        moved = [t.to(device) for t in inputs]
        out = run(*moved)
        value = loss(out)
        value.backward()
        results.append(
            [t.detach().cpu() for t in (value, out, *(p.grad for p in own.parameters()))]
        )
    return results[0], results[1]


ACTIVATIONS = [
    torch.nn.Tanh(),
    torch.nn.ReLU(),
    torch.nn.GELU(),
    torch.nn.GELU(approximate="tanh"),
    torch.nn.SiLU(),
    torch.nn.Sigmoid(),
]


@pytest.mark.parametrize("activation", ACTIVATIONS, ids=lambda a: repr(a))
def test_mlp_matches_cpu(activation: torch.nn.Module) -> None:
    torch.manual_seed(0)
    expected, actual = run_both(
        mlp(activation, 12, 33, 7), lambda y: (y * y).mean(), torch.randn(19, 12)
    )
    for e, a in zip(expected, actual, strict=True):
        torch.testing.assert_close(a, e, rtol=2e-5, atol=2e-6)


class Classifier(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = mlp(torch.nn.Tanh(), 64, 128, 64, 10)

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(self.body(x), labels)


@pytest.mark.parametrize("ignored", [0, 3])
def test_cross_entropy_in_the_graph(ignored: int) -> None:
    torch.manual_seed(0)
    labels = torch.randint(0, 10, (64,))
    labels[:ignored] = -100
    expected, actual = run_both(Classifier(), lambda y: y, torch.randn(64, 64), labels)
    for e, a in zip(expected, actual, strict=True):
        torch.testing.assert_close(a, e, rtol=2e-5, atol=2e-6)


def test_softmax_attention_weights() -> None:
    def weights(q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
        return torch.softmax(q @ k.transpose(-1, -2) / 8.0, -1)

    q, k = torch.randn(3, 20, 64), torch.randn(3, 20, 64)
    run = torch.compile(weights, backend="neuron", fullgraph=True)
    got = run(q.to("neuron"), k.to("neuron"))
    assert got.device.type == "neuron"
    torch.testing.assert_close(got.cpu(), weights(q, k), rtol=2e-5, atol=2e-6)


def test_outputs_keep_strides_arguments_and_constants() -> None:
    def several(x: torch.Tensor, y: torch.Tensor) -> tuple:
        return (x + y).t(), x, (x * 2).reshape(-1)

    x, y = torch.randn(3, 5), torch.randn(3, 5)
    run = torch.compile(several, backend="neuron", fullgraph=True)
    on_device = x.to("neuron")
    a, b, c = run(on_device, y.to("neuron"))
    assert a.stride() == (x + y).t().stride()
    assert b.data_ptr() == on_device.data_ptr()
    torch.testing.assert_close(a.cpu(), (x + y).t())
    torch.testing.assert_close(c.cpu(), (x * 2).reshape(-1))


def test_no_fallback_and_no_second_compile() -> None:
    model = mlp(torch.nn.Tanh(), 8, 16, 4).to("neuron")
    run = torch.compile(model, backend="neuron", fullgraph=True)
    x = torch.randn(5, 8, device="neuron")
    run(x).sum().backward()
    trnx_torch.clear_op_tracking()
    with count_compiles() as compiles:
        run(x)
    assert compiles() == 0
    assert trnx_torch.get_fallback_ops() == {}


def test_non_contiguous_inputs() -> None:
    run = torch.compile(lambda x: x * 2 + 1, backend="neuron", fullgraph=True)
    x = torch.randn(6, 10)
    view = x.to("neuron").t()[2:7, ::2]
    torch.testing.assert_close(run(view).cpu(), x.t()[2:7, ::2] * 2 + 1)


def test_cpu_model_is_rejected_or_runs_on_cpu_tensors() -> None:
    """Graphs on CPU tensors run too: inputs are host memory either way."""
    run = torch.compile(lambda x: torch.tanh(x) + 1, backend="neuron", fullgraph=True)
    x = torch.randn(4)
    got = run(x)
    assert got.device.type == "cpu"
    torch.testing.assert_close(got, torch.tanh(x) + 1, rtol=2e-6, atol=1e-6)


def test_unsupported_op_names_op_dtype_and_user_line() -> None:
    def unsupported(x: torch.Tensor) -> torch.Tensor:
        return torch.linalg.svdvals(x)

    line = unsupported.__code__.co_firstlineno + 1
    run = torch.compile(unsupported, backend="neuron", fullgraph=True)
    with pytest.raises(Exception, match="svd") as caught:
        run(torch.randn(3, 3).to("neuron"))
    text = str(caught.value)
    assert re.search(r"aten\._linalg_svd\.default\(float32\[3, 3\]\) has no rule", text)
    assert f"test_compile.py:{line}" in text
    assert "torch.compiler.disable" in text
