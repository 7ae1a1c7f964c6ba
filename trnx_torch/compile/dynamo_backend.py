"""``torch.compile(model, backend="neuron")``: Dynamo's graph through AOTAutograd to Programs."""

from __future__ import annotations

import functools
import itertools
import warnings
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
from trnx_torch.compile import metrics
from trnx_torch.compile.aten import RULES, overload_name
from trnx_torch.compile.errors import GraphFallbackWarning, UnsupportedOpError
from trnx_torch.compile.options import Options, parse
from trnx_torch.compile.randomness import has_rule
from trnx_torch.compile.runner import make_runner

_numbers = itertools.count()


def _compiler(
    role: str, number: int, options: Options
) -> Callable[[GraphModule, Sequence[Any]], Callable]:
    def compile_graph(module: GraphModule, _: Sequence[Any]) -> Callable:
        name = f"graph{number}_{role}"
        try:
            return make_boxed_func(make_runner(module, name, default_device(), options))
        except UnsupportedOpError as error:
            if not options.fallback_execution:
                raise
            warnings.warn(
                f"{name} runs eagerly, operator by operator: {error}",
                GraphFallbackWarning,
                stacklevel=2,
            )
            nodes = sum(1 for node in module.graph.nodes if node.op == "call_function")
            metrics.add(metrics.GraphMetrics(name, nodes, origin="eager"))
            return make_boxed_func(module.forward)

    return compile_graph


@functools.cache
def decompositions() -> dict[Any, Callable]:
    """PyTorch's decompositions to core ATen, of the operators that have no rule of their own."""
    table = core_aten_decompositions()
    own = lambda name: name in RULES or has_rule(name)  # noqa: E731
    return {op: rule for op, rule in table.items() if not own(overload_name(op))}


def backend(
    module: GraphModule,
    example_inputs: Sequence[Any],
    *,
    options: dict[str, Any] | None = None,
    mode: str | None = None,
) -> Callable:
    """Compiles a Dynamo graph, and its backward when it is asked for, as trnx Programs.

    An operator without a rule fails the compile with ``UnsupportedOpError``, unless option
    ``fallback_execution`` is set.

    Args:
        module: Dynamo's graph.
        example_inputs: its (fake) inputs.
        options: ``torch.compile``'s ``options``, see :class:`trnx_torch.compile.options.Options`.
        mode: ``torch.compile``'s ``mode``; any but "default" warns and changes nothing.

    Raises:
        ValueError: an unknown option.
        TypeError: an option of the wrong type.
    """
    chosen = parse(options, mode)
    number = next(_numbers)
    through_aot = aot_autograd(
        fw_compiler=_compiler("forward", number, chosen),
        bw_compiler=_compiler("backward", number, chosen),
        inference_compiler=_compiler("inference", number, chosen),
        decompositions=decompositions(),
        partition_fn=min_cut_rematerialization_partition,
        keep_inference_input_mutations=True,
    )
    return through_aot(module, example_inputs)
