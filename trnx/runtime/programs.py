"""From programs to executables: the one place that asks the compiler and the compile cache."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np

from trnx.compiler import host
from trnx.core import Aval, config
from trnx.core.errors import TraceError, message
from trnx.core.program import Program, constants_to_inputs, fingerprint, prune
from trnx.core.tracing import Tracer, trace_program
from trnx.ops import functions
from trnx.runtime.array import Array
from trnx.runtime.cache import CacheKey, CompileCache, code_version
from trnx.runtime.compiled import Compiled, HostSegment, compile_program, load
from trnx.runtime.convert import from_host, place
from trnx.runtime.devices import CPU, Device
from trnx.runtime.executable import Executable
from trnx.runtime.narrow import NarrowedExecutable, is_narrowed


@dataclass(frozen=True, slots=True)
class CompileEvent:
    """One executable was made for a new program key.

    Attributes:
        kind: `jit` for a traced function, `op` for one primitive, `call` for a program that a
            transform of a jitted function made, `eager` for a shape-generic kernel.
        name: name of the function or primitive.
        device: where it runs.
        key: digest of the cache key; programs of equal content share it.
        origin: `compiled`, or `cache` if memory or disk had the code.
        seconds: time from program to executable.
        fallbacks: host functions the program falls back to, one entry per call in it.
    """

    kind: str
    name: str
    device: str
    key: str
    origin: str
    seconds: float
    fallbacks: tuple[str, ...] = ()


compile_listeners: list[Callable[[CompileEvent], None]] = []
"""Called with each CompileEvent; `trnx.testing.count_compiles` adds one."""

compile_cache: CompileCache[Compiled] = CompileCache(Compiled.serialize, load)
"""The cache all programs of the process share."""


def cache_key(program: Program, device: Device, donated: Sequence[int] = ()) -> CacheKey:
    """The key of a program without constants."""
    identity = host.host_identity()
    return CacheKey(
        program=fingerprint(program),
        donated=tuple(donated),
        target=device.target,
        trnx=code_version(),
        llvmlite=identity.llvmlite,
        llvm=identity.llvm,
        cpu=identity.cpu,
        features=identity.features,
        options=identity.options,
    )


@dataclass(frozen=True, slots=True)
class Bound:
    """Code and the arrays its program captured, as the leading inputs on its device."""

    closed: Program
    compiled: Compiled
    constants: tuple[Array, ...]


def executable_for(
    program: Program, device: Device, donated: Sequence[int] = (), kind: str = "jit"
) -> Executable:
    """Compile a program, or take it from the cache, and bind it to a device.

    Args:
        program: what to compile; its sizes must be static. Captured arrays become bound inputs.
        device: where it runs.
        donated: positions of inputs whose memory results may take.
        kind: see :class:`CompileEvent`.
    """
    found = compiled_for(program, device, donated, kind)
    compiled, given, bound = found.compiled, found.closed.in_avals, found.constants
    if is_narrowed(compiled, given, program.out_avals):
        return NarrowedExecutable(compiled, device, given, program.out_avals, bound, _convert)
    return Executable(compiled, device, program.out_avals, bound)


def compiled_for(
    program: Program, device: Device, donated: Sequence[int] = (), kind: str = "jit"
) -> Bound:
    """The code of a program, whose sizes may be run-time integers; arguments as above.

    Raises:
        TraceError: the program captured a traced value.
    """
    start = time.perf_counter()
    closed, constants = constants_to_inputs(prune(program))
    for value in constants:
        if isinstance(value, Tracer):
            raise TraceError(
                message(
                    f"{program.name} captured a traced value {value.aval} and was to be compiled "
                    "on its own",
                    value.source,
                    "Pass the value as an argument",
                )
            )
    shifted = tuple(position + len(constants) for position in donated)
    key = cache_key(closed, device, shifted)
    origin = "cache"

    def build() -> Compiled:
        nonlocal origin
        origin = "compiled"
        return compile_program(closed, device.target, shifted)

    compiled = compile_cache.get_or_build(key, build)
    bound = tuple([from_host(value, device=device) for value in constants])
    announce(
        CompileEvent(
            kind,
            program.name,
            str(device),
            key.digest(),
            origin,
            time.perf_counter() - start,
            tuple(s.function for s in compiled.segments if isinstance(s, HostSegment)),
        )
    )
    return Bound(closed, compiled, bound)


def announce(event: CompileEvent) -> None:
    """Print an event at debug level 1 and above, and tell the listeners."""
    if config.debug.value >= 1:
        print(
            f"trnx: {event.origin} {event.kind} {event.name} for {event.device} in "
            f"{event.seconds * 1e3:.1f} ms ({event.key[:12]})"
            + (f", host fallbacks: {', '.join(event.fallbacks)}" if event.fallbacks else ""),
            file=sys.stderr,
        )
    for listener in tuple(compile_listeners):
        listener(event)


def _convert(array: Array, dtype: np.dtype[Any], device: Device) -> Array:
    """An array of another dtype, by a program of device `cpu`."""
    aval = array.aval.with_dtype(array.dtype)
    key = (aval, dtype)
    program = _conversions.get(key)
    if program is None:
        program = trace_program(lambda x: [functions.convert(x, dtype)], [aval], "convert")
        _conversions[key] = program
    (result,) = cached_executable(program, CPU)([array])
    return place(result, device, None)


_conversions: dict[tuple[Aval, np.dtype[Any]], Program] = {}
_by_program: WeakKeyDictionary[Program, dict[tuple[str, str], Executable]] = WeakKeyDictionary()


def cached_executable(program: Program, device: Device) -> Executable:
    """The executable of a program object, made once per target and kept while it lives."""
    known: dict[Any, Executable] = _by_program.setdefault(program, {})
    place = (device.kind, device.target)
    executable = known.get(place)
    if executable is None:
        executable = known[place] = executable_for(program, device, kind="call")
    return executable
