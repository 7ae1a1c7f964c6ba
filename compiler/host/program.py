"""Compiles tile programs for the CPU of this process.

Each distinct kernel is compiled once and found again by the hash of its content, so equal layers of
one program or of several share code. A small entry object calls the kernels in order.
"""

from __future__ import annotations

import hashlib
import struct
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, is_dataclass
from enum import Enum
from functools import cache
from itertools import combinations
from typing import Any, Final

import llvmlite
import llvmlite.binding as llvm
import numpy as np

from trnx.compiler.host.cpu import Cpu, host_cpu
from trnx.compiler.host.emit import I32, I64, PTR, Function, Module, Value, i64
from trnx.compiler.host.index import Indices
from trnx.compiler.host.kernel import KernelEmitter
from trnx.compiler.host.library import (
    called_by,
    libraries_for,
    library_level,
    library_text,
    symbols_of,
)
from trnx.compiler.host.phases import APART, OVERLAPPING, SAME_BASE, Aliases
from trnx.compiler.tile.ir import Buffer, HostCall, Kernel, KernelCall, TileProgram
from trnx.core import config
from trnx.core.source import Source

FORMAT: Final = 5
"""Changes whenever generated code or its calling convention does."""

_SKIPPED: Final = frozenset(("source", "deps", "id", "address", "copies"))
"""Fields of tile programs that host code does not depend on."""

AliasPairs = frozenset[tuple[str, str, int]]
"""Parameters that may share memory, and how (see ``phases.Aliases``)."""


@dataclass(frozen=True, slots=True)
class HostOptions:
    """Options captured when a program is compiled.

    ``threads`` is the most threads a parallel loop may use (0: every core this process may run
    on); ``optimisation`` is LLVM's code generation level.
    """

    threads: int = 0
    optimisation: int = 2

    @classmethod
    def current(cls) -> HostOptions:
        """The options in force."""
        return cls(threads=config.threads.value)

    @property
    def thread_limit(self) -> int:
        """Threads to use at most, at least 1."""
        return self.threads if self.threads > 0 else available_cores()


@dataclass(frozen=True, slots=True)
class HostIdentity:
    """What native code depends on besides the program: versions, processor, captured options."""

    llvmlite: str
    llvm: str
    cpu: str
    features: str
    options: str


def host_identity() -> HostIdentity:
    """The identity of code this process would generate now."""
    cpu = host_cpu()
    options = HostOptions.current()
    return HostIdentity(
        llvmlite=llvmlite.__version__,
        llvm=".".join(map(str, llvm.llvm_version_info)),
        cpu=f"{cpu.triple} {cpu.name}",
        features=cpu.features,
        options=f"format={FORMAT} level={options.optimisation} threads={options.thread_limit}",
    )


def available_cores() -> int:
    """Cores this process may run on."""
    import os

    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


@dataclass(frozen=True, slots=True)
class HostCode:
    """A compiled tile program, ready to be stored.

    ``libraries`` and ``objects`` hold object code with the functions it defines, shared ones and
    kernels; each calls only what comes before it, or with it. ``entry`` holds two functions per
    native segment, the one named in ``steps``, between which the program's host calls come, and its
    packed form (`packed_symbol`). ``buffers`` names the buffers in call order; with
    ``arena_bytes`` the arena's address comes after them.
    """

    name: str
    cpu_key: str
    objects: tuple[SharedObject, ...]
    entry: bytes
    steps: tuple[str | HostCall, ...]
    libraries: tuple[SharedObject, ...]
    buffers: tuple[str, ...]
    registers: tuple[str, ...]
    arena_bytes: int


SharedObject = tuple[tuple[str, ...], bytes]
"""Functions that other objects call, and the object code that defines them."""


def packed_symbol(step: str) -> str:
    """Symbol of a segment's ``int32_t entry(const int64_t *slots)``.

    Slots are the addresses of all buffers in declared order, temps included, then the registers. A
    temporary without an offset is allocated by the code, whatever its slot holds.
    """
    return f"{step}_packed"


_cache: dict[str, SharedObject] = {}
_library_cache: dict[tuple[str, Cpu], SharedObject] = {}
_lock = threading.RLock()


