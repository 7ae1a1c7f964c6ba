"""Fusion: equations become groups, each of which will be one kernel.

Greedy in program order. An equation joins the groups that compute its operands when the result is
still one loop nest that a kernel family can lower, every value written to memory is written once,
and no group would wait for itself. Views are never grouped on their own: inside a group they vanish
into the iteration space, and in front of a group they become access patterns.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from trnx.compiler.kernels.contraction import classify_contraction
from trnx.compiler.kernels.gather import check_gathers
from trnx.compiler.kernels.group import Graph, NotFusable, build_graph
from trnx.compiler.kernels.registry import ALONE, VIEWS, Kind, kind_of
from trnx.compiler.kernels.space import AxisSpace, StridedView, dense_view, to_indices
from trnx.compiler.kernels.support import kind_on
from trnx.compiler.passes.groups import (
    FusedProgram,
    Group,
    Layouts,
    viewed,
    with_written_outputs,
)
from trnx.compiler.passes.identity import COPY
from trnx.compiler.passes.inline import Waits, inline_recomputing
from trnx.compiler.targets import Target
from trnx.core import Atom, Equation, LoweringError, Params, Program, Var, message, same_shape
from trnx.core.program import dim_variables

MAX_GROUP = 512
"""Equations of one group: bounds the size of a kernel."""

_NESTS = frozenset({Kind.ELEMENTWISE, Kind.IOTA, Kind.REDUCE, Kind.CONTRACTION, Kind.TAKE})
_BIJECTIVE = frozenset({Kind.BROADCAST, Kind.RESHAPE, Kind.TRANSPOSE})


@dataclass(slots=True)
class _Cluster:
    """A group being formed: numbers of its equations, and bits of the clusters it needs."""

    members: list[int]
    needs: int = 0
    kinds: set[Kind] = field(default_factory=set)
    beside: list[_Cluster] = field(default_factory=list)


class _NeedsCopy(Exception):
    """A view must be copied before its reshape: no iteration space expresses what follows."""

    def __init__(self, place: int) -> None:
        super().__init__(place)
        self.place = place


class Fuser:
    """Forms the groups of one program.

    Args:
        program: what to cut into groups.
        target: the hardware table's row.
        layouts: strides of inputs and outputs that are not dense.
        copied: numbers of reshapes (among the program's equations) whose operand is copied first.
        waits: values that must be there before an equation with this first output runs.
    """

    def __init__(
        self,
        program: Program,
        target: Target,
        layouts: Layouts,
        copied: frozenset[int] = frozenset(),
        waits: Waits | None = None,
    ) -> None:
        self.target = target
        self.waits = dict(waits or {})
        self.copied = copied
        self.origin: dict[Var, int] = {}
        self.program = with_written_outputs(program, target, layouts.apart)
        self.given = layouts.views(self.program)
        self.registers = layouts.registers or tuple(v.name for v in dim_variables(program))
        self.views: dict[Var, StridedView | None] = {}
        self.equations: list[Equation] = []
        self.made_by: dict[Var, int] = {}
        self._lay_out()
        self.kinds = [kind_on(e, target) for e in self.equations]
        self.users: dict[Var, list[int]] = {}
        self.in_memory: set[Var] = set()
        self._find_users()
        self.clusters: dict[int, _Cluster] = {}
        self.cluster_of: dict[int, int] = {}
        self.aligned: dict[Var, Var] = {}
        self.moved: dict[int, int] = {}

    # Preparation --------------------------------------------------------------------------------

    def _lay_out(self) -> None:
        """Find where values lie, and copy views that no access pattern expresses where one must."""
        self.renamed: dict[Var, Var] = {}
        for place, equation in enumerate(self.program.equations):
            kind = kind_on(equation, self.target)
            self.origin.update(dict.fromkeys(equation.outputs, place))
            inputs: list[Atom] = [
                self.renamed.get(a, a) if isinstance(a, Var) else a for a in equation.inputs
            ]
            for position, atom in enumerate(inputs):
                if isinstance(atom, Var) and self._reads_memory(equation, kind, position):
                    view = self.view(atom)
                    if view is None or (kind is Kind.HOST and view.root is not atom):
                        inputs[position] = self._copy(atom, equation)
                elif isinstance(atom, Var) and kind is Kind.RESHAPE:
                    hidden = not self._is_refinement(atom, equation)
                    inputs[position] = atom
                    if hidden or place in self.copied:
                        inputs[position] = self._copy(atom, equation)
            made = Equation(
                equation.primitive, tuple(inputs), equation.outputs, equation.params,
                equation.source,
            )  # fmt: skip
            self._append(made)

    def _is_refinement(self, operand: Var, equation: Equation) -> bool:
        """Whether a reshape is an access pattern, or splits and merges axes that nest."""
        view = self.view(operand)
        shape = to_indices(equation.params["shape"])
        if view is not None and view.reshape(shape) is not None:
            return True
        space = AxisSpace()
        before = space.fresh(to_indices(operand.aval.shape))
        after = space.fresh(shape)
        return space.unify([a for d in before for a in d], [a for d in after for a in d])

    def _append(self, equation: Equation) -> None:
        for var in equation.outputs:
            self.made_by[var] = len(self.equations)
        self.equations.append(equation)

    def _copy(self, var: Var, user: Equation) -> Var:
        copy = Var(var.aval)
        self._append(Equation(COPY, (var,), (copy,), Params({}), user.source))
        self.renamed[var] = copy
        wait = self.waits.get(user.outputs[0])
        if wait is not None:
            self.waits[copy] = wait
        return copy

    def view(self, var: Var) -> StridedView | None:
        """The variable as an access pattern of a buffer; None when it is no affine view of one."""
        if var in self.views:
            return self.views[var]
        found = self.given.get(var)
        number = self.made_by.get(var)
        if found is None and number is not None:
            equation = self.equations[number]
            kind = kind_on(equation, self.target)
            if kind in VIEWS:
                source = equation.inputs[0]
                below = self.view(source) if isinstance(source, Var) else None
                found = None if below is None else viewed(below, equation, kind)
                self.views[var] = found
                return found
        self.views[var] = found = dense_view(var) if found is None else found
        return found

    def _find_users(self) -> None:
        """Which compute equations use a value through views, and what must lie in memory."""
        for number, equation in enumerate(self.equations):
            if self.kinds[number] in VIEWS:
                continue
            for position, atom in enumerate(equation.inputs):
                if isinstance(atom, Var):
                    forced = self._reads_memory(equation, self.kinds[number], position)
                    self._use(atom, number, forced)
        for atom in self.program.outputs:
            if isinstance(atom, Var):
                self.in_memory.add(atom)

    def _use(self, var: Var, user: int, forced: bool) -> None:
        """Note a use of `var` and of what it is a view of."""
        while True:
            number = self.made_by.get(var)
            if forced and (number is None or self.kinds[number] not in VIEWS):
                self.in_memory.add(var)
            self.users.setdefault(var, []).append(user)
            if number is None or self.kinds[number] not in VIEWS:
                return
            forced = forced or self.kinds[number] is Kind.LEAF_VIEW
            source = self.equations[number].inputs[0]
            if not isinstance(source, Var):
                return
            var = source

    # Formation ----------------------------------------------------------------------------------

    def run(self) -> FusedProgram:
        """Form the groups."""
        for number in range(len(self.equations)):
            if self.kinds[number] not in VIEWS:
                self._place(number)
        self._put_beside()
        order = self._ordered()
        groups = tuple(self._finish(self.clusters[c]) for c in order)
        views = {var: view for var, view in self.views.items() if view is not None} | self.given
        return FusedProgram(self.program, groups, views, self.registers)

    def cluster(self, number: int) -> int:
        """The cluster an equation is in now."""
        return self.cluster_of[number]

    def _reads_memory(self, equation: Equation, kind: Kind, position: int) -> bool:
        """Whether an operand must lie in memory for an equation."""
        if kind is Kind.TAKE:
            return position == 0 or _is_fine(equation)
        return kind in ALONE or kind in (Kind.HOST, Kind.CALL, Kind.LEAF_VIEW)

    def _producer(self, var: Var) -> tuple[int | None, bool]:
        """The compute equation behind a variable, and whether only vanishing views lie between."""
        direct = True
        while True:
            number = self.made_by.get(var)
            if number is None or self.kinds[number] not in VIEWS:
                return number, direct
            direct = direct and self.kinds[number] in _BIJECTIVE
            source = self.equations[number].inputs[0]
            if not isinstance(source, Var):
                return None, direct
            var = source

    def _place(self, number: int) -> None:
        equation, kind = self.equations[number], self.kinds[number]
        joins: list[int] = []
        needs = 0
        for position, atom in enumerate(equation.inputs):
            if not isinstance(atom, Var):
                continue
            producer, direct = self._producer(atom)
            if producer is None:
                continue
            cluster = self.cluster_of[producer]
            needs |= 1 << cluster
            stays = self._reads_memory(equation, kind, position)
            free = direct and not stays
            nests = kind in _NESTS and self.clusters[cluster].kinds <= _NESTS
            if free and nests and cluster not in joins:
                joins.append(cluster)
        for var in self.waits.get(equation.outputs[0], ()):
            producer, _ = self._producer(var)
            if producer is not None:
                needs |= 1 << self.cluster_of[producer]
        for chosen in _subsets(joins):
            if self._may_join(number, chosen, needs):
                self._merge(number, chosen, needs)
                self._align(number)
                return
        if kind in _NESTS:
            try:
                self._graph([number])
            except NotFusable:
                self._require_copy(number)
        self.clusters[number] = _Cluster([number], needs, {kind})
        self.cluster_of[number] = number

    def _require_copy(self, number: int) -> None:
        """Ask for a copy in front of the first reshape that hides the operand's layout."""
        equation = self.equations[number]
        for atom in equation.inputs:
            while isinstance(atom, Var) and self.view(atom) is None:
                made = self.equations[self.made_by[atom]]
                below = made.inputs[0]
                hides = isinstance(below, Var) and self.view(below) is not None
                if hides and self.kinds[self.made_by[atom]] is Kind.RESHAPE:
                    raise _NeedsCopy(self.origin[atom])
                atom = below
        raise LoweringError(
            message(
                f"{equation.primitive.name} of "
                f"{', '.join(str(a.aval) for a in equation.inputs)} fits no kernel",
                equation.source,
                "Report this program",
            )
        )

    def _reach(self, needs: int) -> int:
        """All clusters that lie below the given ones, themselves included."""
        seen, open_set = 0, needs
        while open_set:
            low = open_set & -open_set
            open_set ^= low
            if seen & low:
                continue
            seen |= low
            open_set |= self.clusters[low.bit_length() - 1].needs & ~seen
        return seen

    def _may_join(self, number: int, chosen: Sequence[int], needs: int) -> bool:
        inside = 0
        for cluster in chosen:
            inside |= 1 << cluster
        outside = needs
        for cluster in chosen:
            outside |= self.clusters[cluster].needs
        if self._reach(outside & ~inside) & inside:
            return False  # a group outside would need the merged group and be needed by it
        members = sorted([number, *(m for c in chosen for m in self.clusters[c].members)])
        if len(members) > MAX_GROUP:
            return False
        if len(chosen) == 1 and self._is_plain(number, chosen[0]):
            return True
        if self._reads_own_results(members):
            return False
        try:
            self._graph(members)
        except NotFusable:
            return False
        return True

    def _reads_own_results(self, members: Sequence[int]) -> bool:
        """Whether a member needs a value of another member in memory, so that both cannot be one.

        A slice of a value, a gather's table and a 64-bit cast read memory.
        """
        inside = set(members)
        for number in members:
            equation = self.equations[number]
            for position, atom in enumerate(equation.inputs):
                if not isinstance(atom, Var):
                    continue
                producer, direct = self._producer(atom)
                if producer not in inside:
                    continue
                stays = self._reads_memory(equation, self.kinds[number], position)
                if not direct or stays:
                    return True
        return False

    def _is_plain(self, number: int, cluster: int) -> bool:
        """Whether the equation only continues a value of the cluster element by element."""
        equation = self.equations[number]
        if self.kinds[number] is not Kind.ELEMENTWISE:
            return False
        shape = equation.outputs[0].aval.shape
        inside: set[Var] = set()
        for atom in equation.inputs:
            if not isinstance(atom, Var):
                continue
            if not same_shape(atom.aval.shape, shape):
                return False
            made = self.made_by.get(atom)
            if made is not None and self.kinds[made] in VIEWS:
                return False
            if made is not None and self.cluster_of.get(made) == cluster:
                inside.add(self._alignment(atom))
        # Two values may run over the same axes in another order; only the graph can tell.
        return len(inside) == 1

    def _alignment(self, var: Var) -> Var:
        """The value that stands for all that run over the same axes as `var` in their cluster."""
        while var in self.aligned:
            var = self.aligned[var]
        return var

    def _align(self, number: int) -> None:
        """Note that an elementwise result runs over the axes of its operands in the cluster."""
        equation = self.equations[number]
        if self.kinds[number] is not Kind.ELEMENTWISE:
            return
        output = equation.outputs[0]
        for atom in equation.inputs:
            made = self.made_by.get(atom) if isinstance(atom, Var) else None
            if made is None or not same_shape(atom.aval.shape, output.aval.shape):
                continue
            if self.cluster_of.get(made) == self.cluster_of[number]:
                assert isinstance(atom, Var)
                root, other = self._alignment(atom), self._alignment(output)
                if root is not other:
                    self.aligned[other] = root

    def _merge(self, number: int, chosen: Sequence[int], needs: int) -> None:
        keep = chosen[0]
        merged = self.clusters[keep]
        for other in chosen[1:]:
            gone = self.clusters.pop(other)
            merged.members += gone.members
            merged.needs |= gone.needs
            merged.kinds |= gone.kinds
            for member in gone.members:
                self.cluster_of[member] = keep
            for cluster in self.clusters.values():
                if cluster.needs >> other & 1:
                    cluster.needs = cluster.needs & ~(1 << other) | 1 << keep
            needs = needs & ~(1 << other) | (1 << keep if needs >> other & 1 else 0)
        merged.members.append(number)
        merged.members.sort()
        merged.kinds.add(self.kinds[number])
        merged.needs = (merged.needs | needs) & ~(1 << keep)
        for other in chosen[1:]:
            merged.needs &= ~(1 << other)
        self.cluster_of[number] = keep

    def _put_beside(self) -> None:
        """Column sums of an operand join the contraction that has it on its right side.

        A sum over rows is a product with ones; beside a weight gradient it costs one more matmul
        of the tiles that are in SBUF already.
        """
        for number, cluster in list(self.clusters.items()):
            sums = self._column_sum(cluster)
            if sums is None:
                continue
            for other, host in self.clusters.items():
                if other == number or not self._shares_right(host, sums):
                    continue
                both = 1 << number | 1 << other
                if self._reach((cluster.needs | host.needs) & ~both) & both:
                    continue
                if cluster.needs >> other & 1 or host.needs >> number & 1:
                    continue
                host.beside.append(self.clusters.pop(number))
                host.needs |= cluster.needs
                for third in self.clusters.values():
                    if third.needs >> number & 1:
                        third.needs = third.needs & ~(1 << number) | 1 << other
                break

    def _dot_of(self, cluster: _Cluster) -> Equation | None:
        if Kind.CONTRACTION not in cluster.kinds:
            return None
        return next(self.equations[m] for m in cluster.members if self.kinds[m] is Kind.CONTRACTION)

    def _column_sum(self, cluster: _Cluster) -> Equation | None:
        """The product with ones in front of an operand in memory, if the cluster is just that."""
        dot = self._dot_of(cluster)
        if dot is None or dot.params["batch"] != ((), ()) or cluster.beside:
            return None
        left, right = dot.inputs
        made = self.made_by.get(left) if isinstance(left, Var) else None
        if made is None or self.equations[made].primitive.name != "broadcast":
            return None
        constant = not isinstance(self.equations[made].inputs[0], Var)
        return dot if constant and self._in_front(cluster, right) else None

    def _in_front(self, cluster: _Cluster, atom: Atom) -> bool:
        """Whether an operand comes from memory, not from an equation of the cluster."""
        if not isinstance(atom, Var) or self.view(atom) is None:
            return False
        producer, _ = self._producer(atom)
        return producer not in cluster.members

    def _shares_right(self, cluster: _Cluster, sums: Equation) -> bool:
        dot = self._dot_of(cluster)
        return (
            dot is not None
            and dot.inputs[1] is sums.inputs[1]
            and dot.params["contract"][1] == sums.params["contract"][1]
            and dot.params["batch"] == ((), ())
            and self._column_sum(cluster) is None
            and self._in_front(cluster, dot.inputs[1])
        )

    # Graphs -------------------------------------------------------------------------------------

    def _graph(self, members: Sequence[int]) -> Graph:
        """The loop nest of a cluster; NotFusable when no kernel family lowers it."""
        equations, outputs = self._body(members)
        views = _ViewLookup(self)
        graph = build_graph(equations, views, outputs)
        check_nest(graph, self.target)
        return graph

    def _body(self, members: Sequence[int]) -> tuple[list[Equation], list[Var]]:
        """Equations with the views between them, and the values that leave the cluster."""
        inside = set(members)
        body: list[Equation] = []
        defined: set[Var] = set()

        def bring(var: Var) -> None:
            if var in defined:
                return
            number = self.made_by.get(var)
            if number is None or self.kinds[number] not in VIEWS:
                return
            producer, direct = self._producer(var)
            source = self.equations[number].inputs[0]
            internal = producer in inside and direct
            literal = producer is None and not isinstance(source, Var)
            if internal or literal or self.view(var) is None:
                if isinstance(source, Var):
                    bring(source)
                body.append(self.equations[number])
                defined.add(var)

        for number in members:
            equation = self.equations[number]
            for position, atom in enumerate(equation.inputs):
                stays = self._reads_memory(equation, self.kinds[number], position)
                if isinstance(atom, Var) and not stays:
                    bring(atom)
            body.append(equation)
            defined.update(equation.outputs)
        outputs = [
            var
            for number in members
            for var in self.equations[number].outputs
            if var in self.in_memory or any(u not in inside for u in self.users.get(var, ()))
        ]
        return body, outputs

    def _finish(self, cluster: _Cluster) -> Group:
        members = sorted(cluster.members)
        kinds = cluster.kinds
        equations, outputs = self._body(members)
        for equation in equations:
            for atom in equation.inputs:
                if isinstance(atom, Var):
                    self.view(atom)
        if not outputs:  # nothing reads it; kept for its effect
            outputs = list(self.equations[members[-1]].outputs)
        family = "row"
        if Kind.CONTRACTION in kinds:
            family = "contraction"
        elif kinds & ALONE:
            (kind,) = kinds
            family = kind.value
        elif not kinds <= _NESTS:
            family = "host"
            _require_reference(equations[-1], self.target)
            outputs = list(equations[-1].outputs)  # the call fills all of them, also unread ones
        beside = tuple(self._finish(other) for other in cluster.beside)
        return Group(family, tuple(equations), tuple(outputs), beside)

    def _ordered(self) -> list[int]:
        """Clusters with producers first, otherwise in program order of their last equation."""
        import heapq

        waiting = {c: cluster.needs for c, cluster in self.clusters.items()}
        ready = [(max(self.clusters[c].members), c) for c, n in waiting.items() if not n]
        heapq.heapify(ready)
        order: list[int] = []
        while ready:
            _, done = heapq.heappop(ready)
            order.append(done)
            for other, needs in waiting.items():
                if needs >> done & 1:
                    waiting[other] = needs & ~(1 << done)
                    if not waiting[other]:
                        heapq.heappush(ready, (max(self.clusters[other].members), other))
        assert len(order) == len(self.clusters), "groups wait for each other"
        return order


class _ViewLookup(Mapping[Var, StridedView]):
    """The views of a fuser, found on demand."""

    def __init__(self, fuser: Fuser) -> None:
        self.fuser = fuser

    def __getitem__(self, var: Var) -> StridedView:
        found = self.fuser.view(var)
        if found is None:
            raise KeyError(var)
        return found

    def __contains__(self, var: object) -> bool:
        return isinstance(var, Var) and self.fuser.view(var) is not None

    def __iter__(self):  # type: ignore[no-untyped-def]
        return iter(self.fuser.views)

    def __len__(self) -> int:
        return len(self.fuser.views)


FINE_ROWS = 16
"""Elements per index up to which a gather reads its indices from memory: an index stands alone on
its partition, so computing it beside so few elements would be most of the work."""


def _is_fine(equation: Equation) -> bool:
    """Whether a gather moves few elements per index."""
    index, result = equation.inputs[1].aval, equation.outputs[0].aval
    if not index.is_static or not result.is_static:
        return False
    count = math.prod(int(size) for size in index.shape)
    return math.prod(int(size) for size in result.shape) <= FINE_ROWS * count


def _require_reference(equation: Equation, target: Target) -> None:
    """LoweringError unless a host call can compute what no instruction does."""
    if equation.primitive.reference is not None:
        return
    operands = ", ".join(str(a.aval) for a in equation.inputs)
    raise LoweringError(
        message(
            f"{equation.primitive.name} of {operands or 'no operands'} has no lowering to "
            f"{target.name} and no NumPy meaning to fall back on",
            equation.source,
            "Write it with other functions, or give the primitive a composite",
        )
    )


def _subsets(joins: Sequence[int]) -> Iterable[Sequence[int]]:
    """Sets of clusters to try to join, larger and later ones first."""
    if not joins:
        return
    yield tuple(joins)
    if len(joins) > 2:
        for left_out in joins:
            yield tuple(c for c in joins if c != left_out)
    if len(joins) > 1:
        for one in sorted(joins, reverse=True):
            yield (one,)


def check_nest(graph: Graph, target: Target) -> None:
    """Raise NotFusable unless a kernel family lowers the graph.

    Every result depends on each axis that is not reduced (else blocks would write it several
    times); results of a contraction may reduce its last axes as a whole.
    """
    check_gathers(graph)
    if graph.dot is not None:
        classify_contraction(graph, target)
        return
    kept = graph.axes - graph.reduced
    for store in graph.stores:
        axes = frozenset(store.shape_axes)
        if not kept <= axes:
            raise NotFusable("a result does not run over every axis of the nest")
        rest = axes & graph.reduced
        if rest and rest != graph.reduced:
            raise NotFusable("a result keeps part of the reduced axes")


def fuse(program: Program, target: Target, layouts: Layouts | None = None) -> FusedProgram:
    """Cut a program into groups.

    Args:
        program: of primitives that kernel families lower; no calls but recomputing checkpoints,
            whose work is done when all their operands are there.
        target: the hardware table's row.
        layouts: strides of inputs and outputs that are not dense.

    Raises:
        LoweringError: an equation has no kernel family.
    """
    program, waits = inline_recomputing(program)
    for equation in program.equations:
        if kind_of(equation.primitive.name) is Kind.CALL:
            raise LoweringError(
                message("a call was not inlined", equation.source, "Report this program")
            )
    copied: frozenset[int] = frozenset()
    while True:
        try:
            return Fuser(program, target, layouts or Layouts(), copied, waits).run()
        except _NeedsCopy as request:
            if request.place in copied:
                raise LoweringError(
                    message(
                        "A reshape fits no kernel even after a copy",
                        program.equations[request.place].source,
                        "Report this program",
                    )
                ) from None
            copied |= {request.place}
