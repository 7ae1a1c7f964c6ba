"""Compiles and finds the C++ extension of device `neuron`.

One build serves one PyTorch minor version, one Python and one state of the sources; all three are
in the file name, so a build that does not fit is refused before the loader sees it. Uses only the
standard library and imports nothing of the package: the build backend loads this file by its path.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import platform
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

PACKAGE = Path(__file__).resolve().parent
SOURCES = PACKAGE / "csrc"
PREFIX = "_neuron"
PROCESSES = 2  # each compiler takes about 1 GB of memory
COMMAND = "python -m trnx_torch build"

# Sources that are compiled as one unit, because reading torch's headers takes most of the time. A
# source that is in no unit is compiled alone. Longest first: the last to finish decides the time.
UNITS: dict[str, tuple[str, ...]] = {
    "bindings": ("module", "bind_kernels", "hooks", "first_use", "guard", "allocator"),
    "kernels": (
        "pointwise",
        "reduction",
        "rowwise",
        "matmul",
        "launch",
        "operands",
        "plan",
        "program",
    ),
    "host": (
        "storage_ops",
        "movement",
        "fallback",
        "alias",
        "convolution",
        "generator",
        "tracking",
    ),
    "casts": ("autocast",),
}
# All registration and binding: optimising it costs time and gains nothing.
_PLAIN = frozenset({"casts", "bindings"})


class ExtensionError(ImportError):
    """The extension cannot be built or loaded; the text says why and what to do."""


@dataclass(frozen=True, slots=True)
class BuildKey:
    """What a build of the extension is good for."""

    torch: str  # full version, "2.13.0+cpu"
    python: str  # "cpython-311-x86_64-linux-gnu"
    sources: str  # first 12 digits of the sources' SHA-256

    @property
    def minor(self) -> str:
        """The part of the torch version that fixes its C++ layout: "2.13"."""
        return ".".join(self.torch.split(".")[:2])

    @property
    def file_name(self) -> str:
        """Name of the extension file of this key."""
        version = re.sub(r"[^0-9A-Za-z.]", "-", self.torch)
        return f"{PREFIX}-torch{version}-{self.python}-{self.sources}.so"

    @property
    def minor_pattern(self) -> str:
        """Glob of the files that this torch minor version can load."""
        return f"{PREFIX}-torch{self.minor}.*-{self.python}-{self.sources}.so"


def torch_version(torch_dir: Path) -> str:
    """The version of the PyTorch in `torch_dir`, read without importing it."""
    text = (torch_dir / "version.py").read_text()
    match = re.search(r"^__version__\s*=\s*['\"]([^'\"]+)['\"]", text, re.MULTILINE)
    if match is None:
        raise ExtensionError(
            f"{torch_dir / 'version.py'} does not tell PyTorch's version. Reinstall torch."
        )
    return match.group(1)


def source_hash() -> str:
    """First 12 digits of the SHA-256 over names and contents of the C++ sources."""
    digest = hashlib.sha256()
    for path in sorted(SOURCES.iterdir()):
        if path.suffix in (".cpp", ".h"):
            digest.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()[:12]


def key_for(torch_dir: Path) -> BuildKey:
    """The key a build for the PyTorch in `torch_dir` and this Python must have."""
    tag = sysconfig.get_config_var("SOABI") or f"{sys.implementation.cache_tag}-{sys.platform}"
    return BuildKey(torch_version(torch_dir), tag, source_hash())


def cache_dir() -> Path:
    """The per-user directory of builds made at first import."""
    base = os.environ.get("TRNX_CACHE_DIR")
    if base:
        return Path(base) / "torch"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "trnx" / "torch"


def is_editable() -> bool:
    """True if the package is used from its source tree, where builds stay beside the sources."""
    return (PACKAGE.parent / "pyproject.toml").is_file() and os.access(PACKAGE, os.W_OK)


def build_dir() -> Path:
    """Where a build made now goes: `trnx_torch/_lib` of a source tree, else the user's cache."""
    return PACKAGE / "_lib" if is_editable() else cache_dir()


