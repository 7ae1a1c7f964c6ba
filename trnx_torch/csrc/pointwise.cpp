// Elementwise operators on compiled kernels: promotion, broadcasting, output allocation and
// collapsing of dimensions as TensorIterator does them, then one kernel call (one per list item).
//
// Registers: sizes[rank], then for each output and each tensor input strides[rank] in elements;
// outermost dimension first. The rank is at least 1.
#include "allocator.h"
#include "fallback.h"
#include "launch.h"
#include "operands.h"

#include <ATen/EmptyTensor.h>
#include <ATen/OpMathType.h>
#include <ATen/TensorIterator.h>
#include <ATen/native/TypeProperties.h>
#include <c10/core/ScalarTypeToTypeMeta.h>

#include <algorithm>
#include <array>
#include <optional>

namespace trnx {
namespace {

using at::Tensor;
using c10::ScalarType;
using torch::jit::Stack;

constexpr size_t kMaxScalars = 16;

// One call of the kernel: its operands in kernel order. Names point into the operator's roles.
struct Item {
  c10::SmallVector<Tensor, 3> outputs; // undefined: to be allocated
  c10::SmallVector<const std::string*, 3> output_names;
  c10::SmallVector<Tensor, 5> inputs;
  c10::SmallVector<const std::string*, 5> input_names;
  c10::SmallVector<c10::Scalar, 4> scalars;
  c10::SmallVector<const std::string*, 4> scalar_names;
  at::native::ResultTypeState promotion;

  void clear() {
    outputs.clear();
    output_names.clear();
    inputs.clear();
    input_names.clear();
    scalars.clear();
    scalar_names.clear();
    promotion = {};
  }
};

class PointwiseKernel final : public c10::OperatorKernel {
 public:
  PointwiseKernel(const std::string& op, PointwiseOptions options, KernelMaker maker)
      : op_(op),
        counts_(op_counts(op)),
        roles_(argument_roles(schema_of(op))),
        returns_(schema_of(op).returns().size()),
        options_(std::move(options)),
        table_(std::move(maker)) {
    for (const auto& role : roles_) {
      const bool tensor = role.role == Role::Input || role.role == Role::InPlace;
      const auto& chosen = options_.promote;
      promotes_.push_back(
          chosen.empty() ? tensor
                         : std::find(chosen.begin(), chosen.end(), role.name) != chosen.end());
      writes_ |= role.role == Role::InPlace || role.role == Role::Output;
      lists_ |= role.list;
      has_options_ |= role.role == Role::Option;
    }
    for (const auto& name : options_.promote) {
      TORCH_CHECK_VALUE(
          std::any_of(
              roles_.begin(), roles_.end(), [&](const auto& role) { return role.name == name; }),
          op, " has no argument '", name, "' to promote.");
    }
  }

  void operator()(const c10::OperatorHandle& op, c10::DispatchKeySet keys, Stack* stack) {
    const auto begin = stack->size() - roles_.size();
    const size_t count = lists_ ? list_length(*stack, begin) : 1;
    std::vector<std::vector<Tensor>> results; // of a functional list operator
    Item item;
    for (size_t i = 0; i < count; ++i) {
      item.clear();
      collect(*stack, begin, i, item);
      if (!run(*stack, begin, item)) {
        if (i == 0 || !writes_) {
          return without_kernel(op, keys, stack);
        }
        // Items before this one are done, and in place: only the rest may run again.
        run_rest(op, keys, *stack, begin, i);
        break;
      }
      if (lists_ && !writes_) {
        results.emplace_back(item.outputs.begin(), item.outputs.end());
      }
    }
    count_executed(counts_);
    if (lists_) {
      return finish_list(stack, std::move(results));
    }
    // An in-place or out= operator returns exactly the tensors it was given.
    torch::jit::drop(*stack, roles_.size());
    for (size_t i = 0; i < returns_; ++i) {
      stack->emplace_back(std::move(item.outputs[i]));
    }
  }

 private:
  size_t list_length(const Stack& stack, size_t begin) const {
    std::optional<size_t> length;
    for (size_t i = 0; i < roles_.size(); ++i) {
      if (roles_[i].list && stack[begin + i].isTensorList()) {
        const auto size = stack[begin + i].toTensorList().size();
        // An optional list (max_exp_avg_sqs without amsgrad) may be empty.
        if (!length.has_value() || *length == 0) {
          length = size;
        }
        TORCH_CHECK(
            size == *length || size == 0, op_, ": '", roles_[i].name, "' has ", size,
            " tensors where the first list has ", *length, ". Pass lists of one length.");
      }
    }
    return length.value_or(0);
  }

