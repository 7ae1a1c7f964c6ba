// Matrix products on compiled kernels: mm, addmm, bmm, baddbmm and their out= forms.
//
// Registers: batch, m, n, k, then strides in elements of the left operand (batch, m, k), the right
// one (batch, k, n), the addend if there is one (batch, m, n; 0 where it is broadcast), the output
// (batch, m, n). Pointers: output, left, right, addend, then beta and alpha if there is an addend.
// Layouts: left along k, right along n, addend and output along n; the options `left_rows` and
// `right_rows` give the layouts along m and k.
#include "allocator.h"
#include "fallback.h"
#include "launch.h"
#include "operands.h"

#include <ATen/EmptyTensor.h>
#include <ATen/ExpandUtils.h>
#include <ATen/OpMathType.h>
#include <ATen/native/Resize.h>

#include <array>

namespace trnx {
namespace {

using at::Tensor;
using c10::ScalarType;
using torch::jit::Stack;

class MatmulKernel final : public c10::OperatorKernel {
 public:
  MatmulKernel(const std::string& op, KernelMaker maker)
      : op_(op),
        counts_(op_counts(op)),
        roles_(argument_roles(schema_of(op))),
        table_(std::move(maker)) {
    for (size_t i = 0; i < roles_.size(); ++i) {
      const auto& role = roles_[i];
      if (role.role == Role::Input || role.role == Role::InPlace) {
        inputs_.push_back(i);
      }
      if (role.role == Role::Output || role.role == Role::InPlace) {
        output_ = static_cast<int>(i);
      }
      if (role.name == "alpha") {
        alpha_ = static_cast<int>(i);
      } else if (role.name == "beta") {
        beta_ = static_cast<int>(i);
      }
    }
    TORCH_CHECK_VALUE(
        inputs_.size() == 2 || inputs_.size() == 3, op, " is no matrix product of two operands and "
        "at most one addend.");
  }

  void operator()(const c10::OperatorHandle& op, c10::DispatchKeySet keys, Stack* stack) {
    Tensor output;
    if (!run(*stack, output)) {
      return without_kernel(op, keys, stack);
    }
    count_executed(counts_);
    torch::jit::drop(*stack, roles_.size());
    stack->emplace_back(std::move(output));
  }

 private:
  // False if there is no device kernel; wrong shapes are left to torch, which has the texts.
  bool run(const Stack& stack, Tensor& output) {
    const auto begin = stack.size() - roles_.size();
    const bool has_addend = inputs_.size() == 3;
    const auto& left = stack[begin + inputs_[has_addend ? 1 : 0]].toTensor();
    const auto& right = stack[begin + inputs_[has_addend ? 2 : 1]].toTensor();
    for (const auto i : inputs_) {
      check_device(
          op_, roles_[inputs_[0]].name, stack[begin + inputs_[0]].toTensor().device(),
          roles_[i].name, stack[begin + i].toTensor());
    }
    const int64_t rank = left.dim();
    const bool fits = (rank == 2 || rank == 3) && right.dim() == rank &&
        left.size(-1) == right.size(-2) && (rank == 2 || left.size(0) == right.size(0)) &&
        left.scalar_type() == right.scalar_type();
    const bool sums_nothing = fits && left.size(-1) == 0;
    if (!fits || (sums_nothing && (has_addend || output_ >= 0))) {
      return false;
    }
    const int64_t batch = rank == 3 ? left.size(0) : 1;
    const int64_t m = left.size(-2), n = right.size(-1), k = left.size(-1);
    std::array<int64_t, 3> all{batch, m, n};
    const at::IntArrayRef shape(all.data() + (3 - rank), rank);

    Tensor addend;
    if (has_addend) {
      const auto& given = stack[begin + inputs_[0]].toTensor();
      if (given.scalar_type() != left.scalar_type() || !at::is_expandable_to(given.sizes(), shape)) {
        return false;
      }
      addend = given.expand(shape);
    }
    if (output_ >= 0) {
      output = stack[begin + output_].toTensor();
      check_device(op_, roles_[inputs_[0]].name, left.device(), roles_[output_].name, output);
      const bool in_place = roles_[output_].role == Role::InPlace;
      if (output.scalar_type() != left.scalar_type() || (in_place && output.sizes() != shape) ||
          output.is_alias_of(left) || output.is_alias_of(right) ||
          (!in_place && has_addend && output.is_alias_of(addend))) {
        return false;
      }
      if (!in_place) {
        at::native::resize_output(output, shape);
      }
    } else {
      output = at::detail::empty_generic(
          shape, device_allocator(left.device().index()),
          c10::DispatchKeySet(c10::DispatchKey::PrivateUse1), left.scalar_type(), std::nullopt);
    }

    if (sums_nothing) {
      output.zero_();
      return true;
    }
    c10::SmallVector<int64_t, 16> registers{batch, m, n, k};
    const auto add_strides = [&](const Tensor& tensor) {
      registers.push_back(rank == 3 && tensor.size(0) != 1 ? tensor.stride(0) : 0);
      registers.push_back(tensor.stride(-2));
      registers.push_back(tensor.stride(-1));
    };
    add_strides(left);
    add_strides(right);
    if (has_addend) {
      add_strides(addend);
    }
    add_strides(output);

    const auto kernel = find(left, right, addend, output, rank);
    if (kernel == nullptr) {
      return false;
    }
    if (output.numel() == 0) {
      return true;
    }
    c10::SmallVector<void*, 6> pointers{
        output.mutable_data_ptr(), const_cast<void*>(left.const_data_ptr()),
        const_cast<void*>(right.const_data_ptr())};
    std::array<ScalarValue, 2> values;
    if (has_addend) {
      pointers.push_back(const_cast<void*>(addend.const_data_ptr()));
      store_number(stack[begin + beta_].toScalar(), scalar_dtype(left), values[0].bytes);
      store_number(stack[begin + alpha_].toScalar(), scalar_dtype(left), values[1].bytes);
      pointers.push_back(values[0].bytes);
      pointers.push_back(values[1].bytes);
    }
    call_kernel(kernel, pointers, has_addend ? 2 : 0, registers, op_);
    return true;
  }

