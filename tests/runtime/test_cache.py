"""The compile cache under damage, kills, full disks and concurrent processes."""

from __future__ import annotations

import dataclasses
import errno
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path

import pytest

from trnx.core import config
from trnx.runtime import cache as cache_module
from trnx.runtime.cache import (
    CacheKey,
    CompileCache,
    cache_directory,
    code_version,
    pack_entry,
    unpack_entry,
)

ROOT = Path(__file__).resolve().parents[2]
KEY = CacheKey("p", (0,), "trn2", "0.1.0+0", "0.50", "22.1", "znver3", "+avx2", "level=2 threads=2")


def make_cache(directory: Path | None) -> CompileCache[str]:
    """A cache whose programs are texts."""
    return CompileCache(str.encode, bytes.decode, directory)


def entries(directory: Path) -> list[Path]:
    """Every file below `directory`."""
    return sorted(p for p in directory.rglob("*") if p.is_file())


def never() -> str:
    """A build that must not run."""
    raise AssertionError("compiled although there is an entry")


def start(code: str, *arguments: object) -> subprocess.Popen[str]:
    """Another Python process that uses the same key."""
    head = f"""
    import os, sys, time
    from pathlib import Path
    sys.path.insert(0, {str(ROOT)!r})
    from trnx.runtime.cache import CacheKey, CompileCache
    key = CacheKey(**{dataclasses.asdict(KEY)!r})
    cache = CompileCache(str.encode, bytes.decode, Path(sys.argv[1]))
    """
    return subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(head) + textwrap.dedent(code), *map(str, arguments)],
        stdout=subprocess.PIPE,
        text=True,
    )


# ---- keys
@pytest.mark.parametrize("field", [f.name for f in dataclasses.fields(CacheKey)])
def test_every_field_is_in_the_digest(field: str) -> None:
    """Changing any one field changes the digest."""
    assert dataclasses.replace(KEY, **{field: ("other",)}).digest() != KEY.digest()


def test_digest_is_the_same_in_another_process(tmp_path: Path) -> None:
    """No hash seed, address or order goes into the key."""
    digests = set()
    for seed in ("1", "2"):
        env = dict(os.environ, PYTHONHASHSEED=seed)
        code = (
            "from trnx.runtime.cache import *\n"
            f"print(CacheKey(**{dataclasses.asdict(KEY)!r}).digest(), code_version())"
        )
        run = subprocess.run(
            [sys.executable, "-c", code], cwd=ROOT, env=env, capture_output=True, text=True
        )
        digests.add(run.stdout.strip())
    assert digests == {f"{KEY.digest()} {code_version()}"}


# ---- memory and disk
def test_built_once_then_from_memory_then_from_disk(tmp_path: Path) -> None:
    """Second call: memory. Second cache object: disk."""
    first = make_cache(tmp_path)
    assert first.get_or_build(KEY, lambda: "code") == "code"
    assert first.get_or_build(KEY, never) == "code"
    second = make_cache(tmp_path)
    assert second.get_or_build(KEY, never) == "code"
    assert (first.stats.compiles, first.stats.memory_hits, first.stats.writes) == (1, 1, 1)
    assert (second.stats.compiles, second.stats.disk_hits) == (0, 1)
    assert [p.suffix for p in entries(tmp_path)] == [".trnx"]


def test_moved_directory_keeps_its_entries(tmp_path: Path) -> None:
    """Entries hold no path."""
    make_cache(tmp_path / "a").get_or_build(KEY, lambda: "code")
    (tmp_path / "a").rename(tmp_path / "b")
    assert make_cache(tmp_path / "b").get_or_build(KEY, never) == "code"


def test_options_choose_the_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """cache_dir wins; without it the user's cache directory; disk_cache=0 uses none."""
    cache = make_cache(None)
    with config.cache_dir(str(tmp_path / "x")):
        cache.get_or_build(KEY, lambda: "code")
        assert len(entries(tmp_path / "x")) == 1
        with config.disk_cache(False):
            other = dataclasses.replace(KEY, program="q")
            cache.get_or_build(other, lambda: "code")
        assert len(entries(tmp_path / "x")) == 1
    with config.cache_dir(""):
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
        assert cache_directory() == tmp_path / "xdg" / "trnx"
        monkeypatch.delenv("XDG_CACHE_HOME")
        monkeypatch.setenv("HOME", str(tmp_path / "home"))
        assert cache_directory() == tmp_path / "home" / ".cache" / "trnx"


# ---- damage
PACKED = pack_entry(KEY, b"payload")