  // Runs the items from `first` on without a device kernel.
  void run_rest(
      const c10::OperatorHandle& op, c10::DispatchKeySet keys, const Stack& stack, size_t begin,
      size_t first) const {
    Stack rest;
    for (size_t i = 0; i < roles_.size(); ++i) {
      const c10::IValue& value = stack[begin + i];
      if (!roles_[i].list || value.isNone()) {
        rest.push_back(value);
      } else if (value.isTensorList()) {
        auto tensors = value.toTensorVector();
        tensors.erase(tensors.begin(), tensors.begin() + std::min(first, tensors.size()));
        rest.emplace_back(std::move(tensors));
      } else {
        c10::List<c10::Scalar> numbers;
        for (size_t k = first; k < value.toListRef().size(); ++k) {
          numbers.push_back(value.toListRef()[k].toScalar());
        }
        rest.emplace_back(std::move(numbers));
      }
    }
    without_kernel(op, keys, &rest);
  }

  // Sorts the arguments (item `index` of lists) into operands.
  void collect(const Stack& stack, size_t begin, size_t index, Item& item) const {
    for (size_t i = 0; i < roles_.size(); ++i) {
      const auto& role = roles_[i];
      const c10::IValue& value = stack[begin + i];
      if (role.role == Role::Option || value.isNone()) {
        continue;
      }
      if (role.role == Role::Scalar) {
        const auto number =
            role.list ? value.toListRef()[index].toScalar() : value.toScalar();
        add_scalar(item, role, promotes_[i], number);
        continue;
      }
      Tensor tensor;
      if (role.list) {
        const auto list = value.toTensorList();
        if (list.empty()) {
          continue;
        }
        tensor = list.get(index);
      } else {
        tensor = value.toTensor();
      }
      if (!tensor.defined()) {
        continue;
      }
      if (role.role != Role::Input) {
        item.outputs.push_back(tensor);
        item.output_names.push_back(&role.name);
      }
      if (role.role == Role::Output) {
        continue;
      }
      if (promotes_[i]) {
        item.promotion = at::native::update_result_type_state(tensor, item.promotion);
      }
      if (role.role == Role::Input && is_number(tensor)) {
        add_scalar(item, role, false, number_in(tensor));
      } else {
        item.inputs.push_back(std::move(tensor));
        item.input_names.push_back(&role.name);
      }
    }
  }

  static void add_scalar(
      Item& item, const ArgumentRole& role, bool promotes, const c10::Scalar& number) {
    if (promotes) {
      item.promotion = at::native::update_result_type_state(number, item.promotion);
    }
    item.scalars.push_back(number);
    item.scalar_names.push_back(&role.name);
  }

  // Runs one item; false if there is no device kernel for it.
  bool run(const Stack& stack, size_t begin, Item& item) {
    if (item.inputs.empty()) {
      return false; // only numbers: nothing of the device takes part but an out= tensor
    }
    const auto device = item.inputs[0].device();
    for (size_t i = 1; i < item.inputs.size(); ++i) {
      check_device(op_, *item.input_names[0], device, *item.input_names[i], item.inputs[i]);
    }
    for (size_t i = 0; i < item.outputs.size(); ++i) {
      check_device(op_, *item.input_names[0], device, *item.output_names[i], item.outputs[i]);
    }

    auto compute = at::native::result_type(item.promotion);
    if (options_.integers_to_float && c10::isIntegralType(compute, /*includeBool=*/true)) {
      compute = c10::get_default_dtype_as_scalartype();
    }
    const auto fresh = options_.output == ScalarType::Undefined ? compute : options_.output;
    if (item.outputs.empty()) {
      item.outputs.resize(returns_);
      static const std::string out = "out";
      item.output_names.assign(item.outputs.size(), &out);
    }
    return is_flat(item) ? run_flat(stack, begin, item, compute, fresh)
                         : run_strided(stack, begin, item, compute, fresh);
  }

  // True if all tensors have one shape and are contiguous: then there is one dimension. An output
  // that is an input must be exactly it, or memory could overlap.
  static bool is_flat(const Item& item) {
    const auto& first = item.inputs[0];
    if (!first.is_contiguous()) {
      return false;
    }
    for (size_t i = 1; i < item.inputs.size(); ++i) {
      if (!item.inputs[i].is_contiguous() || item.inputs[i].sizes() != first.sizes()) {
        return false;
      }
    }
    for (const auto& output : item.outputs) {
      if (!output.defined()) {
        continue;
      }
      if (!output.is_contiguous() || output.sizes() != first.sizes()) {
        return false;
      }
      for (const auto& input : item.inputs) {
        if (input.is_alias_of(output) &&
            (input.storage_offset() != output.storage_offset() ||
             input.element_size() != output.element_size())) {
          return false;
        }
      }
    }
    return true;
  }

