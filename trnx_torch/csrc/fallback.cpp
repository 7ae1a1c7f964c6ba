#include "fallback.h"

#include "alias.h"
#include "generator.h"
#include "plan.h"

#include <ATen/core/List.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/util/SmallVector.h>
#include <c10/util/flat_hash_map.h>
#include <torch/library.h>

#include <algorithm>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <shared_mutex>

namespace trnx {
namespace {

using c10::DispatchKey;
using c10::IValue;
using torch::jit::Stack;

// What the fallback needs to know about an operator, worked out at its first call.
struct OpPlan {
  OpCounts* counts = nullptr;
  bool takes_generator = false;
  std::vector<bool> written; // per argument: the schema says it is written to
  std::vector<bool> host_allowed; // per argument: a cpu tensor of any rank is part of its contract
};

// Arguments that CUDA, too, takes from the CPU.
const std::set<std::pair<std::string, std::string>>& host_arguments() {
  static const std::set<std::pair<std::string, std::string>> arguments{
      {"aten::index", "indices"},
      {"aten::index_put", "indices"},
      {"aten::index_put_", "indices"},
      {"aten::_index_put_impl_", "indices"},
      {"aten::_unsafe_index", "indices"},
      {"aten::_unsafe_index_put", "indices"},
      {"aten::_pack_padded_sequence", "lengths"},
      {"aten::_cudnn_rnn", "batch_sizes"},
  };
  return arguments;
}

std::shared_mutex plans_lock;
auto& plans() {
  // Leaked: at exit torch still deregisters operators after static destructors ran.
  static auto* all = new ska::flat_hash_map<const c10::FunctionSchema*, std::unique_ptr<OpPlan>>();
  return *all;
}

// A library that is taken away frees its schemas, and a new one may get the same address.
struct ForgetPlans final : c10::OpRegistrationListener {
  void onOperatorRegistered(const c10::OperatorHandle&) override {}
  void onOperatorDeregistered(const c10::OperatorHandle& op) override {
    const std::unique_lock<std::shared_mutex> lock(plans_lock);
    plans().erase(&op.schema());
  }
};

OpPlan& plan_of(const c10::OperatorHandle& op) {
  const auto& schema = op.schema();
  {
    const std::shared_lock<std::shared_mutex> lock(plans_lock);
    const auto found = plans().find(&schema);
    if (C10_LIKELY(found != plans().end())) {
      return *found->second;
    }
  }
  auto plan = std::make_unique<OpPlan>();
  plan->counts = &op_counts(full_name(op.operator_name()));
  for (const auto& argument : schema.arguments()) {
    const auto* alias = argument.alias_info();
    plan->written.push_back(alias != nullptr && alias->isWrite());
    plan->host_allowed.push_back(host_arguments().count({schema.name(), argument.name()}) != 0);
    const auto& type = *argument.real_type();
    plan->takes_generator |= type.str().find("Generator") != std::string::npos;
  }
  const std::unique_lock<std::shared_mutex> lock(plans_lock);
  auto& slot = plans()[&schema];
  if (slot == nullptr) {
    slot = std::move(plan);
  }
  return *slot;
}

// One call: the aliases made for it and the device all its tensors must share.
class Call {
 public:
  Call(const c10::OperatorHandle& op, OpPlan& plan) : op_(op), plan_(plan) {}

  void alias_arguments(Stack* stack) {
    const auto& arguments = op_.schema().arguments();
    const auto begin = stack->size() - arguments.size();
    for (size_t i = 0; i < arguments.size(); ++i) {
      argument_ = i;
      IValue& value = (*stack)[begin + i];
      if (value.isTensor()) {
        if (value.toTensor().defined()) {
          value = alias(value.toTensor());
        }
      } else if (value.isTensorList()) {
        alias_list(value);
      } else if (value.isDevice()) {
        if (value.toDevice().type() == kNeuron) {
          device_ = resolve_device(value.toDevice().index());
          value = c10::Device(c10::DeviceType::CPU);
        }
      } else if (value.isList()) {
        alias_optional_list(value);
      }
    }
    check_host_tensors();
    if (C10_UNLIKELY(plan_.takes_generator)) {
      replace_generator(stack, begin);
    }
  }

