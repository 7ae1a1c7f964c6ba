"""What libraries around torch ask of a device: Dynamo, profiler, checkpoints, AMP, transforms."""

from __future__ import annotations

import copy
import io
import tempfile
import threading
import warnings
from pathlib import Path
from typing import Any

import torch
from torch import nn

from tests.torch.features.harness import DEVICE, check, raises, same


# ---- Dynamo --------------------------------------------------------------------------------------
@check
def dynamo_knows_the_device() -> None:
    from torch._dynamo.device_interface import (
        get_interface_for_device,
        get_registered_device_interfaces,
    )

    interface = get_interface_for_device(DEVICE)
    assert get_interface_for_device(torch.device("neuron:1")) is interface
    assert interface in dict(get_registered_device_interfaces()).values()
    assert interface.is_available() and interface.device_count() == 2
    assert interface.current_device() == 0
    with interface.device(1):
        assert torch.neuron.current_device() == 1
        assert interface.Worker.current_device() == 1
    assert interface.current_stream() == torch.neuron.current_stream()
    assert interface.is_bf16_supported() and not interface.is_triton_capable()
    assert interface.is_dtype_supported(torch.bfloat16)
    assert interface.get_device_properties().total_memory > 0
    assert interface.Worker.get_device_properties(1).index == 1
    assert interface.memory_allocated() == torch.neuron.memory_allocated()
    interface.synchronize()
    raises(RuntimeError, "Triton", lambda: interface.raise_if_triton_unavailable())


@check
def other_backends_of_compile() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        return (x.sin() + 1).relu().sum(0)

    host = torch.linspace(-3, 3, 12).reshape(3, 4)
    for backend in ("eager", "aot_eager"):
        torch._dynamo.reset()
        same(torch.compile(f, backend=backend, fullgraph=True)(host.to(DEVICE)), f(host))
    torch._dynamo.reset()
    dynamic = torch.compile(f, backend="aot_eager", dynamic=True)
    for rows in (3, 5, 7):
        x = torch.randn(rows, 4)
        same(dynamic(x.to(DEVICE)), f(x))


@check
def inductor_refuses_in_one_sentence() -> None:
    torch._dynamo.reset()
    x = torch.ones(3, device=DEVICE)
    raises(
        Exception,
        'Use torch.compile(model, backend="neuron")',
        lambda: torch.compile(lambda x: x + 1, backend="inductor")(x),
    )


@check
def streams_and_devices_in_graphs() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        with torch.neuron.stream(torch.neuron.current_stream()):
            y = x + 1
        torch.neuron.synchronize()
        return y * torch.neuron.device_count()

    torch._dynamo.reset()
    x = torch.ones(3, device="neuron:1")
    same(torch.compile(f, backend="eager")(x), torch.full((3,), 4.0))


# ---- profiler ------------------------------------------------------------------------------------
@check
def profiler_activity() -> None:
    from torch.profiler import ProfilerActivity, profile

    assert ProfilerActivity.PrivateUse1 in torch.profiler.supported_activities()
    x = torch.ones(64, 64, device=DEVICE)
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.PrivateUse1]) as record:
        (x @ x).cumsum(0)
    events = {event.key: event for event in record.key_averages()}
    assert events["aten::mm"].count == 1
    assert record.key_averages().table(sort_by="cpu_time_total")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        record.export_chrome_trace(str(path))
        assert "aten::mm" in path.read_text()


@check
def profiler_device_time() -> None:
    x = torch.ones(256, 256, device=DEVICE)
    x @ x
    with torch.autograd.profiler.profile(use_device=DEVICE, use_kineto=False) as record:
        for _ in range(3):
            x @ x
    total = {event.key: event for event in record.key_averages()}["aten::mm"]
    assert total.count == 3
    assert 0 < total.device_time_total <= total.cpu_time_total * 3
    assert "NEURON" in record.key_averages().table().upper()


