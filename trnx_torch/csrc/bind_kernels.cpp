// Python bindings of compiled kernels: registration per family, the miss callback, direct launch.
#include "bindings.h"

#include "alias.h"
#include "device.h"
#include "launch.h"
#include "movement.h"

#include <pybind11/stl.h>
#include <ATen/PythonTorchFunctionTLS.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <torch/csrc/DynamicTypes.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/utils/pybind.h>

// Of torch/csrc/jit/python/pybind_utils.h, a header that takes longer to compile than this file.
namespace torch::jit {
TORCH_PYTHON_API c10::IValue toIValue(
    pybind11::handle value, const c10::TypePtr& type, std::optional<int32_t> count = std::nullopt);
TORCH_PYTHON_API pybind11::object toPyObject(c10::IValue value);
} // namespace torch::jit

namespace trnx {
namespace {

namespace py = pybind11;

py::object dtype_object(c10::ScalarType dtype) {
  return py::reinterpret_borrow<py::object>(reinterpret_cast<PyObject*>(torch::getTHPDtype(dtype)));
}

py::str layout_name(Layout layout) {
  return py::str(
      layout == Layout::Contiguous ? "contiguous"
          : layout == Layout::Broadcast ? "broadcast"
                                        : "strided");
}

py::object option_object(const std::string& name, const c10::IValue& value) {
  if (value.isNone()) {
    return py::none();
  }
  if (value.isBool()) {
    return py::bool_(value.toBool());
  }
  if (value.isInt()) {
    if (name == "dtype" || name == "input_dtype") {
      return dtype_object(value.toScalarType());
    }
    const bool layout = name.size() > 5 && name.compare(name.size() - 5, 5, "_rows") == 0;
    if (layout || name == "kept_layout") {
      return layout_name(static_cast<Layout>(value.toInt()));
    }
    return py::int_(value.toInt());
  }
  if (value.isDouble()) {
    return py::float_(value.toDouble());
  }
  if (value.isString()) {
    return py::str(value.toStringRef());
  }
  return py::cast(value.toIntVector());
}

py::tuple request_tuple(const KernelRequest& request) {
  py::list outputs, inputs, scalars, options;
  for (const auto& operand : request.outputs) {
    outputs.append(
        py::make_tuple(operand.name, dtype_object(operand.dtype), layout_name(operand.layout)));
  }
  for (const auto& operand : request.inputs) {
    inputs.append(
        py::make_tuple(operand.name, dtype_object(operand.dtype), layout_name(operand.layout)));
  }
  for (const auto& scalar : request.scalars) {
    scalars.append(py::make_tuple(scalar.name, dtype_object(scalar.dtype)));
  }
  for (const auto& [name, value] : request.options) {
    options.append(py::make_tuple(name, option_object(name, value)));
  }
  return py::make_tuple(
      request.family, request.op, py::tuple(outputs), py::tuple(inputs), py::tuple(scalars),
      py::tuple(options), dtype_object(request.compute), py::tuple(py::cast(request.ranks)));
}

// Calls `function(family, op, outputs, inputs, scalars, options, compute, ranks)` for an address.
KernelMaker maker_from(const py::function& function) {
  // Leaked: operators keep it until the process ends, and then there may be no interpreter.
  PyObject* callback = py::function(function).release().ptr();
  return [callback](const KernelRequest& request) -> uintptr_t {
    const py::gil_scoped_acquire gil;
    PyObject* result = PyObject_CallObject(callback, request_tuple(request).ptr());
    if (result == nullptr) {
      python_error error;
      error.persist();
      throw error;
    }
    return py::reinterpret_steal<py::object>(result).cast<uintptr_t>();
  };
}

ReductionOutput reduction_output(const std::string& name) {
  static const std::vector<std::pair<std::string, ReductionOutput>> rules{
      {"same", ReductionOutput::Same},
      {"sum", ReductionOutput::Sum},
      {"float", ReductionOutput::Float},
      {"bool", ReductionOutput::Bool},
      {"int64", ReductionOutput::Int64}};
  for (const auto& [rule, value] : rules) {
    if (rule == name) {
      return value;
    }
  }
  TORCH_CHECK_VALUE(
      false, "There is no output rule '", name, "'. Use same, sum, float, bool or int64.");
}

// Calls a kernel on tensors of one device: pointers in order, registers as given.
void launch(
    uintptr_t address, const std::vector<at::Tensor>& tensors,
    const std::vector<int64_t>& registers) {
  TORCH_CHECK_VALUE(address != 0, "A kernel address must not be 0.");
  c10::SmallVector<void*, 12> pointers;
  for (const auto& tensor : tensors) {
    TORCH_CHECK_TYPE(
        tensor.device().type() == kNeuron || tensor.dim() == 0,
        "launch() takes neuron tensors and 0-dimensional cpu tensors, not one on ",
        tensor.device(), ".");
    pointers.push_back(const_cast<void*>(tensor.const_data_ptr()));
  }
  const py::gil_scoped_release no_gil;
  call_kernel(reinterpret_cast<KernelFunction>(address), pointers, 0, registers, "launch");
}

// Python function modes (torch.device as a context, say) are for the user's calls.
class NoTorchFunction {
 public:
  NoTorchFunction() : before_(at::impl::PythonTorchFunctionTLS::get_disabled_state()) {
    at::impl::PythonTorchFunctionTLS::set_disabled_state(
        at::impl::TorchFunctionDisabledState::ALL_DISABLED);
  }
  ~NoTorchFunction() {
    at::impl::PythonTorchFunctionTLS::set_disabled_state(before_);
  }
  NoTorchFunction(const NoTorchFunction&) = delete;
  NoTorchFunction& operator=(const NoTorchFunction&) = delete;

