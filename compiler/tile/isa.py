"""The instruction set: every fact about an instruction, once.

Names, operands and attributes follow ``nki.isa`` (NKI 0.6). The printer, the parser, the legality
checks, the NKI emitter and reader, the simulator's dispatch and the host code generator all read
this table. Source of the facts: the public ``nki.isa`` reference and the NeuronCore v2-v4
architecture guides.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from trnx.compiler.tile.ir import Access, Attribute, HbmAccess, Instruction, TileAccess

TENSOR: Final = "tensor"
VECTOR: Final = "vector"
SCALAR: Final = "scalar"
GPSIMD: Final = "gpsimd"
SYNC: Final = "sync"
COMPUTE_ENGINES: Final = (TENSOR, VECTOR, SCALAR, GPSIMD)
DMA_QUEUES: Final = (SYNC, SCALAR, GPSIMD)
"""Engines whose sequencer may trigger a DMA; each has a queue of its own, run in order."""

ON_CHIP: Final = ("sbuf", "psum")


@dataclass(frozen=True, slots=True)
class OperandSpec:
    """An operand: where it may live, whether a scalar or a ``[P, 1]`` row scalar may stand for it.

    ``form`` is ``tile`` (an access), ``scalar`` (immediate or ``[P, 1]`` access) or
    ``immediate``.
    """

    name: str
    memories: tuple[str, ...] = ON_CHIP
    form: str = "tile"
    optional: bool = False


@dataclass(frozen=True, slots=True)
class AttributeSpec:
    """A compile-time attribute, its default and its kind.

    ``kind`` is one of ``alu`` (a name in ``ALU``), ``activation`` (a name in ``ACTIVATIONS``),
    ``bool``, ``predicate`` (bool or affine predicate), ``int``, ``float``, ``index`` (integer
    expression), ``axes`` (tuple of axes), ``pattern`` (tuple of (step, count)), ``enum``.
    """

    name: str
    kind: str
    default: Attribute = None
    choices: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class InstructionSpec:
    """One instruction of the NeuronCore. ``engines[0]`` is the default engine."""

    name: str
    engines: tuple[str, ...]
    outs: tuple[OperandSpec, ...]
    ins: tuple[OperandSpec, ...]
    attrs: tuple[AttributeSpec, ...] = ()
    doc: str = ""

    @property
    def is_dma(self) -> bool:
        """Whether the instruction runs on the DMA engines."""
        return self.name.startswith("dma_")


@dataclass(frozen=True, slots=True)
class AluOp:
    """An ALU operator. ``kind`` is ``arith``, ``compare``, ``logical`` or ``bitvec``.

    ``engines`` may run it; ``reducible`` operators may be a reduction's ``op``. Operators with
    ``native=False`` do not exist on a NeuronCore and are legal on the ``cpu`` target only.
    """

    name: str
    kind: str
    engines: tuple[str, ...] = (VECTOR,)
    reducible: bool = False
    unary: bool = False
    native: bool = True


def _alu(*ops: AluOp) -> dict[str, AluOp]:
    return {op.name: op for op in ops}


ALU: Final = _alu(
    AluOp("add", "arith", (VECTOR, GPSIMD, SCALAR), reducible=True),
    AluOp("subtract", "arith", (VECTOR, GPSIMD), reducible=True),
    AluOp("multiply", "arith", (VECTOR, GPSIMD, SCALAR), reducible=True),
    AluOp("maximum", "arith", (VECTOR,), reducible=True),
    AluOp("minimum", "arith", (VECTOR,), reducible=True),
    AluOp("power", "arith", (GPSIMD,)),
    AluOp("divide", "arith", (VECTOR,), native=False),
    AluOp("floordivide", "arith", (VECTOR,), native=False),
    AluOp("remainder", "arith", (VECTOR,), native=False),
    AluOp("equal", "compare"),
    AluOp("not_equal", "compare"),
    AluOp("less", "compare"),
    AluOp("less_equal", "compare"),
    AluOp("greater", "compare"),
    AluOp("greater_equal", "compare"),
    AluOp("logical_and", "logical", reducible=True),
    AluOp("logical_or", "logical", reducible=True),
    AluOp("logical_xor", "logical"),
    AluOp("logical_not", "logical", unary=True),
    AluOp("bitwise_and", "bitvec", reducible=True),
    AluOp("bitwise_or", "bitvec", reducible=True),
    AluOp("bitwise_xor", "bitvec", reducible=True),
    AluOp("bitwise_not", "bitvec", unary=True),
    AluOp("left_shift", "bitvec"),
    AluOp("right_shift", "bitvec"),
    AluOp("arithmetic_shift_right", "bitvec", native=False),
)
"""ALU operators of Vector, GpSimd and Scalar engine instructions, NumPy-named as in ``nl``.
``right_shift`` is logical. Compare and logical results are 1 or 0 in the destination's dtype."""

