"""The wheel: what is in it, and that it works away from the source tree."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

from trnx.core.version import __version__

ROOT = Path(__file__).resolve().parents[2]
PRODUCT = ("trnx", "ops", "compiler", "trnx_torch", "build_support")
FILES = ("pyproject.toml", "setup.py", "MANIFEST.in", "README.md", "LICENSE")


def run(*command: object, cwd: Path, **variables: str) -> str:
    """Standard output of a command; its error output fails the test."""
    done = subprocess.run(
        list(map(str, command)),
        cwd=cwd,
        env=dict(os.environ, **variables),
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, (done.stdout + done.stderr)[-4000:]
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A pure wheel, built from a copy of the sources without network or isolation."""
    directory = tmp_path_factory.mktemp("wheel")
    source = directory / "source"
    source.mkdir()
    ignore = shutil.ignore_patterns("__pycache__", "*.so", "*.egg-info")
    for name in PRODUCT:
        shutil.copytree(ROOT / name, source / name, symlinks=True, ignore=ignore)
    for name in FILES:
        shutil.copy(ROOT / name, source / name)
    pip = (sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation")
    run(*pip, "-w", directory, source, cwd=directory, TRNX_BUILD_EXTENSION="0")
    (built,) = directory.glob("*.whl")
    return built


def test_name_and_contents(wheel: Path) -> None:
    """Symlinked packages are under trnx, C++ sources come along, nothing lies at the top."""
    assert wheel.name == f"trnx-{__version__}-py3-none-any.whl"
    names = set(zipfile.ZipFile(wheel).namelist())
    tops = {name.split("/")[0] for name in names}
    assert tops == {"trnx", "trnx_torch", f"trnx-{__version__}.dist-info"}
    for top, prefix in (("trnx", ""), ("ops", "trnx/"), ("compiler", "trnx/"), ("trnx_torch", "")):
        for path in (ROOT / top).rglob("*.py"):
            relative = path.relative_to(ROOT).as_posix()
            if not relative.startswith(("trnx/ops", "trnx/compiler")):
                assert prefix + relative in names
    for path in (ROOT / "trnx_torch" / "csrc").glob("*.[ch]*"):
        assert f"trnx_torch/csrc/{path.name}" in names
    assert {"trnx/py.typed", "trnx_torch/py.typed"} <= names
    assert any(name.endswith("licenses/LICENSE") for name in names)


def test_metadata(wheel: Path) -> None:
    """Run-time dependencies are the four; torch and jax are extras; licence and Python version."""
    archive = zipfile.ZipFile(wheel)
    text = archive.read(f"trnx-{__version__}.dist-info/METADATA").decode()
    requires = [line for line in text.splitlines() if line.startswith("Requires-Dist: ")]
    plain = {line.split()[1].split(">")[0] for line in requires if "extra ==" not in line}
    assert plain == {"numpy", "ml_dtypes", "optree", "llvmlite"}
    assert 'Requires-Dist: torch<2.15,>=2.13; extra == "torch"' in requires
    assert "License-Expression: Apache-2.0" in text
    assert "Requires-Python: >=3.11" in text
    entry = archive.read(f"trnx-{__version__}.dist-info/entry_points.txt").decode()
    assert "neuron = trnx_torch._autoload:autoload" in entry


def test_unpacked_wheel_imports_without_the_source_tree(wheel: Path, tmp_path: Path) -> None:
    """trnx.ops and trnx.compiler resolve to the wheel's own folders."""
    zipfile.ZipFile(wheel).extractall(tmp_path / "site")
    code = (
        "import sys; sys.path.insert(0, sys.argv[1])\n"
        "import trnx, trnx.ops, trnx.compiler, trnx.core\n"
        "print(trnx.__version__, *[m.__file__ for m in (trnx, trnx.ops, trnx.compiler)])"
    )
    out = run(sys.executable, "-c", code, tmp_path / "site", cwd=tmp_path).split()
    assert out[0] == __version__
    assert all(Path(file).is_relative_to(tmp_path / "site") for file in out[1:])


def test_build_requires_no_torch() -> None:
    """Naming torch there would let pip fetch one of its own choice and build against it."""
    data = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    assert data["build-system"]["requires"] == ["setuptools>=77"]
