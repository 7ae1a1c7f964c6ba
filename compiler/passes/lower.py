"""Groups to kernels: the pass that makes a TileProgram."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from trnx.compiler.kernels.convolution import lower_product
from trnx.compiler.kernels.cumulative import lower_cumulative
from trnx.compiler.kernels.dynamic import lower_dynamic
from trnx.compiler.kernels.group import build_graph
from trnx.compiler.kernels.movement import lower_movement
from trnx.compiler.kernels.registry import Kind
from trnx.compiler.kernels.row import LoweredKernel, lower_row
from trnx.compiler.kernels.scatter import lower_scatter
from trnx.compiler.kernels.sort import lower_sort
from trnx.compiler.kernels.space import to_indices
from trnx.compiler.passes.control import lower_control
from trnx.compiler.passes.groups import FusedProgram, Group
from trnx.compiler.targets import Target
from trnx.compiler.tile.expr import symbol
from trnx.compiler.tile.ir import Buffer, HostCall, Kernel, KernelCall, TileProgram
from trnx.core import Equation, Program, Source, Var, program_text, use_source
from trnx.core.source import UNKNOWN_SOURCE

_ALONE: dict[str, Callable[..., LoweredKernel]] = {
    Kind.MOVEMENT.value: lower_movement,
    Kind.SCATTER.value: lower_scatter,
    Kind.CUMULATIVE.value: lower_cumulative,
    Kind.DYNAMIC.value: lower_dynamic,
    Kind.SORT.value: lower_sort,
}
"""Families of one equation: ``lower(equation, views, target, source)``."""


@dataclass(slots=True)
class _Names:
    """Buffer names: in0, const0, out0, t0, … by kind."""

    of: dict[Var, str]
    buffers: list[Buffer]

    def add(self, var: Var, name: str, kind: str) -> None:
        if var not in self.of:
            self.of[var] = name
            shape = to_indices(var.aval.shape)
            self.buffers.append(Buffer(name, shape, var.aval.dtype, kind))


def lower_program(fused: FusedProgram, target: Target) -> TileProgram:
    """Lower every group to a kernel.

    Returns:
        A tile program without a memory plan, whose kernels are not placed or scheduled yet. Equal
        kernels are there once, so equal layers share their code.
    """
    program = fused.program
    names = _declare(program, fused)
    kernels: list[Kernel] = []
    known: dict[Kernel, int] = {}
    calls: list[KernelCall | HostCall] = []
    for group in fused.groups:
        if group.family == "host":
            calls.append(host_call(group.equations[-1], names.of))
            continue
        if all(0 in to_indices(v.aval.shape) for v in group.written):
            continue  # nothing to write
        with use_source(group_source(group) or UNKNOWN_SOURCE):
            lowered = lower_group(group, fused, target)
        plain = replace(lowered.kernel, name="kernel")
        number = known.get(plain)
        if number is None:
            number = known[plain] = len(kernels)
            kernels.append(_uniquely_named(lowered.kernel, kernels))
        for var in lowered.variables:
            names.add(var, f"s{len(names.buffers)}", "temp")  # memory of a loop or branch
        buffers = tuple(names.of[v] for v in lowered.variables)
        registers = tuple(symbol(r) for r in lowered.kernel.registers)
        calls.append(KernelCall(number, buffers, registers))
    return TileProgram(
        program.name,
        target.name,
        tuple(names.buffers),
        tuple(kernels),
        tuple(calls),
        tuple(names.of[v] for v in program.outputs if isinstance(v, Var)),
        fused.registers,
    )


def _declare(program: Program, fused: FusedProgram) -> _Names:
    names = _Names({}, [])
    for number, var in enumerate(program.inputs):
        names.add(var, f"in{number}", "input")
    for number, (var, _) in enumerate(program.constants):
        names.add(var, f"const{number}", "constant")
    number = 0
    for atom in program.outputs:
        if isinstance(atom, Var) and atom not in names.of:
            names.add(atom, f"out{number}", "output")
            number += 1
    number = 0
    for group in fused.groups:
        for var in group.written:
            if var not in names.of:
                names.add(var, f"t{number}", "temp")
                number += 1
    return names


def lower_group(
    group: Group,
    fused: FusedProgram,
    target: Target,
    resident: frozenset[Var] = frozenset(),
    in_place: bool = False,
) -> LoweredKernel:
    """The kernel of one group.

    Args:
        group: the equations.
        fused: the program it belongs to.
        target: the hardware table's row.
        resident: variables that a loop around the kernel does not change.
        in_place: the result of an update has the memory of its first operand (`updates_operand`).
    """
    source = group_source(group)
    if group.family == Kind.CONTROL.value:
        wanted = frozenset(group.outputs)
        return lower_control(group.equations[-1], fused.views, target, source, lower_group, wanted)
    alone = _ALONE.get(group.family)
    if alone is not None and in_place:
        return alone(group.equations[-1], fused.views, target, source, in_place)
    if alone is not None:
        return alone(group.equations[-1], fused.views, target, source)
    graph = build_graph(group.equations, fused.views, group.outputs)
    if graph.dot is not None:
        beside = [build_graph(g.equations, fused.views, g.outputs) for g in group.beside]
        return lower_product(graph, target, source, beside, resident)
    return lower_row(graph, target, source)


def group_source(group: Group) -> Source | None:
    """The user's line that stands for a kernel: that of its last equation with one."""
    for equation in reversed(group.equations):
        if equation.source.file:
            return equation.source
    return None


def host_call(equation: Equation, names: Mapping[Var, str]) -> HostCall:
    """A counted call of the primitive's NumPy meaning; the equation travels as program text."""
    inputs = tuple(dict.fromkeys(a for a in equation.inputs if isinstance(a, Var)))
    name = equation.primitive.name
    if name == "packed_call":
        name = equation.params["program"].name  # of the complex operation
    body = Program(name, inputs, (), (equation,), equation.outputs)
    return HostCall(
        name,
        tuple(names[v] for v in inputs),
        tuple(names[v] for v in equation.outputs),
        (("program", program_text(body)),),
        equation.source,
    )


def _uniquely_named(kernel: Kernel, kernels: list[Kernel]) -> Kernel:
    taken = {k.name for k in kernels}
    name, number = kernel.name, 1
    while name in taken:
        number += 1
        name = f"{kernel.name}_v{number}"
    return replace(kernel, name=name)
