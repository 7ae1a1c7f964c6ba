"""``python -m benchmarks SUITE [--json FILE] [--only NAME] [--threads N]``: see SUITES below.

``python -m benchmarks page`` writes docs/performance.md from the files in benchmarks/results.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import sys
from pathlib import Path
from typing import Any

SUITES = ("host", "compile", "dispatch", "bucket", "torch")
_MODULES = {"torch": "torch_suite"}  # a module named torch would stand before torch itself


def _set_threads(count: int) -> None:
    """Gives every peer the same number of threads; must run before they are imported.

    JAX has no variable for it: its pool has a thread per core this process may run on.
    """
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "TRNX_THREADS"):
        os.environ[name] = str(count)
    if count < (os.cpu_count() or 1) and hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:count])
    os.environ.setdefault("JAX_PLATFORMS", "cpu")


def _figure(value: float | None, width: int, digits: int = 3) -> str:
    return f"{'-' if value is None else format(value, f'.{digits}f'):>{width}}"


def _measure(suite: Any, name: str, limits: dict[str, float]) -> tuple[Any, dict[str, object]]:
    """The row of one workload and what else its suite counts."""
    from benchmarks import harness

    if hasattr(suite, "workload"):
        return harness.run(suite.workload(name), limits), {}
    found = suite.run(name)
    return found if isinstance(found, tuple) else (found, {})


def _available(name: str) -> str | None:
    """Why trnx cannot run a workload yet: the first line of its error; None when it can."""
    from benchmarks import peers_trnx
    from benchmarks.workloads import CASES
    from trnx.core.errors import TrnxError

    for case in CASES:
        if name.endswith(case.name):
            try:
                peers_trnx.jitted(case)(*peers_trnx.inputs(case.arrays()))
            except (TrnxError, AttributeError, NotImplementedError) as error:
                return str(error).splitlines()[0]
    return None


def _run(suite_name: str, only: str, threads: int) -> dict[str, object]:
    from benchmarks import harness, machine

    suite = importlib.import_module(f"benchmarks.{_MODULES.get(suite_name, suite_name)}")
    description = machine.describe(threads)
    limits = {k: float(str(description[k])) for k in ("flops", "bytes")}
    print(
        f"{description['cpu']}, {threads} threads, "
        f"FMA {limits['flops'] / 1e9:.0f} GFLOP/s, copy {limits['bytes'] / 1e9:.1f} GB/s"
    )
    columns = "".join(f"{c:>10}" for c in ("trnx ms", "jax ms", "torch ms", "inductor"))
    print(f"{'workload':52}{columns}{'ratio':>7}{'limit':>7}")
    rows, missing = [], []
    for name in suite.NAMES:
        if only not in name:
            continue
        reason = _available(name)
        if reason is not None:
            missing.append({"workload": name, "reason": reason})
            print(f"{name:52} not yet available: {reason}", flush=True)
            continue
        row, facts = _measure(suite, name, limits)
        rows.append({**row.as_dict(), **facts})
        times = (row.trnx_ms, row.jax_ms, row.torch_ms, row.inductor_ms)
        print(
            f"{name:52}{''.join(_figure(t, 10) for t in times)}"
            f"{_figure(row.ratio, 7, 2)}{_figure(row.limit_share, 7, 2)}",
            *(f"{k}={v}" for k, v in facts.items()),
            flush=True,
        )
    for group, ratios in harness.grouped((str(r["workload"]), float(r["ratio"])) for r in rows):
        print(
            f"geometric mean of best peer / trnx{group}: {harness.geometric_mean(ratios):.2f}, "
            f"least {min(ratios):.2f}"
        )
    return {"machine": description, "rows": rows, "not_available": missing}


def main() -> int:
    """Runs a suite, prints a row per workload and writes JSON on request."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("suite", choices=(*SUITES, "page"))
    parser.add_argument("--json", type=Path, help="also write machine and rows to this file")
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--only", default="", help="run workloads whose name contains this")
    options = parser.parse_args()
    if options.suite == "page":
        from benchmarks import page

        page.write()
        return 0
    _set_threads(options.threads)
    document = _run(options.suite, options.only, options.threads)
    if options.json:
        options.json.write_text(json.dumps(document, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
