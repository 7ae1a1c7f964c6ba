"""Functions that generated kernels share: the thread pool, matrix products, transposes.

Each library is compiled at most once per process, and its object travels with the programs that
need it. Which ones a kernel needs is read from the symbols its object leaves undefined.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Final

from trnx.compiler.host.cpu import Cpu
from trnx.compiler.host.emit import Module
from trnx.compiler.host.matmul import emit_matmul, matmul_symbol
from trnx.compiler.host.pool import SYMBOLS, pool_text
from trnx.compiler.host.transpose import emit_transpose, transpose_symbol
from trnx.core.dtypes import float32, float64

POOL: Final = "pool"
_SIZES: Final = (1, 2, 4, 8)


def _matmul_text(cpu: Cpu, name: str) -> str:
    module = Module(cpu)
    emit_matmul(module, float64 if name == matmul_symbol(float64) else float32)
    return module.text()


def _transpose_text(cpu: Cpu, name: str) -> str:
    module = Module(cpu)
    emit_transpose(module, int(name.rsplit("_", 1)[1]))
    return module.text()


_TEXTS: Final[dict[str, Callable[[Cpu, str], str]]] = {
    POOL: lambda cpu, _: pool_text(cpu),
    matmul_symbol(float32): _matmul_text,
    matmul_symbol(float64): _matmul_text,
    **{transpose_symbol(size): _transpose_text for size in _SIZES},
}


def symbols_of(library: str) -> tuple[str, ...]:
    """Functions a library defines for others."""
    return SYMBOLS if library == POOL else (library,)


def libraries_for(code: bytes) -> set[str]:
    """Libraries whose functions an object mentions."""
    return {
        library
        for library in _TEXTS
        if any(symbol.encode() + b"\0" in code for symbol in symbols_of(library))
    }


@cache
def library_text(library: str, cpu: Cpu) -> str:
    """LLVM assembly of a library."""
    return _TEXTS[library](cpu, library)
