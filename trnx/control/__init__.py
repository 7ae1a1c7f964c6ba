"""Control flow for traced values: loops and branches over trees of arrays.

`trnx.lax` has these functions under their usual names.
"""

from trnx.control.associative import associative_scan as associative_scan
from trnx.control.branches import cond as cond
from trnx.control.branches import switch as switch
from trnx.control.loops import fori_loop as fori_loop
from trnx.control.loops import map as map
from trnx.control.loops import scan as scan
from trnx.control.loops import while_loop as while_loop