 private:
  at::impl::TorchFunctionDisabledState before_;
};

py::object python_argument(const c10::Argument& argument, const c10::IValue& value) {
  if (!value.isNone()) {
    auto type = argument.real_type();
    if (const auto optional = type->cast<c10::OptionalType>()) {
      type = optional->getElementType();
    }
    if (type->kind() == c10::TypeKind::ScalarTypeType) {
      return dtype_object(value.toScalarType());
    }
    if (type->kind() == c10::TypeKind::MemoryFormatType) {
      return py::cast(value.toMemoryFormat());
    }
  }
  return torch::jit::toPyObject(value);
}

bool is_default(const c10::Argument& argument, const c10::IValue& value) {
  if (!argument.default_value().has_value()) {
    return false;
  }
  const c10::IValue& known = *argument.default_value();
  if (value.isIntList() && known.isIntList()) {
    return value.toIntVector() == known.toIntVector();
  }
  return (value.isNone() && known.isNone()) ||
      (value.isInt() && known.isInt() && value.toInt() == known.toInt()) ||
      (value.isBool() && known.isBool() && value.toBool() == known.toBool()) ||
      (value.isDouble() && known.isDouble() && value.toDouble() == known.toDouble()) ||
      (value.isString() && known.isString() && value.toStringRef() == known.toStringRef());
}

// The arguments as a Python call passes them: defaults at the end are left out.
std::pair<py::tuple, py::dict> python_arguments(
    const c10::FunctionSchema& schema, c10::ArrayRef<c10::IValue> values) {
  py::list args;
  py::dict kwargs;
  size_t positional = 0;
  for (size_t i = 0; i < values.size(); ++i) {
    const auto& argument = schema.arguments()[i];
    if (!argument.kwarg_only() && !is_default(argument, values[i])) {
      positional = i + 1;
    }
  }
  for (size_t i = 0; i < values.size(); ++i) {
    const auto& argument = schema.arguments()[i];
    if (i < positional) {
      args.append(python_argument(argument, values[i]));
    } else if (argument.kwarg_only() && !is_default(argument, values[i])) {
      kwargs[py::str(argument.name())] = python_argument(argument, values[i]);
    }
  }
  return {py::tuple(args), kwargs};
}

void push_results(
    const c10::FunctionSchema& schema, const py::object& result, torch::jit::Stack* stack) {
  const auto& returns = schema.returns();
  if (returns.size() == 1) {
    stack->push_back(torch::jit::toIValue(result, returns[0].type()));
    return;
  }
  if (returns.empty()) {
    return;
  }
  const auto results = py::tuple(result);
  TORCH_CHECK_VALUE(
      results.size() == returns.size(), "The device function of ", schema.name(), " returned ",
      results.size(), " values instead of ", returns.size(), ".");
  for (size_t i = 0; i < returns.size(); ++i) {
    stack->push_back(torch::jit::toIValue(results[i], returns[i].type()));
  }
}

// Calls `function` with the operator's arguments as Python values; NotImplemented means that it has
// no device kernel for them. It sees neither modes nor autocast, as a C++ kernel would not.
PythonOperator operator_from(const py::function& function) {
  PyObject* callback = py::function(function).release().ptr(); // leaked, see maker_from
  return [callback](const c10::OperatorHandle& op, torch::jit::Stack* stack) {
    const auto& schema = op.schema();
    const auto count = schema.arguments().size();
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    const c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::autocast_dispatch_keyset);
    const NoTorchFunction no_torch_function;
    const py::gil_scoped_acquire gil;
    const auto [args, kwargs] = python_arguments(
        schema, c10::ArrayRef<c10::IValue>(stack->data() + (stack->size() - count), count));
    auto result =
        py::reinterpret_steal<py::object>(PyObject_Call(callback, args.ptr(), kwargs.ptr()));
    if (!result) {
      python_error error;
      error.persist();
      throw error;
    }
    if (result.ptr() == Py_NotImplemented) {
      return false;
    }
    torch::jit::drop(*stack, count);
    push_results(schema, result, stack);
    return true;
  };
}

} // namespace

