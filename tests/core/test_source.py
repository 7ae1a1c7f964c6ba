"""The user's line, name stacks and error texts."""

from __future__ import annotations

import inspect
import traceback

import pytest

from trnx.core import (
    Source,
    current_source,
    make_aval,
    message,
    name_scope,
    trace_program,
    use_source,
)
from trnx.core.config import traceback_filter
from trnx.core.dtypes import as_dtype
from trnx.core.errors import DTypeError, user_traceback
from trnx.core.source import UNKNOWN_SOURCE, is_internal_file
from trnx.ops import functions as op


def line() -> int:
    frame = inspect.currentframe()
    assert frame is not None
    assert frame.f_back is not None
    return frame.f_back.f_lineno


def test_the_first_frame_outside_trnx() -> None:
    found, expected = current_source(), line()
    assert (found.line, found.function) == (expected, "test_the_first_frame_outside_trnx")
    assert str(found) == f"test_source.py:{expected} (test_the_first_frame_outside_trnx)"
    assert found.location.endswith(f"test_source.py:{expected}")
    assert is_internal_file(inspect.getfile(as_dtype))
    assert not is_internal_file(__file__)


def test_each_equation_knows_its_line_and_scope() -> None:
    def loss(x):
        first = line() + 1
        y = op.exp(x)
        with name_scope("layer"), name_scope("norm"):
            z = op.mul(y, y)
        return [first, y, z]

    first = 0

    def flat(x):
        nonlocal first
        first, *outs = loss(x)
        return outs

    program = trace_program(flat, [make_aval((2,), "f32")])
    exp, mul = (equation.source for equation in program.equations)
    assert (exp.line, exp.function, exp.name_stack) == (first, "loss", "")
    assert (mul.line, mul.name_stack) == (first + 2, "layer/norm")


def test_loops_and_repeated_calls_share_sources() -> None:
    sources = [current_source() for _ in range(3)]
    assert sources[0] is sources[2]


def test_forced_source() -> None:
    forced = Source("/home/user/model.py", 7, "forward")
    with use_source(forced):
        assert current_source() is forced
        with use_source(None):
            assert current_source().function == "test_forced_source"
    assert str(UNKNOWN_SOURCE) == "unknown line"
    assert str(Source("/var/ipykernel_41/26.py", 3, "loss")) == "cell:3 (loss)"
    assert message("It broke", UNKNOWN_SOURCE, "Mend it") == "It broke. Mend it."
    assert message("It broke", forced, "Mend it") == "It broke (at model.py:7 (forward)). Mend it."


@user_traceback
def boundary(name: str) -> object:
    return as_dtype(name)


def outer() -> object:
    return boundary("float13")


def test_traceback_shows_only_user_frames() -> None:
    with pytest.raises(DTypeError, match=r"at test_source\.py:\d+ \(boundary\)") as error:
        outer()
    frames = [frame.filename for frame in traceback.extract_tb(error.value.__traceback__)]
    assert not any("dtypes.py" in name for name in frames)
    assert frames[-1] == __file__
    with traceback_filter(False), pytest.raises(DTypeError) as error:
        outer()
    frames = [frame.filename for frame in traceback.extract_tb(error.value.__traceback__)]
    assert frames[-1].endswith("dtypes.py")


def test_notebook_cells_have_no_changing_names() -> None:
    cell = Source("/folder/ipykernel_123/456.py", 3, "loss")
    assert cell.is_cell and str(cell) == "cell:3 (loss)" and cell.location == "cell:3"
    assert Source("", 0, "").location == "unknown line"
