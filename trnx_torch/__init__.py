"""PyTorch on trnx: device `neuron` and the `neuron` backend of `torch.compile`.

Importing torch is enough to have the device once trnx is installed. Importing this package loads
the C++ extension at once, and compiles it if it was not built at install.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from trnx_torch.checking import CheckReport, DivergenceError, check
    from trnx_torch.compile.metrics import get_dynamo_metrics, reset_dynamo_metrics
    from trnx_torch.interchange import from_torch, to_torch
    from trnx_torch.report import (
        FallbackWarning,
        clear_op_tracking,
        get_compiled_graphs,
        get_executed_ops,
        get_fallback_ops,
    )

__all__ = [
    "CheckReport",
    "DivergenceError",
    "FallbackWarning",
    "check",
    "clear_op_tracking",
    "from_torch",
    "get_compiled_graphs",
    "get_dynamo_metrics",
    "get_executed_ops",
    "get_fallback_ops",
    "reset_dynamo_metrics",
    "to_torch",
]

_HOMES = {
    "CheckReport": "checking",
    "DivergenceError": "checking",
    "check": "checking",
    "FallbackWarning": "report",
    "clear_op_tracking": "report",
    "get_compiled_graphs": "report",
    "get_executed_ops": "report",
    "get_fallback_ops": "report",
    "from_torch": "interchange",
    "get_dynamo_metrics": "compile.metrics",
    "reset_dynamo_metrics": "compile.metrics",
    "to_torch": "interchange",
}


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'trnx_torch' has no attribute {name!r}")
    import importlib

    value = getattr(importlib.import_module(f"trnx_torch.{home}"), name)
    globals()[name] = value
    return value


def _initialize() -> None:
    # `python -m trnx_torch build` must work before there is a torch, and without loading it.
    if getattr(sys, "argv", [])[:1] == ["-m"]:
        return
    try:
        import torch
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        raise ImportError(
            "trnx_torch needs PyTorch. Install it with `pip install torch==2.13.0`.", name="torch"
        ) from error
    if getattr(torch.__spec__, "_initializing", False):
        return  # torch's own import is running us: _autoload does what may be done now
    from trnx_torch import _loader, _register

    _register.register()
    _loader.extension()


_initialize()
