"""Feature checks of device `neuron`: each function is one promise to a user of PyTorch.

Run as a program it executes the checks named on the command line (all if none) and prints one line
per check, so that a crash takes down only the process it happens in. `test_features.py` drives it.
"""

from __future__ import annotations

import contextlib
import copy
import gc
import io
import pickle
import re
import sys
import tempfile
import traceback
import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

CHECKS: dict[str, Callable[[], None]] = {}
DEVICE = "neuron"


def check(function: Callable[[], None]) -> Callable[[], None]:
    CHECKS[function.__name__] = function
    return function


def same(actual: torch.Tensor, expected: torch.Tensor) -> None:
    assert actual.device.type == DEVICE, actual.device
    torch.testing.assert_close(actual.detach().cpu(), expected.detach(), rtol=1e-5, atol=1e-6)


def raises(kind: type[Exception], text: str, function: Callable[[], object]) -> None:
    with pytest.raises(kind, match=re.escape(text)):
        function()


# ---- factories -----------------------------------------------------------------------------------
@check
def factories() -> None:
    for make in (
        lambda d: torch.zeros(2, 3, device=d),
        lambda d: torch.ones(2, 3, dtype=torch.int32, device=d),
        lambda d: torch.full((2,), 2.5, device=d),
        lambda d: torch.arange(5, device=d),
        lambda d: torch.linspace(0, 1, 5, device=d),
        lambda d: torch.eye(3, device=d),
        lambda d: torch.tensor([[1, 2], [3, 4]], device=d),
        lambda d: torch.tril_indices(3, 3, device=d),
        lambda d: torch.hann_window(8, device=d),
        lambda d: torch.scalar_tensor(3, device=d),
        lambda d: torch.as_tensor([1.0, 2.0], device=d),
    ):
        same(make(DEVICE), make("cpu"))
    assert torch.empty(3, device=DEVICE).shape == (3,)
    assert torch.empty_strided((2, 3), (1, 2), device=DEVICE).stride() == (1, 2)
    assert torch.ones(1, device=0).device == torch.device("neuron", 0)


@check
def like_factories() -> None:
    x = torch.ones(2, 3, device=DEVICE)
    for y in (torch.zeros_like(x), torch.empty_like(x), x.new_zeros(2), x.new_tensor([1.0])):
        assert y.device == x.device
    assert torch.zeros_like(x, device="cpu").device.type == "cpu"


@check
def every_dtype_fills_and_copies() -> None:
    kinds = (
        "bool uint8 int8 int16 int32 int64 uint16 uint32 uint64 float16 bfloat16 float32 float64"
    )
    kinds += " complex32 complex64 complex128 float8_e4m3fn float8_e5m2"
    for kind in kinds.split():
        dtype = getattr(torch, kind)
        x = torch.full((3,), 1, dtype=dtype, device=DEVICE)
        host = x.cpu()
        assert host.dtype == dtype
        assert x.untyped_storage().nbytes() == 3 * dtype.itemsize
        wide = torch.complex128 if dtype.is_complex else torch.float64
        assert torch.equal(host.to(wide), torch.ones(3, dtype=wide)), kind


@check
def fill_of_views() -> None:
    x, y = torch.zeros(4, 5, device=DEVICE), torch.zeros(4, 5)
    for t in (x, y):
        t[1:3, ::2].fill_(7)
        t.t()[4].zero_()
        t[0, 0] = 3
    same(x, y)


@check
def default_device() -> None:
    with torch.device(DEVICE):
        assert torch.ones(2).device.type == DEVICE
        assert nn.Linear(2, 2).weight.device.type == DEVICE
    torch.set_default_device(DEVICE)
    try:
        assert torch.zeros(1).device.type == DEVICE
    finally:
        torch.set_default_device(None)


@check
def pinned_and_sparse_factories_refuse() -> None:
    raises(
        RuntimeError,
        "Only cpu tensors can be pinned",
        lambda: torch.empty(2, device=DEVICE, pin_memory=True),
    )
    raises(
        NotImplementedError,
        "strided tensors only",
        lambda: torch.ones(2, 2, device=DEVICE).to_sparse(),
    )


