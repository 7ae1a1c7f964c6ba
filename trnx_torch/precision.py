"""float64 tensors on a device without float64 arithmetic: computed in float32, and said so.

Memory keeps 64 bits. Each line of the user's program that computes with such tensors warns once.
"""

from __future__ import annotations

import ctypes
import traceback
import warnings

from trnx.core.source import Source
from trnx.runtime.narrow import PrecisionWarning
from trnx_torch.registration import Kernel
from trnx_torch.report import user_frame

_ENTRY = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_void_p, ctypes.c_void_p)
REFUSED = 64
"""Status of a kernel whose warning the program's filters turned into an error."""

_warned: set[tuple[str, int]] = set()


def warn(op: str) -> None:
    """Warn at the user's line, once a line, that an operator computes float64 as float32."""
    frame = user_frame()
    file, line = ("<autograd>", 0) if frame is None else (frame.f_code.co_filename, frame.f_lineno)
    place = (op, line) if frame is None else (file, line)
    if place in _warned:
        return
    _warned.add(place)
    where = "in backward: " if frame is None else ""
    warnings.warn_explicit(
        f"{where}{op} computes float64 as float32 on device neuron, with 7 digits. "
        "Use float32, or move to cpu for float64.",
        PrecisionWarning,
        file,
        line,
        module=file if frame is None else frame.f_globals.get("__name__", file),
    )


def user_source(program: str) -> Source:
    """The user's line that runs a compiled graph; backward graphs run on autograd's own thread."""
    frame = user_frame()
    if frame is None:
        return Source("<autograd>", 0, program)
    return Source(frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name)


def warning_kernel(kernel: Kernel, op: str) -> Kernel:
    """A kernel that calls `warn`, then `kernel`.

    The caller is C++, which no Python exception can cross: an error from the warning is printed and
    becomes status `REFUSED`, which the extension raises.
    """
    native = _ENTRY(kernel.address)

    def enter(pointers: int, registers: int) -> int:
        try:
            warn(op)
        except Exception:
            traceback.print_exc()
            return REFUSED
        return int(native(pointers, registers))

    entry = _ENTRY(enter)
    address = ctypes.cast(entry, ctypes.c_void_p).value
    assert address is not None
    return Kernel(address, (kernel, entry))
