"""DLPack both ways with numpy, torch and jax: bits, strides, flags, lifetimes, errors."""

from __future__ import annotations

import gc
import subprocess
import sys
import weakref
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from trnx.core import dtypes
from trnx.core.errors import DTypeError
from trnx.runtime import dlpack
from trnx.runtime.convert import from_dlpack, from_host

ROOT = Path(__file__).resolve().parents[2]
TORCH = {
    d: getattr(torch, d.name)
    for d in dtypes.ALL_DTYPES
    if hasattr(torch, d.name) and d != dtypes.float8_e4m3
}


def patterns(dtype: np.dtype[Any]) -> np.ndarray:
    """Bit patterns of a dtype, NaN payloads and infinities included; bool stays 0 and 1."""
    if dtype == dtypes.bool_:
        return np.array([True, False, True])
    raw = np.random.default_rng(0).integers(0, 256, 64 * dtype.itemsize, dtype=np.uint8)
    return raw.view(dtype)


@pytest.mark.parametrize("dtype", TORCH, ids=dtypes.short_name)
def test_torch_round_trip_keeps_bits(dtype: np.dtype[Any]) -> None:
    """ours -> torch -> ours, every dtype torch has, no detour through another type."""
    x = from_host(patterns(dtype))
    t = torch.from_dlpack(x)
    assert t.dtype == TORCH[dtype]
    assert t.data_ptr() == x.address
    y = from_dlpack(t)
    assert y.aval == x.aval
    assert np.asarray(y).tobytes() == np.asarray(x).tobytes()


@pytest.mark.parametrize("dtype", dtypes.ALL_DTYPES, ids=dtypes.short_name)
@pytest.mark.parametrize("versioned", [True, False])
def test_own_round_trip_keeps_bits(dtype: np.dtype[Any], versioned: bool) -> None:
    """Our reader takes our capsule of every dtype; read-only memory is shared, legacy is copied."""
    x = from_host(patterns(dtype))

    class Producer:
        def __dlpack__(self, **arguments: Any) -> Any:
            if not versioned and arguments:
                raise TypeError("unexpected keyword argument 'max_version'")
            return x.__dlpack__(**arguments)

        def __dlpack_device__(self) -> tuple[int, int]:
            return (1, 0)

    y = from_dlpack(Producer())
    assert y.aval == x.aval
    assert np.asarray(y).tobytes() == np.asarray(x).tobytes()
    assert (y.address == x.address) == versioned


# jax narrows 64-bit types unless a global flag is on, and has no view of e4m3 with infinities.
JAX = [
    d
    for d in dtypes.ALL_DTYPES
    if d.name not in ("int64", "uint64", "float64", "complex128", "float8_e4m3")
]


@pytest.mark.parametrize("dtype", JAX, ids=dtypes.short_name)
def test_jax_round_trip_keeps_bits(dtype: np.dtype[Any]) -> None:
    """ours -> jax -> ours."""
    x = from_host(patterns(dtype))
    y = from_dlpack(jnp.from_dlpack(x))
    assert y.aval == x.aval
    assert np.asarray(y).tobytes() == np.asarray(x).tobytes()


def test_numpy_takes_it_read_only_without_a_copy() -> None:
    """The versioned form carries the flag."""
    x = from_host([1.0, 2.0])
    view = np.from_dlpack(x)
    assert view.__array_interface__["data"][0] == x.address
    assert not view.flags.writeable
    assert "dltensor_versioned" in repr(x.__dlpack__(max_version=(1, 0)))
    assert "dltensor_versioned" in repr(x.__dlpack__(max_version=(2, 0)))
    assert 'object "dltensor"' in repr(x.__dlpack__())
    assert 'object "dltensor"' in repr(x.__dlpack__(max_version=(0, 8)))


def test_copy_gives_writable_memory_of_its_own() -> None:
    """copy=True: the consumer may write, ours stays."""
    x = from_host([1.0, 2.0])
    view = np.from_dlpack(x, copy=True)
    assert view.flags.writeable
    view[:] = 9
    assert x.tolist() == [1.0, 2.0]