  void map_results(Stack* stack) {
    for (const auto& [tensor, host] : written_) {
      sync_from_alias(tensor, host);
    }
    const auto count = op_.schema().returns().size();
    for (size_t i = stack->size() - count; i < stack->size(); ++i) {
      IValue& value = (*stack)[i];
      if (value.isTensor()) {
        if (value.toTensor().defined()) {
          value = map_back(std::move(value).toTensor());
        }
      } else if (value.isTensorList()) {
        auto list = std::move(value).toTensorVector();
        for (auto& tensor : list) {
          if (tensor.defined()) {
            tensor = map_back(std::move(tensor));
          }
        }
        value = std::move(list);
      }
    }
  }

 private:
  const std::string& argument_name(size_t index) const {
    return op_.schema().arguments()[index].name();
  }

  at::Tensor alias(const at::Tensor& tensor) {
    const auto device = tensor.device();
    if (device.type() != kNeuron) {
      // Whether this is allowed depends on whether any neuron tensor takes part: checked below.
      if (!plan_.host_allowed[argument_] && !has_host_ &&
          (tensor.dim() != 0 || plan_.written[argument_] || !device.is_cpu())) {
        has_host_ = true;
        host_argument_ = argument_;
        host_device_ = device;
      }
      return tensor;
    }
    if (device_ < 0 || first_ < 0) {
      device_ = device.index();
      first_ = static_cast<int>(argument_);
    } else if (device.index() != device_) {
      raise_mixed_devices(
          plan_.counts->name, argument_name(first_), c10::Device(kNeuron, device_),
          argument_name(argument_), device);
    }
    largest_ = std::max(largest_, tensor.numel());
    auto host = as_cpu(tensor);
    if (plan_.written[argument_]) {
      written_.emplace_back(tensor, host);
    }
    return host;
  }

  void alias_list(IValue& value) {
    auto list = std::move(value).toTensorVector();
    for (auto& tensor : list) {
      if (tensor.defined()) {
        tensor = alias(tensor);
      }
    }
    value = std::move(list);
  }

  // Tensor?[] is a list of optionals; lists of numbers pass unchanged.
  void alias_optional_list(IValue& value) {
    if (!value.toList().elementType()->isSubtypeOf(*c10::OptionalType::ofTensor())) {
      return;
    }
    c10::List<std::optional<at::Tensor>> aliased;
    for (const auto& item : value.toListRef()) {
      if (item.isTensor() && item.toTensor().defined()) {
        aliased.push_back(alias(item.toTensor()));
      } else {
        aliased.push_back(std::nullopt);
      }
    }
    value = std::move(aliased);
  }

  void check_host_tensors() const {
    if (C10_UNLIKELY(has_host_ && first_ >= 0)) {
      raise_mixed_devices(
          plan_.counts->name, argument_name(first_), c10::Device(kNeuron, device_),
          argument_name(host_argument_), host_device_);
    }
  }

  void replace_generator(Stack* stack, size_t begin) {
    const auto& arguments = op_.schema().arguments();
    for (size_t i = 0; i < arguments.size(); ++i) {
      IValue& value = (*stack)[begin + i];
      const bool is_generator =
          arguments[i].real_type()->str().find("Generator") != std::string::npos;
      if (!is_generator || device_ < 0) {
        continue;
      }
      const auto given = value.isGenerator() ? value.toGenerator() : at::Generator();
      auto* generator = neuron_generator(given, device_);
      const std::lock_guard<std::mutex> lock(generator->mutex_);
      const auto offset = generator->reserve(std::max<int64_t>(largest_, 1));
      value = host_generator(generator->current_seed(), offset);
    }
  }

  at::Tensor map_back(at::Tensor&& host) {
    if (!host.device().is_cpu()) {
      return std::move(host);
    }
    for (const auto& [tensor, alias] : written_) {
      if (alias.is_same(host)) {
        return tensor;
      }
    }
    if (device_ < 0) {
      return std::move(host); // no neuron tensor and no neuron device took part
    }
    TORCH_CHECK_NOT_IMPLEMENTED(
        host.layout() == c10::kStrided, plan_.counts->name, " returns a tensor of layout ",
        host.layout(), ", and device neuron has strided tensors only. Move the input to cpu first.");
    return adopt(std::move(host), device_);
  }

