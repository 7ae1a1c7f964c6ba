"""Runs feature checks by name; see the package's docstring."""

from __future__ import annotations

import contextlib
import io
import sys
import traceback
import warnings

from tests.torch.features import device, ecosystem, interop, tensors, training
from tests.torch.features.harness import CHECKS

MODULES = (tensors, device, training, interop, ecosystem)
"""Importing them fills the table."""


def main(names: list[str]) -> None:
    warnings.filterwarnings("ignore", category=UserWarning)
    for name in names or list(CHECKS):
        print(f"START {name}", flush=True)
        text = io.StringIO()
        try:
            with contextlib.redirect_stdout(text):
                CHECKS[name]()
        except BaseException:
            lines = traceback.format_exc().strip().splitlines()
            print(f"FAIL {name} " + " | ".join(line.strip() for line in lines[-6:]), flush=True)
        else:
            print(f"OK {name}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
