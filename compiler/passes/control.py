"""Loops and branches to kernels: one kernel per `scan`, `while_loop` or `cond`.

A body is fused and lowered like any program; its kernels are then spliced into one, inside device
control: ``for`` for iterations, ``for`` with a register as bound where their number is only known
at run time, ``while`` with a register, and for each branch a loop of no or one iteration.

Slices of stacked arrays are offsets by the loop's index. A carry lives in the buffer of its result.
A kernel writes the next carry in place when everything that reads the old one has done so; other
carries are written beside and copied at the end of the iteration.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from trnx.compiler.kernels.emitter import Params as KernelParams
from trnx.compiler.kernels.movement import emit_piece, piece
from trnx.compiler.kernels.row import LoweredKernel
from trnx.compiler.kernels.space import StridedView, dense_view, to_indices
from trnx.compiler.kernels.splice import Assembly, Place, reads_and_writes
from trnx.compiler.passes.fuse import fuse
from trnx.compiler.passes.groups import Group, Layouts
from trnx.compiler.passes.induction import Counter, find_counters, with_index
from trnx.compiler.passes.legalise import legalise
from trnx.compiler.passes.memory import in_place_pairs
from trnx.compiler.passes.simplify import simplify, with_literals
from trnx.compiler.targets import Target
from trnx.compiler.tile import place as placing
from trnx.compiler.tile.build import KernelBuilder
from trnx.compiler.tile.expr import Index, add, mul, scale
from trnx.compiler.tile.ir import row_major
from trnx.core import (
    Atom,
    Aval,
    Equation,
    Literal,
    Params,
    Program,
    Source,
    TileError,
    Var,
    cached_by_program,
    literal,
    primitives,
    trace_program,
)
from trnx.core.dtypes import int32
from trnx.core.source import UNKNOWN_SOURCE
from trnx.ops import functions as op

LowerGroup: TypeAlias = Callable[..., LoweredKernel]
"""``lower_group`` of `passes.lower`, which lowers one group of a body."""

UPDATES = frozenset(
    {"scatter_add", "scatter_add_along", "scatter_rows", "dynamic_update_slice", "update_at"}
)
"""Primitives that give their first operand with some elements changed."""
_LARGEST = int(np.iinfo(np.int32).max)

RESIDENT_SHARE = 0.5
"""Share of SBUF for what loops hold on chip: weights, carries, values between kernels."""

Given: TypeAlias = "Literal | StridedView"
"""An operand of a body: a number, or where it lies in the buffers of the kernel."""


@dataclass(frozen=True, slots=True)
class Steps:
    """A body's kernels in order, and what its outputs are.

    Attributes:
        program: the fused body; each output is an input, a literal, or written by one kernel.
        groups: the groups the kernels come from.
        lowered: the kernels.
        writers: number of the kernel that writes a variable.
        given: where the inputs lie.
        registers: values of the registers the kernels read.
        lower: lowers a group again by its number, in place or not.
    """

    program: Program
    groups: tuple[Group, ...]
    lowered: list[LoweredKernel]
    writers: Mapping[Var, int]
    given: Mapping[Var, StridedView]
    registers: Mapping[str, Index]
    lower: Callable[..., LoweredKernel]

    def writer(self, atom: Atom) -> int | None:
        """Number of the kernel that writes an output; None when it is an input or a number."""
        return self.writers.get(atom) if isinstance(atom, Var) else None

    def may_replace(self, old: Var, new: Atom) -> bool:
        """Whether `new` may be written over `old`: who reads `old` has done so, or does so before
        it writes the same element.
        """
        writer = self.writer(new)
        if writer is None:
            return False
        assert isinstance(new, Var)
        for number, kernel in enumerate(self.lowered):
            if number > writer and old in kernel.variables:
                return False
        if old not in self.lowered[writer].variables:
            return True
        if _updates(self.groups[writer], old):
            # What is not changed is there already.
            self.lowered[writer] = self.lower(writer, in_place=True)
            return True
        return _writes_in_place(self.lowered[writer], old, new)


def _updates(group: Group, old: Var) -> bool:
    """Whether a group only changes elements of `old`, and reads it nowhere else."""
    equation = group.equations[-1]
    first, *others = equation.inputs
    return equation.primitive.name in UPDATES and first is old and old not in others


def _writes_in_place(kernel: LoweredKernel, old: Var, new: Var) -> bool:
    names: dict[Var, list[str]] = {}
    for param, var in zip(kernel.kernel.params, kernel.variables, strict=True):
        names.setdefault(var, []).append(param.name)
    if len(names[old]) != 1 or len(names[new]) != 1:
        return False
    return (names[old][0], names[new][0]) in in_place_pairs(kernel.kernel)


class ControlLowering:
    """Builds the kernel of one loop or branch.

    Args:
        equation: the equation.
        views: where operands in memory lie.
        target: the hardware table's row.
        source: the user's line.
        lower_group: lowers one group of a body.
        wanted: the results that something reads.
    """

    def __init__(
        self,
        equation: Equation,
        views: Mapping[Var, StridedView],
        target: Target,
        source: Source | None,
        lower_group: LowerGroup,
        wanted: frozenset[Var],
        room: int,
    ) -> None:
        self.equation = equation
        self.params = equation.params
        self.views = views
        self.target = target
        self.source = source
        self.lower_group = lower_group
        self.wanted = wanted
        self.results = equation.outputs
        name = equation.primitive.name
        self.kernel = Assembly(name, source, target, self.results, room)

    def operands(self) -> list[Given]:
        """The equation's operands."""
        return [a if isinstance(a, Literal) else self.views[a] for a in self.equation.inputs]

    # Programs -------------------------------------------------------------------------------------

    def prepare(
        self,
        program: Program,
        given: Sequence[Given],
        registers: Mapping[str, Index] | None = None,
        consts: int = 0,
    ) -> Steps:
        """Fuse and lower a body for operands in these places.

        Inputs that are numbers become literals of the body. The first `consts` operands are the
        same in all iterations.
        """
        same = {
            var
            for var, place in zip(program.inputs[:consts], given, strict=False)
            if not isinstance(place, Literal)
        }
        numbers = tuple(g if isinstance(g, Literal) else None for g in given)
        small = with_literals(program, numbers)
        views = [g for g in given if not isinstance(g, Literal)]
        strides = {
            position: tuple(span.stride for span in view.spans)
            for position, view in enumerate(views)
            if not _is_row_major(view)
        }
        fused = fuse(small, self.target, Layouts(strides))
        groups = [
            group
            for group in fused.groups
            if any(0 not in to_indices(v.aval.shape) for v in group.written)
        ]

        def lower(number: int, in_place: bool = False) -> LoweredKernel:
            group = groups[number]
            return self.lower_group(group, fused, self.target, frozenset(same), in_place)

        lowered = [lower(number) for number in range(len(groups))]
        writers = {
            var: number
            for number, kernel in enumerate(lowered)
            for var in reads_and_writes(kernel)[1]
        }
        where = dict(zip(small.inputs, views, strict=True))
        return Steps(fused.program, tuple(groups), lowered, writers, where, registers or {}, lower)

    def run(self, steps: Steps, destinations: Sequence[Place | None]) -> None:
        """Splice a body's kernels; outputs that kernels write go to `destinations`.

        None means: nowhere (a carry that stays, a copy that the caller makes).
        """
        places = {var: Place(view.root, view.offset) for var, view in steps.given.items()}
        for atom, place in zip(steps.program.outputs, destinations, strict=True):
            if place is not None and steps.writer(atom) is not None:
                assert isinstance(atom, Var)
                places[atom] = place
        for kernel in steps.lowered:
            self.kernel.splice(kernel, places, steps.registers)

    def finish(self, steps: Steps, atoms: Sequence[Atom], places: Sequence[Place]) -> None:
        """Copy the outputs that no kernel writes."""
        for atom, place in zip(atoms, places, strict=True):
            if steps.writer(atom) is None:
                self.copy(self.value(steps, atom), place, atom.aval)

    def value(self, steps: Steps, atom: Atom) -> Given:
        """Where an output is that no kernel writes; one without elements is anywhere."""
        return atom if isinstance(atom, Literal) else steps.given.get(atom, dense_view(atom))

    def copy(self, origin: Given, place: Place, aval: Aval) -> None:
        """Copy a value, or fill with a number, a dense array of type `aval` at `place`."""
        if 0 in to_indices(aval.shape):
            return
        stand_in = Var(aval)
        graph = piece(origin, stand_in, 0, row_major(to_indices(aval.shape)), self.source)
        if graph is None:
            return
        builder = KernelBuilder("copy", self.target.name, source=self.source)
        params = KernelParams(builder, {})
        emit_piece(builder, graph, self.target, params)
        made = LoweredKernel(builder.finish(), params.variables)
        self.kernel.splice(made, {stand_in: place}, {})

    def scratch(self, aval: Aval) -> Place:
        """Memory for a value of the kernel."""
        return Place(Var(aval.strong()))

    def small_results(self, program: Program, given: Sequence[Given]) -> list[Place]:
        """Run a program of index arithmetic; where its results are."""
        ready = simplify(legalise(program, self.target))
        steps = self.prepare(ready, given)
        places = [self.scratch(atom.aval) for atom in steps.program.outputs]
        self.run(steps, places)
        self.finish(steps, steps.program.outputs, places)
        return places

    # scan -----------------------------------------------------------------------------------------

    def scan(self) -> None:
        """``for``; a register bounds it when the count is an operand."""
        params = self.params
        bounded, length = params["bounded"], params["length"]
        operands = self.operands()
        count = operands.pop(0) if bounded else None
        consts, carries = params["consts"], params["carries"]
        given, init, xs = (
            operands[:consts], operands[consts : consts + carries], operands[consts + carries :],
        )  # fmt: skip
        lasts, stacked = self.results[:carries], self.results[carries:]
        body = params["body"]
        trips: Index = length
        if count is not None:
            trips = self._trips(count, length)
            for y in stacked:
                self.copy(_zero(y.aval), Place(y), y.aval)
        counters = find_counters(body, init, consts, length)
        moving = [k for k in range(carries) if k not in counters]
        state = _Carries(self, [lasts[k] for k in moving], [init[k] for k in moving])
        if length == 0 or trips == 0:
            for last, first in zip(lasts, init, strict=True):
                self.copy(first, Place(last), last.aval)
            return
        state.enter()
        with self.kernel.loop("step", 0, trips, state.lasts) as step:
            at = add(add(trips, -1), scale(step, -1)) if params["reverse"] else step
            slices = [_slice(x, at) for x in xs]
            indexed, registers = with_index(body, consts, counters, step, length)
            steps = self.prepare(indexed, [*given, *state.given(), *slices], registers, consts)
            outputs = steps.program.outputs
            y_places = [_row(y, at) for y in stacked]
            self.finish(steps, outputs[len(moving) :], y_places)
            state.iterate(steps, y_places)
        for number, counter in counters.items():
            if lasts[number] in self.wanted:
                self._count(counter, trips, lasts[number])

    def _trips(self, count: Given, length: int) -> Index:
        """The count held inside 0 .. length, as a register unless it is a number."""
        if isinstance(count, Literal):
            return min(max(int(count.value), 0), length)

        def run(n: Any) -> list[Any]:
            some = op.max(n, op.scalar(0, int32))
            return [some if length >= _LARGEST else op.min(some, op.scalar(length, int32))]

        program = trace_program(run, [Aval((), int32)], "trips")
        (place,) = self.small_results(program, [count])
        return self.kernel.load_register(place, "trips")

    def _count(self, counter: Counter, trips: Index, last: Var) -> None:
        """Write ``start + trips·step``, the last value of a counter."""
        if isinstance(trips, int):
            final = literal(counter.after(trips), Aval((), last.aval.dtype))
            self.copy(final, Place(last), last.aval)
            return
        builder = KernelBuilder("count", self.target.name, source=self.source)
        register = builder.register_argument("n")
        view = builder.param("y0", (1,), last.aval.dtype, "out")
        ramp = builder.sbuf((1, 1), last.aval.dtype)
        value = add(scale(register, counter.step), counter.first)
        builder.iota(ramp, pattern=((0, 1),), offset=value, channel_multiplier=0)
        builder.dma_copy(view[None], ramp)
        self.kernel.splice(LoweredKernel(builder.finish(), (last,)), {}, {"n": trips})

    # while_loop -----------------------------------------------------------------------------------

    def while_loop(self) -> None:
        """``while`` with a register that the condition sets before and after the body."""
        params = self.params
        for_cond, for_body = params["cond_consts"], params["body_consts"]
        operands = self.operands()
        init = operands[for_cond + for_body :]
        state = _Carries(self, self.results, init)
        state.enter()
        test = _as_int32(params["cond"])
        steps = self.prepare(test, [*operands[:for_cond], *state.given()])
        flag = self.scratch(Aval((1,), int32))

        def decide() -> None:
            self.run(steps, [flag])
            self.finish(steps, steps.program.outputs, [flag])

        decide()
        more = self.kernel.load_register(flag, "more")
        with self.kernel.repeat(more, state.lasts):
            given = [*operands[for_cond : for_cond + for_body], *state.given()]
            state.iterate(self.prepare(params["body"], given, consts=for_body), [])
            decide()
            self.kernel.load_register(flag, into=more)

    # cond -----------------------------------------------------------------------------------------

    def cond(self) -> None:
        """A loop of one iteration for the branch that is chosen, of none for the others."""
        index, *operands = self.operands()
        branches: tuple[Program, ...] = self.params["branches"]
        if isinstance(index, Literal):
            self._branch(branches[min(max(int(index.value), 0), len(branches) - 1)], operands)
            return
        (trips,) = self.small_results(_one_hot(len(branches)), [index])
        chosen = [
            self.kernel.load_register(Place(trips.root, number), "branch")
            for number in range(len(branches))
        ]
        for register, branch in zip(chosen, branches, strict=True):
            with self.kernel.once(register):
                self._branch(branch, operands)

    def _branch(self, branch: Program, operands: Sequence[Given]) -> None:
        steps = self.prepare(branch, operands)
        places = [Place(result) for result in self.results]
        self.run(steps, places)
        self.finish(steps, steps.program.outputs, places)


