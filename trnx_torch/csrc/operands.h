// How the arguments of an operator map onto the operands of a kernel, worked out from its schema.
#pragma once

#include "launch.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/function_schema.h>

namespace trnx {

enum class Role : uint8_t {
  Input, // tensor that is read
  InPlace, // tensor that is read and written
  Output, // out= tensor
  Scalar, // number that reaches the kernel at run time
  Option, // anything else: part of the key
};

struct ArgumentRole {
  std::string name;
  Role role;
  bool list; // a list: one item per kernel call
};

// Roles of all arguments of `schema`, in order.
std::vector<ArgumentRole> argument_roles(const c10::FunctionSchema& schema);

// The schema of a full operator name; throws when torch has no such operator.
const c10::FunctionSchema& schema_of(const std::string& op);

// Rejects tensors of two devices: `tensor` must be on `device` (a cpu tensor of no dimension is a
// number and is let through by the caller before).
void check_device(
    const std::string& op, const std::string& first_name, c10::Device device,
    const std::string& name, const at::Tensor& tensor);

// True if a tensor stands for a number: a wrapped Python number or a 0-dimensional cpu tensor.
inline bool is_number(const at::Tensor& tensor) {
  return tensor.dim() == 0 && tensor.device().is_cpu();
}

// The number in such a tensor.
c10::Scalar number_in(const at::Tensor& tensor);

} // namespace trnx
