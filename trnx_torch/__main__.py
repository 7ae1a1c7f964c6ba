"""`python -m trnx_torch build`: compile the extension of device `neuron` now."""

from __future__ import annotations

import argparse
import importlib.util
import sys
from pathlib import Path

from trnx_torch import _build


def torch_directory() -> Path:
    """The installed torch package, found without importing it."""
    spec = importlib.util.find_spec("torch")
    if spec is None or not spec.submodule_search_locations:
        raise _build.ExtensionError("PyTorch is not installed. Install torch, then build again.")
    return Path(next(iter(spec.submodule_search_locations)))


def main(arguments: list[str] | None = None) -> int:
    """Run the command line; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m trnx_torch", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    build = commands.add_parser("build", help="compile the extension if it is not up to date")
    build.add_argument("--force", action="store_true", help="compile even if it is up to date")
    build.add_argument("--quiet", action="store_true", help="print nothing but errors")
    build.add_argument("--verbose", action="store_true", help="print commands and their output")
    commands.add_parser("info", help="say what is installed and built")
    options = parser.parse_args(arguments)
    try:
        directory = torch_directory()
        if options.command == "info":
            print(_build.describe(directory))
            return 0
        found = None if options.force or options.verbose else _build.find_built(directory)
        if found is None:
            found = _build.compile_extension(
                directory,
                _build.build_dir(),
                quiet=options.quiet,
                force=options.force or options.verbose,
                verbose=options.verbose,
            )
            _build.remove_stale(directory)
        _build.verify(found)
        if not options.quiet:
            print(f"trnx: neuron extension ready: {found}")
    except _build.ExtensionError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
