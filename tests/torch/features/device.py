"""Showing and storing, random numbers, devices, streams, events and memory."""

from __future__ import annotations

import copy
import gc
import io
import pickle
import tempfile
from pathlib import Path

import torch
from torch import nn

from tests.torch.features.harness import DEVICE, check, raises, same


# ---- showing and storing -------------------------------------------------------------------------
@check
def printing() -> None:
    import trnx_torch

    x = torch.tensor([[1.0, 2.5], [3.0, float("nan")]], device=DEVICE)
    trnx_torch.clear_op_tracking()
    assert repr(x) == "tensor([[1.0000, 2.5000],\n        [3.0000,    nan]], device='neuron:0')"
    assert "2.5" in f"{x}" and f"{x[0, 1]:.1f}" == "2.5"
    assert "requires_grad=True" in repr(nn.Parameter(x))
    assert "int64" not in repr(torch.arange(3, device=DEVICE))
    repr(torch.arange(2000.0, device=DEVICE))
    assert "aten::masked_select" not in trnx_torch.get_fallback_ops()
    assert "aten::abs" not in trnx_torch.get_fallback_ops()


@check
def save_and_load() -> None:
    x = torch.randn(3, 4, device=DEVICE)
    state = {"a": x, "view": x[1], "n": 3}
    buffer = io.BytesIO()
    torch.save(state, buffer)
    for target in (None, "cpu", DEVICE, torch.device("neuron:0"), {"neuron:0": "cpu"}):
        buffer.seek(0)
        loaded = torch.load(buffer, map_location=target)
        wanted = "cpu" if target in ("cpu", {"neuron:0": "cpu"}) else DEVICE
        assert loaded["a"].device.type == wanted
        assert torch.equal(loaded["a"].cpu(), x.cpu())
        assert loaded["view"].untyped_storage()._cdata == loaded["a"].untyped_storage()._cdata
    buffer = io.BytesIO()
    torch.save(torch.ones(3), buffer)
    buffer.seek(0)
    assert torch.load(buffer, map_location=DEVICE).device.type == DEVICE
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "t.pt"
        torch.save(state, path)
        assert torch.load(path, mmap=True, map_location="cpu")["a"].device.type == "cpu"


@check
def module_state_round_trip() -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4)).to(DEVICE)
    buffer = io.BytesIO()
    torch.save(model.state_dict(), buffer)
    buffer.seek(0)
    other = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4))
    other.load_state_dict(torch.load(buffer, map_location="cpu"))
    same(model[0].weight, other[0].weight)


@check
def deepcopy_and_pickle() -> None:
    x = torch.randn(4, device=DEVICE, requires_grad=True)
    y = copy.deepcopy(x)
    assert y.requires_grad and y.data_ptr() != x.data_ptr()
    same(y, x.cpu())
    z = pickle.loads(pickle.dumps(x.detach()))
    same(z, x.cpu())
    model = copy.deepcopy(nn.Linear(2, 2).to(DEVICE))
    assert model.weight.device.type == DEVICE


# ---- random numbers ------------------------------------------------------------------------------
@check
def generator() -> None:
    g = torch.Generator(DEVICE)
    assert g.device == torch.device("neuron:0")
    g.manual_seed(7)
    assert g.initial_seed() == 7
    state = g.get_state()
    assert state.shape == (16,) and state.dtype == torch.uint8 and state.device.type == "cpu"
    a = torch.rand(5, device=DEVICE, generator=g)
    b = torch.rand(5, device=DEVICE, generator=g)
    assert not torch.equal(a.cpu(), b.cpu())
    g.set_state(state)
    assert torch.equal(torch.rand(5, device=DEVICE, generator=g).cpu(), a.cpu())
    copy_of_g = g.clone_state()
    assert torch.equal(
        torch.rand(5, device=DEVICE, generator=g).cpu(),
        torch.rand(5, device=DEVICE, generator=copy_of_g).cpu(),
    )
    raises(ValueError, "16", lambda: g.set_state(torch.zeros(3, dtype=torch.uint8)))
    raises(
        RuntimeError,
        "generator",
        lambda: torch.rand(5, device=DEVICE, generator=torch.Generator("cpu")),
    )


@check
def manual_seed_and_fork() -> None:
    torch.manual_seed(3)
    a = torch.randn(4, device=DEVICE).cpu()
    torch.manual_seed(3)
    with torch.random.fork_rng(devices=[0], device_type=DEVICE):
        torch.randn(9, device=DEVICE)
    assert torch.equal(torch.randn(4, device=DEVICE).cpu(), a)
    torch.neuron.manual_seed_all(5)
    assert torch.neuron.initial_seed() == 5
    state = torch.neuron.get_rng_state()
    b = torch.randn(4, device=DEVICE).cpu()
    torch.neuron.set_rng_state(state)
    assert torch.equal(torch.randn(4, device=DEVICE).cpu(), b)
    state = torch.get_device_module(DEVICE).get_rng_state(DEVICE)
    assert state.numel() == 16


@check
def random_factories() -> None:
    torch.manual_seed(0)
    x = torch.randn(20_000, device=DEVICE)
    assert abs(x.mean().item()) < 0.05 and abs(x.std().item() - 1) < 0.05
    assert sorted(torch.randperm(50, device=DEVICE).tolist()) == list(range(50))
    n = torch.randint(0, 4, (1000,), device=DEVICE)
    assert n.min().item() == 0 and n.max().item() == 3
    p = torch.bernoulli(torch.full((10_000,), 0.25, device=DEVICE)).mean().item()
    assert abs(p - 0.25) < 0.03
    assert torch.multinomial(torch.ones(5, device=DEVICE), 3).shape == (3,)


