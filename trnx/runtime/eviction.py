"""Keeps a directory of cache entries within a size: those unused for longest go first.

An entry counts as used when its file's modification time says so: a read sets it, because access
times are switched off on many file systems. Processes share a directory without a lock here: a file
that another one removed meanwhile is gone, which is what was wanted, and one that is being read
stays readable.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

_TARGET: Final = 0.9
"""What is left of the limit after entries were removed, so that not every write removes some."""


@dataclass(frozen=True, slots=True)
class _Entry:
    used: int
    size: int
    path: str


def mark_used(path: Path) -> None:
    """Say that an entry was read now; without effect where this may not be written."""
    with contextlib.suppress(OSError):
        os.utime(path)


def evict(directory: Path, suffix: str, limit: int, keep: Path) -> tuple[int, int]:
    """Remove entries until those left take at most `limit` bytes.

    Args:
        directory: holds folders that hold entries.
        suffix: how names of entries end; other files are left alone and not counted.
        limit: bytes.
        keep: an entry that stays whatever it takes.

    Returns:
        The bytes that entries take now, and how many were removed.
    """
    entries = sorted(_entries(directory, suffix), key=lambda entry: entry.used)
    total, removed = sum(entry.size for entry in entries), 0
    if total <= limit:
        return total, removed
    for entry in entries:
        if total <= _TARGET * limit:
            break
        if entry.path == str(keep):
            continue
        with contextlib.suppress(FileNotFoundError):
            try:
                os.unlink(entry.path)
            except PermissionError:  # somebody else's entry in a shared directory
                continue
        total -= entry.size
        removed += 1
    return total, removed


def _entries(directory: Path, suffix: str) -> Iterator[_Entry]:
    with contextlib.suppress(OSError), os.scandir(directory) as folders:
        for folder in folders:
            with contextlib.suppress(OSError), os.scandir(folder.path) as files:
                for file in files:
                    if not file.name.endswith(suffix):
                        continue
                    with contextlib.suppress(FileNotFoundError):
                        status = file.stat()
                        yield _Entry(status.st_mtime_ns, status.st_size, file.path)
