"""Adds the PyTorch extension to the wheel when torch and a C++ compiler are there.

Everything else is declared in pyproject.toml. An editable install compiles nothing: there the
extension is built by `python -m trnx_torch build`, or at first import.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path
from types import ModuleType

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext
from trnx_backend import torch_directory

ROOT = Path(__file__).resolve().parent
BUILD_SCRIPT = ROOT / "trnx_torch" / "_build.py"


def load_build_script() -> ModuleType:
    """trnx_torch/_build.py loaded by path: the package itself cannot be imported yet."""
    spec = importlib.util.spec_from_file_location("_trnx_torch_build", BUILD_SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


class BuildTorchExtension(build_ext):
    """Hands the compile to trnx_torch/_build.py, which first import uses too."""

    _built: list[str]

    def run(self) -> None:
        """Compile into the build folder's trnx_torch; an editable install compiles nothing."""
        self._built = []
        if self.inplace or self.editable_mode:
            return
        directory = torch_directory()
        assert directory is not None
        output = Path(self.build_lib) / "trnx_torch"
        output.mkdir(parents=True, exist_ok=True)
        load_build_script().compile_extension(directory, output)
        for lock in output.glob("*.lock"):  # served concurrent builds; nothing of it ships
            lock.unlink()
        self._built = [str(path) for path in output.glob("_neuron-*")]

    def get_outputs(self) -> list[str]:
        """Paths of the compiled files."""
        return getattr(self, "_built", [])

    def get_source_files(self) -> list[str]:
        """The sources are package data, listed in pyproject.toml."""
        return []


def wants_extension() -> bool:
    """True if the wheel should carry the extension; says why not when torch is there."""
    if os.environ.get("TRNX_BUILD_EXTENSION", "1") == "0" or not BUILD_SCRIPT.exists():
        return False
    if torch_directory() is None:
        return False
    if load_build_script().find_compiler() is None:
        print("trnx: no C++ compiler, so trnx_torch will be compiled at its first import")
        return False
    return True


if wants_extension():
    setup(
        ext_modules=[Extension("trnx_torch._C", sources=[])],
        cmdclass={"build_ext": BuildTorchExtension},
    )
else:
    setup()
