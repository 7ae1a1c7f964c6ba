"""Results of program transforms, kept as long as the program they came from lives.

A transform of one program must give one object each time: executables are found by it, so a second
call of ``grad(jit(f))`` compiles nothing.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Hashable
from typing import Concatenate, ParamSpec, TypeVar
from weakref import WeakKeyDictionary

from trnx.core.program import Program

P = ParamSpec("P")
R = TypeVar("R")


def cached_by_program(
    function: Callable[Concatenate[Program, P], R],
) -> Callable[Concatenate[Program, P], R]:
    """Decorate ``function(program, *hashable)`` so that equal calls return the same result."""
    results: WeakKeyDictionary[Program, dict[Hashable, R]] = WeakKeyDictionary()

    @functools.wraps(function)
    def wrapper(program: Program, *args: P.args, **kwargs: P.kwargs) -> R:
        known = results.setdefault(program, {})
        key = (args, tuple(sorted(kwargs.items())))
        if key not in known:
            known[key] = function(program, *args, **kwargs)
        return known[key]

    return wrapper