ACTIVATIONS: Final = (
    "copy",
    "square",
    "abs",
    "sign",
    "relu",
    "sigmoid",
    "tanh",
    "exp",
    "log",
    "sin",
    "arctan",
    "erf",
    "gelu",
    "gelu_apprx_tanh",
    "silu",
    "softplus",
    "sqrt",
    "rsqrt",
    "reciprocal",
)
"""Functions of ``activation``; polynomials and valid ranges are in ``compiler/tile/functions``."""

_SB = ("sbuf",)
_PS = ("psum",)
_ANY = ("hbm", "sbuf")


def _op(name: str, kind: str = "alu", default: Attribute = None) -> AttributeSpec:
    return AttributeSpec(name, kind, default)


def _bool(name: str) -> AttributeSpec:
    return AttributeSpec(name, "bool", False)


def _specs(*specs: InstructionSpec) -> dict[str, InstructionSpec]:
    return {spec.name: spec for spec in specs}


_DST = OperandSpec("dst")

SPECS: Final = _specs(
    InstructionSpec(
        "dma_copy",
        DMA_QUEUES,
        (OperandSpec("dst", _ANY),),
        (OperandSpec("src", _ANY),),
        doc="Copies element by element; shapes are equal; a stride of 0 in src repeats elements; "
        "different dtypes cast through fp32 (exactly between integers). An HBM side with an index "
        "tile gathers or scatters rows.",
    ),
    InstructionSpec(
        "dma_transpose",
        DMA_QUEUES,
        (OperandSpec("dst", _ANY),),
        (OperandSpec("src", _ANY),),
        doc="dst[j, i] = src[i, j] for two-dimensional accesses of one dtype.",
    ),
    InstructionSpec(
        "dma_compute",
        DMA_QUEUES,
        (OperandSpec("dst", ("hbm",)),),
        (OperandSpec("src", _ANY),),
        (AttributeSpec("reduce_op", "enum", "add", ("add",)),),
        doc="dst += src in fp32 (dst's own dtype for integers), rows in ascending partition order, "
        "so repeated indices accumulate.",
    ),
    InstructionSpec(
        "nc_matmul",
        (TENSOR,),
        (OperandSpec("dst", _PS),),
        (OperandSpec("stationary", _SB), OperandSpec("moving", _SB)),
        (AttributeSpec("accumulate", "predicate", False),),
        doc="dst[M, N] (+)= stationary[K, M].T @ moving[K, N] with K, M <= 128 and N <= 512 fp32 "
        "(one PSUM bank); products and sums in fp32 (f64 on cpu).",
    ),
    InstructionSpec(
        "nc_transpose",
        (TENSOR, VECTOR),
        (_DST,),
        (OperandSpec("data"),),
        doc="dst[f, p] = data[p, f], bit exact. Tensor: SBUF to PSUM, up to 128x128. Vector: up to "
        "32x32.",
    ),
    InstructionSpec(
        "activation",
        (SCALAR,),
        (_DST, OperandSpec("reduce_res", optional=True)),
        (
            OperandSpec("data"),
            OperandSpec("bias", form="scalar", optional=True),
            OperandSpec("scale", form="scalar", optional=True),
        ),
        (_op("op", "activation"), _op("reduce_op", "alu")),
        doc="dst = op(data * scale + bias); with reduce_op=add, reduce_res[P, 1] is the sum of dst "
        "over the free axes before the cast to dst's dtype.",
    ),
    InstructionSpec(
        "tensor_tensor",
        (VECTOR, GPSIMD),
        (_DST,),
        (OperandSpec("data1"), OperandSpec("data2")),
        (_op("op"),),
        doc="dst = data1 op data2. Not both inputs in PSUM. All-int32/uint32 add, subtract and "
        "multiply on GpSimd are exact (wrapping).",
    ),
    InstructionSpec(
        "tensor_scalar",
        (VECTOR, SCALAR, GPSIMD),
        (_DST,),
        (
            OperandSpec("data"),
            OperandSpec("operand0", form="scalar"),
            OperandSpec("operand1", form="scalar", optional=True),
        ),
        (_op("op0"), _bool("reverse0"), _op("op1"), _bool("reverse1")),
        doc="dst = (data op0 operand0) op1 operand1; reverse swaps an operator's sides. A [P, 1] "
        "operand gives each partition its own scalar. Unary operators ignore their operand.",
    ),
    InstructionSpec(
        "scalar_tensor_tensor",
        (VECTOR,),
        (_DST,),
        (OperandSpec("data"), OperandSpec("operand0", form="scalar"), OperandSpec("operand1")),
        (_op("op0"), _bool("reverse0"), _op("op1"), _bool("reverse1")),
        doc="dst = (data op0 operand0) op1 operand1 with a tile as second operand.",
    ),
    InstructionSpec(
        "tensor_reduce",
        (VECTOR,),
        (_DST,),
        (OperandSpec("data"),),
        (_op("op"), AttributeSpec("axis", "axes", (1,)), _bool("negate")),
        doc="Reduces the trailing free axes named by axis (numbered in the access, partition is "
        "0); dst has the remaining shape, or [P, 1] when nothing remains.",
    ),
    InstructionSpec(
        "tensor_tensor_scan",
        (VECTOR,),
        (_DST,),
        (
            OperandSpec("data0"),
            OperandSpec("data1"),
            OperandSpec("initial", form="scalar"),
        ),
        (_op("op0"), _op("op1")),
        doc="r[i] = (data0[i] op0 r[i-1]) op1 data1[i], r[-1] = initial, along the free axis.",
    ),
    InstructionSpec(
        "tensor_copy",
        (VECTOR, SCALAR, GPSIMD),
        (_DST,),
        (OperandSpec("src"),),
        doc="dst = src; bit exact for equal dtypes, else a cast through fp32.",
    ),
    InstructionSpec(
        "tensor_copy_predicated",
        (VECTOR,),
        (_DST,),
        (OperandSpec("src", form="tile_or_scalar"), OperandSpec("predicate")),
        (_bool("reverse_pred"),),
        doc="dst = src where predicate is non-zero; elsewhere dst keeps its value. src and dst "
        "have one dtype; predicate is an integer tile.",
    ),
    InstructionSpec(
        "reciprocal",
        (VECTOR,),
        (_DST,),
        (OperandSpec("data"),),
        doc="dst = 1 / data, correctly rounded to fp32.",
    ),
    InstructionSpec(
        "memset",
        (VECTOR, GPSIMD),
        (_DST,),
        (OperandSpec("value", form="immediate"),),
        doc="Fills with a constant of dst's dtype.",
    ),
    InstructionSpec(
        "iota",
        (GPSIMD,),
        (OperandSpec("dst", _SB),),
        (),
        (
            AttributeSpec("pattern", "pattern"),
            AttributeSpec("offset", "index", 0),
            AttributeSpec("channel_multiplier", "int", 0),
        ),
        doc="dst[p, i…] = offset + p*channel_multiplier + Σ i_k*step_k in int32, then cast; p "
        "counts from the access's first partition.",
    ),
    InstructionSpec(
        "affine_select",
        (GPSIMD,),
        (OperandSpec("dst", _SB),),
        (OperandSpec("on_true_tile", _SB), OperandSpec("on_false_value", form="immediate")),
        (
            AttributeSpec("pattern", "pattern"),
            AttributeSpec("offset", "index", 0),
            AttributeSpec("channel_multiplier", "int", 0),
            _op("cmp_op", default="equal"),
        ),
        doc="Keeps on_true_tile where (affine value as in iota) cmp_op 0, else on_false_value.",
    ),
    InstructionSpec(
        "tensor_partition_reduce",
        (GPSIMD,),
        (OperandSpec("dst", _SB),),
        (OperandSpec("data", _SB),),
        (_op("op"),),
        doc="dst[1, F] = reduction of data[P, F] across partitions.",
    ),
    InstructionSpec(
        "max8",
        (VECTOR,),
        (_DST,),
        (OperandSpec("src"),),
        doc="dst[P, 8]: the 8 largest values of each partition, descending; 8 <= N <= 16384.",
    ),
    InstructionSpec(
        "nc_find_index8",
        (VECTOR,),
        (_DST,),
        (OperandSpec("data"), OperandSpec("vals")),
        doc="dst[P, 8] uint32: index of the first match of each of 8 values; repeated values take "
        "the next match; all ones when missing.",
    ),
    InstructionSpec(
        "row_sort",
        (GPSIMD,),
        (OperandSpec("dst", _SB), OperandSpec("index", _SB)),
        (OperandSpec("data", _SB),),
        (_bool("descending"),),
        doc="Extension. dst[P, K], index[P, K] int32: the first K of the N elements of each "
        "partition in ascending order (descending: the reverse order of values), and where they "
        "were. Stable; NaN is the largest value, zeros of both signs are equal.",
    ),
)
"""The instructions, by name."""


