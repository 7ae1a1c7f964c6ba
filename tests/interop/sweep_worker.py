"""A worker of the sweep: names of harnesses on stdin, outcomes as JSON lines on stdout."""

from __future__ import annotations

import json
import os
import sys
import tempfile


def main() -> None:
    """Answer until stdin ends. Nothing else may reach the pipe of answers."""
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    with tempfile.TemporaryDirectory(prefix="trnx-sweep-") as folder:
        os.environ["TRNX_CACHE_DIR"] = folder
        import jax

        from tests.interop import jax_harness

        jax.config.update("jax_enable_x64", True)
        for line in sys.stdin:
            name = line.strip()
            try:
                outcome = jax_harness.run(name)
                answer = [name, outcome.status, outcome.reason]
            except Exception as error:  # the harness itself is broken
                answer = [name, "failed", f"harness: {type(error).__name__}: {str(error)[:150]}"]
            answers.write(json.dumps(answer) + "\n")


if __name__ == "__main__":
    main()
