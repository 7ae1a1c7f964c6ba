"""The `torch.neuron` module: devices, streams, events, random state and memory of device `neuron`.

Mirrors `torch.cuda` name for name where the idea exists. Every function that only describes the
machine answers without loading the extension; the others load it.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from types import TracebackType
from typing import Any, TypeAlias

import torch

from trnx_torch import _loader
from trnx_torch.memory import (
    empty_cache,
    get_memory_info,
    max_memory_allocated,
    max_memory_reserved,
    mem_get_info,
    memory_allocated,
    memory_reserved,
    memory_stats,
    memory_summary,
    reset_accumulated_memory_stats,
    reset_peak_memory_stats,
)

__all__ = [
    "Event",
    "Stream",
    "StreamContext",
    "as_cpu",
    "as_neuron",
    "can_device_access_peer",
    "current_device",
    "current_stream",
    "default_generators",
    "default_stream",
    "device",
    "device_count",
    "device_of",
    "empty_cache",
    "get_amp_supported_dtype",
    "get_device_capability",
    "get_device_name",
    "get_device_properties",
    "get_memory_info",
    "get_rng_state",
    "get_rng_state_all",
    "init",
    "initial_seed",
    "is_available",
    "is_bf16_supported",
    "is_initialized",
    "manual_seed",
    "manual_seed_all",
    "max_memory_allocated",
    "max_memory_reserved",
    "mem_get_info",
    "memory_allocated",
    "memory_reserved",
    "memory_stats",
    "memory_summary",
    "reset_accumulated_memory_stats",
    "reset_peak_memory_stats",
    "seed",
    "seed_all",
    "set_device",
    "set_rng_state",
    "set_rng_state_all",
    "set_stream",
    "stream",
    "synchronize",
]

Device: TypeAlias = torch.device | str | int | None


# ---- which devices there are ---------------------------------------------------------------------
def configured_device_count() -> int:
    """Number of logical devices of this process: TRNX_DEVICES, else torchrun's local world size."""
    if "TRNX_DEVICES" in os.environ:
        from trnx.core import config

        if config.devices.value > 0:
            return config.devices.value
    return max(1, int(os.environ.get("LOCAL_WORLD_SIZE", "1")))


def is_available() -> bool:
    """True if the extension is loaded, built, or can be compiled here. Never compiles."""
    return _loader.is_usable()


def device_count() -> int:
    """Number of logical devices; 0 when the extension cannot be had."""
    module = _loader.loaded()
    if module is not None:
        return int(module.device_count())
    return configured_device_count() if is_available() else 0


def init() -> None:
    """Load the extension and mark the device as used. Normally the first tensor does this."""
    _loader.extension().ensure_initialized()


def _lazy_init() -> None:
    # torch calls this before it makes a tensor on the device.
    _loader.extension()


def is_initialized() -> bool:
    """True once this process used the device."""
    module = _loader.loaded()
    return module is not None and bool(module.is_initialized())


def __getattr__(name: str) -> Any:
    # Checkpointing saves the generators' states only of a module that has this one set.
    if name == "_initialized":
        return is_initialized()
    raise AttributeError(f"module 'torch.neuron' has no attribute {name!r}")


def _is_in_bad_fork() -> bool:
    # Device memory is host memory, so a forked child may use the device.
    return False


def _index(device: Device, *, optional: bool = True) -> int:
    """The device index that `device` means; the current one for None or a device without index."""
    if isinstance(device, int) and not isinstance(device, bool):
        index = device
    elif device is None:
        index = -1
    else:
        parsed = torch.device(device)
        if parsed.type != "neuron":
            raise ValueError(
                f"Expected a neuron device, got {parsed}. Pass 'neuron:0' or an index."
            )
        index = -1 if parsed.index is None else parsed.index
    if index >= 0:
        return index
    if not optional:
        raise ValueError("Expected a device index, got none. Pass 'neuron:0' or an index.")
    return current_device()


def current_device() -> int:
    """Index of the calling thread's current device."""
    module = _loader.loaded()
    return 0 if module is None else int(module.current_device())


def set_device(device: Device) -> None:
    """Make `device` the calling thread's current device."""
    _loader.extension().set_device(_index(device))