def search_dirs() -> tuple[Path, ...]:
    """Directories a build may be in, first match wins."""
    return (PACKAGE, PACKAGE / "_lib", cache_dir())


def find_built(torch_dir: Path) -> Path | None:
    """The extension file that fits this PyTorch, Python and sources, if one was built.

    An exact match of the torch version comes first; a build for another patch release of the same
    minor version fits too.
    """
    key = key_for(torch_dir)
    for directory in search_dirs():
        if (directory / key.file_name).is_file():
            return directory / key.file_name
    for directory in search_dirs():
        for path in sorted(directory.glob(key.minor_pattern)):
            return path
    return None


def other_builds(torch_dir: Path) -> list[str]:
    """Torch versions (as in file names) of builds that are there but do not fit this PyTorch."""
    key = key_for(torch_dir)
    found = set()
    for directory in search_dirs():
        for path in directory.glob(f"{PREFIX}-torch*-{key.python}-*.so"):
            version = path.name[len(f"{PREFIX}-torch") :].split(f"-{key.python}-")[0]
            if ".".join(version.split(".")[:2]) != key.minor:
                found.add(version)
    return sorted(found)


def find_compiler() -> str | None:
    """The C++ compiler: what CXX names, else c++, g++ or clang++ on the path."""
    chosen = os.environ.get("CXX")
    if chosen:
        command = shlex.split(chosen)
        return chosen if command and shutil.which(command[0]) else None
    for name in ("g++", "c++", "clang++"):
        if shutil.which(name):
            return name
    return None


def missing_requirement(torch_dir: Path) -> str | None:
    """The first thing that is missing for a build, as a sentence with its remedy; None if none."""
    if find_compiler() is None:
        asked = os.environ.get("CXX")
        where = f"CXX={asked!r} is not a program" if asked else "none of g++, c++, clang++ is there"
        return f"no C++ compiler was found ({where}). Install g++ (Debian: apt install g++)"
    if not (torch_dir / "include" / "torch").is_dir():
        return f"the C++ headers of PyTorch are missing in {torch_dir}. Reinstall torch"
    if not (Path(sysconfig.get_paths()["include"]) / "Python.h").is_file():
        return "the C headers of Python are missing. Install them (Debian: apt install python3-dev)"
    return None


def units() -> dict[str, tuple[str, ...]]:
    """What is compiled: name of a unit -> its sources without suffix."""
    grouped = {source for sources in UNITS.values() for source in sources}
    alone = sorted(path.stem for path in SOURCES.glob("*.cpp") if path.stem not in grouped)
    return {**UNITS, **{source: (source,) for source in alone}}


def compile_commands(
    torch_dir: Path, work: Path, output: Path
) -> tuple[list[list[str]], list[str]]:
    """The command for each unit, which is written to `work`, and the link command."""
    compiler = shlex.split(find_compiler() or "c++")
    include = torch_dir / "include"
    flags = [
        "-std=c++20",
        "-fPIC",
        "-fvisibility=hidden",
        "-Wall",
        "-Wno-unknown-pragmas",
        f"-isystem{include}",
        f"-isystem{include / 'torch' / 'csrc' / 'api' / 'include'}",
        f"-isystem{sysconfig.get_paths()['include']}",
    ]
    compiles = []
    objects = []
    for name, sources in units().items():
        unit = work / f"{name}.cpp"
        unit.write_text("".join(f'#include "{SOURCES / source}.cpp"\n' for source in sources))
        target = work / f"{name}.o"
        level = "-O1" if name in _PLAIN else "-O2"
        compiles.append([*compiler, level, *flags, "-c", str(unit), "-o", str(target)])
        objects.append(str(target))
    libraries = [f"-L{torch_dir / 'lib'}", "-lc10", "-ltorch_cpu", "-ltorch", "-ltorch_python"]
    undefined = ["-undefined", "dynamic_lookup"] if sys.platform == "darwin" else ["-Wl,-s"]
    link = [*compiler, "-shared", "-o", str(output), *objects, *libraries, *undefined]
    return compiles, link


