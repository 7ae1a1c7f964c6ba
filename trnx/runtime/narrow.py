"""float64 on a device that computes in float32.

The compiler gives such programs float32 buffers. Here arrays are converted on the way in and out,
by compiled programs of device `cpu`, with one warning per call site.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from trnx.core.avals import Aval
from trnx.core.dtypes import is_complex, short_name
from trnx.core.source import Source, current_source
from trnx.ops.complex import WHOLE
from trnx.runtime.array import Array, donate
from trnx.runtime.devices import Device
from trnx.runtime.executable import CompiledProgram, Executable

Convert = Callable[[Array, np.dtype[Any], Device], Array]

_warned: set[Source] = set()


class PrecisionWarning(UserWarning):
    """A dtype is computed in a narrower one."""


def buffer_dtypes(
    compiled: CompiledProgram, in_avals: Sequence[Aval], out_avals: Sequence[Aval]
) -> tuple[tuple[np.dtype[Any], ...], tuple[np.dtype[Any], ...]]:
    """Element types of the program's inputs and of its results, as its native code has them.

    A complex array is a real buffer [..., 2] there; its element type is the complex one.
    """
    tile = compiled.outline
    by_name = {buffer.name: buffer.dtype for buffer in tile.buffers}
    inputs = [buffer.dtype for buffer in tile.buffers if buffer.kind == "input"]
    outputs = [by_name[name] for name in tile.outputs]
    return (
        tuple(_whole(d, a) for d, a in zip(inputs, in_avals, strict=True)),
        tuple(_whole(d, a) for d, a in zip(outputs, out_avals, strict=True)),
    )


def _whole(dtype: np.dtype[Any], aval: Aval) -> np.dtype[Any]:
    return WHOLE.get(dtype, dtype) if is_complex(aval.dtype) else dtype


def is_narrowed(
    compiled: CompiledProgram, in_avals: Sequence[Aval], out_avals: Sequence[Aval]
) -> bool:
    """True if native code has another dtype than the user's arrays somewhere."""
    inputs, outputs = buffer_dtypes(compiled, in_avals, out_avals)
    wanted = [aval.dtype for aval in (*in_avals, *out_avals)]
    return [*inputs, *outputs] != wanted


class NarrowedExecutable(Executable):
    """An executable whose native code computes in a narrower dtype than its arrays have.

    It has no raw `run` for the user's arrays: addresses would have the wrong element type.

    Args:
        compiled, device, bound: as for Executable.
        in_avals: types of all inputs as the user sees them, bound ones first.
        out_avals: types of the results likewise.
        convert: ``convert(array, dtype, device)`` makes an array of another dtype.
    """

    __slots__ = ("_convert", "_dtypes", "_wide_avals")

    def __init__(
        self,
        compiled: CompiledProgram,
        device: Device,
        in_avals: Sequence[Aval],
        out_avals: Sequence[Aval],
        bound: Sequence[Array],
        convert: Convert,
    ) -> None:
        inputs, outputs = buffer_dtypes(compiled, in_avals, out_avals)
        self._convert = convert
        self._dtypes = inputs[len(bound) :]
        self._wide_avals = tuple(out_avals)
        narrow = [a.with_dtype(d, a.weak) for a, d in zip(out_avals, outputs, strict=True)]
        narrow_bound = [self._as(array, dtype) for array, dtype in zip(bound, inputs, strict=False)]
        super().__init__(compiled, device, narrow, narrow_bound)

    @property
    def input_dtypes(self) -> tuple[np.dtype[Any], ...]:
        """Element types of the native code's inputs, those that are not bound."""
        return self._dtypes

    def _as(self, array: Array, dtype: np.dtype[Any]) -> Array:
        return array if array.dtype == dtype else self._convert(array, dtype, array.device)

    def __call__(
        self,
        inputs: Sequence[Array],
        registers: Sequence[int] = (),
        donated: Sequence[int] = (),
    ) -> list[Array]:
        """Convert, run, convert back; the first call of each user line warns."""
        self.warn(current_source())
        narrow = [self._as(array, dtype) for array, dtype in zip(inputs, self._dtypes, strict=True)]
        kept = [position for position in donated if narrow[position] is inputs[position]]
        for position in set(donated) - set(kept):
            donate(inputs[position])
        results = super().__call__(narrow, registers, kept)
        return [
            self._as(result, aval.dtype)
            for result, aval in zip(results, self._wide_avals, strict=True)
        ]

    def warn(self, source: Source) -> None:
        """Warn that float64 is computed as float32, once for each line of the user's program."""
        if source in _warned:
            return
        _warned.add(source)
        wide = {
            a.dtype for a in self._wide_avals if a.dtype not in {b.dtype for b in self.out_avals}
        }
        names = ", ".join(sorted(map(short_name, wide))) or "f64"
        warnings.warn_explicit(
            f"{self.name} (at {source}) has {names} arrays on device {self.device}, which computes "
            "them in f32. Use float32, or device 'cpu' for float64.",
            PrecisionWarning,
            source.file or "<unknown>",
            source.line,
        )
