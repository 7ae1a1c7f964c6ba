// Zero-copy views of the same memory as a cpu tensor and as a neuron tensor.
#pragma once

#include "device.h"

#include <ATen/core/Tensor.h>

namespace trnx {

// A cpu tensor over the memory of a neuron tensor; same sizes, strides, offset, conj and neg bits.
// It keeps the neuron storage alive. Not part of autograd.
at::Tensor as_cpu(const at::Tensor& tensor);

// The same for an alias that the user holds: while it lives the neuron storage cannot be resized,
// which would free the memory under it.
at::Tensor export_to_cpu(const at::Tensor& tensor);

// Moves the memory of a neuron tensor's storage into the storage of `target`, a cpu tensor of bytes
// of the same size; every view of the storage follows. For memory shared between processes.
void move_storage(const at::Tensor& tensor, const at::Tensor& target);

// A neuron tensor over the memory of a cpu tensor, which it keeps alive and unresizable. The alias of an alias is
// over the original storage again.
at::Tensor as_neuron(const at::Tensor& tensor, c10::DeviceIndex index);

// Turns what a host kernel returned into a neuron tensor: memory that nobody else holds changes
// owner and is counted as device memory, anything else is aliased.
at::Tensor adopt(at::Tensor&& tensor, c10::DeviceIndex index);

// After a host kernel wrote to `alias` = as_cpu(tensor): takes over new memory and new sizes.
void sync_from_alias(const at::Tensor& tensor, const at::Tensor& alias);

} // namespace trnx
