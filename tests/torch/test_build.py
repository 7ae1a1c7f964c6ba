"""Building, finding and loading the extension, and what users read when that is impossible.

Each case works on a copy of the package without a build, in processes of its own.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from trnx_torch import _build, _loader  # noqa: E402

ROOT = Path(__file__).resolve().parents[2]
TORCH = _loader.torch_directory()

Run = Callable[..., subprocess.CompletedProcess[str]]

# What must work in every broken environment.
TORCH_IS_USABLE = """
import torch
model = torch.nn.Linear(3, 2)
model(torch.ones(1, 3)).sum().backward()
assert model.weight.grad.sum().item() == 6
"""
FIRST_USE = """
try:
    torch.ones(1, device="neuron")
except ImportError as error:
    print("ImportError:", error)
else:
    print("device works")
"""


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """A folder to put on the path: the package's sources, without any build."""
    shutil.copytree(
        ROOT / "trnx_torch",
        tmp_path / "site" / "trnx_torch",
        ignore=shutil.ignore_patterns("_lib", "__pycache__", "*.so"),
    )
    return tmp_path / "site"


@pytest.fixture
def run(site: Path, tmp_path: Path, run_python: Run) -> Run:
    """Runs a program with that copy first on the path and an empty build cache."""

    def run_here(program: str, **env: str) -> subprocess.CompletedProcess[str]:
        base = {"PYTHONPATH": str(site), "TRNX_CACHE_DIR": str(tmp_path / "cache"), "CXX": ""}
        return run_python(program, {**base, **env}, cwd=tmp_path)

    return run_here


@pytest.fixture
def no_compiler(tmp_path: Path) -> str:
    """A PATH on which there is no compiler."""
    empty = tmp_path / "bin"
    empty.mkdir()
    return str(empty)


def script(path: Path, body: str) -> str:
    path.write_text("#!/bin/sh\n" + body)
    path.chmod(0o755)
    return str(path)


def fake_compiler(folder: Path, extra: str = "") -> tuple[str, Path]:
    """A compiler that notes each call and writes a file where -o says; and its log."""
    log = folder / "calls"
    body = f"""
echo call >> {log}
while [ $# -gt 0 ]; do
  if [ "$1" = -o ]; then out="$2"; fi
  shift
done
{extra}
echo object > "$out"
"""
    return script(folder / "fake-cxx", body), log


def built_file() -> Path:
    found = _build.find_built(TORCH)
    assert found is not None, "run `python -m trnx_torch build` before the tests"
    return found


# ---- environments in which the device cannot work ------------------------------------------------
def test_no_compiler(run: Run, no_compiler: str) -> None:
    result = run(
        TORCH_IS_USABLE + FIRST_USE + "print(torch.neuron.is_available(), "
        "torch.neuron.device_count(), torch.accelerator.is_available())",
        PATH=no_compiler,
    )
    error, answers = result.stdout.splitlines()
    assert error == (
        "ImportError: The neuron extension was not built yet and cannot be compiled: no C++ "
        "compiler was found (none of g++, c++, clang++ is there). Install g++ (Debian: apt install "
        "g++), then retry."
    )
    assert answers == "False 0 False"
    assert result.stderr == ""


def test_no_compiler_and_explicit_import(run: Run, no_compiler: str) -> None:
    result = run("import trnx_torch", PATH=no_compiler)
    assert result.returncode == 1
    assert "no C++ compiler was found" in result.stderr.splitlines()[-1]


def test_cxx_names_no_program(run: Run, no_compiler: str) -> None:
    result = run(TORCH_IS_USABLE + FIRST_USE, CXX="no-such-compiler -O2")
    assert "(CXX='no-such-compiler -O2' is not a program)" in result.stdout


