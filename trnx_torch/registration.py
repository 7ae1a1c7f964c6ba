"""Registering device kernels for torch operators.

The extension keeps, per operator, a table of compiled kernels keyed by operand dtypes, numbers of
dimensions after collapsing, and how operands lie along the innermost dimension. A call whose key is
in the table never enters Python. For a new key the extension calls the function registered here
with a `KernelRequest`; it returns a `Kernel`, or None when the operator has no device kernel for
such operands, which then runs as torch's CPU kernel and is counted as a fallback.

A kernel is shape-generic: ``int32_t kernel(void* const* pointers, const int64_t* registers)``.
It returns 0, or a status that becomes an error. `pointers` holds the outputs, then the tensor
inputs, then one address per scalar, in the order of the request. Registers by family:

pointwise
    sizes[rank], then strides[rank] of each output and each input. ``ranks == (rank,)``.
reduction
    kept sizes, reduced sizes, input strides of the kept dimensions, input strides of the reduced
    dimensions, then per output its strides over the kept dimensions. ``ranks == (kept, reduced)``.
    An input's layout is along the innermost reduced dimension, an output's along the innermost kept
    one; option `kept_layout` is the input's along the innermost kept one.
rowwise
    sizes[rank], then strides[rank] of the output and each input; the last dimension is the argument
    `dim`, the others are collapsed. ``ranks == (rank,)``, at least 2.
matmul
    batch, m, n, k, then strides (batch, row, column) of left, right, the addend if there is one,
    and the output. ``ranks == (2,)`` or ``(3,)``. Layouts are along columns; options `left_rows`,
    `right_rows`, `output_rows`, `addend_rows` are along rows. Scalars are beta and alpha.

Strides are in elements, dimensions outermost first; a rank is at least 1; a stride is 0 where an
operand is broadcast. No size is 0: nothing is called for an empty result or a sum over nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch.utils._pytree import tree_map

from trnx_torch import _loader

Layout = Literal["contiguous", "broadcast", "strided"]
OutputRule = Literal["same", "sum", "float", "bool", "int64"]


@dataclass(frozen=True, slots=True)
class Operand:
    """A tensor a kernel reads or writes: the argument's name, element type, innermost layout."""

    name: str
    dtype: torch.dtype
    layout: Layout


@dataclass(frozen=True, slots=True)
class Number:
    """A number a kernel reads: the argument's name and the type of its value in memory."""

    name: str
    dtype: torch.dtype


@dataclass(frozen=True, slots=True)
class KernelRequest:
    """What a kernel is needed for. Equal requests mean the same kernel.

    Attributes:
        family: "pointwise", "reduction", "rowwise" or "matmul".
        op: full operator name, "aten::add.Tensor".
        outputs: results in order. An in-place operand is an output and an input.
        inputs: tensor arguments that are there, in order.
        scalars: number arguments that are there, in order; also tensors that stand for a number
            (Python numbers, 0-dimensional cpu tensors).
        options: (name, value) of every argument that is neither: part of what the kernel means.
        compute: dtype that inputs are converted to before the operation (for bfloat16 and float16
            the operation itself is done in float32, as torch does).
        ranks: numbers of dimensions, see above.
    """

    family: str
    op: str
    outputs: tuple[Operand, ...]
    inputs: tuple[Operand, ...]
    scalars: tuple[Number, ...]
    options: tuple[tuple[str, Any], ...]
    compute: torch.dtype
    ranks: tuple[int, ...]

    def option(self, name: str, default: Any = None) -> Any:
        """The value of an option, `default` if the operator has none of that name."""
        return dict(self.options).get(name, default)


@dataclass(frozen=True, slots=True)
class Kernel:
    """A compiled kernel: its address, and what must live as long as the process may call it."""

    address: int
    owner: object


Maker = Callable[[KernelRequest], Kernel | None]

# Keeps the code behind every address that the extension holds; operators never let one go.
_kept: list[Kernel] = []
_libraries: list[torch.library.Library] = []


def _callback(maker: Maker) -> Callable[..., int]:
    def make(
        family: str,
        op: str,
        outputs: Sequence[tuple[str, torch.dtype, Layout]],
        inputs: Sequence[tuple[str, torch.dtype, Layout]],
        scalars: Sequence[tuple[str, torch.dtype]],
        options: tuple[tuple[str, Any], ...],
        compute: torch.dtype,
        ranks: tuple[int, ...],
    ) -> int:
        request = KernelRequest(
            family,
            op,
            tuple(Operand(*item) for item in outputs),
            tuple(Operand(*item) for item in inputs),
            tuple(Number(*item) for item in scalars),
            options,
            compute,
            ranks,
        )
        kernel = maker(request)
        if kernel is None:
            return 0
        _kept.append(kernel)
        return kernel.address

    return make