class _Progress:
    """One line on stderr that counts units and seconds; rewritten in place on a terminal."""

    def __init__(self, what: str, total: int, quiet: bool) -> None:
        self._what = what
        self._total = total
        self._done = 0
        self._start = time.monotonic()
        self._quiet = quiet
        self._terminal = not quiet and sys.stderr.isatty()
        self._finished = threading.Event()
        self._ticker = threading.Thread(target=self._tick, daemon=True)

    def __enter__(self) -> _Progress:
        if not self._quiet:
            self._write(f"trnx: {self._what} (once, about a minute)")
        if self._terminal:
            self._ticker.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        self._finished.set()
        if self._terminal:
            self._ticker.join()
        if not self._quiet:
            seconds = time.monotonic() - self._start
            self._write(f"trnx: {'failed after' if kind else 'done in'} {seconds:.0f} s", last=True)

    def step(self) -> None:
        """One more unit is compiled."""
        self._done += 1

    def _write(self, text: str, last: bool = False) -> None:
        if self._terminal:
            sys.stderr.write(f"\r\x1b[K{text}" + ("\n" if last else ""))
        else:
            sys.stderr.write(text + "\n")
        sys.stderr.flush()

    def _tick(self) -> None:
        while not self._finished.wait(0.5):
            seconds = time.monotonic() - self._start
            self._write(f"trnx: {self._what}: {self._done}/{self._total} units, {seconds:.0f} s")


