// Operators whose device code is a Python function: run once per signature, then repeated as a plan.
#include "alias.h"
#include "allocator.h"
#include "device.h"
#include "fallback.h"
#include "launch.h"
#include "operands.h"
#include "plan.h"

#include <algorithm>
#include <atomic>
#include <map>
#include <mutex>

namespace trnx {
namespace {

using at::Tensor;
using torch::jit::Stack;

// Plans an operator keeps; above it the quarter that was used longest ago goes.
constexpr size_t kMaxPlans = 1024;

// What is known of one signature. Without a plan the call enters Python again.
struct Entry {
  std::shared_ptr<const Plan> plan;
  bool unsupported = false; // Python has no device kernel for it
  std::atomic<uint64_t> used{0};
};

class ProgramKernel final : public c10::OperatorKernel {
 public:
  ProgramKernel(const std::string& op, PythonOperator function)
      : op_(op),
        counts_(op_counts(op)),
        roles_(argument_roles(schema_of(op))),
        function_(std::move(function)) {
    const std::lock_guard<std::mutex> lock(all_lock());
    all()[op_] = this;
  }

  void operator()(const c10::OperatorHandle& op, c10::DispatchKeySet keys, Stack* stack) {
    KeyBytes key;
    Tensors tensors;
    auto device = current_device();
    const bool described = describe(*stack, key, tensors, device);
    if (!described) {
      python_.fetch_add(1, std::memory_order_relaxed);
      return run_python(op, keys, stack);
    }
    if (const auto entry = find(key)) {
      entry->used.store(++clock_, std::memory_order_relaxed);
      if (entry->plan != nullptr) {
        Stack results;
        entry->plan->replay(op_, tensors, &results);
        count_executed(counts_);
        replayed_.fetch_add(1, std::memory_order_relaxed);
        torch::jit::drop(*stack, roles_.size());
        for (auto& value : results) {
          stack->push_back(std::move(value));
        }
        return;
      }
      if (entry->unsupported) {
        return without_kernel(op, keys, stack);
      }
      python_.fetch_add(1, std::memory_order_relaxed);
      return run_python(op, keys, stack);
    }
    python_.fetch_add(1, std::memory_order_relaxed);
    if (active_recorder != nullptr) {
      return run_python(op, keys, stack); // the operator that is recorded notes what happens here
    }
    record(op, keys, stack, std::move(key), tensors, device);
  }

  static std::vector<std::tuple<std::string, int64_t, int64_t>> counts() {
    const std::lock_guard<std::mutex> lock(all_lock());
    std::vector<std::tuple<std::string, int64_t, int64_t>> found;
    for (const auto& [name, kernel] : all()) {
      if (kernel->python_ + kernel->replayed_ > 0) {
        found.emplace_back(name, kernel->python_.load(), kernel->replayed_.load());
      }
    }
    return found;
  }

 private:
  static std::mutex& all_lock() {
    static auto* lock = new std::mutex();
    return *lock;
  }
  static std::map<std::string, ProgramKernel*>& all() {
    static auto* kernels = new std::map<std::string, ProgramKernel*>();
    return *kernels;
  }

  // Everything a plan depends on. False for arguments that no key can hold, as a generator.
  bool describe(
      const Stack& stack, KeyBytes& key, Tensors& tensors, c10::DeviceIndex& device) const {
    const auto begin = stack.size() - roles_.size();
    int first = -1; // argument of the first neuron tensor
    const auto add_tensor = [&](const Tensor& tensor, size_t argument) {
      if (!tensor.defined()) {
        key.add(uint8_t{250});
        return true;
      }
      const auto& place = tensor.device();
      if (place.type() != kNeuron) {
        if (is_number(tensor)) {
          key.add(uint8_t{251});
          key.add(tensor.scalar_type());
          key.add(static_cast<uint8_t>(tensor.unsafeGetTensorImpl()->is_wrapped_number()));
          ScalarValue value{};
          store_number(number_in(tensor), tensor.scalar_type(), value.bytes);
          for (const char byte : value.bytes) {
            key.add(static_cast<uint8_t>(byte));
          }
          return true;
        }
        return false; // a host tensor: Python copies it, or says which devices meet
      }
      if (first < 0) {
        first = static_cast<int>(argument);
        device = place.index();
      } else if (place.index() != device) {
        raise_mixed_devices(
            op_, roles_[first].name, c10::Device(kNeuron, device), roles_[argument].name, place);
      }
      key.add(uint8_t{252});
      key.add(tensor.scalar_type());
      key.add(static_cast<uint8_t>(
          (tensor.is_conj() ? 1 : 0) + (tensor.is_neg() ? 2 : 0) +
          (tensor.unsafeGetTensorImpl()->is_wrapped_number() ? 4 : 0)));
      key.add(static_cast<uint8_t>(tensor.dim()));
      for (int64_t d = 0; d < tensor.dim(); ++d) {
        key.add(tensor.size(d));
        key.add(tensor.stride(d));
      }
      // Where two arguments share memory a plan can only tell them apart by how they lie.
      for (size_t i = 0; i < tensors.size(); ++i) {
        if (tensors[i]->is_alias_of(tensor)) {
          key.add(static_cast<uint8_t>(i));
          key.add(static_cast<int64_t>(
              reinterpret_cast<intptr_t>(tensor.const_data_ptr()) -
              reinterpret_cast<intptr_t>(tensors[i]->const_data_ptr())));
          key.add(static_cast<uint8_t>(
              tensors[i]->unsafeGetTensorImpl() == tensor.unsafeGetTensorImpl()));
          break;
        }
      }
      tensors.push_back(&tensor);
      return true;
    };
    for (size_t i = 0; i < roles_.size(); ++i) {
      const c10::IValue& value = stack[begin + i];
      if (value.isTensor()) {
        if (!add_tensor(value.toTensor(), i)) {
          return false;
        }
      } else if (value.isGenerator()) {
        return false;
      } else if (roles_[i].list && value.isList()) {
        const auto items = value.toListRef();
        key.add(static_cast<int64_t>(items.size()));
        for (const auto& item : items) {
          if (item.isNone()) {
            key.add(uint8_t{250});
          } else if (item.isTensor()) {
            if (!add_tensor(item.toTensor(), i)) {
              return false;
            }
          } else {
            key.add(item);
          }
        }
      } else {
        if (value.isDevice() && value.toDevice().type() == kNeuron && first < 0) {
          device = resolve_device(value.toDevice().index());
        }
        key.add(value);
      }
    }
    if (first < 0) {
      key.add(static_cast<uint8_t>(device));
      key.add(c10::get_default_dtype_as_scalartype());
    }
    return true;
  }

