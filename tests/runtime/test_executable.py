"""Executables over hand-made native entries: slots, arenas, aliases, segments, errors."""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from trnx.compiler.tile.ir import Buffer, TileProgram
from trnx.core import config, dtypes
from trnx.core.avals import Aval
from trnx.core.errors import ShapeError, UnsupportedError
from trnx.core.tracing import trace_program
from trnx.ops import functions as F
from trnx.runtime import executable as executable_module
from trnx.runtime.array import Array, DonatedError
from trnx.runtime.convert import from_host
from trnx.runtime.devices import NEURON
from trnx.runtime.executable import Executable, NativeError
from trnx.runtime.fallback import host_calls, host_function

F4 = Aval((4,), dtypes.float32)
ENTRY = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.POINTER(ctypes.c_int64))


@dataclass
class Native:
    """A native segment whose code is a Python function over the slots, called by address."""

    body: Callable[..., int | None]
    slots: int
    seen: list[list[int]] = field(default_factory=list)

    def __post_init__(self) -> None:
        def entry(pointer: Any) -> int:
            values = pointer[: self.slots]
            self.seen.append(values)
            return self.body(*values) or 0

        self._keep = ENTRY(entry)
        self.address = ctypes.cast(self._keep, ctypes.c_void_p).value


@dataclass
class Host:
    """A host segment."""

    function: str
    ins: tuple[int, ...]
    outs: tuple[int, ...]
    attrs: tuple[tuple[str, Any], ...] = ()
    source: Any = None


@dataclass
class Compiled:
    """What a compiler would hand over."""

    outline: TileProgram
    segments: tuple[Any, ...]


def buffers(text: str) -> tuple[Buffer, ...]:
    """Buffers of f32[4] from words `name:kind[=alias]`; temps lie 64 bytes apart."""
    made, offset = [], 0
    for word in text.split():
        name, kind = word.split(":")
        kind, _, alias = kind.partition("=")
        at = None
        if kind == "temp":
            at, offset = offset, offset + 64
        made.append(Buffer(name, (4,), dtypes.float32, kind, at, alias or None))
    return tuple(made)


def program(text: str, outputs: str, registers: tuple[str, ...] = ()) -> TileProgram:
    """A tile program with these buffers."""
    made = buffers(text)
    arena = 64 * sum(b.kind == "temp" for b in made)
    return TileProgram("p", "trn2", made, (), (), tuple(outputs.split()), registers, arena)


def floats(address: int) -> np.ndarray:
    """The four floats at an address, writable."""
    return np.ctypeslib.as_array((ctypes.c_float * 4).from_address(address))


def make(
    text: str, outputs: str, body: Callable[..., int | None], bound: tuple[Array, ...] = ()
) -> tuple[Executable, Native]:
    """An executable of one native segment."""
    tile = program(text, outputs)
    native = Native(body, len(tile.buffers))
    return Executable(Compiled(tile, (native,)), NEURON, (F4,) * len(tile.outputs), bound), native


def test_inputs_outputs_and_temps_have_their_slots() -> None:
    """Any order of declaration; outputs and arena aligned; temps at their offsets."""

    def body(a: int, t: int, y: int, u: int, b: int) -> None:
        floats(t)[:] = floats(a) * 2
        floats(u)[:] = floats(t) + 100
        floats(y)[:] = floats(u) - floats(b)

    run, native = make("a:input t:temp y:output u:temp b:input", "y", body)
    a, b = from_host([1.0, 2.0, 3.0, 4.0]), from_host([1.0] * 4)
    for _ in range(3):
        (y,) = run([a, b])
        assert y.tolist() == [101.0, 103.0, 105.0, 107.0]
        assert (str(y.aval), y.device) == ("f32[4]", NEURON)
    _, t, out, u, _ = native.seen[0]
    assert t % 64 == out % 64 == 0
    assert u - t == 64


def test_a_program_with_constants_is_refused() -> None:
    """Captured arrays are inputs; a constant buffer would have no address."""
    with pytest.raises(NativeError, match="Close it first"):
        make("a:input c:constant y:output", "y", lambda *slots: None)


def test_every_output_is_its_own_block() -> None:
    """Two outputs never share memory, and a second call never reuses the first call's outputs."""

    def body(x: int, y: int, z: int) -> None:
        floats(y)[:], floats(z)[:] = floats(x), -floats(x)

    run, _ = make("x:input y:output z:output", "y z", body)
    x = from_host([1.0, 2.0, 3.0, 4.0])
    results = [array for _ in range(3) for array in run([x])]
    assert len({array.address for array in results}) == 6
    assert results[1].tolist() == [-1.0, -2.0, -3.0, -4.0]


