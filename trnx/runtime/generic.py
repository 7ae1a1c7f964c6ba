"""Shape-generic kernels: a program whose sizes and strides are run-time integers, as one address.

The PyTorch device calls these from C++ with raw pointers, so one kernel serves every shape.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace

from trnx.compiler import host, pipeline
from trnx.compiler.passes.groups import Layouts
from trnx.compiler.tile.ir import HostCall, TileProgram
from trnx.core.errors import UnsupportedError, message
from trnx.core.program import Program
from trnx.runtime.compiled import Compiled, load_code
from trnx.runtime.devices import Device
from trnx.runtime.programs import CompileEvent, announce, cache_key, compile_cache


@dataclass(frozen=True, slots=True)
class GenericKernel:
    """Native code ``int32_t kernel(void* const* pointers, const int64_t* registers)``.

    ``pointers`` are the outputs, then the inputs; ``registers`` follow the layouts' order. The code
    stays loaded as long as the process.
    """

    address: int
    tile_program: TileProgram


def generic_kernel(program: Program, device: Device, layouts: Layouts) -> GenericKernel:
    """Compile a program over symbolic sizes to one native function, or take it from the cache.

    Args:
        program: its sizes are named dims; without captured arrays.
        device: what it is compiled for.
        layouts: strides of inputs and outputs, and the order of registers.

    Raises:
        UnsupportedError: it needs a host function, for which a bare address has no place.
        LoweringError: something has no lowering.
    """
    start = time.perf_counter()
    origin = "cache"
    layouts = replace(layouts, apart=True)

    def build() -> Compiled:
        nonlocal origin
        origin = "compiled"
        tiles = pipeline.compile_program(program, device.target, layouts=layouts)
        outputs = [b for b in tiles.buffers if b.kind == "output"]
        if any(isinstance(call, HostCall) for call in tiles.calls):
            raise UnsupportedError(
                message(
                    f"{program.name} does not fit one kernel over run-time sizes",
                    None,
                    "Compile it for fixed sizes",
                )
            )
        inputs = [b for b in tiles.buffers if b.kind == "input"]
        # The caller passes no arena: every temporary is allocated by the code itself.
        temps = [replace(b, offset=None) for b in tiles.buffers if b.kind == "temp"]
        tiles = replace(tiles, buffers=(*outputs, *inputs, *temps), arena_bytes=0)
        return load_code(tiles, host.compile_program(tiles, overlapping=True))

    key = cache_key(program, device)
    key = replace(key, program=f"{key.program} {layouts}")
    compiled = compile_cache.get_or_build(key, build)
    announce(
        CompileEvent(
            "eager",
            program.name,
            str(device),
            key.digest(),
            origin,
            time.perf_counter() - start,
        )
    )
    return GenericKernel(host.load(compiled.code).address, compiled.tile_program)
