"""``nisa.*`` and ``nl.*`` calls of a kernel's source as instructions of a ``KernelBuilder``."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import numpy as np

from trnx.compiler.nki.names import PARAMETERS
from trnx.compiler.nki.values import (
    Column,
    Member,
    Operator,
    Register,
    Repeated,
    prod_index,
    refuse,
    view_attribute,
)
from trnx.compiler.tile import isa
from trnx.compiler.tile.build import KernelBuilder
from trnx.compiler.tile.ir import Predicate
from trnx.compiler.tile.views import HbmView, TileView
from trnx.core.errors import TileError

_DEFAULTS: Final[dict[str, Any]] = {
    "priority": None,
    "oob_mode": Member("oob_mode", "error"),
    "name": None,
    "is_stationary_onezero": False,
    "is_moving_onezero": False,
    "is_transpose": False,
    "tile_position": (),
    "tile_size": (),
    "perf_mode": Member("matmul_perf_mode", "none"),
    "scales": None,
    "unique_indices": True,
}
"""Arguments that must keep their default, because the tile IR does not have them."""

_IGNORED: Final = ("name", "is_stationary_onezero", "is_moving_onezero", "keepdims")
"""Arguments without influence on the result."""


def bind(op: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments of ``nisa.op`` by parameter name, as the public signature orders them."""
    parameters = PARAMETERS[op]
    if len(args) > len(parameters):
        refuse(f"nisa.{op} takes {len(parameters)} arguments", f"It takes {', '.join(parameters)}")
    given = dict(zip(parameters, args, strict=False))
    for name, value in kwargs.items():
        if name not in parameters:
            refuse(f"nisa.{op} has no argument '{name}'", f"It takes {', '.join(parameters)}")
        if name in given:
            refuse(f"nisa.{op} got '{name}' twice", "Drop one")
        given[name] = value
    return given