def spec(op: str) -> InstructionSpec:
    """The declaration of instruction ``op``.

    Raises:
        KeyError: there is no such instruction; the message lists the names.
    """
    try:
        return SPECS[op]
    except KeyError:
        raise KeyError(f"no instruction '{op}'; known: {', '.join(sorted(SPECS))}") from None


def queue(instruction: Instruction) -> str:
    """The in-order queue an instruction waits in: its engine, or ``dma:`` and its trigger."""
    dma = spec(instruction.op).is_dma
    return f"dma:{instruction.engine}" if dma else instruction.engine


EXTENSIONS: Final = ("row_sort",)
"""Instructions of this compiler that no NeuronCore has. A hand-written kernel gets the K largest
fp32 values of up to 16,384 by ``max8``, ``nc_find_index8`` and ``nc_match_replace8``, eight at a
time, and a whole order by a bitonic network of ``tensor_tensor`` on shifted halves of the row."""

_EXACT_ON_GPSIMD: Final = ("add", "subtract", "multiply")


def alu_ops(instruction: Instruction) -> tuple[str, ...]:
    """Names of the ALU operators the instruction applies, in order."""
    kinds = {a.name for a in spec(instruction.op).attrs if a.kind == "alu"}
    return tuple(str(value) for name, value in instruction.attrs if name in kinds and value)