# ---- moving --------------------------------------------------------------------------------------
@check
def moves() -> None:
    host = torch.arange(6.0).reshape(2, 3)
    x = host.to(DEVICE)
    same(x, host)
    same(host.neuron(), host)
    assert x.is_neuron and not host.is_neuron
    assert x.to(DEVICE) is x
    assert torch.equal(x.cpu(), host) and torch.equal(x.to("cpu"), host)
    same(host.to(DEVICE, torch.float64), host.double())
    same(x.to(torch.int64), host.long())
    same(x.t().contiguous(), host.t().contiguous())
    same(host.t().to(DEVICE), host.t())
    y = torch.empty(3, 2, device=DEVICE)
    y.copy_(host.t())
    same(y, host.t())
    z = torch.empty(4, 3, device=DEVICE)
    z.copy_(torch.tensor([1.0, 2, 3]))
    same(z, torch.tensor([1.0, 2, 3]).expand(4, 3))


@check
def copies_are_copies() -> None:
    host = torch.zeros(3)
    x = host.to(DEVICE)
    host.add_(1)
    same(x, torch.zeros(3))
    back = x.cpu()
    x.fill_(5)
    assert torch.equal(back, torch.zeros(3))


@check
def conjugate_and_negative_views_copy() -> None:
    host = torch.randn(3, dtype=torch.complex64)
    x = host.to(DEVICE)
    assert torch.equal(x.conj().cpu(), host.conj())
    assert torch.equal(x.conj().imag.cpu(), host.conj().imag)
    assert torch.equal(x.conj().resolve_conj().cpu(), host.conj().resolve_conj())
    assert torch.equal(torch.view_as_real(x).cpu(), torch.view_as_real(host))


@check
def zero_copy_aliases() -> None:
    x = torch.zeros(2, 3, device=DEVICE)
    host = torch.neuron.as_cpu(x)
    assert host.data_ptr() == x.data_ptr() and host.device.type == "cpu"
    host[0, 1] = 4
    assert x[0, 1].item() == 4
    again = torch.neuron.as_neuron(host)
    assert again.untyped_storage()._cdata == x.untyped_storage()._cdata
    array = np.arange(4.0)
    y = torch.neuron.as_neuron(torch.from_numpy(array))
    array[0] = 9
    assert y[0].item() == 9
    del x, host
    gc.collect()
    assert again[0, 1].item() == 4


@check
def aliases_pin_the_storage() -> None:
    x = torch.zeros(3, device=DEVICE)
    host = torch.neuron.as_cpu(x)
    raises(RuntimeError, "not resizable", lambda: x.resize_(1000))
    assert host.tolist() == [0.0, 0.0, 0.0]
    del host
    x.resize_(1000)
    array = np.from_dlpack(x)
    raises(RuntimeError, "not resizable", lambda: x.untyped_storage().resize_(8))
    del array
    x.untyped_storage().resize_(8000)
    repr(x)
    x.untyped_storage().resize_(16)
    host = torch.zeros(3)
    y = torch.neuron.as_neuron(host)
    raises(RuntimeError, "not resizable", lambda: host.resize_(1000))
    del y
    host.resize_(1000)


# ---- views and in-place --------------------------------------------------------------------------
@check
def views_share_storage() -> None:
    x = torch.arange(12.0, device=DEVICE).reshape(3, 4)
    for view in (
        x[1],
        x.t(),
        x.view(4, 3),
        x[:, 1:3],
        x.diagonal(),
        x.unfold(1, 2, 1),
        x.expand(2, 3, 4),
        x.permute(1, 0),
        x.flatten(),
        x.unsqueeze(0),
        x.detach(),
        x.as_strided((2, 2), (1, 2)),
        x.view(torch.int32),
        x.narrow(0, 1, 1),
    ):
        assert view.untyped_storage()._cdata == x.untyped_storage()._cdata
    y = x[0:1].add_(1)
    y.add_(1)
    assert x[0].tolist() == [2.0, 3.0, 4.0, 5.0]
    x.t()[0].mul_(3)
    assert x[:, 0].tolist() == [6.0, 12.0, 24.0]


@check
def data_swaps() -> None:
    a = torch.zeros(10, device=DEVICE)
    v = a.view(2, 5)
    a.data.add_(1.0)
    assert v.sum().item() == 10
    b = torch.zeros(10, device=DEVICE)
    w = b.view(2, 5)
    b.data = b.data + 1
    assert w.sum().item() == 0
    p = nn.Parameter(torch.ones(3))
    p.data = p.data.to(DEVICE)
    assert p.device.type == DEVICE


