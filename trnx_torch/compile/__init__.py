"""The ``neuron`` backend of ``torch.compile``.

``dynamo_backend`` takes Dynamo's graph through AOTAutograd; ``importer`` turns each resulting
forward or backward graph into a Program by the rules in ``aten/``; ``runner`` calls the program on
the tensors' memory. Eager operators use the rules too, so importing this package does not import
Dynamo: the names below are looked up when they are asked for.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from trnx_torch.compile.dynamo_backend import backend
    from trnx_torch.compile.errors import UnsupportedOpError

__all__ = ["UnsupportedOpError", "backend"]

_HOMES = {"UnsupportedOpError": "errors", "backend": "dynamo_backend"}


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'trnx_torch.compile' has no attribute {name!r}")
    value = getattr(importlib.import_module(f"trnx_torch.compile.{home}"), name)
    globals()[name] = value
    return value