# ---- storing and sending -------------------------------------------------------------------------
@check
def distributed_checkpoint_of_one_process() -> None:
    import torch.distributed.checkpoint as dcp

    model = nn.Linear(3, 2).to(DEVICE)
    expected = model.weight.detach().cpu().clone()
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        dcp.save({"model": model.state_dict()}, checkpoint_id=folder)
        nn.init.zeros_(model.weight)
        state = {"model": model.state_dict()}
        dcp.load(state, checkpoint_id=folder)
    same(state["model"]["weight"], expected)


@check
def optimizer_and_scaler_state_round_trip() -> None:
    model = nn.Linear(3, 2).to(DEVICE)
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.ones(1, 3, device=DEVICE)).sum().backward()
    optimizer.step()
    buffer = io.BytesIO()
    torch.save(optimizer.state_dict(), buffer)
    buffer.seek(0)
    loaded = torch.load(buffer, map_location=DEVICE)
    assert loaded["state"][0]["exp_avg"].device.type == DEVICE
    buffer.seek(0)
    assert torch.load(buffer, map_location="cpu")["state"][0]["exp_avg"].device.type == "cpu"
    buffer.seek(0)
    moved = torch.load(buffer, map_location={"neuron:0": "neuron:1"})
    assert moved["state"][0]["exp_avg"].device.index == 1


@check
def storages_know_the_device() -> None:
    x = torch.arange(4.0, device=DEVICE)
    typed = x.storage() if hasattr(x, "storage") else None
    storage = x.untyped_storage()
    assert storage.is_neuron and storage.device == torch.device("neuron:0")
    assert storage.cpu().device.type == "cpu"
    host = torch.arange(4.0).untyped_storage()
    assert host.neuron().device.type == DEVICE
    assert torch.UntypedStorage(16, device=DEVICE).copy_(storage).nbytes() == 16
    assert copy.deepcopy(storage).device == storage.device
    assert typed is None or typed.device.type == DEVICE


def _spawned(queue: Any, done: Any) -> None:
    x = queue.get()
    x.mul_(3)
    done.put(str(x.device))


@check
def spawned_processes_share_tensors() -> None:
    context = torch.multiprocessing.get_context("spawn")
    queue, done = context.SimpleQueue(), context.SimpleQueue()
    child = context.Process(target=_spawned, args=(queue, done))
    child.start()
    x = torch.ones(4, device=DEVICE)
    queue.put(x)
    assert done.get() == "neuron:0"
    child.join()
    assert child.exitcode == 0 and x.tolist() == [3.0] * 4


# ---- modules and transforms ----------------------------------------------------------------------
@check
def module_methods() -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4))
    assert model.neuron() is model
    assert {p.device.type for p in model.parameters()} == {DEVICE}
    assert model.to("neuron:1", torch.bfloat16)[0].weight.dtype == torch.bfloat16
    assert model[0].weight.device.index == 1
    assert model.cpu()[1].running_mean.device.type == "cpu"
    packed = nn.utils.rnn.pack_sequence([torch.ones(3, 2), torch.ones(1, 2)])
    assert packed.to(DEVICE).data.device.type == DEVICE


@check
def synchronised_batch_norm() -> None:
    model = nn.SyncBatchNorm(3).to(DEVICE)
    host = nn.BatchNorm1d(3)
    x = torch.randn(5, 3)
    model.eval()
    host.eval()
    same(model(x.to(DEVICE)), host(x))


@check
def double_backward_and_jacobians() -> None:
    from torch.func import functional_call, hessian, jacrev, jvp, vmap

    x = torch.linspace(-1, 1, 4)
    f = lambda v: (v.sin() * v).sum()  # noqa: E731
    same(hessian(f)(x.to(DEVICE)), hessian(f)(x))
    same(jacrev(torch.tanh)(x.to(DEVICE)), jacrev(torch.tanh)(x))
    t = torch.ones(4)
    same(jvp(f, (x.to(DEVICE),), (t.to(DEVICE),))[1], jvp(f, (x,), (t,))[1])
    model = nn.Linear(4, 2)
    state = {k: v.detach() for k, v in model.state_dict().items()}
    moved = {k: v.to(DEVICE) for k, v in state.items()}
    batch = torch.randn(3, 4)
    call = lambda s, v: functional_call(model, s, (v,))  # noqa: E731
    same(vmap(call, (None, 0))(moved, batch.to(DEVICE)), vmap(call, (None, 0))(state, batch))


