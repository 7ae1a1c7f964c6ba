"""NKI source: golden texts, calls that fit the public signatures, and named refusals."""

from __future__ import annotations

import ast
from collections.abc import Callable

import pytest
from hypothesis import given

from tests.conftest import Golden
from tests.sim.random_programs import RandomCase, random_case
from tests.tile import kernels
from trnx.compiler.nki.emit import kernel_source, program_source
from trnx.compiler.nki.names import HELPERS, OPERATOR_NAMES, PARAMETERS
from trnx.compiler.nki.read import read_kernels
from trnx.compiler.tile import isa
from trnx.compiler.tile.build import KernelBuilder, single_kernel_program
from trnx.compiler.tile.ir import Buffer, HostCall, Kernel, KernelCall, TileProgram, tiles
from trnx.compiler.tile.unroll import unroll
from trnx.core.dtypes import float32, int32, int64, uint8
from trnx.core.errors import UnsupportedError


@pytest.mark.parametrize("name", kernels.ALL)
def test_sources_are_as_committed(name: str, golden: Golden) -> None:
    """The source of the hand-written kernels, comments included."""
    golden(program_source(kernels.program(kernels.ALL[name]())), suffix="nki")


@pytest.mark.parametrize("name", kernels.ALL)
def test_sources_read_back(name: str) -> None:
    """Printed, read, placed, proved and scheduled gives the kernel again; also unrolled."""
    made = kernels.program(kernels.ALL[name]())
    text = program_source(made)
    assert tuple(kernels.finish(k) for k in read_kernels(text)) == made.kernels
    (flat,) = read_kernels(text, unroll=True)
    assert kernels.finish(flat) == kernels.finish(unroll(made.kernels[0]))
    plain = [line for line in text.split("\n") if not line.lstrip().startswith("# ")]
    assert program_source(made, comments=False) == "\n".join(plain)


@given(random_case(target="trn2"))
def test_random_programs_read_back(case: RandomCase) -> None:
    """Random programs of every instruction survive the round trip, unless refused by name."""
    dtypes = [p.dtype for k in case.program.kernels for p in k.params]
    dtypes += [t.dtype for k in case.program.kernels for t in tiles(k).values()]
    if any(dtype.itemsize == 8 for dtype in dtypes):
        with pytest.raises(UnsupportedError, match="which NKI does not have"):
            program_source(case.program)
        return
    text = program_source(case.program)
    assert tuple(kernels.finish(k) for k in read_kernels(text)) == case.program.kernels


def calls_of(text: str) -> list[tuple[str, list[str]]]:
    """Every ``nisa`` call of a text with its argument names; positional ones are refused."""
    found = []
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            owner = node.func.value
            if isinstance(owner, ast.Name) and owner.id == "nisa":
                if node.func.attr.startswith("register_"):
                    continue
                assert not node.args, ast.unparse(node)
                found.append((node.func.attr, [str(k.arg) for k in node.keywords]))
    return found


@pytest.mark.parametrize("name", kernels.ALL)
def test_calls_fit_the_public_signatures(name: str) -> None:
    """Arguments exist and come in the declared order."""
    found = calls_of(program_source(kernels.program(kernels.ALL[name]())))
    assert found
    for function, given_names in found:
        declared = list(PARAMETERS[function])
        assert [n for n in declared if n in given_names] == given_names, (function, given_names)


def test_every_instruction_has_a_signature() -> None:
    """The table covers the instruction set, and its operands and attributes are parameters."""
    assert PARAMETERS.keys() == isa.SPECS.keys()
    for spec in isa.SPECS.values():
        names = {o.name for o in (*spec.outs, *spec.ins)} | {a.name for a in spec.attrs}
        if spec.name == "dma_compute":
            names = names - {"src"} | {"srcs"}
        assert names <= set(PARAMETERS[spec.name]), spec.name
    assert OPERATOR_NAMES["bitwise_not"] == "invert"


def one_instruction(write: Callable[[KernelBuilder], None]) -> Kernel:
    """A kernel that ``write`` fills."""
    b = KernelBuilder("small", source=kernels.line(50))
    with b.at(kernels.line(51)):
        write(b)
    return b.finish()


