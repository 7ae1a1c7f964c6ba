"""Functions that generated kernels share: the thread pool, matrix products, transposes.

Each library is compiled at most once per process, and its object travels with the programs that
need it. Which ones a kernel needs is read from the symbols its object leaves undefined.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import cache, partial
from typing import Final

from trnx.compiler.host.cpu import Cpu
from trnx.compiler.host.emit import Module
from trnx.compiler.host.matmul import block_text, blocks_of, is_block, matmul_text, products_in
from trnx.compiler.host.pool import SYMBOLS, pool_text
from trnx.compiler.host.transpose import emit_transpose, transpose_symbol

POOL: Final = "pool"
_SIZES: Final = (1, 2, 4, 8)


def _transpose_text(cpu: Cpu, itemsize: int) -> str:
    module = Module(cpu)
    emit_transpose(module, itemsize)
    return module.text()


@cache
def _texts(cpu: Cpu) -> dict[str, Callable[[], str]]:
    """For every library of ``cpu`` but the products the function that writes it."""
    texts: dict[str, Callable[[], str]] = {POOL: lambda: pool_text(cpu)}
    for size in _SIZES:
        texts[transpose_symbol(size, cpu)] = partial(_transpose_text, cpu, size)
    return texts


def symbols_of(library: str) -> tuple[str, ...]:
    """Functions a library defines for others."""
    return SYMBOLS if library == POOL else (library,)


def libraries_for(codes: Iterable[bytes], cpu: Cpu) -> set[str]:
    """Libraries whose functions some objects mention."""
    found: set[str] = set()
    for code in codes:
        found |= products_in(code)
        found |= {
            library
            for library in _texts(cpu)
            if any(symbol.encode() + b"\0" in code for symbol in symbols_of(library))
        }
    return found


def called_by(library: str, cpu: Cpu) -> tuple[str, ...]:
    """Libraries that a library calls."""
    return blocks_of(library, cpu) if _is_product(library, cpu) else ()


def _is_product(library: str, cpu: Cpu) -> bool:
    return library not in _texts(cpu) and not is_block(library)


def library_text(library: str, cpu: Cpu) -> str:
    """LLVM assembly of a library."""
    if library in _texts(cpu):
        return _texts(cpu)[library]()
    return matmul_text(library, cpu) if _is_product(library, cpu) else block_text(library, cpu)


def library_level(library: str) -> int:
    """LLVM's level of code generation: quick where the time goes to atomics or into blocks."""
    return 2 if is_block(library) or library.startswith("trnx_transpose") else 0