@check
def indexing() -> None:
    host = torch.arange(24.0).reshape(4, 6)
    x = host.to(DEVICE)
    rows = torch.tensor([0, 2])
    for index in (
        (1,),
        (slice(None), 2),
        (slice(1, 3), slice(None, None, 2)),
        (rows,),
        (host > 5,),
        (None, ..., 0),
        (rows, rows),
    ):
        on_device = tuple(i.to(DEVICE) if isinstance(i, torch.Tensor) else i for i in index)
        same(x[on_device], host[index])
    same(x[rows], host[rows])  # cpu indices are allowed, as on cuda
    for t in (x, host):
        t[1, 2] = -1
        t[:, 0] = 7
        t[t > 20] = 0
        t[rows.to(t.device)] += 1
    same(x, host)


@check
def out_arguments_resize() -> None:
    a = torch.randn(3, 4)
    x = a.to(DEVICE)
    out = torch.empty(0, device=DEVICE)
    result = torch.exp(x, out=out)
    assert result is out
    same(out, a.exp())
    big = torch.empty(2, device=DEVICE)
    view = big.view(2)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.sort(x, out=(big, torch.empty(0, dtype=torch.int64, device=DEVICE)))
    same(big, a.sort()[0])
    assert view.untyped_storage()._cdata == big.untyped_storage()._cdata
    raises(RuntimeError, "same device", lambda: torch.exp(x, out=torch.empty(3, 4)))


@check
def resize_and_storage() -> None:
    x = torch.arange(6.0, device=DEVICE)
    x.resize_(2, 3)
    assert x.shape == (2, 3)
    x.resize_(3, 4)
    assert x.flatten()[:6].tolist() == [0, 1, 2, 3, 4, 5]
    storage = x.untyped_storage()
    assert storage.device == x.device and storage.resizable()
    storage.resize_(0)
    assert storage.nbytes() == 0
    storage.resize_(48)
    assert storage.nbytes() == 48
    y = torch.empty(0, device=DEVICE).set_(storage, 0, (2, 2), (2, 1))
    assert y.untyped_storage()._cdata == storage._cdata
    assert torch.empty(0, device=DEVICE).set_().numel() == 0
    empty = torch.UntypedStorage(5, device=DEVICE)
    assert empty.device.type == DEVICE and empty.nbytes() == 5
    shared = torch.neuron.as_neuron(torch.from_numpy(np.zeros(3)))
    raises(RuntimeError, "not resizable", lambda: shared.resize_(100))


@check
def alignment() -> None:
    for size in (1, 3, 17, 1000, 100_000):
        assert torch.empty(size, device=DEVICE).data_ptr() % 64 == 0
        assert (torch.ones(size, device=DEVICE) * 2).data_ptr() % 64 == 0


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


# ---- autograd and modules ------------------------------------------------------------------------
@check
def autograd() -> None:
    a = torch.randn(3, 4)
    grads = []
    for device in ("cpu", DEVICE):
        x = a.clone().to(device).requires_grad_()
        seen = []
        x.register_hook(seen.append)
        y = (x.exp() * x).tanh()
        (g,) = torch.autograd.grad(y.sum(), x, create_graph=True)
        g.square().sum().backward()
        assert len(seen) == 2
        grads.append(x.grad)
    same(grads[1], grads[0])


@check
def view_and_in_place_autograd() -> None:
    grads = []
    for device in ("cpu", DEVICE):
        x = torch.arange(6.0).to(device).requires_grad_()
        y = x * 2
        y[1:3].mul_(3)
        y.view(2, 3)[1].add_(y[:3])
        y.sum().backward()
        grads.append(x.grad)
    same(grads[1], grads[0])


@check
def saved_tensor_version_check() -> None:
    x = torch.ones(3, device=DEVICE, requires_grad=True)
    y = x.exp()
    y.add_(1)
    raises(RuntimeError, "modified by an inplace operation", lambda: y.sum().backward())