  std::shared_ptr<Entry> find(const KeyBytes& key) {
    const std::shared_lock<std::shared_mutex> lock(lock_);
    const auto found = entries_.find(key);
    return found == entries_.end() ? nullptr : found->second;
  }

  void keep(KeyBytes key, std::shared_ptr<Entry> entry) {
    entry->used.store(++clock_, std::memory_order_relaxed);
    const std::unique_lock<std::shared_mutex> lock(lock_);
    if (entries_.size() >= kMaxPlans) {
      std::vector<uint64_t> times;
      for (const auto& [_, known] : entries_) {
        times.push_back(known->used.load(std::memory_order_relaxed));
      }
      const auto quarter = times.begin() + static_cast<std::ptrdiff_t>(times.size() / 4);
      std::nth_element(times.begin(), quarter, times.end());
      for (auto it = entries_.begin(); it != entries_.end();) {
        it = it->second->used.load(std::memory_order_relaxed) < *quarter ? entries_.erase(it)
                                                                         : std::next(it);
      }
    }
    entries_.emplace(std::move(key), std::move(entry));
  }

  void run_python(const c10::OperatorHandle& op, c10::DispatchKeySet keys, Stack* stack) {
    if (function_(op, stack)) {
      count_executed(counts_);
    } else {
      without_kernel(op, keys, stack);
    }
  }

  void record(
      const c10::OperatorHandle& op, c10::DispatchKeySet keys, Stack* stack, KeyBytes key,
      const Tensors& given, c10::DeviceIndex device) {
    // The stack gives its arguments up; these live on until the plan is made.
    const std::vector<c10::IValue> held(stack->end() - roles_.size(), stack->end());
    KeyBytes again;
    Tensors tensors;
    describe(held, again, tensors, device);
    auto entry = std::make_shared<Entry>();
    {
      Recorder recorder(tensors);
      if (function_(op, stack)) {
        const auto count = op.schema().returns().size();
        entry->plan = recorder.finish(
            c10::ArrayRef<c10::IValue>(stack->data() + (stack->size() - count), count), device);
      } else {
        entry->unsupported = true;
      }
    }
    const bool unsupported = entry->unsupported;
    keep(std::move(key), std::move(entry));
    if (unsupported) {
      return without_kernel(op, keys, stack);
    }
    count_executed(counts_);
  }

  const std::string op_;
  OpCounts& counts_;
  const std::vector<ArgumentRole> roles_;
  const PythonOperator function_;
  std::shared_mutex lock_;
  ska::flat_hash_map<KeyBytes, std::shared_ptr<Entry>, KeyHash> entries_;
  std::atomic<uint64_t> clock_{0};
  std::atomic<int64_t> python_{0};
  std::atomic<int64_t> replayed_{0};
};

} // namespace

void register_program(const std::string& op, PythonOperator function) {
  replace_kernel(
      op,
      c10::KernelFunction::makeFromBoxedFunctor(
          std::make_unique<ProgramKernel>(op, std::move(function))));
}

std::vector<std::tuple<std::string, int64_t, int64_t>> program_counts() {
  return ProgramKernel::counts();
}

} // namespace trnx
