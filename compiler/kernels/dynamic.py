"""Kernels whose addresses come from memory: slices at run-time starts, and row scatters.

Starts are clamped and added up on a [1, 1] tile to one element offset, because an access pattern
takes one register; the data move once. A row scatter takes one row at a time, in order, and a row
that is dropped is a loop of no iterations.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from trnx.compiler.kernels.blocks import chunks
from trnx.compiler.kernels.elementwise import is_native
from trnx.compiler.kernels.emitter import Emitter, Params
from trnx.compiler.kernels.movement import copy_piece, emit_piece, piece
from trnx.compiler.kernels.registry import Kind, declare
from trnx.compiler.kernels.row import LoweredKernel
from trnx.compiler.kernels.scatter import EXACT_INDEX
from trnx.compiler.kernels.space import StridedView, to_indices
from trnx.compiler.kernels.support import require_static
from trnx.compiler.targets import Target
from trnx.compiler.tile.build import KernelBuilder
from trnx.compiler.tile.expr import Index, add, mul, symbols
from trnx.compiler.tile.ir import HbmAccess, Span, row_major
from trnx.compiler.tile.views import TileView
from trnx.core import Atom, Equation, Literal, LoweringError, Source, Var, message
from trnx.core.dtypes import int32

declare(Kind.DYNAMIC, "dynamic_slice", "dynamic_update_slice", "scatter_rows", "update_at")

ROW_BLOCK = 2048
"""Elements of a scattered row in SBUF at one time."""

_OPERATORS = {"mul": "multiply", "min": "minimum", "max": "maximum"}


def lower_dynamic(
    equation: Equation,
    views: Mapping[Var, StridedView],
    target: Target,
    source: Source | None,
    in_place: bool = False,
) -> LoweredKernel:
    """One kernel for a slice, an update of one, or a row scatter at run-time places.

    Args:
        equation: what to lower.
        views: where operands lie.
        target: the hardware table's row.
        source: the user's line.
        in_place: the result has the memory of the first operand, which needs no copy.

    Raises:
        LoweringError: a size is only known at run time.
    """
    name = equation.primitive.name
    require_static(equation, source)
    builder = KernelBuilder(name, target.name, source=source)
    lowering = _Dynamic(builder, Params(builder, {}), equation, views, target, source, in_place)
    for register in sorted(lowering.index_symbols()):
        builder.register_argument(register)
    {
        "dynamic_slice": lowering.slice,
        "dynamic_update_slice": lowering.update,
        "scatter_rows": lowering.scatter,
        "update_at": lowering.update,
    }[name]()
    return LoweredKernel(builder.finish(), lowering.params.variables)


class _Dynamic:
    """What the three kernels share."""

    def __init__(
        self,
        builder: KernelBuilder,
        params: Params,
        equation: Equation,
        views: Mapping[Var, StridedView],
        target: Target,
        source: Source | None,
        in_place: bool,
    ) -> None:
        self.builder = builder
        self.params = params
        self.equation = equation
        self.views = views
        self.target = target
        self.source = source
        self.in_place = in_place
        self.result = equation.outputs[0]

    def index_symbols(self) -> set[str]:
        """Registers that known starts read."""
        starts = to_indices(self.equation.params.get("start", ()))
        return set().union(*map(symbols, starts))

    def _name(self, var: Var, role: str = "in") -> str:
        return self.params.declare(var, role, var.aval.dtype, to_indices(var.aval.shape))

    def _scalar(self, atom: Var) -> HbmAccess:
        """An element as a [1, 1] access."""
        view = self.views[atom]
        return HbmAccess(self._name(view.root), view.offset, (Span(0, 1), Span(1, 1)))

    def _offset(
        self,
        atoms: Sequence[Atom],
        shape: Sequence[int],
        sizes: Sequence[int],
        strides: Sequence[Index],
    ) -> Index:
        """``Σ start·stride`` of the clamped starts: a number plus at most one register."""
        b = self.builder
        total: TileView | None = None
        known: Index = 0
        for atom, whole, size, stride in zip(atoms, shape, sizes, strides, strict=True):
            last = whole - size
            if last == 0:
                continue
            if isinstance(atom, Literal):
                known = add(known, mul(min(max(int(atom.value), 0), last), stride))
                continue
            if last >= EXACT_INDEX and not is_native(self.target):
                raise LoweringError(
                    message(
                        f"{self.equation.primitive.name} along an axis of {whole} elements",
                        self.source,
                        "Use an axis under 16,777,216, or device cpu",
                    )
                )
            start = b.sbuf((1, 1), int32)
            b.dma_copy(start, self._scalar(atom))
            b.tensor_scalar(start, start, 0, last, op0="maximum", op1="minimum")
            if stride != 1:
                b.tensor_scalar(start, start, int(str(stride)), op0="multiply")
            if total is None:
                total = start
            else:
                b.tensor_tensor(total, total, start, op="add")
        return known if total is None else add(known, b.load_register(total))

    def _copy(self, origin: StridedView | Literal, offset: Index, spans: Sequence[Span]) -> None:
        graph = piece(origin, self.result, offset, spans, self.source)
        if graph is not None:
            emit_piece(self.builder, graph, self.target, self.params)

    def _view(self, atom: Atom) -> StridedView | Literal:
        return atom if isinstance(atom, Literal) else self.views[atom]

    def slice(self) -> None:
        """A copy from a view whose offset holds the registers."""
        x, *starts = self.equation.inputs
        assert isinstance(x, Var)
        shape, sizes = _static(x), _static(self.result)
        view = self.views[x]
        strides = [span.stride for span in view.spans]
        offset = add(view.offset, self._offset(starts, shape, sizes, strides))
        spans = tuple(Span(s.stride, n) for s, n in zip(view.spans, sizes, strict=True))
        self._copy(StridedView(view.root, offset, spans), 0, row_major(tuple(sizes)))

    def update(self) -> None:
        """A copy of the operand, then one of the update to where the registers say."""
        x, update, *starts = self.equation.inputs
        shape, sizes = _static(self.result), _static(update)
        dense = row_major(tuple(shape))
        if shape != sizes and not self.in_place:
            self._copy(self._view(x), 0, dense)
        strides = [span.stride for span in dense]
        if "start" in self.equation.params:
            offset: Index = 0
            for start, stride in zip(
                to_indices(self.equation.params["start"]), strides, strict=True
            ):
                offset = add(offset, mul(start, stride))
        else:
            offset = self._offset(starts, shape, sizes, strides)
        spans = [Span(s.stride, n) for s, n in zip(dense, sizes, strict=True)]
        self._copy(self._view(update), offset, spans)

    def scatter(self) -> None:
        """A copy of the operand, then row after row of the updates."""
        x, index, flag, updates = self.equation.inputs
        assert isinstance(x, Var) and isinstance(updates, Var)
        result = self._name(self.result, "inout")
        graph = copy_piece(self.views[x], self.result, self.source)
        if graph is None:
            return
        if not self.in_place:
            emit_piece(self.builder, graph, self.target, self.params)
        b = self.builder
        width = _static(self.result)[1]
        rows = self.views[updates]
        row_name = self._name(rows.root)
        dtype = self.result.aval.dtype
        op = _OPERATORS.get(self.equation.params["kind"])
        with b.loop("i", 0, _static(updates)[0]) as i:
            row, valid = self._entry(index, i), self._entry(flag, i)
            with b.loop("valid", 0, valid):
                for first, many, most in chunks(b, "j", width, ROW_BLOCK):
                    tile = Emitter.cut(b.sbuf((1, most), dtype), (1, many))
                    start = add(rows.offset, mul(i, rows.spans[0].stride))
                    step = rows.spans[1].stride
                    origin = add(start, mul(first, step))
                    b.dma_copy(tile, HbmAccess(row_name, origin, (Span(0, 1), Span(step, many))))
                    where = HbmAccess(
                        result, add(mul(row, width), first), (Span(0, 1), Span(1, many))
                    )
                    if op is not None:
                        old = Emitter.cut(b.sbuf((1, most), dtype), (1, many))
                        b.dma_copy(old, where)
                        b.tensor_tensor(tile, old, tile, op=op)
                    b.dma_copy(where, tile)

    def _entry(self, atom: Atom, i: Index) -> Index:
        """Element i of a vector of int32 in a register."""
        if isinstance(atom, Literal):
            return int(atom.value)
        view = self.views[atom]
        offset = add(view.offset, mul(i, view.spans[0].stride))
        return self.builder.load_register(HbmAccess(self._name(view.root), offset, (Span(1, 1),)))


def _static(atom: Atom) -> list[int]:
    return [int(str(size)) for size in atom.aval.shape]