def compile_program(
    program: TileProgram,
    options: HostOptions | None = None,
    cpu: Cpu | None = None,
    overlapping: bool = False,
) -> HostCode:
    """Generate native code for ``program``.

    Args:
        program: the tile program.
        options: captured options; those in force when None.
        cpu: the CPU to generate code for; the one of this process when None.
        overlapping: the caller may pass an output the address of an input (updates in place);
            memory that overlaps at different addresses is never allowed.

    Raises:
        TileError: an instruction has operands that no target defines.
        RuntimeError: LLVM refuses this processor.
    """
    options = HostOptions.current() if options is None else options
    cpu = host_cpu() if cpu is None else cpu
    symbols, objects = _kernel_objects(program, overlapping, options, cpu)
    libraries = libraries_for((code for _, code in objects), cpu)
    entry, steps = _entry(program, symbols, options, cpu)
    return HostCode(
        name=program.name,
        cpu_key=cpu.key,
        objects=objects,
        entry=entry,
        steps=steps,
        libraries=_library_objects(libraries, cpu),
        buffers=tuple(b.name for b in caller_buffers(program)),
        registers=program.registers,
        arena_bytes=program.arena_bytes,
    )


def _library_objects(libraries: set[str], cpu: Cpu) -> tuple[SharedObject, ...]:
    """Objects that define these libraries and all they call, callees first.

    Libraries that are needed for the first time share an object per level of code generation.
    """
    wanted: dict[str, None] = {}
    pending = sorted(libraries)
    with _lock:
        while pending:
            name = pending.pop()
            if name in wanted:
                continue
            wanted[name] = None
            pending += called_by(name, cpu)
            known = _library_cache.get((name, cpu))
            if known is not None:  # its object comes as a whole, with what else is in it
                pending += [n for (n, c), made in _library_cache.items() if made is known]
        # What is compiled at a higher level (blocks, transposes) calls nothing.
        names = sorted(wanted, key=lambda n: (-library_level(n), n))
        for level in sorted({library_level(n) for n in names}, reverse=True):
            fresh = [
                n for n in names if library_level(n) == level and (n, cpu) not in _library_cache
            ]
            if fresh:
                symbols = tuple(symbol for n in fresh for symbol in symbols_of(n))
                made = symbols, object_code([library_text(n, cpu) for n in fresh], level, cpu)
                _library_cache.update({(n, cpu): made for n in fresh})
        found = dict.fromkeys(_library_cache[n, cpu] for n in names)
        return tuple(found)


def caller_buffers(program: TileProgram) -> list[Buffer]:
    """Buffers whose addresses the caller passes, in order."""
    return [b for b in program.buffers if b.kind != "temp"]


def _kernel_objects(
    program: TileProgram, overlapping: bool, options: HostOptions, cpu: Cpu
) -> tuple[list[str], tuple[SharedObject, ...]]:
    """The kernel symbol of every call ("" for host calls), and the objects that define them.

    Kernels are compiled at most once per content. Those of one program that are new share a
    module, because starting LLVM costs as much as a small kernel.
    """
    symbols: list[str] = []
    with _lock:
        module, fresh = Module(cpu), []
        for call in program.calls:
            if isinstance(call, HostCall):
                symbols.append("")
                continue
            kernel = program.kernels[call.kernel]
            pairs = _alias_pairs(program, call, overlapping)
            symbol = _kernel_symbol(kernel, program.target, pairs, options, cpu)
            symbols.append(symbol)
            if symbol in _cache or symbol in fresh:
                continue
            limit = options.thread_limit
            KernelEmitter(module, kernel, symbol, program.target, _aliases(pairs), limit).emit()
            fresh.append(symbol)
        if fresh:
            made = tuple(fresh), object_code(module.text(), options.optimisation, cpu)
            _cache.update(dict.fromkeys(fresh, made))
        return symbols, tuple(dict.fromkeys(_cache[s] for s in symbols if s))


def _aliases(pairs: AliasPairs) -> Aliases:
    kinds = {(a, b): kind for a, b, kind in pairs}

    def aliases(a: str, b: str) -> int:
        if a == b:
            return SAME_BASE
        return max(kinds.get((a, b), APART), kinds.get((b, a), APART))

    return aliases


def _kernel_symbol(
    kernel: Kernel, target: str, pairs: AliasPairs, options: HostOptions, cpu: Cpu
) -> str:
    """A name that stands for the kernel's content."""
    content = "\n".join(
        (
            str(FORMAT),
            llvmlite.__version__,
            cpu.key,
            repr(options.optimisation),
            repr(options.thread_limit),
            target,
            repr(sorted(pairs)),
            *_canonical(kernel),
        )
    )
    return "trnx_kernel_" + hashlib.sha256(content.encode()).hexdigest()[:32]


