"""What fusion takes and gives: layouts of arguments, groups, and the fused program."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from trnx.compiler.kernels.registry import VIEWS, Kind
from trnx.compiler.kernels.space import StridedView, to_indices
from trnx.compiler.kernels.support import kind_on
from trnx.compiler.passes.identity import COPY
from trnx.compiler.passes.windows import WINDOWS
from trnx.compiler.targets import Target
from trnx.compiler.tile.expr import Index
from trnx.compiler.tile.ir import Span
from trnx.core import Atom, Equation, Params, Program, Source, Var
from trnx.core.source import UNKNOWN_SOURCE


@dataclass(frozen=True, slots=True)
class Layouts:
    """Strides of a program's arguments and results that are not dense row-major.

    Attributes:
        inputs: position to strides in elements, one per axis; registers are allowed.
        outputs: likewise.
        registers: names of all registers in the order callers pass their values; sizes in order of
            first use when empty.
        apart: every result is written to memory of its own, also one that is an argument: a caller
            that passes bare addresses has no other way to get it.
    """

    inputs: Mapping[int, tuple[Index, ...]] = field(default_factory=dict)
    outputs: Mapping[int, tuple[Index, ...]] = field(default_factory=dict)
    registers: tuple[str, ...] = ()
    apart: bool = False

    def views(self, program: Program) -> dict[Var, StridedView]:
        """The variables with a layout, as views of their buffers."""
        found: dict[Var, StridedView] = {}
        for given, atoms in ((self.inputs, program.inputs), (self.outputs, program.outputs)):
            for position, strides in given.items():
                var = atoms[position]
                assert isinstance(var, Var)
                sizes = to_indices(var.aval.shape)
                spans = tuple(Span(s, n) for s, n in zip(strides, sizes, strict=True))
                found[var] = StridedView(var, 0, spans)
        return found


@dataclass(frozen=True, slots=True)
class Group:
    """Equations that become one kernel (or one host call).

    Attributes:
        family: ``row``, ``contraction``, ``host``, or the value of a kind in `ALONE`.
        equations: in program order, with the views that vanish into the kernel.
        outputs: variables the kernel writes to memory.
        beside: column sums that share the right operand of a contraction, computed in its kernel.
    """

    family: str
    equations: tuple[Equation, ...]
    outputs: tuple[Var, ...]
    beside: tuple[Group, ...] = ()

    @property
    def written(self) -> tuple[Var, ...]:
        """Everything the kernel writes to memory."""
        return (*self.outputs, *(v for group in self.beside for v in group.outputs))


@dataclass(frozen=True, slots=True)
class FusedProgram:
    """A program cut into groups.

    Attributes:
        program: inputs, constants and outputs; every output is an input, a constant or written by
            a group.
        groups: in an order in which producers come first.
        views: where each variable that is read from memory lies.
        registers: names of the run-time integers, in the order callers pass them.
    """

    program: Program
    groups: tuple[Group, ...]
    views: Mapping[Var, StridedView]
    registers: tuple[str, ...] = ()

    def __str__(self) -> str:
        from trnx.compiler.passes.text import fused_text

        return fused_text(self)


def viewed(below: StridedView, equation: Equation, kind: Kind) -> StridedView | None:
    """The result of a view equation whose operand lies at `below`; None when it needs a copy."""
    params = equation.params
    if kind is Kind.BROADCAST:
        return below.broadcast(to_indices(params["shape"]), params["dims"])
    if kind is Kind.RESHAPE:
        return below.reshape(to_indices(params["shape"]))
    if kind is Kind.TRANSPOSE:
        return below.permute(params["permutation"])
    if equation.primitive.name == "slice":
        return below.slice(
            to_indices(params["start"]), to_indices(params["limit"]), params["strides"]
        )
    if equation.primitive is WINDOWS:
        return below.windows(params["window"], params["strides"], params["dilation"])
    return below.reverse(params["axes"])


def with_written_outputs(program: Program, target: Target, apart: bool = False) -> Program:
    """Every output becomes an input, a constant or a value of its own: views are copied.

    With `apart` it becomes a value of its own.
    """
    made_by = {var: e for e in program.equations for var in e.outputs}
    extra: list[Equation] = []
    outputs: list[Atom] = []
    seen: set[Var] = set()
    for atom in program.outputs:
        equation = made_by.get(atom) if isinstance(atom, Var) else None
        is_view = equation is not None and kind_on(equation, target) in VIEWS
        repeated = isinstance(atom, Var) and atom in seen
        given = apart and equation is None
        if not isinstance(atom, Var) or is_view or repeated or given:
            copy = Var(atom.aval)
            source = equation.source if equation is not None else None
            extra.append(_copy_equation(atom, copy, source))
            atom = copy
        seen.add(atom)
        outputs.append(atom)
    if not extra:
        return program
    return program.replace(equations=(*program.equations, *extra), outputs=outputs)


def _copy_equation(atom: Atom, copy: Var, source: Source | None) -> Equation:
    return Equation(COPY, (atom,), (copy,), Params({}), source or UNKNOWN_SOURCE)
