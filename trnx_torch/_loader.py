"""Loads the C++ extension of device `neuron` once per process and connects it to torch."""

from __future__ import annotations

import importlib.machinery
import importlib.util
import sys
import threading
from pathlib import Path
from types import ModuleType

import torch

from trnx_torch import _build

MODULE = "trnx_torch._C"

_lock = threading.RLock()
_failure: _build.ExtensionError | None = None


def torch_directory() -> Path:
    """The directory of the imported torch package."""
    assert torch.__file__ is not None
    return Path(torch.__file__).resolve().parent


def loaded() -> ModuleType | None:
    """The extension if this process has loaded it, else None."""
    return sys.modules.get(MODULE)


def extension() -> ModuleType:
    """The extension, loaded (and compiled if it must be) at the first call.

    Raises:
        ExtensionError: it cannot be compiled or loaded. The error is kept: later calls raise it
            again without trying anew.
    """
    module = sys.modules.get(MODULE)
    if module is not None:
        return module
    with _lock:
        module = sys.modules.get(MODULE)
        return module if module is not None else _load()


def load_if_built() -> bool:
    """Load the extension if a build that fits is there; never compiles. True if it is loaded."""
    if loaded() is None and _build.find_built(torch_directory()) is None:
        return False
    extension()
    return True


def is_usable() -> bool:
    """True if the extension is loaded, or built, or could be compiled here. Loads nothing."""
    if loaded() is not None:
        return True
    if _failure is not None:
        return False
    directory = torch_directory()
    return _build.find_built(directory) is not None or _build.missing_requirement(directory) is None


def _load() -> ModuleType:
    global _failure
    if _failure is not None:
        raise _failure
    try:
        path = _build.ensure_built(torch_directory())
        loader = importlib.machinery.ExtensionFileLoader(MODULE, str(path))
        spec = importlib.util.spec_from_file_location(MODULE, path, loader=loader)
        assert spec is not None
        try:
            module = importlib.util.module_from_spec(spec)
            loader.exec_module(module)
        except ImportError as error:
            raise _build.ExtensionError(
                f"The neuron extension {path} cannot be loaded ({error}). "
                f"Run `{_build.COMMAND} --force` to make it anew."
            ) from error
    except _build.ExtensionError as error:
        _failure = error
        raise
    sys.modules[MODULE] = module
    sys.modules["trnx_torch"].__dict__["_C"] = module
    _connect(module)
    return module


def _connect(module: ModuleType) -> None:
    """Hand the extension what it needs from Python, before anyone can run an operator."""
    from trnx_torch import device, report, rnn

    module.set_device_count(device.configured_device_count())
    module.set_fallback_warning(report.warn_fallback)
    module.set_first_use(_first_use)
    torch.set_autocast_dtype("neuron", torch.bfloat16)
    rnn.register()
    device.apply_pending_seed()


def _first_use() -> None:
    """Register the kernels, when the first tensor is made: importing torch stays cheap."""
    from trnx_torch import eager

    eager.register()
