"""The whole sweep over JAX's harnesses: crash-isolated workers, resumable, one line per harness.

    python -m tests.interop.sweep --state FILE [--only TEXT ...] [--write]

Each worker runs a share of the harnesses in its own process and appends to `FILE`; a harness that
kills its worker or takes longer than a minute is recorded as such, and the worker is started again
behind it. Run again with the same file, it takes up where it stopped. `--write` puts the outcome
into the committed record and docs/jax_support.md.
"""

from __future__ import annotations

import argparse
import json
import os
import selectors
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import jax

from tests.interop import jax_harness, jax_record

ROOT = Path(__file__).resolve().parents[2]
PATIENCE = 60.0
"""Seconds after which a harness counts as hanging."""


def main(argv: Sequence[str] | None = None) -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description="Run JAX's primitive harnesses through from_jax.")
    parser.add_argument("--state", type=Path, required=True, help="file to resume from")
    parser.add_argument("--only", nargs="*", default=[], help="beginnings of harness names")
    parser.add_argument("--write", action="store_true", help="update the committed record")
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--again", action="store_true", help="repeat what did not pass")
    options = parser.parse_args(argv)
    outcomes = sweep(options.state, options.only, options.workers, options.again)
    print(jax_record.summary(outcomes))
    if options.write:
        jax_record.write(outcomes)


def sweep(
    state: Path, only: Sequence[str] = (), workers: int = 1, again: bool = False
) -> dict[str, tuple[str, str]]:
    """Outcomes ``(status, reason)`` of every harness whose name begins with one of `only`."""
    jax.config.update("jax_enable_x64", True)
    known = read(state)
    names = [
        name
        for name in jax_harness.harnesses()
        if not only or any(name.startswith(text) for text in only)
    ]
    kept = ("passed", "out of scope", "not implemented by JAX") if again else None
    waiting = [n for n in names if n not in known or (kept and known[n][0] not in kept)]
    shares = [waiting[i::workers] for i in range(workers)]
    with state.open("a", encoding="utf-8") as log:
        _run_shares([share for share in shares if share], log)
    found = read(state)
    return {name: found[name] for name in names if name in found}


def read(state: Path) -> dict[str, tuple[str, str]]:
    """The last outcome of each harness in a state file; a line cut short is left out."""
    found: dict[str, tuple[str, str]] = {}
    if state.exists():
        for line in state.read_text(encoding="utf-8").splitlines():
            if line.endswith("]"):
                name, status, reason = json.loads(line)
                found[name] = (status, reason)
    return found


class _Worker:
    """A process with a share of the names, fed one at a time."""

    def __init__(self, share: list[str]) -> None:
        self.names = share
        self.process: subprocess.Popen[str] | None = None
        self.running = ""
        self.since = 0.0

    def start(self) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.interop.sweep_worker"],
            cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
            text=True, bufsize=1, env={**os.environ, "OMP_NUM_THREADS": "1"},
        )  # fmt: skip

    def feed(self) -> bool:
        """Hand the next name over; False when none is left."""
        if not self.names:
            return False
        if self.process is None:
            self.start()
        assert self.process is not None and self.process.stdin is not None
        self.running, self.since = self.names.pop(0), time.monotonic()
        self.process.stdin.write(self.running + "\n")
        self.process.stdin.flush()
        return True

    def stop(self) -> int | None:
        """End the process and give its return code."""
        process, self.process = self.process, None
        if process is None:
            return None
        process.kill()
        for stream in (process.stdin, process.stdout):
            if stream is not None:
                stream.close()
        return process.wait()


def _run_shares(shares: list[list[str]], log: object) -> None:
    active = [_Worker(share) for share in shares]
    selector = selectors.DefaultSelector()

    def write(name: str, status: str, reason: str) -> None:
        log.write(json.dumps([name, status, reason]) + "\n")  # type: ignore[attr-defined]
        log.flush()  # type: ignore[attr-defined]

    def advance(worker: _Worker) -> None:
        before = worker.process
        if not worker.feed():
            if before is not None and before.stdout is not None:
                selector.unregister(before.stdout)
            worker.stop()
            active.remove(worker)
        elif worker.process is not before:
            assert worker.process is not None and worker.process.stdout is not None
            selector.register(worker.process.stdout, selectors.EVENT_READ, worker)

    for worker in list(active):
        advance(worker)
    while active:
        for key, _ in selector.select(timeout=1.0):
            worker = key.data
            line = key.fileobj.readline()  # type: ignore[union-attr]
            if line:
                name, status, reason = json.loads(line)
                write(name, status, reason)
                advance(worker)
                continue
            selector.unregister(key.fileobj)
            code = worker.process.wait()
            worker.stop()
            write(worker.running, "failed", f"the process died with code {code}")
            advance(worker)
        for worker in list(active):
            if time.monotonic() - worker.since > PATIENCE and worker.process is not None:
                assert worker.process.stdout is not None
                selector.unregister(worker.process.stdout)
                worker.stop()
                write(worker.running, "failed", f"no result within {PATIENCE:.0f} s")
                advance(worker)


if __name__ == "__main__":
    main()
