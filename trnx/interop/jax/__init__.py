"""JAX functions as trnx functions: see :func:`from_jax`.

JAX only traces: it turns the function into a jaxpr, and every primitive of that becomes trnx
operations by a table with one file per family. JAX computes nothing.
"""

from trnx.interop.jax import contraction as contraction
from trnx.interop.jax import control as control
from trnx.interop.jax import custom as custom
from trnx.interop.jax import elementwise as elementwise
from trnx.interop.jax import indexing as indexing
from trnx.interop.jax import linalg as linalg
from trnx.interop.jax import movement as movement
from trnx.interop.jax import ordering as ordering
from trnx.interop.jax import random as random
from trnx.interop.jax import reduction as reduction
from trnx.interop.jax import windows as windows
from trnx.interop.jax.importer import from_jax as from_jax
from trnx.interop.jax.registry import RULES as RULES
