"""The one table of targets: what a NeuronCore (or the host CPU) has, in numbers.

Every field of ``Target`` carries its unit, meaning and source document in its metadata, so that
``render_markdown`` prints ``docs/targets.md`` from this file alone. Source keys name public
documents of the AWS Neuron SDK (see ``SOURCES``). A number without a published value says
"assumed" in its meaning. Conflicting publications (for example 3.0 and 2.9 TB/s) take the lower.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any, Final

import numpy as np

from trnx.core.dtypes import short_name

SOURCES: Final = {
    "T1": "aws-neuron-sdk nki/guides/architecture/trainium_inferentia2_arch.rst",
    "T2": "aws-neuron-sdk nki/guides/architecture/trainium2_arch.rst",
    "T3": "aws-neuron-sdk nki/guides/architecture/trainium3_arch.rst",
    "HW": "aws-neuron-sdk about-neuron/arch/neuron-hardware/*.rst",
    "ISA": "aws-neuron-sdk nki/api/nki/isa/__init__.py",
    "ISA-2510": "the same file at commit 1db4d74e (2025-10-17), the last with cycle formulas",
    "PERF": "aws-neuron-sdk nki/deep-dives/nki_perf_guide.rst",
    "DMAO": "aws-neuron-sdk nki/get-started/about/nki-dma-overview.rst",
    "DMABW": "aws-neuron-sdk nki/deep-dives/nki-dma-bandwidth-guide.rst",
    "DGE": "aws-neuron-sdk nki/deep-dives/nki-dge.rst",
    "TS": "aws-neuron-sdk nki/api/nki.language.tile_size.rst",
    "LIB": "nki-library, constants and cost models in its kernels",
    "host": "measured on one AVX2 core at 2.0 GHz (docs/design)",
}
"""Source keys of the table and the documents they stand for."""


def _fact(doc: str, source: str, unit: str = "") -> Any:
    """A required field with its meaning, source keys and unit."""
    return field(metadata={"doc": doc, "source": source, "unit": unit})


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """One row of the table. Sizes are per NeuronCore; "per partition" where the name says so."""

    name: str = _fact("name used by `target=` and `TRNX_TARGET`", "")
    nki_name: str = _fact("platform name NKI uses; empty when there is none", "ISA")
    generation: str = _fact("NeuronCore generation", "ISA, HW")

    partitions: int = _fact("partitions of SBUF and PSUM, lanes of every engine", "T1, T2, T3")
    sbuf_partition_bytes: int = _fact("SBUF per partition", "T1, T2, T3", "B")
    sbuf_usable_bytes: int = _fact(
        "SBUF per partition a kernel may use (trn2 as library kernels do; the same 16,392 B "
        "reservation assumed for trn1 and trn3)",
        "LIB",
        "B",
    )
    psum_bank_bytes: int = _fact("PSUM bank per partition", "T1, TS", "B")
    psum_banks: int = _fact("PSUM banks, also the outstanding accumulation groups", "T1, TS")
    working_set_bytes: int = _fact(
        "bytes per partition that the tiles alive at one time should stay below: usable SBUF, on "
        "cpu a share of the second-level cache",
        "LIB, host",
        "B",
    )

    tensor_clock_ghz: float = _fact(
        "TensorE clock (cpu: the rate at which the same formula gives 36 GFLOP/s)",
        "T1, T2, T3, host",
        "GHz",
    )
    vector_clock_ghz: float = _fact(
        "VectorE clock, one element per partition and cycle (cpu: 16 f32 per ns)",
        "T1, T2, T3, host",
        "GHz",
    )
    scalar_clock_ghz: float = _fact(
        "ScalarE clock, one element per partition and cycle", "T1, T2, T3, host", "GHz"
    )
    gpsimd_clock_ghz: float = _fact(
        "GpSimdE clock, one element per partition and cycle", "T1, T2, T3, host", "GHz"
    )
    concurrent_engines: bool = _fact("engines and DMA queues run at the same time", "T1")

    matmul_max_contract: int = _fact("rows of the PE array: largest K of one matmul", "T1, ISA")
    matmul_max_stationary: int = _fact("columns of the PE array: largest M", "T1, ISA")
    matmul_max_moving: int = _fact("largest N of one matmul (fp32 destination)", "ISA, T3")
    matmul_fp32_factor: int = _fact("cycles per column of an fp32 matmul", "ISA-2510")
    matmul_fp64_factor: int = _fact("cycles per column of an f64 matmul; 0: none", "host")
    transpose_vector_max: int = _fact("largest side of a VectorE transpose", "ISA")
    fast_weight_load: int = _fact("stationary columns loaded per cycle", "T1, PERF")

    min_cycles: int = _fact("least cycles between two instructions of an engine", "ISA-2510, T1")
    tensor_latency_cycles: int = _fact("TensorE pipeline fill of a dependent matmul", "PERF")
    vector_latency_cycles: int = _fact(
        "cycles from the last element to a dependent VectorE instruction", "LIB"
    )
    scalar_latency_cycles: int = _fact(
        "cycles from the last element to a dependent ScalarE instruction (measured on trn1: 264 "
        "cycles between dependent [128, 1] instructions)",
        "PERF",
    )
    gpsimd_latency_cycles: int = _fact("the same for GpSimdE; assumed as T1's 100", "T1")
    gpsimd_start_cycles: int = _fact("start-up of iota, affine_select and gathers", "ISA-2510")
    dynamic_offset_cycles: int = _fact("least cycles with a register in an address", "ISA-2510")
    read_accumulator_cycles: int = _fact("reading out the accumulation registers", "ISA-2510")
    activation_table_ns: float = _fact(
        "loading another ScalarE function table (seen in a profile before the first exp)",
        "DMAO",
        "ns",
    )
    semaphore_ns: float = _fact(
        "signal from one engine to another; with the engine latency this gives the 0.3 us "
        "of an isolated activation",
        "DMAO, PERF",
        "ns",
    )

    dma_engines: int = _fact("DMA engines of a core; engine e moves partitions 8e..8e+7", "DMAO")
    dma_engine_bytes_per_ns: float = _fact(
        "planning bandwidth of one engine", "DMABW, DMAO", "B/ns"
    )
    dma_issue_ns: float = _fact("least time between two DMAs of one queue", "T2, DGE", "ns")
    dma_start_ns: float = _fact("trigger to first byte (0.74 and 1.0 us in profiles)", "DMAO", "ns")
    dma_completion_ns: float = _fact("last byte to the consumer's start", "DMAO", "ns")
    dma_packet_bytes: int = _fact(
        "shortest contiguous run moved at full rate; shorter ones cost as much (256 B rows were "
        "seen at 21 B/ns; below that a DMA is bound by packets)",
        "DMABW, DMAO",
        "B",
    )
    hbm_bytes_per_ns: float = _fact("HBM bandwidth, one core's share", "T1, HW", "B/ns")
    launch_ns: float = _fact("start and teardown of a program (intercept of a fit)", "LIB", "ns")

    tile_dtypes: tuple[str, ...] = _fact("dtypes a tile may hold and a DMA may move", "ISA")
    compute_dtypes: tuple[str, ...] = _fact("dtypes arithmetic accepts", "ISA, T3")
    matmul_dtypes: tuple[str, ...] = _fact("dtypes of matmul operands", "ISA, T3")
    native_f64: bool = _fact("f64 operands are computed in f64", "host")
    native_i64: bool = _fact("64-bit integer arithmetic is exact and native", "host")

    vector_wide_dtypes: tuple[str, ...] = _fact(
        "dtypes for which VectorE's 2x and 4x modes exist", "T2, T3"
    )
    scalar_wide_dtypes: tuple[str, ...] = _fact(
        "dtypes for which ScalarE copies and scales at 2x", "T3"
    )
    scalar_alu: tuple[str, ...] = _fact("ALU operators of tensor_scalar on ScalarE", "T2, ISA")
    scalar_copy: bool = _fact("tensor_copy runs on ScalarE, bit exact", "ISA")
    transpose_keeps_dtype: bool = _fact("TensorE transposes are bit exact in any dtype", "T2")
    vector_gpsimd_share_sbuf: bool = _fact("VectorE and GpSimdE take turns on SBUF", "T1, T2")
    vector_scalar_share_psum: bool = _fact("VectorE and ScalarE take turns on PSUM", "T1, T2")

    @property
    def sbuf_bytes(self) -> int:
        """SBUF of a core in bytes."""
        return self.partitions * self.sbuf_partition_bytes

    @property
    def psum_partition_bytes(self) -> int:
        """PSUM per partition in bytes."""
        return self.psum_banks * self.psum_bank_bytes

    @property
    def psum_bytes(self) -> int:
        """PSUM of a core in bytes."""
        return self.partitions * self.psum_partition_bytes

    @property
    def dma_bytes_per_ns(self) -> float:
        """Planning bandwidth of all DMA engines of a core, B/ns."""
        return self.dma_engines * self.dma_engine_bytes_per_ns

    def clock_ghz(self, engine: str) -> float:
        """Clock of a compute engine (``tensor``, ``vector``, ``scalar``, ``gpsimd``) in GHz."""
        clocks = {
            "tensor": self.tensor_clock_ghz,
            "vector": self.vector_clock_ghz,
            "scalar": self.scalar_clock_ghz,
            "gpsimd": self.gpsimd_clock_ghz,
        }
        return clocks[engine]

    def latency_ns(self, engine: str) -> float:
        """Time in ns from a compute engine's last element until its result can be read."""
        cycles = {
            "tensor": self.tensor_latency_cycles,
            "vector": self.vector_latency_cycles,
            "scalar": self.scalar_latency_cycles,
            "gpsimd": self.gpsimd_latency_cycles,
        }
        return cycles[engine] / self.clock_ghz(engine)

    def matmul_columns(self, itemsize: int = 4) -> int:
        """Largest N of a matmul whose destination elements have ``itemsize`` bytes in one bank."""
        return min(self.matmul_max_moving, self.psum_bank_bytes // itemsize)

    def holds(self, dtype: np.dtype[Any]) -> bool:
        """Whether a tile may hold ``dtype``."""
        return short_name(dtype) in self.tile_dtypes

    def computes(self, dtype: np.dtype[Any]) -> bool:
        """Whether Vector, Scalar and GpSimd arithmetic accepts ``dtype``."""
        return short_name(dtype) in self.compute_dtypes

    def multiplies(self, dtype: np.dtype[Any]) -> bool:
        """Whether a matmul accepts ``dtype``."""
        return short_name(dtype) in self.matmul_dtypes


_SMALL_INTEGERS = ("bool", "i8", "u8", "i16", "u16", "i32", "u32")
_WIDE_INTEGERS = ("i64", "u64")
_FLOATS = ("bf16", "f16", "f32")
_FP8 = ("f8e4m3", "f8e5m2")
_FP8_OCP = (*_FP8, "f8e4m3fn")

TRN1: Final = Target(
    name="trn1",
    nki_name="trn1",
    generation="NeuronCore-v2",
    partitions=128,
    sbuf_partition_bytes=192 * 1024,
    sbuf_usable_bytes=192 * 1024 - 16384 - 8,
    psum_bank_bytes=2048,
    psum_banks=8,
    working_set_bytes=192 * 1024 - 16384 - 8,
    tensor_clock_ghz=2.8,
    vector_clock_ghz=1.12,
    scalar_clock_ghz=1.4,
    gpsimd_clock_ghz=1.4,
    concurrent_engines=True,
    matmul_max_contract=128,
    matmul_max_stationary=128,
    matmul_max_moving=512,
    matmul_fp32_factor=4,
    matmul_fp64_factor=0,
    transpose_vector_max=32,
    fast_weight_load=4,
    min_cycles=64,
    tensor_latency_cycles=64,
    vector_latency_cycles=144,
    scalar_latency_cycles=200,
    gpsimd_latency_cycles=100,
    gpsimd_start_cycles=150,
    dynamic_offset_cycles=600,
    read_accumulator_cycles=64,
    activation_table_ns=1300.0,
    semaphore_ns=100.0,
    dma_engines=16,
    dma_engine_bytes_per_ns=17.0,
    dma_issue_ns=600.0,
    dma_start_ns=1000.0,
    dma_completion_ns=300.0,
    dma_packet_bytes=256,
    hbm_bytes_per_ns=410.0,
    launch_ns=30000.0,
    tile_dtypes=(*_SMALL_INTEGERS, *_WIDE_INTEGERS, *_FLOATS, *_FP8),
    compute_dtypes=(*_SMALL_INTEGERS, *_FLOATS, *_FP8),
    matmul_dtypes=(*_FLOATS, *_FP8),
    native_f64=False,
    native_i64=False,
    vector_wide_dtypes=(),
    scalar_wide_dtypes=(),
    scalar_alu=(),
    scalar_copy=False,
    transpose_keeps_dtype=False,
    vector_gpsimd_share_sbuf=True,
    vector_scalar_share_psum=True,
)

TRN2: Final = Target(
    name="trn2",
    nki_name="trn2",
    generation="NeuronCore-v3",
    partitions=128,
    sbuf_partition_bytes=224 * 1024,
    sbuf_usable_bytes=224 * 1024 - 16384 - 8,
    psum_bank_bytes=2048,
    psum_banks=8,
    working_set_bytes=224 * 1024 - 16384 - 8,
    tensor_clock_ghz=2.4,
    vector_clock_ghz=0.96,
    scalar_clock_ghz=1.2,
    gpsimd_clock_ghz=1.2,
    concurrent_engines=True,
    matmul_max_contract=128,
    matmul_max_stationary=128,
    matmul_max_moving=512,
    matmul_fp32_factor=4,
    matmul_fp64_factor=0,
    transpose_vector_max=32,
    fast_weight_load=4,
    min_cycles=64,
    tensor_latency_cycles=64,
    vector_latency_cycles=144,
    scalar_latency_cycles=200,
    gpsimd_latency_cycles=100,
    gpsimd_start_cycles=150,
    dynamic_offset_cycles=600,
    read_accumulator_cycles=64,
    activation_table_ns=1300.0,
    semaphore_ns=100.0,
    dma_engines=16,
    dma_engine_bytes_per_ns=23.0,
    dma_issue_ns=600.0,
    dma_start_ns=1000.0,
    dma_completion_ns=300.0,
    dma_packet_bytes=256,
    hbm_bytes_per_ns=363.0,
    launch_ns=30000.0,
    tile_dtypes=(*_SMALL_INTEGERS, *_WIDE_INTEGERS, *_FLOATS, *_FP8),
    compute_dtypes=(*_SMALL_INTEGERS, *_FLOATS, *_FP8),
    matmul_dtypes=(*_FLOATS, *_FP8),
    native_f64=False,
    native_i64=False,
    vector_wide_dtypes=("bf16", "f16"),
    scalar_wide_dtypes=(),
    scalar_alu=("add", "multiply"),
    scalar_copy=True,
    transpose_keeps_dtype=True,
    vector_gpsimd_share_sbuf=False,
    vector_scalar_share_psum=False,
)

TRN3: Final = Target(
    name="trn3",
    nki_name="trn3",
    generation="NeuronCore-v4",
    partitions=128,
    sbuf_partition_bytes=256 * 1024,
    sbuf_usable_bytes=256 * 1024 - 16384 - 8,
    psum_bank_bytes=2048,
    psum_banks=8,
    working_set_bytes=256 * 1024 - 16384 - 8,
    tensor_clock_ghz=2.4,
    vector_clock_ghz=1.2,
    scalar_clock_ghz=1.2,
    gpsimd_clock_ghz=1.2,
    concurrent_engines=True,
    matmul_max_contract=128,
    matmul_max_stationary=128,
    matmul_max_moving=4096,
    matmul_fp32_factor=4,
    matmul_fp64_factor=0,
    transpose_vector_max=32,
    fast_weight_load=4,
    min_cycles=64,
    tensor_latency_cycles=64,
    vector_latency_cycles=144,
    scalar_latency_cycles=200,
    gpsimd_latency_cycles=100,
    gpsimd_start_cycles=150,
    dynamic_offset_cycles=600,
    read_accumulator_cycles=64,
    activation_table_ns=1300.0,
    semaphore_ns=100.0,
    dma_engines=16,
    dma_engine_bytes_per_ns=33.0,
    dma_issue_ns=600.0,
    dma_start_ns=1000.0,
    dma_completion_ns=300.0,
    dma_packet_bytes=256,
    hbm_bytes_per_ns=588.0,
    launch_ns=30000.0,
    tile_dtypes=(*_SMALL_INTEGERS, *_WIDE_INTEGERS, *_FLOATS, *_FP8_OCP),
    compute_dtypes=(*_SMALL_INTEGERS, *_FLOATS, *_FP8_OCP),
    matmul_dtypes=(*_FLOATS, *_FP8_OCP),
    native_f64=False,
    native_i64=False,
    vector_wide_dtypes=("bf16", "f16", *_FP8_OCP),
    scalar_wide_dtypes=("bf16", "f16", *_FP8_OCP),
    scalar_alu=("add", "multiply"),
    scalar_copy=True,
    transpose_keeps_dtype=True,
    vector_gpsimd_share_sbuf=False,
    vector_scalar_share_psum=False,
)

CPU: Final = Target(
    name="cpu",
    nki_name="",
    generation="host processor",
    partitions=128,
    sbuf_partition_bytes=224 * 1024,
    sbuf_usable_bytes=224 * 1024,
    psum_bank_bytes=4096,
    psum_banks=8,
    working_set_bytes=4 * 1024,
    tensor_clock_ghz=0.0044,
    vector_clock_ghz=0.125,
    scalar_clock_ghz=0.125,
    gpsimd_clock_ghz=0.125,
    concurrent_engines=False,
    matmul_max_contract=128,
    matmul_max_stationary=128,
    matmul_max_moving=512,
    matmul_fp32_factor=4,
    matmul_fp64_factor=8,
    transpose_vector_max=32,
    fast_weight_load=4,
    min_cycles=1,
    tensor_latency_cycles=0,
    vector_latency_cycles=0,
    scalar_latency_cycles=0,
    gpsimd_latency_cycles=0,
    gpsimd_start_cycles=0,
    dynamic_offset_cycles=1,
    read_accumulator_cycles=0,
    activation_table_ns=0.0,
    semaphore_ns=0.0,
    dma_engines=16,
    dma_engine_bytes_per_ns=0.5,
    dma_issue_ns=10.0,
    dma_start_ns=0.0,
    dma_completion_ns=0.0,
    dma_packet_bytes=16,
    hbm_bytes_per_ns=8.0,
    launch_ns=1500.0,
    tile_dtypes=(*_SMALL_INTEGERS, *_WIDE_INTEGERS, *_FLOATS, "f64", *_FP8_OCP),
    compute_dtypes=(*_SMALL_INTEGERS, *_WIDE_INTEGERS, *_FLOATS, "f64", *_FP8_OCP),
    matmul_dtypes=(*_FLOATS, "f64", *_FP8_OCP),
    native_f64=True,
    native_i64=True,
    vector_wide_dtypes=(),
    scalar_wide_dtypes=(),
    scalar_alu=("add", "multiply"),
    scalar_copy=True,
    transpose_keeps_dtype=True,
    vector_gpsimd_share_sbuf=False,
    vector_scalar_share_psum=False,
)

TARGETS: Final = {t.name: t for t in (TRN1, TRN2, TRN3, CPU)}
"""Every target by name."""


def target(name: str) -> Target:
    """The row ``name``.

    Raises:
        ValueError: there is no such target; the text lists the names.
    """
    try:
        return TARGETS[name]
    except KeyError:
        raise ValueError(f"No target {name!r}. Use one of {', '.join(TARGETS)}.") from None


def _cell(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, tuple):
        return " ".join(value) if value else "none"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:,g}"
    return str(value) if value else "none"


def render_markdown() -> str:
    """The text of ``docs/targets.md``: one line per field, one column per target."""
    names = list(TARGETS)
    lines = [
        "# Targets",
        "",
        "Written from `compiler/targets.py` by `python -m trnx.compiler.targets`.",
        "",
        f"| field | {' | '.join(names)} | unit | meaning | source |",
        f"|{'---|' * (len(names) + 4)}",
    ]
    for item in fields(Target):
        if item.name == "name":
            continue
        cells = " | ".join(_cell(getattr(t, item.name)) for t in TARGETS.values())
        meta = item.metadata
        lines.append(
            f"| `{item.name}` | {cells} | {meta['unit']} | {meta['doc']} | {meta['source']} |"
        )
    lines += ["", "## Sources", ""]
    lines += [f"* **{key}**: {text}" for key, text in SOURCES.items()]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    print(render_markdown(), end="")
