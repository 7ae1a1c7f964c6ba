"""The verifier: a valid program passes, and each numbered constraint fails once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from trnx.core import (
    Aval,
    CheckError,
    Literal,
    Params,
    Primitive,
    Program,
    Source,
    Var,
    check,
    dim,
    dtypes,
    make_aval,
    primitives,
    trace_program,
)
from trnx.core.checking import CONSTRAINTS, constraints_table
from trnx.core.program import Equation
from trnx.ops import functions as op

X = make_aval((2,), "f32")
ADD, NEG, IOTA = primitives["add"], primitives["neg"], primitives["iota"]
LINE = Source("/home/user/model.py", 12, "loss")


def equation(primitive: Primitive, inputs: Any, outputs: Any, **params: Any) -> Equation:
    return Equation(primitive, tuple(inputs), tuple(outputs), Params(params), LINE)


def program(inputs: Any, equations: Any, outputs: Any, constants: Any = ()) -> Program:
    return Program("f", tuple(inputs), tuple(constants), tuple(equations), tuple(outputs))


def p1_twice() -> Program:
    a, b = Var(X), Var(X)
    return program([a], [equation(NEG, [a], [b]), equation(NEG, [a], [b])], [b])


def p1_input_twice() -> Program:
    a = Var(X)
    return program([a, a], [], [a])


def p2_later() -> Program:
    a, b, c = Var(X), Var(X), Var(X)
    return program([a], [equation(NEG, [b], [c]), equation(NEG, [a], [b])], [c])


def p3_type() -> Program:
    a, b = Var(X), Var(make_aval((3,), "f32"))
    return program([a], [equation(NEG, [a], [b])], [b])


def p3_count() -> Program:
    a, b, c = Var(X), Var(X), Var(X)
    return program([a], [equation(NEG, [a], [b, c])], [b])


def p3_rule_refuses() -> Program:
    a, b, c = Var(X), Var(make_aval((3,), "f32")), Var(X)
    return program([a, b], [equation(ADD, [a, b], [c])], [c])


def p3_unknown_param() -> Program:
    a, b = Var(X), Var(make_aval((2,), "i32"))
    return program([a], [equation(IOTA, [], [b], shape=(2,), axes=0)], [b])


def p4_plain_dict() -> Program:
    a, b = Var(X), Var(X)
    return program([a], [Equation(NEG, (a,), (b,), {}, LINE)], [b])


def p5_output() -> Program:
    return program([Var(X)], [], [Var(X)])


def p6_dtype() -> Program:
    a = Var(Aval((2,), np.dtype("U3")))
    return program([a], [], [a])


def p6_byte_order() -> Program:
    a = Var(Aval((2,), np.dtype(np.float32).newbyteorder()))
    return program([a], [], [a])


def p6_size() -> Program:
    aval = Aval((2,), dtypes.float32)
    object.__setattr__(aval, "shape", (-2,))  # past its own check, as damage would be
    a = Var(aval)
    return program([a], [], [a])


def inner_program(body: Program) -> Program:
    from trnx.transforms import call_p

    a, b = Var(X), Var(X)
    return program([a], [equation(call_p, [a], [b], program=body)], [b])


def p7_constants() -> Program:
    a, c = Var(X), Var(X)
    return inner_program(program([a], [], [c], [(c, np.zeros(2, np.float32))]))


def p5_outer_variable() -> Program:
    return inner_program(program([Var(X)], [], [Var(X)]))


def p8_constant() -> Program:
    c = Var(X)
    return program([], [], [c], [(c, np.zeros(3, np.float32))])


def p8_no_array() -> Program:
    c = Var(X)
    return program([], [], [c], [(c, "text")])


def p9_literal_dtype() -> Program:
    return program([], [], [Literal(np.float64(1), make_aval((), "f32"))])


def p9_literal_shape() -> Program:
    return program([], [], [Literal(np.float32(1), make_aval((1,), "f32"))])


def p10_bounds() -> Program:
    a = Var(make_aval((dim("n", max=4),), "f32"))
    b = Var(make_aval((dim("n", max=5),), "f32"))
    return program([a, b], [], [a])


def p11_primitive() -> Program:
    a, b = Var(X), Var(X)
    stranger = Primitive("neg", abstract=lambda x: x, register=False)
    return program([a], [equation(stranger, [a], [b])], [b])


BREAKS: list[tuple[str, Callable[[], Program], str]] = [
    ("P1", p1_twice, "f32[2] is defined twice"),
    ("P1", p1_input_twice, "f32[2] is defined twice"),
    ("P2", p2_later, "an operand of type f32[2] is not defined"),
    ("P3", p3_type, "outputs are (f32[3]) but should be (f32[2])"),
    ("P3", p3_count, "outputs are (f32[2], f32[2]) but should be (f32[2])"),
    ("P3", p3_rule_refuses, "the abstract rule of add says"),
    ("P3", p3_unknown_param, "the abstract rule of iota says"),
    ("P4", p4_plain_dict, "parameters of neg are a dict"),
    ("P5", p5_output, "an output of type f32[2] is not defined"),
    ("P5", p5_outer_variable, "an output of type f32[2] is not defined"),
    ("P6", p6_dtype, "dtype <U3 is not known"),
    ("P6", p6_byte_order, "dtype >f4 is not known"),
    ("P6", p6_size, "-2 is no size"),
    ("P7", p7_constants, "it has 1 constants"),
    ("P8", p8_constant, "a constant of type f32[3] stands for f32[2]"),
    ("P8", p8_no_array, "a constant is no array"),
    ("P9", p9_literal_dtype, "f32[] holds a value float64[]"),
    ("P9", p9_literal_shape, "f32[1] holds a value float32[]"),
    ("P10", p10_bounds, "size n has bounds 1..4 and 1..5"),
    ("P11", p11_primitive, "neg is not registered"),
]


@pytest.mark.parametrize(("number", "make", "cause"), BREAKS, ids=[b[1].__name__ for b in BREAKS])
def test_each_constraint_fails(number: str, make: Callable[[], Program], cause: str) -> None:
    with pytest.raises(CheckError) as error:
        check(make(), "fuse")
    text = str(error.value)
    assert error.value.constraint == number
    assert text.startswith(f"Program f breaks {number} after fuse: ")
    assert cause in text
    assert CONSTRAINTS[number] in text


def test_every_constraint_has_a_failing_example() -> None:
    assert {number for number, _, _ in BREAKS} == set(CONSTRAINTS)
    for number, text in CONSTRAINTS.items():
        assert f"| {number} | {text} |" in constraints_table()


def test_error_shows_equation_and_line() -> None:
    with pytest.raises(CheckError) as error:
        check(p3_type())
    assert "in `b: f32[3] = neg a` (at model.py:12 (loss))" in str(error.value)


def test_valid_programs_pass() -> None:
    n = dim("n", max=9)
    traced = trace_program(
        lambda x: [op.mul(op.exp(x), 2.0), op.iota((n, 2), 1), op.add(x, x)],
        [make_aval((n, 2), "f32")],
    )
    check(traced)
    check(trace_program(lambda: [op.neg(np.zeros(3, np.float32)), 1.0], []))
