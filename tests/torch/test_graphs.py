"""Looking inside what torch.compile(backend="neuron") compiled."""

from __future__ import annotations

import gc

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import trnx_torch  # noqa: E402


def net(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return torch.tanh(x @ w)


def test_graphs_of_live_functions() -> None:
    gc.collect()  # graphs of tests before this one
    before = len(trnx_torch.get_compiled_graphs())
    compiled = torch.compile(lambda x, w: net(x, w), backend="neuron")
    x = torch.randn(8, 4, device="neuron")
    w = torch.randn(4, 3, device="neuron", requires_grad=True)
    y = compiled(x, w)
    y.sum().backward()
    forward, backward = trnx_torch.get_compiled_graphs()[before:]
    assert forward.program.name.endswith("_forward")
    assert backward.program.name.endswith("_backward")
    assert "test_graphs.py" in forward._repr_html_() and "return torch.tanh(x @ w)" in (
        forward._repr_html_()
    )
    assert forward.compile().compiled.tile_program == forward.tile_program
    assert forward.cost().flops == 2 * 8 * 4 * 3
    shapes = [aval.shape for aval in forward.program.in_avals]
    given = {(8, 4): x, (4, 3): w}
    arrays = [given[shape].detach().cpu().numpy() for shape in shapes]
    run = forward.simulate(*arrays)
    assert not run.findings
    np.testing.assert_allclose(run.outputs[0], y.detach().cpu().numpy(), rtol=1e-5, atol=1e-6)

    del compiled, y, forward, backward, run
    torch._dynamo.reset()
    gc.collect()
    assert len(trnx_torch.get_compiled_graphs()) <= before


def test_values_returned_more_than_once_and_inputs_handed_on() -> None:
    def many(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = torch.tanh(x)
        return y, y.T, y.detach(), x.detach(), x * 1, y

    x = torch.arange(12.0).reshape(3, 4) / 12
    expected = many(x)
    got = torch.compile(many, backend="neuron", fullgraph=True)(x.to("neuron"))
    for own, wanted in zip(got, expected, strict=True):
        assert own.shape == wanted.shape and own.stride() == wanted.stride()
        torch.testing.assert_close(own.cpu(), wanted)
    given = x.to("neuron").requires_grad_()
    y, _, _, _, z, _ = torch.compile(many, backend="neuron", fullgraph=True)(given)
    (y * z).sum().backward()
    cpu = x.clone().requires_grad_()
    (torch.tanh(cpu) * cpu).sum().backward()
    torch.testing.assert_close(given.grad.cpu(), cpu.grad)
