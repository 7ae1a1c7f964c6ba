"""``python -m tests.torch.opinfo sweep|table|failures``; see the package's docstring."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from tests.torch.opinfo import sweep, table


def _sweep(options: argparse.Namespace) -> None:
    from tests.torch.opinfo import databases

    saved = sweep.load(options.results)
    kinds = [options.kind] if options.kind else list(databases.KINDS)
    for kind in kinds:
        known = databases.names(kind)
        wanted = [n for n in known if not options.only or n in options.only]
        done = saved.setdefault(kind, {})
        if options.resume:
            part = "compiled" if options.parts == "compiled" else ""
            wanted = [n for n in wanted if n not in done or (part and part not in done[n])]

        def report(
            name: str, entry: dict[str, Any], done: dict[str, Any] = done, kind: str = kind
        ) -> None:
            done[name] = {**done.get(name, {}), **entry} if options.parts != "all" else entry
            sweep.save(saved, options.results)
            print(f"{kind} {len(done)}: {name} {table.line(kind, entry)}", flush=True)

        sweep.run(kind, wanted, parts=options.parts, jobs=options.jobs, report=report)
        for name in set(done) - set(known):
            del done[name]
    sweep.save(saved, options.results)
    print(table.summary(saved))


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.torch.opinfo", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    run = commands.add_parser("sweep", help="measure, and write the results")
    run.add_argument("--kind", help="operators, modules or optimizers; all without")
    run.add_argument("--only", nargs="*", default=[], help="names of entries")
    run.add_argument("--resume", action="store_true", help="leave out entries that have a result")
    run.add_argument("--parts", choices=("all", "eager", "compiled"), default="all")
    run.add_argument("--jobs", type=int, default=1, help="processes at a time")
    run.set_defaults(function=_sweep)
    summary = commands.add_parser("summary", help="print the figures of the results")
    summary.set_defaults(function=lambda o: print(table.summary(sweep.load(o.results))))
    failures = commands.add_parser("failures", help="print failures and fallbacks by cause")
    failures.set_defaults(function=lambda o: print(table.failures(sweep.load(o.results))))
    for command in (run, summary, failures):
        command.add_argument("--results", type=Path, default=sweep.RESULTS)
    options = parser.parse_args(arguments)
    options.function(options)


if __name__ == "__main__":
    main(sys.argv[1:])