class _Carries:
    """The carries of a loop: where they live, and how an iteration replaces them."""

    def __init__(
        self,
        owner: ControlLowering,
        lasts: Sequence[Var],
        init: Sequence[Given],
    ) -> None:
        self.owner = owner
        self.lasts = lasts
        self.init = init

    def enter(self) -> None:
        """Copy the first values."""
        for last, first in zip(self.lasts, self.init, strict=True):
            self.owner.copy(first, Place(last), last.aval)

    def given(self) -> list[Given]:
        """The carries as operands of the body."""
        return [dense_view(last) for last in self.lasts]

    def iterate(self, steps: Steps, more: Sequence[Place]) -> None:
        """One iteration; `more` are the places of the outputs after the carries."""
        owner = self.owner
        homes = {view.root: var for var, view in steps.given.items()}
        places: list[Place | None] = []
        late: list[tuple[Given, int]] = []
        for number, last in enumerate(self.lasts):
            atom = steps.program.outputs[number]
            home = Place(last)
            if self._stays(steps, atom, last):
                places.append(None)
            elif steps.writer(atom) is None:
                value = owner.value(steps, atom)
                if self._is_carry(value):
                    beside = owner.scratch(last.aval)
                    owner.copy(value, beside, last.aval)
                    value = dense_view(beside.root)
                late.append((value, number))
                places.append(None)
            elif last not in homes or steps.may_replace(homes[last], atom):
                places.append(home)
            else:
                beside = owner.scratch(last.aval)
                late.append((dense_view(beside.root), number))
                places.append(beside)
        owner.run(steps, [*places, *more])
        for value, number in late:
            last = self.lasts[number]
            owner.copy(value, Place(last), last.aval)

    def _stays(self, steps: Steps, atom: Atom, last: Var) -> bool:
        view = steps.given.get(atom) if isinstance(atom, Var) else None
        return view is not None and view.root is last

    def _is_carry(self, value: Given) -> bool:
        return isinstance(value, StridedView) and value.root in self.lasts


