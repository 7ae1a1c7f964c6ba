"""Functions that generated kernels share: the thread pool, matrix products, transposes.

Each library is compiled at most once per process, and its object travels with the programs that
need it. Which ones a kernel needs is read from the symbols its object leaves undefined.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from typing import Final

from trnx.compiler.host.cpu import Cpu
from trnx.compiler.host.emit import Module
from trnx.compiler.host.matmul import emit_matmul, matmul_symbol
from trnx.compiler.host.pool import SYMBOLS, pool_text
from trnx.compiler.host.transpose import emit_transpose, transpose_symbol
from trnx.compiler.host.types import DType
from trnx.core.dtypes import float32, float64

POOL: Final = "pool"
_SIZES: Final = (1, 2, 4, 8)


def _matmul_text(cpu: Cpu, dtype: DType) -> str:
    module = Module(cpu)
    emit_matmul(module, dtype)
    return module.text()


def _transpose_text(cpu: Cpu, itemsize: int) -> str:
    module = Module(cpu)
    emit_transpose(module, itemsize)
    return module.text()


@cache
def _texts(cpu: Cpu) -> dict[str, Callable[[], str]]:
    """For every library of ``cpu`` the function that writes it."""
    texts: dict[str, Callable[[], str]] = {POOL: lambda: pool_text(cpu)}
    for dtype in (float32, float64):
        texts[matmul_symbol(dtype, cpu)] = partial(_matmul_text, cpu, dtype)
    for size in _SIZES:
        texts[transpose_symbol(size, cpu)] = partial(_transpose_text, cpu, size)
    return texts


def symbols_of(library: str) -> tuple[str, ...]:
    """Functions a library defines for others."""
    return SYMBOLS if library == POOL else (library,)


def libraries_for(code: bytes, cpu: Cpu) -> set[str]:
    """Libraries whose functions an object mentions."""
    return {
        library
        for library in _texts(cpu)
        if any(symbol.encode() + b"\0" in code for symbol in symbols_of(library))
    }


def library_text(library: str, cpu: Cpu) -> str:
    """LLVM assembly of a library."""
    return _texts(cpu)[library]()
