// Operators that work along one dimension and keep the shape (softmax and its kin) on compiled
// kernels: every other dimension is collapsed.
//
// Ranks: (rank), the number of collapsed dimensions plus the row's own, at least 2. Registers:
// sizes[rank], then for each output and each input strides[rank] in elements; the last dimension is
// the argument `dim`, the others come outermost first. Layouts are along the last dimension.
#include "allocator.h"
#include "fallback.h"
#include "launch.h"
#include "operands.h"

#include <ATen/EmptyTensor.h>
#include <ATen/OpMathType.h>
#include <ATen/WrapDimUtils.h>
#include <ATen/native/Resize.h>

#include <array>

namespace trnx {
namespace {

using at::Tensor;
using c10::ScalarType;
using torch::jit::Stack;

constexpr size_t kMaxOperands = 4;

struct RowDim {
  int64_t size = 1;
  std::array<int64_t, kMaxOperands> strides{};
};

class RowwiseKernel final : public c10::OperatorKernel {
 public:
  RowwiseKernel(const std::string& op, KernelMaker maker)
      : op_(op),
        counts_(op_counts(op)),
        roles_(argument_roles(schema_of(op))),
        table_(std::move(maker)) {
    for (size_t i = 0; i < roles_.size(); ++i) {
      const auto& role = roles_[i];
      if (role.role == Role::Input) {
        inputs_.push_back(i);
      } else if (role.role == Role::Output) {
        output_ = static_cast<int>(i);
      } else if (role.name == "dim") {
        dim_ = static_cast<int>(i);
      }
    }
    TORCH_CHECK_VALUE(
        dim_ >= 0 && !inputs_.empty() && inputs_.size() < kMaxOperands, op,
        " does not work along an argument `dim` of one to three tensors.");
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
  // False if there is no device kernel; what is wrong is left to torch, which has the texts.
  bool run(const Stack& stack, Tensor& output) {
    const auto begin = stack.size() - roles_.size();
    const auto& first = stack[begin + inputs_[0]].toTensor();
    c10::SmallVector<const Tensor*, kMaxOperands> operands{nullptr};
    for (const auto i : inputs_) {
      const auto& tensor = stack[begin + i].toTensor();
      check_device(op_, roles_[inputs_[0]].name, first.device(), roles_[i].name, tensor);
      if (tensor.sizes() != first.sizes()) {
        return false;
      }
      operands.push_back(&tensor);
    }
    const bool nothing = first.numel() == 0;
    if (first.device().type() != kNeuron || (nothing && output_ >= 0)) {
      return false;
    }
    const auto dtype = output_dtype(stack, begin, first);
    if (output_ >= 0) {
      output = stack[begin + output_].toTensor();
      check_device(op_, roles_[inputs_[0]].name, first.device(), roles_[output_].name, output);
      if (output.scalar_type() != dtype) {
        return false;
      }
      for (size_t i = 1; i < operands.size(); ++i) {
        if (output.is_alias_of(*operands[i])) {
          return false;
        }
      }
      at::native::resize_output(output, first.sizes());
    } else {
      output = at::detail::empty_generic(
          first.sizes(), device_allocator(first.device().index()),
          c10::DispatchKeySet(c10::DispatchKey::PrivateUse1), dtype, std::nullopt);
    }
    if (nothing) {
      return true;
    }
    operands[0] = &output;

    const auto axis = c10::maybe_wrap_dim(
        stack[begin + dim_].toInt(), first.dim(), /*wrap_scalar=*/true);
    c10::SmallVector<RowDim, 5> dims;
    RowDim row;
    for (int64_t d = 0; d < first.dim(); ++d) {
      RowDim dim;
      dim.size = first.size(d);
      for (size_t i = 0; i < operands.size(); ++i) {
        dim.strides[i] = operands[i]->stride(d);
      }
      if (d == axis) {
        row = dim;
      } else if (dim.size != 1) {
        append(dims, dim, operands.size());
      }
    }
    if (row.size == 1) {
      row.strides.fill(1);
    }
    if (dims.empty()) {
      dims.emplace_back();
    }
    dims.push_back(row);

    c10::SmallVector<int64_t, 24> registers;
    for (const auto& dim : dims) {
      registers.push_back(dim.size);
    }
    for (size_t i = 0; i < operands.size(); ++i) {
      for (const auto& dim : dims) {
        registers.push_back(dim.strides[i]);
      }
    }
    const auto kernel = find(stack, begin, operands, row, dims.size());
    if (kernel == nullptr) {
      return false;
    }
    std::array<void*, kMaxOperands> pointers{output.mutable_data_ptr()};
    for (size_t i = 1; i < operands.size(); ++i) {
      pointers[i] = const_cast<void*>(operands[i]->const_data_ptr());
    }
    call_kernel(kernel, {pointers.data(), operands.size()}, 0, registers, op_);
    return true;
  }

  // Adds a dimension, merged with the one outside of it if they are one in every operand.
  static void append(c10::SmallVector<RowDim, 5>& dims, const RowDim& dim, size_t operands) {
    if (!dims.empty()) {
      bool merges = true;
      for (size_t i = 0; i < operands; ++i) {
        merges &= dims.back().strides[i] == dim.size * dim.strides[i];
      }
      if (merges) {
        const auto size = dims.back().size * dim.size;
        dims.back() = dim;
        dims.back().size = size;
        return;
      }
    }
    dims.push_back(dim);
  }

  ScalarType output_dtype(const Stack& stack, size_t begin, const Tensor& first) const {
    for (size_t i = 0; i < roles_.size(); ++i) {
      if (roles_[i].name == "half_to_float" && stack[begin + i].toBool()) {
        return ScalarType::Float;
      }
      if (roles_[i].name == "input_dtype") {
        return stack[begin + i].toScalarType();
      }
    }
    return first.scalar_type();
  }

  KernelFunction find(
      const Stack& stack, size_t begin,
      const c10::SmallVector<const Tensor*, kMaxOperands>& operands, const RowDim& row,
      size_t rank) {
    const auto is_option = [&](size_t i) {
      return roles_[i].role == Role::Option && static_cast<int>(i) != dim_;
    };
    KeyBytes key;
    key.add(static_cast<uint8_t>(rank));
    for (size_t i = 0; i < operands.size(); ++i) {
      key.add(operands[i]->scalar_type());
      key.add(layout_of(row.strides[i]));
    }
    for (size_t i = 0; i < roles_.size(); ++i) {
      if (is_option(i)) {
        key.add(stack[begin + i]);
      }
    }
    return table_.find(key, [&] {
      KernelRequest request;
      request.family = "rowwise";
      request.op = op_;
      request.compute = operands[1]->scalar_type();
      request.ranks = {static_cast<int64_t>(rank)};
      request.outputs.push_back({"out", operands[0]->scalar_type(), layout_of(row.strides[0])});
      for (size_t i = 1; i < operands.size(); ++i) {
        request.inputs.push_back(
            {roles_[inputs_[i - 1]].name, operands[i]->scalar_type(), layout_of(row.strides[i])});
      }
      for (size_t i = 0; i < roles_.size(); ++i) {
        if (is_option(i)) {
          request.options.emplace_back(roles_[i].name, stack[begin + i]);
        }
      }
      return request;
    });
  }

  const std::string op_;
  OpCounts& counts_;
  const std::vector<ArgumentRole> roles_;
  c10::SmallVector<size_t, 3> inputs_;
  int dim_ = -1;
  int output_ = -1;
  KernelTable table_;
};

} // namespace

void register_rowwise(const std::string& op, KernelMaker maker) {
  replace_kernel(
      op,
      c10::KernelFunction::makeFromBoxedFunctor(
          std::make_unique<RowwiseKernel>(op, std::move(maker))));
}

} // namespace trnx