def test_build_for_another_torch_minor(run: Run, site: Path, no_compiler: str) -> None:
    key = _build.key_for(TORCH)
    other = _build.BuildKey("2.99.1+cpu", key.python, key.sources)
    # A file that would crash the process if it were loaded.
    (site / "trnx_torch" / other.file_name).write_bytes(b"\x7fELF garbage")
    result = run(TORCH_IS_USABLE + FIRST_USE, PATH=no_compiler)
    assert (
        f"ImportError: The neuron extension here was built for torch 2.99.1-cpu, but torch "
        f"{torch.__version__} is installed, and it cannot be compiled again: no C++ compiler"
    ) in result.stdout


def test_build_of_another_patch_release_is_used(site: Path) -> None:
    key = _build.key_for(TORCH)
    patch = _build.BuildKey(f"{key.minor}.77", key.python, key.sources)
    assert patch.file_name != key.file_name
    assert Path(patch.file_name).match(key.minor_pattern)
    other = _build.BuildKey("2.99.1", key.python, key.sources)
    assert not Path(other.file_name).match(key.minor_pattern)
    stale = _build.BuildKey(key.torch, key.python, "0" * 12)
    assert not Path(stale.file_name).match(key.minor_pattern)


def test_damaged_build(run: Run, site: Path) -> None:
    source = built_file()
    copy = site / "trnx_torch" / source.name
    copy.write_bytes(source.read_bytes()[:100_000])
    shutil.copy(_build.checksum_file(source), _build.checksum_file(copy))
    result = run(TORCH_IS_USABLE + FIRST_USE)
    line = result.stdout.strip()
    assert line == (
        f"ImportError: The neuron extension {copy} is damaged (its checksum does not match). "
        "Run `python -m trnx_torch build --force` to make it anew."
    )


def test_build_that_cannot_be_loaded(run: Run, site: Path) -> None:
    import hashlib

    copy = site / "trnx_torch" / built_file().name
    copy.write_bytes(b"not a library")
    digest = hashlib.sha256(b"not a library").hexdigest()
    _build.checksum_file(copy).write_text(digest)
    result = run(TORCH_IS_USABLE + FIRST_USE)
    assert f"ImportError: The neuron extension {copy} cannot be loaded (" in result.stdout
    assert "build --force" in result.stdout


def test_compiler_fails(run: Run, tmp_path: Path) -> None:
    broken = script(tmp_path / "cxx", 'echo "x.cpp:1: error: no such luck" >&2\nexit 1\n')
    result = run(TORCH_IS_USABLE + FIRST_USE, CXX=broken)
    assert (
        "ImportError: the C++ compiler failed on the neuron extension: x.cpp:1: error: no such "
        "luck. Run `python -m trnx_torch build --verbose` to see the whole output."
    ) in result.stdout
    assert "trnx: compiling the neuron extension" in result.stderr
    assert list((tmp_path / "cache" / "torch").iterdir()) == []


def test_error_is_raised_again_without_a_new_try(run: Run, tmp_path: Path) -> None:
    compiler, log = fake_compiler(tmp_path, "exit 1")
    # Units compile side by side, so a failing build may make any number of calls up to one per
    # unit; the second use must make none.
    program = f"import os, torch\n{FIRST_USE}os.remove({str(log)!r})\n{FIRST_USE}"
    result = run(program, CXX=compiler)
    assert result.stdout.count("ImportError") == 2
    assert not log.exists()