@st.composite
def strided_views(draw: st.DrawFn) -> np.ndarray:
    """A NumPy view with any steps (negative ones too), axis order and offsets."""
    shape = draw(st.lists(st.integers(0, 5), min_size=1, max_size=4))
    base = np.arange(int(np.prod([2 * s + 1 for s in shape])), dtype=np.int32)
    view = base.reshape([2 * s + 1 for s in shape])
    index = tuple(
        slice(draw(st.integers(0, 2)), None, draw(st.sampled_from([1, 2]))) for _ in shape
    )
    view = view[index]
    view = view[tuple(slice(None, None, draw(st.sampled_from([1, -1]))) for _ in shape)]
    return view.transpose(draw(st.permutations(range(len(shape)))))


@given(strided_views(), st.booleans())
def test_any_stride_is_read(view: np.ndarray, read_only: bool) -> None:
    """Import equals the view, whatever its strides, through DLPack and directly."""
    view.flags.writeable = not read_only

    class Producer:
        __dlpack__ = staticmethod(view.__dlpack__)
        __dlpack_device__ = staticmethod(view.__dlpack_device__)

    for source in (Producer(), view):
        x = from_dlpack(source)
        assert x.shape == view.shape
        np.testing.assert_array_equal(np.asarray(x), view)


def test_strides_of_unit_axes_do_not_matter() -> None:
    """Import ignores them, export makes them canonical."""
    c = torch.arange(16.0)[::3][:1]
    assert c.stride() == (3,)
    assert from_dlpack(c, copy=False).address == c.data_ptr()
    assert torch.from_dlpack(from_host(np.ones((1, 77, 1)))).stride() == (77, 1, 1)


@pytest.mark.parametrize("shape", [(0,), (3, 0, 2), ()])
def test_zero_size_and_no_axes(shape: tuple[int, ...]) -> None:
    """Shapes without elements and without axes cross both ways."""
    x = from_host(np.ones(shape, np.float32))
    assert tuple(torch.from_dlpack(x).shape) == shape
    assert np.from_dlpack(x).shape == shape
    assert from_dlpack(torch.ones(shape)).shape == shape


def test_writable_memory_is_copied_unless_the_caller_opts_in() -> None:
    """torch tensors are writable: copied by default, shared by copy=False."""
    t = torch.zeros(4)
    copied, shared = from_dlpack(t), from_dlpack(t, copy=False)
    t.fill_(7)
    assert copied.tolist() == [0.0] * 4
    assert shared.tolist() == [7.0] * 4
    frozen = np.zeros(4)
    frozen.flags.writeable = False
    assert from_dlpack(frozen).address == frozen.__array_interface__["data"][0]
    with pytest.raises(BufferError, match=r"cannot be shared.*Leave out copy=False"):
        from_dlpack(torch.zeros(4, 4).t(), copy=False)


def test_export_pins_the_block() -> None:
    """Memory that another library may see is never donated or reused."""
    for export in (np.asarray, np.from_dlpack, torch.from_dlpack):
        x = from_host([1.0])
        assert not x._owner.pinned
        export(x)
        assert x._owner.pinned


# ---- lifetimes
def test_exported_memory_lives_as_long_as_its_consumer() -> None:
    """The block is freed only when both the array and every consumer are gone."""
    x = from_host(np.arange(1000.0))
    block = weakref.ref(x._owner)
    t, n = torch.from_dlpack(x), np.from_dlpack(x)
    capsule = x.__dlpack__(max_version=(1, 0))
    del x
    gc.collect()
    assert block() is not None
    assert t.sum().item() == n.sum() == 499500
    del t, n
    gc.collect()
    assert block() is not None, "a capsule nobody took still owns the memory"
    del capsule
    gc.collect()
    assert block() is None