def test_bound_arrays_are_the_leading_inputs() -> None:
    """Captured constants are inputs that the caller does not pass."""

    def body(k: int, x: int, y: int) -> None:
        floats(y)[:] = floats(k) * floats(x)

    run, _ = make("k:input x:input y:output", "y", body, bound=(from_host([3.0] * 4),))
    assert run([from_host([1.0, 2.0, 3.0, 4.0])])[0].tolist() == [3.0, 6.0, 9.0, 12.0]


def test_unaligned_inputs_are_passed_as_they_are() -> None:
    """A row of an array starts at its own element."""
    run, native = make("x:input y:output", "y", lambda x, y: None)
    row = from_host(np.zeros((3, 4), np.float32))._row(1)
    run([row])
    assert native.seen[0][0] == row.address


def test_results_that_are_inputs_or_repeated() -> None:
    """An input may be returned; a result that appears twice is one array."""

    def body(x: int, y: int) -> None:
        floats(y)[:] = floats(x) + 1

    run, _ = make("x:input y:output", "x y y", body)
    x = from_host([1.0] * 4)
    a, b, c = run([x])
    assert a.address == x.address
    assert b is c
    assert b.tolist() == [2.0] * 4
    assert x._owner.pinned, "memory that two arrays share is never donated"


def increment(x: int, y: int) -> None:
    """In place when both are one address."""
    floats(y)[:] = floats(x) + 1


def test_donation_reuses_the_block() -> None:
    """The output takes the input's memory; the input is gone."""
    run, native = make("x:input y:output=x", "y", increment)
    x = from_host([1.0] * 4)
    address = x.address
    (y,) = run([x], donated=[0])
    assert (y.address, y.tolist()) == (address, [2.0] * 4)
    assert native.seen[0] == [address, address]
    with pytest.raises(DonatedError, match="was donated to a call"):
        x.tolist()


def test_alias_without_donation_gets_a_block_of_its_own() -> None:
    """The input keeps its values."""
    run, _ = make("x:input y:output=x", "y", increment)
    x = from_host([1.0] * 4)
    (y,) = run([x])
    assert (x.tolist(), y.tolist()) == ([1.0] * 4, [2.0] * 4)


@pytest.mark.parametrize("reason", ["view", "row", "foreign", "twice"])
def test_memory_that_others_see_is_never_updated_in_place(reason: str) -> None:
    """An exported, shared or foreign block, or one passed twice, is copied; values stay."""
    run, _ = make("x:input z:input y:output=x", "y", lambda x, z, y: increment(x, y))
    source = np.ones(4, np.float32)
    x = from_host(source, copy=False) if reason == "foreign" else from_host(source)
    z = x if reason == "twice" else from_host(source)
    view = np.asarray(x) if reason == "view" else None
    row = next(iter(x)) if reason == "row" else None
    (y,) = run([x, z], donated=[0])
    assert y.tolist() == [2.0] * 4
    assert x.is_donated()
    assert source.tolist() == [1.0] * 4
    if view is not None:
        assert view.tolist() == [1.0] * 4
    if row is not None:
        assert row.item() == 1.0


def test_donated_input_that_is_also_a_result() -> None:
    """Its values survive as the result even though the argument is gone."""
    run, _ = make("x:input y:output=x", "x y", increment)
    x = from_host([1.0] * 4)
    a, b = run([x], donated=[0])
    assert (a.tolist(), b.tolist()) == ([1.0] * 4, [2.0] * 4)
    assert x.is_donated()


def test_registers_follow_the_buffers() -> None:
    """Run-time integers arrive after the addresses; addresses of the caller are used as given."""
    tile = program("x:input y:output", "y", ("n", "stride"))
    seen = []

    def body(x: int, y: int, n: int, stride: int) -> None:
        seen.append((n, stride))
        floats(y)[:n] = floats(x)[::stride]

    native = Native(body, 4)
    run = Executable(Compiled(tile, (native,)), NEURON)
    x, y = np.arange(4, dtype=np.float32), np.zeros(4, np.float32)
    run.run([x.ctypes.data], [y.ctypes.data], (2, 2))
    assert seen == [(2, 2)]
    assert y.tolist() == [0.0, 2.0, 0.0, 0.0]


