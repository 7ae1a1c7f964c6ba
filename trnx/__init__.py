"""trnx: array functions and PyTorch models as Trainium tile kernels, on any machine."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from trnx import lax as lax
from trnx import nn as nn
from trnx import numpy as numpy
from trnx import random as random
from trnx.core import Aval as Aval
from trnx.core import Dim as Dim
from trnx.core import config as config
from trnx.core import dim as dim
from trnx.core import name_scope as name_scope
from trnx.core.tracing import EVAL_TRACE, set_evaluator
from trnx.core.version import __version__ as __version__
from trnx.runtime.array import Array as Array
from trnx.runtime.convert import device_put as device_put
from trnx.runtime.convert import from_dlpack as from_dlpack
from trnx.runtime.devices import devices as devices
from trnx.runtime.devices import use_device as use_device

if TYPE_CHECKING:
    from trnx.runtime.buckets import multiples as multiples
    from trnx.runtime.buckets import powers_of_two as powers_of_two
    from trnx.runtime.jit import jit as jit
    from trnx.runtime.jit import make_ir as make_ir
    from trnx.transforms import checkpoint as checkpoint
    from trnx.transforms import checkpoint_policies as checkpoint_policies
    from trnx.transforms import custom_jvp as custom_jvp
    from trnx.transforms import custom_vjp as custom_vjp
    from trnx.transforms import grad as grad
    from trnx.transforms import hessian as hessian
    from trnx.transforms import jacfwd as jacfwd
    from trnx.transforms import jacrev as jacrev
    from trnx.transforms import jvp as jvp
    from trnx.transforms import linearize as linearize
    from trnx.transforms import value_and_grad as value_and_grad
    from trnx.transforms import vjp as vjp
    from trnx.transforms import vmap as vmap

# What needs the transforms or the compiler is imported when it is first asked for.
_LAZY = {
    "checkpoint": "trnx.transforms",
    "checkpoint_policies": "trnx.transforms",
    "custom_jvp": "trnx.transforms",
    "custom_vjp": "trnx.transforms",
    "hessian": "trnx.transforms",
    "jacfwd": "trnx.transforms",
    "jacrev": "trnx.transforms",
    "multiples": "trnx.runtime.buckets",
    "powers_of_two": "trnx.runtime.buckets",
    "grad": "trnx.transforms",
    "jvp": "trnx.transforms",
    "linearize": "trnx.transforms",
    "value_and_grad": "trnx.transforms",
    "vjp": "trnx.transforms",
    "vmap": "trnx.transforms",
    "jit": "trnx.runtime.jit",
    "make_ir": "trnx.runtime.jit",
}


def __getattr__(name: str) -> Any:
    module = _LAZY.get(name)
    if module is None:
        raise AttributeError(f"module 'trnx' has no attribute {name!r}")
    value = getattr(importlib.import_module(module), name)
    globals()[name] = value
    return value


# Names this module uses itself and nobody looks for here.
_OWN = {"Any", "EVAL_TRACE", "Sequence", "TYPE_CHECKING", "annotations", "importlib"}
_OWN |= {"set_evaluator"}


def __dir__() -> list[str]:
    return sorted(({*globals()} | {*_LAZY}) - _OWN)


def _first_evaluation(primitive: Any, operands: Sequence[Any], params: Any) -> Sequence[Any]:
    """Import the compiler when the first array is computed; the module installs itself."""
    from trnx.runtime import evaluate

    return evaluate.evaluate(primitive, operands, params)


if EVAL_TRACE.evaluator is None:
    set_evaluator(_first_evaluation)