def pointwise(
    *ops: str,
    promote: Iterable[str] = (),
    integers_to_float: bool = False,
    output: torch.dtype | None = None,
    converts: bool = False,
) -> Callable[[Maker], Maker]:
    """Register a maker of elementwise kernels for operators.

    Works for functional, in-place, out= and list (`_foreach_`, `_fused_`) overloads: roles follow
    from the schema, and a list operator calls the kernel once per item. Broadcasting, promotion,
    allocation, overlap checks and collapsing are done before the kernel is looked up.

    Args:
        ops: full names with overload, "aten::add.Tensor".
        promote: arguments whose dtypes decide `compute`; all tensor arguments if empty.
        integers_to_float: integer and bool inputs compute and return the default float dtype.
        output: dtype of a fresh result; `compute` if None.
        converts: an out= tensor may have any dtype, as the target of a copy.

    Raises:
        ValueError: torch has no such operator or argument.
    """

    def register(maker: Maker) -> Maker:
        extension = _loader.extension()
        for op in ops:
            extension.register_pointwise(
                op, _callback(maker), list(promote), integers_to_float, output, converts
            )
        return maker

    return register


def reduction(
    *ops: str,
    outputs: Sequence[OutputRule] = ("same",),
    ordered: bool = False,
    empty: float | None = None,
) -> Callable[[Maker], Maker]:
    """Register a maker of reduction kernels for operators with arguments `dim` and `keepdim`.

    Args:
        ops: full names with overload, "aten::sum.dim_IntList".
        outputs: dtype rule per result. "same": the input's; "sum": int64 for integers; "float": the
            input's, integers are left to torch; "bool"; "int64". An argument `dtype` overrides the
            first three.
        ordered: the reduced dimensions keep the argument's order, as index results need.
        empty: what reducing no element gives; left to torch if None.
    """

    def register(maker: Maker) -> Maker:
        extension = _loader.extension()
        for op in ops:
            extension.register_reduction(op, _callback(maker), list(outputs), ordered, empty)
        return maker

    return register


def rowwise(*ops: str) -> Callable[[Maker], Maker]:
    """Register a maker of kernels that work along `dim` and keep the shape, as softmax does.

    All tensor arguments have one shape. The result has the first one's dtype, float32 if an
    argument `half_to_float` is true, or what an argument `input_dtype` says.
    """

    def register(maker: Maker) -> Maker:
        extension = _loader.extension()
        for op in ops:
            extension.register_rowwise(op, _callback(maker))
        return maker

    return register


def matmul(*ops: str) -> Callable[[Maker], Maker]:
    """Register a maker of matrix product kernels: mm, addmm, bmm, baddbmm and their out= forms.

    Operands of one dtype only; other calls, and wrong shapes, are left to torch.
    """

    def register(maker: Maker) -> Maker:
        extension = _loader.extension()
        for op in ops:
            extension.register_matmul(op, _callback(maker))
        return maker

    return register


class NoKernel(NotImplementedError):
    """Raised by a Python kernel for arguments it has no compiled code for: they run on the CPU."""


# Operators that take indices from the host, as on other devices.
_HOST_INDICES = frozenset(
    f"aten::{name}"
    for name in (
        "index.Tensor", "index.Tensor_out", "_unsafe_index.Tensor", "index_put", "index_put.out",
        "index_put_", "_index_put_impl_", "_unsafe_index_put",
    )
)  # fmt: skip


def _check_devices(op: str, args: Sequence[Any], kwargs: dict[str, Any]) -> None:
    """Refuse tensors of another device next to neuron tensors; a number may be a cpu tensor.

    Raises:
        RuntimeError: two devices meet.
    """
    first: tuple[str, torch.device] | None = None
    other: tuple[str, torch.device] | None = None
    namespace, name = op.split("::")
    packet, _, overload = name.partition(".")
    schema = getattr(getattr(getattr(torch.ops, namespace), packet), overload or "default")._schema
    names = [argument.name for argument in schema.arguments]
    for argument, value in (*zip(names, args, strict=False), *kwargs.items()):
        for item in value if isinstance(value, list | tuple) else (value,):
            if not isinstance(item, torch.Tensor):
                continue
            if item.device.type == "neuron":
                first = first or (argument, item.device)
            elif item.ndim or item.device.type != "cpu":
                other = other or (argument, item.device)
    if first is not None and other is not None:
        raise RuntimeError(
            f"Expected all tensors to be on the same device, but {op} got '{first[0]}' on "
            f"{first[1]} and '{other[0]}' on {other[1]}. Move one with .to(\"{first[1]}\")."
        )


