"""Primitives: registry, rule slots and errors for missing rules."""

from __future__ import annotations

import gc
import weakref

import pytest

from trnx.core import Aval, Cost, Params, Primitive, RuleError, make_aval, primitives, trace_program
from trnx.core.primitive import RULE_SLOTS


def identity(x: Aval) -> Aval:
    return x


def test_names_are_unique(scratch_primitives: None) -> None:
    Primitive("fresh", abstract=identity, doc="Gives its operand.")
    assert primitives["fresh"].doc == "Gives its operand."
    with pytest.raises(ValueError, match=r"named fresh is declared in core/test_primitive\.py"):
        Primitive("fresh", abstract=identity)
    with pytest.raises(ValueError, match="not a primitive name"):
        Primitive("two words", abstract=identity)
    assert Primitive("fresh", abstract=identity, register=False) is not primitives["fresh"]


@pytest.mark.parametrize("slot", [s for s in RULE_SLOTS if s not in ("jvp", "linearize")])
def test_missing_rule_names_primitive_transform_and_file(slot: str) -> None:
    bare = Primitive("bare", abstract=identity, register=False)
    assert not bare.has_rule(slot)
    with pytest.raises(RuleError) as error:
        bare.rule(slot)
    text = str(error.value)
    assert f"Primitive bare has no {slot} rule" in text
    assert f"Add def_{slot} to its declaration in core/test_primitive.py" in text
    getattr(bare, f"def_{slot}")(lambda *args: args)
    assert bare.has_rule(slot)
    assert bare.rule(slot)(1) == (1,)


def test_reason_for_absence_is_told() -> None:
    bare = Primitive(
        "bare", abstract=identity, register=False, not_needed={"transpose": "it is not linear"}
    )
    with pytest.raises(RuleError, match="no transpose rule because it is not linear"):
        bare.rule("transpose")


def test_derived_rules() -> None:
    bare = Primitive("bare", abstract=identity, register=False)
    assert not bare.has_rule("jvp")
    assert not bare.has_rule("linearize")
    bare.def_linear()
    assert bare.has_rule("jvp")
    assert bare.has_rule("linearize")
    other = Primitive("other", abstract=identity, register=False)
    other.def_jvp(None)
    assert other.has_rule("jvp")


def test_types_are_cached_per_params() -> None:
    calls = []

    def abstract(x: Aval, *, n: float) -> Aval:
        calls.append(n)
        return x

    counted = Primitive("counted", abstract=abstract, register=False)
    avals = (make_aval((2,), "f32"),)
    for value in (1, 1, 1.0, True):
        assert counted.out_avals(avals, Params({"n": value})) == avals
    assert calls == [1, 1.0, True]
    assert [type(c) for c in calls] == [int, float, bool]


def test_type_cache_keeps_no_programs_alive() -> None:
    holder = Primitive("holder", abstract=lambda x, body: x, register=False)
    aval = make_aval((2,), "f32")
    body = trace_program(lambda x: [x], [aval])
    holder.out_avals((aval,), Params({"body": body}))
    watched = weakref.ref(body)
    del body
    gc.collect()
    assert watched() is None


def test_costs_add() -> None:
    assert Cost(1, 2, 3, 4) + Cost(10, 20, 30, 40) == Cost(11, 22, 33, 44)
