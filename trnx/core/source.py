"""Where an equation came from: the user's file and line, found by a cheap walk up the Python stack.

A frame is *internal* when its file belongs to trnx, trnx_torch or one of a few libraries that call
user code back (optree, contextlib, functools). The first frame that is not internal is the user's.
Results are cached by code object and instruction, so that recording an equation in a loop costs one
dictionary lookup and no line table decoding.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from types import CodeType, FrameType


@dataclass(frozen=True, slots=True)
class Source:
    """One line of user code.

    Attributes:
        file: path of the file as Python reports it; empty when unknown.
        line: line number, from 1; 0 when unknown.
        function: name of the function that holds the line.
        name_stack: names given with :func:`name_scope`, outermost first, joined by ``/``.
    """

    file: str
    line: int
    function: str
    name_stack: str = ""

    def __str__(self) -> str:
        if not self.file:
            return "unknown line"
        name = "cell" if self.is_cell else os.path.basename(self.file)
        where = f"{name}:{self.line}"
        return f"{where} ({self.function})" if self.function else where

    @property
    def location(self) -> str:
        """``path:line`` with the whole path, in the form editors and terminals make clickable."""
        if not self.file:
            return "unknown line"
        return f"{'cell' if self.is_cell else self.file}:{self.line}"

    @property
    def is_cell(self) -> bool:
        """Whether the file is a notebook cell: Jupyter compiles each under a temporary name."""
        folder, name = os.path.split(self.file)
        return "ipykernel_" in folder or name.startswith("<ipython-input")


UNKNOWN_SOURCE = Source("", 0, "")

_CORE_DIRECTORY = os.path.dirname(os.path.abspath(__file__))
_PACKAGE_DIRECTORY = os.path.dirname(_CORE_DIRECTORY)
_ROOT_DIRECTORY = os.path.dirname(_PACKAGE_DIRECTORY)


def _internal_prefixes() -> tuple[str, ...]:
    prefixes = {
        _PACKAGE_DIRECTORY + os.sep,
        os.path.join(_ROOT_DIRECTORY, "trnx_torch") + os.sep,
    }
    # `trnx/ops` and `trnx/compiler` may be symlinks: their files can show up under either name.
    for folder in ("ops", "compiler"):
        resolved = os.path.realpath(os.path.join(_PACKAGE_DIRECTORY, folder))
        if os.path.isdir(resolved):
            prefixes.add(resolved + os.sep)
    return tuple(prefixes)


_PREFIXES = _internal_prefixes()
_LIBRARY_PARTS = (f"{os.sep}optree{os.sep}",)
_LIBRARY_FILES = ("contextlib.py", "functools.py")

_internal_files: dict[str, bool] = {}


def is_internal_file(file: str) -> bool:
    """True when frames of `file` are hidden from users (tracebacks and sources)."""
    known = _internal_files.get(file)
    if known is None:
        in_library = any(part in file for part in _LIBRARY_PARTS) or (
            os.path.basename(file) in _LIBRARY_FILES
            and os.path.dirname(file) == os.path.dirname(os.__file__)
        )
        known = in_library or file.startswith((*_PREFIXES, "<frozen "))
        _internal_files[file] = known
    return known


def is_own_file(file: str) -> bool:
    """Whether a file belongs to trnx or trnx_torch."""
    return file.startswith(_PREFIXES)


_THIRD_PARTY = f"{os.sep}site-packages{os.sep}"
_STANDARD_LIBRARY = os.path.dirname(os.__file__) + os.sep


def is_library_file(file: str) -> bool:
    """Whether a file belongs to Python, NumPy or optree, which trnx hands arguments to."""
    if _THIRD_PARTY in file:
        return any(f"{os.sep}{name}{os.sep}" in file for name in ("numpy", "optree"))
    return file.startswith((_STANDARD_LIBRARY, "<frozen ", "<__array_function__"))


def takes_arguments(file: str) -> bool:
    """Whether a file is of the layers that look at users' arguments, before any compiling."""
    folders = ("core", "numpy", "nn", "ops", "transforms", "control")
    inside = tuple(os.path.join(_PACKAGE_DIRECTORY, folder) + os.sep for folder in folders)
    resolved = os.path.realpath(os.path.join(_PACKAGE_DIRECTORY, "ops")) + os.sep
    return file.startswith((*inside, resolved, os.path.join(_PACKAGE_DIRECTORY, "random.py")))


def _is_generated(frame: FrameType) -> bool:
    """Whether a frame without a file is code made for a trnx module, as a dataclass's __init__."""
    module = frame.f_globals.get("__name__") or ""
    return module.partition(".")[0] in ("trnx", "trnx_torch")


_name_stack: ContextVar[str] = ContextVar("trnx_name_stack", default="")
_forced_source: ContextVar[Source | None] = ContextVar("trnx_forced_source", default=None)

# The key holds id(code), so the code object is kept in the value: its id cannot be reused.
_cache: dict[tuple[int, int, str], tuple[CodeType, Source]] = {}
_CACHE_LIMIT = 65536


def current_source() -> Source:
    """The user's line that is running now, or the line in force under :func:`use_source`."""
    forced = _forced_source.get()
    if forced is not None:
        return forced
    frame: FrameType | None = sys._getframe(1)
    files = _internal_files
    while frame is not None:
        file = frame.f_code.co_filename
        internal = files.get(file)
        if internal is None:
            internal = is_internal_file(file)
        if not internal and not (file == "<string>" and _is_generated(frame)):
            break
        frame = frame.f_back
    if frame is None:
        return UNKNOWN_SOURCE
    code = frame.f_code
    stack = _name_stack.get()
    key = (id(code), frame.f_lasti, stack)
    hit = _cache.get(key)
    if hit is not None:
        return hit[1]
    source = Source(code.co_filename, frame.f_lineno, code.co_name, stack)
    if len(_cache) >= _CACHE_LIMIT:
        _cache.clear()
    _cache[key] = (code, source)
    return source


@contextmanager
def name_scope(name: str) -> Iterator[None]:
    """Put `name` on the name stack of every equation recorded inside the ``with`` block."""
    outer = _name_stack.get()
    token = _name_stack.set(f"{outer}/{name}" if outer else name)
    try:
        yield
    finally:
        _name_stack.reset(token)


@contextmanager
def use_source(source: Source | None) -> Iterator[None]:
    """Give every equation recorded inside the block this source (None: find it as usual).

    Transforms use it when they replay a program, so that the new equations keep the lines of the
    equations they come from.
    """
    token = _forced_source.set(source)
    try:
        yield
    finally:
        _forced_source.reset(token)