  bool run_flat(
      const Stack& stack, size_t begin, Item& item, ScalarType compute, ScalarType fresh) {
    const auto& first = item.inputs[0];
    const auto count = first.numel();
    const auto operands = item.outputs.size() + item.inputs.size();
    c10::SmallVector<int64_t, 10> registers(1 + operands, 1);
    registers[0] = count;
    const auto kernel = find(stack, begin, item, compute, fresh, 1, registers.data());
    if (kernel == nullptr) {
      return false;
    }
    check_output_dtypes(item, fresh);
    for (auto& output : item.outputs) {
      if (!output.defined()) {
        output = at::detail::empty_generic(
            first.sizes(), device_allocator(first.device().index()),
            c10::DispatchKeySet(c10::DispatchKey::PrivateUse1), fresh, std::nullopt);
      }
    }
    if (count != 0) {
      c10::SmallVector<void*, 12> pointers;
      for (const auto& output : item.outputs) {
        pointers.push_back(output.mutable_data_ptr());
      }
      for (const auto& input : item.inputs) {
        pointers.push_back(const_cast<void*>(input.const_data_ptr()));
      }
      call(kernel, pointers, registers.data(), 1, item, compute);
    }
    return true;
  }

  bool run_strided(
      const Stack& stack, size_t begin, Item& item, ScalarType compute, ScalarType fresh) {
    at::TensorIteratorConfig config;
    config.set_check_mem_overlap(true)
        .check_all_same_dtype(false)
        .resize_outputs(!in_place(item))
        .declare_static_dtype_and_device(fresh, item.inputs[0].device());
    for (const auto& output : item.outputs) {
      config.add_owned_output(output);
    }
    for (const auto& input : item.inputs) {
      config.add_borrowed_const_input(input);
    }
    auto iterator = config.build();
    const int outputs = static_cast<int>(item.outputs.size());
    const int operands = outputs + static_cast<int>(item.inputs.size());
    const auto rank = std::max<int64_t>(iterator.ndim(), 1);
    c10::SmallVector<int64_t, 32> registers;
    for (int64_t d = rank - 1; d >= 0; --d) {
      registers.push_back(d < iterator.ndim() ? iterator.shape()[d] : 1);
    }
    for (int i = 0; i < operands; ++i) {
      const auto size = static_cast<int64_t>(iterator.element_size(i));
      for (int64_t d = rank - 1; d >= 0; --d) {
        registers.push_back(d < iterator.ndim() ? iterator.strides(i)[d] / size : 1);
      }
    }
    const auto kernel = find(stack, begin, item, compute, fresh, rank, registers.data());
    if (kernel == nullptr) {
      return false;
    }
    check_output_dtypes(item, fresh);
    for (int i = 0; i < outputs; ++i) {
      if (!item.outputs[i].defined()) {
        item.outputs[i] = iterator.tensor(i);
      }
    }
    if (iterator.numel() != 0) {
      c10::SmallVector<void*, 12> pointers;
      for (int i = 0; i < operands; ++i) {
        pointers.push_back(iterator.data_ptr(i));
      }
      call(kernel, pointers, registers.data(), rank, item, compute);
    }
    return true;
  }

  void check_output_dtypes(const Item& item, ScalarType fresh) const {
    for (const auto& output : item.outputs) {
      TORCH_CHECK(
          !output.defined() || options_.converts || c10::canCast(fresh, output.scalar_type()), "result type ", fresh,
          " can't be cast to the desired output type ", output.scalar_type());
    }
  }

  bool in_place(const Item& item) const {
    return !item.outputs.empty() && writes_ && *item.output_names[0] != "out" && !has_out();
  }
  bool has_out() const {
    return std::any_of(
        roles_.begin(), roles_.end(), [](const auto& role) { return role.role == Role::Output; });
  }

  static ScalarType scalar_dtype(ScalarType compute) {
    return c10::isIntegralType(compute, /*includeBool=*/false) ? ScalarType::Long
                                                               : at::toOpMathType(compute);
  }

