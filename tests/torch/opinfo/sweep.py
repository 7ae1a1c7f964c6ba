"""Runs measurements in worker processes: a crash or a hang costs one entry, not the sweep."""

from __future__ import annotations

import json
import math
import os
import queue
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[3]
RESULTS = Path(__file__).with_name("results.json")
PATIENCE = 900.0
"""Seconds an entry may take before its worker is ended."""

START = 1200.0
"""Seconds a worker may take to begin: it may have to wait for the extension to be compiled."""

BATCH = 40
"""Entries per process: memory and Dynamo's caches do not grow without end."""


def _worker(kind: str, names: list[str], limit: int, parts: str) -> subprocess.Popen[str]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "tests.torch.opinfo.worker", kind, str(limit), parts, *names]
    return subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env=environment,
        cwd=ROOT,
    )


def _lines(process: subprocess.Popen[str]) -> Iterator[str | None]:
    """Lines a worker prints; None when it has been silent for too long and was ended."""
    found: queue.Queue[str | None] = queue.Queue()

    def read() -> None:
        assert process.stdout is not None
        for line in process.stdout:
            found.put(line)
        found.put(None)

    threading.Thread(target=read, daemon=True).start()
    patience = START
    while True:
        try:
            line = found.get(timeout=patience)
        except queue.Empty:
            process.kill()
            while found.get() is not None:
                continue
            yield None
            return
        if line is None:
            return
        patience = PATIENCE
        yield line


def run(
    kind: str,
    names: list[str],
    *,
    limit: int = 0,
    parts: str = "all",
    jobs: int = 1,
    report: Callable[[str, dict[str, Any]], None] | None = None,
) -> dict[str, dict[str, Any]]:
    """Measure entries; a dead worker is replaced for what is left of its batch.

    Args:
        kind: "operators", "modules" or "optimizers".
        names: entries of that database.
        limit: samples per dtype at most; 0 for all.
        parts: "eager" (with gradients), "compiled" or "all".
        jobs: worker processes at a time.
        report: called with every entry as it is finished, one call at a time.

    Raises:
        RuntimeError: a worker failed before its first measurement.
    """
    results: dict[str, dict[str, Any]] = {}
    lock = threading.Lock()

    def done(name: str, entry: dict[str, Any]) -> None:
        with lock:
            results[name] = entry
            if report is not None:
                report(name, entry)

    size = min(BATCH, math.ceil(len(names) / jobs)) or 1
    batches = [names[first : first + size] for first in range(0, len(names), size)]
    with ThreadPoolExecutor(jobs) as pool:
        for finished in [pool.submit(_run, kind, b, limit, parts, done) for b in batches]:
            finished.result()
    return results


def _run(
    kind: str,
    names: list[str],
    limit: int,
    parts: str,
    done: Callable[[str, dict[str, Any]], None],
) -> None:
    """Measure a batch, in as many processes as it takes."""
    todo = list(names)
    while todo:
        running, began = None, time.monotonic()
        with _worker(kind, todo, limit, parts) as process:
            for line in _lines(process):
                if line is None:
                    break
                word, _, rest = line.partition(" ")
                name, _, text = rest.strip().partition(" ")
                if word == "START":
                    running, began = name, time.monotonic()
                elif word == "DONE":
                    done(name, json.loads(text))
                    todo.remove(name)
                    running = None
            status = process.wait()
        if running is not None:
            hang = time.monotonic() - began >= PATIENCE
            done(running, {"crash": "hang" if hang else f"crash with status {status}"})
            todo.remove(running)
        elif status:
            raise RuntimeError(f"A worker failed with status {status} before any measurement.")


def load(path: Path = RESULTS) -> dict[str, Any]:
    """The committed results: kind -> name -> entry."""
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}


def save(results: dict[str, Any], path: Path = RESULTS) -> None:
    """Write results, one entry a line, so that a change of one operator is one line of a diff."""
    blocks = []
    for kind in sorted(results):
        lines = [
            f"  {json.dumps(name)}: {json.dumps(entry, sort_keys=True)}"
            for name, entry in sorted(results[kind].items())
        ]
        blocks.append(f" {json.dumps(kind)}: {{\n" + ",\n".join(lines) + "\n }")
    text = "{\n" + ",\n".join(blocks) + "\n}\n"
    temporary = path.with_suffix(".part")
    temporary.write_text(text, encoding="utf-8")
    temporary.replace(path)