@contextmanager
def _locked(directory: Path, waiting: Callable[[], None]) -> Iterator[None]:
    """Hold the directory's lock, which the kernel frees when the process dies.

    The lock file is in the temporary directory: the build directory may become a wheel.
    """
    name = hashlib.sha256(str(directory.resolve()).encode()).hexdigest()[:16]
    with open(Path(tempfile.gettempdir()) / f"trnx-{os.getuid()}-{name}.lock", "w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            waiting()
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _run(command: Sequence[str], verbose: bool) -> None:
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    if verbose:
        print(shlex.join(command), result.stdout, result.stderr, sep="\n", file=sys.stderr)
    if result.returncode != 0:
        lines = (result.stderr or result.stdout).strip().splitlines()
        errors = [line for line in lines if "error" in line.lower()][:3] or lines[-3:]
        detail = "; ".join(errors) if errors else f"exit status {result.returncode}"
        raise ExtensionError(
            f"the C++ compiler failed on the neuron extension: {detail}. "
            f"Run `{COMMAND} --verbose` to see the whole output."
        )


def checksum_file(path: Path) -> Path:
    """The file beside an extension that holds its SHA-256."""
    return path.with_suffix(".sha256")


def compile_extension(
    torch_dir: Path,
    out_dir: Path,
    *,
    quiet: bool = False,
    force: bool = False,
    verbose: bool = False,
) -> Path:
    """Compile the extension for the PyTorch in `torch_dir` into `out_dir`.

    Safe among concurrent processes: one compiles, the others wait and use its result. The file
    appears under its name only when it is whole.

    Args:
        torch_dir: directory of an installed torch package with headers.
        out_dir: directory that receives the file; made if missing.
        quiet: print no progress on stderr.
        force: compile even if a file of the same key is there.
        verbose: print every command with its whole output.

    Returns:
        Path of the extension.

    Raises:
        ExtensionError: compiler or headers are missing, or the compiler failed.
    """
    missing = missing_requirement(torch_dir)
    if missing is not None:
        raise ExtensionError(f"The neuron extension cannot be compiled: {missing}, then retry.")
    key = key_for(torch_dir)
    target = out_dir / key.file_name
    try:
        out_dir.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ExtensionError(
            f"The neuron extension cannot be stored in {out_dir}: {error.strerror}. "
            "Set TRNX_CACHE_DIR to a writable directory."
        ) from error

    def say_waiting() -> None:
        if not quiet:
            print("trnx: another process is compiling the neuron extension", file=sys.stderr)

    with _locked(out_dir, say_waiting):
        if target.is_file() and not force:
            return target
        for abandoned in out_dir.glob(f".{PREFIX}-*"):  # left by a build that was killed
            shutil.rmtree(abandoned, ignore_errors=True)
        with tempfile.TemporaryDirectory(prefix=f".{PREFIX}-", dir=out_dir) as name:
            work = Path(name)
            output = work / target.name
            compiles, link = compile_commands(torch_dir, work, output)
            what = f"compiling the neuron extension for torch {key.torch}"
            with (
                _Progress(what, len(compiles), quiet) as progress,
                ThreadPoolExecutor(min(PROCESSES, os.cpu_count() or 1)) as pool,
            ):

                def compile_one(command: Sequence[str]) -> None:
                    _run(command, verbose)
                    progress.step()

                try:
                    list(pool.map(compile_one, compiles))
                except BaseException:
                    pool.shutdown(wait=True, cancel_futures=True)
                    raise
                _run(link, verbose)
            digest = hashlib.sha256(output.read_bytes()).hexdigest()
            checksum = checksum_file(output)
            checksum.write_text(digest + "\n")
            os.replace(checksum, checksum_file(target))
            os.replace(output, target)
    return target


# The name under which the build backend asks for it.
build_extension = compile_extension


def verify(path: Path) -> None:
    """Raise ExtensionError unless the file is what its checksum says.

    The loader kills the process on a truncated file, so the bytes are checked before it sees them.
    """
    recorded = checksum_file(path)
    if recorded.is_file():
        digest = hashlib.sha256(path.read_bytes()).hexdigest()
        if digest == recorded.read_text().strip():
            return
    raise ExtensionError(
        f"The neuron extension {path} is damaged (its checksum does not match). "
        f"Run `{COMMAND} --force` to make it anew."
    )


def ensure_built(torch_dir: Path) -> Path:
    """The extension that fits this PyTorch: found, or else compiled now.

    Raises:
        ExtensionError: there is none and it cannot be compiled, or the one there is damaged.
    """
    found = find_built(torch_dir)
    if found is None:
        missing = missing_requirement(torch_dir)
        if missing is not None:
            others = other_builds(torch_dir)
            if others:
                raise ExtensionError(
                    f"The neuron extension here was built for torch {', '.join(others)}, but torch "
                    f"{torch_version(torch_dir)} is installed, and it cannot be compiled again: "
                    f"{missing}, then retry."
                )
            raise ExtensionError(
                f"The neuron extension was not built yet and cannot be compiled: {missing}, "
                "then retry."
            )
        return compile_extension(torch_dir, build_dir())
    verify(found)
    return found


def remove_stale(torch_dir: Path) -> list[Path]:
    """Delete builds of older sources from the build directory; the kept one is of the key now."""
    key = key_for(torch_dir)
    removed = []
    for path in build_dir().glob(f"{PREFIX}-torch*.so"):
        if path.name != key.file_name and not path.name.endswith(f"-{key.sources}.so"):
            path.unlink(missing_ok=True)
            checksum_file(path).unlink(missing_ok=True)
            removed.append(path)
    return removed


def describe(torch_dir: Path) -> str:
    """One paragraph for bug reports: versions, compiler, where the extension is."""
    found = find_built(torch_dir)
    return (
        f"torch {torch_version(torch_dir)} in {torch_dir}\n"
        f"python {platform.python_version()}, compiler {find_compiler() or 'none'}\n"
        f"extension {found if found is not None else 'not built'}"
    )