def test_host_segments_run_in_order_and_are_counted() -> None:
    """Native, host fallback, native; the fallback gets views, attributes and a count."""
    tile = program("x:input t:temp u:temp y:output", "y")

    def first(x: int, t: int, u: int, y: int) -> None:
        floats(t)[:] = floats(x) + 1

    def last(x: int, t: int, u: int, y: int) -> None:
        floats(y)[:] = floats(u) * 2

    @host_function("reverse_for_test")
    def reverse(ins: list[np.ndarray], outs: list[np.ndarray], attrs: dict[str, Any]) -> None:
        assert not ins[0].flags.writeable
        outs[0][:] = ins[0][:: attrs["step"]]

    segments = (
        Native(first, 4),
        Host("reverse_for_test", (1,), (2,), (("step", -1),)),
        Native(last, 4),
    )
    run = Executable(Compiled(tile, segments), NEURON, (F4,))
    before = host_calls["reverse_for_test"]
    assert run([from_host([1.0, 2.0, 3.0, 4.0])])[0].tolist() == [10.0, 8.0, 6.0, 4.0]
    assert host_calls["reverse_for_test"] == before + 1
    with pytest.raises(ValueError, match="registered already"):
        host_function("reverse_for_test")(reverse)


def test_unknown_host_function_is_named() -> None:
    """Cause and remedy."""
    run = Executable(
        Compiled(program("x:input y:output", "y"), (Host("sort", (0,), (1,)),)), NEURON, (F4,)
    )
    with pytest.raises(UnsupportedError, match=r"host function sort, which is not registered"):
        run([from_host([1.0] * 4)])


def test_a_primitive_without_lowering_runs_by_its_reference() -> None:
    """The call carries its program as text; it is counted under the primitive's name."""
    program_text = str(trace_program(lambda x: [F.exp(x)], [F4], "exp"))
    tile = program("x:input y:output", "y")
    segment = Host("some_primitive", (0,), (1,), (("program", program_text),))
    run = Executable(Compiled(tile, (segment,)), NEURON, (F4,))
    before = host_calls["some_primitive"]
    (y,) = run([from_host([0.0, 1.0, 2.0, 3.0])])
    np.testing.assert_allclose(np.asarray(y), np.exp(np.arange(4)), rtol=1e-6)
    assert host_calls["some_primitive"] == before + 1


def test_native_error_code_is_an_exception() -> None:
    """A non-zero code, also in a program of several segments."""
    run, _ = make("x:input y:output", "y", lambda x, y: 7)
    with pytest.raises(NativeError, match=r"Native code of program p reported error 7"):
        run([from_host([1.0] * 4)])
    good, bad = Native(lambda x, y: None, 2), Native(lambda x, y: 3, 2)
    both = Executable(Compiled(program("x:input y:output", "y"), (good, bad)), NEURON, (F4,))
    with pytest.raises(NativeError, match="error 3"):
        both([from_host([1.0] * 4)])


def test_wrong_number_of_addresses() -> None:
    """One sentence that counts them."""
    run, native = make("x:input y:output", "y", lambda x, y: None)
    with pytest.raises(ShapeError, match=r"takes 1 inputs, 1 outputs and 0 registers.*got 2, 1"):
        run.run([64, 64], [64])
    assert native.seen == []


def test_debug_level_2_reports_time_and_bytes(capsys: pytest.CaptureFixture[str]) -> None:
    """The level is captured when the executable is made."""
    with config.debug(2):
        run, _ = make("x:input y:output", "y", lambda x, y: None)
    run([from_host([1.0] * 4)])
    line = capsys.readouterr().err
    assert line.startswith("trnx: p on neuron: ")
    assert "32 B in and out" in line
    quiet, _ = make("x:input y:output", "y", lambda x, y: None)
    quiet([from_host([1.0] * 4)])
    assert capsys.readouterr().err == ""


def test_a_call_touches_no_array_library(monkeypatch: pytest.MonkeyPatch) -> None:
    """The native path runs with NumPy's entry points replaced by ones that raise."""

    def refuse(*args: object, **kwargs: object) -> None:
        raise AssertionError("NumPy took part in a native call")

    run, native = make("x:input t:temp y:output", "y", lambda x, t, y: None)
    x = from_host([1.0] * 4)
    for name in ("asarray", "array", "empty", "copyto", "frombuffer", "ascontiguousarray"):
        monkeypatch.setattr(np, name, refuse)
    monkeypatch.setattr(executable_module, "numpy_view", refuse)
    (y,) = run([x])
    monkeypatch.undo()
    assert native.seen[0][0] == x.address
    assert native.seen[0][2] == y.address


def test_slots_are_packed_as_native_64_bit_integers() -> None:
    """The entry reads plain int64 in machine order."""
    seen = []

    def body(x: int, y: int) -> None:
        seen.append(struct.pack("=2q", x, y))

    run, native = make("x:input y:output", "y", body)
    run([from_host([1.0] * 4)])
    assert seen[0] == struct.pack("=2q", *native.seen[0])
