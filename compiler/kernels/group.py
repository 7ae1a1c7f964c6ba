"""A group of equations as one loop nest: a graph of nodes over the axes of an iteration space.

`build_graph` takes equations that shall become one kernel and dissolves every view in them. What is
left are *nodes*: loads of HBM buffers with an affine access, literals, index ramps, elementwise
operations, reductions over axes, and contractions. A node depends on a set of axes; one that does
not depend on an axis is the same for every index of it. Stores say where results go.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from trnx.compiler.kernels.registry import Kind, kind_of
from trnx.compiler.kernels.space import (
    Axis,
    AxisSpace,
    Dimension,
    StridedView,
    axis_strides,
    to_index,
    to_indices,
)
from trnx.compiler.tile.expr import Index, floordiv, mul
from trnx.compiler.tile.ir import row_major
from trnx.core import Atom, Equation, Literal, Source, Var
from trnx.core.program import NO_PARAMS


class NotFusable(Exception):
    """These equations cannot be one loop nest; the text says why. Never reaches a user."""


@dataclass(frozen=True, slots=True)
class Access:
    """Where a load reads or a store writes: ``var[offset + Σ stride·axis]``, in elements.

    Attributes:
        var: the variable whose buffer is accessed.
        offset: elements from the buffer's base.
        strides: stride of every axis that moves the access; others repeat it.
        index: node whose integer value, times `index_stride`, is added (gather); None without.
        index_stride: elements per unit of `index`.
    """

    var: Var
    offset: Index
    strides: Mapping[Axis, Index]
    index: Node | None = None
    index_stride: Index = 0

    def key(self) -> tuple[Any, ...]:
        """Equal for accesses that touch the same elements in the same order."""
        index = None if self.index is None else id(self.index)
        moves = frozenset((axis, stride) for axis, stride in self.strides.items())
        return (self.var, self.offset, moves, index, self.index_stride)


@dataclass(slots=True, eq=False)
class Node:
    """One value of the loop nest, compared by identity.

    Attributes:
        op: ``load``, ``literal``, ``iota`` or a primitive name.
        operands: nodes it is computed from.
        dtype: element type of the value.
        axes: axes the value depends on.
        params: the primitive's parameters.
        source: the user's line.
        access: what a load reads; for ``iota`` the strides give the value.
        value: the number of a literal.
        reduced: axes a reduction or contraction sums over.
        roles: batch, row and column axes of a contraction's result; an operand need not depend on
            all that its shape has.
    """

    op: str
    operands: tuple[Node, ...]
    dtype: np.dtype[Any]
    axes: frozenset[Axis]
    params: Mapping[str, Any] = field(default_factory=lambda: NO_PARAMS)
    source: Source | None = None
    access: Access | None = None
    value: Any = None
    reduced: frozenset[Axis] = frozenset()
    roles: tuple[frozenset[Axis], ...] = ()

    @property
    def is_reduction(self) -> bool:
        """Whether the node reduces over axes (contractions excluded)."""
        return bool(self.reduced) and self.op != "dot_general"

    def __repr__(self) -> str:
        return f"Node({self.op})"


@dataclass(frozen=True, slots=True)
class Store:
    """Writes a node to an output buffer."""

    node: Node
    access: Access
    shape_axes: tuple[Axis, ...]
    source: Source | None = None


@dataclass(frozen=True, slots=True)
class Graph:
    """A loop nest.

    Attributes:
        nodes: in an order in which operands come first.
        stores: results.
        dot: the contraction, when there is one.
        reduced: axes of the row reductions (all reductions of a graph reduce the same axes).
    """

    nodes: tuple[Node, ...]
    stores: tuple[Store, ...]
    dot: Node | None
    reduced: frozenset[Axis]

    @property
    def axes(self) -> frozenset[Axis]:
        """Every axis of the nest."""
        found: set[Axis] = set()
        for node in self.nodes:
            found |= node.axes | node.reduced
        for store in self.stores:
            found.update(store.shape_axes)
        return frozenset(found)

    @property
    def loads(self) -> tuple[Node, ...]:
        """The nodes that read HBM."""
        return tuple(node for node in self.nodes if node.op == "load")

    def accesses(self) -> Iterator[tuple[Mapping[Axis, Index], Index]]:
        """Strides and offset of every load, index ramp and store."""
        for node in self.nodes:
            if node.access is not None:
                yield node.access.strides, node.access.offset
        for store in self.stores:
            yield store.access.strides, store.access.offset

    def use_counts(self) -> dict[Node, int]:
        """How many nodes and stores use each node."""
        counts = dict.fromkeys(self.nodes, 0)
        for node in self.nodes:
            for operand in node.operands:
                counts[operand] += 1
            if node.access is not None and node.access.index is not None:
                counts[node.access.index] += 1
        for store in self.stores:
            counts[store.node] += 1
        return counts


class _Builder:
    """Gives dimensions axes, equation by equation, then makes the nodes."""

    def __init__(self, equations: Sequence[Equation], views: Mapping[Var, StridedView]) -> None:
        self.equations = equations
        self.views = views
        self.space = AxisSpace()
        self.dims: dict[Var, tuple[Dimension, ...]] = {}
        self.uses: dict[tuple[int, int], tuple[Dimension, ...]] = {}
        self.users: dict[Var, list[tuple[int, int]]] = {}

    # Axes -------------------------------------------------------------------------------------

    def operand_dims(self, number: int, position: int, atom: Atom) -> tuple[Dimension, ...]:
        if isinstance(atom, Literal):
            return ()
        known = self.dims.get(atom)
        if known is not None:
            return known
        if atom not in self.views:
            raise NotFusable(f"operand {atom.aval} is neither in the group nor in memory")
        made = self.space.fresh(to_indices(atom.aval.shape))
        self.uses[number, position] = made
        self.users.setdefault(atom, []).append((number, position))
        return made

    def unify(self, left: Iterable[Axis], right: Iterable[Axis]) -> None:
        if not self.space.unify(left, right):
            raise NotFusable("a reshape has no common refinement of its dimensions")

    def add(self, number: int, equation: Equation) -> None:
        params = equation.params
        inputs = [self.operand_dims(number, i, a) for i, a in enumerate(equation.inputs)]
        output = equation.outputs[0]
        kind = kind_of(equation.primitive.name)
        if kind is Kind.ELEMENTWISE:
            dims: tuple[Dimension, ...] = ()
            for own in inputs:
                if own and not dims:
                    dims = own
                elif own:
                    for a, b in zip(dims, own, strict=True):
                        self.unify(a, b)
        elif kind is Kind.BROADCAST:
            shape = list(self.space.fresh(to_indices(params["shape"])))
            for dimension, place in zip(inputs[0], params["dims"], strict=True):
                if dimension:
                    shape[place] = dimension
            dims = tuple(shape)
        elif kind is Kind.RESHAPE:
            dims = self.space.fresh(to_indices(params["shape"]))
            self.unify([a for d in inputs[0] for a in d], [a for d in dims for a in d])
        elif kind is Kind.TRANSPOSE:
            dims = tuple(inputs[0][i] for i in params["permutation"])
        elif kind is Kind.IOTA:
            # The scalar dim_size has no shape.
            shape_of = params["shape"] if equation.primitive.name == "iota" else ()
            dims = self.space.fresh(to_indices(shape_of))
        elif kind is Kind.REDUCE:
            gone = set(params["axes"])
            dims = tuple(d for i, d in enumerate(inputs[0]) if i not in gone)
        elif kind is Kind.CONTRACTION:
            dims = self._contraction(params, inputs)
        elif kind is Kind.TAKE:
            if equation.inputs[0] in self.dims:
                raise NotFusable("a gather reads from a buffer")
            axis = params["axis"]
            dims = (*inputs[0][:axis], *inputs[1], *inputs[0][axis + 1 :])
        else:
            raise NotFusable(f"{equation.primitive.name} is no part of a loop nest")
        self.dims[output] = dims

    def _contraction(
        self, params: Mapping[str, Any], inputs: Sequence[tuple[Dimension, ...]]
    ) -> tuple[Dimension, ...]:
        lhs, rhs = inputs
        (lhs_contract, rhs_contract), (lhs_batch, rhs_batch) = params["contract"], params["batch"]
        for left, right in ((lhs_contract, rhs_contract), (lhs_batch, rhs_batch)):
            for i, j in zip(left, right, strict=True):
                self.unify(lhs[i], rhs[j])
        gone_l, gone_r = {*lhs_contract, *lhs_batch}, {*rhs_contract, *rhs_batch}
        return (
            *(lhs[i] for i in lhs_batch),
            *(d for i, d in enumerate(lhs) if i not in gone_l),
            *(d for i, d in enumerate(rhs) if i not in gone_r),
        )

    def is_consistent(self, space: AxisSpace) -> bool:
        """No value of the group runs twice over one axis."""
        for dims in (*self.dims.values(), *self.uses.values()):
            seen: set[Axis] = set()
            for dimension in dims:
                for axis in space.resolve(dimension):
                    if axis in seen:
                        return False
                    seen.add(axis)
        return True

    def join_loads(self) -> None:
        """Let several uses of one buffer run over the same axes where that is consistent."""
        for users in self.users.values():
            first = self.uses[users[0]]
            for other in users[1:]:
                second = self.uses[other]
                if all(
                    self.space.resolve(a) == self.space.resolve(b)
                    for a, b in zip(first, second, strict=True)
                ):
                    continue
                trial = self.space.copy()
                joined = all(trial.unify(a, b) for a, b in zip(first, second, strict=True))
                if joined and self.is_consistent(trial):
                    self.space = trial

    # Nodes ------------------------------------------------------------------------------------

    def build(self, outputs: Sequence[Var]) -> Graph:
        for number, equation in enumerate(self.equations):
            self.add(number, equation)
        if not self.is_consistent(self.space):
            raise NotFusable("a value would run twice over one axis")
        self.join_loads()
        made: dict[Var, Node] = {}
        loads: dict[tuple[Any, ...], Node] = {}
        literals: dict[tuple[Any, ...], Node] = {}
        for number, equation in enumerate(self.equations):
            operands: list[Node] = []
            for position, atom in enumerate(equation.inputs):
                if isinstance(atom, Literal):
                    operands.append(_literal(atom, literals))
                elif atom in made:
                    operands.append(made[atom])
                elif kind_of(equation.primitive.name) is Kind.TAKE and position == 0:
                    operands.append(_NOTHING)
                else:
                    operands.append(self._load(atom, (number, position), loads, equation.source))
            made[equation.outputs[0]] = self._node(number, equation, operands, loads)
        stores = tuple(self._store(made[var], var) for var in outputs)
        return _graph(stores)

    def _resolved(self, dims: Iterable[Dimension]) -> tuple[Dimension, ...]:
        return tuple(self.space.resolve(d) for d in dims)

    def _load(
        self, var: Var, use: tuple[int, int], loads: dict[tuple[Any, ...], Node], source: Source
    ) -> Node:
        view = self.views[var]
        strides = axis_strides(view.spans, self._resolved(self.uses[use]))
        return _shared_load(Access(view.root, view.offset, strides), var, loads, source)

    def _node(
        self,
        number: int,
        equation: Equation,
        operands: list[Node],
        loads: dict[tuple[Any, ...], Node],
    ) -> Node:
        name, kind = equation.primitive.name, kind_of(equation.primitive.name)
        output = equation.outputs[0]
        dtype = output.aval.dtype
        if kind in (Kind.BROADCAST, Kind.RESHAPE, Kind.TRANSPOSE):
            return operands[0]
        axes = frozenset[Axis]().union(*(o.axes for o in operands))
        if name == "dim_size":  # a ramp without a slope
            size = Access(output, to_index(equation.params["size"]), {})
            return Node("iota", (), dtype, axes, equation.params, equation.source, size)
        if kind is Kind.IOTA:
            dims = self._resolved(self.dims[output])
            strides: dict[Axis, Index] = {}
            stride: Index = 1
            for axis in reversed(dims[equation.params["axis"]]):
                strides[axis] = stride
                stride = mul(stride, axis.size)
            access = Access(output, 0, strides)
            ramp = frozenset(strides)
            return Node("iota", (), dtype, ramp, equation.params, equation.source, access)
        if kind is Kind.REDUCE:
            dims = self._resolved(self._dims_of(equation.inputs[0], number, 0))
            gone = frozenset(a for i in equation.params["axes"] for a in dims[i])
            operand = _scaled_by_repeats(equation, operands[0], gone - axes)
            gone &= axes
            if not gone:
                return operand
            return Node(
                name, (operand,), dtype, axes - gone, equation.params, equation.source, reduced=gone
            )
        if kind is Kind.CONTRACTION:
            lhs = self._resolved(self._dims_of(equation.inputs[0], number, 0))
            gone = frozenset(a for i in equation.params["contract"][0] for a in lhs[i])
            if not gone:  # over one element the sum of products is a product
                return Node("mul", tuple(operands), dtype, axes, source=equation.source)
            roles = self._roles(equation, number)
            made = Node(name, tuple(operands), dtype, frozenset().union(*roles), equation.params)
            made.source, made.reduced, made.roles = equation.source, gone, roles
            return made
        if kind is Kind.TAKE:
            return self._gather(number, equation, operands[1], loads)
        return Node(name, tuple(operands), dtype, axes, equation.params, equation.source)

    def _roles(self, equation: Equation, number: int) -> tuple[frozenset[Axis], ...]:
        """Batch, row and column axes of a contraction, from the shapes of its operands."""
        contract, batch = equation.params["contract"], equation.params["batch"]
        found: list[frozenset[Axis]] = []
        for side in (0, 1):
            dims = self._resolved(self._dims_of(equation.inputs[side], number, side))
            if side == 0:
                found.append(frozenset(a for i in batch[0] for a in dims[i]))
            gone = {*contract[side], *batch[side]}
            found.append(frozenset(a for i, d in enumerate(dims) if i not in gone for a in d))
        return tuple(found)

    def _dims_of(self, atom: Atom, number: int, position: int) -> tuple[Dimension, ...]:
        assert isinstance(atom, Var)
        return self.uses.get((number, position)) or self.dims.get(atom, ())

    def _gather(
        self, number: int, equation: Equation, index: Node, loads: dict[tuple[Any, ...], Node]
    ) -> Node:
        table = equation.inputs[0]
        assert isinstance(table, Var)
        if table not in self.views:
            raise NotFusable("a gather reads from a buffer")
        view, axis = self.views[table], equation.params["axis"]
        dims = list(self._resolved(self.uses[number, 0]))
        dims[axis] = ()
        strides = axis_strides(view.spans, dims)
        access = Access(view.root, view.offset, strides, index, view.spans[axis].stride)
        return _shared_load(access, table, loads, equation.source)

    def _store(self, node: Node, var: Var) -> Store:
        dims = self._resolved(self.dims[var])
        view = self.views.get(var)  # only an output the caller lays out has one before it is made
        spans = row_major(to_indices(var.aval.shape)) if view is None else view.spans
        access = Access(var, 0, axis_strides(spans, dims))
        return Store(node, access, tuple(a for d in dims for a in d), node.source)


def _scaled_by_repeats(equation: Equation, operand: Node, repeats: Iterable[Axis]) -> Node:
    """The operand of a reduction after axes it does not depend on are reduced away."""
    count = 1
    for axis in repeats:
        if not isinstance(axis.size, int):
            raise NotFusable("a reduction over a repeated axis of symbolic size")
        count *= axis.size
    if count == 1 or equation.primitive.name != "reduce_sum":
        return operand
    times = Node("literal", (), operand.dtype, frozenset(), value=operand.dtype.type(count).item())
    return Node("mul", (operand, times), operand.dtype, operand.axes, source=equation.source)


_NOTHING = Node("nothing", (), np.dtype(np.int32), frozenset())


def _literal(atom: Literal, literals: dict[tuple[Any, ...], Node]) -> Node:
    key = (atom.aval.dtype, atom.value.tobytes())
    known = literals.get(key)
    if known is None:
        value = atom.value.item()
        known = Node("literal", (), atom.aval.dtype, frozenset(), value=value)
        literals[key] = known
    return known


def _shared_load(
    access: Access, var: Var, loads: dict[tuple[Any, ...], Node], source: Source
) -> Node:
    known = loads.get(access.key())
    if known is None:
        index = () if access.index is None else (access.index,)
        axes = frozenset(access.strides).union(*(i.axes for i in index))
        known = Node("load", (), var.aval.dtype, axes, source=source, access=access)
        loads[access.key()] = known
    return known


def _graph(stores: tuple[Store, ...]) -> Graph:
    """The graph of everything the stores need, with its reductions looked at together."""
    order: dict[Node, None] = {}
    stack: list[tuple[Node, bool]] = [(s.node, False) for s in reversed(stores)]
    while stack:
        node, ready = stack.pop()
        if node in order:
            continue
        if ready:
            order[node] = None
            continue
        stack.append((node, True))
        needs = list(node.operands)
        if node.access is not None and node.access.index is not None:
            needs.append(node.access.index)
        stack.extend((o, False) for o in reversed(needs) if o not in order)
    nodes = tuple(order)
    dots = [n for n in nodes if n.op == "dot_general"]
    if len(dots) > 1:
        raise NotFusable("two contractions")
    reductions = [n.reduced for n in nodes if n.is_reduction]
    if any(r != reductions[0] for r in reductions):
        raise NotFusable("reductions over different axes")
    reduced = reductions[0] if reductions else frozenset()
    return Graph(nodes, stores, dots[0] if dots else None, reduced)


def build_graph(
    equations: Sequence[Equation], views: Mapping[Var, StridedView], outputs: Sequence[Var]
) -> Graph:
    """The loop nest of equations that shall become one kernel.

    Args:
        equations: in program order.
        views: where each operand from outside the group lies in memory.
        outputs: variables of the group to write to buffers of their own.

    Raises:
        NotFusable: the equations do not fit one iteration space.
    """
    return _Builder(equations, views).build(outputs)


def rebuild(graph: Graph, axes: Mapping[Axis, Axis | None]) -> Graph:
    """The graph over other axes: each old axis becomes a new one, or vanishes (None).

    An axis vanishes when it is the outer part of a merged axis; the new axis keeps the stride of
    the innermost part.
    """

    def mapped(old: Iterable[Axis]) -> frozenset[Axis]:
        return frozenset(a for a in (axes.get(o, o) for o in old) if a is not None)

    def moved(access: Access) -> Access:
        strides = {
            new: stride
            for old, stride in access.strides.items()
            if (new := axes.get(old, old)) is not None
        }
        index = None if access.index is None else made[access.index]
        return Access(access.var, access.offset, strides, index, access.index_stride)

    made: dict[Node, Node] = {}
    for node in graph.nodes:
        made[node] = Node(
            node.op,
            tuple(made[o] for o in node.operands),
            node.dtype,
            mapped(node.axes),
            node.params,
            node.source,
            None if node.access is None else moved(node.access),
            node.value,
            mapped(node.reduced),
            tuple(map(mapped, node.roles)),
        )
    stores = tuple(
        Store(
            made[s.node],
            moved(s.access),
            tuple(a for a in (axes.get(o, o) for o in s.shape_axes) if a is not None),
            s.source,
        )
        for s in graph.stores
    )
    dot = None if graph.dot is None else made[graph.dot]
    return Graph(tuple(made[n] for n in graph.nodes), stores, dot, mapped(graph.reduced))


def merge_axes(graph: Graph, ordered: Sequence[Sequence[Axis]]) -> tuple[Graph, list[list[Axis]]]:
    """Merge neighbouring axes of each class that every access walks as one.

    Args:
        graph: the loop nest.
        ordered: classes of axes, each outer to inner; axes of different classes never merge.

    Returns:
        The graph over the merged axes, and the classes with merged axes in the same order.
    """
    accesses = [strides for strides, _ in graph.accesses()]
    renamed: dict[Axis, Axis | None] = {}
    classes: list[list[Axis]] = []
    for members in ordered:
        merged: list[Axis] = []
        run: list[Axis] = []
        for axis in members:
            if run and all(
                strides.get(run[-1], 0) == mul(strides.get(axis, 0), axis.size)
                for strides in accesses
            ):
                run.append(axis)
                continue
            if run:
                merged.append(_merge_run(run, renamed))
            run = [axis]
        if run:
            merged.append(_merge_run(run, renamed))
        classes.append(merged)
    if not renamed:
        return graph, classes
    return rebuild(graph, renamed), classes


def split_axis(graph: Graph, axis: Axis, inner: int) -> tuple[Graph, Axis, Axis]:
    """The graph with `axis` as two axes ``(size // inner, inner)``; a rest is left out."""
    outer_axis, inner_axis = Axis(floordiv(axis.size, inner)), Axis(inner)

    def split(access: Access) -> Access:
        strides = dict(access.strides)
        stride = strides.pop(axis, None)
        if stride is not None:
            strides[outer_axis], strides[inner_axis] = mul(stride, inner), stride
        index = None if access.index is None else made[access.index]
        return Access(access.var, access.offset, strides, index, access.index_stride)

    def both(axes: Iterable[Axis]) -> frozenset[Axis]:
        found: set[Axis] = set()
        for own in axes:
            found.update((outer_axis, inner_axis) if own is axis else (own,))
        return frozenset(found)

    made: dict[Node, Node] = {}
    for node in graph.nodes:
        made[node] = Node(
            node.op,
            tuple(made[o] for o in node.operands),
            node.dtype,
            both(node.axes),
            node.params,
            node.source,
            None if node.access is None else split(node.access),
            node.value,
            both(node.reduced),
            tuple(map(both, node.roles)),
        )
    stores = []
    for s in graph.stores:
        order: list[Axis] = []
        for own in s.shape_axes:
            order.extend((outer_axis, inner_axis) if own is axis else (own,))
        stores.append(Store(made[s.node], split(s.access), tuple(order), s.source))
    dot = None if graph.dot is None else made[graph.dot]
    nodes = tuple(made[n] for n in graph.nodes)
    return Graph(nodes, tuple(stores), dot, both(graph.reduced)), outer_axis, inner_axis


def _merge_run(run: list[Axis], renamed: dict[Axis, Axis | None]) -> Axis:
    if len(run) == 1:
        return run[0]
    size: Index = 1
    for axis in run:
        size = mul(size, axis.size)
        renamed[axis] = None
    made = Axis(size, run[-1].name)
    renamed[run[-1]] = made
    return made