  KernelFunction find(
      const Stack& stack, size_t begin, const Item& item, ScalarType compute, ScalarType fresh,
      int64_t rank, const int64_t* registers) {
    // Strides of operand i end at sizes + (i + 1) * rank.
    const auto layout = [&](size_t operand) {
      return layout_of(registers[rank + (operand + 1) * rank - 1]);
    };
    KeyBytes key;
    key.add(static_cast<uint8_t>(rank));
    key.add(compute);
    size_t operand = 0;
    for (const auto& output : item.outputs) {
      key.add(output.defined() ? output.scalar_type() : fresh);
      key.add(layout(operand++));
    }
    // Which inputs are tensors and which are numbers shows in the addresses of their names.
    for (size_t i = 0; i < item.inputs.size(); ++i) {
      key.add(item.inputs[i].scalar_type());
      key.add(layout(operand++));
      key.add(position(item.input_names[i]));
    }
    for (const auto* name : item.scalar_names) {
      key.add(position(name));
    }
    if (has_options_) {
      for (size_t i = 0; i < roles_.size(); ++i) {
        if (roles_[i].role == Role::Option) {
          key.add(stack[begin + i]);
        }
      }
    }
    return table_.find(key, [&] {
      KernelRequest request;
      request.family = "pointwise";
      request.op = op_;
      request.compute = compute;
      request.ranks = {rank};
      size_t index = 0;
      for (size_t i = 0; i < item.outputs.size(); ++i) {
        const auto& output = item.outputs[i];
        request.outputs.push_back(
            {*item.output_names[i], output.defined() ? output.scalar_type() : fresh,
             layout(index++)});
      }
      for (size_t i = 0; i < item.inputs.size(); ++i) {
        request.inputs.push_back(
            {*item.input_names[i], item.inputs[i].scalar_type(), layout(index++)});
      }
      for (const auto* name : item.scalar_names) {
        request.scalars.push_back({*name, scalar_dtype(compute)});
      }
      for (size_t i = 0; i < roles_.size(); ++i) {
        if (roles_[i].role == Role::Option) {
          request.options.emplace_back(roles_[i].name, stack[begin + i]);
        }
      }
      return request;
    });
  }

  // Index of the argument that a name belongs to.
  uint8_t position(const std::string* name) const {
    for (size_t i = 0; i < roles_.size(); ++i) {
      if (&roles_[i].name == name) {
        return static_cast<uint8_t>(i);
      }
    }
    return 0xFF;
  }

  template <typename Pointers>
  void call(
      KernelFunction kernel, Pointers& pointers, const int64_t* registers, int64_t rank,
      const Item& item, ScalarType compute) {
    std::array<ScalarValue, kMaxScalars> values;
    TORCH_INTERNAL_ASSERT(item.scalars.size() <= kMaxScalars);
    for (size_t i = 0; i < item.scalars.size(); ++i) {
      store_number(item.scalars[i], scalar_dtype(compute), values[i].bytes);
      pointers.push_back(values[i].bytes);
    }
    call_kernel(
        kernel, pointers, item.scalars.size(),
        c10::IntArrayRef(registers, rank * (1 + item.outputs.size() + item.inputs.size())), op_);
  }

  void finish_list(Stack* stack, std::vector<std::vector<Tensor>>&& results) const {
    const auto begin = stack->size() - roles_.size();
    c10::SmallVector<c10::IValue, 2> returned;
    if (returns_ > 0 && writes_) {
      for (size_t i = 0; i < roles_.size() && returned.size() < returns_; ++i) {
        if (roles_[i].role == Role::InPlace || roles_[i].role == Role::Output) {
          returned.push_back((*stack)[begin + i]);
        }
      }
    } else if (returns_ > 0) {
      std::vector<Tensor> list;
      for (auto& item : results) {
        list.push_back(std::move(item[0]));
      }
      returned.emplace_back(std::move(list));
    }
    torch::jit::drop(*stack, roles_.size());
    for (auto& value : returned) {
      stack->push_back(std::move(value));
    }
  }

  const std::string op_;
  OpCounts& counts_;
  const std::vector<ArgumentRole> roles_;
  const size_t returns_;
  const PointwiseOptions options_;
  std::vector<bool> promotes_;
  bool writes_ = false;
  bool lists_ = false;
  bool has_options_ = false;
  KernelTable table_;
};

} // namespace

void register_pointwise(const std::string& op, PointwiseOptions options, KernelMaker maker) {
  replace_kernel(
      op,
      c10::KernelFunction::makeFromBoxedFunctor(
          std::make_unique<PointwiseKernel>(op, std::move(options), std::move(maker))));
}

} // namespace trnx
