"""CPUs that code is generated for in tests: this one, and the same with fewer features."""

from __future__ import annotations

from trnx.compiler.host.cpu import Cpu, host_cpu

_WIDE = ("avx512", "avx10", "evex512")


def _variants() -> dict[str, Cpu | None]:
    cpu = host_cpu()
    table: dict[str, Cpu | None] = {"own": None}
    if cpu.vector_bytes == 64:
        table["avx2"] = cpu.without(*_WIDE)
    if cpu.vector_bytes >= 32:
        table["no fma"] = cpu.without(*_WIDE, "fma")
        table["sse2"] = cpu.without("avx", "f16c", "fma", "evex512", "vaes", "vpcl", "xop", "sse4")
    return table


CPUS = _variants()
"""By name; None stands for the CPU of this process."""
