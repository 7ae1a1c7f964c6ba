"""Array: type, Python protocols, immutability, display, pickling, memory."""

from __future__ import annotations

import copy
import gc
import math
import pickle

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import trnx.numpy  # noqa: F401  (installs the operators)
from trnx.core import dtypes
from trnx.core.avals import Aval, aval_of
from trnx.core.errors import DTypeError, IntegerRangeError, ShapeError, UnknownTypeError
from trnx.runtime import memory
from trnx.runtime.array import Array, DonatedError, array_type, donate
from trnx.runtime.convert import device_put, from_host, place
from trnx.runtime.devices import CPU, NEURON, as_device, default_device, use_device

MATRIX = np.arange(6, dtype=np.float32).reshape(2, 3)


# ---- memory
@given(st.integers(0, 1 << 24))
def test_size_class_holds_the_size_with_little_waste(nbytes: int) -> None:
    """At least the size, aligned, at most 1/8 (or 63 bytes) more; classes map to themselves."""
    size = memory.size_class(nbytes)
    assert size >= max(nbytes, 1)
    assert size % memory.ALIGNMENT == 0
    assert size <= max(nbytes + nbytes // 8, nbytes + 64)
    assert memory.size_class(size) == size


@pytest.mark.parametrize("nbytes", [0, 1, 64, 65, 5000, 1 << 20])
def test_blocks_are_aligned_distinct_and_recycled(nbytes: int) -> None:
    """Two live blocks never overlap; a freed one is handed out again."""
    first, second = memory.allocate(nbytes), memory.allocate(nbytes)
    assert first.address % 64 == second.address % 64 == 0
    assert abs(first.address - second.address) >= max(nbytes, 64)
    address = first.address
    del first
    assert memory.allocate(nbytes).address == address


def test_trim_gives_pooled_memory_back() -> None:
    """After trim nothing waits in the pool."""
    block = memory.allocate(1 << 20)
    del block
    assert memory.pooled_bytes() >= 1 << 20
    assert memory.trim() >= 1 << 20
    assert memory.pooled_bytes() == 0


def test_pool_has_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """A block that would lift the pool above its limit is freed at once."""
    memory.trim()
    large = memory.allocate(memory.POOL_LIMIT + 1)
    del large
    assert memory.pooled_bytes() == 0


def test_impossible_size_is_a_memory_error() -> None:
    """More than the address space: one sentence and a remedy."""
    with pytest.raises(MemoryError, match=r"no memory for an array of [\d,]+ bytes.*Free arrays"):
        memory.allocate(1 << 62)


def test_output_memory_outlives_the_array_through_its_view() -> None:
    """A NumPy view keeps the block; the block goes back when the view dies."""
    view = np.asarray(from_host(MATRIX))
    gc.collect()
    other = [from_host(-MATRIX) for _ in range(20)]
    np.testing.assert_array_equal(view, MATRIX)
    assert len(other) == 20


# ---- devices
def test_devices_by_name_and_default() -> None:
    """neuron is the default; a block changes it; an unknown name is an error with a remedy."""
    assert default_device() is NEURON
    assert from_host(1).device is NEURON
    with use_device("cpu"):
        assert from_host(1).device is CPU
    assert as_device("neuron:0") is NEURON
    assert (CPU.target, NEURON.target) == ("cpu", "trn2")
    with pytest.raises(NotImplementedError, match=r"There is no device 'gpu'.*Use 'neuron' or"):
        as_device("gpu")


def test_place_changes_the_tag_without_a_copy() -> None:
    """Both devices hold host memory."""
    x = from_host(MATRIX)
    y = place(x, "cpu", None)
    assert (y.device, y.address) == (CPU, x.address)
    assert place(x, None, None) is x
    assert place(x, None, True).address != x.address


def test_device_put_takes_trees() -> None:
    """Every leaf goes to the device; without a device arrays stay where they are."""
    x = from_host(MATRIX, device="cpu")
    out = device_put({"a": [x, 2.0]}, "neuron")
    assert [leaf.device for leaf in out["a"]] == [NEURON, NEURON]
    assert device_put(x) is x


# ---- conversion
@pytest.mark.parametrize(
    ("value", "dtype", "aval"),
    [
        (True, None, "bool[]"),
        (3, None, "i32[]"),
        (2.5, None, "f32[]"),
        (1j, None, "c64[]"),
        (3, "float16", "f16[]"),
        (-1, "i8", "i8[]"),
        ([], None, "f32[0]"),
        ([1, 2], None, "i32[2]"),
        ([1, 2.5], None, "f32[2]"),
        ([[True], [False]], None, "bool[2,1]"),
        ([np.float64(1), 2], None, "f64[2]"),
        ([np.int8(1), 2], None, "i8[2]"),
        ([MATRIX, MATRIX], None, "f32[2,2,3]"),
        ((1, 2, 3), "bf16", "bf16[3]"),
        (np.float64(1), None, "f64[]"),
        (np.arange(3), None, "i64[3]"),
        (np.arange(3), "u8", "u8[3]"),
        (np.arange(3, dtype=">i4"), None, "i32[3]"),
        (np.zeros((2, 0, 3), ml_dtypes.float8_e5m2), None, "f8e5m2[2,0,3]"),
        (b"ab", None, "u8[2]"),
        (bytearray(b"ab"), None, "u8[2]"),
    ],
)
def test_types_of_converted_values(value: object, dtype: object, aval: str) -> None:
    """Python numbers take 32-bit defaults; arrays keep their dtype; values arrive."""
    x = from_host(np.frombuffer(value, np.uint8) if isinstance(value, bytes) else value, dtype)
    assert str(x.aval) == aval
    assert aval_of(x) == x.aval
    if not isinstance(value, bytes | bytearray):
        np.testing.assert_array_equal(np.asarray(x), np.asarray(value).astype(x.dtype))


@pytest.mark.parametrize(
    ("value", "dtype", "error", "text"),
    [
        (2**31, None, IntegerRangeError, "does not fit into i32"),
        ([1, 2**40], None, IntegerRangeError, "does not fit into i32"),
        ([1, 300], "i8", IntegerRangeError, "300 does not fit into i8"),
        (-1, "u8", IntegerRangeError, "does not fit into u8"),
        (1.5, "i32", DTypeError, "1.5 is not an integer.*Round it first"),
        ([[1, 2], [3]], None, ShapeError, "element 0 has shape .2,. and element 1 has .1,."),
        ("text", None, UnknownTypeError, "builtins.str cannot become an array"),
        ([1, "a"], None, UnknownTypeError, "list holds a value of type builtins.str"),
        (object(), None, UnknownTypeError, "builtins.object cannot become an array"),
        (np.array(["a"]), None, DTypeError, "not a supported dtype"),
        (1, "float7", DTypeError, "'float7' is not a supported dtype"),
    ],
)
def test_bad_values_give_one_sentence(
    value: object, dtype: object, error: type[Exception], text: str
) -> None:
    """Cause, this file's line, remedy."""
    with pytest.raises(error, match=text) as caught:
        from_host(value, dtype)
    assert "test_array.py:" in str(caught.value)


@pytest.mark.parametrize(
    "view",
    [
        np.arange(64, dtype=np.float32).reshape(8, 8).T,
        np.arange(64, dtype=np.float32)[::-3],
        np.arange(64, dtype=np.float32).reshape(4, 4, 4)[:, 1:3, ::2],
        np.broadcast_to(np.float32(3), (4, 5)),
        np.frombuffer(bytes(9), np.uint8)[1:].view(np.float32),
    ],
    ids=["transpose", "reversed", "slices", "broadcast", "unaligned"],
)
def test_any_stride_is_read(view: np.ndarray) -> None:
    """The array equals the view, row major and in memory of its own."""
    x = from_host(view)
    np.testing.assert_array_equal(np.asarray(x), view)
    assert np.asarray(x).flags.c_contiguous
    assert x.address % 64 == 0


def test_writable_memory_is_copied_and_frozen_memory_is_shared() -> None:
    """Value semantics; copy=False opts into sharing; a read-only view of writable memory copies."""
    source = MATRIX.copy()
    x = from_host(source)
    shared = from_host(source, copy=False)
    window = source[:]
    window.flags.writeable = False
    y = from_host(window)
    source[0, 0] = 99
    assert (x._row(0).tolist()[0], y._row(0).tolist()[0]) == (0.0, 0.0)
    assert shared._row(0).tolist()[0] == 99.0
    frozen = MATRIX.copy()
    frozen.flags.writeable = False
    assert from_host(frozen).address == frozen.__array_interface__["data"][0]
    assert from_host(frozen, copy=True).address != frozen.__array_interface__["data"][0]
    back = from_host(np.asarray(x))
    assert back.address == x.address
    with pytest.raises(ValueError, match="cannot be shared as"):
        from_host(MATRIX.T, copy=False)


# ---- protocols
def test_scalars() -> None:
    """int, float, complex, bool, index, item, format."""
    three = from_host(3)
    assert (int(three), float(three), complex(three), bool(three)) == (3, 3.0, 3 + 0j, True)
    assert [10, 11, 12, 13][three] == 13
    assert f"{from_host(2.5):.2f}" == "2.50"
    assert float(from_host([[1.5]])) == 1.5
    assert from_host(MATRIX).item(4) == 4.0
    assert from_host(np.array(1.5, ml_dtypes.bfloat16)).item() == 1.5
    assert math.isnan(from_host(float("nan")).item())


@pytest.mark.parametrize(
    ("action", "error", "text"),
    [
        (bool, ValueError, r"truth value of f32\[2,3\] is ambiguous.*x\.any\(\) or x\.all\(\)"),
        (int, TypeError, r"int\(\) needs an array of one element and this is f32\[2,3\]"),
        (float, TypeError, r"float\(\) needs an array of one element"),
        (Array.item, ValueError, r"item\(\) needs an array of one element"),
        (hash, TypeError, r"cannot be hashed.*as the key"),
        (lambda x: [0][x], TypeError, "cannot be used as an index"),
        (lambda x: len(x._row(0)._row(0)), TypeError, r"without axes has no len\(\)"),
        (lambda x: iter(x._row(0)._row(0)), TypeError, "without axes cannot be iterated"),
        (lambda x: x.__setitem__(0, 1), TypeError, r"immutable.*x\.at\[index\]\.set\(value\)"),
        (lambda x: setattr(x, "shape", (6,)), AttributeError, "no setter"),
        (lambda x: setattr(x, "note", 1), AttributeError, "no attribute 'note'"),
        (lambda x: x.nothing, AttributeError, "no attribute 'nothing'"),
        (lambda x: Array(), TypeError, "Use trnx.numpy.asarray"),
    ],
)
def test_protocol_errors(action, error: type[Exception], text: str) -> None:
    """Each misuse gives its cause and one remedy."""
    with pytest.raises(error, match=text):
        action(from_host(MATRIX))


def test_rows() -> None:
    """len and iteration over the first axis; rows are arrays."""
    x = from_host(MATRIX)
    assert len(x) == 2
    assert [row.tolist() for row in x] == MATRIX.tolist()
    assert [v.item() for v in from_host([1, 2])] == [1, 2]


def test_numpy_view_is_read_only_for_good() -> None:
    """np.asarray shares memory, cannot be made writable; dtype and copy make copies."""
    x = from_host(MATRIX)
    view = np.asarray(x)
    assert view.__array_interface__["data"][0] == x.address
    with pytest.raises(ValueError, match="WRITEABLE"):
        view.flags.writeable = True
    assert np.array(x).flags.writeable
    assert np.asarray(x, dtype=np.float64).dtype == np.float64
    with pytest.raises(ValueError, match="without a copy"):
        np.asarray(x, dtype=np.float64, copy=False)


@pytest.mark.parametrize("left", [np.ones((2, 3), np.float32), np.float32(1), np.int64(1)])
def test_numpy_on_the_left_gives_way(left: object) -> None:
    """An operator with one of our arrays is ours; a NumPy function gives a NumPy array."""
    x = from_host(MATRIX)
    for result in (left + x, left * x, left - x, left == x, left < x):  # type: ignore[operator]
        assert type(result) is Array
    np.testing.assert_array_equal(np.asarray(left - x), np.asarray(left) - MATRIX)
    assert type(np.sin(x)) is np.ndarray


def test_pickle_and_copy() -> None:
    """A pickle holds values, type and device; a copy of an immutable array is itself."""
    for dtype in dtypes.ALL_DTYPES:
        x = from_host(np.array([[1, 0]]).astype(dtype), device="cpu")
        y = pickle.loads(pickle.dumps(x))
        assert (y.aval, y.device) == (x.aval, x.device)
        assert np.asarray(y).tobytes() == np.asarray(x).tobytes()
    assert copy.copy(x) is x
    assert copy.deepcopy([x])[0] is x


def test_donated_array_says_so() -> None:
    """Any use after donation raises; printing does not."""
    x = from_host(MATRIX)
    block = donate(x)
    assert block.capacity >= 24
    assert x.is_donated()
    assert repr(x) == "Array(f32[2,3], donated)"
    assert "donated" in x._repr_html_()
    with pytest.raises(DonatedError, match=r"f32\[2,3\] array was donated.*donate_argnums"):
        x.tolist()


def test_types_are_one_object() -> None:
    """Equal types on one device are one object, so dispatch compares by identity."""
    x = from_host(MATRIX)
    assert x._type is from_host(MATRIX + 1)._type
    assert x._type is array_type(Aval((2, 3), dtypes.float32), NEURON)
    assert x._type is not from_host(MATRIX, device="cpu")._type


# ---- display
@pytest.mark.parametrize(
    ("value", "text"),
    [
        (MATRIX, "Array([[0., 1., 2.],\n       [3., 4., 5.]], dtype=float32)"),
        (3, "Array(3, dtype=int32)"),
        (np.zeros((0, 3)), "Array([], shape=(0, 3), dtype=float64)"),
        (np.array([1.5], ml_dtypes.bfloat16), "Array([1.5], dtype=bfloat16)"),
    ],
)
def test_repr(value: object, text: str) -> None:
    """Values and dtype, as NumPy lays them out."""
    assert repr(from_host(value)) == text


def test_repr_names_a_device_that_is_not_the_default() -> None:
    """cpu is shown."""
    assert repr(from_host(3, device="cpu")) == "Array(3, dtype=int32, device=cpu)"


def test_notebook_view() -> None:
    """Type, device, bytes; a table with an ellipsis for large arrays."""
    small = from_host(MATRIX)._repr_html_()
    assert "f32[2,3]" in small
    assert "24 B" in small
    assert small.count("<td>") == 6
    large = from_host(np.zeros((100, 100)))._repr_html_()
    assert large.count("<td>") == 81
    assert "…" in large
    assert "<pre>" in from_host(np.zeros((2, 2, 2)))._repr_html_()
    assert "<td>1.5</td>" in from_host(np.array([1.5], ml_dtypes.bfloat16))._repr_html_()
