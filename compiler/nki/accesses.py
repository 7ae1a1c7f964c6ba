"""Access patterns as NKI text: slices of the declared shape where they say it, else ``.ap()``.

A candidate text is kept only if reading it gives the very access it stands for, so slices with
odd strides, broadcasts and reshaped walks fall back to the explicit pattern.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod

from trnx.compiler.nki.names import INFINITY, NAN
from trnx.compiler.tile.analysis import split_by_dimension
from trnx.compiler.tile.expr import Atom, Call, Expr, Index, Symbol, add, quotient, scale, symbols
from trnx.compiler.tile.ir import HbmAccess, Param, Span, Tile, TileAccess, row_major
from trnx.compiler.tile.views import HbmView, Key, TileView
from trnx.core.errors import TileError


class CannotPrint(Exception):
    """Something NKI has no words for; ``cause`` and ``remedy`` make the error text."""

    def __init__(self, cause: str, remedy: str) -> None:
        super().__init__(cause)
        self.cause = cause
        self.remedy = remedy


@dataclass(slots=True)
class Names:
    """What is in scope while printing: run-time symbols and the variables that hold atoms."""

    dynamic: set[str] = field(default_factory=set)
    hoisted: dict[Call, str] = field(default_factory=dict)

    def is_dynamic(self, value: Index) -> bool:
        """Whether a value is known only on the device."""
        return bool(symbols(value) & self.dynamic)

    def text(self, value: Index) -> str:
        """A trace-time expression as Python."""
        if isinstance(value, int):
            return str(value)
        if self.is_dynamic(value):
            raise CannotPrint(
                f"the expression {value} is computed from a register",
                "NKI registers have no arithmetic; use the register itself times a constant",
            )
        parts: list[str] = []
        for atom, coefficient in value.terms:
            body = self._atom(atom)
            if abs(coefficient) != 1:
                body = f"{abs(coefficient)} * {body}"
            if not parts:
                parts.append(body if coefficient > 0 else f"-{body}")
            else:
                parts.append(f"{'+' if coefficient > 0 else '-'} {body}")
        if value.const:
            parts.append(f"{'+' if value.const > 0 else '-'} {abs(value.const)}")
        if value.const > 0 and value.terms[0][1] < 0:
            # "1000 - 128 * i" reads better than "-128 * i + 1000".
            return f"{value.const} {self.text(add(value, -value.const)).replace('-', '- ', 1)}"
        return " ".join(parts)

    def _atom(self, atom: Atom) -> str:
        if isinstance(atom, Symbol):
            return atom.name
        if atom in self.hoisted:
            return self.hoisted[atom]
        return self.call_text(atom)

    def call_text(self, atom: Call) -> str:
        """``min(…)``, ``max(…)``, or a parenthesised ``//``, ``%`` or ``*``."""
        left, right = (self.text(a) for a in atom.args)
        if atom.op in ("min", "max"):
            return f"{atom.op}({left}, {right})"
        sign = {"floordiv": "//", "mod": "%", "mul": "*"}[atom.op]
        left, right = (f"({t})" if " " in t else t for t in (left, right))
        return f"({left} {sign} {right})"


def number_text(value: int | float) -> str:
    """A Python number; infinities and NaN by their constants."""
    if isinstance(value, bool):
        return str(int(value))
    if isinstance(value, float):
        if value != value:
            return NAN
        if value in (float("inf"), float("-inf")):
            return INFINITY if value > 0 else f"-{INFINITY}"
    return repr(value)


def tile_text(tile: Tile, access: TileAccess, names: Names) -> str:
    """An access to an on-chip tile."""
    dims = Param(tile.name, tile.shape[1:], tile.dtype, "inout")
    static, register = _split_register(access.offset, names)
    _refuse_dynamic(access.partitions, access.spans, names)
    if register is None:
        whole = TileView(tile, 0, tile.shape[0], 0, row_major(tile.shape[1:]))
        if access == whole.access:
            return tile.name
        free = HbmAccess(tile.name, access.offset, access.spans)
        for keys in _keys(dims, free):
            rows = slice(access.start, add(access.start, access.partitions))
            text = _view_text(tile.name, [rows, *keys], names)
            if _agrees(lambda k=keys, r=rows: whole[(r, *k)].access, access):  # type: ignore[misc]
                return text
    pattern = [[tile.free_size, access.partitions], *([s.stride, s.count] for s in access.spans)]
    offset = add(static, access.start * tile.free_size)
    base, dim = tile.name, 0
    if register is not None:
        base, dim = _indirect_base(tile.name, tile.shape, register[1], 1)
    return _ap_text(base, pattern, offset, names, register and register[0], None, dim)


def hbm_text(param: Param, access: HbmAccess, names: Names, index: str | None) -> str:
    """An access to an HBM tensor; ``index`` is the text of its index tile."""
    static, register = _split_register(access.offset, names)
    counted = access.spans if access.index is None else access.spans[1:]
    _refuse_dynamic(1, counted, names)
    if register is None and access.index is None:
        whole = _whole(param)
        if access == whole.access:
            return param.name
        for keys in _keys(param, access):
            text = _view_text(param.name, keys, names)
            if _agrees(lambda k=keys: whole[tuple(k)].access, access):  # type: ignore[misc]
                return text
    pattern = [[s.stride, s.count] for s in access.spans]
    shape = tuple(int(str(s)) for s in param.shape)
    base, dim = param.name, 0
    if access.index is not None:
        if register is not None:
            raise CannotPrint(
                "an access has both an index tile and a register offset",
                "Add the register to the index tile first",
            )
        row = access.spans[0].stride
        if not isinstance(row, int):
            raise CannotPrint(f"indexed rows are {row} elements apart", "Use a constant row size")
        base, dim = _indirect_base(param.name, shape, row, 0)
        if dim != 0:
            base, dim = _reshaped(param.name, shape, row, 0)
    elif register is not None:
        base, dim = _indirect_base(param.name, shape, register[1], 0)
    return _ap_text(base, pattern, static, names, register and register[0], index, dim)


