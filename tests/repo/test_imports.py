"""The import arrows of docs/architecture.md, read from the syntax trees, and file lengths."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
MAX_LINES = 800

# layer -> the layers it may import besides itself. A folder of trnx/ that is not listed is a face.
MAY_IMPORT = {
    "core": set(),
    "ops": {"core"},
    "transforms": {"core", "ops"},
    "compiler": {"core", "ops"},
    "runtime": {"core", "ops", "transforms", "compiler"},
    "faces": {"core", "ops", "transforms", "compiler", "runtime"},
    "trnx_torch": {"core", "ops", "transforms", "compiler", "runtime", "faces"},
}

# third-party package -> folders that may import it; numpy, ml_dtypes and optree may be everywhere.
OUTSIDE = {
    "torch": ("trnx_torch", "trnx/interop"),
    "jax": ("trnx/interop",),
    "llvmlite": ("compiler/host",),
    "scipy": (),
    "sklearn": (),
}


def source_files() -> list[Path]:
    """Every Python file of the product, each once (the symlinks in trnx/ are not followed)."""
    files = []
    for top in ("trnx", "ops", "compiler", "trnx_torch"):
        for folder, subfolders, names in os.walk(ROOT / top, followlinks=False):
            subfolders[:] = [n for n in subfolders if not (Path(folder) / n).is_symlink()]
            files += [Path(folder) / name for name in names if name.endswith(".py")]
    return sorted(files)


def module_name(path: Path) -> str:
    """The import name of a file: ops/a.py is trnx.ops.a."""
    parts = list(path.relative_to(ROOT).with_suffix("").parts)
    if parts[0] in ("ops", "compiler"):
        parts.insert(0, "trnx")
    if parts[-1] == "__init__":
        parts.pop()
    return ".".join(parts)


def layer_of(module: str) -> str | None:
    """The layer a module belongs to, None for one outside the project."""
    parts = module.split(".")
    if parts[0] == "trnx_torch":
        return "trnx_torch"
    if parts[0] != "trnx":
        return None
    if len(parts) > 1 and parts[1] in MAY_IMPORT:
        return parts[1]
    return "faces"


def imported_modules(path: Path, tree: ast.AST) -> Iterator[tuple[int, str]]:
    """(line, absolute module) for every import, also those inside functions."""
    package = module_name(path).split(".")
    if path.name != "__init__.py":
        package.pop()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, alias.name
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            prefix = ".".join([*base, *([node.module] if node.module else [])])
            for alias in node.names:
                # `from trnx import core` names a layer in the alias, not in the module
                yield node.lineno, f"{prefix}.{alias.name}" if prefix == "trnx" else prefix


def violations(path: Path, text: str) -> list[str]:
    """One sentence per import that points down the table or leaves its folder."""
    name = path.relative_to(ROOT).as_posix()
    layer = layer_of(module_name(path))
    assert layer is not None
    found = []
    for line, module in imported_modules(path, ast.parse(text)):
        target = layer_of(module)
        top = module.split(".")[0]
        if top in ("ops", "compiler"):
            found.append(f"{name}:{line} imports {module} by its bare name")
        elif target is not None and target != layer and target not in MAY_IMPORT[layer]:
            found.append(f"{name}:{line} ({layer}) imports {module} ({target})")
        elif target is None and top in OUTSIDE and not name.startswith(OUTSIDE[top]):
            found.append(f"{name}:{line} imports {top}, which only {OUTSIDE[top]} may")
    return found


def test_import_arrows_point_up() -> None:
    """No module imports from a layer below its own."""
    files = source_files()
    assert len(files) > 5
    found = [v for path in files for v in violations(path, path.read_text(encoding="utf-8"))]
    assert not found, "\n".join(found)


@pytest.mark.parametrize(
    ("path", "text", "expected"),
    [
        ("trnx/core/a.py", "from trnx.ops import x", "(core) imports trnx.ops (ops)"),
        ("trnx/core/a.py", "from .. import runtime", "imports trnx.runtime (runtime)"),
        ("ops/a.py", "def f():\n  import trnx.compiler.tile", "(ops) imports trnx.compiler.tile"),
        ("ops/a.py", "from ..transforms.jvp import jvp", "imports trnx.transforms.jvp"),
        ("compiler/tile/a.py", "from trnx import numpy", "(compiler) imports trnx.numpy (faces)"),
        ("trnx/runtime/a.py", "import torch", "imports torch"),
        ("trnx/runtime/a.py", "import llvmlite.binding", "imports llvmlite"),
        ("trnx/numpy/a.py", "import trnx_torch", "imports trnx_torch"),
        ("trnx/numpy/a.py", "import ops.arith", "by its bare name"),
    ],
)
def test_reader_sees_a_wrong_arrow(path: str, text: str, expected: str) -> None:
    """The reader itself: each wrong import is found, in each spelling."""
    (sentence,) = violations(ROOT / path, text)
    assert expected in sentence


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("ops/a.py", "from trnx.core import Aval\nfrom ..core import dims"),
        ("compiler/tile/a.py", "from . import isa\nfrom ...core import Aval\nimport numpy"),
        ("trnx/runtime/jit.py", "from trnx import compiler, core"),
        ("compiler/host/a.py", "import llvmlite.ir"),
        ("trnx_torch/a.py", "import torch\nimport trnx.numpy as tnp"),
    ],
)
def test_reader_allows_a_right_arrow(path: str, text: str) -> None:
    """Allowed imports give no sentence."""
    assert violations(ROOT / path, text) == []


@pytest.mark.parametrize("name", ["ops", "compiler"])
def test_bare_import_raises(name: str) -> None:
    """`import ops` from the repository root would make a second registry, so it raises."""
    run = subprocess.run(
        [sys.executable, "-c", f"import {name}"], cwd=ROOT, capture_output=True, text=True
    )
    assert run.returncode == 1
    last = run.stderr.strip().splitlines()[-1]
    assert last.startswith("ImportError") and f"Write `import trnx.{name}`." in last


@pytest.mark.parametrize("name", ["ops", "compiler"])
def test_symlinks_are_in_place(name: str) -> None:
    """trnx/ops and trnx/compiler are relative links, so a clone can be anywhere."""
    link = ROOT / "trnx" / name
    assert link.is_symlink() and os.readlink(link) == f"../{name}"


def tracked_files() -> list[Path]:
    """Files git knows, or all product files in an unpacked source distribution."""
    run = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True)
    if run.returncode != 0:
        return source_files()
    return [ROOT / name for name in run.stdout.splitlines() if (ROOT / name).is_file()]


def test_no_file_is_longer_than_800_lines() -> None:
    """A file above the limit is split along what it holds."""
    long = {}
    for path in tracked_files():
        if path.suffix in (".py", ".cpp", ".h") and path.parent.name != "issues":
            with path.open(encoding="utf-8") as lines:
                count = sum(1 for _ in lines)
            if count > MAX_LINES:
                long[path.relative_to(ROOT).as_posix()] = count
    assert not long
