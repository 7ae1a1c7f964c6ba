"""What names and expressions mean while a kernel's source is read."""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NoReturn, TypeAlias

import numpy as np

from trnx.compiler.nki.names import DTYPES, OPERATORS
from trnx.compiler.tile.analysis import multiples
from trnx.compiler.tile.expr import Expr, Index, add, mul, scale
from trnx.compiler.tile.ir import HbmAccess, Span, TileAccess
from trnx.compiler.tile.views import HbmView, TileView
from trnx.core.errors import UnsupportedError, message
from trnx.core.source import current_source

MODULES: Final = {
    "nki": "nki",
    "nki.isa": "nki.isa",
    "nki.language": "nki.language",
    "trnx.nki": "nki",
    "trnx.nki.isa": "nki.isa",
    "trnx.nki.language": "nki.language",
}
"""Importable module to the NKI module it stands for."""

TILE_SIZES: Final[dict[str, int]] = {
    "pmax": 128,
    "psum_bank_fmax": 512,
    "psum_bank_fmax_bytes": 2048,
    "psum_num_banks": 8,
    "gemm_stationary_fmax": 128,
    "gemm_moving_fmax": 512,
}


def refuse(cause: str, remedy: str) -> NoReturn:
    """Raise the reader's error at the line that is being read."""
    raise UnsupportedError(message(f"NKI kernel: {cause}", current_source(), remedy))


@dataclass(frozen=True, slots=True)
class Module:
    """An imported NKI module, or one of its enum classes (``nki.isa.engine``)."""

    name: str


@dataclass(frozen=True, slots=True)
class Operator:
    """``nl.add``, ``nl.exp`` …: an ALU operator or activation function by its tile IR name."""

    name: str


@dataclass(frozen=True, slots=True)
class Member:
    """A member of an ``nki.isa`` enum, or a memory region of ``nki.language``."""

    kind: str
    name: str

    def __call__(self, *args: Any, **kwargs: Any) -> NoReturn:
        """Functions of NKI are read from a kernel's source, never run as Python."""
        refuse(f"{self.name}() is called outside a kernel", "Call it in a @nki.jit function")


@dataclass(frozen=True, slots=True)
class Register:
    """A register; unlike a loop index it has no arithmetic."""

    value: Expr


@dataclass(frozen=True, slots=True)
class Repeated:
    """``repeat(tile, shape)``: the scalar of an exact integer instruction."""

    column: Any


@dataclass(frozen=True, slots=True)
class Column:
    """``column(value, rows, dtype)``: a constant for ``Repeated``."""

    value: int