def test_unwritable_cache(run: Run, tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("")
    compiler, _ = fake_compiler(tmp_path)
    result = run(TORCH_IS_USABLE + FIRST_USE, CXX=compiler, TRNX_CACHE_DIR=str(blocked))
    assert "cannot be stored in" in result.stdout
    assert "Set TRNX_CACHE_DIR to a writable directory" in result.stdout


@pytest.mark.parametrize(
    "module",
    ["_register", "device", "_build"],
)
def test_broken_package_cannot_break_import_torch(run: Run, site: Path, module: str) -> None:
    path = site / "trnx_torch" / f"{module}.py"
    path.write_text("raise RuntimeError('boom')\n")
    result = run(TORCH_IS_USABLE + "print('fine')")
    assert result.stdout.strip() == "fine", result.stderr
    assert "device 'neuron' is not available in this process: boom" in result.stderr


def test_autoload_can_be_switched_off(run: Run) -> None:
    result = run(
        TORCH_IS_USABLE + "print(hasattr(torch, 'neuron'))", TORCH_DEVICE_BACKEND_AUTOLOAD="0"
    )
    assert result.stdout.strip() == "False"


def test_private_device_taken_by_another_package(run_python: Run) -> None:
    result = run_python(
        "import torch\ntorch.utils.rename_privateuse1_backend('other')\n"
        "try:\n    import trnx_torch\nexcept RuntimeError as error:\n    print(error)",
        {"TORCH_DEVICE_BACKEND_AUTOLOAD": "0"},
    )
    assert result.stdout.strip() == (
        "torch's private device already belongs to 'other', and a process has only one. Use "
        "trnx_torch in a process of its own."
    )


def test_without_torch(run_python: Run) -> None:
    result = run_python("import sys\nsys.modules['torch'] = None\nimport trnx_torch")
    assert result.stderr.splitlines()[-1] == (
        "ImportError: trnx_torch needs PyTorch. Install it with `pip install torch==2.13.0`."
    )


# ---- building ------------------------------------------------------------------------------------
def compile_with(compiler: str, out: Path, site: Path, **options: object) -> subprocess.Popen[str]:
    program = (
        "import sys; sys.argv = ['-m']\n"
        "from pathlib import Path\nfrom trnx_torch import _build\n"
        f"print(_build.compile_extension(Path({str(TORCH)!r}), Path({str(out)!r})))"
    )
    return subprocess.Popen(
        [sys.executable, "-c", program],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "CXX": compiler, "PYTHONPATH": str(site)},
        start_new_session=True,
    )


def test_concurrent_processes_compile_once(site: Path, tmp_path: Path) -> None:
    compiler, log = fake_compiler(tmp_path, "sleep 0.1")
    processes = [compile_with(compiler, tmp_path / "out", site) for _ in range(3)]
    outputs = [process.communicate(timeout=120) for process in processes]
    assert [process.returncode for process in processes] == [0, 0, 0], outputs
    paths = {out.strip() for out, _ in outputs}
    assert len(paths) == 1
    target = Path(paths.pop())
    assert len(log.read_text().split()) == len(_build.units()) + 1
    _build.verify(target)
    assert sorted(p.suffix for p in target.parent.iterdir()) == [".sha256", ".so"]


