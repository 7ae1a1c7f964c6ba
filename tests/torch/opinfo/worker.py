"""A worker process: measures the entries named on its command line, one JSON line each."""

from __future__ import annotations

import json
import logging
import sys
import warnings


def main(kind: str, names: list[str], limit: int | None, parts: str) -> None:
    """Print ``START name`` before and ``DONE name json`` after each measurement."""
    import torch

    warnings.simplefilter("ignore")
    logging.disable(logging.CRITICAL)
    torch.set_num_threads(1)
    torch.ones(1, device="neuron")
    from tests.torch.opinfo import databases

    for name in names:
        print(f"START {name}", flush=True)
        entry = databases.measured(kind, name, limit, parts)
        print(f"DONE {name} {json.dumps(entry)}", flush=True)


if __name__ == "__main__":
    _, kind, limit, parts, *names = sys.argv
    main(kind, names, int(limit) or None, parts)
