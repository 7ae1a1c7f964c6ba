"""Host fallbacks: operations without a tile lowering, run by their reference in NumPy.

A fallback is explicit (a `host_call` in the tile program and in every listing) and counted
(:data:`host_calls`). The compiler names the primitive and passes the one-equation program as text.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from trnx.compiler.passes import expand_complex as expand_complex  # texts may name its primitive
from trnx.core.errors import UnsupportedError, message
from trnx.core.parsing import parse_program
from trnx.core.program import Literal, Program, Var
from trnx.core.source import Source

HostFunction = Callable[[list[np.ndarray], list[np.ndarray], Mapping[str, Any]], None]

host_functions: dict[str, HostFunction] = {}
"""Host functions by name: ``function(inputs, outputs, attributes)`` fills the outputs."""

host_calls: Counter[str] = Counter()
"""How often each fallback ran in this process, by name."""


def host_function(name: str) -> Callable[[HostFunction], HostFunction]:
    """Decorate ``function(inputs, outputs, attributes)`` to register it under `name`.

    Raises:
        ValueError: the name is taken.
    """

    def register(function: HostFunction) -> HostFunction:
        if name in host_functions:
            raise ValueError(f"A host function named {name} is registered already.")
        host_functions[name] = function
        return function

    return register


def run_host_call(
    name: str,
    inputs: list[np.ndarray],
    outputs: list[np.ndarray],
    attributes: Mapping[str, Any],
    source: Source | None = None,
) -> None:
    """Run and count a fallback: the registered function, else the reference of its program.

    Args:
        name: name of the function or primitive.
        inputs: read-only views.
        outputs: views to fill.
        attributes: of the call; `program` holds the text of the program to run by reference.
        source: the user's line.

    Raises:
        UnsupportedError: neither a function nor a program is there.
    """
    function = host_functions.get(name)
    text = attributes.get("program")
    if function is None and text is None:
        raise UnsupportedError(
            message(
                f"The program falls back to host function {name}, which is not registered",
                source,
                "Register it with trnx.runtime.fallback.host_function",
            )
        )
    host_calls[name] += 1
    if function is not None:
        function(inputs, outputs, attributes)
        return
    results = _by_reference(_parsed(str(text)), inputs)
    for output, result in zip(outputs, results, strict=True):
        np.copyto(output, result, casting="unsafe")


def reference_results(
    arrays: Sequence[np.ndarray], attributes: Mapping[str, Any]
) -> list[np.ndarray]:
    """Outputs of a host call by the reference of its program, uncounted: for simulated runs.

    Args:
        arrays: the inputs.
        attributes: of the call; `program` holds the text of the program.
    """
    program = _parsed(str(attributes["program"]))
    results = _by_reference(program, arrays)
    return [
        np.asarray(result).astype(aval.dtype, copy=False)
        for result, aval in zip(results, program.out_avals, strict=True)
    ]


@functools.lru_cache(maxsize=256)
def _parsed(text: str) -> Program:
    return parse_program(text)


def _by_reference(program: Program, inputs: Sequence[np.ndarray]) -> list[Any]:
    """Results of a program by the NumPy meaning of its primitives."""
    values: dict[Var, Any] = dict(zip(program.inputs, inputs, strict=True))

    def look(atom: Any) -> Any:
        return atom.value if isinstance(atom, Literal) else values[atom]

    with np.errstate(all="ignore"):
        for equation in program.equations:
            operands = [look(atom) for atom in equation.inputs]
            results = equation.primitive.rule("reference")(*operands, **equation.params)
            if not equation.primitive.multiple_results:
                results = (results,)
            values.update(zip(equation.outputs, results, strict=True))
    return [look(atom) for atom in program.outputs]
