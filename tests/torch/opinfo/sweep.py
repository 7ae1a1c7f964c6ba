"""Runs measurements in worker processes: a crash or a hang costs one entry, not the sweep."""

from __future__ import annotations

import json
import os
import queue
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[3]
RESULTS = Path(__file__).with_name("results.json")
PATIENCE = 240.0
"""Seconds one entry may take before its worker is ended."""

BATCH = 40
"""Entries per process: memory and Dynamo's caches do not grow without end."""


def _worker(kind: str, names: list[str], limit: int, parts: str) -> subprocess.Popen[str]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "tests.torch.opinfo.worker", kind, str(limit), parts, *names]
    return subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
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

    def drain() -> None:
        assert process.stderr is not None
        for _ in process.stderr:
            continue

    threading.Thread(target=read, daemon=True).start()
    threading.Thread(target=drain, daemon=True).start()
    while True:
        try:
            line = found.get(timeout=PATIENCE)
        except queue.Empty:
            process.kill()
            yield None
            return
        if line is None:
            return
        yield line


def run(
    kind: str,
    names: list[str],
    *,
    limit: int = 0,
    parts: str = "all",
    report: Callable[[str, dict[str, Any]], None] | None = None,
) -> dict[str, dict[str, Any]]:
    """Measure entries one after the other; a dead worker is replaced for what is left.

    Args:
        kind: "operators", "modules" or "optimizers".
        names: entries of that database.
        limit: samples per dtype at most; 0 for all.
        parts: "eager" (with gradients), "compiled" or "all".
        report: called with every entry as it is finished.
    """
    results: dict[str, dict[str, Any]] = {}
    todo = list(names)
    while todo:
        process = _worker(kind, todo[:BATCH], limit, parts)
        running, began = None, time.monotonic()
        for line in _lines(process):
            if line is None:
                break
            word, _, rest = line.partition(" ")
            name, _, text = rest.strip().partition(" ")
            if word == "START":
                running, began = name, time.monotonic()
            elif word == "DONE":
                results[name] = json.loads(text)
                running = None
                if report is not None:
                    report(name, results[name])
        status = process.wait()
        if running is not None:
            seconds = time.monotonic() - began
            cause = "hang" if seconds >= PATIENCE else f"crash with status {status}"
            results[running] = {"crash": cause}
            if report is not None:
                report(running, results[running])
        elif status:
            raise RuntimeError(f"A worker failed with status {status} before any measurement.")
        todo = [name for name in todo if name not in results]
    return results


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
