"""Names of ``nki.language`` for kernels that `trnx.nki.jit` reads: dtypes, operators, buffers.

The functions among them (``ndarray``, ``fori_loop``, …) mean something inside a kernel only.
"""

from __future__ import annotations

from typing import Any

from trnx.compiler.nki.values import Module, module_attribute


def __getattr__(name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(name)
    return module_attribute(Module("nki.language"), name)
