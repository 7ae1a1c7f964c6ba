// Reductions on compiled kernels: the input is collapsed to kept and reduced dimensions.
//
// Ranks: (kept, reduced), each at least 1. Registers: kept sizes, reduced sizes, input strides of
// the kept dimensions, input strides of the reduced ones, then for each output its strides over the
// kept dimensions; in elements, outermost first. Layouts: of the input along the innermost reduced
// dimension, of the outputs along the innermost kept one.
#include "allocator.h"
#include "fallback.h"
#include "launch.h"
#include "operands.h"

#include <ATen/EmptyTensor.h>
#include <ATen/OpMathType.h>
#include <ATen/WrapDimUtils.h>
#include <ATen/native/Resize.h>

#include <algorithm>
#include <bitset>
#include <cstdlib>

namespace trnx {
namespace {

using at::Tensor;
using c10::ScalarType;
using torch::jit::Stack;

constexpr size_t kMaxDims = 64;

struct Dim {
  int64_t size;
  int64_t input;
  int64_t output;
};
using Dims = c10::SmallVector<Dim, 6>;

// Orders dimensions by the input's strides and merges neighbours that are one in every operand.
void collapse(Dims& dims, bool ordered) {
  dims.erase(
      std::remove_if(dims.begin(), dims.end(), [](const Dim& dim) { return dim.size == 1; }),
      dims.end());
  if (!ordered) {
    std::stable_sort(dims.begin(), dims.end(), [](const Dim& a, const Dim& b) {
      return std::abs(a.input) > std::abs(b.input);
    });
  }
  Dims merged;
  for (const auto& dim : dims) {
    if (!merged.empty() && merged.back().input == dim.size * dim.input &&
        merged.back().output == dim.size * dim.output) {
      merged.back() = {merged.back().size * dim.size, dim.input, dim.output};
    } else {
      merged.push_back(dim);
    }
  }
  if (merged.empty()) {
    merged.push_back({1, 1, 1});
  }
  dims = std::move(merged);
}

class ReductionKernel final : public c10::OperatorKernel {
 public:
  ReductionKernel(const std::string& op, ReductionOptions options, KernelMaker maker)
      : op_(op),
        counts_(op_counts(op)),
        roles_(argument_roles(schema_of(op))),
        options_(std::move(options)),
        table_(std::move(maker)) {
    for (size_t i = 0; i < roles_.size(); ++i) {
      const auto& name = roles_[i].name;
      if (roles_[i].role == Role::Input) {
        input_ = i;
      } else if (name == "dim" || name == "dims") {
        dim_ = static_cast<int>(i);
      } else if (name == "keepdim") {
        keepdim_ = static_cast<int>(i);
      } else if (name == "dtype") {
        dtype_ = static_cast<int>(i);
      }
    }
    TORCH_CHECK_VALUE(
        options_.outputs.size() == schema_of(op).returns().size(), op, " returns ",
        schema_of(op).returns().size(), " tensors; give one output rule for each.");
  }

  void operator()(const c10::OperatorHandle& op, c10::DispatchKeySet keys, Stack* stack) {
    c10::SmallVector<Tensor, 2> outputs;
    if (!run(*stack, outputs)) {
      return without_kernel(op, keys, stack);
    }
    count_executed(counts_);
    torch::jit::drop(*stack, roles_.size());
    for (auto& output : outputs) {
      stack->emplace_back(std::move(output));
    }
  }

 private:
  std::bitset<kMaxDims> reduced_dims(const Stack& stack, size_t begin, int64_t rank) const {
    std::bitset<kMaxDims> mask;
    const c10::IValue* dims = dim_ < 0 ? nullptr : &stack[begin + dim_];
    if (dims == nullptr || dims->isNone()) {
      return ~mask;
    }
    if (dims->isInt()) {
      mask.set(c10::maybe_wrap_dim(dims->toInt(), rank, /*wrap_scalar=*/true));
      return mask;
    }
    const auto list = dims->toIntVector();
    if (list.empty()) {
      return ~mask;
    }
    for (const auto dim : list) {
      const auto index = c10::maybe_wrap_dim(dim, rank, /*wrap_scalar=*/true);
      TORCH_CHECK(!mask[index], "dim ", index, " appears multiple times in the list of dims");
      mask.set(index);
    }
    return mask;
  }