@check
def custom_function_and_checkpoint() -> None:
    from torch.utils.checkpoint import checkpoint

    class Double(torch.autograd.Function):
        @staticmethod
        def forward(ctx: object, x: torch.Tensor) -> torch.Tensor:
            return x * 2

        @staticmethod
        def backward(ctx: object, g: torch.Tensor) -> torch.Tensor:
            return g * 2

    model = nn.Sequential(nn.Linear(4, 4), nn.Dropout(), nn.Linear(4, 4)).to(DEVICE)
    x = torch.randn(2, 4, device=DEVICE, requires_grad=True)
    torch.manual_seed(0)
    Double.apply(model(x)).sum().backward()
    plain, x.grad = x.grad, None
    torch.manual_seed(0)
    Double.apply(checkpoint(model, x, use_reentrant=False)).sum().backward()
    same(x.grad, plain.cpu())


def model_matches_cpu(make: Callable[[], nn.Module], *inputs: torch.Tensor) -> None:
    torch.manual_seed(0)
    host = make()
    model = copy.deepcopy(host).to(DEVICE)
    expected, actual = host(*inputs), model(*(x.to(DEVICE) for x in inputs))
    if isinstance(expected, tuple):
        expected, actual = expected[0], actual[0]
    torch.testing.assert_close(actual.cpu(), expected, rtol=1e-4, atol=1e-5)
    expected.square().mean().backward()
    actual.square().mean().backward()
    for p, q in zip(host.parameters(), model.parameters(), strict=True):
        torch.testing.assert_close(q.grad.cpu(), p.grad, rtol=1e-3, atol=1e-5)


@check
def convolution_model() -> None:
    model_matches_cpu(
        lambda: nn.Sequential(
            nn.Conv2d(3, 8, 3, padding=1),
            nn.BatchNorm2d(8),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.ConvTranspose2d(8, 4, 2, stride=2, bias=False),
            nn.GroupNorm(2, 4),
            nn.Conv2d(4, 4, 3, groups=2),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
            nn.Linear(4, 2),
        ),
        torch.randn(2, 3, 8, 8),
    )
    raises(
        RuntimeError,
        "'input' on neuron:0 and 'weight' on cpu",
        lambda: nn.Conv1d(1, 1, 1)(torch.ones(1, 1, 3, device=DEVICE)),
    )


@check
def lstm_and_gru() -> None:
    for kind in (nn.LSTM, nn.GRU, nn.RNN):
        for bias in (True, False):
            model_matches_cpu(
                lambda kind=kind, bias=bias: kind(
                    5, 6, num_layers=2, bias=bias, bidirectional=True, batch_first=True
                ),
                torch.randn(3, 4, 5),
            )


@check
def rnn_cells_and_packed_sequences() -> None:
    for kind in (nn.LSTMCell, nn.GRUCell):
        model_matches_cpu(lambda kind=kind: kind(5, 6), torch.randn(3, 5))
    packed = nn.utils.rnn.pack_padded_sequence(
        torch.randn(3, 4, 5, device=DEVICE), torch.tensor([4, 3, 1]), batch_first=True
    )
    out, _ = nn.LSTM(5, 6, batch_first=True).to(DEVICE)(packed)
    padded, lengths = nn.utils.rnn.pad_packed_sequence(out, batch_first=True)
    assert padded.shape == (3, 4, 6) and lengths.tolist() == [4, 3, 1]


@check
def transformer_layer() -> None:
    model_matches_cpu(
        lambda: nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True),
        torch.randn(2, 5, 16),
    )


@check
def embedding_and_losses() -> None:
    torch.manual_seed(0)
    host = nn.Embedding(10, 4)
    model = copy.deepcopy(host).to(DEVICE)
    index, target = torch.tensor([1, 5, 1]), torch.tensor([0, 3, 2])
    for net, device in ((host, "cpu"), (model, DEVICE)):
        nn.functional.cross_entropy(net(index.to(device)), target.to(device)).backward()
    same(model.weight.grad, host.weight.grad)