@check
def dropout_is_reproducible() -> None:
    x = torch.ones(100, device=DEVICE)
    torch.manual_seed(1)
    a = nn.functional.dropout(x)
    torch.manual_seed(1)
    assert torch.equal(a.cpu(), nn.functional.dropout(x).cpu())
    assert 20 < (a == 0).sum().item() < 80


# ---- devices, streams, events, memory ------------------------------------------------------------
@check
def accelerator_interface() -> None:
    acc = torch.accelerator
    assert acc.current_accelerator().type == DEVICE
    assert acc.is_available() and acc.device_count() == 2
    assert acc.current_device_index() == 0
    acc.synchronize()
    acc.set_device_index(1)
    assert torch.ones(1, device=DEVICE).device.index == 1
    acc.set_device_index(0)
    with acc.device_index(1):
        assert torch.neuron.current_device() == 1
    assert acc.current_stream().device.type == DEVICE
    assert torch.float32 in acc.get_device_capability()["supported_dtypes"]
    free, total = acc.get_memory_info()
    assert 0 < free <= total


@check
def several_devices() -> None:
    x = torch.ones(3, device="neuron:1")
    assert x.device.index == 1 and (x + x).device.index == 1
    y = x.to("neuron:0")
    assert y.device.index == 0 and y.data_ptr() != x.data_ptr()
    raises(RuntimeError, "neuron:0", lambda: x + y)
    raises(RuntimeError, "does not exist", lambda: torch.ones(1, device="neuron:2"))
    with torch.neuron.device(1):
        assert torch.empty(1, device=DEVICE).device.index == 1
    with torch.neuron.device_of(x):
        assert torch.neuron.current_device() == 1
    assert torch.neuron.current_device() == 0


@check
def device_module() -> None:
    module = torch.neuron
    assert torch.get_device_module(DEVICE) is module
    assert module.is_available() and module.device_count() == 2 and module.is_initialized()
    assert module.get_device_properties(0).total_memory > 2**20
    assert "Neuron" in module.get_device_name()
    assert torch.bfloat16 in module.get_amp_supported_dtype() and module.is_bf16_supported()
    module.synchronize()
    assert len(module.default_generators) == 2
    raises(ValueError, "neuron device", lambda: module.set_device("cuda:0"))
    raises(ValueError, "does not exist", lambda: module.get_device_name(9))


@check
def streams() -> None:
    default = torch.neuron.default_stream()
    assert torch.neuron.current_stream() == default
    side = torch.neuron.Stream()
    assert side != default and side.device.type == DEVICE
    with torch.neuron.stream(side):
        assert torch.neuron.current_stream() == side
        x = torch.ones(3, device=DEVICE) + 1
    assert torch.neuron.current_stream() == default
    with side:
        assert torch.accelerator.current_stream() == side
    side.synchronize()
    assert side.query()
    default.wait_stream(side)
    x.record_stream(side)
    assert isinstance(torch.Stream(device=DEVICE), torch.Stream)


@check
def events_keep_time() -> None:
    import time

    start, end = torch.neuron.Event(enable_timing=True), torch.neuron.Event(enable_timing=True)
    raises(ValueError, "must be recorded", lambda: start.elapsed_time(end))
    start.record()
    time.sleep(0.03)
    end.record()
    end.synchronize()
    assert end.query() and 25 < start.elapsed_time(end) < 5000
    plain = torch.Event(device=DEVICE)
    plain.record()
    plain.wait()
    raises(ValueError, "enable_timing", lambda: plain.elapsed_time(plain))


@check
def memory_statistics() -> None:
    m = torch.neuron
    gc.collect()
    m.empty_cache()
    before = m.memory_allocated()
    x = torch.empty(1 << 20, dtype=torch.uint8, device=DEVICE)
    assert m.memory_allocated() - before >= 1 << 20
    assert torch.accelerator.memory_allocated() == m.memory_allocated()
    m.reset_peak_memory_stats()
    y = torch.empty(1 << 21, dtype=torch.uint8, device=DEVICE)
    peak = m.max_memory_allocated()
    assert peak - before >= 3 << 20
    del x, y
    assert m.memory_allocated() == before and m.max_memory_allocated() == peak
    assert m.memory_reserved() >= 3 << 20
    m.empty_cache()
    assert m.memory_reserved() < 3 << 20
    assert m.memory_stats()["allocated_bytes.all.current"] == before
    assert m.memory_allocated(1) == 0
    assert "allocated bytes" in m.memory_summary()


@check
def fallback_results_are_counted_as_memory() -> None:
    x = torch.ones(1 << 18, device=DEVICE)
    before = torch.neuron.memory_allocated()
    y = torch.cumsum(x, 0)
    assert torch.neuron.memory_allocated() - before >= 1 << 20
    del y
    assert torch.neuron.memory_allocated() == before


@check
def memory_is_flat_over_steps() -> None:
    model = nn.Linear(32, 32).to(DEVICE)
    optimizer = torch.optim.AdamW(model.parameters())
    x = torch.randn(8, 32, device=DEVICE)

    def step() -> int:
        model(x).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        return torch.neuron.memory_allocated()

    for _ in range(3):
        level = step()
    assert all(step() == level for _ in range(20))


@check
def out_of_memory() -> None:
    raises(
        torch.OutOfMemoryError,
        "Free tensors",
        lambda: torch.empty(1 << 50, dtype=torch.uint8, device=DEVICE),
    )
    torch.ones(2, device=DEVICE)


@check
def pinned_memory() -> None:
    x = torch.arange(8.0).pin_memory()
    assert x.is_pinned() and not torch.arange(8.0).is_pinned()
    assert x[2:].is_pinned()
    same(x.to(DEVICE, non_blocking=True), torch.arange(8.0))
    assert torch.empty(4, pin_memory=True).is_pinned()