  ScalarType output_dtype(ReductionOutput rule, ScalarType input, ScalarType asked) const {
    switch (rule) {
      case ReductionOutput::Int64:
        return ScalarType::Long;
      case ReductionOutput::Bool:
        return ScalarType::Bool;
      case ReductionOutput::Same:
        return asked == ScalarType::Undefined ? input : asked;
      default:
        break;
    }
    if (asked != ScalarType::Undefined) {
      return asked;
    }
    if (!c10::isIntegralType(input, /*includeBool=*/true)) {
      return input;
    }
    return rule == ReductionOutput::Sum ? ScalarType::Long : ScalarType::Undefined;
  }

  // False if there is no device kernel for these arguments.
  bool run(const Stack& stack, c10::SmallVector<Tensor, 2>& outputs) {
    const auto begin = stack.size() - roles_.size();
    const auto& input = stack[begin + input_].toTensor();
    if (input.device().type() != kNeuron || input.dim() > static_cast<int64_t>(kMaxDims)) {
      return false;
    }
    const auto asked = dtype_ >= 0 && !stack[begin + dtype_].isNone()
        ? stack[begin + dtype_].toScalarType()
        : ScalarType::Undefined;
    const bool keepdim = keepdim_ >= 0 && stack[begin + keepdim_].toBool();
    const auto mask = reduced_dims(stack, begin, input.dim());

    c10::SmallVector<int64_t, 6> shape;
    c10::SmallVector<int64_t, 6> kept_shape; // every dimension, reduced ones with size 1
    for (int64_t d = 0; d < input.dim(); ++d) {
      kept_shape.push_back(mask[d] ? 1 : input.size(d));
      if (!mask[d]) {
        shape.push_back(input.size(d));
      } else if (keepdim) {
        shape.push_back(1);
      }
    }

    c10::SmallVector<ScalarType, 2> dtypes;
    c10::SmallVector<Tensor, 2> given;
    for (size_t i = 0; i < roles_.size(); ++i) {
      if (roles_[i].role == Role::Output) {
        given.push_back(stack[begin + i].toTensor());
        check_device(op_, roles_[input_].name, input.device(), roles_[i].name, given.back());
      }
    }
    for (size_t i = 0; i < options_.outputs.size(); ++i) {
      const auto dtype = output_dtype(options_.outputs[i], input.scalar_type(), asked);
      if (dtype == ScalarType::Undefined) {
        return false; // mean of integers: torch's kernel has the error text
      }
      dtypes.push_back(given.empty() ? dtype : given[i].scalar_type());
      if (!given.empty() && !c10::canCast(dtype, dtypes.back())) {
        return false;
      }
    }

    if (input.numel() == 0) {
      return reduce_nothing(input, shape, dtypes, given, outputs);
    }

    // With fresh outputs the strides over all dimensions are those of a contiguous tensor.
    Dims kept, reduced;
    int64_t running = 1;
    c10::SmallVector<int64_t, 6> fresh_strides(input.dim(), 0);
    for (int64_t d = input.dim() - 1; d >= 0; --d) {
      fresh_strides[d] = mask[d] ? 0 : running;
      running *= kept_shape[d];
    }
    for (int64_t d = 0; d < input.dim(); ++d) {
      (mask[d] ? reduced : kept).push_back({input.size(d), input.stride(d), fresh_strides[d]});
    }
    if (!given.empty()) {
      for (auto& output : given) {
        at::native::resize_output(output, shape);
        if (!output.is_contiguous()) {
          return false;
        }
      }
    }
    collapse(kept, /*ordered=*/false);
    for (auto& dim : reduced) {
      dim.output = 0;
    }
    collapse(reduced, options_.ordered);
    reduced.back().output = 0;

    c10::SmallVector<int64_t, 24> registers;
    for (const auto& dim : kept) {
      registers.push_back(dim.size);
    }
    for (const auto& dim : reduced) {
      registers.push_back(dim.size);
    }
    for (const auto& dim : kept) {
      registers.push_back(dim.input);
    }
    for (const auto& dim : reduced) {
      registers.push_back(dim.input);
    }
    for (size_t i = 0; i < dtypes.size(); ++i) {
      for (const auto& dim : kept) {
        registers.push_back(dim.output);
      }
    }
    const auto kernel = find(stack, begin, input, dtypes, kept, reduced);
    if (kernel == nullptr) {
      return false;
    }

    c10::SmallVector<void*, 6> pointers;
    for (size_t i = 0; i < dtypes.size(); ++i) {
      outputs.push_back(
          !given.empty()
              ? given[i]
              : Tensor(at::detail::empty_generic(
                    shape, device_allocator(input.device().index()),
                    c10::DispatchKeySet(c10::DispatchKey::PrivateUse1), dtypes[i], std::nullopt)));
      pointers.push_back(outputs.back().mutable_data_ptr());
    }
    pointers.push_back(const_cast<void*>(input.const_data_ptr()));
    std::vector<ScalarValue> values(roles_.size());
    size_t scalars = 0;
    for (size_t i = 0; i < roles_.size(); ++i) {
      if (roles_[i].role == Role::Scalar && !stack[begin + i].isNone()) {
        store_number(
            stack[begin + i].toScalar(), scalar_dtype(input.scalar_type()), values[i].bytes);
        pointers.push_back(values[i].bytes);
        ++scalars;
      }
    }
    call_kernel(kernel, pointers, scalars, registers, op_);
    return true;
  }

