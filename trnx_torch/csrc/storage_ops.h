// Operators that make, describe or move data: factories, views, resizing, copies, fills, item.
#pragma once

#include <ATen/core/Tensor.h>

namespace trnx {

// Copies values between tensors of equal shape, converting the dtype. At least one is on neuron.
void copy_values(const at::Tensor& source, const at::Tensor& target);

// Registers the kernels for PrivateUse1, Conjugate and Negative.
void register_storage_ops();

} // namespace trnx
