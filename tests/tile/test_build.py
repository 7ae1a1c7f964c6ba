"""KernelBuilder and views: what is written is what the IR holds; mistakes are named."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trnx.compiler.tile import isa
from trnx.compiler.tile.analysis import extent
from trnx.compiler.tile.build import KernelBuilder, predicate, single_kernel_program
from trnx.compiler.tile.expr import minimum, symbol
from trnx.compiler.tile.ir import (
    For,
    HbmAccess,
    Instruction,
    Predicate,
    RegisterLoad,
    RegisterMove,
    RegisterValue,
    Span,
    TileAccess,
    While,
)
from trnx.compiler.tile.views import HbmView, TileView, merge_spans, reshape_spans
from trnx.core.dtypes import bfloat16, bool_, float32, int32, uint32
from trnx.core.errors import TileError
from trnx.core.source import Source


def elements(offset: int, spans: tuple[Span, ...]) -> np.ndarray[Any, Any]:
    """The element numbers an access touches, as an array of its shape."""
    index = np.array(offset)
    for span in spans:
        index = index[..., None] + np.arange(int(str(span.count))) * int(str(span.stride))
    return index


@st.composite
def indexing(draw: st.DrawFn, shape: tuple[int, ...]) -> tuple[Any, ...]:
    """A NumPy key for ``shape``: integers, slices with steps, new axes, an ellipsis."""
    key: list[Any] = []
    for size in shape:
        kind = draw(st.sampled_from(("all", "slice", "int", "new")))
        if kind == "int":
            key.append(draw(st.integers(0, size - 1)))
        elif kind == "slice":
            low = draw(st.integers(0, size - 1))
            key.append(slice(low, draw(st.integers(low + 1, size)), draw(st.integers(1, 3))))
        else:
            key += [None, slice(None)] if kind == "new" else [slice(None)]
    if draw(st.booleans()) and all(isinstance(k, slice) for k in key[-1:]):
        key[-1] = Ellipsis
    return tuple(key)


SHAPE = (6, 5, 4)


@given(indexing(SHAPE), indexing((3, 2)), st.permutations(range(3)))
def test_hbm_views_slice_like_numpy(key: Any, other: Any, axes: list[int]) -> None:
    """Slicing, permuting and slicing again address the elements NumPy addresses."""
    view = KernelBuilder("k").param("x", SHAPE, float32)
    array = np.arange(np.prod(SHAPE)).reshape(SHAPE)
    sliced, expected = view[key], array[key]
    assert np.array_equal(elements(sliced.offset, sliced.spans), expected)  # type: ignore[arg-type]
    turned = view.permute(*axes)[:3, :2, 1][other]
    assert np.array_equal(
        elements(turned.offset, turned.spans),  # type: ignore[arg-type]
        array.transpose(axes)[:3, :2, 1][other],
    )


@given(indexing((5, 4)), st.integers(0, 3), st.integers(1, 4))
def test_tile_views_slice_like_numpy(key: Any, start: int, count: int) -> None:
    """Free dimensions follow NumPy; the partition keeps its dimension."""
    view = KernelBuilder("k").sbuf((8, 5, 4), float32)
    array = np.arange(20).reshape(5, 4)
    got = view[(slice(start, start + count), *key)]
    assert (got.start, got.partitions) == (start, count)
    expected = array[key]
    assert np.array_equal(
        elements(got.offset, got.spans).reshape(expected.shape),  # type: ignore[arg-type]
        expected,
    )
    assert view[3].shape == (1, 5, 4) and view[3, 1, 2].shape == (1, 1)


@given(st.lists(st.integers(1, 4), min_size=1, max_size=4), st.data())
def test_reshape_keeps_order_or_refuses(shape: list[int], data: st.DataObject) -> None:
    """A reshape that exists gives the same elements in order, otherwise None."""
    strides = data.draw(st.permutations(range(len(shape))))
    array = np.arange(int(np.prod(shape))).reshape(shape).transpose(strides)
    steps = tuple(s // array.itemsize for s in array.strides)
    spans = tuple(Span(s, c) for s, c in zip(steps, array.shape, strict=True))
    total = array.size
    divisor = data.draw(st.sampled_from([d for d in range(1, total + 1) if total % d == 0]))
    wanted = (divisor, total // divisor)
    got = reshape_spans(spans, wanted)
    view = array.view()
    try:
        view.shape = wanted
        possible = True
    except AttributeError:
        possible = False
    if got is not None:
        assert np.array_equal(elements(0, got), array.reshape(wanted))
    assert (got is not None) == possible
    assert np.array_equal(elements(0, merge_spans(spans)).ravel(), array.ravel())
    assert extent(spans) == total - 1


def test_symbolic_slices_fold() -> None:
    """A tail slice has the tail as its count; equal slices are equal accesses."""
    b = KernelBuilder("k")
    x = b.param("x", (1000, 8), float32)
    with b.loop("i", 0, 8) as i:
        rows = minimum(128, 1000 - i * 128)
        block = x[i * 128 : i * 128 + rows]
        assert block.shape == (rows, 8)
        assert block.access == HbmAccess("x", 1024 * i, (Span(8, rows), Span(1, 8)))
        assert x[i * 128 : i * 128 + rows, 2:4][:, 1].access == HbmAccess(
            "x", 1024 * i + 3, (Span(8, rows),)
        )
        assert x[None, 0].broadcast(0, rows).access == HbmAccess(
            "x", 0, (Span(0, rows), Span(1, 8))
        )


def test_indexed_rows() -> None:
    """A gather takes its row count from the index tile."""
    b = KernelBuilder("k")
    x = b.param("x", (1000, 8), float32)
    index = b.sbuf((128, 1), int32)
    assert x.indexed(index[:5]).access == HbmAccess(
        "x", 0, (Span(8, 5), Span(1, 8)), TileAccess("t0", 0, 5, 0, (Span(1, 1),))
    )


def test_statements() -> None:
    """Loops, registers and instructions land where they are written, with unique names."""
    b = KernelBuilder("a kernel's name")
    x = b.param("x", (8, 4), int32, "inout")
    n = b.register_argument("n")
    with b.loop("i", 0, n, step=2) as i:
        t = b.sbuf((8, 4), int32, "tile")
        u = b.sbuf((8, 4), int32, "tile")
        b.dma_copy(t, x)
        b.tensor_scalar(u, t, i + 1, op0="add")
    count = b.load_register(x[0:1, 0:1], "count")
    with b.loop("i", 0, 2), b.while_loop(count):
        b.move_register(count, 0)
    spare = b.register(value=3)
    b.load_register(x[0:1, 0:1], into=spare)
    kernel = b.finish()
    assert kernel.name == "a_kernel_s_name" and kernel.registers == ("n",)
    first, load, second, move, reload = kernel.body
    assert isinstance(first, For) and (first.index, first.high, first.step) == ("i", symbol("n"), 2)
    copy, add = first.body[2:]
    assert isinstance(copy, Instruction) and copy.outs[0] == t.access and t.tile.name == "tile"
    assert u.tile.name == "tile1" and isinstance(add, Instruction)
    assert add.ins[1] == RegisterValue(symbol("i") + 1) and add.engine == "gpsimd"
    assert load == RegisterLoad("count", x[0:1, 0:1].access)
    assert isinstance(second, For) and second.index == "i1"
    loop = second.body[0]
    assert isinstance(loop, While) and loop.body == (RegisterMove("count", 0),)
    assert move == RegisterMove("r0", 3) and isinstance(reload, RegisterLoad)


def test_every_instruction_has_a_method() -> None:
    """Methods are generated from the table with its documentation."""
    for name, spec in isa.SPECS.items():
        method = getattr(KernelBuilder, name)
        assert method.__name__ == name and method.__doc__ == spec.doc


def test_attributes_are_canonical() -> None:
    """Absent, None and False are one; defaults that say something are kept; lists become tuples."""
    b = KernelBuilder("k")
    t = b.sbuf((4, 4), float32)
    b.tensor_scalar(t, t, 1, op0="add", reverse0=False, op1=None)
    b.tensor_scalar(t, t, 1, op0="add")
    b.tensor_reduce(t[:, :1], t, op="add")
    b.tensor_reduce(t[:, :1], t, op="add", axis=[1])
    i = b.sbuf((4, 4), int32)
    b.iota(i, pattern=[[1, 4]])
    found = [s.attrs for s in b.finish().body if isinstance(s, Instruction)]
    assert found[0] == found[1] == (("op0", "add"),)
    assert found[2] == found[3] == (("op", "add"), ("axis", (1,)))
    assert found[4] == (("pattern", ((1, 4),)), ("offset", 0), ("channel_multiplier", 0))


def test_memset_values_have_the_kind_of_the_tile() -> None:
    """1 into floats is 1.0; 1.5 into integers and 2 into bools are mistakes."""
    b = KernelBuilder("k")
    b.memset(b.sbuf((1, 1), bfloat16), 1)
    b.memset(b.sbuf((1, 1), bool_), True)
    b.memset(b.sbuf((1, 1), uint32), np.float32(7))
    values = [s.ins[0] for s in b.finish().body if isinstance(s, Instruction)]
    assert [(v, type(v)) for v in values] == [(1.0, float), (1, int), (7, int)]
    for dtype, value in ((int32, 1.5), (bool_, 2)):
        with pytest.raises(TileError, match="loses the value"):
            b.memset(b.sbuf((1, 1), dtype), value)


def test_predicates_fold() -> None:
    """Comparisons of constants are bools."""
    assert predicate(1, ">", 0) is True and predicate(1, "<=", 0) is False
    assert predicate(symbol("k"), ">", 0) == Predicate(symbol("k"), ">", 0)
    with pytest.raises(TileError, match="'=>' is no relation"):
        predicate(symbol("k"), "=>", 0)


ENGINES: list[tuple[str, Callable[[KernelBuilder, TileView], None], str]] = [
    ("f32", lambda b, t: b.tensor_tensor(t, t, t, op="add"), "vector"),
    ("i32", lambda b, t: b.tensor_tensor(t, t, t, op="add"), "gpsimd"),
    ("i32", lambda b, t: b.tensor_tensor(t, t, t, op="maximum"), "vector"),
    ("i32", lambda b, t: b.tensor_tensor(t, t, t, op="bitwise_xor"), "vector"),
    ("i32", lambda b, t: b.tensor_scalar(t, t, 3, op0="multiply"), "gpsimd"),
    ("i32", lambda b, t: b.tensor_scalar(t, t, 3.0, op0="multiply"), "vector"),
    ("i64", lambda b, t: b.tensor_tensor(t, t, t, op="add"), "vector"),
    ("f32", lambda b, t: b.tensor_tensor(t, t, t, op="power"), "gpsimd"),
    ("f32", lambda b, t: b.activation(t, t, op="exp"), "scalar"),
    ("f32", lambda b, t: b.memset(t, 0.0), "vector"),
]


@pytest.mark.parametrize("number", range(len(ENGINES)))
def test_default_engines(number: int) -> None:
    """32-bit integer arithmetic goes to GpSimd, power too, the rest where the table says."""
    dtype, write, engine = ENGINES[number]
    b = KernelBuilder("k")
    write(b, b.sbuf((4, 4), dtype))
    (made,) = (s for s in b.finish().body if isinstance(s, Instruction))
    assert made.engine == engine


def test_default_queues() -> None:
    """Loads on sync, stores on scalar, indirect transfers on gpsimd, PSUM integers on vector."""
    b = KernelBuilder("k")
    x = b.param("x", (16, 4), int32, "inout")
    t, index = b.sbuf((4, 4), int32), b.sbuf((4, 1), int32)
    p = b.psum((4, 4), int32)
    b.dma_copy(t, x[0:4])
    b.dma_copy(x[0:4], t)
    b.dma_copy(t, x.indexed(index))
    b.dma_compute(x.indexed(index), t)
    b.tensor_tensor(p, t, t, op="add")
    queues = [isa.queue(s) for s in b.finish().body if isinstance(s, Instruction)]
    assert queues == ["dma:sync", "dma:scalar", "dma:gpsimd", "dma:gpsimd", "vector"]


def test_sources() -> None:
    """An instruction carries the line that is current, or the one given with `at`."""
    b = KernelBuilder("k")
    t = b.sbuf((4, 4), float32)
    b.memset(t, 0.0)
    with b.at(Source("model.py", 3, "loss")):
        b.memset(t, 0.0)
    first, second = (s.source for s in b.finish().body if isinstance(s, Instruction))
    assert first is not None and first.file == __file__ and first.function == "test_sources"
    assert str(second) == "model.py:3 (loss)"


def test_single_kernel_program() -> None:
    """Inputs come first; written parameters are the outputs."""
    b = KernelBuilder("k")
    b.param("out", (4,), float32, "out")
    b.param("both", (4,), float32, "inout")
    b.param("only", (4,), float32, "in")
    made = single_kernel_program(b.finish(), "trn2")
    assert [(x.name, x.kind) for x in made.buffers] == [
        ("both", "input"),
        ("only", "input"),
        ("out", "output"),
    ]
    assert made.outputs == ("out", "both")
    assert made.calls[0].buffers == ("out", "both", "only")  # type: ignore[union-attr]


def _tile(b: KernelBuilder) -> TileView:
    return b.sbuf((8, 6), float32, "t")


def _param(b: KernelBuilder) -> HbmView:
    return b.param("x", (8, 6), float32)


MISTAKES: dict[str, tuple[Callable[[KernelBuilder], Any], str]] = {
    "too many indices": (lambda b: _tile(b)[0, 0, 0], "3 indices for tile 't', which has 2"),
    "two ellipses": (lambda b: _param(b)[..., ...], "more than one '...'"),
    "out of range": (lambda b: _param(b)[0:9], "slice 0:9 leaves a dimension of 8 of parameter"),
    "negative step": (lambda b: _param(b)[::-1], "slice step -1"),
    "float index": (lambda b: _param(b)[0.5], "float cannot index parameter 'x'"),
    "moving partition": (
        lambda b: _tile(b)[symbol("i") : symbol("i") + 4],
        "do not start at a constant",
    ),
    "partition step": (lambda b: _tile(b)[0:8:2], "do not start at a constant with step 1"),
    "partition axis": (lambda b: _tile(b)[None], "None before the partition"),
    "broadcast": (lambda b: _tile(b).broadcast(1, 4), "axis 1 of tile 't' has 6 elements"),
    "broadcast partition": (lambda b: _tile(b).broadcast(0, 4), "axis 0 of tile 't' is the part"),
    "permute": (lambda b: _tile(b).permute(1, 0), "permute(1, 0) of tile 't' moves the partition"),
    "permute twice": (lambda b: _param(b).permute(0, 0), "does not name each of 2 axes once"),
    "reshape": (lambda b: _param(b).permute(1, 0).reshape(48), "cannot be reshaped to ['48']"),
    "reshape tile": (lambda b: _tile(b).reshape(4, 12), "cannot be reshaped to ['4', '12']"),
    "scalar tile": (lambda b: b.sbuf((4,), float32), "has no partition and free dimension"),
    "role": (lambda b: b.param("x", (4,), float32, "read"), "role 'read' of 'x'"),
    "keyword": (lambda b: b.param("for", (4,), float32), "parameter 'for' is no usable identifier"),
    "twice": (lambda b: (_param(b), _param(b)), "parameter 'x' is declared twice in kernel 'k'"),
    "missing operand": (lambda b: b.tensor_copy(_tile(b)), "tensor_copy has no operand 'src'"),
    "many operands": (lambda b: b.memset(1, 2, 3), "memset takes 2 operands (dst, value), not 3"),
    "given twice": (lambda b: b.memset(_tile(b), 0, dst=1), "memset got 'dst' twice"),
    "unknown": (lambda b: b.memset(_tile(b), 0, fill=1), "no operand or attribute 'fill'"),
    "number for a tile": (
        lambda b: b.tensor_copy(_tile(b), 1.0),
        "operand 'src' of tensor_copy is",
    ),
    "text for a number": (lambda b: b.memset(_tile(b), "0"), "operand 'value' of memset is str"),
    "no register": (lambda b: b.move_register(symbol("q"), 1), "'q' is not a register"),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_mistakes_are_named(name: str) -> None:
    """One TileError with cause and remedy at the line that made it."""
    write, expected = MISTAKES[name]
    with pytest.raises(TileError) as caught:
        write(KernelBuilder("k"))
    text = str(caught.value)
    assert expected in text and "(at test_build.py:" in text and text.endswith(".")


def test_open_loops_are_refused() -> None:
    """finish() inside a loop is a mistake."""
    b = KernelBuilder("k")
    with b.loop("i", 0, 4), pytest.raises(TileError, match="kernel 'k' has an open loop"):
        b.finish()