def exchange_device(index: int) -> int:
    """Make device `index` current and return the previous one; a negative index changes nothing."""
    previous = current_device()
    if index >= 0:
        set_device(index)
    return previous


_exchange_device = exchange_device
_maybe_exchange_device = exchange_device


class device:
    """Context manager that makes a device current inside its block."""

    def __init__(self, device: Device) -> None:
        self.idx = -1 if device is None else _index(device)
        self.prev_idx = -1

    def __enter__(self) -> None:
        self.prev_idx = exchange_device(self.idx)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self.idx >= 0:
            exchange_device(self.prev_idx)


class device_of(device):
    """Context manager that makes a tensor's or storage's device current, if it is a neuron one."""

    def __init__(self, obj: Any) -> None:
        super().__init__(obj.device if obj.device.type == "neuron" else None)


def synchronize(device: Device = None) -> None:
    """Wait for all work on a device. Operators are done when they return, so this only checks."""
    torch.accelerator.synchronize(_index(device))


def can_device_access_peer(device: Device, peer_device: Device) -> bool:
    """Whether one device can read another's memory: all logical devices share the host's."""
    return _index(device) < device_count() and _index(peer_device) < device_count()


# ---- what a device is ----------------------------------------------------------------------------
class DeviceProperties:
    """Name, memory and generation of a logical device.

    Attributes:
        name: text for people.
        total_memory: bytes that tensors may take in all.
        multi_processor_count: host cores that run the kernels.
    """

    def __init__(self, index: int) -> None:
        self.index = index
        self.name = get_device_name(index)
        self.total_memory = get_memory_info(index)[1]
        self.multi_processor_count = os.cpu_count() or 1

    def __repr__(self) -> str:
        gib = self.total_memory / 2**30
        return (
            f"DeviceProperties(name={self.name!r}, total_memory={gib:.1f} GiB, "
            f"multi_processor_count={self.multi_processor_count})"
        )


def get_device_name(device: Device = None) -> str:
    """Text for people: what runs the kernels of this device."""
    index = _index(device)
    if index >= device_count():
        raise ValueError(f"Device neuron:{index} does not exist. There are {device_count()}.")
    return "NeuronCore (host target)"


def get_device_properties(device: Device = None) -> DeviceProperties:
    """Name, memory and cores of a device."""
    return DeviceProperties(_index(device))


def get_device_capability(device: Device = None) -> dict[str, Any]:
    """Supported dtypes, as `torch.accelerator.get_device_capability` reports them."""
    return torch.accelerator.get_device_capability(_index(device))


def is_bf16_supported(including_emulation: bool = True) -> bool:
    """bfloat16 is native on NeuronCores."""
    return True


def get_amp_supported_dtype() -> list[torch.dtype]:
    """Dtypes that `torch.autocast("neuron")` takes; the default is bfloat16."""
    return [torch.bfloat16, torch.float16, torch.float32]


# ---- streams and events --------------------------------------------------------------------------
class Stream(torch.Stream):
    """A queue of work on a device. Work runs when it is issued, so streams only carry identity."""

    def __new__(cls, device: Device = None, priority: int = 0, **kwargs: Any) -> Stream:
        _loader.extension()
        if "stream_id" in kwargs:
            return super().__new__(cls, **kwargs)
        return super().__new__(cls, device=_index(device), priority=priority)

    def wait_stream(self, stream: torch.Stream) -> None:
        """Make later work here wait for the work of `stream` so far."""
        self.wait_event(stream.record_event())


class _EventType(type):
    # torch compares event classes exactly, so what Event() makes is a plain torch.Event.
    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, torch.Event) and instance.device.type == "neuron"


class Event(torch.Event, metaclass=_EventType):
    """A point in a stream's work, with host time if `enable_timing`. Makes a `torch.Event`."""

    def __new__(
        cls, enable_timing: bool = False, blocking: bool = False, interprocess: bool = False
    ) -> torch.Event:
        _loader.extension()
        if interprocess:
            raise NotImplementedError(
                "Neuron events cannot be shared between processes. Leave interprocess out."
            )
        return torch.Event(device="neuron", enable_timing=enable_timing, blocking=blocking)