def test_killed_build_leaves_nothing_broken(site: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    slow, log = fake_compiler(tmp_path, "sleep 60")
    process = compile_with(slow, out, site)
    deadline = time.monotonic() + 60
    while not log.exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate(timeout=60)
    assert list(out.glob("*.so")) == []
    (tmp_path / "again").mkdir()
    compiler, _ = fake_compiler(tmp_path / "again")
    process = compile_with(compiler, out, site)
    stdout, stderr = process.communicate(timeout=120)
    assert process.returncode == 0, stderr
    _build.verify(Path(stdout.strip()))
    assert sorted(p.suffix for p in out.iterdir()) == [".sha256", ".so"]


def test_key_follows_sources_and_versions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copytree(_build.SOURCES, tmp_path / "csrc")
    before = _build.key_for(TORCH)
    assert before.torch == torch.__version__
    monkeypatch.setattr(_build, "SOURCES", tmp_path / "csrc")
    assert _build.key_for(TORCH) == before
    with open(tmp_path / "csrc" / "device.h", "a") as file:
        file.write("// changed\n")
    assert _build.key_for(TORCH).sources != before.sources
    (tmp_path / "version.py").write_text("__version__ = '2.14.0+cpu'\n")
    assert _build.key_for(tmp_path).minor == "2.14"


def test_every_source_is_compiled_once() -> None:
    compiled = [source for sources in _build.units().values() for source in sources]
    assert sorted(compiled) == sorted(path.stem for path in _build.SOURCES.glob("*.cpp"))


def test_command_line(run_python: Run) -> None:
    result = run_python(
        "import runpy, sys\nsys.argv = ['-m', 'build']\n"
        "import subprocess\n"
        "print(subprocess.run([sys.executable, '-m', 'trnx_torch', 'build'],"
        " capture_output=True, text=True).stdout)\n"
        "print(subprocess.run([sys.executable, '-m', 'trnx_torch', 'info'],"
        " capture_output=True, text=True).stdout)"
    )
    assert f"trnx: neuron extension ready: {built_file()}" in result.stdout
    assert f"torch {torch.__version__} in " in result.stdout


# ---- what importing changes, and what first use changes ------------------------------------------
def test_importing_changes_nothing_for_cpu_programs(run_python: Run) -> None:
    result = run_python(
        TORCH_IS_USABLE
        + """
import os, sys, threading
assert not torch.neuron.is_initialized()
child = os.fork()  # a backward in the parent must not forbid one in the child
if child == 0:
    model(torch.ones(1, 3)).sum().backward()
    os._exit(17)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
print(torch.ones(2).device, torch.get_default_device(), "llvmlite" in sys.modules)
x = torch.ones(2, device="neuron", requires_grad=True)  # after a backward on cpu
(x * 3).sum().backward()
print(x.grad.tolist(), torch.neuron.is_initialized())
"""
    )
    assert result.stdout.splitlines() == ["17", "cpu cpu False", "[3.0, 3.0] True"], result.stderr


def test_fork_after_use(run_python: Run) -> None:
    result = run_python(
        """
import os, torch, warnings
warnings.simplefilter("ignore")
x = torch.ones(2, device="neuron", requires_grad=True)
(x * 3).sum().backward()
if os.fork() == 0:
    print((torch.ones(2, device="neuron") + 1).tolist(), flush=True)
    try:
        (x * 3).sum().backward()
    except RuntimeError as error:
        print(error, flush=True)
    os._exit(0)
os.wait()
(x * 3).sum().backward()
print(x.grad.tolist())
"""
    )
    lines = result.stdout.splitlines()
    assert lines[0] == "[2.0, 2.0]"
    assert lines[1].startswith("Unable to handle autograd's threading in combination with fork")
    assert lines[2] == "[6.0, 6.0]"


FIRST_USES = [
    "torch.Generator('neuron')",
    "torch.Event(device='neuron')",
    "torch.neuron.Stream()",
    "torch.neuron.Event(enable_timing=True)",
    "torch.ones(2).pin_memory()",
    "torch.accelerator.memory_allocated()",
    "torch.accelerator.synchronize()",
    "torch.neuron.manual_seed(3)",
    "torch.UntypedStorage(3, device='neuron')",
    "torch.accelerator.current_stream()",
    "torch.neuron.get_rng_state()",
    "torch.autocast('neuron').__enter__()",
    "torch.neuron.memory_summary()",
    "torch.load(io.BytesIO(saved), map_location='neuron')",
    "torch.nn.Linear(2, 2).to('neuron')",
    "torch.neuron.set_device(0)",
]


def test_anything_may_come_first(run_python: Run) -> None:
    result = run_python(
        f"""
import io, os, torch, traceback
import trnx_torch.eager.loss, trnx_torch.eager.pointwise  # once, not in every child
assert not torch.neuron.is_initialized()
buffer = io.BytesIO()
torch.save(torch.ones(2), buffer)
saved = buffer.getvalue()
for use in {FIRST_USES!r}:
    child = os.fork()  # each use is the first in its process
    if child == 0:
        try:
            exec(use)
            torch.manual_seed(0)
            assert torch.ones(2, device="neuron").tolist() == [1.0, 1.0]
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if status:
        print(use, status)
"""
    )
    assert result.stdout == "", result.stderr


def test_seed_set_before_first_use_counts(run_python: Run) -> None:
    program = "import torch\n{}\nprint(torch.rand(3, device='neuron').tolist())"
    first = run_python(program.format("torch.manual_seed(5)")).stdout
    second = run_python(program.format("torch.ones(1, device='neuron'); torch.manual_seed(5)"))
    assert first == second.stdout
    assert first.startswith("[0.")
