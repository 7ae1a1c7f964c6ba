"""Reading and writing at places that tensors name: index, gather, scatter, masks, embedding.

Moves go through the extension's gather and scatter of elements, which refuse places outside the
axis; sums go through the compiler's scatter-add.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, TypeAlias

import torch
from torch import Tensor

import trnx.lax as lax
import trnx.numpy as np
from trnx.ops import functions
from trnx_torch import _loader, registration
from trnx_torch.eager.composite import axes, define
from trnx_torch.eager.factories import steps
from trnx_torch.eager.program import run
from trnx_torch.registration import NoKernel

Array = Any
Index: TypeAlias = "Tensor | None"

_MASKS = frozenset({torch.bool, torch.uint8})
_INDICES = frozenset({torch.int8, torch.int16, torch.int32, torch.int64})


def _wide(index: Tensor) -> Tensor:
    """Contiguous int64 indices."""
    if index.dtype not in _INDICES:
        raise NoKernel("torch's kernel has the error text")
    return index.to(torch.int64).contiguous()


def _from_end(index: Tensor, size: int) -> Tensor:
    """Negative places count from the end."""
    return torch.where(index < 0, index + size, index)


def take_rows(source: Tensor, index: Tensor, dim: int) -> Tensor:
    """Slices of ``source`` along ``dim``; the axes of ``index`` (int64) take its place."""
    shape = source.shape
    outer, inner = math.prod(shape[:dim]), math.prod(shape[dim + 1 :])
    result = torch.empty(
        (*shape[:dim], *index.shape, *shape[dim + 1 :]), dtype=source.dtype, device=source.device
    )
    if result.numel():
        _loader.extension().gather_elements(
            result.view(outer, index.numel(), inner),
            source.contiguous().view(outer, shape[dim], inner),
            index.contiguous(),
            False,
        )
    return result


def put_rows(target: Tensor, index: Tensor, source: Tensor, dim: int) -> None:
    """Write slices along ``dim`` of a contiguous ``target``; the last of equal places stays."""
    shape = target.shape
    outer, inner = math.prod(shape[:dim]), math.prod(shape[dim + 1 :])
    if source.numel():
        _loader.extension().scatter_elements(
            target.view(outer, shape[dim], inner),
            index.contiguous(),
            source.contiguous().view(outer, index.numel(), inner),
            False,
        )


def add_rows(target: Tensor, index: Tensor, source: Tensor) -> Tensor:
    """``target`` [n, ...] plus rows of ``source`` at ``index``; places outside are left out."""
    if not source.numel():
        return target.clone()
    rows = target.reshape(target.shape[0], -1)

    def add(x: Array, at: Array, rows: Array) -> Array:
        return lax.scatter_add(x, np.astype(at, np.int32), rows, 0)

    parts = source.reshape(index.numel(), -1)
    return run("index_add", add, [rows, index.reshape(-1), parts])[0].view(target.shape)


# ---------------------------------------------------------------- index and index_put
def _expanded(self: Tensor, indices: Sequence[Index]) -> list[Index]:
    """Index tensors on the device, masks as the places where they hold."""
    expanded: list[Index] = []
    for index in indices:
        if index is None:
            expanded.append(None)
        elif index.dtype in _MASKS:
            place = len(expanded)
            if index.shape != self.shape[place : place + index.ndim]:
                raise NoKernel("torch's kernel has the error text")
            expanded += torch.nonzero(index.to(self.device)).unbind(1)
        else:
            expanded.append(_wide(index.to(self.device)))
    if len(expanded) > self.ndim:
        raise NoKernel("torch's kernel has the error text")
    return expanded


def _places(self: Tensor, indices: Sequence[Index]) -> tuple[list[int], Tensor, int]:
    """The indexed axes, the place in their product for each result, the product."""
    picked = [d for d, index in enumerate(indices) if index is not None]
    try:
        together = torch.broadcast_tensors(*(i for i in indices if i is not None))
    except RuntimeError as error:
        raise NoKernel("torch's kernel has the error text") from error
    size = 1
    place: Tensor | None = None
    for d, index in zip(picked, together, strict=True):
        wrapped = _from_end(index, self.shape[d])
        if place is None:
            place = wrapped
        else:
            # Out of its own axis it could still be inside the product.
            inside = (wrapped >= 0) & (wrapped < self.shape[d])
            place = torch.where(inside & (place >= 0), place * self.shape[d] + wrapped, -1)
        size *= self.shape[d]
    if place is None:
        raise NoKernel("no index")
    return picked, place.contiguous(), size


@define("index.Tensor", "_unsafe_index.Tensor", every_dtype=True)
def _index(self: Tensor, indices: Sequence[Index]) -> Tensor:
    expanded = _expanded(self, indices)
    picked, place, size = _places(self, expanded)
    rest = [d for d in range(self.ndim) if d not in picked]
    if size == 0 and place.numel():
        raise NoKernel("torch's kernel has the error text")
    rows = self.permute(*picked, *rest).reshape(size, -1) if rest else self.permute(picked)
    rows = rows.reshape(size, math.prod(self.shape[d] for d in rest))
    result = take_rows(rows, place, 0).view(*place.shape, *(self.shape[d] for d in rest))
    if picked == list(range(picked[0], picked[0] + len(picked))) and picked[0]:
        lead = place.ndim
        order = [
            *range(lead, lead + picked[0]),
            *range(lead),
            *range(lead + picked[0], result.ndim),
        ]
        result = result.permute(order).contiguous()
    return result


def _index_put_(
    self: Tensor,
    indices: Sequence[Index],
    values: Tensor,
    accumulate: bool = False,
    unsafe: bool = False,
) -> Tensor:
    if values.dtype != self.dtype:
        raise NoKernel("torch's kernel has the error text")
    expanded = _expanded(self, indices)
    picked, place, size = _places(self, expanded)
    if place.numel() == 0:
        return self
    rest = [d for d in range(self.ndim) if d not in picked]
    lead = place.ndim
    shape = [*place.shape, *(self.shape[d] for d in rest)]
    adjacent = picked == list(range(picked[0], picked[0] + len(picked))) and picked[0] > 0
    if adjacent:
        before = [self.shape[d] for d in range(picked[0])]
        after = [self.shape[d] for d in range(picked[-1] + 1, self.ndim)]
        wide = values.to(self.device).expand(*before, *place.shape, *after)
        k = len(before)
        order = [*range(k, k + lead), *range(k), *range(k + lead, wide.ndim)]
        wide = wide.permute(order)
    else:
        wide = values.to(self.device).expand(shape)
    moved = self.permute(*picked, *rest)
    rows = moved.reshape(size, math.prod(self.shape[d] for d in rest))
    flat = wide.reshape(place.numel(), rows.shape[1])
    if accumulate:
        _check(place, size)
        moved.copy_(add_rows(rows, place, flat).view(moved.shape))
        return self
    put_rows(rows, place.view(-1), flat, 0)
    if rows.data_ptr() != self.data_ptr() or not moved.is_contiguous():
        moved.copy_(rows.view(moved.shape))
    return self


def _check(place: Tensor, size: int) -> None:
    """Refuse places outside ``size``: a gather from as many empty bytes moves nothing else."""
    if place.numel():
        take_rows(torch.zeros(size, 1, dtype=torch.bool, device=place.device), place.view(-1), 0)


def _index_put(
    self: Tensor, indices: Sequence[Index], values: Tensor, accumulate: bool = False
) -> Tensor:
    return _index_put_(self.clone(), indices, values, accumulate)


# ---------------------------------------------------------------- one axis
@define("index_select.default", every_dtype=True)
def _index_select(self: Tensor, dim: int, index: Tensor) -> Tensor:
    if index.ndim > 1:
        raise NoKernel("torch's kernel has the error text")
    if self.ndim == 0:
        return take_rows(self.view(1), _wide(index).reshape(-1), 0).view(())
    return take_rows(self, _wide(index).reshape(-1), axes(dim, self.ndim)[0])


@define("embedding.default", every_dtype=True)
def _embedding(
    weight: Tensor,
    indices: Tensor,
    padding_idx: int = -1,
    scale_grad_by_freq: bool = False,
    sparse: bool = False,
) -> Tensor:
    if weight.ndim != 2:
        raise NoKernel("torch's kernel has the error text")
    return take_rows(weight, _wide(indices), 0)


@define("embedding_dense_backward.default")
def _embedding_dense_backward(
    grad_output: Tensor,
    indices: Tensor,
    num_weights: int,
    padding_idx: int,
    scale_grad_by_freq: bool,
) -> Tensor:
    width = grad_output.shape[-1]
    zeros = torch.zeros(num_weights, width, dtype=grad_output.dtype, device=grad_output.device)
    place = _wide(indices).reshape(-1)
    grad = grad_output.reshape(-1, width)
    if scale_grad_by_freq:
        ones = torch.ones(place.numel(), 1, dtype=torch.float32, device=grad.device)
        count = add_rows(torch.zeros(num_weights, 1, device=grad.device), place, ones)
        grad = (grad / take_rows(count, place, 0)).to(grad.dtype)
    if padding_idx >= 0:
        place = torch.where(place == padding_idx, -1, place)
    return add_rows(zeros, place, grad)


@define("take.default", every_dtype=True)
def _take(self: Tensor, index: Tensor) -> Tensor:
    flat = self.reshape(-1)
    if index.dtype is not torch.int64 or (index.numel() and not flat.numel()):
        raise NoKernel("torch's kernel has the error text")
    return take_rows(flat, _from_end(index, flat.numel()), 0)


@define("put.default", every_dtype=True)
def _put(self: Tensor, index: Tensor, source: Tensor, accumulate: bool = False) -> Tensor:
    if index.dtype is not torch.int64 or source.dtype != self.dtype:
        raise NoKernel("torch's kernel has the error text")
    if index.numel() != source.numel():
        raise NoKernel("torch's kernel has the error text")
    flat = self.clone(memory_format=torch.contiguous_format).view(-1)
    if index.numel() == 0:
        return flat.view(self.shape)
    place = _from_end(index, flat.numel()).reshape(-1)
    if accumulate:
        _check(place, flat.numel())
        return add_rows(flat.view(-1, 1), place, source.reshape(-1)).view(self.shape)
    put_rows(flat, place, source.reshape(-1), 0)
    return flat.view(self.shape)


def _rowed(self: Tensor, dim: int, index: Tensor) -> tuple[Tensor, int, Tensor]:
    if index.ndim > 1:
        raise NoKernel("torch's kernel has the error text")
    target = self.clone(memory_format=torch.contiguous_format)
    target = target.view(1) if self.ndim == 0 else target
    return target, axes(dim, target.ndim)[0], _wide(index).reshape(-1)


@define("index_copy.default", every_dtype=True)
def _index_copy(self: Tensor, dim: int, index: Tensor, source: Tensor) -> Tensor:
    target, axis, place = _rowed(self, dim, index)
    if source.dtype != self.dtype or source.numel() != math.prod(
        place.numel() if d == axis else n for d, n in enumerate(target.shape)
    ):
        raise NoKernel("torch's kernel has the error text")
    put_rows(target, place, source, axis)
    return target.view(self.shape)


@define("index_fill.int_Scalar", "index_fill.int_Tensor", every_dtype=True)
def _index_fill(self: Tensor, dim: int, index: Tensor, value: Any) -> Tensor:
    target, axis, place = _rowed(self, dim, index)
    shape = [place.numel() if d == axis else n for d, n in enumerate(target.shape)]
    source = torch.empty(shape, dtype=self.dtype, device=self.device)
    if isinstance(value, Tensor):
        source.copy_(value.to(self.device).expand(shape))
    else:
        source.fill_(value)
    put_rows(target, _from_end(place, target.shape[axis]), source, axis)
    return target.view(self.shape)


@define("index_add.default")
def _index_add(
    self: Tensor, dim: int, index: Tensor, source: Tensor, *, alpha: float = 1
) -> Tensor:
    target, axis, place = _rowed(self, dim, index)
    if source.dtype != self.dtype:
        raise NoKernel("torch's kernel has the error text")
    shape = [place.numel() if d == axis else n for d, n in enumerate(target.shape)]
    part = source.view(shape) if source.ndim == 0 or self.ndim == 0 else source
    if list(part.shape) != shape:
        raise NoKernel("torch's kernel has the error text")
    part = part if alpha == 1 else part * alpha
    _check(place, target.shape[axis])
    moved = target.movedim(axis, 0).contiguous()
    result = add_rows(moved, place, part.movedim(axis, 0).contiguous())
    return result.movedim(0, axis).reshape(self.shape)


# ---------------------------------------------------------------- gather and scatter
def _along(whole: Tensor, index: Tensor, axis: int) -> Tensor:
    """The part of ``whole`` that meets the index, off its axis."""
    part = whole
    for d, size in enumerate(index.shape):
        if d != axis:
            if size > part.shape[d]:
                raise NoKernel("torch's kernel has the error text")
            part = part.narrow(d, 0, size)
    return part


def _box(tensor: Tensor, axis: int) -> Tensor:
    shape = tensor.shape
    return tensor.view(math.prod(shape[:axis]), shape[axis], math.prod(shape[axis + 1 :]))


@define("gather.default", every_dtype=True)
def _gather(self: Tensor, dim: int, index: Tensor, *, sparse_grad: bool = False) -> Tensor:
    if index.numel() == 0:
        return torch.empty(index.shape, dtype=self.dtype, device=self.device)
    source = self.view(1) if self.ndim == 0 else self
    place = index.view(1) if index.ndim == 0 else index
    if source.ndim != place.ndim:
        raise NoKernel("torch's kernel has the error text")
    axis = axes(dim, source.ndim)[0]
    result = torch.empty(place.shape, dtype=self.dtype, device=self.device)
    _loader.extension().gather_elements(
        _box(result, axis),
        _box(_along(source, place, axis).contiguous(), axis),
        _wide(place),
        True,
    )
    return result.view(index.shape)


def _scattered(self: Tensor, dim: int, index: Tensor) -> tuple[Tensor, Tensor, Tensor, int] | None:
    """A copy of self, the part of it that meets the index, the index, the axis."""
    copy = self.clone(memory_format=torch.contiguous_format)
    if index.numel() == 0:
        return None
    target = copy.view(1) if self.ndim == 0 else copy
    place = index.view(1) if index.ndim == 0 else index
    if target.ndim != place.ndim:
        raise NoKernel("torch's kernel has the error text")
    axis = axes(dim, target.ndim)[0]
    return copy, _along(target, place, axis), _wide(place), axis


def _source(value: Tensor, place: Tensor) -> Tensor:
    part = value.view(1) if value.ndim == 0 else value
    for d, size in enumerate(place.shape):
        if size > part.shape[d]:
            raise NoKernel("torch's kernel has the error text")
        part = part.narrow(d, 0, size)
    return part.contiguous()


@define("scatter.src", "scatter.value", every_dtype=True)
def _scatter(self: Tensor, dim: int, index: Tensor, source: Any) -> Tensor:
    found = _scattered(self, dim, index)
    if found is None:
        return self.clone()
    copy, part, place, axis = found
    if isinstance(source, Tensor):
        if source.dtype != self.dtype:
            raise NoKernel("torch's kernel has the error text")
        values = _source(source, place)
    else:
        values = torch.full(place.shape, source, dtype=self.dtype, device=self.device)
    whole = part.contiguous()
    _loader.extension().scatter_elements(_box(whole, axis), place, _box(values, axis), True)
    if whole.data_ptr() != copy.data_ptr():
        part.copy_(whole)
    return copy


@define("scatter_add.default")
def _scatter_add(self: Tensor, dim: int, index: Tensor, source: Tensor) -> Tensor:
    return _combined(self, dim, index, source, "add")


def _combined(
    self: Tensor, dim: int, index: Tensor, source: Tensor, kind: str, include_self: bool = True
) -> Tensor:
    """self with elements of ``source`` combined into it along ``dim``."""
    found = _scattered(self, dim, index)
    if found is None:
        return self.clone()
    copy, part, place, axis = found
    if source.dtype != self.dtype:
        raise NoKernel("torch's kernel has the error text")
    values = _source(source, place)
    whole = part.contiguous()
    # Rows of one element: place of each in memory.
    size, inner = whole.shape[axis], math.prod(whole.shape[axis + 1 :])
    outer = math.prod(whole.shape[:axis])
    boxes = place.view(outer, -1, inner)
    inside = (boxes >= 0) & (boxes < size)
    blocks = steps(0, size * inner, outer, torch.int64, self.device).view(-1, 1, 1)
    columns = steps(0, 1, inner, torch.int64, self.device).view(1, 1, -1)
    flat = torch.where(inside, boxes * inner + blocks + columns, -1).view(-1)
    _check(flat, whole.numel())
    rows = combine_rows(whole.view(-1, 1), flat, values.view(-1, 1), kind, include_self)
    part.copy_(rows.view(whole.shape))
    return copy


_IDENTITY = {"add": 0, "mul": 1}


def _least(dtype: torch.dtype, lowest: bool) -> float:
    if dtype.is_floating_point:
        return -math.inf if lowest else math.inf
    limits = torch.iinfo(dtype)
    return limits.min if lowest else limits.max


def combine_rows(
    target: Tensor, place: Tensor, source: Tensor, kind: str, include_self: bool = True
) -> Tensor:
    """``target`` [n, r] with rows of ``source`` [m, r] combined at ``place``.

    Args:
        target: as given; not written to.
        place: int64 rows of the target.
        source: one row per place.
        kind: ``add``, ``mul``, ``min``, ``max`` or ``mean``.
        include_self: whether what was at such a place takes part.
    """
    start = target
    if not include_self:
        identity = (
            _IDENTITY.get(kind, 0)
            if kind not in ("min", "max")
            else _least(target.dtype, lowest=kind == "max")
        )
        start = target.clone(memory_format=torch.contiguous_format)
        put_rows(start, place, torch.full_like(source, identity), 0)
    if kind in ("add", "mean"):
        total = add_rows(start, place, source)
        if kind == "add":
            return total
        first = torch.full((target.shape[0], 1), 1 if include_self else 0, device=target.device)
        ones = torch.ones(place.numel(), 1, dtype=first.dtype, device=target.device)
        count = torch.clamp(add_rows(first, place, ones), min=1)
        if target.is_floating_point():
            return (total / count).to(target.dtype)
        return torch.div(total, count, rounding_mode="floor").to(target.dtype)

    def combine(x: Array, at: Array, rows: Array) -> Array:
        return functions.scatter(x, (np.astype(at, np.int32),), rows, (0,), kind)

    return run(f"scatter_{kind}", combine, [start, place, source])[0]


_KINDS = {"sum": "add", "prod": "mul", "amin": "min", "amax": "max", "mean": "mean",
          "add": "add", "multiply": "mul"}  # fmt: skip


@define("scatter_reduce.two")
def _scatter_reduce(
    self: Tensor, dim: int, index: Tensor, source: Tensor, reduce: str, *, include_self: bool = True
) -> Tensor:
    return _combined(self, dim, index, source, _KINDS[reduce], include_self)


@define("scatter.reduce", "scatter.value_reduce")
def _scatter_combine(self: Tensor, dim: int, index: Tensor, source: Any, *, reduce: str) -> Tensor:
    if not isinstance(source, Tensor):
        source = torch.full(index.shape, source, dtype=self.dtype, device=self.device)
    return _combined(self, dim, index, source, _KINDS[reduce])


@define("index_reduce.default")
def _index_reduce(
    self: Tensor, dim: int, index: Tensor, source: Tensor, reduce: str, *, include_self: bool = True
) -> Tensor:
    target, axis, place = _rowed(self, dim, index)
    shape = [place.numel() if d == axis else n for d, n in enumerate(target.shape)]
    if source.dtype != self.dtype or source.numel() != math.prod(shape):
        raise NoKernel("torch's kernel has the error text")
    if not source.numel():
        return target.view(self.shape)
    _check(place, target.shape[axis])
    moved = target.movedim(axis, 0)
    parts = source.reshape(shape).movedim(axis, 0)
    rows = combine_rows(
        moved.reshape(moved.shape[0], -1),
        place,
        parts.reshape(parts.shape[0], -1),
        _KINDS[reduce],
        include_self,
    )
    return rows.view(moved.shape).movedim(0, axis).reshape(self.shape)


# ---------------------------------------------------------------- masks
@define("nonzero.default")
def _nonzero(self: Tensor) -> Tensor:
    if self.numel() == 0:
        return torch.empty(0, self.ndim, dtype=torch.int64, device=self.device)
    there = (self != 0).reshape(-1)
    before = torch.cumsum(there, 0)
    count = int(before[-1])
    size = there.numel()
    # Elements that are 0 go to a row behind the result.
    place = torch.where(there, before - 1, count)
    found = torch.empty(count + 1, dtype=torch.int64, device=self.device)
    put_rows(found, place, steps(0, 1, size, torch.int64, self.device), 0)
    left = found[:count]
    columns = []
    for length in reversed(self.shape):
        columns.append(left % length)
        left = left // length
    if not columns:
        return torch.empty(count, 0, dtype=torch.int64, device=self.device)
    return torch.stack(columns[::-1], 1)


@define("masked_select.default")
def _masked_select(self: Tensor, mask: Tensor) -> Tensor:
    if mask.dtype is not torch.bool:
        raise NoKernel("torch's kernel has the error text")
    values, where = torch.broadcast_tensors(self, mask)
    return take_rows(values.reshape(-1), torch.nonzero(where.reshape(-1)).view(-1), 0)


@define("masked_scatter.default")
def _masked_scatter(self: Tensor, mask: Tensor, source: Tensor) -> Tensor:
    if mask.dtype is not torch.bool or source.dtype != self.dtype:
        raise NoKernel("torch's kernel has the error text")
    values, where = torch.broadcast_tensors(self, mask)
    target = values.clone(memory_format=torch.contiguous_format)
    place = torch.nonzero(where.reshape(-1)).view(-1)
    if place.numel() > source.numel():
        raise NoKernel("torch's kernel has the error text")
    put_rows(target.view(-1), place, source.reshape(-1)[: place.numel()], 0)
    return target


def register() -> None:
    """Registers index_put; the other definitions are made when this module is imported."""
    for name in ("index_put", "_unsafe_index_put"):
        define(f"{name}.default", forms_of=False, every_dtype=True)(_index_put)
    for name in ("index_put_", "_index_put_impl_"):
        registration.program(f"aten::{name}")(_index_put_)
