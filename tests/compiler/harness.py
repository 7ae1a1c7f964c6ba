"""Trace, compile and simulate small programs, and count what their kernels read and write."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trnx.compiler.pipeline import compile_program
from trnx.compiler.sim import SimOptions, simulate
from trnx.compiler.tile.ir import HbmAccess, HostCall, TileProgram, instructions
from trnx.core import Literal, Program, Var, make_aval, trace_program
from trnx.core.parsing import parse_program
from trnx.ops import functions as op

Array = Any
Arrays = list[NDArray[Any]]


def record(function: Callable[..., Any], *avals: tuple[Sequence[Any], str]) -> Program:
    """The program of a function over ``(shape, dtype)`` arguments."""

    def run(*args: Any) -> Sequence[Any]:
        result = function(*args)
        return list(result) if isinstance(result, list | tuple) else [result]

    return trace_program(run, [make_aval(s, d) for s, d in avals], "f")


def evaluate(program: Program, args: Sequence[Any]) -> Arrays:
    """The program by the NumPy meaning of its primitives."""
    values: dict[Var, Any] = dict(zip(program.inputs, args, strict=True))
    values.update(program.constants)
    for equation in program.equations:
        ins = [values[a] if isinstance(a, Var) else np.asarray(a.value) for a in equation.inputs]
        if equation.primitive.name == "call":
            results: Any = evaluate(equation.params["program"], ins)
        else:
            results = equation.primitive.rule("reference")(*ins, **equation.params)
            if not equation.primitive.multiple_results:
                results = [results]
        values.update(zip(equation.outputs, map(np.asarray, results), strict=True))
    return [
        values[a] if not isinstance(a, Literal) else np.asarray(a.value) for a in program.outputs
    ]


def host_functions(program: TileProgram) -> dict[str, Callable[..., Any]]:
    """Functions for the host calls of a program, which carry their equation as text."""

    def make() -> Callable[..., Any]:
        def call(arrays: Sequence[Any], attrs: Mapping[str, Any]) -> Arrays:
            return evaluate(parse_program(str(attrs["program"])), list(arrays))

        return call

    return {c.function: make() for c in program.calls if isinstance(c, HostCall)}


def run(program: TileProgram, args: Sequence[Any], registers: Sequence[int] = ()) -> Arrays:
    """Simulate with every check on; the first race or uninitialised read raises."""
    options = SimOptions(
        raise_findings=True, timeline=False, host_functions=host_functions(program)
    )
    return [np.asarray(a) for a in simulate(program, list(args), registers, options).outputs]


def draw(seed: int, program: Program) -> Arrays:
    """Arguments for a program: normal floats, small non-negative integers."""
    generator = np.random.default_rng(seed)
    args: Arrays = []
    for aval in program.in_avals:
        if aval.dtype.kind == "b":
            args.append(generator.integers(0, 2, aval.shape).astype(np.bool_))
        elif aval.dtype.kind in "iu":
            args.append(generator.integers(0, 7, aval.shape).astype(aval.dtype))
        else:
            args.append(np.asarray(generator.standard_normal(aval.shape)).astype(aval.dtype))
    return args


def check(
    function: Callable[..., Any],
    *avals: tuple[Sequence[int], str],
    target: str = "trn2",
    tolerance: float = 2e-5,
    args: Sequence[Any] | None = None,
    donated: Sequence[int] = (),
) -> TileProgram:
    """Compile, simulate and compare with NumPy; integers and bools must be equal.

    Returns:
        The tile program, for counts.
    """
    program = record(function, *avals)
    tiles = compile_program(program, target, donated)
    given = draw(0, program) if args is None else [np.asarray(a) for a in args]
    for got, wanted in zip(run(tiles, given), evaluate(program, given), strict=True):
        assert got.shape == wanted.shape
        if wanted.dtype.kind in "biu":
            assert got.dtype == wanted.dtype
            np.testing.assert_array_equal(got, wanted)
        else:
            wide = np.complex128 if wanted.dtype.kind == "c" else np.float64
            np.testing.assert_allclose(got.astype(wide), wanted.astype(wide), tolerance, tolerance)
    return tiles


def hbm_traffic(program: TileProgram) -> tuple[Counter[str], Counter[str]]:
    """(reads, writes): instructions per program buffer that touch it."""
    reads: Counter[str] = Counter()
    writes: Counter[str] = Counter()
    for call in program.calls:
        assert not isinstance(call, HostCall)
        kernel = program.kernels[call.kernel]
        bound = dict(zip((p.name for p in kernel.params), call.buffers, strict=True))
        for instruction in instructions(kernel):
            reads.update(bound[a.buffer] for a in instruction.ins if isinstance(a, HbmAccess))
            writes.update(bound[a.buffer] for a in instruction.outs if isinstance(a, HbmAccess))
    return reads, writes


def ops_of(program: TileProgram) -> list[str]:
    """Instruction names of all kernels in program order, transfers left out."""
    return [i.op for k in program.kernels for i in instructions(k) if not i.op.startswith("dma_")]


# Programs -----------------------------------------------------------------------------------------


def rows(x: Array, like: Array) -> Array:
    """One value per row, repeated over the last axis."""
    return op.broadcast(x, like.shape, tuple(range(len(like.shape) - 1)))


def columns(x: Array, like: Array) -> Array:
    """One value per column, repeated over the leading axes."""
    return op.broadcast(x, like.shape, (len(like.shape) - 1,))


def softmax(x: Array) -> Array:
    """Softmax over the last axis."""
    last = len(x.shape) - 1
    e = op.exp(op.sub(x, rows(op.reduce_max(x, (last,)), x)))
    return op.div(e, rows(op.reduce_sum(e, (last,)), x))


def layer_norm(x: Array, scale: Array, shift: Array) -> Array:
    """Layer norm over the last axis."""
    last, size = len(x.shape) - 1, x.shape[-1]
    centred = op.sub(x, rows(op.mul(op.reduce_sum(x, (last,)), 1.0 / size), x))
    variance = op.mul(op.reduce_sum(op.mul(centred, centred), (last,)), 1.0 / size)
    normal = op.mul(centred, rows(op.rsqrt(op.add(variance, 1e-5)), x))
    return op.add(op.mul(normal, columns(scale, x)), columns(shift, x))


def gelu(x: Array) -> Array:
    """GELU, erf form."""
    return op.mul(op.mul(x, 0.5), op.add(op.erf(op.mul(x, 0.5**0.5)), 1.0))


def linear(x: Array, w: Array, b: Array) -> Array:
    """x @ w + b over the last axis."""
    y = op.dot_general(x, w, ((len(x.shape) - 1,), (0,)))
    return op.add(y, columns(b, y))


def cross_entropy(logits: Array, labels: Array) -> Array:
    """Loss per row for integer labels."""
    shifted = op.sub(logits, rows(op.reduce_max(logits, (1,)), logits))
    total = op.log(op.reduce_sum(op.exp(shifted), (1,)))
    picked = op.take_along(shifted, op.reshape(labels, (*labels.shape, 1)), 1)
    return op.sub(total, op.reshape(picked, labels.shape))


def adamw(p: Array, g: Array, m: Array, v: Array) -> tuple[Array, Array, Array]:
    """One AdamW step of one parameter, first step's bias corrections."""
    m = op.add(op.mul(m, 0.9), op.mul(g, 0.1))
    v = op.add(op.mul(v, 0.999), op.mul(op.mul(g, g), 0.001))
    step = op.div(op.div(m, 0.1), op.add(op.sqrt(op.div(v, 0.001)), 1e-8))
    return op.sub(op.mul(p, 1 - 3e-5), op.mul(step, 3e-3)), m, v