def _whole(param: Param) -> HbmView:
    pairs = zip(param.element_strides, param.shape, strict=True)
    return HbmView(param, 0, tuple(Span(s, c) for s, c in pairs))


def _agrees(view: Callable[[], object], access: object) -> bool:
    try:
        return view() == access
    except TileError:
        return False


def _keys(param: Param, access: HbmAccess) -> list[list[Key]]:
    """Candidate slices, one entry per declared dimension, that may denote the access."""
    ranges = split_by_dimension(param, access)
    if ranges is None:
        return []
    keys: list[Key] = []
    for walked, size in zip(ranges, param.shape, strict=True):
        if len(walked.spans) > 1:
            return []
        if not walked.spans:
            keys.append(slice(walked.start, add(walked.start, 1)))
            continue
        step, count = walked.spans[0].stride, walked.spans[0].count
        if not isinstance(step, int) or step < 1:
            return []
        stop = add(walked.start, scale(count, step))
        if isinstance(stop, int) and isinstance(size, int):
            stop = min(stop, size)
        keys.append(slice(walked.start, stop, step if step != 1 else None))
    # Dimensions the access does not walk: a slice of one element, or an integer that drops it.
    single = [d for d, walked in enumerate(ranges) if not walked.spans]
    candidates = [keys]
    if single:
        candidates.append([k.start if d in single else k for d, k in enumerate(keys)])
        for drop in single:
            candidates.append([k.start if d == drop else k for d, k in enumerate(keys)])
    return candidates


def _view_text(name: str, keys: Sequence[Key], names: Names) -> str:
    shown = []
    for key in keys:
        if isinstance(key, slice):
            start, stop = names.text(key.start), names.text(key.stop)
            colon = " : " if " " in start + stop else ":"
            step = "" if key.step is None else f"{colon}{key.step}"
            shown.append(f"{start}{colon}{stop}{step}")
        else:
            shown.append(names.text(key))
    return f"{name}[{', '.join(shown)}]"


def _split_register(offset: Index, names: Names) -> tuple[Index, tuple[str, int] | None]:
    """``(trace-time part, (register, elements per step))`` of an offset."""
    if not names.is_dynamic(offset):
        return offset, None
    assert isinstance(offset, Expr)
    moving = [(a, c) for a, c in offset.terms if names.is_dynamic(Expr(0, ((a, 1),)))]
    if len(moving) != 1 or not isinstance(moving[0][0], Symbol):
        raise CannotPrint(
            f"the offset {offset} is more than one register times a constant",
            "NKI takes one register per access; compute the offset into one register on the device",
        )
    atom, coefficient = moving[0]
    assert isinstance(atom, Symbol)
    return add(offset, Expr(0, ((atom, -coefficient),))), (atom.name, coefficient)


def _refuse_dynamic(partitions: Index, spans: Sequence[Span], names: Names) -> None:
    for value in (partitions, *(s.count for s in spans), *(s.stride for s in spans)):
        if names.is_dynamic(value):
            raise CannotPrint(
                f"an access has the run-time size {value}",
                "NKI sizes are known when the kernel is traced; compile for one shape",
            )


def _indirect_base(name: str, shape: Sequence[int], stride: int, first: int) -> tuple[str, int]:
    """``(tensor text, indirect_dim)`` so that one step of the offset is ``stride`` elements."""
    for dim in range(first, len(shape)):
        if prod(shape[dim + 1 :]) == stride:
            return name, dim
    return _reshaped(name, shape, stride, first)


def _reshaped(name: str, shape: Sequence[int], stride: int, first: int) -> tuple[str, int]:
    total = prod(shape[first:])
    if stride < 1 or quotient(total, stride) is None:
        raise CannotPrint(
            f"a run-time offset in steps of {stride} elements does not divide '{name}' "
            f"{list(shape)}",
            "Pad the tensor so that its size is a multiple of the step",
        )
    kept = ", ".join(map(str, shape[:first]))
    sizes = f"{kept}, {total // stride}, {stride}" if first else f"{total // stride}, {stride}"
    return f"{name}.reshape(({sizes}))", first


def _ap_text(
    base: str,
    pattern: Sequence[Sequence[Index]],
    offset: Index,
    names: Names,
    register: str | None,
    index: str | None,
    dim: int,
) -> str:
    pairs = ", ".join(f"[{names.text(s)}, {names.text(c)}]" for s, c in pattern)
    text = f"{base}.ap(pattern=[{pairs}]"
    if offset != 0:
        text += f", offset={names.text(offset)}"
    if register is not None:
        text += f", scalar_offset={register}, indirect_dim={dim}"
    if index is not None:
        text += f", vector_offset={index}, indirect_dim={dim}"
    return text + ")"


def hoistable(values: Mapping[Call, None]) -> list[Call]:
    """Atoms to give names to, inner ones first, in order of first use."""
    return sorted(values, key=_depth)


def _depth(atom: Call) -> int:
    inner = [
        _depth(a)
        for arg in atom.args
        if not isinstance(arg, int)
        for a, _ in arg.terms
        if isinstance(a, Call)
    ]
    return 1 + max(inner, default=0)
