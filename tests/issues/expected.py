"""Cases of the shared file that do not run or do not pass yet, each with its reason.

A case in EXPECTED that passes fails the run, so that the list never outlives its reasons.
"""

from __future__ import annotations

BENCHMARKED: dict[str, str] = {
    "test_cheap_expression_is_not_baked_as_a_constant": "measures compile time",
    "test_dispatch_overhead_is_linear_and_small": "measures call time",
}
"""Cases that measure time: `python -m benchmarks` reports the figures, tests assert none."""

EXPECTED: dict[str, str] = {}
"""Failing cases: the name of the test (with its parameters) to why it fails."""