  static ScalarType scalar_dtype(const Tensor& operand) {
    const auto dtype = operand.scalar_type();
    return c10::isIntegralType(dtype, /*includeBool=*/true) ? ScalarType::Long
                                                            : at::toOpMathType(dtype);
  }

  KernelFunction find(
      const Tensor& left, const Tensor& right, const Tensor& addend, const Tensor& output,
      int64_t rank) {
    const auto rows = [](const Tensor& tensor) { return layout_of(tensor.stride(-2)); };
    const auto columns = [](const Tensor& tensor) { return layout_of(tensor.stride(-1)); };
    KeyBytes key;
    key.add(static_cast<uint8_t>(rank));
    key.add(left.scalar_type());
    for (const auto* tensor : {&left, &right, &output}) {
      key.add(rows(*tensor));
      key.add(columns(*tensor));
    }
    if (addend.defined()) {
      key.add(rows(addend));
      key.add(columns(addend));
    }
    return table_.find(key, [&] {
      KernelRequest request;
      request.family = "matmul";
      request.op = op_;
      request.compute = at::toOpMathType(left.scalar_type());
      request.ranks = {rank};
      request.outputs.push_back({"out", output.scalar_type(), columns(output)});
      request.inputs.push_back({"left", left.scalar_type(), columns(left)});
      request.inputs.push_back({"right", right.scalar_type(), columns(right)});
      if (addend.defined()) {
        request.inputs.push_back({"addend", addend.scalar_type(), columns(addend)});
        request.scalars.push_back({"beta", scalar_dtype(left)});
        request.scalars.push_back({"alpha", scalar_dtype(left)});
        request.options.emplace_back("addend_rows", static_cast<int64_t>(rows(addend)));
      }
      request.options.emplace_back("left_rows", static_cast<int64_t>(rows(left)));
      request.options.emplace_back("right_rows", static_cast<int64_t>(rows(right)));
      request.options.emplace_back("output_rows", static_cast<int64_t>(rows(output)));
      return request;
    });
  }

  const std::string op_;
  OpCounts& counts_;
  const std::vector<ArgumentRole> roles_;
  c10::SmallVector<size_t, 3> inputs_;
  int output_ = -1;
  int alpha_ = -1;
  int beta_ = -1;
  KernelTable table_;
};

} // namespace

void register_matmul(const std::string& op, KernelMaker maker) {
  replace_kernel(
      op,
      c10::KernelFunction::makeFromBoxedFunctor(
          std::make_unique<MatmulKernel>(op, std::move(maker))));
}

} // namespace trnx
