"""ATen operators as array code, one file per family; importing this fills ``registry.RULES``."""

from trnx_torch.compile.aten import (
    contraction,
    factory,
    indexing,
    movement,
    pointwise,
    reduction,
)
from trnx_torch.compile.aten.registry import RULES, AtenRule, overload_name

__all__ = [
    "RULES",
    "AtenRule",
    "contraction",
    "factory",
    "indexing",
    "movement",
    "overload_name",
    "pointwise",
    "reduction",
]
