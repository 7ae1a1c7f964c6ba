"""Other libraries and tracing."""

from __future__ import annotations

import copy

import numpy as np
import torch
from torch import nn

from tests.torch.features.harness import DEVICE, check, raises, same


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
