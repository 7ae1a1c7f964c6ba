"""Every kernel of the suite survives the way through NKI source, or is refused by name."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

import trnx
import trnx.numpy as tnp
from tests.ops.table import Call, all_calls
from tests.tile.kernels import finish
from trnx import nn
from trnx.compiler.nki.emit import function_names, program_source
from trnx.compiler.nki.read import read_kernels
from trnx.compiler.pipeline import compile_program
from trnx.compiler.tile.ir import TileProgram
from trnx.core import Aval, trace_program
from trnx.core.dtypes import bfloat16, bool_, float32, int32, int64, uint8, uint32
from trnx.core.errors import UnsupportedError

REASONS = (
    "extension instruction: 64-bit integer",
    "extension instruction: row_sort",
    "which NKI does not have",
    "calls host function",
)
"""What a trn2 program may hold and NKI cannot say: 64-bit numbers, sorts, counted fallbacks."""


def round_trip(program: TileProgram) -> None:
    """Print, read, place, prove and schedule; compare with the program's kernels."""
    text = program_source(program)
    read = read_kernels(text)
    assert tuple(k.name for k in read) == function_names(program)
    for kernel, expected in zip(read, program.kernels, strict=True):
        assert finish(replace(kernel, name=expected.name)) == expected


DTYPES = (bool_, uint8, int32, uint32, bfloat16, float32, int64)
"""One of each kind; other widths give the same instructions."""


def call_programs() -> list[Any]:
    """One parameter per primitive: its calls."""
    groups: dict[str, list[Call]] = {}
    for call in all_calls():
        if set(call.dtypes) <= set(DTYPES):
            groups.setdefault(call.primitive.name, []).append(call)
    return [pytest.param(calls, id=name) for name, calls in groups.items()]


@pytest.mark.parametrize("calls", call_programs())
def test_primitives(calls: list[Call]) -> None:
    """The kernels of every call of a primitive, alone."""
    counted: Counter[str] = Counter()
    for call in calls:

        def record(*operands: Any, call: Call = call) -> list[Any]:
            result = call.primitive.bind(*operands, **call.params)
            return list(result) if call.primitive.multiple_results else [result]

        program = trace_program(record, call.avals, call.primitive.name)
        tiles = compile_program(program, "trn2")
        try:
            round_trip(tiles)
        except UnsupportedError as error:
            if not any(reason in str(error) for reason in REASONS):
                raise
            kinds = {"host function": "host", "row_sort": "sort"}
            counted[next((k for text, k in kinds.items() if text in str(error)), "wide")] += 1
        else:
            counted["equal"] += 1
    # A primitive whose every call is a host fallback or a sort has no kernel to print.
    assert counted["equal"] or not counted["wide"], counted


def _softmax(x: Any) -> Any:
    e = tnp.exp(x - tnp.max(x, axis=1, keepdims=True))
    return e / tnp.sum(e, axis=1, keepdims=True)


def _linear_gelu(x: Any, w: Any, b: Any) -> Any:
    return nn.gelu(x @ w + b)


def _cross_entropy(x: Any, w: Any, labels: Any) -> Any:
    logits = tnp.tanh(x @ w)
    shifted = logits - tnp.max(logits, axis=1, keepdims=True)
    picked = tnp.sum(shifted * labels, axis=1)
    return tnp.mean(tnp.log(tnp.sum(tnp.exp(shifted), axis=1)) - picked)


MODELS: dict[str, tuple[Callable[..., Any], list[Aval]]] = {
    "softmax": (_softmax, [Aval((1024, 4096), float32)]),
    "linear gelu": (
        _linear_gelu,
        [Aval((300, 200), float32), Aval((200, 700), float32), Aval((700,), float32)],
    ),
    "gradient": (
        trnx.grad(_cross_entropy, argnums=1),
        [Aval((64, 64), float32), Aval((64, 10), float32), Aval((64, 10), float32)],
    ),
    "integers": (lambda x: (x * 3 + 1) ^ (x >> 2), [Aval((100, 70), int32)]),
}


@pytest.mark.parametrize("name", MODELS)
def test_models(name: str) -> None:
    """Fused kernels of small models and their gradients."""
    function, avals = MODELS[name]
    program = trace_program(lambda *args: [function(*args)], avals, name.replace(" ", "_"))
    round_trip(compile_program(program, "trn2"))