def test_imported_memory_lives_as_long_as_our_array() -> None:
    """The producer's object is released when the last Array over it goes."""

    class Tracked(np.ndarray):
        """A NumPy array that can be watched."""

    source = np.arange(4.0).view(Tracked)
    watch = weakref.ref(source)
    x = from_dlpack(torch.from_numpy(source), copy=False)
    row = x._row(1)
    del source, x
    gc.collect()
    assert watch() is not None
    assert row.item() == 1.0
    del row
    gc.collect()
    assert watch() is None


def test_rejected_capsule_is_released_with_an_error_pending() -> None:
    """NumPy has no bfloat16: it raises, drops the capsule, and the block is free again."""
    x = from_host(np.ones(3, ml_dtypes.bfloat16))
    block = weakref.ref(x._owner)
    with pytest.raises(RuntimeError, match="Unsupported dtype"):
        np.from_dlpack(x)
    del x
    gc.collect()
    assert block() is None


def test_consumers_may_outlive_the_interpreter() -> None:
    """A torch tensor that dies while Python shuts down releases our memory without a crash."""
    code = (
        "import torch, threading\n"
        "from trnx.runtime.convert import from_dlpack, from_host\n"
        "x = from_host([1.0, 2.0]); t = torch.from_dlpack(x); y = from_dlpack(t, copy=False)\n"
        "capsule = x.__dlpack__(); keep = [t, y]; keep.append(keep)\n"
        "print(t.sum().item())"
    )
    run = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert (run.returncode, run.stdout, run.stderr) == (0, "3.0\n", "")


# ---- errors
class Elsewhere:
    """A producer on another device."""

    def __dlpack_device__(self) -> tuple[int, int]:
        return (2, 0)

    def __dlpack__(self, **arguments: Any) -> Any:
        raise AssertionError("asked for a capsule on a foreign device")


class Broken:
    """A producer whose export fails for a reason of its own."""

    def __dlpack_device__(self) -> tuple[int, int]:
        return (1, 0)

    def __dlpack__(self, **arguments: Any) -> Any:
        raise TypeError("this array is sparse")


@pytest.mark.parametrize(
    ("value", "error", "text"),
    [
        (lambda: from_host([1]).__dlpack__(), TypeError, "capsule.*Pass the array itself"),
        (lambda: 3, TypeError, "from_dlpack got a int, which has no __dlpack__.*asarray"),
        (lambda: torch.ones(3, requires_grad=True), BufferError, r"requires grad.*x\.detach\(\)"),
        (Elsewhere, BufferError, r"on a device \(DLPack type 2\).*x\.cpu\(\)"),
        (Broken, TypeError, "this array is sparse"),
    ],
)
def test_import_errors(value, error: type[Exception], text: str) -> None:
    """Cause and remedy; an error inside the producer is not masked by a second try."""
    with pytest.raises(error, match=text):
        from_dlpack(value())


def test_unknown_element_type_is_named_and_released() -> None:
    """A type trnx lacks: code, bits and lanes are given and the producer gets its memory back."""
    memory = np.zeros(4, np.uint8)
    watch = []

    class Producer:
        def __dlpack_device__(self) -> tuple[int, int]:
            return (1, 0)

        def __dlpack__(self, **arguments: Any) -> Any:
            view = memory[:].view()
            watch.append(weakref.ref(view))
            capsule = dlpack.make_capsule(view, dtypes.float8_e5m2, versioned=True)
            pointer = dlpack._get_pointer(capsule, b"dltensor_versioned")
            dlpack._ManagedVersioned.from_address(pointer).dl_tensor.dtype.code = 14
            return capsule

    with pytest.raises(DTypeError, match=r"code 14, 8 bits, 1 lanes.*Convert the array"):
        from_dlpack(Producer())
    gc.collect()
    assert watch[0]() is None


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"dl_device": (2, 0)}, "cannot be exported to DLPack device"),
        ({"stream": 1}, "Host memory has no streams"),
    ],
)
def test_export_errors(arguments: dict[str, Any], text: str) -> None:
    """Requests that host memory cannot meet are BufferErrors, as the protocol says."""
    with pytest.raises(BufferError, match=text):
        from_host([1]).__dlpack__(**arguments)