@check
def parametrisations_and_clipping() -> None:
    model = nn.utils.parametrizations.weight_norm(nn.Linear(4, 3)).to(DEVICE)
    model(torch.ones(2, 4, device=DEVICE)).sum().backward()
    norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    assert norm.device.type == DEVICE
    nn.utils.clip_grad_value_(model.parameters(), 0.1)
    vector = nn.utils.parameters_to_vector(model.parameters())
    assert vector.device.type == DEVICE


@check
def flop_counter_and_hooks() -> None:
    from torch.utils.flop_counter import FlopCounterMode

    with FlopCounterMode(display=False) as counter:
        nn.Linear(4, 8).to(DEVICE)(torch.ones(2, 4, device=DEVICE))
    assert counter.get_total_flops() == 2 * 2 * 4 * 8


@check
def anomaly_mode_names_the_forward_line() -> None:
    x = torch.zeros(1, device=DEVICE, requires_grad=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with torch.autograd.detect_anomaly():
            raises(RuntimeError, "returned nan values", lambda: (x.sqrt() * 0).sum().backward())


@check
def saved_tensors_on_cpu() -> None:
    x = torch.linspace(0, 1, 4, device=DEVICE).requires_grad_()
    with torch.autograd.graph.save_on_cpu():
        y = (x.exp() * x).sum()
    y.backward()
    host = torch.linspace(0, 1, 4).requires_grad_()
    (host.exp() * host).sum().backward()
    same(x.grad, host.grad)


@check
def backward_in_threads() -> None:
    results: list[torch.Tensor] = []

    def work() -> None:
        x = torch.full((3,), 2.0, device=DEVICE, requires_grad=True)
        (x * x).sum().backward()
        results.append(x.grad)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(results) == 4
    for grad in results:
        same(grad, torch.full((3,), 4.0))


# ---- automatic mixed precision -------------------------------------------------------------------
@check
def autocast_lists_are_cudas() -> None:
    half, full = torch.bfloat16, torch.float32
    a, b = torch.ones(4, 4, device=DEVICE), torch.ones(4, 4, device=DEVICE, dtype=half)
    image = torch.ones(1, 2, 4, 4, device=DEVICE)
    kernel = torch.ones(2, 2, 3, 3, device=DEVICE)
    lower = {
        "matmul": lambda: a @ a,
        "mm": lambda: torch.mm(a, a),
        "bmm": lambda: torch.bmm(a[None], a[None]),
        "addmm": lambda: torch.addmm(a, a, a),
        "baddbmm": lambda: torch.baddbmm(a[None], a[None], a[None]),
        "mv": lambda: torch.mv(a, a[0]),
        "linear": lambda: nn.functional.linear(a, a),
        "conv2d": lambda: nn.functional.conv2d(image, kernel),
        "conv_transpose2d": lambda: nn.functional.conv_transpose2d(image, kernel),
        "prelu": lambda: nn.functional.prelu(a, a[0]),
        "einsum": lambda: torch.einsum("ij,jk->ik", a, a),
        "sdpa": lambda: nn.functional.scaled_dot_product_attention(a[None], a[None], a[None]),
    }
    wide = {
        "exp": lambda: b.exp(),
        "log": lambda: b.log(),
        "log1p": lambda: b.log1p(),
        "pow": lambda: b.pow(2),
        "reciprocal": lambda: b.reciprocal(),
        "rsqrt": lambda: b.rsqrt(),
        "softmax": lambda: b.softmax(0),
        "log_softmax": lambda: b.log_softmax(0),
        "sum": lambda: b.sum(),
        "prod": lambda: b.prod(),
        "cumsum": lambda: b.cumsum(0),
        "norm": lambda: b.norm(),
        "layer_norm": lambda: nn.functional.layer_norm(b, (4,)),
        "group_norm": lambda: nn.functional.group_norm(image.to(half), 1),
        "mse_loss": lambda: nn.functional.mse_loss(b, b),
        "smooth_l1_loss": lambda: nn.functional.smooth_l1_loss(b, b),
        "cosine_similarity": lambda: torch.cosine_similarity(b, b),
        "softplus": lambda: nn.functional.softplus(b),
        "erfinv": lambda: (b * 0.5).erfinv(),
        "cdist": lambda: torch.cdist(b, b),
        "nll_loss": lambda: nn.functional.nll_loss(
            b.log_softmax(1), torch.zeros(4, dtype=torch.int64, device=DEVICE)
        ),
    }
    promoted = {
        "addcmul": lambda: torch.addcmul(a, b, b),
        "addcdiv": lambda: torch.addcdiv(a, b, b),
        "atan2": lambda: torch.atan2(a, b),
        "cat": lambda: torch.cat([a, b]),
        "stack": lambda: torch.stack([a, b]),
        "dot": lambda: torch.dot(a[0], b[0]),
        "tensordot": lambda: torch.tensordot(a, b, 1),
    }
    with torch.autocast(DEVICE, dtype=half):
        for names, dtype in ((lower, half), (wide, full), (promoted, full)):
            for name, run in names.items():
                assert run().dtype == dtype, (name, run().dtype)
        assert (b + b).dtype == half and (a + b).dtype == full
    assert torch.get_autocast_dtype(DEVICE) == torch.bfloat16
    assert not torch.is_autocast_enabled(DEVICE)


@check
def autocast_trains_and_caches_weights() -> None:
    torch.manual_seed(0)
    host = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
    model = copy.deepcopy(host).to(DEVICE)
    x = torch.randn(5, 8)
    for net, device in ((host, "cpu"), (model, DEVICE)):
        with torch.autocast(device, dtype=torch.bfloat16):
            loss = net(x.to(device)).float().square().mean()
        loss.backward()
    for p, q in zip(host.parameters(), model.parameters(), strict=True):
        assert q.grad.dtype == torch.float32
        torch.testing.assert_close(q.grad.cpu(), p.grad, rtol=5e-2, atol=5e-3)


# ---- random numbers ------------------------------------------------------------------------------
@check
def generators_move_on_and_fork() -> None:
    torch.manual_seed(11)
    first = torch.rand(3, device=DEVICE).cpu()
    assert not torch.equal(torch.rand(3, device=DEVICE).cpu(), first)
    with torch.random.fork_rng(device_type=DEVICE):
        torch.manual_seed(11)
        assert torch.equal(torch.rand(3, device=DEVICE).cpu(), first)
    second_device = torch.neuron.get_rng_state(1)
    torch.rand(3, device="neuron:0")
    assert torch.equal(torch.neuron.get_rng_state(1), second_device)
    states = torch.neuron.get_rng_state_all()
    torch.neuron.set_rng_state_all(states)
    assert len(states) == 2 and states[0].numel() == 16
    seed = int.from_bytes(bytes(states[0][:8].tolist()), "little")
    assert seed == torch.neuron.initial_seed() == 11
    loader = torch.utils.data.DataLoader(
        torch.arange(6), shuffle=True, generator=torch.Generator().manual_seed(0)
    )
    assert sorted(int(batch) for batch in loader) == list(range(6))


# ---- memory --------------------------------------------------------------------------------------
@check
def accelerator_memory_interface() -> None:
    acc = torch.accelerator
    x = torch.empty(1 << 20, dtype=torch.uint8, device=DEVICE)
    assert acc.memory_allocated() == torch.neuron.memory_allocated() >= 1 << 20
    assert acc.max_memory_allocated() >= acc.memory_allocated()
    assert acc.memory_reserved() >= acc.memory_allocated()
    assert acc.memory_stats()["allocated_bytes.all.current"] == acc.memory_allocated()
    del x
    acc.empty_cache()
    acc.reset_peak_memory_stats()
    assert acc.max_memory_allocated() == acc.memory_allocated()


@check
def deterministic_mode() -> None:
    torch.use_deterministic_algorithms(True)
    try:
        x = torch.zeros(4, device=DEVICE)
        x.index_add_(0, torch.tensor([0, 0], device=DEVICE), torch.ones(2, device=DEVICE))
        assert x.tolist() == [2.0, 0.0, 0.0, 0.0]
    finally:
        torch.use_deterministic_algorithms(False)
