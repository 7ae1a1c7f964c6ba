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
from trnx.nn.convolution import conv as conv
from trnx.nn.convolution import conv_transpose as conv_transpose
from trnx.nn.layers import dropout as dropout
from trnx.nn.layers import embedding as embedding
from trnx.nn.layers import layer_norm as layer_norm
from trnx.nn.layers import linear as linear
from trnx.nn.layers import one_hot as one_hot
from trnx.nn.layers import rms_norm as rms_norm
from trnx.nn.losses import cross_entropy as cross_entropy
from trnx.nn.losses import mse_loss as mse_loss
from trnx.nn.norms import batch_norm as batch_norm
from trnx.nn.norms import group_norm as group_norm
from trnx.nn.norms import instance_norm as instance_norm
from trnx.nn.pooling import adaptive_avg_pool as adaptive_avg_pool
from trnx.nn.pooling import adaptive_max_pool as adaptive_max_pool
from trnx.nn.pooling import avg_pool as avg_pool
from trnx.nn.pooling import max_pool as max_pool
from trnx.nn.resizing import resize as resize
from trnx.nn.segments import segment_sum as segment_sum
from trnx.numpy._public import publish as _publish
from trnx.numpy.reductions import logsumexp as logsumexp

_publish(globals())
