"""Program texts: what they look like, and that they read back to an equal program."""

from __future__ import annotations

import enum
import html
import re
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trnx.core import (
    Aval,
    Params,
    ParseError,
    Primitive,
    Program,
    TraceError,
    array_digest,
    dim,
    dtypes,
    equal,
    fingerprint,
    literal,
    make_aval,
    name_scope,
    parse_program,
    program_text,
    register_param_type,
    source_text,
    trace_program,
)
from trnx.core.display import listing_html
from trnx.core.printing import RESERVED, literal_text, variable_names
from trnx.core.program import Atom, Equation, Literal, Var
from trnx.ops import functions as op

N = dim("n", max=64)

EXAMPLE = """\
program main(a: f32[2,3], b: f32[3]) {
  const c: f32[3] #b1da8b54b30f
  d: f32[3] = add b c
  e: f32[2,3] = broadcast[dims=(1,), shape=(2, 3)] d
  f: f32[2,3] = mul a e
  g: f32[2,3] = add f 2.0:f32[]
  return g, a
}"""


def example(x, y):
    z = op.add(y, np.arange(3, dtype=np.float32))
    return [op.add(op.mul(x, op.broadcast(z, (2, 3), (1,))), 2.0), x]


def test_example() -> None:
    program = trace_program(example, [make_aval((2, 3), "f32"), make_aval((3,), "f32")])
    digest = array_digest(np.arange(3, dtype=np.float32))[:12]
    assert str(program) == EXAMPLE.replace("b1da8b54b30f", digest)
    assert equal(program, parse_program(str(program), program.constant_values))
    assert re.search(r"g: .*  # test_text\.py:\d+ \(example\)\n", source_text(program))
    assert equal(program, parse_program(source_text(program), program.constant_values))