def is_extension(instruction: Instruction, dtype_of: Callable[[Access], np.dtype[Any]]) -> bool:
    """Whether no NeuronCore has the instruction: `EXTENSIONS`, and 64-bit integer arithmetic.

    Host and simulator compute it exactly on every target; the NKI printer refuses it by name.
    Moves of 64-bit elements (DMA, fills, predicated copies) are no extension.
    """
    if instruction.op in EXTENSIONS:
        return True
    if instruction.op in ("memset", "tensor_copy_predicated") or spec(instruction.op).is_dma:
        return False
    operands = (*instruction.outs, *instruction.ins)
    dtypes = [dtype_of(o) for o in operands if isinstance(o, TileAccess | HbmAccess)]
    return any(d.kind in "iu" and d.itemsize == 8 for d in dtypes)


def is_exact_integer(instruction: Instruction, dtype_of: Callable[[Access], np.dtype[Any]]) -> bool:
    """Whether GpSimd computes the instruction as wrapping 32-bit integers instead of fp32.

    True for ``tensor_tensor`` and ``tensor_scalar`` with add, subtract or multiply only, a 32-bit
    integer destination, and inputs that are integers or bools of at most 32 bits.
    """
    if instruction.op not in ("tensor_tensor", "tensor_scalar"):
        return False
    if not all(op in _EXACT_ON_GPSIMD for op in alu_ops(instruction)):
        return False
    if any(isinstance(value, float) for value in instruction.ins):
        return False
    dtypes = [dtype_of(o) for o in instruction.ins if isinstance(o, TileAccess | HbmAccess)]
    destination = dtype_of(instruction.outs[0])
    narrow = all(d.kind in "iub" and d.itemsize <= 4 for d in dtypes)
    return narrow and destination.kind in "iu" and destination.itemsize == 4


def default_engine(
    instruction: Instruction,
    dtype_of: Callable[[Access], np.dtype[Any]],
    memory_of: Callable[[Access], str],
) -> str:
    """The engine NKI chooses when none is given: what a printer may leave out.

    32-bit integer arithmetic goes to GpSimd, where it is exact, unless an operand is in PSUM,
    which GpSimd cannot reach; ``power`` exists on GpSimd only. An indirect DMA needs GpSimd's
    software descriptors; other stores to HBM are triggered by Scalar and loads by Sync, so that a
    load of the next iteration does not queue behind a store of this one. Anything else takes the
    first engine of its declaration.
    """
    declared = spec(instruction.op).engines
    if spec(instruction.op).is_dma:
        operands = (*instruction.outs, *instruction.ins)
        indirect = any(isinstance(o, HbmAccess) and o.index is not None for o in operands)
        stores = isinstance(instruction.outs[0], HbmAccess)
        return GPSIMD if indirect else SCALAR if stores else SYNC
    if GPSIMD in declared and len(declared) > 1:
        accesses = [o for o in (*instruction.outs, *instruction.ins) if isinstance(o, TileAccess)]
        in_psum = any(memory_of(a) == "psum" for a in accesses)
        if "power" in alu_ops(instruction):
            return GPSIMD
        if not in_psum and is_exact_integer(instruction, dtype_of):
            return GPSIMD
    return declared[0]
