"""Comparisons: operands of one dtype to bool, exact for every integer. NaN is unequal to all."""

from __future__ import annotations

import numpy as np

from trnx.ops._factories import BOOL, COMPLEX, REAL, compare

_ORDERED = REAL + BOOL

eq_p = compare("eq", "x == y.", np.equal, _ORDERED + COMPLEX)
ne_p = compare("ne", "x != y.", np.not_equal, _ORDERED + COMPLEX)
lt_p = compare("lt", "x < y.", np.less, _ORDERED)
le_p = compare("le", "x <= y.", np.less_equal, _ORDERED)
gt_p = compare("gt", "x > y.", np.greater, _ORDERED)
ge_p = compare("ge", "x >= y.", np.greater_equal, _ORDERED)
