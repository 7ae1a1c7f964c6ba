// Convolution: torch sends an out-of-tree device to the two `overrideable` operators, for which no
// CPU kernel exists, so the fallback for them calls the device-independent operators instead.
#include "alias.h"
#include "convolution.h"
#include "fallback.h"
#include "tracking.h"

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

void check_same_device(
    const std::string& op, const Tensor& input, const Tensor& other, const char* name) {
  if (other.defined() && other.device() != input.device()) {
    raise_mixed_devices(op, "input", input.device(), name, other.device());
  }
}

Tensor convolution(
    const Tensor& input, const Tensor& weight, const optional<Tensor>& bias, IntArrayRef stride,
    IntArrayRef padding, IntArrayRef dilation, bool transposed, IntArrayRef output_padding,
    int64_t groups) {
  static auto& counts = op_counts("aten::convolution_overrideable");
  check_same_device("aten::convolution", input, weight, "weight");
  const bool has_bias = bias.has_value() && bias->defined();
  optional<Tensor> host_bias;
  if (has_bias) {
    check_same_device("aten::convolution", input, *bias, "bias");
    host_bias = as_cpu(*bias);
  }
  count_fallback(counts);
  auto result = at::convolution(
      as_cpu(input), as_cpu(weight), host_bias, stride, padding, dilation, transposed,
      output_padding, groups);
  return adopt(std::move(result), input.device().index());
}

std::tuple<Tensor, Tensor, Tensor> convolution_backward(
    const Tensor& gradient, const Tensor& input, const Tensor& weight, IntArrayRef stride,
    IntArrayRef padding, IntArrayRef dilation, bool transposed, IntArrayRef output_padding,
    int64_t groups, std::array<bool, 3> mask) {
  static auto& counts = op_counts("aten::convolution_backward_overrideable");
  check_same_device("aten::convolution_backward", input, weight, "weight");
  check_same_device("aten::convolution_backward", input, gradient, "grad_output");
  count_fallback(counts);
  const auto features = transposed ? weight.size(1) * groups : weight.size(0);
  std::array<int64_t, 1> bias_size{features};
  auto [input_gradient, weight_gradient, bias_gradient] = at::convolution_backward(
      as_cpu(gradient), as_cpu(input), as_cpu(weight), IntArrayRef(bias_size), stride, padding,
      dilation, transposed, output_padding, groups, mask);
  const auto back = [&](Tensor&& tensor) {
    return tensor.defined() ? adopt(std::move(tensor), input.device().index()) : Tensor();
  };
  return {
      back(std::move(input_gradient)), back(std::move(weight_gradient)),
      back(std::move(bias_gradient))};
}

} // namespace

void register_convolution() {
  static auto* library = new torch::Library(
      torch::Library::IMPL, "aten", c10::DispatchKey::PrivateUse1, __FILE__, __LINE__);
  library->impl("convolution_overrideable", &convolution);
  library->impl("convolution_backward_overrideable", &convolution_backward);
}

} // namespace trnx