@pytest.mark.parametrize(
    "data",
    [
        b"",
        PACKED[:5],
        PACKED[:45],
        PACKED[:50],
        PACKED[:-1],
        PACKED + b"x",
        PACKED.replace(b"payload", b"pAyload"),
        b"other-cache\n" + PACKED[12:],
        pack_entry(dataclasses.replace(KEY, cpu="other"), b"payload"),
    ],
    ids=["empty", "magic", "checksum", "size", "short", "long", "flipped", "format", "other-key"],
)
def test_damaged_entry_is_never_loaded(tmp_path: Path, data: bytes) -> None:
    """The loader never sees a byte of a damaged entry, which is replaced and counted."""
    assert unpack_entry(PACKED, KEY) == b"payload"
    assert unpack_entry(data, KEY) is None

    def load(payload: bytes) -> str:
        raise AssertionError(f"loaded {payload!r}")

    cache: CompileCache[str] = CompileCache(str.encode, load, tmp_path)
    path = cache.path(KEY.digest())
    assert path is not None
    path.parent.mkdir(parents=True)
    path.write_bytes(data)
    assert cache.get_or_build(KEY, lambda: "again") == "again"
    assert cache.stats.broken_entries == 1
    assert make_cache(tmp_path).get_or_build(KEY, never) == "again"


def test_failed_compile_is_not_cached(tmp_path: Path) -> None:
    """The error is passed on, nothing is kept, the next call compiles."""
    cache = make_cache(tmp_path)

    def fail() -> str:
        raise RuntimeError("no such instruction")

    for _ in range(2):
        with pytest.raises(RuntimeError, match="no such instruction"):
            cache.get_or_build(KEY, fail)
    assert entries(tmp_path) == []
    assert cache.stats.failed_compiles == 2
    assert cache.get_or_build(KEY, lambda: "code") == "code"