@check
def optimizers_match_cpu() -> None:
    cases = [
        (torch.optim.SGD, {"lr": 0.1, "momentum": 0.9, "nesterov": True}),
        (torch.optim.AdamW, {"lr": 0.01}),
        (torch.optim.AdamW, {"lr": 0.01, "foreach": True}),
        (torch.optim.AdamW, {"lr": 0.01, "fused": True}),
        (torch.optim.Adam, {"lr": 0.01, "amsgrad": True}),
        (torch.optim.RMSprop, {"lr": 0.01}),
        (torch.optim.Adagrad, {"lr": 0.01}),
        (torch.optim.LBFGS, {"lr": 0.1}),
    ]
    for kind, options in cases:
        results = []
        for device in ("cpu", DEVICE):
            torch.manual_seed(0)
            model = nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 1)).to(device)
            with torch.no_grad():
                for i, p in enumerate(model.parameters()):
                    p.copy_(torch.linspace(-1, 1, p.numel()).view_as(p) * (i + 1) / 5)
            x = torch.linspace(-1, 1, 12).view(4, 3).to(device)
            optimizer = kind(model.parameters(), **options)

            def closure(model=model, optimizer=optimizer, x=x) -> torch.Tensor:
                optimizer.zero_grad()
                loss = model(x).square().mean()
                loss.backward()
                return loss

            for _ in range(3):
                optimizer.step(closure)
            nn.utils.clip_grad_norm_(model.parameters(), 0.1)
            results.append([p.detach() for p in model.parameters()])
        for p, q in zip(*results, strict=True):
            same(q, p)


@check
def autocast() -> None:
    a, b = torch.randn(4, 4, device=DEVICE), torch.randn(4, 4, device=DEVICE)
    with torch.autocast(DEVICE):
        assert (a @ b).dtype == torch.bfloat16
        assert (a @ b).exp().dtype == torch.float32
        assert torch.softmax((a @ b), 0).dtype == torch.float32
        assert (a @ b).sum().dtype == torch.float32
        assert torch.addcmul(a, a.bfloat16(), b).dtype == torch.float32
        with torch.autocast(DEVICE, enabled=False):
            assert (a @ b).dtype == torch.float32
        raises(
            RuntimeError,
            "binary_cross_entropy_with_logits",
            lambda: nn.functional.binary_cross_entropy(a.sigmoid(), b.sigmoid()),
        )
    with torch.autocast(DEVICE, dtype=torch.float16):
        assert nn.Linear(4, 4).to(DEVICE)(a).dtype == torch.float16
    assert (a @ b).dtype == torch.float32


@check
def grad_scaler() -> None:
    model = nn.Linear(4, 1).to(DEVICE)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler(DEVICE, init_scale=2.0**10)
    before = model.weight.detach().clone()
    with torch.autocast(DEVICE, dtype=torch.float16):
        loss = model(torch.ones(2, 4, device=DEVICE)).sum()
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    same(model.weight.grad, torch.full((1, 4), 2.0))
    scaler.step(optimizer)
    scaler.update()
    assert not torch.equal(before.cpu(), model.weight.detach().cpu())
    model.weight.grad.fill_(float("inf"))
    kept = model.weight.detach().clone()
    scaler.scale(loss.detach())
    scaler.unscale_(optimizer)
    scaler.step(optimizer)
    scaler.update()
    assert torch.equal(kept.cpu(), model.weight.detach().cpu()) and scaler.get_scale() == 2.0**9


@check
def data_loader() -> None:
    data = torch.utils.data.TensorDataset(torch.arange(10.0), torch.arange(10))
    loader = torch.utils.data.DataLoader(data, batch_size=4, num_workers=2, pin_memory=True)
    seen = []
    for x, y in loader:
        assert x.is_pinned()
        same(x.to(DEVICE, non_blocking=True), y.float())
        seen += y.tolist()
    assert seen == list(range(10))


def _add_in_child(queue: object, done: object) -> None:
    x, view = queue.get()
    assert x.device == torch.device("neuron:1") and view.shape == (2,)
    x.add_(1)
    assert view.tolist() == [1.0, 1.0]
    done.put(x.sum().item())


@check
def processes_share_tensors() -> None:
    context = torch.multiprocessing.get_context("fork")
    queue, done = context.SimpleQueue(), context.SimpleQueue()
    child = context.Process(target=_add_in_child, args=(queue, done))
    child.start()
    x = torch.zeros(4, device="neuron:1")
    queue.put((x, x[2:]))
    total = done.get()
    child.join()
    assert child.exitcode == 0 and total == 4.0
    assert x.tolist() == [1.0] * 4
    y = torch.ones(2, device=DEVICE, requires_grad=True)
    raises(RuntimeError, "detach()", lambda: queue.put(y * 2))