void bind_kernels(py::module_& m) {
  m.def(
      "register_pointwise",
      [](const std::string& op, const py::function& maker, std::vector<std::string> promote,
         bool integers_to_float, const std::optional<at::ScalarType>& output, bool converts) {
        PointwiseOptions options;
        options.converts = converts;
        options.promote = std::move(promote);
        options.integers_to_float = integers_to_float;
        options.output = output.value_or(c10::ScalarType::Undefined);
        register_pointwise(op, std::move(options), maker_from(maker));
      },
      py::arg("op"), py::arg("maker"), py::arg("promote"), py::arg("integers_to_float"),
      py::arg("output"), py::arg("converts"));
  m.def(
      "register_reduction",
      [](const std::string& op, const py::function& maker, const std::vector<std::string>& outputs,
         bool ordered, std::optional<double> empty) {
        ReductionOptions options;
        options.empty = empty;
        options.ordered = ordered;
        for (const auto& name : outputs) {
          options.outputs.push_back(reduction_output(name));
        }
        register_reduction(op, std::move(options), maker_from(maker));
      },
      py::arg("op"), py::arg("maker"), py::arg("outputs"), py::arg("ordered"), py::arg("empty"));
  m.def(
      "register_matmul",
      [](const std::string& op, const py::function& maker) {
        register_matmul(op, maker_from(maker));
      },
      py::arg("op"), py::arg("maker"));
  m.def(
      "register_rowwise",
      [](const std::string& op, const py::function& maker) {
        register_rowwise(op, maker_from(maker));
      },
      py::arg("op"), py::arg("maker"));
  m.def(
      "register_program",
      [](const std::string& op, const py::function& function) {
        register_program(op, operator_from(function));
      },
      py::arg("op"), py::arg("function"));
  m.def(
      "gather_elements",
      [](const at::Tensor& result, const at::Tensor& source, const at::Tensor& index, bool along) {
        gather_elements(result, source, index, along ? Pick::Along : Pick::Rows);
      },
      py::arg("result"), py::arg("source"), py::arg("index"), py::arg("along"));
  m.def(
      "scatter_elements",
      [](const at::Tensor& target, const at::Tensor& index, const at::Tensor& source, bool along) {
        scatter_elements(target, index, source, along ? Pick::Along : Pick::Rows);
      },
      py::arg("target"), py::arg("index"), py::arg("source"), py::arg("along"));
  m.def("program_counts", &program_counts);
  m.def("launch", &launch, py::arg("address"), py::arg("tensors"), py::arg("registers"));
}

} // namespace trnx
