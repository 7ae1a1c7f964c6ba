// Convolution on the host: torch sends an out-of-tree device to the two `overrideable` operators, for
// which it has no CPU kernel. These are CPU kernels for the fallback; no CPU tensor gets here.
#include "convolution.h"

#include <ATen/ops/convolution.h>
#include <ATen/ops/convolution_backward.h>
#include <torch/library.h>

#include <array>
#include <optional>
#include <tuple>

namespace trnx {
namespace {

using at::IntArrayRef;
using at::Tensor;
using std::optional;

std::tuple<Tensor, Tensor, Tensor> convolution_backward(
    const Tensor& gradient, const Tensor& input, const Tensor& weight, IntArrayRef stride,
    IntArrayRef padding, IntArrayRef dilation, bool transposed, IntArrayRef output_padding,
    int64_t groups, std::array<bool, 3> mask) {
  const std::array<int64_t, 1> features{transposed ? weight.size(1) * groups : weight.size(0)};
  return at::convolution_backward(
      gradient, input, weight, IntArrayRef(features), stride, padding, dilation, transposed,
      output_padding, groups, mask);
}

Tensor convolution(
    const Tensor& input, const Tensor& weight, const optional<Tensor>& bias, IntArrayRef stride,
    IntArrayRef padding, IntArrayRef dilation, bool transposed, IntArrayRef output_padding,
    int64_t groups) {
  return at::convolution(
      input, weight, bias, stride, padding, dilation, transposed, output_padding, groups);
}

} // namespace

void register_convolution() {
  static auto* library = new torch::Library(
      torch::Library::IMPL, "aten", c10::DispatchKey::CPU, __FILE__, __LINE__);
  library->impl("convolution_overrideable", &convolution);
  library->impl("convolution_backward_overrideable", &convolution_backward);
}

} // namespace trnx
