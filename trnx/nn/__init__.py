"""Functions that neural networks are made of. All are plain array code over `trnx.numpy`."""

from trnx.nn.activations import gelu as gelu
from trnx.nn.activations import leaky_relu as leaky_relu
from trnx.nn.activations import log_softmax as log_softmax
from trnx.nn.activations import relu as relu
from trnx.nn.activations import sigmoid as sigmoid
from trnx.nn.activations import silu as silu
from trnx.nn.activations import softmax as softmax
from trnx.nn.activations import softplus as softplus
from trnx.nn.activations import tanh as tanh
from trnx.nn.attention import dot_product_attention as dot_product_attention
from trnx.nn.layers import dropout as dropout
from trnx.nn.layers import embedding as embedding
from trnx.nn.layers import layer_norm as layer_norm
from trnx.nn.layers import linear as linear
from trnx.nn.layers import one_hot as one_hot
from trnx.nn.layers import rms_norm as rms_norm
from trnx.nn.losses import cross_entropy as cross_entropy
from trnx.nn.losses import mse_loss as mse_loss
from trnx.nn.segments import segment_sum as segment_sum
from trnx.numpy._public import publish as _publish
from trnx.numpy.reductions import logsumexp as logsumexp

_publish(globals())