def _is_row_major(view: StridedView) -> bool:
    return all(
        own.count == 1 or own.stride == full.stride
        for own, full in zip(view.spans, row_major(view.shape), strict=True)
    )


def _slice(stacked: Given, at: Index) -> Given:
    """Row `at` of a stacked operand."""
    assert isinstance(stacked, StridedView)
    first, *rest = stacked.spans
    return StridedView(stacked.root, add(stacked.offset, mul(first.stride, at)), tuple(rest))


def _row(stacked: Var, at: Index) -> Place:
    """Row `at` of a stacked result."""
    size: Index = 1
    for count in to_indices(stacked.aval.shape[1:]):
        size = mul(size, count)
    return Place(stacked, mul(size, at))


def _zero(aval: Aval) -> Literal:
    return literal(np.zeros((), aval.dtype)[()], Aval((), aval.dtype))


@cached_by_program
def _as_int32(cond: Program) -> Program:
    """The condition with its bool as an int32, which a register can hold."""
    converted = Var(Aval((), int32))
    (atom,) = cond.outputs
    if isinstance(atom, Literal):
        return cond.replace(outputs=[literal(np.int32(bool(atom.value)))])
    cast = Equation(
        primitives["convert"], (atom,), (converted,), Params({"dtype": int32}), UNKNOWN_SOURCE
    )
    return cond.replace(equations=[*cond.equations, cast], outputs=[converted])


