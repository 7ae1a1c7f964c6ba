"""Devices: where a program runs and with which number semantics.

`neuron` has NeuronCore semantics (f64 is computed as f32) and `cpu` those of the host. Both keep
their arrays in host memory unless Neuron hardware is there, so moving an array is a change of tag.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

from trnx.core import config
from trnx.core.errors import UnsupportedError, message

KINDS = ("neuron", "cpu")


@dataclass(frozen=True, slots=True)
class Device:
    """A device by kind (`neuron` or `cpu`)."""

    kind: str

    @property
    def target(self) -> str:
        """Row of the hardware table that programs for this device are compiled for."""
        return "cpu" if self.kind == "cpu" else config.target.value

    def __str__(self) -> str:
        return self.kind

    def __repr__(self) -> str:
        return f"Device({self.kind!r})"


NEURON = Device("neuron")
CPU = Device("cpu")
_BY_NAME = {"neuron": NEURON, "neuron:0": NEURON, "cpu": CPU, "cpu:0": CPU}

_default: ContextVar[Device] = ContextVar("trnx_default_device", default=NEURON)


def devices() -> tuple[Device, ...]:
    """All devices, the default of a fresh process first."""
    return (NEURON, CPU)


def as_device(device: Device | str | None) -> Device:
    """The device that a name stands for; None is the default device.

    Raises:
        UnsupportedError: there is no such device.
    """
    if device is None:
        return _default.get()
    if isinstance(device, Device):
        return device
    found = _BY_NAME.get(device) if isinstance(device, str) else None
    if found is None:
        raise UnsupportedError(
            message(f"There is no device {device!r}", None, "Use 'neuron' or 'cpu'")
        )
    return found


def default_device() -> Device:
    """The device that new arrays go to."""
    return _default.get()


@contextmanager
def use_device(device: Device | str) -> Iterator[Device]:
    """Make `device` the default inside a ``with`` block of this thread or task."""
    chosen = as_device(device)
    token = _default.set(chosen)
    try:
        yield chosen
    finally:
        _default.reset(token)