  // Without elements there is nothing to launch. False where torch says what that means.
  bool reduce_nothing(
      const Tensor& input, c10::IntArrayRef shape, const c10::SmallVector<ScalarType, 2>& dtypes,
      const c10::SmallVector<Tensor, 2>& given, c10::SmallVector<Tensor, 2>& outputs) const {
    const bool some = c10::multiply_integers(shape) != 0;
    if (!given.empty() || !options_.empty.has_value() || (some && dtypes.size() != 1)) {
      return false;
    }
    for (const auto dtype : dtypes) {
      outputs.emplace_back(at::detail::empty_generic(
          shape, device_allocator(input.device().index()),
          c10::DispatchKeySet(c10::DispatchKey::PrivateUse1), dtype, std::nullopt));
    }
    if (some) {
      outputs[0].fill_(*options_.empty);
    }
    return true;
  }

  static ScalarType scalar_dtype(ScalarType input) {
    return c10::isIntegralType(input, /*includeBool=*/true) ? ScalarType::Double
                                                            : at::toOpMathType(input);
  }

  KernelFunction find(
      const Stack& stack, size_t begin, const Tensor& input,
      const c10::SmallVector<ScalarType, 2>& dtypes, const Dims& kept, const Dims& reduced) {
    // Nothing is gained by knowing that a reduced dimension is broadcast: it is read as any other.
    const auto input_layout =
        reduced.back().input == 1 ? Layout::Contiguous : Layout::Strided;
    const auto output_layout = layout_of(kept.back().output);
    const auto is_option = [&](size_t i) {
      const int index = static_cast<int>(i);
      return roles_[i].role == Role::Option && index != dim_ && index != keepdim_ &&
          index != dtype_;
    };
    KeyBytes key;
    key.add(static_cast<uint8_t>(kept.size()));
    key.add(static_cast<uint8_t>(reduced.size()));
    key.add(input.scalar_type());
    key.add(input_layout);
    key.add(layout_of(kept.back().input));
    key.add(output_layout);
    for (const auto dtype : dtypes) {
      key.add(dtype);
    }
    for (size_t i = 0; i < roles_.size(); ++i) {
      if (is_option(i)) {
        key.add(stack[begin + i]);
      } else if (roles_[i].role == Role::Scalar) {
        key.add(static_cast<uint8_t>(stack[begin + i].isNone() ? 0 : 1));
      }
    }
    return table_.find(key, [&] {
      KernelRequest request;
      request.family = "reduction";
      request.op = op_;
      request.compute = at::toOpMathType(input.scalar_type());
      request.ranks = {static_cast<int64_t>(kept.size()), static_cast<int64_t>(reduced.size())};
      for (const auto dtype : dtypes) {
        request.outputs.push_back({"out", dtype, output_layout});
      }
      request.inputs.push_back({roles_[input_].name, input.scalar_type(), input_layout});
      for (size_t i = 0; i < roles_.size(); ++i) {
        if (is_option(i)) {
          request.options.emplace_back(roles_[i].name, stack[begin + i]);
        } else if (roles_[i].role == Role::Scalar && !stack[begin + i].isNone()) {
          request.scalars.push_back({roles_[i].name, scalar_dtype(input.scalar_type())});
        }
      }
      // The layout along the innermost kept dimension is in the key, too: column sums want it.
      request.options.emplace_back(
          "kept_layout", static_cast<int64_t>(layout_of(kept.back().input)));
      return request;
    });
  }

  const std::string op_;
  OpCounts& counts_;
  const std::vector<ArgumentRole> roles_;
  const ReductionOptions options_;
  size_t input_ = 0;
  int dim_ = -1;
  int keepdim_ = -1;
  int dtype_ = -1;
  KernelTable table_;
};

} // namespace

void register_reduction(const std::string& op, ReductionOptions options, KernelMaker maker) {
  replace_kernel(
      op,
      c10::KernelFunction::makeFromBoxedFunctor(
          std::make_unique<ReductionKernel>(op, std::move(options), std::move(maker))));
}

} // namespace trnx
