"""The overloads of an ATen operator: functional, out= and in-place forms of the same call."""

from __future__ import annotations

from collections.abc import Iterator

import torch


def schema(op: str) -> torch.FunctionSchema | None:
    """The schema of ``"add.Tensor"`` (``"relu"`` or ``"relu.default"``), None if torch has none."""
    base, _, overload = op.partition(".")
    packet = getattr(torch.ops.aten, base, None)
    name = overload or "default"
    if packet is None or name not in packet.overloads():
        return None
    found: torch.FunctionSchema = getattr(packet, name)._schema
    return found


def full_name(op: str) -> str:
    """``aten::relu`` for ``relu.default``: the name the extension knows an operator by."""
    return f"aten::{op.removesuffix('.default')}"


def is_built_of_others(name: str) -> bool:
    """Whether PyTorch builds an operator from others on every device, derivatives included.

    A device kernel of such an operator would take its derivative away.
    """
    has = torch._C._dispatch_has_kernel_for_dispatch_key
    return has(name, "CompositeImplicitAutograd") and not has(name, "CPU")


def _plain(found: torch.FunctionSchema) -> list[tuple[str, str]]:
    """Names and types of the arguments that are no out= tensors."""
    return [(a.name, str(a.type)) for a in found.arguments if not a.is_out]


def forms(op: str) -> Iterator[str]:
    """``op`` and the out= and in-place overloads that take the same arguments.

    >>> list(forms("relu.default"))
    ['relu', 'relu.out', 'relu_']
    """
    wanted = schema(op)
    if wanted is None:
        return
    base = op.partition(".")[0]
    yield op.removesuffix(".default")
    for name in (base, f"{base}_"):
        packet = getattr(torch.ops.aten, name, None)
        if packet is None:
            continue
        for overload in packet.overloads():
            found = getattr(packet, overload)._schema
            writes = any(
                a.alias_info is not None and a.alias_info.is_write for a in found.arguments
            )
            if writes and _plain(found) == _plain(wanted):
                yield name if overload == "default" else f"{name}.{overload}"