def test_engine_is_said_only_where_it_differs() -> None:
    """Defaults are left out; choices are enum members; DMA queues are descriptor modes."""

    def write(b: KernelBuilder) -> None:
        x = b.param("x", (8, 8), float32, "in")
        i = b.sbuf((8, 8), int32, "i")
        t = b.sbuf((8, 8), float32, "t")
        b.dma_copy(t, x)
        b.dma_copy(t, x, engine="scalar")
        b.dma_copy(t, x, engine="gpsimd")
        b.tensor_tensor(i, i, i, op="add")
        b.tensor_tensor(i, i, i, op="add", engine="vector")
        b.tensor_copy(t, t, engine="scalar")
        b.memset(t, 0.0, engine="gpsimd")

    text = kernel_source(one_instruction(write), "trn2", comments=False)
    lines = [line.strip() for line in text.split("\n") if "nisa." in line]
    assert lines == [
        "nisa.dma_copy(dst=t, src=x)",
        "nisa.dma_copy(dst=t, src=x, dge_mode=nisa.dge_mode.hwdge, engine=nisa.engine.scalar)",
        "nisa.dma_copy(dst=t, src=x, dge_mode=nisa.dge_mode.swdge)",
        "nisa.tensor_tensor(dst=i, data1=i, data2=i, op=nl.add)",
        "nisa.tensor_tensor(dst=i, data1=i, data2=i, op=nl.add, engine=nisa.engine.vector)",
        "nisa.tensor_copy(dst=t, src=t, engine=nisa.engine.scalar)",
        "nisa.memset(dst=t, value=0.0, engine=nisa.engine.gpsimd)",
    ]


def _sizes(b: KernelBuilder) -> None:
    n = b.register_argument("n")
    b.param("x", (n,), float32, "in")


def _divide(b: KernelBuilder) -> None:
    t = b.sbuf((4, 4), float32)
    b.tensor_tensor(t, t, t, op="divide", engine="vector")


def _wide(b: KernelBuilder) -> None:
    b.sbuf((4, 4), int64, "wide")


def _strided(b: KernelBuilder) -> None:
    b.param("x", (4, 4), float32, "in", strides=(8, 1))


def _register_operand(b: KernelBuilder) -> None:
    t = b.sbuf((1, 1), int32)
    r = b.load_register(t, "r")
    b.tensor_scalar(t, t, r, op0="bitwise_and")


def _register_sum(b: KernelBuilder) -> None:
    x = b.param("x", (64, 4), float32, "in")
    t = b.sbuf((1, 1), int32)
    u = b.sbuf((1, 4), float32)
    r, s = b.load_register(t, "r"), b.load_register(t, "s")
    b.dma_copy(u, x[r + s : r + s + 1])


def _register_size(b: KernelBuilder) -> None:
    x = b.param("x", (64, 4), float32, "in")
    t = b.sbuf((1, 1), int32)
    u = b.sbuf((64, 4), float32)
    r = b.load_register(t, "r")
    b.dma_copy(u[:r], x[:r])


def _register_arithmetic(b: KernelBuilder) -> None:
    t = b.sbuf((1, 1), int32)
    r = b.load_register(t, "r")
    b.move_register(r, r - 1)


def _carried(b: KernelBuilder) -> None:
    t = b.sbuf((1, 1), int32)
    r, s = b.load_register(t, "r"), b.load_register(t, "s")
    with b.loop("i", 0, r):
        b.move_register(s, 3)


def _odd_step(b: KernelBuilder) -> None:
    x = b.param("x", (10,), float32, "in")
    t = b.sbuf((1, 1), int32)
    u = b.sbuf((1, 1), float32)
    r = b.load_register(t, "r")
    b.dma_copy(u, x[None, r * 3 : r * 3 + 1])


def _casting_queue(b: KernelBuilder) -> None:
    x = b.param("x", (4, 4), uint8, "in")
    t = b.sbuf((4, 4), float32)
    b.dma_copy(t, x, engine="scalar")


def _two_exact(b: KernelBuilder) -> None:
    t = b.sbuf((4, 4), int32)
    b.tensor_scalar(t, t, 3, op0="add", op1="multiply", operand1=2)


