"""The compile cache: compiled programs in memory and on disk, keyed by content.

A key lists everything the code depends on (:class:`CacheKey`). On disk an entry is one file,
written to a temporary and renamed, with a checksum that is verified before anything else reads a
byte: LLVM crashes the process on a truncated object. Processes share a directory: a lock file per
key makes two that need the same program compile it once. A failed compile leaves nothing behind, a
failed write costs only the entry, and both are counted. Entries unused for longest are removed when
all together take more than option `cache_limit`.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import functools
import hashlib
import itertools
import os
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Generic, TypeVar

from trnx.core import config
from trnx.core.version import __version__
from trnx.runtime.eviction import evict, mark_used

T = TypeVar("T")

_MAGIC = b"trnx-cache-1\n"
_SUFFIX = ".trnx"
_STALE_SECONDS = 3600
_package_directory = Path(__file__).resolve().parents[1]


@dataclass(frozen=True, slots=True)
class CacheKey:
    """Everything a compiled program depends on. Options that are not named here do not change code.

    Attributes:
        program: fingerprint of the IR.
        donated: positions of inputs whose memory results may take.
        target: row of the hardware table (option `target`, or `cpu`).
        trnx: version of trnx and digest of its compiler sources.
        llvmlite: version of the binding.
        llvm: version of LLVM.
        cpu: name of the CPU that code is generated for.
        features: its feature string.
        options: options captured in the code: optimisation level and thread limit.
    """

    program: str
    donated: tuple[int, ...]
    target: str
    trnx: str
    llvmlite: str
    llvm: str
    cpu: str
    features: str
    options: str

    def text(self) -> str:
        """The key as lines `name: value`; equal keys have equal texts in every process."""
        return "".join(f"{f.name}: {getattr(self, f.name)!r}\n" for f in fields(self))

    def digest(self) -> str:
        """sha256 of the text, in hexadecimal."""
        return hashlib.sha256(self.text().encode()).hexdigest()


@functools.cache
def code_version() -> str:
    """Version of trnx with a digest of the sources that decide what is compiled.

    An edited source makes old entries unreachable, so a checkout needs no version bump per edit.
    """
    digest = hashlib.sha256()
    for folder in ("core", "ops", "transforms", "compiler"):
        for path in sorted((_package_directory / folder).rglob("*.py")):
            digest.update(path.relative_to(_package_directory).as_posix().encode())
            digest.update(path.read_bytes())
    return f"{__version__}+{digest.hexdigest()[:16]}"


@dataclass(slots=True)
class CacheStats:
    """Counts since the cache was made."""

    memory_hits: int = 0
    disk_hits: int = 0
    compiles: int = 0
    failed_compiles: int = 0
    writes: int = 0
    failed_writes: int = 0
    broken_entries: int = 0
    evicted: int = 0


class CompileCache(Generic[T]):
    """Maps keys to compiled programs.

    Args:
        dump: compiled program -> bytes for the disk.
        load: those bytes -> compiled program.
        directory: where entries lie; None follows the options `cache_dir` and `disk_cache` at
            each use.
    """

    def __init__(
        self,
        dump: Callable[[T], bytes],
        load: Callable[[bytes], T],
        directory: Path | None = None,
    ) -> None:
        self._dump = dump
        self._load = load
        self._directory = directory
        self._entries: dict[str, T] = {}
        self._lock = threading.Lock()
        self._building: dict[str, threading.Lock] = {}
        self._warned: set[Path] = set()
        self._swept: set[Path] = set()
        self._used: dict[Path, int] = {}
        self._serial = itertools.count()
        self.stats = CacheStats()

    def directory(self) -> Path | None:
        """Directory of the disk entries, None when the disk is not used."""
        if self._directory is not None:
            return self._directory
        return cache_directory() if config.disk_cache.value else None

    def get_or_build(self, key: CacheKey, build: Callable[[], T]) -> T:
        """The compiled program of `key`; compiled by `build` if neither memory nor disk has it.

        Threads and processes that ask for one key at the same time compile it once. What `build`
        raises is passed on and nothing is kept.
        """
        digest = key.digest()
        found = self._entries.get(digest)
        if found is not None:
            self.stats.memory_hits += 1
            return found
        with self._lock:
            gate = self._building.setdefault(digest, threading.Lock())
        try:
            with gate:
                found = self._entries.get(digest)
                if found is None:
                    found = self._entries[digest] = self._from_disk_or_build(key, digest, build)
                else:
                    self.stats.memory_hits += 1
        finally:
            with self._lock:
                self._building.pop(digest, None)
        return found

    def clear_memory(self) -> None:
        """Forget the entries in memory; those on disk stay."""
        self._entries.clear()

    def __len__(self) -> int:
        return len(self._entries)

    # ---- disk
    def path(self, digest: str) -> Path | None:
        """File of an entry, None when the disk is not used."""
        directory = self.directory()
        return None if directory is None else directory / digest[:2] / (digest + _SUFFIX)

    def _from_disk_or_build(self, key: CacheKey, digest: str, build: Callable[[], T]) -> T:
        path = self.path(digest)
        if path is None:
            return self._build(build)
        found = self._read(key, path)
        if found is not None:
            return found
        with _process_lock(path.with_suffix(".lock")):
            found = self._read(key, path)  # another process may have written it meanwhile
            if found is not None:
                return found
            built = self._build(build)
            self._write(key, path, built)
            return built

    def _build(self, build: Callable[[], T]) -> T:
        self.stats.compiles += 1
        try:
            return build()
        except BaseException:
            self.stats.failed_compiles += 1
            raise

    def _read(self, key: CacheKey, path: Path) -> T | None:
        """The entry, or None if there is none; a broken one is removed and counted."""
        try:
            data = path.read_bytes()
        except OSError:
            return None
        payload = unpack_entry(data, key)
        if payload is None:
            self.stats.broken_entries += 1
            with contextlib.suppress(OSError):
                path.unlink()
            return None
        mark_used(path)
        loaded = self._load(payload)
        self.stats.disk_hits += 1
        return loaded

    def _write(self, key: CacheKey, path: Path, value: T) -> None:
        """Write an entry so that no reader ever sees a part of it."""
        temporary = path.with_name(f".{path.stem}.{os.getpid()}.{next(self._serial)}.tmp")
        data = pack_entry(key, self._dump(value))
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with open(temporary, "wb") as file:
                file.write(data)
            os.replace(temporary, path)
        except OSError as error:
            with contextlib.suppress(OSError):
                temporary.unlink()
            self._write_failed(path.parent.parent, error)
            return
        self.stats.writes += 1
        self._sweep(path.parent)
        self._keep_within_limit(path, len(data))

    def _keep_within_limit(self, path: Path, size: int) -> None:
        """After a write of `size` bytes: remove old entries if there is more than is allowed.

        The directory is read at the first write and whenever what this process knows of exceeds
        the limit; what other processes write in between is found then.
        """
        limit = config.cache_limit.value << 20
        if not limit:
            return
        directory = path.parent.parent
        with self._lock:
            known = self._used.get(directory)
            if known is not None and known + size <= limit:
                self._used[directory] = known + size
                return
            self._used[directory], removed = evict(directory, _SUFFIX, limit, path)
            self.stats.evicted += removed

    def _write_failed(self, directory: Path, error: OSError) -> None:
        self.stats.failed_writes += 1
        if directory not in self._warned:
            self._warned.add(directory)
            reason = errno.errorcode.get(error.errno or 0, "error")
            warnings.warn(
                f"The compile cache in {directory} cannot be written ({reason}: {error.strerror}), "
                "so programs will be compiled again in the next process. "
                "Free space there, or point TRNX_CACHE_DIR to another directory.",
                RuntimeWarning,
                stacklevel=2,
            )

    def _sweep(self, folder: Path) -> None:
        """Once per folder: remove temporaries that killed processes left behind."""
        if folder in self._swept:
            return
        self._swept.add(folder)
        limit = time.time() - _STALE_SECONDS
        for temporary in folder.glob(".*.tmp"):
            with contextlib.suppress(OSError):
                if temporary.stat().st_mtime < limit:
                    temporary.unlink()


def cache_directory() -> Path:
    """The directory in force: option `cache_dir`, else the user's cache directory."""
    chosen = config.cache_dir.value
    if chosen:
        return Path(chosen).expanduser()
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "trnx"