@check
def random_numbers_are_reserved() -> None:
    from trnx_torch.registration import reserve_random

    torch.neuron.manual_seed_all(9)
    assert reserve_random(5) == (9, 0)
    assert reserve_random(8) == (9, 8)
    g = torch.Generator(DEVICE).manual_seed(3)
    assert reserve_random(1, generator=g) == (3, 0)
    assert g.get_offset() == 4 and reserve_random(0) == (9, 16)
    raises(
        RuntimeError,
        "Expected a generator of neuron:0",
        lambda: reserve_random(1, generator=torch.Generator()),
    )


# ---- other libraries, tracing --------------------------------------------------------------------
@check
def dlpack_and_numpy() -> None:
    x = torch.arange(6.0, device=DEVICE).view(2, 3)
    array = np.from_dlpack(x)
    assert array.ctypes.data == x.data_ptr()
    back = torch.from_dlpack(x)
    assert back.device.type == "cpu" and back.data_ptr() == x.data_ptr()
    assert x.__dlpack_device__()[0] == 1
    assert x.tolist() == array.tolist()
    raises(TypeError, "cpu", lambda: x.numpy())
    raises(BufferError, "detach()", lambda: x.requires_grad_().__dlpack__())


@check
def fake_tensors_and_meta() -> None:
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode():
        z = torch.ones(10, device=DEVICE) + 1
        assert z.shape == (10,) and z.device.type == DEVICE
    with torch.device("meta"):
        model = nn.Linear(3, 2)
    model = model.to_empty(device=DEVICE)
    assert model.weight.device.type == DEVICE


@check
def functional_transforms() -> None:
    from torch.func import grad, vmap

    x = torch.randn(3, 4)
    f = lambda v: (v.sin() * v).sum()  # noqa: E731
    same(vmap(grad(f))(x.to(DEVICE)), vmap(grad(f))(x))


@check
def python_dispatch_modes() -> None:
    from torch.utils._python_dispatch import TorchDispatchMode

    seen = []

    class Log(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            seen.append(str(func))
            return func(*args, **(kwargs or {}))

    with Log():
        torch.ones(2, device=DEVICE) + 1
    assert "aten.add.Tensor" in seen


@check
def custom_operator() -> None:
    @torch.library.custom_op("trnx_features::twice", mutates_args=(), device_types=DEVICE)
    def twice(x: torch.Tensor) -> torch.Tensor:
        return x + x

    same(twice(torch.ones(2, device=DEVICE)), torch.full((2,), 2.0))


@check
def export_program() -> None:
    model = nn.Linear(3, 2).to(DEVICE)
    x = torch.randn(4, 3, device=DEVICE)
    program = torch.export.export(model, (x,))
    same(program.module()(x), model(x).cpu())


@check
def profiler() -> None:
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as record:
        torch.ones(3, device=DEVICE).cumsum(0)
    assert any(event.key == "aten::cumsum" for event in record.key_averages())


@check
def nested_jagged() -> None:
    parts = [torch.randn(2, 3, device=DEVICE), torch.randn(4, 3, device=DEVICE)]
    nested = torch.nested.nested_tensor(parts, layout=torch.jagged)
    assert (nested * 2).device.type == DEVICE


@check
def threads_use_devices_independently() -> None:
    import threading

    results: list[int] = []

    def work() -> None:
        torch.neuron.set_device(1)
        results.append(torch.ones(2, device=DEVICE).device.index)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert results == [1] and torch.neuron.current_device() == 0


@check
def deepcopied_optimizer_state_loads() -> None:
    model = nn.Linear(2, 2).to(DEVICE)
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.ones(1, 2, device=DEVICE)).sum().backward()
    optimizer.step()
    other = torch.optim.AdamW(model.parameters())
    other.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    state = next(iter(other.state.values()))
    assert state["exp_avg"].device.type == DEVICE


def main(names: list[str]) -> None:
    warnings.filterwarnings("ignore", category=UserWarning)
    for name in names or list(CHECKS):
        print(f"START {name}", flush=True)
        text = io.StringIO()
        try:
            with contextlib.redirect_stdout(text):
                CHECKS[name]()
        except BaseException:
            lines = traceback.format_exc().strip().splitlines()
            print(f"FAIL {name} " + " | ".join(line.strip() for line in lines[-6:]), flush=True)
        else:
            print(f"OK {name}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
