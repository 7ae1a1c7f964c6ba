"""Acting when a module is imported, without importing it: Dynamo alone takes longer than torch."""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import sys
from collections.abc import Callable, Sequence
from types import ModuleType


class _Watcher(importlib.abc.MetaPathFinder):
    """Finds one module as Python would, runs a function after it, and is gone."""

    def __init__(self, name: str, action: Callable[[], None]) -> None:
        self.name, self.action = name, action

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname != self.name:
            return None
        sys.meta_path.remove(self)
        spec = importlib.machinery.PathFinder.find_spec(fullname, path, target)
        if spec is None or spec.loader is None:
            return spec
        execute = spec.loader.exec_module

        def execute_and_act(module: ModuleType) -> None:
            execute(module)
            self.action()

        spec.loader.exec_module = execute_and_act  # type: ignore[method-assign]
        return spec


def when_imported(name: str, action: Callable[[], None]) -> None:
    """Run `action` now if the module is there, else right after its first import."""
    if name in sys.modules:
        action()
    else:
        sys.meta_path.insert(0, _Watcher(name, action))
