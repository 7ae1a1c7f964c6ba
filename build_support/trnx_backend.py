"""PEP 517 build backend: setuptools, with the PyTorch that is already installed made visible.

Naming torch in `build-system.requires` would let pip fetch a torch of its own choice into the
build environment and compile against that one. pip's isolation hides site-packages from sys.path,
but sysconfig still names the folder, so an installed torch is found there and nothing is fetched.
setup.py decides by `torch_directory()` whether the wheel carries the compiled extension.
"""

from __future__ import annotations

import sysconfig
from pathlib import Path

from setuptools.build_meta import (
    build_editable,
    build_sdist,
    build_wheel,
    get_requires_for_build_editable,
    get_requires_for_build_sdist,
    get_requires_for_build_wheel,
    prepare_metadata_for_build_editable,
    prepare_metadata_for_build_wheel,
)

__all__ = [
    "build_editable",
    "build_sdist",
    "build_wheel",
    "get_requires_for_build_editable",
    "get_requires_for_build_sdist",
    "get_requires_for_build_wheel",
    "prepare_metadata_for_build_editable",
    "prepare_metadata_for_build_wheel",
    "torch_directory",
]


def torch_directory() -> Path | None:
    """The installed torch package if its C++ headers are there, else None."""
    for name in ("purelib", "platlib"):
        candidate = Path(sysconfig.get_paths()[name]) / "torch"
        if (candidate / "include" / "torch").is_dir():
            return candidate
    return None
