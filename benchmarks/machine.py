"""What this machine can do at most, measured: fused multiply-adds and memory copies."""

from __future__ import annotations

import ctypes
import os
import platform
import threading
import time
from importlib import metadata

import llvmlite.binding as llvm
import numpy as np

_LIBRARIES = ("trnx", "jax", "torch", "llvmlite")
_FMA_CHAINS = 24
_FMA_ROUNDS = 2_000_000


def _vector_bytes() -> int:
    features = llvm.get_host_cpu_features()
    if features.get("avx512f"):
        return 64
    return 32 if features.get("avx2") else 16


def _fma_source(lanes: int) -> str:
    vector = f"<{lanes} x float>"
    ones = f"{vector} splat (float 1.0)"
    lines = [
        f"declare {vector} @llvm.fma.v{lanes}f32({vector}, {vector}, {vector})",
        "define float @fma_loop(i64 %rounds, float %x) {",
        "entry:",
        f"  %s0 = insertelement {vector} undef, float %x, i32 0",
        f"  %s = shufflevector {vector} %s0, {vector} undef, <{lanes} x i32> zeroinitializer",
        "  br label %loop",
        "loop:",
        "  %i = phi i64 [0, %entry], [%next, %loop]",
    ]
    for c in range(_FMA_CHAINS):
        lines.append(f"  %a{c} = phi {vector} [%s, %entry], [%b{c}, %loop]")
    for c in range(_FMA_CHAINS):
        lines.append(
            f"  %b{c} = call {vector} @llvm.fma.v{lanes}f32({vector} %a{c}, {vector} %s, {ones})"
        )
    lines += [
        "  %next = add i64 %i, 1",
        "  %done = icmp eq i64 %next, %rounds",
        "  br i1 %done, label %exit, label %loop",
        "exit:",
    ]
    total = "%b0"
    for c in range(1, _FMA_CHAINS):
        lines.append(f"  %t{c} = fadd {vector} {total}, %b{c}")
        total = f"%t{c}"
    lines += [f"  %r = extractelement {vector} {total}, i32 0", "  ret float %r", "}"]
    return "\n".join(lines)


def fma_limit(threads: int) -> float:
    """Floating-point operations per second of ``threads`` threads running f32 FMAs."""
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    lanes = _vector_bytes() // 4
    module = llvm.parse_assembly(_fma_source(lanes))
    machine = llvm.Target.from_default_triple().create_target_machine(
        cpu=llvm.get_host_cpu_name(), features=llvm.get_host_cpu_features().flatten(), opt=2
    )
    engine = llvm.create_mcjit_compiler(module, machine)
    engine.finalize_object()
    loop = ctypes.CFUNCTYPE(ctypes.c_float, ctypes.c_int64, ctypes.c_float)(
        engine.get_function_address("fma_loop")
    )
    best = 0.0
    for _ in range(3):
        workers = [threading.Thread(target=loop, args=(_FMA_ROUNDS, 0.5)) for _ in range(threads)]
        start = time.perf_counter()
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        elapsed = time.perf_counter() - start
        best = max(best, 2.0 * lanes * _FMA_CHAINS * _FMA_ROUNDS * threads / elapsed)
    return best


def copy_limit(threads: int, size: int = 1 << 28) -> float:
    """Bytes read plus bytes written per second when ``threads`` threads copy a large array."""
    source = np.ones(size, np.uint8)
    target = np.zeros(size, np.uint8)
    parts = np.array_split(np.arange(size), threads)
    slices = [slice(int(p[0]), int(p[-1]) + 1) for p in parts]
    best = 0.0
    for _ in range(4):
        workers = [threading.Thread(target=np.copyto, args=(target[s], source[s])) for s in slices]
        start = time.perf_counter()
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        best = max(best, 2.0 * size / (time.perf_counter() - start))
    return best


def describe(threads: int) -> dict[str, object]:
    """CPU name, features that matter, thread count and the measured limits."""
    features = llvm.get_host_cpu_features()
    return {
        "cpu": llvm.get_host_cpu_name(),
        "system": platform.platform(),
        "python": platform.python_version(),
        "cores": os.cpu_count(),
        "threads": threads,
        "vector_bytes": _vector_bytes(),
        "amx": bool(features.get("amx-tile")),
        "versions": ", ".join(f"{name} {metadata.version(name)}" for name in _LIBRARIES),
        "flops": fma_limit(threads),
        "bytes": copy_limit(threads),
    }
