// Python bindings of compiled kernels: registration per family, the miss callback, direct launch.
#include "bindings.h"

#include "alias.h"
#include "device.h"
#include "launch.h"

#include <pybind11/stl.h>
#include <torch/csrc/DynamicTypes.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/utils/pybind.h>

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
  call_kernel(
      reinterpret_cast<KernelFunction>(address), pointers.data(), registers.data(), "launch");
}

} // namespace

void bind_kernels(py::module_& m) {
  m.def(
      "register_pointwise",
      [](const std::string& op, const py::function& maker, std::vector<std::string> promote,
         bool integers_to_float, const std::optional<at::ScalarType>& output) {
        PointwiseOptions options;
        options.promote = std::move(promote);
        options.integers_to_float = integers_to_float;
        options.output = output.value_or(c10::ScalarType::Undefined);
        register_pointwise(op, std::move(options), maker_from(maker));
      },
      py::arg("op"), py::arg("maker"), py::arg("promote"), py::arg("integers_to_float"),
      py::arg("output"));
  m.def(
      "register_reduction",
      [](const std::string& op, const py::function& maker, const std::vector<std::string>& outputs,
         bool ordered) {
        ReductionOptions options;
        options.ordered = ordered;
        for (const auto& name : outputs) {
          options.outputs.push_back(reduction_output(name));
        }
        register_reduction(op, std::move(options), maker_from(maker));
      },
      py::arg("op"), py::arg("maker"), py::arg("outputs"), py::arg("ordered"));
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
  m.def("launch", &launch, py::arg("address"), py::arg("tensors"), py::arg("registers"));
}

} // namespace trnx