def current_stream(device: Device = None) -> torch.Stream:
    """The calling thread's current stream of a device."""
    _loader.extension()
    return torch.accelerator.current_stream(_index(device))


def default_stream(device: Device = None) -> torch.Stream:
    """The stream a device uses when nobody chose one."""
    index = _index(device)
    _loader.extension()
    return torch.Stream(
        stream_id=0, device_index=index, device_type=torch._C._autograd.DeviceType.PrivateUse1.value
    )


def set_stream(stream: torch.Stream | None) -> None:
    """Make `stream` the calling thread's current stream of its device."""
    if stream is not None:
        torch.accelerator.set_stream(stream)


class StreamContext:
    """Context manager that makes a stream current inside its block."""

    def __init__(self, stream: torch.Stream | None) -> None:
        self.stream = stream
        self._previous: torch.Stream | None = None
        self._device = -1

    def __enter__(self) -> torch.Stream | None:
        if self.stream is not None:
            self._device = exchange_device(self.stream.device_index)
            self._previous = current_stream(self.stream.device_index)
            set_stream(self.stream)
        return self.stream

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._previous is not None:
            set_stream(self._previous)
            exchange_device(self._device)


def stream(stream: torch.Stream | None) -> StreamContext:
    """Context manager that makes `stream` current inside its block."""
    return StreamContext(stream)


# ---- random state --------------------------------------------------------------------------------
# A seed that was set before the extension was loaded; applied when it is.
_pending_seed: int | None = None


def _generator(device: Device = None) -> torch.Generator:
    return _loader.extension().default_generator(_index(device))


class _DefaultGenerators:
    """The default generator of each device, by index."""

    def __len__(self) -> int:
        return device_count()

    def __getitem__(self, index: int) -> torch.Generator:
        if not 0 <= index < len(self):
            raise IndexError(f"Device neuron:{index} does not exist.")
        return _generator(index)


default_generators = _DefaultGenerators()


def manual_seed(seed: int) -> None:
    """Seed the current device's default generator."""
    _generator().manual_seed(int(seed))


def manual_seed_all(seed: int) -> None:
    """Seed every device's default generator. Loads nothing: an unloaded device takes it later."""
    global _pending_seed
    if _loader.loaded() is None:
        _pending_seed = int(seed)
        return
    for index in range(device_count()):
        _generator(index).manual_seed(int(seed))


def apply_pending_seed() -> None:
    """Give the generators the seed that was set before they existed. Called by the loader."""
    if _pending_seed is not None:
        manual_seed_all(_pending_seed)


def seed() -> None:
    """Seed the current device's default generator from the system's entropy."""
    _generator().seed()


def seed_all() -> None:
    """Seed every device's default generator with one number from the system's entropy."""
    manual_seed_all(_generator().seed())


def initial_seed() -> int:
    """The seed of the current device's default generator."""
    return _generator().initial_seed()


def get_rng_state(device: Device = None) -> torch.Tensor:
    """State of a device's default generator: uint8[16] on cpu, seed then offset."""
    return _generator(device).get_state()


def set_rng_state(new_state: torch.Tensor, device: Device = None) -> None:
    """Set the state of a device's default generator."""
    _generator(device).set_state(new_state.clone(memory_format=torch.contiguous_format))


def get_rng_state_all() -> list[torch.Tensor]:
    """State of every device's default generator."""
    return [get_rng_state(index) for index in range(device_count())]


def set_rng_state_all(new_states: Iterable[torch.Tensor]) -> None:
    """Set the state of every device's default generator."""
    for index, state in enumerate(new_states):
        set_rng_state(state, index)


# ---- zero-copy views -----------------------------------------------------------------------------
def as_cpu(tensor: torch.Tensor) -> torch.Tensor:
    """A cpu tensor over the memory of a neuron tensor: no copy, both see every write.

    Detached from autograd. Works for any sizes and strides.
    """
    return _loader.extension().as_cpu(tensor)


def as_neuron(tensor: torch.Tensor, device: Device = None) -> torch.Tensor:
    """A neuron tensor over the memory of a cpu tensor: no copy, both see every write.

    Detached from autograd. `as_neuron(as_cpu(t))` is over the storage of `t` again.
    """
    return _loader.extension().as_neuron(tensor, _index(device))
