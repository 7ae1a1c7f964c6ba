"""ATen operators as array code, one file per family; importing this fills ``registry.RULES``."""

from trnx_torch.compile.aten import (
    activation,
    contraction,
    factory,
    indexing,
    loss,
    movement,
    normalisation,
    pointwise,
    reduction,
)
from trnx_torch.compile.aten.registry import RULES, AtenRule, overload_name

__all__ = [
    "RULES",
    "AtenRule",
    "activation",
    "contraction",
    "factory",
    "indexing",
    "loss",
    "movement",
    "normalisation",
    "overload_name",
    "pointwise",
    "reduction",
]
