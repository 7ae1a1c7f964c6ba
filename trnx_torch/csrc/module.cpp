// Python bindings of the extension.
#include "alias.h"
#include "allocator.h"
#include "bindings.h"
#include "convolution.h"
#include "device.h"
#include "fallback.h"
#include "generator.h"
#include "plan.h"
#include "storage_ops.h"
#include "tracking.h"

#include <pybind11/pybind11.h>
#include <pybind11/stl.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/utils/pybind.h>

namespace py = pybind11;

namespace {

// Python functions the extension calls. Leaked: they outlive the module.
PyObject* fallback_warning = nullptr;
PyObject* first_use = nullptr;

// Calls a Python function without result; an exception in it reaches the operator's caller.
void call_python(PyObject* function, PyObject* argument) {
  PyObject* result = argument == nullptr ? PyObject_CallNoArgs(function)
                                         : PyObject_CallOneArg(function, argument);
  if (result == nullptr) {
    python_error error;
    error.persist();
    throw error;
  }
  Py_DECREF(result);
}

void warn_fallback(const std::string& name) {
  const py::gil_scoped_acquire gil;
  call_python(fallback_warning, py::str(name).ptr());
}

void call_first_use() {
  const py::gil_scoped_acquire gil;
  call_python(first_use, nullptr);
}

} // namespace

PYBIND11_MODULE(_C, m) {
  m.doc() = "C++ part of device neuron";

  trnx::register_storage_ops();
  trnx::register_convolution();
  trnx::register_fallback();

  m.def("set_device_count", &trnx::set_device_count);
  m.def("device_count", [] { return static_cast<int>(trnx::device_count()); });
  m.def("current_device", [] { return static_cast<int>(trnx::current_device()); });
  m.def("set_device", [](int index) {
    trnx::set_current_device(static_cast<c10::DeviceIndex>(index));
  });
  m.def("is_initialized", &trnx::is_initialized);
  m.def("ensure_initialized", &trnx::ensure_initialized);
  m.def("empty_cache", &trnx::empty_cache);
  m.def("default_generator", [](int index) {
    return trnx::default_generator(static_cast<c10::DeviceIndex>(index));
  });

  m.def("as_cpu", &trnx::export_to_cpu, py::arg("tensor"));
  m.def("move_storage", &trnx::move_storage, py::arg("tensor"), py::arg("target"));
  m.def(
      "as_neuron",
      [](const at::Tensor& tensor, int index) {
        return trnx::as_neuron(tensor, static_cast<c10::DeviceIndex>(index));
      },
      py::arg("tensor"), py::arg("index") = -1);

  // Reserves `count` numbers of a generator (the device's default for None): (seed, offset).
  m.def(
      "reserve_random",
      [](const std::optional<at::Generator>& generator, int index, uint64_t count) {
        trnx::refuse_plan("it draws random numbers");
        auto* chosen = trnx::neuron_generator(
            generator.value_or(at::Generator()), static_cast<c10::DeviceIndex>(index));
        const std::lock_guard<std::mutex> lock(chosen->mutex_);
        const auto offset = chosen->reserve(count);
        return std::make_pair(chosen->current_seed(), offset);
      },
      py::arg("generator"), py::arg("index"), py::arg("count"));

  m.def(
      "draw_start",
      [](const at::Tensor& start, const std::optional<at::Generator>& generator, uint64_t count) {
        trnx::draw_start(start, generator.value_or(at::Generator()), count);
      },
      py::arg("start"), py::arg("generator"), py::arg("count"));

  m.def("executed_ops", [] {
    py::dict counts;
    for (const auto& [name, count] : trnx::executed_ops()) {
      counts[py::str(name)] = count;
    }
    return counts;
  });
  m.def("fallback_ops", [] {
    py::dict counts;
    for (const auto& [name, count] : trnx::fallback_ops()) {
      counts[py::str(name)] = count;
    }
    return counts;
  });
  m.def("clear_op_tracking", &trnx::clear_op_tracking);
  m.def("count_executed", [](const std::string& name) {
    trnx::count_executed(trnx::op_counts(name));
  });
  m.def("count_fallback", [](const std::string& name) {
    trnx::count_fallback(trnx::op_counts(name));
  });
  m.def("release_fallback", &trnx::release_fallback);
  m.def("set_fallback_warning", [](const py::function& function) {
    fallback_warning = py::function(function).release().ptr();
    trnx::set_fallback_warning(&warn_fallback);
  });
  m.def("set_first_use", [](const py::function& function) {
    first_use = py::function(function).release().ptr();
    trnx::set_first_use_hook(&call_first_use);
  });
  trnx::bind_kernels(m);
}
