"""Programs: parameters, structural equality, fingerprints, pruning, evaluation."""

from __future__ import annotations

import os
import subprocess
import sys

import numpy as np
import pytest

from trnx.core import (
    Params,
    TraceError,
    constants_to_inputs,
    dtypes,
    equal,
    eval_program,
    fingerprint,
    make_aval,
    primitives,
    prune,
    trace_program,
)
from trnx.ops import functions as op

X = make_aval((2, 3), "f32")


def test_params_are_strict_about_types() -> None:
    assert Params({"b": 1, "a": 2}) == Params({"a": 2, "b": 1})
    assert hash(Params({"b": 1, "a": 2})) == hash(Params({"a": 2, "b": 1}))
    assert list(Params({"b": 1, "a": 2})) == ["a", "b"]
    assert Params({"x": 1}) != Params({"x": 1.0})
    assert Params({"x": 1}) != Params({"x": True})
    assert Params({"x": 0.0}) != Params({"x": -0.0})
    assert Params({"x": (1, (2.0,))}) != Params({"x": (1, (2,))})
    assert Params({"x": float("nan")}) == Params({"x": float("nan")})
    assert hash(Params({"x": (float("nan"),)})) == hash(Params({"x": (float("nan"),)}))
    nan = complex(float("nan"), 1.0)
    assert Params({"x": nan}) == Params({"x": complex(float("nan"), 1.0)})
    assert hash(Params({"x": nan})) == hash(Params({"x": complex(float("nan"), 1.0)}))
    assert Params({"x": complex(0.0, 0.0)}) != Params({"x": complex(0.0, -0.0)})
    assert Params({"x": 1}).replace(y=2) == Params({"x": 1, "y": 2})
    assert {**Params({"x": 1})} == {"x": 1}
    with pytest.raises(TypeError):
        Params({"x": 1})["x"] = 2


def test_unhashable_parameter_is_named() -> None:
    with pytest.raises(TraceError, match=r"Parameter axes of reduce_sum .*: it holds a list"):
        Params({"axes": ([1, 2], 3)}, "reduce_sum")


def double(x):
    return [op.mul(x, 2.0)]


def test_equal_ignores_names_and_sources() -> None:
    p = trace_program(double, [X], "f")
    q = trace_program(lambda x: [op.mul(x, 2.0)], [X], "f")
    assert equal(p, q)
    assert fingerprint(p) == fingerprint(q)


@pytest.mark.parametrize(
    "other",
    [
        lambda x: [op.mul(x, 3.0)],
        lambda x: [primitives["mul"].bind(x, 2.0)],  # a weak literal
        lambda x: [op.add(x, 2.0)],
        lambda x: [op.mul(2.0, x)],
        lambda x: [op.mul(op.mul(x, 2.0), 2.0)],
        lambda x: [op.mul(x, 2.0), x],
        lambda x: [op.mul(x, np.full((2, 3), 2.0, np.float32))],
    ],
)
def test_different_programs_differ(other: object) -> None:
    p, q = trace_program(double, [X], "f"), trace_program(other, [X], "f")
    assert not equal(p, q)
    assert fingerprint(p) != fingerprint(q)


def test_constants_count_by_contents() -> None:
    def with_constant(values):
        return trace_program(lambda x: [op.add(x, values)], [X], "f")

    ones = np.ones((2, 3), np.float32)
    p, q, r = with_constant(ones), with_constant(ones.copy()), with_constant(2 * ones)
    assert equal(p, q)
    assert fingerprint(p) == fingerprint(q)
    assert not equal(p, r)
    assert fingerprint(p) != fingerprint(r)


def test_swapped_inputs_differ() -> None:
    p = trace_program(lambda x, y: [op.sub(x, y)], [X, X], "f")
    q = trace_program(lambda x, y: [op.sub(y, x)], [X, X], "f")
    assert not equal(p, q)
    assert fingerprint(p) != fingerprint(q)


FINGERPRINT_CODE = """
import numpy as np, trnx.ops.elementwise
from trnx.core import fingerprint, make_aval, trace_program
from trnx.ops import functions as op
p = trace_program(lambda x: [op.add(op.exp(x), np.arange(3, dtype=np.float32))],
                  [make_aval((3,), "f32")], "f")
print(fingerprint(p))
"""


def test_fingerprint_is_stable_across_processes() -> None:
    seen = {
        subprocess.run(
            [sys.executable, "-c", FINGERPRINT_CODE],
            env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": os.pathsep.join(sys.path)},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(seen) == 1


def test_prune_drops_what_nothing_uses() -> None:
    def function(x):
        op.add(op.exp(x), np.ones((2, 3), np.float32))
        return [op.mul(x, x)]

    program = trace_program(function, [X])
    pruned = prune(program)
    assert [e.primitive.name for e in pruned.equations] == ["mul"]
    assert not pruned.constants
    assert prune(pruned) is pruned


def test_eval_program_rebinds_and_keeps_sources() -> None:
    program = trace_program(double, [X], "f")
    again = trace_program(lambda x: eval_program(program, [x]), [X], "f")
    assert equal(program, again)
    assert again.equations[0].source == program.equations[0].source
    with pytest.raises(TraceError, match="takes 1 inputs but got 2"):
        eval_program(program, [1.0, 2.0])


def test_constants_become_inputs() -> None:
    value = np.ones((2, 3), np.float32)
    program = trace_program(lambda x: [op.sub(value, x)], [X])
    closed, constants = constants_to_inputs(program)
    assert not closed.constants
    assert len(constants) == 1
    assert str(closed).splitlines()[0] == "program main(a: f32[2,3], b: f32[2,3]) {"
    assert "sub a b" in str(closed)


def test_literal_outputs_and_types() -> None:
    program = trace_program(lambda x: [x, 1.5, np.int8(3)], [X])
    assert [str(a) for a in program.out_avals] == ["f32[2,3]", "f32[]~", "i8[]"]
    x = np.zeros((2, 3), np.float32)
    outs = eval_program(program, [x])
    assert outs[0] is x
    assert outs[1] == 1.5
    assert type(outs[1]) is float
    assert outs[2].dtype == dtypes.int8
