"""Memory statistics of device `neuron`, part of `torch.neuron`."""

from __future__ import annotations

from typing import Any, TypeAlias

import torch

from trnx_torch import _loader

Device: TypeAlias = torch.device | str | int | None


def _number(device: Device) -> int:
    from trnx_torch import device as neuron

    return neuron._index(device)


def memory_stats(device: Device = None) -> dict[str, Any]:
    """All counters of a device's allocator by name; bytes and counts. Empty before the first use.

    Keys are those of `torch.accelerator.memory_stats`: `allocated_bytes.all.peak` and so on.
    """
    if _loader.loaded() is None:
        return {}
    return torch.accelerator.memory_stats(_number(device))


def _counter(name: str, device: Device) -> int:
    return int(memory_stats(device).get(name, 0))


def memory_allocated(device: Device = None) -> int:
    """Bytes that tensors of a device take now."""
    return _counter("allocated_bytes.all.current", device)


def max_memory_allocated(device: Device = None) -> int:
    """Most bytes that tensors of a device took since the peak was reset."""
    return _counter("allocated_bytes.all.peak", device)


def memory_reserved(device: Device = None) -> int:
    """Bytes the allocator of a device holds now, in tensors and in its cache."""
    return _counter("reserved_bytes.all.current", device)


def max_memory_reserved(device: Device = None) -> int:
    """Most bytes the allocator of a device held since the peak was reset."""
    return _counter("reserved_bytes.all.peak", device)


def reset_peak_memory_stats(device: Device = None) -> None:
    """Start the peaks anew at the current values."""
    if _loader.loaded() is not None:
        torch.accelerator.reset_peak_memory_stats(_number(device))


def reset_accumulated_memory_stats(device: Device = None) -> None:
    """Set the totals of allocated and freed memory to zero."""
    if _loader.loaded() is not None:
        torch.accelerator.reset_accumulated_memory_stats(_number(device))


def get_memory_info(device: Device = None) -> tuple[int, int]:
    """(free, total) bytes of the memory a device's tensors live in: the host's."""
    _loader.extension()
    return torch.accelerator.get_memory_info(_number(device))


mem_get_info = get_memory_info


def empty_cache() -> None:
    """Give cached memory that no tensor uses back to the system."""
    module = _loader.loaded()
    if module is not None:
        module.empty_cache()


def memory_summary(device: Device = None, abbreviated: bool = False) -> str:
    """A table for people: current, peak and total of each counter; bytes in MiB."""
    stats = memory_stats(device)
    rows = [("allocated bytes", "allocated_bytes"), ("reserved bytes", "reserved_bytes")]
    if not abbreviated:
        rows += [("requested bytes", "requested_bytes"), ("allocations", "allocation")]
    lines = [f"{'neuron:' + str(_number(device)):<16}{'current':>14}{'peak':>14}{'total':>14}"]
    for label, name in rows:
        values = [
            stats.get(f"{name}.all.{column}", 0) for column in ("current", "peak", "allocated")
        ]
        if name.endswith("bytes"):
            lines.append(label.ljust(16) + "".join(f"{v / 2**20:>10.2f} MiB" for v in values))
        else:
            lines.append(label.ljust(16) + "".join(f"{v:>14}" for v in values))
    return "\n".join(lines)
