"""Options, graph breaks, metrics, artifacts, warm starts and operators that take graphs."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess

import pytest

torch = pytest.importorskip("torch")

import trnx_torch  # noqa: E402
from trnx_torch.compile.errors import GraphFallbackWarning  # noqa: E402


def compiled(function: Callable, **kwargs: object) -> Callable:
    return torch.compile(function, backend="neuron", **kwargs)


def test_unknown_option_is_one_error() -> None:
    run = compiled(lambda x: x + 1, options={"bucket": 8})
    with pytest.raises(Exception, match=r"has no option 'bucket'. Use 'artifacts', 'buckets'"):
        run(torch.ones(3).to("neuron"))


def test_wrong_value_of_an_option() -> None:
    run = compiled(lambda x: x + 1, options={"fallback_execution": "yes"})
    with pytest.raises(Exception, match="fallback_execution='yes' is no bool"):
        run(torch.ones(3).to("neuron"))


def test_mode_warns() -> None:
    run = compiled(lambda x: x + 1, mode="max-autotune")
    with pytest.warns(UserWarning, match="one mode; mode='max-autotune' changes nothing"):
        run(torch.ones(3).to("neuron"))


def test_fallback_execution_runs_the_graph_eagerly() -> None:
    def values(x: torch.Tensor) -> torch.Tensor:
        return torch.linalg.svdvals(x) * 2

    x = torch.randn(3, 3)
    run = compiled(values, fullgraph=True, options={"fallback_execution": True})
    trnx_torch.reset_dynamo_metrics()
    with pytest.warns(GraphFallbackWarning, match=r"_linalg_svd.*runs eagerly|runs eagerly.*svd"):
        result = run(x.to("neuron"))
    torch.testing.assert_close(result.cpu(), values(x), rtol=1e-4, atol=1e-5)
    assert [record.origin for record in trnx_torch.get_dynamo_metrics()] == ["eager"]


def test_graph_break_compiles_in_pieces() -> None:
    def broken(x: torch.Tensor) -> torch.Tensor:
        y = torch.tanh(x)
        torch._dynamo.graph_break()
        return y * 2

    trnx_torch.reset_dynamo_metrics()
    x = torch.randn(5)
    torch.testing.assert_close(compiled(broken)(x.to("neuron")).cpu(), broken(x))
    assert len(trnx_torch.get_dynamo_metrics()) == 2
    torch._dynamo.reset()
    with pytest.raises(torch._dynamo.exc.Unsupported):
        compiled(broken, fullgraph=True)(x.to("neuron"))


def test_default_backend() -> None:
    torch.compiler.set_default_backend("neuron")
    try:
        trnx_torch.reset_dynamo_metrics()
        x = torch.randn(5)
        torch.testing.assert_close(torch.compile(lambda x: x * 3)(x.to("neuron")).cpu(), x * 3)
        assert len(trnx_torch.get_dynamo_metrics()) == 1
    finally:
        torch.compiler.set_default_backend(None)


def test_metrics_of_forward_and_backward() -> None:
    w = torch.randn(3, 3).to("neuron").requires_grad_()
    trnx_torch.reset_dynamo_metrics()
    compiled(lambda x: torch.sin(x @ x).sum(), fullgraph=True)(w).backward()
    forward, backward = trnx_torch.get_dynamo_metrics()
    assert forward.name.endswith("_forward") and backward.name.endswith("_backward")
    assert forward.nodes >= 3 and forward.equations >= 3
    assert forward.lowering_seconds > 0 and forward.compile_seconds > 0
    assert forward.host_calls == ()


def test_artifacts(tmp_path: Path) -> None:
    compiled(lambda x: torch.relu(x) @ x, options={"artifacts": tmp_path})(
        torch.randn(4, 4).to("neuron")
    )
    (folder,) = tmp_path.iterdir()
    assert folder.name.endswith("_inference")
    assert "torch.ops.aten.mm" in (folder / "graph.py").read_text()
    assert "dot_general" in (folder / "program.txt").read_text()
    assert "nc_matmul" in (folder / "tile.txt").read_text()
    assert "@nki.jit" in (folder / "nki.py").read_text()
    assert (folder / "cost.txt").read_text().strip()
    assert "<html" in (folder / "timeline.html").read_text()


WARM = """
import torch, trnx_torch
x = torch.linspace(-1, 1, 12).reshape(3, 4).to("neuron")
run = torch.compile(lambda x: torch.softmax(x * 2, -1), backend="neuron", fullgraph=True)
print(run(x).sum().item(), trnx_torch.get_dynamo_metrics()[0].origin)
"""


def test_second_process_starts_warm(
    run_python: Callable[..., CompletedProcess[str]], tmp_path: Path
) -> None:
    env = {"TRNX_CACHE_DIR": str(tmp_path)}
    first, second = (run_python(WARM, env=env) for _ in range(2))
    assert first.stdout.split()[-1:] == ["compiled"], first.stderr
    assert second.stdout.split()[-1:] == ["cache"], second.stderr
    assert first.stdout.split()[0] == second.stdout.split()[0]


def branch(x: torch.Tensor, flag: torch.Tensor) -> torch.Tensor:
    return torch.cond(flag, lambda x: torch.sin(x), lambda x: x * 3 - 1, (x,))


def test_cond() -> None:
    run = compiled(branch, fullgraph=True)
    x = torch.randn(6)
    for flag in (True, False):
        own = run(x.to("neuron"), torch.tensor(flag).to("neuron"))
        torch.testing.assert_close(own.cpu(), torch.sin(x) if flag else x * 3 - 1)


def test_while_loop() -> None:
    from torch._higher_order_ops.while_loop import while_loop

    def powers(x: torch.Tensor) -> torch.Tensor:
        count = torch.zeros((), dtype=torch.int64, device=x.device)
        return while_loop(lambda i, v: i < 5, lambda i, v: (i + 1, v * 1.5), (count, x))[1]

    x = torch.randn(4)
    torch.testing.assert_close(compiled(powers, fullgraph=True)(x.to("neuron")).cpu(), x * 1.5**5)


def test_scan() -> None:
    from torch._higher_order_ops.scan import scan

    def sums(x: torch.Tensor) -> torch.Tensor:
        def step(carry: torch.Tensor, row: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            total = carry + row
            return total, total * 2

        return scan(step, torch.zeros(3, device=x.device), x)[1]

    x = torch.randn(5, 3)
    result = compiled(sums, fullgraph=True)(x.to("neuron"))
    torch.testing.assert_close(result.cpu(), x.cumsum(0) * 2)


def test_checkpoint() -> None:
    from torch.utils.checkpoint import checkpoint

    def loss(x: torch.Tensor) -> torch.Tensor:
        layer = lambda v: torch.tanh(v @ v).exp()  # noqa: E731
        return checkpoint(layer, x, use_reentrant=False).sum()

    x = torch.randn(4, 4, requires_grad=True)
    own = x.detach().to("neuron").requires_grad_()
    loss(x).backward()
    compiled(loss, fullgraph=True)(own).backward()
    torch.testing.assert_close(own.grad.cpu(), x.grad, rtol=1e-4, atol=1e-4)


def test_no_warning_on_the_way() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        compiled(lambda x: torch.relu(x) + 1, fullgraph=True)(torch.ones(3).to("neuron"))