  const c10::OperatorHandle& op_;
  OpPlan& plan_;
  size_t argument_ = 0;
  int first_ = -1; // first argument that was a neuron tensor
  c10::DeviceIndex device_ = -1;
  bool has_host_ = false; // a tensor of another device that neuron tensors may not meet
  size_t host_argument_ = 0;
  c10::Device host_device_ = c10::DeviceType::CPU;
  int64_t largest_ = 0; // elements of the largest tensor: the most numbers one draw per element takes
  c10::SmallVector<std::pair<at::Tensor, at::Tensor>, 4> written_;
};

void run_on_host(const c10::OperatorHandle& op, Stack* stack, bool counted) {
  auto& plan = plan_of(op);
  TORCH_CHECK_NOT_IMPLEMENTED(
      op.hasComputedKernelForDispatchKey(DispatchKey::CPU), plan.counts->name, " has no kernel for device neuron, and torch has none "
      "for cpu to fall back to. Move the tensors to cpu and use another operation.");
  refuse_plan("an operator runs on the CPU");
  Call call(op, plan);
  call.alias_arguments(stack);
  if (counted) {
    count_fallback(*plan.counts);
  }
  op.redispatchBoxed(c10::DispatchKeySet(DispatchKey::CPU), stack);
  call.map_results(stack);
}

} // namespace

void raise_mixed_devices(
    const std::string& op, const std::string& first_name, c10::Device first,
    const std::string& second_name, c10::Device second) {
  TORCH_CHECK(
      false, "Expected all tensors to be on the same device, but ", op, " got '", first_name,
      "' on ", first, " and '", second_name, "' on ", second, ". Move one with .to(\"",
      first.type() == kNeuron ? first : second, "\").");
}

void cpu_fallback(const c10::OperatorHandle& op, c10::DispatchKeySet, Stack* stack) {
  run_on_host(op, stack, true);
}

void cpu_uncounted(const c10::OperatorHandle& op, c10::DispatchKeySet, Stack* stack) {
  run_on_host(op, stack, false);
}

void without_kernel(const c10::OperatorHandle& op, c10::DispatchKeySet, Stack* stack) {
  if (op.hasKernelForDispatchKey(DispatchKey::CPU)) {
    return run_on_host(op, stack, true);
  }
  // What the CPU key computes to is then torch's composite kernel, which runs on any device.
  op.redispatchBoxed(c10::DispatchKeySet(DispatchKey::CPU), stack);
}

namespace {

std::mutex direct_lock;
std::map<std::string, c10::RegistrationHandleRAII>& direct() {
  // Leaked: at exit the dispatcher may already be gone.
  static auto* handles = new std::map<std::string, c10::RegistrationHandleRAII>();
  return *handles;
}

void register_direct(const c10::OperatorName& name) {
  direct().emplace(
      full_name(name),
      c10::Dispatcher::singleton().registerImpl(
          name, DispatchKey::PrivateUse1,
          c10::KernelFunction::makeFromBoxedFunction<&cpu_fallback>(), std::nullopt, nullptr,
          "trnx_torch CPU fallback"));
}

} // namespace

void release_fallback(const std::string& name) {
  const std::lock_guard<std::mutex> lock(direct_lock);
  direct().erase(name);
}

void register_fallback() {
  static auto* library =
      new torch::Library(torch::Library::IMPL, "_", DispatchKey::PrivateUse1, __FILE__, __LINE__);
  library->fallback(torch::CppFunction::makeFromBoxedFunction<&cpu_fallback>());
  static auto* listener = new c10::RegistrationHandleRAII(
      c10::Dispatcher::singleton().addRegistrationListener(std::make_unique<ForgetPlans>()));
  (void)listener;

  auto& dispatcher = c10::Dispatcher::singleton();
  const auto names = [&](DispatchKey key) {
    std::set<std::pair<std::string, std::string>> found;
    for (const auto& name : dispatcher.getRegistrationsForDispatchKey(key)) {
      found.emplace(name.name, name.overload_name);
    }
    return found;
  };
  const auto host = names(DispatchKey::CPU);
  const auto own = names(DispatchKey::PrivateUse1);
  const std::lock_guard<std::mutex> lock(direct_lock);
  for (const auto key : {DispatchKey::CompositeExplicitAutogradNonFunctional,
                         DispatchKey::CompositeExplicitAutograd,
                         DispatchKey::CompositeImplicitAutograd}) {
    for (const auto& [name, overload] : names(key)) {
      const bool aten = name.rfind("aten::", 0) == 0;
      if (aten && host.count({name, overload}) != 0 && own.count({name, overload}) == 0 &&
          direct().count(full_name({name, overload})) == 0) {
        register_direct({name, overload});
      }
    }
  }
}

} // namespace trnx