def program(op: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Register a Python function as the device code of an operator; it runs once per signature.

    The function takes the operator's arguments and returns its results. It works with other
    operators of the device and with `launch`. The extension records what it launches; the next call
    with equal dtypes, sizes, strides and numbers repeats the launches and enters no Python. A
    function that reads a value, copies from the host or falls back is run at every call.

    It raises `NoKernel`, before it writes anything, for arguments that it has no code for.

    Args:
        op: full name with overload, "aten::cat.out". In-place and out= overloads return what they
            were given.
    """

    def register(function: Callable[..., Any]) -> Callable[..., Any]:
        def attempt(*args: Any, **kwargs: Any) -> Any:
            if op not in _HOST_INDICES:
                _check_devices(op, args, kwargs)
            try:
                return function(*args, **kwargs)
            except NoKernel:
                return NotImplemented

        _loader.extension().register_program(op, attempt)
        return function

    return register


def get_program_counts() -> dict[str, tuple[int, int]]:
    """Per operator made by `program`: calls that ran in Python, calls that repeated launches."""
    module = _loader.loaded()
    if module is None:
        return {}
    return {name: (python, replayed) for name, python, replayed in module.program_counts()}


def cpu_fallback(op: str, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """Run torch's CPU kernel of a functional operator on neuron arguments; counted as a fallback.

    Args:
        op: full name with overload.
        args: positional arguments; tensors, and lists of tensors, are taken without a copy.
        kwargs: keyword arguments.
    """
    extension = _loader.extension()
    extension.count_fallback(op)
    device = -1

    def to_host(value: Any) -> Any:
        nonlocal device
        if isinstance(value, torch.Tensor) and value.device.type == "neuron":
            device = value.device.index
            return extension.as_cpu(value)
        return value

    def to_device(value: Any) -> Any:
        return extension.as_neuron(value, device) if isinstance(value, torch.Tensor) else value

    namespace, name = op.split("::")
    packet, _, overload = name.partition(".")
    function = getattr(getattr(getattr(torch.ops, namespace), packet), overload or "default")
    result = function(*tree_map(to_host, tuple(args)), **tree_map(to_host, kwargs))
    return tree_map(to_device, result)


def python_kernel(op: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Register a Python function as the device kernel of a functional operator; calls are counted.

    The function receives a Python number where the schema says Tensor and the user wrote a number.
    It calls compiled code with `launch`, and raises `NoKernel` for arguments without any.
    """

    def register(function: Callable[..., Any]) -> Callable[..., Any]:
        extension = _loader.extension()
        extension.release_fallback(op)
        namespace, name = op.split("::")
        library = torch.library.Library(namespace, "IMPL")

        def counted(*args: Any, **kwargs: Any) -> Any:
            try:
                result = function(*args, **kwargs)
            except NoKernel:
                return cpu_fallback(op, args, kwargs)
            extension.count_executed(op)
            return result

        library.impl(name, counted, "PrivateUse1", allow_override=True)
        _libraries.append(library)
        return function

    return register


def launch(address: int, tensors: Sequence[torch.Tensor], registers: Sequence[int]) -> None:
    """Call a compiled kernel on tensors: pointers in their order, registers as given.

    Raises:
        TypeError: a tensor is not on `neuron` (0-dimensional cpu tensors may be, as numbers).
        RuntimeError: the kernel returned a status other than 0.
    """
    _loader.extension().launch(address, list(tensors), list(registers))


def reserve_random(
    count: int, *, generator: torch.Generator | None = None, device: int = -1
) -> tuple[int, int]:
    """Take `count` random numbers from a generator: its seed, and the offset of the first one.

    A counter-based (Philox) kernel makes number i from (seed, offset + i). The generator moves past
    them, in steps of four.

    Args:
        count: how many 32-bit numbers the kernel will use.
        generator: a neuron generator; the device's default if None.
        device: device index; the current one for -1.

    Raises:
        RuntimeError: the generator is of another device.
    """
    seed, offset = _loader.extension().reserve_random(generator, device, count)
    return int(seed), int(offset)
