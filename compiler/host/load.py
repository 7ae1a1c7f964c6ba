"""Loads compiled programs into the process and calls them.

Objects are loaded once per process; engines live as long as the process, because worker threads
may still run their code while Python shuts down.
"""

from __future__ import annotations

import ctypes
import os
import threading
from collections.abc import Sequence

import llvmlite.binding as llvm

from trnx.compiler.host.cpu import Cpu, host_cpu
from trnx.compiler.host.program import HostCode, packed_symbol
from trnx.compiler.tile.ir import HostCall

_addresses: dict[str, int] = {}
_lock = threading.RLock()
_POOL_START = "trnx_pool_init"

_ENTRY = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_void_p, ctypes.c_void_p)


class NativeProgram:
    """A loaded program.

    ``address`` is the native entry ``int32_t entry(void *const *buffers, const int64_t
    *registers)`` when the program has no host calls; ``segments`` are all steps in order, native
    entries as addresses. ``buffers`` takes one address per name in ``code.buffers`` and then, if
    ``code.arena_bytes`` is not 0, the address of an arena of that size.
    """

    def __init__(self, code: HostCode) -> None:
        self.code = code
        self.segments: tuple[int | HostCall, ...] = tuple(
            step if isinstance(step, HostCall) else _addresses[step] for step in code.steps
        )
        self._calls = tuple(s if isinstance(s, HostCall) else _ENTRY(s) for s in self.segments)
        count = len(code.buffers) + (1 if code.arena_bytes else 0)
        self._pointers = ctypes.c_void_p * max(count, 1)
        self._registers = ctypes.c_int64 * max(len(code.registers), 1)
        self._count = count

    @property
    def packed_segments(self) -> tuple[int | HostCall, ...]:
        """The steps in order, native ones by their packed entries (`program.packed_symbol`)."""
        return tuple(
            step if isinstance(step, HostCall) else _addresses[packed_symbol(step)]
            for step in self.code.steps
        )

    @property
    def address(self) -> int:
        """Entry of a program without host calls.

        Raises:
            RuntimeError: the program has host calls; run its ``segments``.
        """
        if len(self.segments) != 1 or isinstance(self.segments[0], HostCall):
            raise RuntimeError(
                f"program '{self.code.name}' has {len(self.segments)} steps, not one native entry. "
                "Call the NativeProgram or walk its segments."
            )
        return self.segments[0]

    def __call__(self, pointers: Sequence[int], registers: Sequence[int] = ()) -> None:
        """Run a program without host calls.

        Args:
            pointers: addresses as described above; memory must stay alive and large enough.
            registers: values of ``code.registers``.

        Raises:
            ValueError: wrong number of addresses or registers.
            RuntimeError: the program has host calls; walk its ``segments``.
        """
        if len(pointers) != self._count or len(registers) != len(self.code.registers):
            raise ValueError(
                f"program '{self.code.name}' takes {self._count} addresses and "
                f"{len(self.code.registers)} registers, not {len(pointers)} and {len(registers)}. "
                "Pass one address per buffer (and the arena's), one integer per register."
            )
        places = self._pointers(*pointers)
        values = self._registers(*registers)
        for step in self._calls:
            if isinstance(step, HostCall):
                raise RuntimeError(
                    f"program '{self.code.name}' calls host function '{step.function}'. "
                    "Walk its segments and run host calls between them."
                )
            step(places, values)


def load(code: HostCode, cpu: Cpu | None = None) -> NativeProgram:
    """Bring a compiled program into the process.

    ``cpu`` is what the code must have been compiled for: this process's own unless a test runs
    code for a lesser one.

    Raises:
        RuntimeError: the code was compiled for another processor.
    """
    cpu = host_cpu() if cpu is None else cpu
    if code.cpu_key != cpu.key:
        raise RuntimeError(
            f"program '{code.name}' was compiled for another processor. Compile it again here."
        )
    with _lock:
        starts_pool = _POOL_START not in _addresses
        for symbols, text in (*code.libraries, *code.objects):
            if not _addresses.keys() >= set(symbols):
                _add_object(text, symbols)
        if starts_pool and _POOL_START in _addresses:
            _start_pool()
        entries = tuple(s for s in code.steps if isinstance(s, str))
        if entries and entries[0] not in _addresses:
            _add_object(code.entry, (*entries, *map(packed_symbol, entries)))
    return NativeProgram(code)


def _add_object(code: bytes, symbols: Sequence[str]) -> None:
    target = llvm.Target.from_triple(host_cpu().triple)
    machine = target.create_target_machine(codemodel="jitdefault", jit=True)
    engine = llvm.create_mcjit_compiler(llvm.parse_assembly(""), machine)
    engine.add_object_file(llvm.ObjectFileRef.from_data(code))
    engine.finalize_object()
    for symbol in symbols:
        address = engine.get_function_address(symbol)
        assert address, f"object lacks {symbol}"
        if symbol in _addresses:  # an object of another program brought it
            continue
        llvm.add_symbol(symbol, address)
        _addresses[symbol] = address
    # Detached is never disposed: workers may be running the code while the interpreter ends.
    engine.detach()


def _start_pool() -> None:
    ctypes.CFUNCTYPE(None)(_addresses[_POOL_START])()
    if hasattr(os, "register_at_fork"):
        forget = ctypes.CFUNCTYPE(None)(_addresses["trnx_pool_forget"])
        os.register_at_fork(after_in_child=forget)
