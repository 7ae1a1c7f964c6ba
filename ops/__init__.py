"""Primitives of trnx, one complete declaration each. The import name is `trnx.ops`."""

if __name__ != "trnx.ops":
    raise ImportError(
        f"This folder was imported as {__name__!r}; its import name is 'trnx.ops' "
        "(a second copy would make a second registry of primitives). Write `import trnx.ops`."
    )

from trnx.ops import _linalg_rules as _linalg_rules
from trnx.ops import _scan_reverse as _scan_reverse
from trnx.ops import bits as bits
from trnx.ops import cast as cast
from trnx.ops import checkpoint as checkpoint
from trnx.ops import compare as compare
from trnx.ops import complex as complex
from trnx.ops import cond as cond
from trnx.ops import contract as contract
from trnx.ops import conv as conv
from trnx.ops import create as create
from trnx.ops import cumulative as cumulative
from trnx.ops import custom as custom
from trnx.ops import dynamic as dynamic
from trnx.ops import elementwise as elementwise
from trnx.ops import fft as fft
from trnx.ops import functions as functions
from trnx.ops import gather as gather
from trnx.ops import index as index
from trnx.ops import integer as integer
from trnx.ops import linalg as linalg
from trnx.ops import movement as movement
from trnx.ops import random as random
from trnx.ops import reduce as reduce
from trnx.ops import reduce_halves as reduce_halves
from trnx.ops import reduce_window as reduce_window
from trnx.ops import scan as scan
from trnx.ops import select as select
from trnx.ops import sort as sort
from trnx.ops import trigonometry as trigonometry
from trnx.ops import while_loop as while_loop
from trnx.ops import windows as windows
