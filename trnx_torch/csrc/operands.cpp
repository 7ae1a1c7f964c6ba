#include "operands.h"

#include "fallback.h"

#include <ATen/ops/_local_scalar_dense_native.h>

namespace trnx {

std::vector<ArgumentRole> argument_roles(const c10::FunctionSchema& schema) {
  std::vector<ArgumentRole> roles;
  for (const auto& argument : schema.arguments()) {
    auto type = argument.type();
    if (const auto optional = type->cast<c10::OptionalType>()) {
      type = optional->getElementType();
    }
    const auto list_type = type->cast<c10::ListType>();
    auto element = list_type ? list_type->getElementType() : type;
    if (const auto optional = element->cast<c10::OptionalType>()) {
      element = optional->getElementType(); // indices: a list of tensors and gaps
    }
    const bool written = argument.alias_info() != nullptr && argument.alias_info()->isWrite();
    Role role = Role::Option;
    bool list = false;
    if (element->kind() == c10::TypeKind::TensorType) {
      role = !written ? Role::Input : argument.is_out() ? Role::Output : Role::InPlace;
      list = list_type != nullptr;
    } else if (
        element->kind() == c10::TypeKind::NumberType ||
        element->kind() == c10::TypeKind::FloatType) {
      role = Role::Scalar;
      list = list_type != nullptr;
    }
    roles.push_back({argument.name(), role, list});
  }
  return roles;
}

const c10::FunctionSchema& schema_of(const std::string& op) {
  const auto dot = op.find('.', op.find("::"));
  const c10::OperatorName name(
      op.substr(0, dot), dot == std::string::npos ? "" : op.substr(dot + 1));
  const auto handle = c10::Dispatcher::singleton().findSchema(name);
  TORCH_CHECK_VALUE(
      handle.has_value(), "This PyTorch has no operator ", op, ". Give the name with its overload, "
      "as in aten::add.Tensor.");
  return handle->schema();
}

void check_device(
    const std::string& op, const std::string& first_name, c10::Device device,
    const std::string& name, const at::Tensor& tensor) {
  if (C10_UNLIKELY(tensor.device() != device)) {
    raise_mixed_devices(op, first_name, device, name, tensor.device());
  }
}

c10::Scalar number_in(const at::Tensor& tensor) {
  return at::native::_local_scalar_dense_cpu(tensor);
}

} // namespace trnx