def _canonical(kernel: Kernel) -> Iterator[str]:
    """The kernel's content as text; names of kernels and things the host ignores are left out."""
    yield from (_text(kernel.params), _text(kernel.registers), _text(kernel.body))


def _text(value: Any) -> str:
    if isinstance(value, np.dtype):
        return value.name
    if isinstance(value, Source):
        return ""
    if isinstance(value, tuple):
        return "(" + ",".join(map(_text, value)) + ")"
    if isinstance(value, float):
        return struct.pack("<d", value).hex()
    if is_dataclass(value) and not isinstance(value, Enum):
        if type(value).__name__ in ("Expr", "Symbol", "Call"):
            return str(value)
        parts = [_text(getattr(value, f.name)) for f in fields(value) if f.name not in _SKIPPED]
        return f"{type(value).__name__}({','.join(parts)})"
    return repr(value)


def _alias_pairs(program: TileProgram, call: KernelCall, overlapping: bool) -> AliasPairs:
    """Pairs of the kernel's parameters that may share memory in ``call``."""
    table = {b.name: b for b in program.buffers}
    params = program.kernels[call.kernel].params
    found = set()
    for (p, a), (q, b) in combinations(zip(params, call.buffers, strict=True), 2):
        if p.role == "in" and q.role == "in":
            continue
        given = {table[a].kind, table[b].kind} == {"input", "output"}
        kind = _sharing(table[a], table[b])
        if overlapping and given:
            kind = max(kind, SAME_BASE)
        if kind != APART:
            found.add((p.name, q.name, kind))
    return frozenset(found)


def _sharing(a: Buffer, b: Buffer) -> int:
    if a.name == b.name or a.alias == b.name or b.alias == a.name:
        return SAME_BASE
    if a.alias is not None and a.alias == b.alias:
        return SAME_BASE
    if a.kind != "temp" or b.kind != "temp":
        return APART
    if a.offset is None or b.offset is None:  # allocated by itself
        return APART
    if a.offset == b.offset:
        return SAME_BASE
    size_a, size_b = _bytes(a), _bytes(b)
    if size_a is None or size_b is None:
        return OVERLAPPING
    together = a.offset < b.offset + size_b and b.offset < a.offset + size_a
    return OVERLAPPING if together else APART


def _bytes(buffer: Buffer) -> int | None:
    if buffer.strides is not None or not all(isinstance(n, int) for n in buffer.shape):
        return None
    return int(np.prod([int(str(n)) for n in buffer.shape], dtype=np.int64)) * buffer.dtype.itemsize


# Entry functions --------------------------------------------------------------------------------


def _entry(
    program: TileProgram, symbols: Sequence[str], options: HostOptions, cpu: Cpu
) -> tuple[bytes, tuple[str | HostCall, ...]]:
    """The object with one function per native segment, and the steps of the program."""
    steps: list[str | HostCall] = []
    module = Module(cpu)
    content = hashlib.sha256(repr((program.name, symbols, _text(program.calls))).encode())
    content.update(_text(program.buffers).encode())
    content.update(cpu.key.encode())
    prefix = "trnx_entry_" + content.hexdigest()[:32]
    segment: list[tuple[KernelCall, str]] = []

    def close() -> None:
        if segment:
            name = f"{prefix}_{len(steps)}"
            _emit_segment(module, name, program, segment)
            _emit_packed_segment(module, packed_symbol(name), program, segment)
            steps.append(name)
            segment.clear()

    for call, symbol in zip(program.calls, symbols, strict=True):
        if isinstance(call, HostCall):
            close()
            steps.append(call)
        else:
            segment.append((call, symbol))
    close()
    # The entry only calls: the quickest code generation serves it best.
    return object_code(module.text(), 0, cpu), tuple(steps)


def _emit_segment(
    module: Module, name: str, program: TileProgram, calls: Sequence[tuple[KernelCall, str]]
) -> None:
    f = Function(module, name, I32, [(PTR, "buffers"), (PTR, "registers")])
    values = {
        register: f.load(I64, f.pointer(f.argument("registers"), i64(k), I64))
        for k, register in enumerate(program.registers)
    }
    given = caller_buffers(program)
    places = {
        b.name: f.load(PTR, f.pointer(f.argument("buffers"), i64(k), PTR))
        for k, b in enumerate(given)
    }
    temps = [b for b in program.buffers if b.kind == "temp"]
    own = [b for b in temps if b.offset is None]
    if len(own) < len(temps):
        arena = f.load(PTR, f.pointer(f.argument("buffers"), i64(len(given)), PTR))
        for b in temps:
            if b.offset is not None:
                places[b.name] = f.pointer(arena, i64(b.offset), "i8")
    places |= _emit_allocations(f, own, values)
    _emit_calls(f, calls, places, values)
    for b in own:
        f.call_void("free", places[b.name])
    f.finish(_status(0))


