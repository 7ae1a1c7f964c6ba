"""``torch.compile(model, backend="neuron")``: Dynamo's graph through AOTAutograd to Programs."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Sequence
from typing import Any

from functorch.compile import (  # type: ignore[import-untyped]
    make_boxed_func,
    min_cut_rematerialization_partition,
)
from torch._decomp import core_aten_decompositions
from torch._dynamo.backends.common import aot_autograd
from torch.fx import GraphModule

from trnx.runtime.devices import default_device
from trnx_torch.compile.aten import RULES, overload_name
from trnx_torch.compile.runner import make_runner

_numbers = itertools.count()


def _compiler(role: str, number: int) -> Callable[[GraphModule, Sequence[Any]], Callable]:
    def compile_graph(module: GraphModule, _: Sequence[Any]) -> Callable:
        return make_boxed_func(make_runner(module, f"graph{number}_{role}", default_device()))

    return compile_graph


@functools.cache
def decompositions() -> dict[Any, Callable]:
    """PyTorch's decompositions to core ATen, of the operators that have no rule of their own."""
    table = core_aten_decompositions()
    return {op: rule for op, rule in table.items() if overload_name(op) not in RULES}


def backend(
    module: GraphModule, example_inputs: Sequence[Any], *, options: dict[str, Any] | None = None
) -> Callable:
    """Compiles a Dynamo graph, and its backward when it is asked for, as trnx Programs.

    An operator without a rule fails the compile with ``UnsupportedOpError``.

    Args:
        module: Dynamo's graph.
        example_inputs: its (fake) inputs.
        options: ``torch.compile``'s ``options``; none are known yet.

    Raises:
        ValueError: an unknown option.
    """
    if options:
        raise ValueError(
            f"backend 'neuron' has no option {', '.join(map(repr, options))}. Leave it out."
        )
    number = next(_numbers)
    through_aot = aot_autograd(
        fw_compiler=_compiler("forward", number),
        bw_compiler=_compiler("backward", number),
        inference_compiler=_compiler("inference", number),
        decompositions=decompositions(),
        partition_fn=min_cut_rematerialization_partition,
        keep_inference_input_mutations=False,
    )
    return through_aot(module, example_inputs)
