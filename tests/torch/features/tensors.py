"""Factories, moving between devices, views and in-place operations."""

from __future__ import annotations

import gc
import warnings

import numpy as np
import torch
from torch import nn

from tests.torch.features.harness import DEVICE, check, raises, same


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