@dataclass(frozen=True, slots=True)
class Function:
    """A function of the source with the scope it was defined in."""

    node: ast.FunctionDef
    scope: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class TensorType:
    """Shape and dtype of an HBM argument."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]


Method: TypeAlias = Callable[..., Any]
View: TypeAlias = "HbmView | TileView"

_ENUMS: Final = {
    "engine": ("unknown", "tensor", "vector", "scalar", "gpsimd", "sync", "dma"),
    "dge_mode": ("unknown", "swdge", "hwdge", "none"),
    "oob_mode": ("error", "skip"),
    "reduce_cmd": ("idle", "reset", "reduce", "reset_reduce", "load_reduce"),
    "matmul_perf_mode": ("none", "double_row"),
}
_REGIONS: Final = ("sbuf", "psum", "hbm", "private_hbm", "shared_hbm")


def module_attribute(module: Module, name: str) -> Any:
    """What ``module.name`` is: a value, or a ``Member("function", …)`` for a callable."""
    kind = module.name.rpartition(".")[2]
    if module.name.startswith("nki.isa.") and kind in _ENUMS:
        if name not in _ENUMS[kind]:
            refuse(f"nisa.{kind} has no member '{name}'", f"Use one of {', '.join(_ENUMS[kind])}")
        return Member(kind, name)
    if module.name == "nki.isa":
        return Module(f"nki.isa.{name}") if name in _ENUMS else Member("nki.isa", name)
    if module.name == "nki.language.tile_size":
        if name not in TILE_SIZES:
            refuse(f"nl.tile_size.{name} is not known", f"Use one of {', '.join(TILE_SIZES)}")
        return TILE_SIZES[name]
    if module.name == "nki.language":
        if name == "tile_size":
            return Module("nki.language.tile_size")
        if name in DTYPES:
            return DTYPES[name]
        if name in _REGIONS:
            return Member("memory", name)
        if name in OPERATORS:
            return Operator(OPERATORS[name])
        return Member("nki.language", name)
    return Member(module.name, name)


def view_attribute(view: View, name: str) -> Any:
    """A property or bound method of a tensor."""
    shape = view.shape
    if name == "shape":
        return tuple(shape)
    if name == "dtype":
        return view.dtype
    if name == "ndim":
        return len(shape)
    if name == "size":
        return prod_index(shape)
    if name in _METHODS:
        method = _METHODS[name]
        return lambda *args, **kwargs: method(view, *args, **kwargs)
    refuse(f"a tensor has no '{name}' here", f"Use one of {', '.join(_METHODS)}")


def prod_index(shape: Sequence[Index]) -> Index:
    """Product of sizes."""
    total: Index = 1
    for size in shape:
        total = mul(total, size)
    return total


def _reshape(view: View, shape: Sequence[Index]) -> View:
    return view.reshape(*shape)


def _permute(view: View, dims: Sequence[int]) -> View:
    return view.permute(*dims)


def _broadcast(view: View, dim: int, size: Index) -> View:
    return view.broadcast(dim, size)


def _expand_dim(view: View, dim: int) -> View:
    return view[(*[slice(None)] * dim, None)]


def _slice(view: View, dim: int, start: Index, end: Index, step: int = 1) -> View:
    return view[(*[slice(None)] * dim, slice(start, end, step))]


def _select(view: View, dim: int, index: Any) -> View:
    if isinstance(index, Register | TileView | HbmView):
        refuse("select() with a run-time index", "Use .ap(scalar_offset=...)")
    return view[(*[slice(None)] * dim, index)]


def _vector_select(view: View, dim: int, vector_offset: TileView) -> View:
    if dim != 0 or not isinstance(view, HbmView):
        refuse("vector_select() along another axis than 0 of HBM", "Select rows of an HBM tensor")
    return view.indexed(vector_offset)


def _view(view: View, dtype: np.dtype[Any]) -> View:
    if (
        dtype.itemsize != view.dtype.itemsize
        or dtype.kind not in "iu"
        or view.dtype.kind not in "iu"
    ):
        refuse(
            f"view({dtype}) of a {view.dtype} tensor",
            "Reinterpret int32 predicates as uint32 only; use a tile of the dtype you need",
        )
    return view


def _ap(
    view: View,
    pattern: Sequence[Sequence[Index]],
    offset: Index | None = None,
    scalar_offset: Any = None,
    vector_offset: Any = None,
    indirect_dim: int = 0,
    dtype: Any = None,
) -> View:
    if dtype is not None and dtype != view.dtype:
        refuse("ap(dtype=...)", "Use a tile of the dtype you need")
    base: Index = 0 if offset is None else offset
    if isinstance(view, TileView) and offset is None:
        base = add(view.offset, view.start * view.tile.free_size)
    elif isinstance(view, HbmView) and offset is None:
        base = view.offset
    spans = tuple(Span(stride, count) for stride, count in pattern)
    moved: Index = 0
    if scalar_offset is not None:
        if not isinstance(scalar_offset, Register):
            refuse("scalar_offset is a tile", "Load it into a register with nisa.register_load")
        moved = mul(scalar_offset.value, prod_index(view.shape[indirect_dim + 1 :]))
    if isinstance(view, HbmView):
        made = HbmView(view.param, add(base, moved), spans)
        if vector_offset is None:
            return made
        if indirect_dim != 0:
            refuse("vector_offset with another indirect_dim than 0", "Use indirect_dim=0")
        row = Span(prod_index(view.shape[1:]), spans[0].count)
        indexed = HbmView(view.param, base, (row, *spans[1:]))
        return HbmView(view.param, base, indexed.spans, vector_offset.access)
    if vector_offset is not None:
        refuse("vector_offset on an on-chip tile", "Index rows of an HBM tensor")
    if spans[0].stride != view.tile.free_size and spans[0].count != 1:
        refuse(
            f"the partition stride {spans[0].stride} of tile '{view.tile.name}' is not its "
            f"{view.tile.free_size} elements per partition",
            "Partitions are contiguous",
        )
    start, rest = multiples(base, view.tile.free_size)
    if not isinstance(start, int):
        refuse(f"partition start {start}", "Choose partitions by constants")
    free = spans[1:] or (Span(1, 1),)
    return TileView(view.tile, start, spans[0].count, add(rest, moved), free)


_METHODS: Final[dict[str, Method]] = {
    "ap": _ap,
    "reshape": _reshape,
    "permute": _permute,
    "broadcast": _broadcast,
    "expand_dim": _expand_dim,
    "slice": _slice,
    "select": _select,
    "vector_select": _vector_select,
    "view": _view,
}


def as_access(value: Any) -> TileAccess | HbmAccess | Any:
    """The access of a view; other values as they are."""
    return value.access if isinstance(value, HbmView | TileView) else value


def negated(value: Any) -> Any:
    """``-value`` for a number or an index."""
    return scale(value, -1) if isinstance(value, Expr) else -value
