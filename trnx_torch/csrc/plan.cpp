#include "plan.h"

#include "allocator.h"
#include "device.h"

#include <ATen/EmptyTensor.h>
#include <c10/core/ScalarTypeToTypeMeta.h>

#include <algorithm>
#include <cstring>

namespace trnx {

thread_local Recorder* active_recorder = nullptr;

void record_launch(
    KernelFunction kernel, c10::ArrayRef<void*> pointers, size_t scalars,
    c10::IntArrayRef registers) {
  active_recorder->launched(kernel, pointers, scalars, registers);
}

namespace {

constexpr c10::DispatchKeySet kKeys(c10::DispatchKey::PrivateUse1);

size_t aligned(size_t bytes) {
  return (bytes + kAlignment - 1) / kAlignment * kAlignment;
}

uintptr_t address_of(const at::Tensor& tensor) {
  return reinterpret_cast<uintptr_t>(tensor.const_data_ptr());
}

at::Tensor make_tensor(const Result& result, c10::Storage storage) {
  auto tensor = at::detail::make_tensor<c10::TensorImpl>(
      std::move(storage), kKeys, c10::scalarTypeToTypeMeta(result.dtype));
  tensor.unsafeGetTensorImpl()->set_sizes_and_strides(
      result.sizes, result.strides, result.storage_offset);
  return tensor;
}

} // namespace

Recorder::Recorder(const Tensors& arguments) : plan_(std::make_unique<Plan>()) {
  for (const auto* tensor : arguments) {
    Argument argument{tensor, 0, 0, 0, {tensor->sizes().begin(), tensor->sizes().end()}};
    if (tensor->has_storage() && tensor->storage().nbytes() != 0) {
      argument.begin = reinterpret_cast<uintptr_t>(tensor->storage().data());
      argument.end = argument.begin + tensor->storage().nbytes();
      argument.data = argument.begin + tensor->storage_offset() * tensor->element_size();
    }
    arguments_.push_back(std::move(argument));
  }
  active_recorder = this;
}

Recorder::~Recorder() {
  active_recorder = nullptr;
}

void Recorder::allocated(const void* data, size_t bytes) {
  live_[reinterpret_cast<uintptr_t>(data)] = plan_->allocations.size();
  events_.push_back({plan_->allocations.size(), false});
  plan_->allocations.push_back({bytes, -1});
}

void Recorder::freed(const void* data) {
  const auto found = live_.find(reinterpret_cast<uintptr_t>(data));
  if (found != live_.end()) {
    events_.push_back({found->second, true});
    live_.erase(found);
  }
}

bool Recorder::locate(uintptr_t address, Place& place) const {
  // Memory allocated meanwhile first: an argument that was resized may have got some of it.
  auto next = live_.upper_bound(address);
  if (next != live_.begin()) {
    --next;
    if (address < next->first + std::max<size_t>(plan_->allocations[next->second].bytes, 1)) {
      place = {Origin::Allocation, static_cast<uint32_t>(next->second),
               static_cast<int64_t>(address - next->first)};
      return true;
    }
  }
  for (size_t i = 0; i < arguments_.size(); ++i) {
    if (address >= arguments_[i].begin && address < arguments_[i].end) {
      place = {Origin::Argument, static_cast<uint32_t>(i),
               static_cast<int64_t>(address) - static_cast<int64_t>(arguments_[i].data)};
      return true;
    }
  }
  return false;
}

void Recorder::launched(
    KernelFunction kernel, c10::ArrayRef<void*> pointers, size_t scalars,
    c10::IntArrayRef registers) {
  for (size_t i = 0; i < pointers.size(); ++i) {
    Place place{};
    if (i + scalars >= pointers.size()) {
      place = {Origin::Constant, static_cast<uint32_t>(plan_->constants.size()), 0};
      ScalarValue value{};
      std::memcpy(value.bytes, pointers[i], sizeof value.bytes);
      plan_->constants.push_back(value);
    } else if (!locate(reinterpret_cast<uintptr_t>(pointers[i]), place)) {
      refuse("it reads memory from before the call that is no argument");
    }
    plan_->places.push_back(place);
  }
  plan_->registers.insert(plan_->registers.end(), registers.begin(), registers.end());
  plan_->steps.push_back({kernel, static_cast<uint32_t>(pointers.size()),
                          static_cast<uint32_t>(registers.size())});
}

// Gives temporaries offsets in one arena; memory is used again once it was freed.
void Recorder::plan_arena() {
  std::map<int64_t, int64_t> free_at; // offset -> bytes
  int64_t end = 0;
  for (const auto& event : events_) {
    auto& allocation = plan_->allocations[event.allocation];
    const auto bytes = static_cast<int64_t>(aligned(allocation.bytes));
    if (event.freed) {
      if (allocation.arena_offset >= 0) {
        auto slot = free_at.emplace(allocation.arena_offset, bytes).first;
        const auto after = std::next(slot);
        if (after != free_at.end() && slot->first + slot->second == after->first) {
          slot->second += after->second;
          free_at.erase(after);
        }
        if (slot != free_at.begin()) {
          const auto before = std::prev(slot);
          if (before->first + before->second == slot->first) {
            before->second += slot->second;
            free_at.erase(slot);
          }
        }
      }
      continue;
    }
    if (allocation.arena_offset == -1) {
      continue; // holds a result
    }
    const auto fits = std::find_if(
        free_at.begin(), free_at.end(), [&](const auto& slot) { return slot.second >= bytes; });
    if (fits == free_at.end()) {
      allocation.arena_offset = end;
      end += bytes;
    } else {
      allocation.arena_offset = fits->first;
      if (fits->second > bytes) {
        free_at.emplace(fits->first + bytes, fits->second - bytes);
      }
      free_at.erase(fits);
    }
  }
  plan_->arena_bytes = static_cast<size_t>(end);
}

bool Recorder::add_result(const at::Tensor& tensor) {
  Result result{};
  if (!tensor.defined()) {
    result.kind = Result::Kind::Undefined;
    plan_->results.push_back(std::move(result));
    return true;
  }
  for (size_t i = 0; i < arguments_.size(); ++i) {
    if (arguments_[i].tensor->unsafeGetTensorImpl() == tensor.unsafeGetTensorImpl()) {
      result.kind = Result::Kind::Argument;
      result.index = static_cast<int64_t>(i);
      plan_->results.push_back(std::move(result));
      return true;
    }
  }
  if (tensor.device().type() != kNeuron || tensor.is_conj() || tensor.is_neg()) {
    return false;
  }
  result.kind = Result::Kind::Fresh;
  result.index = -1;
  result.dtype = tensor.scalar_type();
  result.sizes.assign(tensor.sizes().begin(), tensor.sizes().end());
  result.strides.assign(tensor.strides().begin(), tensor.strides().end());
  result.storage_offset = tensor.storage_offset();
  if (tensor.storage().nbytes() != 0) {
    const auto found = live_.find(reinterpret_cast<uintptr_t>(tensor.storage().data()));
    if (found == live_.end()) {
      return false; // a view of an argument
    }
    result.index = static_cast<int64_t>(found->second);
  }
  plan_->results.push_back(std::move(result));
  return true;
}

std::unique_ptr<Plan> Recorder::finish(
    c10::ArrayRef<c10::IValue> returned, c10::DeviceIndex device) {
  active_recorder = nullptr;
  plan_->device = device;
  for (const auto& argument : arguments_) {
    const auto& tensor = *argument.tensor;
    if (tensor.sizes() != c10::IntArrayRef(argument.sizes) ||
        (argument.end != 0 &&
         reinterpret_cast<uintptr_t>(tensor.storage().data()) != argument.begin)) {
      refuse("an argument was resized");
    }
  }
  for (const auto& value : returned) {
    bool good = true;
    if (value.isTensor()) {
      plan_->lengths.push_back(-1);
      good = add_result(value.toTensor());
    } else if (value.isTensorList()) {
      const auto list = value.toListRef();
      plan_->lengths.push_back(static_cast<int64_t>(list.size()));
      for (const auto& item : list) {
        good = good && add_result(item.toTensor());
      }
    } else {
      good = false;
    }
    if (!good) {
      refuse("it returns something that is not a new tensor");
    }
  }
  if (refusal_ != nullptr) {
    return nullptr;
  }
  constexpr int64_t kInArena = -2;
  for (auto& allocation : plan_->allocations) {
    allocation.arena_offset = kInArena;
  }
  for (const auto& result : plan_->results) {
    if (result.kind == Result::Kind::Fresh && result.index >= 0) {
      plan_->allocations[result.index].arena_offset = -1;
    }
  }
  plan_arena();
  return std::move(plan_);
}

void Plan::replay(
    const std::string& op, c10::ArrayRef<const at::Tensor*> arguments,
    torch::jit::Stack* stack) const {
  auto* allocator = device_allocator(device);
  c10::SmallVector<c10::Storage, 4> storages; // of results, by allocation
  c10::SmallVector<char*, 16> bases(allocations.size(), nullptr);
  c10::DataPtr arena = allocator->allocate(arena_bytes);
  storages.resize(allocations.size());
  for (size_t i = 0; i < allocations.size(); ++i) {
    const auto& allocation = allocations[i];
    if (allocation.arena_offset >= 0) {
      bases[i] = static_cast<char*>(arena.get()) + allocation.arena_offset;
      continue;
    }
    storages[i] = c10::Storage(
        c10::Storage::use_byte_size_t(), allocation.bytes, allocator->allocate(allocation.bytes),
        allocator, /*resizable=*/true);
    bases[i] = static_cast<char*>(storages[i].mutable_data());
  }
  c10::SmallVector<char*, 8> data;
  for (const auto* tensor : arguments) {
    data.push_back(reinterpret_cast<char*>(address_of(*tensor)));
  }

  const Place* place = places.data();
  const int64_t* values = registers.data();
  c10::SmallVector<void*, 16> pointers;
  for (const auto& step : steps) {
    pointers.clear();
    size_t scalars = 0;
    for (uint32_t k = 0; k < step.pointers; ++k, ++place) {
      switch (place->origin) {
        case Origin::Argument:
          pointers.push_back(data[place->index] + place->offset);
          break;
        case Origin::Allocation:
          pointers.push_back(bases[place->index] + place->offset);
          break;
        case Origin::Constant:
          pointers.push_back(const_cast<char*>(constants[place->index].bytes));
          ++scalars;
          break;
      }
    }
    call_kernel(step.kernel, pointers, scalars, c10::IntArrayRef(values, step.registers), op);
    values += step.registers;
  }

  size_t next = 0;
  const auto take = [&]() -> at::Tensor {
    const auto& result = results[next++];
    switch (result.kind) {
      case Result::Kind::Undefined:
        return {};
      case Result::Kind::Argument:
        return *arguments[result.index];
      default:
        break;
    }
    if (result.index >= 0) {
      return make_tensor(result, storages[result.index]);
    }
    return make_tensor(
        result, c10::Storage(
                    c10::Storage::use_byte_size_t(), 0, allocator->allocate(0), allocator, true));
  };
  c10::SmallVector<c10::IValue, 3> returned;
  for (const auto length : lengths) {
    if (length < 0) {
      returned.emplace_back(take());
      continue;
    }
    std::vector<at::Tensor> list;
    for (int64_t k = 0; k < length; ++k) {
      list.push_back(take());
    }
    returned.emplace_back(std::move(list));
  }
  for (auto& value : returned) {
    stack->push_back(std::move(value));
  }
}

} // namespace trnx
