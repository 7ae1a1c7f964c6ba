"""Operators that PyTorch itself decomposes: its decompositions run on the device's operators."""

from __future__ import annotations

import torch
from torch import Tensor

from trnx_torch.eager import composite
from trnx_torch.eager.composite import decompose

LOSSES = (
    "mse_loss.default", "mse_loss_backward.default", "smooth_l1_loss.default",
    "smooth_l1_loss_backward.default", "smooth_l1_loss_backward.grad_input",
    "huber_loss.default", "huber_loss_backward.default", "huber_loss_backward.out",
    "binary_cross_entropy.default", "binary_cross_entropy_backward.default",
    "binary_cross_entropy_with_logits.default", "soft_margin_loss.default",
    "soft_margin_loss_backward.default", "multi_margin_loss.default",
    "multilabel_margin_loss_forward.default", "nll_loss2d_forward.default",
    "nll_loss2d_backward.default",
)  # fmt: skip

NORMS = (
    "native_layer_norm.default", "native_layer_norm_backward.default",
    "native_group_norm.default", "native_group_norm_backward.default",
    "native_batch_norm_backward.default", "_native_batch_norm_legit.no_stats",
    "_native_batch_norm_legit_no_training.default",
    "_batch_norm_with_update.default", "_batch_norm_no_update.default",
    "linalg_vector_norm.default", "norm.ScalarOpt_dim", "norm.Scalar",
    "norm.ScalarOpt_dim_dtype", "norm.ScalarOpt_dtype", "renorm.default",
)  # fmt: skip

POOLING = (
    "_adaptive_avg_pool2d.default", "_adaptive_avg_pool3d.default",
    "adaptive_max_pool2d.default", "adaptive_max_pool3d.default",
    "max_pool2d_with_indices.default", "max_pool2d_with_indices_backward.default",
    "max_pool3d_with_indices.default", "max_unpool2d.default", "max_unpool3d.default",
    "upsample_nearest1d.default", "upsample_nearest2d.default", "upsample_nearest3d.default",
    "_upsample_nearest_exact1d.default", "_upsample_nearest_exact2d.default",
    "_upsample_nearest_exact3d.default", "upsample_linear1d.default",
    "upsample_bilinear2d.default", "upsample_trilinear3d.default", "upsample_bicubic2d.default",
    "grid_sampler_2d.default", "im2col.default", "col2im.default",
    "upsample_nearest2d_backward.default",
)  # fmt: skip

INDEXING = (
    "index_add.default", "index_add_.default", "index_copy.default", "index_copy_.default",
    "index_fill.int_Scalar", "index_fill.int_Tensor", "index_fill_.int_Scalar",
    "index_fill_.int_Tensor", "index_select.default", "take.default",
    "embedding_dense_backward.default", "unfold_backward.default", "isin.Tensor_Tensor",
    "isin.Tensor_Scalar", "isin.Scalar_Tensor", "bucketize.Tensor", "masked_fill.Scalar",
    "masked_fill.Tensor", "masked_fill_.Scalar", "masked_fill_.Tensor",
    "select_backward.default", "slice_backward.default", "diagonal_backward.default",
    "select_scatter.default", "slice_scatter.default", "diagonal_scatter.default",
)  # fmt: skip

OTHERS = (
    "addmv.default", "addmv_.default", "addr.default", "addbmm.default", "dot.default",
    "vdot.default",
    "mv.default", "nansum.default", "std_mean.correction", "glu.default", "glu_backward.default",
    "log_sigmoid_forward.default", "log_sigmoid_backward.default", "_prelu_kernel_backward.default",
    "native_dropout_backward.default", "logcumsumexp.default", "cumprod.default",
    "cdist.default", "rot90.default", "kl_div.default", "aminmax.default",
    "rrelu_with_noise_backward.default", "_euclidean_dist.default", "logspace.default",
    "lerp.Scalar", "lerp.Tensor", "nan_to_num.default", "polar.default", "trace.default",
    "count_nonzero.dim_IntList",
)  # fmt: skip


def _batch_norm(name: str) -> None:
    """PyTorch's decomposition, saving what its CPU kernel does: nothing in evaluation."""
    decomposition = composite.decomposition(name)
    assert decomposition is not None, name

    def batch_norm(
        input: Tensor,
        weight: Tensor | None,
        bias: Tensor | None,
        mean: Tensor | None,
        var: Tensor | None,
        training: bool,
        momentum: float,
        eps: float,
    ) -> tuple[Tensor, Tensor, Tensor]:
        result, *saved = decomposition(input, weight, bias, mean, var, training, momentum, eps)
        if not training:
            saved = [torch.empty(0, dtype=s.dtype, device=s.device) for s in saved]
        return result, saved[0], saved[1]

    composite.define(name, forms_of=False)(batch_norm)


def register() -> None:
    """Registers every decomposition of the lists for operators without other device code."""
    for name in ("native_batch_norm.default", "_native_batch_norm_legit.default"):
        _batch_norm(name)
    for names in (LOSSES, NORMS, POOLING, INDEXING, OTHERS):
        decompose(*names)
