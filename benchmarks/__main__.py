"""``python -m benchmarks host [--json FILE] [--threads N]``."""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
from pathlib import Path

SUITES = ("host",)


def _set_threads(count: int) -> None:
    """Gives every peer the same number of threads; must run before they are imported."""
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "TRNX_THREADS"):
        os.environ[name] = str(count)
    os.environ.setdefault("JAX_PLATFORMS", "cpu")


def main() -> int:
    """Runs a suite, prints a row per workload and writes JSON on request."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("suite", choices=SUITES)
    parser.add_argument("--json", type=Path, help="also write machine and rows to this file")
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--only", default="", help="run workloads whose name contains this")
    options = parser.parse_args()
    _set_threads(options.threads)

    from benchmarks import harness, host, machine

    description = machine.describe(options.threads)
    flops, copy = description["flops"], description["bytes"]
    assert isinstance(flops, float)
    assert isinstance(copy, float)
    print(
        f"{description['cpu']}, {options.threads} threads, "
        f"FMA {flops / 1e9:.0f} GFLOP/s, copy {copy / 1e9:.1f} GB/s"
    )
    header = (
        f"{'workload':38}{'trnx':>9}{'jax':>9}{'torch':>9}{'inductor':>10}{'ratio':>7}{'limit':>7}"
    )
    print(f"{header}\n{'':38}{'ms':>9}{'ms':>9}{'ms':>9}{'ms':>10}{'':>7}{'share':>7}")
    rows = []
    for workload in host.workloads():
        if options.only not in workload.name:
            continue
        row = harness.run(workload, {"flops": flops, "bytes": copy})
        rows.append(row)
        print(
            f"{row.workload:38}{row.trnx_ms:9.3f}{row.jax_ms:9.3f}{row.torch_ms:9.3f}"
            f"{row.inductor_ms:10.3f}{row.ratio:7.2f}{row.limit_share:7.2f}",
            flush=True,
        )
    if rows:
        mean = math.exp(sum(math.log(r.ratio) for r in rows) / len(rows))
        print(f"geometric mean of best peer / trnx: {mean:.2f}")
    if options.json:
        document = {"machine": description, "rows": [r.as_dict() for r in rows]}
        options.json.write_text(json.dumps(document, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
