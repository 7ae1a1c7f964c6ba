#pragma once

#include <pybind11/pybind11.h>

namespace trnx {

// Adds what registers and calls compiled kernels to the module.
void bind_kernels(pybind11::module_& m);

} // namespace trnx