def pack_entry(key: CacheKey, payload: bytes) -> bytes:
    """The bytes of an entry: magic, checksum of all that follows, key text, payload."""
    text = key.text().encode()
    body = len(text).to_bytes(8, "little") + text + payload
    return _MAGIC + hashlib.sha256(body).digest() + body


def unpack_entry(data: bytes, key: CacheKey) -> bytes | None:
    """The payload of an entry, or None if it is damaged or belongs to another key."""
    start = len(_MAGIC) + 32
    if data[: len(_MAGIC)] != _MAGIC or len(data) < start + 8:
        return None
    body = data[start:]
    if hashlib.sha256(body).digest() != data[len(_MAGIC) : start]:
        return None
    size = int.from_bytes(body[:8], "little")
    if body[8 : 8 + size] != key.text().encode():
        return None
    return body[8 + size :]


@contextlib.contextmanager
def _process_lock(path: Path) -> Iterator[None]:
    """Hold the lock file `path` against other processes.

    The file is removed before the lock is released, so a waiter that gets the lock of a removed
    file tries again. Where no lock can be had (read-only directory, file system without locks)
    the caller goes on without one: the worst case is a second compile.
    """
    descriptor = -1
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        while True:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            if _same_file(descriptor, path):
                break
            os.close(descriptor)
            descriptor = -1
    except OSError:
        if descriptor >= 0:
            os.close(descriptor)
            descriptor = -1
    try:
        yield
    finally:
        if descriptor >= 0:
            with contextlib.suppress(OSError):
                path.unlink()
            os.close(descriptor)


def _same_file(descriptor: int, path: Path) -> bool:
    try:
        there = os.stat(path)
    except FileNotFoundError:
        return False
    here = os.fstat(descriptor)
    return (here.st_dev, here.st_ino) == (there.st_dev, there.st_ino)
