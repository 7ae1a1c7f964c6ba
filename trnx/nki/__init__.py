"""Write NKI kernels and try them on any machine: `jit`, `simulate`, `source`, `from_source`.

    from trnx import nki
    from trnx.nki import isa as nisa
    from trnx.nki import language as nl

    @nki.jit
    def double(x):
        y = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
        for i in range(x.shape[0] // 128):
            t = nl.ndarray((128, x.shape[1]), dtype=x.dtype, buffer=nl.sbuf)
            nisa.dma_copy(dst=t, src=x[128 * i : 128 * i + 128, :])
            nisa.tensor_scalar(dst=t, data=t, op0=nl.multiply, operand0=2.0)
            nisa.dma_copy(dst=y[128 * i : 128 * i + 128, :], src=t)
        return y

    double(array)                       # native code on this machine
    nki.simulate(double)(array)         # the same instructions, checked one by one
    nki.simulate(double).run(array)     # with findings, costs and a timeline

Kernels are read, never executed as Python: a body may use the subset `trnx.compiler.nki.read`
documents. The same source is for an instance with `nki` in place of `trnx.nki`.
"""

from trnx.nki.kernel import NkiKernel as NkiKernel
from trnx.nki.kernel import Simulation as Simulation
from trnx.nki.kernel import from_source as from_source
from trnx.nki.kernel import jit as jit
from trnx.nki.kernel import simulate as simulate
from trnx.nki.kernel import source as source