def _emit_packed_segment(
    module: Module, name: str, program: TileProgram, calls: Sequence[tuple[KernelCall, str]]
) -> None:
    f = Function(module, name, I32, [(PTR, "slots")])
    slots = f.argument("slots")
    places = {
        b.name: f.load(PTR, f.pointer(slots, i64(k), PTR)) for k, b in enumerate(program.buffers)
    }
    values = {
        register: f.load(I64, f.pointer(slots, i64(len(program.buffers) + k), I64))
        for k, register in enumerate(program.registers)
    }
    own = [b for b in program.buffers if b.kind == "temp" and b.offset is None]
    places |= _emit_allocations(f, own, values)
    _emit_calls(f, calls, places, values)
    for b in own:
        f.call_void("free", places[b.name])
    f.finish(_status(0))


OUT_OF_MEMORY: Final = 12
"""Status of a segment that could not allocate a temporary of run-time size."""


def _status(code: int) -> Value:
    return i64(code)._replace(type=I32)


def _emit_allocations(
    f: Function, temps: Sequence[Buffer], values: dict[str, Value]
) -> dict[str, Value]:
    """Memory of temporaries whose size is only known now; all of it or none."""
    if not temps:
        return {}
    indices = Indices(f, values)
    slots = f.stack(PTR, len(temps))
    null = Value(PTR, "null")
    for k in range(len(temps)):
        f.store(null, f.pointer(slots, i64(k), PTR))
    out, ready = f.new_block("out_of_memory"), f.new_block("allocated")
    for k, b in enumerate(temps):
        nbytes = i64(b.dtype.itemsize)
        for size in b.shape:
            nbytes = f.binary("mul", nbytes, indices.value(size))
        failed = f.call("posix_memalign", I32, f.pointer(slots, i64(k), PTR), i64(64), nbytes)
        further = ready if k == len(temps) - 1 else f.new_block("allocate")
        f.branch(f.icmp("ne", failed, _status(0)), out, further)
        if further is not ready:
            f.place(further)
    f.place(out)
    for k in range(len(temps)):
        f.call_void("free", f.load(PTR, f.pointer(slots, i64(k), PTR)))
    f.line(f"ret {_status(OUT_OF_MEMORY)}")
    f.place(ready)
    return {b.name: f.load(PTR, f.pointer(slots, i64(k), PTR)) for k, b in enumerate(temps)}


def _emit_calls(
    f: Function,
    calls: Sequence[tuple[KernelCall, str]],
    places: dict[str, Value],
    values: dict[str, Value],
) -> None:
    """Calls kernels in order, given the address of every buffer and the value of every register."""
    indices = Indices(f, values)
    most = max([len(c.buffers) for c, _ in calls] + [1])
    words = max([len(c.registers) for c, _ in calls] + [1])
    buffers, registers = f.stack(PTR, most), f.stack(I64, words)
    for call, symbol in calls:
        for k, buffer in enumerate(call.buffers):
            f.store(places[buffer], f.pointer(buffers, i64(k), PTR))
        for k, register in enumerate(call.registers):
            f.store(indices.value(register), f.pointer(registers, i64(k), I64))
        f.call_void(symbol, buffers, registers)


# LLVM -------------------------------------------------------------------------------------------


@cache
def _machine(optimisation: int, cpu: Cpu) -> llvm.TargetMachine:
    target = llvm.Target.from_triple(cpu.triple)
    return target.create_target_machine(
        cpu=cpu.name,
        features=cpu.features,
        opt=optimisation,
        reloc="pic",
        codemodel="jitdefault",
        jit=True,
    )


def object_code(text: str | Sequence[str], optimisation: int, cpu: Cpu) -> bytes:
    """Object code for LLVM assembly, of one module or several; no mid-level pass runs."""
    first, *others = [text] if isinstance(text, str) else text
    with _lock:
        module = llvm.parse_assembly(first)
        for other in others:
            module.link_in(llvm.parse_assembly(other))
        return bytes(_machine(optimisation, cpu).emit_object(module))
