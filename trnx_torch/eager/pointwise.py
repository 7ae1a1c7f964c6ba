"""Elementwise device kernels: one formula per operator, for all its overloads."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch

import trnx.lax as lax
import trnx.nn as nn
import trnx.numpy as np
from trnx_torch import registration
from trnx_torch.eager.generic import Formula, build, place, sizes, strides, supported
from trnx_torch.registration import Kernel, KernelRequest

Value = Any

DEFINED: set[str] = set()
"""Full names of the operators that have an elementwise kernel."""


def _make(formula: Formula, no_bool: bool) -> Callable[[KernelRequest], Kernel | None]:
    def make(request: KernelRequest) -> Kernel | None:
        if not supported(request):
            return None
        if no_bool and any(operand.dtype == torch.bool for operand in request.inputs):
            return None  # torch's kernel has the error text
        (rank,) = request.ranks
        names = [f"d{axis}" for axis in range(rank)]
        shape = sizes(names)
        registers, places = list(names), []
        for prefix, operands in (("y", request.outputs), ("x", request.inputs)):
            for number, operand in enumerate(operands):
                own = strides(f"{prefix}{number}", rank)
                registers += own
                places.append(place(shape, own, operand.layout))
        count = len(request.outputs)
        return build(
            request, formula, places[count:], places[:count], registers, dict(request.options)
        )

    return make


def define(
    formula: Formula,
    *ops: str,
    promote: Sequence[str] = (),
    integers_to_float: bool = False,
    output: torch.dtype | None = None,
    no_bool: bool = False,
) -> None:
    """Registers ``formula`` (operands by argument name) for ATen overloads.

    ``no_bool``: torch refuses bool tensors, as it does in a subtraction.
    """
    DEFINED.update(f"aten::{op}" for op in ops)
    registration.pointwise(
        *(f"aten::{op}" for op in ops),
        promote=promote,
        integers_to_float=integers_to_float,
        output=output,
    )(_make(formula, no_bool))


def _overloads(name: str, *suffixes: str) -> list[str]:
    """The overloads of ``name`` among ``suffixes`` that torch has."""
    known = []
    for suffix in suffixes:
        base, _, overload = (name + suffix).partition(".")
        packet = getattr(torch.ops.aten, base, None)
        if packet is None or (overload or "default") not in packet.overloads():
            continue
        schema = getattr(packet, overload or "default")._schema
        # Some names also have overloads over Python numbers, which no device runs.
        if "Tensor" in str(schema.arguments[0].type):
            known.append(name + suffix)
    return known


def _unary(name: str, fn: Callable[[Value], Value], **options: Any) -> None:
    define(lambda self: fn(self), *_overloads(name, "", ".out", "_"), **options)
    foreach = _overloads(f"_foreach_{name}", "", "_")
    if foreach:
        define(lambda self: fn(self), *foreach, **options)


def _binary(
    name: str, fn: Callable[[Value, Value], Value], *, foreach: bool = False, **options: Any
) -> None:
    suffixes = (".Tensor", ".Scalar", ".out", ".Tensor_out", ".Scalar_out")
    in_place = ("_.Tensor", "_.Scalar", "_")
    define(
        lambda self, other: fn(self, other),
        *_overloads(name, "", *suffixes, *in_place),
        promote=("self", "other"),  # a Scalar overload's number decides the dtype, too
        **options,
    )
    if foreach:
        lists = _overloads(f"_foreach_{name}", ".List", "_.List")
        define(lambda self, other: fn(self, other), *lists, **options)
        for kind, argument in (("Scalar", "scalar"), ("ScalarList", "scalars")):
            define(
                lambda self, scalar=None, scalars=None: fn(
                    self, scalars if scalar is None else scalar
                ),
                *_overloads(f"_foreach_{name}", f".{kind}", f"_.{kind}"),
                promote=("self", argument),
                **options,
            )


def _scaled(self: Value, other: Value, alpha: Value) -> Value:
    return self + other * alpha


def _arithmetic() -> None:
    for name, fn in (
        ("mul", np.multiply),
        ("maximum", np.maximum),
        ("minimum", np.minimum),
    ):
        _binary(name, fn, foreach=True)
    _binary("div", np.divide, foreach=True, integers_to_float=True)
    for name, fn in (("add", np.add), ("sub", np.subtract)):
        no_bool = name == "sub"
        define(
            lambda self, other, alpha=1, fn=fn: fn(self, other * alpha),
            *_overloads(
                name,
                ".Tensor",
                ".Scalar",
                ".out",
                ".Scalar_out",
                "_.Tensor",
                "_.Scalar",
            ),
            promote=("self", "other"),
            no_bool=no_bool,
        )
        define(
            lambda self, other, alpha=1, fn=fn: fn(self, other * alpha),
            *_overloads(f"_foreach_{name}", ".List", "_.List"),
            promote=("self", "other"),
            no_bool=no_bool,
        )
        for kind, argument in (("Scalar", "scalar"), ("ScalarList", "scalars")):
            define(
                lambda self, scalar=None, scalars=None, fn=fn: fn(
                    self, scalars if scalar is None else scalar
                ),
                *_overloads(f"_foreach_{name}", f".{kind}", f"_.{kind}"),
                promote=("self", argument),
                no_bool=no_bool,
            )
    define(
        lambda self, other, alpha=1: other - self * alpha,
        *_overloads("rsub", ".Tensor", ".Scalar"),
        promote=("self", "other"),
        no_bool=True,
    )


def _functions() -> None:
    define(
        lambda self, exponent: np.power(self, exponent),
        "pow.Scalar",
        "pow.Scalar_out",
        promote=("self", "exponent"),
    )
    for name, fn in (("neg", np.negative), ("abs", np.abs), ("sign", np.sign), ("relu", nn.relu)):
        _unary(name, fn)
    for name, fn in (
        ("exp", np.exp),
        ("log", np.log),
        ("sqrt", np.sqrt),
        ("rsqrt", lambda x: np.reciprocal(np.sqrt(x))),
        ("reciprocal", np.reciprocal),
        ("tanh", np.tanh),
        ("sigmoid", nn.sigmoid),
        ("erf", lax.erf),
    ):
        _unary(name, fn, integers_to_float=True)
    _unary("silu", nn.silu)
    _unary("logical_not", np.logical_not, output=torch.bool)
    define(
        lambda self, approximate="none": nn.gelu(self, approximate=approximate == "tanh"),
        *_overloads("gelu", "", ".out", "_"),
    )


def _comparisons() -> None:
    for name, fn in (
        ("eq", np.equal),
        ("ne", np.not_equal),
        ("lt", np.less),
        ("le", np.less_equal),
        ("gt", np.greater),
        ("ge", np.greater_equal),
    ):
        define(
            lambda self, other, fn=fn: fn(self, other),
            *_overloads(name, ".Tensor", ".Scalar", ".Tensor_out", ".Scalar_out"),
            promote=("self", "other"),
            output=torch.bool,
        )
    define(
        lambda condition, self, other: np.where(condition != 0, self, other),
        *_overloads("where", ".self", ".self_out"),
        promote=("self", "other"),
    )


def _masks() -> None:
    define(
        lambda self, mask, value: np.where(mask != 0, value, self),
        *_overloads("masked_fill", ".Scalar", ".Tensor"),
        *_overloads("masked_fill_", ".Scalar", ".Tensor"),
        promote=("self",),
    )


def _updates() -> None:
    """Fused multiply-adds of optimizers, alone and over lists."""
    define(
        lambda self, tensor1, tensor2, value=1: self + value * tensor1 * tensor2,
        *_overloads("addcmul", "", ".out", "_"),
    )
    define(
        lambda self, tensor1, tensor2, value=1: self + value * (tensor1 / tensor2),
        *_overloads("addcdiv", "", ".out", "_"),
    )
    define(
        lambda self, end, weight: self + weight * (end - self),
        *_overloads("lerp", ".Scalar", ".Scalar_out", "_.Scalar", ".Tensor", "_.Tensor"),
        promote=("self", "end"),
    )
    lists = (".Scalar", "_.Scalar", ".ScalarList", "_.ScalarList")
    define(
        lambda self, tensor1, tensor2, value=None, scalars=None: (
            self + (scalars if value is None else value) * tensor1 * tensor2
        ),
        *_overloads("_foreach_addcmul", *lists),
        promote=("self", "tensor1", "tensor2"),
    )
    define(
        lambda self, tensor1, tensor2, value=None, scalars=None: (
            self + (scalars if value is None else value) * (tensor1 / tensor2)
        ),
        *_overloads("_foreach_addcdiv", *lists),
        promote=("self", "tensor1", "tensor2"),
    )
    define(
        lambda self, tensors1, weight: self + weight * (tensors1 - self),
        *_overloads("_foreach_lerp", ".Scalar", "_.Scalar"),
        promote=("self", "tensors1"),
    )


def _backwards() -> None:
    define(
        lambda grad_output, output: grad_output * (1 - output * output),
        *_overloads("tanh_backward", "", ".grad_input"),
    )
    define(
        lambda grad_output, output: grad_output * (1 - output) * output,
        *_overloads("sigmoid_backward", "", ".grad_input"),
    )
    define(
        lambda grad_output, self, threshold: np.where(self <= threshold, 0.0, grad_output),
        *_overloads("threshold_backward", "", ".grad_input"),
        promote=("grad_output", "self"),
    )

    def silu_backward(grad_output: Value, self: Value) -> Value:
        s = nn.sigmoid(self)
        return grad_output * s * (1 + self * (1 - s))

    define(silu_backward, *_overloads("silu_backward", "", ".grad_input"))

    def gelu_backward(grad_output: Value, self: Value, approximate: str = "none") -> Value:
        x = self
        if approximate == "tanh":
            c, k = math.sqrt(2.0 / math.pi), 0.044715
            t = np.tanh(c * (x + k * x * x * x))
            slope = 0.5 * (1 + t) + 0.5 * x * (1 - t * t) * c * (1 + 3 * k * x * x)
        else:
            density = np.exp(-0.5 * x * x) * (1 / math.sqrt(2 * math.pi))
            slope = 0.5 * (1 + lax.erf(x * math.sqrt(0.5))) + x * density
        return grad_output * slope

    define(gelu_backward, *_overloads("gelu_backward", "", ".grad_input"))


def register() -> None:
    """Registers every elementwise operator, and the copy that converts or changes strides."""
    registration.pointwise("trnx::copy.out", converts=True)(_make(lambda self: self, no_bool=False))
    _arithmetic()
    _functions()
    _comparisons()
    _masks()
    _updates()
    _backwards()
