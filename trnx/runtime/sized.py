"""One executable for every size: sizes are run-time integers, and nothing is padded.

What ``jit(f, dynamic=..., target="host")`` runs when the whole program has kernels over run-time
sizes. A Trainium kernel wants static shapes, so buckets are what that machine would run; on the
host one compile serves all sizes and no padding is computed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from trnx.core import dtypes
from trnx.core.dims import evaluate
from trnx.core.errors import LoweringError, UnsupportedError
from trnx.core.program import Program, prune
from trnx.runtime.array import Array
from trnx.runtime.compiled import HostSegment
from trnx.runtime.devices import Device
from trnx.runtime.executable import Executable
from trnx.runtime.programs import Bound, compiled_for
from trnx.transforms.inline import inline_calls


class SizedPlan:
    """A call for given true sizes; stands in for an Executable of those shapes.

    Attributes:
        device: where it runs.
        executable: the executable, its result types those of these sizes.
    """

    __slots__ = ("device", "executable", "_registers")

    def __init__(self, executable: Executable, registers: Sequence[int]) -> None:
        self.device = executable.device
        self.executable = executable
        self._registers = tuple(registers)

    def __call__(
        self, inputs: Sequence[Array], registers: Sequence[int] = (), donated: Sequence[int] = ()
    ) -> list[Array]:
        """Run on arrays of the true shapes; the arguments are those of an Executable."""
        return self.executable(inputs, self._registers, donated)


class SizedProgram:
    """A program compiled once for all its sizes.

    Args:
        program: what to run.
        found: its code over run-time sizes, and the arrays it captured.
        device: where it runs.
    """

    def __init__(self, program: Program, found: Bound, device: Device) -> None:
        self._program = program
        self._found = found
        self._device = device

    def plan(self, sizes: Mapping[str, int]) -> SizedPlan:
        """How to run for these true sizes, each at least 1."""
        avals = [
            aval.with_shape(tuple([evaluate(size, sizes) for size in aval.shape]))
            for aval in self._program.out_avals
        ]
        compiled = self._found.compiled
        executable = Executable(compiled, self._device, avals, self._found.constants)
        return SizedPlan(executable, [sizes[name] for name in compiled.outline.registers])


def sized_program(
    program: Program, device: Device, donated: Sequence[int] = ()
) -> SizedProgram | None:
    """Compile a program of symbolic sizes once for all of them.

    Returns:
        None when that cannot be: something has no kernel over run-time sizes, runs as a host
        function, or is float64 on a device that has none.
    """
    flat = prune(inline_calls(program))
    if device.target != "cpu" and _has_float64(flat):
        return None
    try:
        found = compiled_for(flat, device, donated)
    except (LoweringError, UnsupportedError):
        return None
    if any(isinstance(segment, HostSegment) for segment in found.compiled.segments):
        return None
    return SizedProgram(flat, found, device)


def _has_float64(program: Program) -> bool:
    atoms: list[Any] = [*program.inputs, *program.outputs]
    atoms += [atom for e in program.equations for atom in (*e.inputs, *e.outputs)]
    return any(atom.aval.dtype == dtypes.float64 for atom in atoms)