@pytest.mark.parametrize("step", ["write", "rename"])
def test_full_disk_costs_only_the_entry(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    """ENOSPC halfway: the program runs, nothing is left, one warning says what to do."""
    real_open = open

    class FullFile:
        def __init__(self, path: Path, mode: str) -> None:
            self._file = real_open(path, mode)

        def __enter__(self) -> FullFile:
            return self

        def __exit__(self, *error: object) -> None:
            self._file.close()

        def write(self, data: bytes) -> int:
            self._file.write(data[: len(data) // 2])
            self._file.flush()
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def full_rename(source: object, target: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    cache = make_cache(tmp_path)
    with monkeypatch.context() as patch:
        if step == "write":
            patch.setattr(cache_module, "open", FullFile, raising=False)
        else:
            patch.setattr(os, "replace", full_rename)
        with pytest.warns(RuntimeWarning, match=r"ENOSPC: No space left.*TRNX_CACHE_DIR"):
            assert cache.get_or_build(KEY, lambda: "code") == "code"
        # The second failure is counted without another warning (warnings are errors here).
        other = dataclasses.replace(KEY, program="q")
        assert cache.get_or_build(other, lambda: "code2") == "code2"
    assert entries(tmp_path) == []
    assert cache.stats.failed_writes == 2
    assert make_cache(tmp_path).get_or_build(KEY, lambda: "now") == "now"


def test_directory_that_cannot_be_made(tmp_path: Path) -> None:
    """A cache below a plain file (as below a read-only mount): programs still compile and run."""
    (tmp_path / "file").write_text("")
    cache = make_cache(tmp_path / "file" / "cache")
    with pytest.warns(RuntimeWarning, match="cannot be written"):
        assert cache.get_or_build(KEY, lambda: "code") == "code"
    assert cache.get_or_build(KEY, never) == "code"


def test_dump_error_is_not_hidden(tmp_path: Path) -> None:
    """An error in serialisation is a bug of ours, not a full disk."""

    def dump(value: str) -> bytes:
        raise ValueError("cannot serialise")

    cache: CompileCache[str] = CompileCache(dump, bytes.decode, tmp_path)
    with pytest.raises(ValueError, match="cannot serialise"):
        cache.get_or_build(KEY, lambda: "code")
    assert entries(tmp_path) == []


# ---- processes
def test_killed_compile_leaves_no_entry_and_no_lock(tmp_path: Path) -> None:
    """SIGKILL while compiling: the next process does not hang and compiles."""
    child = start(
        "cache.get_or_build(key, lambda: (print('compiling', flush=True), time.sleep(60))[0])",
        tmp_path,
    )
    assert child.stdout is not None
    assert child.stdout.readline() == "compiling\n"
    child.send_signal(signal.SIGKILL)
    child.communicate()
    assert not [p for p in entries(tmp_path) if p.suffix == ".trnx"]
    assert make_cache(tmp_path).get_or_build(KEY, lambda: "code") == "code"
    assert [p.suffix for p in entries(tmp_path)] == [".trnx"]


def test_killed_write_leaves_no_broken_entry(tmp_path: Path) -> None:
    """SIGKILL between the two halves of a write: no entry; the stale temporary is swept later."""
    child = start(
        """
        from trnx.runtime import cache as module
        class Slow:
            def __init__(self, path, mode): self.file = open(path, mode)
            def __enter__(self): return self
            def __exit__(self, *error): self.file.close()
            def write(self, data):
                self.file.write(data[:20]); self.file.flush()
                print('half', flush=True); time.sleep(60)
        module.open = Slow
        cache.get_or_build(key, lambda: 'code')
        """,
        tmp_path,
    )
    assert child.stdout is not None
    assert child.stdout.readline() == "half\n"
    child.send_signal(signal.SIGKILL)
    child.communicate()
    (temporary,) = [p for p in entries(tmp_path) if p.suffix == ".tmp"]
    assert temporary.stat().st_size == 20
    old = time.time() - 7200
    os.utime(temporary, (old, old))
    assert make_cache(tmp_path).get_or_build(KEY, lambda: "code") == "code"
    assert [p.suffix for p in entries(tmp_path)] == [".trnx"]
    assert make_cache(tmp_path).get_or_build(KEY, never) == "code"


def test_two_processes_compile_once(tmp_path: Path) -> None:
    """Both ask at the same time; one compiles, the other waits and reads."""
    code = """
    def build():
        open(sys.argv[2], 'a').write('compiled ')
        while not Path(sys.argv[3]).exists(): time.sleep(0.01)
        return 'code'
    print('started', flush=True)
    print(cache.get_or_build(key, build), cache.stats.compiles, cache.stats.disk_hits)
    """
    log, go = tmp_path / "log", tmp_path / "go"
    children = [start(code, tmp_path / "cache", log, go) for _ in range(2)]
    for child in children:
        assert child.stdout is not None
        assert child.stdout.readline() == "started\n"
    while not log.exists():
        time.sleep(0.01)
    go.write_text("")
    outputs = sorted(child.communicate()[0].strip() for child in children)
    assert outputs == ["code 0 1", "code 1 0"]
    assert log.read_text() == "compiled "
    assert [p.suffix for p in entries(tmp_path / "cache")] == [".trnx"]


def test_threads_compile_once(tmp_path: Path) -> None:
    """Threads that ask for one key together compile it once and get one object."""
    cache = make_cache(tmp_path)
    barrier = threading.Barrier(4)
    inside = threading.Event()
    results: list[str] = []

    def build() -> str:
        assert not inside.is_set()
        inside.set()
        return "".join(["co", "de"])

    def work() -> None:
        barrier.wait()
        results.append(cache.get_or_build(KEY, build))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert cache.stats.compiles == 1
    assert len(results) == 4
    assert all(result is results[0] for result in results)


def _keyed(name: str) -> CacheKey:
    return dataclasses.replace(KEY, program=name)


def _stored(cache: CompileCache[str], names: str) -> str:
    """Those of the programs `names` (a letter each) that lie on disk."""
    paths = {name: cache.path(_keyed(name).digest()) for name in names}
    return "".join(name for name, path in paths.items() if path is not None and path.exists())


def test_least_recently_used_entries_go_first(tmp_path: Path) -> None:
    """Five entries of 0.3 MiB in 1 MiB: the fourth makes room, and a read counts as a use."""
    text = "x" * (300 << 10)
    with config.cache_limit(1):
        cache = make_cache(tmp_path)
        for age, name in enumerate("abc"):
            assert cache.get_or_build(_keyed(name), lambda: text) == text
            path = cache.path(_keyed(name).digest())
            assert path is not None
            os.utime(path, (1000 + age, 1000 + age))
        assert _stored(cache, "abc") == "abc"
        assert make_cache(tmp_path).get_or_build(_keyed("a"), never) == text
        cache.get_or_build(_keyed("d"), lambda: text)
        assert _stored(cache, "abcd") == "acd"
        # A process that starts now counts what is there before it writes.
        other = make_cache(tmp_path)
        other.get_or_build(_keyed("e"), lambda: text)
        assert _stored(cache, "abcde") == "ade"
        assert (cache.stats.evicted, other.stats.evicted) == (1, 1)


def test_an_entry_above_the_limit_is_kept_alone(tmp_path: Path) -> None:
    """The program that was just compiled stays, and files that are no entries are left alone."""
    (tmp_path / "00").mkdir()
    note = tmp_path / "00" / "note.txt"
    note.write_text("x" * (2 << 20))
    with config.cache_limit(1):
        cache = make_cache(tmp_path)
        cache.get_or_build(_keyed("a"), lambda: "small")
        cache.get_or_build(_keyed("b"), lambda: "x" * (3 << 20))
    assert _stored(cache, "ab") == "b"
    assert note.exists()


def test_no_limit_keeps_everything(tmp_path: Path) -> None:
    """A limit of 0 is none."""
    with config.cache_limit(0):
        cache = make_cache(tmp_path)
        for name in "ab":
            cache.get_or_build(_keyed(name), lambda: "x" * (2 << 20))
    assert _stored(cache, "ab") == "ab"
