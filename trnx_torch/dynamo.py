"""What Dynamo and Inductor may ask of device `neuron`. Imported when Dynamo is, never before."""

from __future__ import annotations

from typing import Any

import torch
from torch._dynamo.device_interface import DeviceInterface, register_interface_for_device

from trnx_torch import device as neuron
from trnx_torch import memory


class NeuronInterface(DeviceInterface):
    """`torch.neuron` under the names Dynamo uses."""

    device = neuron.device
    Event = neuron.Event
    Stream = neuron.Stream

    class Worker:
        """The same questions, asked by a compile worker process."""

        set_device = staticmethod(neuron.set_device)
        current_device = staticmethod(neuron.current_device)
        get_device_properties = staticmethod(neuron.get_device_properties)

    current_device = staticmethod(neuron.current_device)
    set_device = staticmethod(neuron.set_device)
    device_count = staticmethod(neuron.device_count)
    is_available = staticmethod(neuron.is_available)
    exchange_device = staticmethod(neuron.exchange_device)
    maybe_exchange_device = staticmethod(neuron.exchange_device)
    stream = staticmethod(neuron.stream)
    current_stream = staticmethod(neuron.current_stream)
    set_stream = staticmethod(neuron.set_stream)
    synchronize = staticmethod(neuron.synchronize)
    get_device_properties = staticmethod(neuron.get_device_properties)
    is_bf16_supported = staticmethod(neuron.is_bf16_supported)
    memory_allocated = staticmethod(memory.memory_allocated)

    @staticmethod
    def get_raw_stream(index: int) -> int:
        """The id of a device's current stream."""
        return int(neuron.current_stream(index).stream_id)

    @staticmethod
    def _set_stream_by_id(stream_id: int, device_index: int, device_type: int) -> None:
        neuron.set_stream(
            torch.Stream(stream_id=stream_id, device_index=device_index, device_type=device_type)
        )

    @staticmethod
    def get_compute_capability(device: Any = None) -> str:
        """The device's name: there is one generation."""
        return neuron.get_device_name(device)


def register() -> None:
    """Make Dynamo know the device, under its name and each index."""
    register_interface_for_device("neuron", NeuronInterface)
    for index in range(neuron.configured_device_count()):
        register_interface_for_device(f"neuron:{index}", NeuronInterface)


class _NoInductor:
    """Stands where Inductor expects a code generator, to say what to use instead."""

    supports_caching = False

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        raise RuntimeError(
            "Inductor makes no code for device 'neuron'. "
            'Use torch.compile(model, backend="neuron").'
        )

    create = classmethod(lambda cls, *args, **kwargs: cls(*args, **kwargs))


def refuse_inductor() -> None:
    """Give Inductor an error in one sentence for the device; other devices are not touched."""
    from torch._inductor.codegen import common

    common.register_device_op_overrides("neuron", common.DeviceOpOverrides())
    common.register_backend_for_device("neuron", _NoInductor, _NoInductor, _NoInductor, _NoInductor)