def _one_hot(count: int) -> Program:
    """From an index to ``i32[count]`` that is 1 where the clamped index points."""

    def run(index: Any) -> list[Any]:
        inside = op.clamp(op.scalar(0, int32), index, op.scalar(count - 1, int32))
        places = op.iota((count,), 0)
        return [op.convert(op.eq(places, op.broadcast(inside, (count,), ())), int32)]

    return trace_program(run, [Aval((), int32)], "one_hot")


_RULES: Mapping[str, Callable[[ControlLowering], None]] = {
    "scan": ControlLowering.scan,
    "while_loop": ControlLowering.while_loop,
    "cond": ControlLowering.cond,
}


def lower_control(
    equation: Equation,
    views: Mapping[Var, StridedView],
    target: Target,
    source: Source | None,
    lower_group: LowerGroup,
    wanted: frozenset[Var],
) -> LoweredKernel:
    """The kernel of a loop or a branch; variables that are no operand or result are scratch memory.

    Args:
        equation: of a primitive in `_RULES`.
        views: where operands lie.
        target: the hardware table's row.
        source: the user's line.
        lower_group: lowers one group of a body.
        wanted: the results that something reads.
    """

    def lower(room: int) -> LoweredKernel:
        lowering = ControlLowering(equation, views, target, source, lower_group, wanted, room)
        _RULES[equation.primitive.name](lowering)
        return lowering.kernel.finish()

    lowered = lower(int(target.sbuf_usable_bytes * RESIDENT_SHARE))
    try:
        placing.place(lowered.kernel, target)
    except TileError:
        # The kernels of the body need the room themselves.
        lowered = lower(0)
    return lowered