REFUSED = {
    "run-time sizes": (_sizes, "has run-time sizes n (at model.py:50"),
    "divide": (_divide, "operator 'divide' does not exist on a NeuronCore (at model.py:51"),
    "int64": (_wide, "tile 'wide' has dtype i64, which NKI does not have (at model.py:50"),
    "strides": (_strided, "parameter 'x' has strides ['8', '1']"),
    "register operand": (_register_operand, "operand 'operand0' is the register r"),
    "two registers": (_register_sum, "is more than one register times a constant"),
    "register size": (_register_size, "an access has the run-time size r"),
    "register arithmetic": (_register_arithmetic, "register 'r' is set to the expression r - 1"),
    "carried register": (_carried, "register 's' is changed inside a device loop"),
    "odd step": (_odd_step, "in steps of 3 elements does not divide 'x' [10]"),
    "casting queue": (_casting_queue, "a DMA on queue scalar changes the dtype"),
    "two exact operators": (_two_exact, "two operators on exact 32-bit integers"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refusals_name_cause_line_and_remedy(name: str) -> None:
    """What NKI cannot say is one UnsupportedError, never a wrong kernel."""
    write, expected = REFUSED[name]
    with pytest.raises(UnsupportedError) as caught:
        kernel_source(one_instruction(write), "trn2")
    text = str(caught.value)
    assert text.startswith("NKI source: ") and expected in text
    assert "model.py:5" in text and text.endswith(".") and text.count(". ") >= 1


def test_cpu_programs_and_host_calls_are_refused() -> None:
    """The target must be a NeuronCore, and every call a kernel."""
    kernel = kernels.finish(kernels.softmax(), "cpu")
    with pytest.raises(UnsupportedError, match=r"compiled for target cpu .*one of trn1, trn2"):
        program_source(single_kernel_program(kernel, "cpu"))
    buffers = (Buffer("x", (4,), float32, "input"), Buffer("y", (4,), float32, "output"))
    calls = (HostCall("sort", ("x",), ("y",), source=kernels.line(9)),)
    program = TileProgram("p", "trn2", buffers, (), calls, ("y",))
    with pytest.raises(UnsupportedError, match=r"host function 'sort' \(at model.py:9"):
        program_source(program)


def test_several_kernels_get_a_driver(golden: Golden) -> None:
    """A program of two kernels, one called twice: functions with unique names and a driver."""

    def scale(name: str, factor: float) -> Kernel:
        b = KernelBuilder(name, source=kernels.line(60))
        x = b.param("x", (64, 64), float32, "in")
        y = b.param("y", (64, 64), float32, "out")
        with b.at(kernels.line(61)):
            t = b.sbuf((64, 64), float32)
            b.dma_copy(t, x)
            b.tensor_scalar(t, t, factor, op0="multiply")
            b.dma_copy(y, t)
        return kernels.finish(b.finish())

    buffers = (
        Buffer("a", (64, 64), float32, "input"),
        Buffer("mid", (64, 64), float32, "temp", 0),
        Buffer("end", (64, 64), float32, "temp", 16384),
        Buffer("out", (64, 64), float32, "output"),
    )
    calls = (
        KernelCall(0, ("a", "mid")),
        KernelCall(1, ("mid", "end")),
        KernelCall(0, ("end", "out")),
    )
    pair = (scale("scale", 2.0), scale("scale", 3.0))
    program = TileProgram("thrice", "trn2", buffers, pair, calls, ("out",), arena_bytes=32768)
    text = program_source(program)
    golden(text, suffix="nki")
    names = [k.name for k in read_kernels(text)]
    assert names == ["scale", "scale_1"]


def test_helpers_are_plain_functions() -> None:
    """Each helper parses alone and calls only names that printed modules import."""
    for name, body in HELPERS.items():
        (function,) = ast.parse(body).body
        assert isinstance(function, ast.FunctionDef) and function.name == name
        loaded = {
            n.id
            for n in ast.walk(function)
            if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load)
        }
        local = {a.arg for a in function.args.args} | {
            n.id
            for n in ast.walk(function)
            if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)
        }
        assert loaded - local <= {"nl", "nisa", "range"}
