"""Lowering of groups of equations to kernels, one file per family.

`registry` joins primitives with families; importing this package fills it.
"""

from trnx.compiler.kernels import contraction as contraction
from trnx.compiler.kernels import cumulative as cumulative
from trnx.compiler.kernels import dynamic as dynamic
from trnx.compiler.kernels import elementwise as elementwise
from trnx.compiler.kernels import gather as gather
from trnx.compiler.kernels import movement as movement
from trnx.compiler.kernels import reduction as reduction
from trnx.compiler.kernels import row as row
from trnx.compiler.kernels import scatter as scatter
from trnx.compiler.kernels import sort as sort
