"""Which operators ran on the device and which fell back to torch's CPU kernels."""

from __future__ import annotations

import os
import sys
import sysconfig
import warnings
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

import torch

from trnx_torch import _loader

if TYPE_CHECKING:
    from trnx.runtime.stages import Lowered

_INSIDE = tuple(
    str(path) + os.sep
    for path in (
        Path(__file__).resolve().parent,
        Path(torch.__file__).resolve().parent,
        Path(sysconfig.get_paths()["stdlib"]),
    )
)


class FallbackWarning(UserWarning):
    """An operator without a device kernel ran on the CPU."""


def get_executed_ops() -> dict[str, int]:
    """Operators that ran as device kernels since the last clear: name with overload -> calls."""
    module = _loader.loaded()
    return {} if module is None else module.executed_ops()


def get_fallback_ops() -> dict[str, int]:
    """Operators whose torch CPU kernel ran on `neuron` tensors: name with overload -> calls.

    Views, copies, fills, factories that compute nothing and reading one value are no fallbacks.
    """
    module = _loader.loaded()
    return {} if module is None else module.fallback_ops()


def clear_op_tracking() -> None:
    """Set all counts to zero. An operator warns once per process, also after this."""
    module = _loader.loaded()
    if module is not None:
        module.clear_op_tracking()


def get_compiled_graphs() -> list[Lowered]:
    """What the compiler made of each graph of ``torch.compile(..., backend="neuron")``.

    Graphs that PyTorch still holds, oldest first; forward and backward are graphs of their own.
    Each gives its text at every stage, NKI source, modelled cost and timeline, like
    ``trnx.jit(f).lower(x)``; ``simulate`` needs the arrays for its inputs.
    """
    from trnx_torch.compile.runner import compiled_graphs

    return compiled_graphs()


def user_frame() -> FrameType | None:
    """The innermost frame of the user's program, else of a library that is none of torch's.

    Frames of this package, torch and the standard library are never it.
    """
    library: FrameType | None = None
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        name = frame.f_code.co_filename
        if not name.startswith((*_INSIDE, "<frozen")):
            if "site-packages" not in name:
                return frame
            library = library or frame
        frame = frame.f_back
    return library


def warn_fallback(name: str) -> None:
    """Warn, at the user's line, that `name` runs on the CPU. Called by the extension."""
    frame = user_frame()
    text = (
        f"{name} has no neuron kernel yet and runs on the CPU. "
        "Results are right but slower; trnx_torch.get_fallback_ops() counts such calls."
    )
    if frame is None:  # autograd runs backward kernels on its own thread, without Python frames
        warnings.warn_explicit(f"in backward: {text}", FallbackWarning, "<autograd>", 0)
        return
    warnings.warn_explicit(
        text,
        FallbackWarning,
        frame.f_code.co_filename,
        frame.f_lineno,
        module=frame.f_globals.get("__name__"),
        registry=frame.f_globals.setdefault("__warningregistry__", {}),
    )
