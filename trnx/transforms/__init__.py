"""Program transforms: derivatives, vectorising, inlining. One file per transform."""

from trnx.transforms.custom import custom_jvp as custom_jvp
from trnx.transforms.custom import custom_vjp as custom_vjp
from trnx.transforms.grad import grad as grad
from trnx.transforms.grad import jvp as jvp
from trnx.transforms.grad import linearize as linearize
from trnx.transforms.grad import value_and_grad as value_and_grad
from trnx.transforms.grad import vjp as vjp
from trnx.transforms.inline import call as call
from trnx.transforms.inline import call_p as call_p
from trnx.transforms.inline import inline_calls as inline_calls
from trnx.transforms.jacobian import hessian as hessian
from trnx.transforms.jacobian import jacfwd as jacfwd
from trnx.transforms.jacobian import jacrev as jacrev
from trnx.transforms.jvp import jvp_program as jvp_program
from trnx.transforms.linearize import linearize_program as linearize_program
from trnx.transforms.pad import Padded as Padded
from trnx.transforms.pad import pad_program as pad_program
from trnx.transforms.remat import checkpoint as checkpoint
from trnx.transforms.remat import checkpoint_policies as checkpoint_policies
from trnx.transforms.specialise import specialise as specialise
from trnx.transforms.transpose import backward_pass as backward_pass
from trnx.transforms.transpose import transpose_program as transpose_program
from trnx.transforms.vmap import vmap as vmap
from trnx.transforms.vmap import vmap_program as vmap_program
