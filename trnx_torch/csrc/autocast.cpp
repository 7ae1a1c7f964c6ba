// torch.autocast("neuron"): the same lists of operators as CUDA's.
#include <ATen/autocast_mode.h>

namespace at::autocast {
namespace {

Tensor banned_binary_cross_entropy(
    const Tensor&, const Tensor&, const std::optional<Tensor>&, int64_t) {
  TORCH_CHECK(
      false, "binary_cross_entropy in half precision loses the gradient near 0 and 1, so autocast "
      "refuses it. Use binary_cross_entropy_with_logits.");
}

TORCH_LIBRARY_IMPL(_, AutocastPrivateUse1, m) {
  m.fallback(torch::CppFunction::makeFallthrough());
}

TORCH_LIBRARY_IMPL(aten, AutocastPrivateUse1, m) {
#define TRNX_LOWER(...) KERNEL_PRIVATEUSEONE(__VA_ARGS__, lower_precision_fp)
  AT_FORALL_LOWER_PRECISION_FP(TRNX_LOWER)
#undef TRNX_LOWER

#define TRNX_FP32(...) KERNEL_PRIVATEUSEONE(__VA_ARGS__, fp32)
  AT_FORALL_FP32(TRNX_FP32)
#undef TRNX_FP32

#define TRNX_FP32_DTYPE(...) KERNEL_PRIVATEUSEONE(__VA_ARGS__, fp32_set_opt_dtype)
  AT_FORALL_FP32_SET_OPT_DTYPE(TRNX_FP32_DTYPE)
#undef TRNX_FP32_DTYPE

  AT_FORALL_DIFFERENT_REDISPATCH_SIGNATURE(KERNEL_DIFFERENT_REDISPATCH_SIGNATURE_PRIVATEUSEONE)

#define TRNX_PROMOTE(...) KERNEL_PRIVATEUSEONE(__VA_ARGS__, promote)
  AT_FORALL_PROMOTE(TRNX_PROMOTE)
#undef TRNX_PROMOTE

  m.impl("binary_cross_entropy", &banned_binary_cross_entropy);
}

} // namespace
} // namespace at::autocast