def test_sizes_have_a_header() -> None:
    program = trace_program(
        lambda x: [op.iota((N, 2 * N), 0), op.dim_size((N + 3) // 4), x], [make_aval((N,), "f32")]
    )
    text = str(program)
    assert text.startswith("dims n: 1..64\nprogram main(a: f32[n]) {\n")
    assert "iota[axis=0, dtype=i32, shape=(n, 2*n)]" in text
    assert "dim_size[dtype=i32, size=((n+3)//4)]" in text
    assert equal(program, parse_program(text))


# Random programs --------------------------------------------------------------------------------

SCALARS = st.one_of(
    st.integers(-5, 300),
    st.floats(allow_nan=True, allow_infinity=True),
    st.booleans(),
    st.none(),
    st.text(max_size=5),
    st.sampled_from(dtypes.ALL_DTYPES),
    st.complex_numbers(),
    st.sampled_from([N, 2 * N + 1, N % 7 - 3]),
    st.sampled_from([make_aval((2, N), "bf16"), Aval((), dtypes.float32, True)]),
)
VALUES = st.recursive(SCALARS, lambda inner: st.lists(inner, max_size=3).map(tuple), max_leaves=6)
NAMES = st.from_regex(r"[a-z][a-z_0-9]{0,6}", fullmatch=True)
AVALS = st.builds(
    Aval,
    st.lists(st.sampled_from([0, 1, 7, N, 3 * N]), max_size=3).map(tuple),
    st.sampled_from(dtypes.ALL_DTYPES),
    st.booleans(),
)


@st.composite
def literals(draw: st.DrawFn) -> Literal:
    dtype = draw(st.sampled_from(dtypes.ALL_DTYPES))
    bits = draw(st.binary(min_size=dtype.itemsize, max_size=dtype.itemsize))
    if dtype == dtypes.bool_:
        bits = bytes([bits[0] & 1])
    if dtypes.is_complex(dtype):  # NaN payloads are kept for real types only
        with np.errstate(over="ignore"):
            value = np.asarray(draw(st.complex_numbers(allow_nan=False))).astype(dtype)[()]
    else:
        value = np.frombuffer(bits, dtype)[0]
    return Literal(value, Aval((), dtype, draw(st.booleans())))


@st.composite
def programs(draw: st.DrawFn, depth: int = 2) -> Program:
    """Programs that need not mean anything: the text form does not look at types."""
    inputs = [Var(draw(AVALS)) for _ in range(draw(st.integers(0, 3)))]
    known = list(inputs)

    def atom() -> Atom:
        if known and draw(st.booleans()):
            return draw(st.sampled_from(known))
        return draw(literals())

    equations = []
    for _ in range(draw(st.integers(0, 4))):
        params = draw(st.dictionaries(NAMES, VALUES, max_size=3))
        if depth and draw(st.booleans()):
            params["body"] = draw(programs(depth=depth - 1))
        operands = tuple(atom() for _ in range(draw(st.integers(0, 3))))
        outputs = tuple(Var(draw(AVALS)) for _ in range(draw(st.integers(0, 2))))
        equations.append(Equation(op.primitives["add"], operands, outputs, Params(params)))
        known += outputs
    outs = tuple(atom() for _ in range(draw(st.integers(0, 3))))
    return Program(draw(NAMES), tuple(inputs), (), tuple(equations), outs)


@given(programs())
def test_text_reads_back(program: Program) -> None:
    text = str(program)
    again = parse_program(text)
    assert str(again) == text
    assert equal(program, again)
    assert fingerprint(program) == fingerprint(again)


@given(literals())
def test_literals_keep_their_bits(item: Literal) -> None:
    program = Program("p", (), (), (), (item,))
    back = parse_program(str(program)).outputs[0]
    assert isinstance(back, Literal)
    assert back.same_as(item)


def test_literal_texts() -> None:
    assert literal_text(literal(2.0)) == "2.0:f32[]~"
    assert literal_text(literal(np.float32(0.1))) == "0.1:f32[]"
    assert literal_text(literal(np.float32(1e-30))) == "1e-30:f32[]"
    assert literal_text(literal(-0.0)) == "-0.0:f32[]~"
    assert literal_text(literal(True)) == "True:bool[]"
    assert literal_text(literal(np.uint8(7))) == "7:u8[]"
    assert literal_text(literal(float("-inf"))) == "-inf:f32[]~"
    assert literal_text(literal(1 - 2j)) == "complex(1.0,-2.0):c64[]~"
    for dtype in (d for d in dtypes.ALL_DTYPES if dtypes.is_float(d)):
        text = literal_text(literal(np.asarray(np.nan).astype(dtype)[()]))
        assert text == f"nan:{dtypes.short_name(dtype)}[]"
    payload = np.uint32(0x7FC00001).view(np.float32)
    assert literal_text(literal(payload)) == "0x7fc00001:f32[]"


def test_variable_names_skip_reserved_words() -> None:
    fresh = variable_names()
    first = [next(fresh) for _ in range(20000)]
    assert first[:3] == ["a", "b", "c"]
    assert first[25:28] == ["z", "aa", "ab"]
    assert len(set(first)) == len(first)
    assert not RESERVED & set(first)
    assert "nan" not in first
    assert "nao" in first


# Parameter types --------------------------------------------------------------------------------


@register_param_type
class Mode(enum.Enum):
    """How to round."""

    NEAREST = 1
    DOWN = 2


@register_param_type
@dataclass(frozen=True)
class Window:
    """A parameter with fields."""

    sizes: tuple[int, ...]
    mode: Mode


def test_dataclass_and_enum_parameters(scratch_primitives: None) -> None:
    pool = Primitive("pool", abstract=lambda x, window: x)
    window = Window((2, 3), Mode.DOWN)
    program = trace_program(lambda x: [pool.bind(x, window=window)], [make_aval((4,), "f32")])
    assert "pool[window=Window(sizes=(2, 3), mode=Mode.DOWN)] a" in str(program)
    again = parse_program(str(program))
    assert equal(program, again)
    assert again.equations[0].params["window"] == window


def test_values_without_text(scratch_primitives: None) -> None:
    apply = Primitive("apply", abstract=lambda x, function: x)
    program = trace_program(lambda x: [apply.bind(x, function=abs)], [make_aval((4,), "f32")])
    assert "apply[function=<abs>] a" in str(program)
    with pytest.raises(TraceError, match=r"has no text form.*register_param_type"):
        fingerprint(program)
    with pytest.raises(ValueError, match="named Mode exists already"):
        register_param_type(dataclass(frozen=True)(type("Mode", (), {})))
    with pytest.raises(TypeError, match="neither a dataclass nor an Enum"):
        register_param_type(int)


BROKEN = [
    ("program p() { return", "line 1, column 21: expected a value but found 'the end'"),
    ("program p(a: f32[2]) { return b }", "variable b is not defined here"),
    ("program p(a: f32[2], a: f32[2]) { return a }", "variable a is defined twice"),
    ("program p(a: f31[2]) { return a }", "expected a type but found 'f31'"),
    ("program p(a: f32[n]) { return a }", "n is neither a size of the dims line nor"),
    ("program p(a: f32[2]) {\n  b: f32[2] = nope a\n  return b }", "line 2, column 15: no prim"),
    ("program p(a: f32[2]) { b: f32[2] = neg b return b }", "variable b is not defined here"),
    ("program p() { return 1.5:i32[] }", "1.5 is no value of i32[]"),
    ("program p() { return 0xff:f32[] }", "0xff has not the size of f32[]"),
    ("program p() { const a: f32[2] #123456 return a }", "0 of the given constants have"),
    ("program p() { return } extra", "expected the end but found 'extra'"),
    ("program p() { return $ }", "unexpected character '$'"),
    ("dims n: 1..2, n: 1..3 program p() { return }", "size n has two ranges"),
    ("program p(a: f32[1.5]) { return a }", "1.5 is no size"),
]


@pytest.mark.parametrize(("text", "cause"), BROKEN)
def test_broken_text_says_where(text: str, cause: str) -> None:
    with pytest.raises(ParseError) as error:
        parse_program(text)
    assert cause in str(error.value)
    assert "line " in str(error.value)
    assert "Correct the text" in str(error.value)


def test_annotations_are_comments() -> None:
    program = trace_program(lambda x: [op.exp(x)], [make_aval((2,), "f32")])
    text = program_text(program, annotate=lambda equation: "any text: {[(")
    assert "# any text" in text
    assert equal(parse_program(text), program)


def test_html_shows_the_users_line_once_above_its_equations() -> None:
    def loss(x):
        with name_scope("block1"):
            y = op.exp(op.exp(x))
        return [op.exp(y)]

    page = trace_program(loss, [make_aval((2,), "f32")], "loss")._repr_html_()
    notes = re.findall(r"<b [^>]*># (.*)</b>", page)
    assert len(notes) == 2
    assert re.fullmatch(
        r"test_text\.py:\d+ \(loss\) block1   y = op\.exp\(op\.exp\(x\)\)", notes[0]
    )
    assert re.fullmatch(r"test_text\.py:\d+ \(loss\)   return \[op\.exp\(y\)\]", notes[1])
    text = re.sub(r"<[^>]*>", "", re.sub(r" *<b .*</b>\n", "", page))
    assert html.unescape(text) == str(trace_program(loss, [make_aval((2,), "f32")], "loss"))


def test_html_counts_the_lines_it_leaves_out() -> None:
    page = listing_html([(f"line <{i}>", None) for i in range(5)], limit=2)
    assert "line &lt;1&gt;\n… 3 more lines" in page and "line &lt;2&gt;" not in page


def test_invalid_program_still_prints() -> None:
    stray = Var(make_aval((2,), "f32"))
    assert "return undefined_" in str(Program("p", (), (), (), (stray,)))