def call_isa(
    builder: KernelBuilder, op: str, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> None:
    """Append the instruction that ``nisa.op(*args, **kwargs)`` stands for."""
    if op not in PARAMETERS:
        refuse(f"nisa.{op} is not supported", f"Use one of {', '.join(sorted(PARAMETERS))}")
    given = bind(op, args, kwargs)
    for name, value in list(given.items()):
        if name in _IGNORED:
            del given[name]
        elif name in _DEFAULTS:
            if value != _DEFAULTS[name] and value is not None:
                refuse(f"nisa.{op} with {name}={value}", "Leave it at its default")
            del given[name]
    given = {name: _plain(value) for name, value in given.items() if value is not None}
    if op in _SPECIAL:
        _SPECIAL[op](builder, given)
    else:
        _emit(builder, op, given)


def _plain(value: Any) -> Any:
    return value.name if isinstance(value, Operator) else value


def _emit(builder: KernelBuilder, op: str, given: Mapping[str, Any]) -> None:
    arguments = dict(given)
    engine = arguments.pop("engine", None)
    name = ""
    if isinstance(engine, Member) and engine.name != "unknown":
        name = engine.name
    elif engine is not None and not isinstance(engine, Member):
        refuse(f"engine={engine!r}", "Use a member of nisa.engine")
    builder.instruction(op, engine=name, **arguments)


def _dma(op: str) -> Callable[[KernelBuilder, dict[str, Any]], None]:
    def emit(builder: KernelBuilder, given: dict[str, Any]) -> None:
        mode = given.pop("dge_mode", Member("dge_mode", "unknown"))
        axes = given.pop("axes", (1, 0))
        if tuple(axes) != (1, 0):
            refuse(f"dma_transpose with axes {tuple(axes)}", "Transpose two-dimensional tensors")
        if isinstance(mode, Member) and mode.name == "swdge":
            given["engine"] = Member("engine", "gpsimd")
        elif mode.name != "hwdge" and "engine" in given:
            refuse("engine without dge_mode=nisa.dge_mode.hwdge", "Give both or none")
        if op == "dma_copy":
            given["src"] = _fitting(given["src"], given["dst"])
            given["dst"] = _fitting(given["dst"], given["src"])
        _emit(builder, op, given)

    return emit


def _fitting(view: Any, other: Any) -> Any:
    """An HBM view in the other side's shape: a DMA asks for equal element counts only."""
    if not isinstance(view, HbmView) or view.index is not None or view.shape == other.shape:
        return view
    if prod_index(view.shape) != prod_index(other.shape):
        return view
    try:
        return view.reshape(*other.shape)
    except TileError:
        # Left as it is: the legality check shows both shapes.
        return view


def _dma_compute(builder: KernelBuilder, given: dict[str, Any]) -> None:
    sources = given.pop("srcs")
    if len(sources) != 2 or given.pop("reduce_op") != "add":
        refuse("dma_compute of other than dst + src", "Write srcs=[dst, src], reduce_op=nl.add")
    if sources[0].access != given["dst"].access:
        refuse("dma_compute whose first source is not dst", "Write srcs=[dst, src]")
    _emit(builder, "dma_compute", {**given, "src": sources[1]})


def _matmul(builder: KernelBuilder, given: dict[str, Any]) -> None:
    if "accumulate" not in given:
        refuse(
            "nc_matmul without accumulate", "Say accumulate=False, or accumulate=(k > 0) in a loop"
        )
    if not isinstance(given["accumulate"], bool | Predicate):
        refuse(f"accumulate={given['accumulate']}", "Use a bool or a comparison of loop indices")
    _emit(builder, "nc_matmul", given)


def _activation(builder: KernelBuilder, given: dict[str, Any]) -> None:
    command = given.pop("reduce_cmd", Member("reduce_cmd", "idle"))
    if ("reduce_res" in given) != (command.name == "reset_reduce"):
        refuse(
            f"activation with reduce_cmd {command.name}",
            "Give reduce_res together with nisa.reduce_cmd.reset_reduce, or neither",
        )
    _emit(builder, "activation", given)


def _tensor_reduce(builder: KernelBuilder, given: dict[str, Any]) -> None:
    axis = given["axis"]
    given["axis"] = tuple(axis) if isinstance(axis, tuple | list) else (axis,)
    _emit(builder, "tensor_reduce", given)


def _tensor_tensor(builder: KernelBuilder, given: dict[str, Any]) -> None:
    sides = [given.get("data1"), given.get("data2")]
    repeated = [s for s in sides if isinstance(s, Repeated)]
    if not repeated:
        _emit(builder, "tensor_tensor", given)
        return
    if len(repeated) == 2:
        refuse("repeat() on both sides", "Repeat one side")
    reverse = isinstance(sides[0], Repeated)
    column = repeated[0].column
    builder.tensor_scalar(
        given["dst"],
        sides[1] if reverse else sides[0],
        column.value if isinstance(column, Column) else column,
        op0=given["op"],
        reverse0=reverse,
        engine=isa.GPSIMD,
    )


def _no_reverse(builder: KernelBuilder, given: dict[str, Any]) -> None:
    if given.pop("reverse0", False) or given.pop("reverse1", False):
        refuse("tensor_tensor_scan with reversed operands", "Swap the operands")
    _emit(builder, "tensor_tensor_scan", given)


_SPECIAL: Final[dict[str, Callable[[KernelBuilder, dict[str, Any]], None]]] = {
    "dma_copy": _dma("dma_copy"),
    "dma_transpose": _dma("dma_transpose"),
    "dma_compute": _dma_compute,
    "nc_matmul": _matmul,
    "activation": _activation,
    "tensor_reduce": _tensor_reduce,
    "tensor_tensor": _tensor_tensor,
    "tensor_tensor_scan": _no_reverse,
}


def ndarray(
    builder: KernelBuilder,
    hint: str,
    shape: Sequence[int],
    dtype: Any,
    buffer: Any = None,
    name: str = "",
    address: Any = None,
) -> TileView | HbmView:
    """``nl.ndarray``: an on-chip tile, or an output when the buffer is ``nl.shared_hbm``."""
    region = Member("memory", "sbuf") if buffer is None else buffer
    if not isinstance(region, Member) or region.kind != "memory":
        refuse(f"buffer={buffer!r}", "Use nl.sbuf, nl.psum or nl.shared_hbm")
    if address is not None:
        refuse("an address", "Leave placement to the compiler")
    if not isinstance(dtype, np.dtype):
        refuse(f"dtype={dtype!r}", "Use a dtype of nki.language")
    sizes = [int(s) for s in shape]
    if region.name == "shared_hbm":
        return builder.param(hint or name, sizes, dtype, "out")
    if region.name not in ("sbuf", "psum"):
        refuse(
            f"a tensor in {region.name}",
            "Pass HBM scratch as an argument or return it (shared_hbm)",
        )
    return builder.tile(region.name, sizes, dtype, hint or name)


def scatter_add(
    builder: KernelBuilder, dst: HbmView, pattern: Any, offset: Any, index: TileView, src: TileView
) -> None:
    """The helper of that name: one ``dma_compute`` with repeated indices."""
    ap = view_attribute(dst, "ap")
    target = ap(pattern=pattern, offset=offset, vector_offset=index, indirect_dim=0)
    builder.dma_compute(target, src)


def register_value(value: Any) -> Any:
    """A register operand as an index expression; numbers as they are."""
    return value.value if isinstance(value, Register) else value
