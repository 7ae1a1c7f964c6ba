"""The simulator: what tile programs compute, what goes wrong in them, and how long they take."""

from trnx.compiler.sim.estimate import estimate
from trnx.compiler.sim.hazards import Finding
from trnx.compiler.sim.machine import SimOptions, SimResult, simulate
from trnx.compiler.sim.report import CostReport, KernelUse, QueueUse
from trnx.compiler.sim.timeline import Timeline

__all__ = [
    "CostReport",
    "Finding",
    "KernelUse",
    "QueueUse",
    "SimOptions",
    "SimResult",
    "Timeline",
    "estimate",
    "simulate",
]
