#include "alias.h"

#include "allocator.h"

#include <c10/core/CPUAllocator.h>
#include <c10/core/StorageImpl.h>
#include <c10/util/flat_hash_map.h>

#include <cstring>
#include <mutex>

namespace trnx {
namespace {

using c10::StorageImpl;

// Storages that aliases held by users point into: how many, and whether they were resizable.
struct Exported {
  int count = 0;
  bool resizable = false;
};
std::mutex exports_lock;
ska::flat_hash_map<StorageImpl*, Exported>& exports() {
  static auto* all = new ska::flat_hash_map<StorageImpl*, Exported>();
  return *all;
}

void begin_export(StorageImpl* owner) {
  const std::lock_guard<std::mutex> lock(exports_lock);
  auto& entry = exports()[owner];
  if (entry.count++ == 0) {
    // Shared memory says it is resizable although it has no allocator, and so is not.
    entry.resizable = owner->resizable() && owner->allocator() != nullptr;
    owner->set_resizable(false);
  }
}

void end_export(StorageImpl* owner) {
  const std::lock_guard<std::mutex> lock(exports_lock);
  const auto found = exports().find(owner);
  if (--found->second.count == 0) {
    owner->set_resizable(found->second.resizable);
    exports().erase(found);
  }
}

bool is_exported(StorageImpl* owner) {
  const std::lock_guard<std::mutex> lock(exports_lock);
  return exports().count(owner) != 0;
}

void release(void* owner) {
  c10::intrusive_ptr<StorageImpl>::reclaim(static_cast<StorageImpl*>(owner));
}

// Deleters of an alias' DataPtr. Their addresses also tell what the context is: the neuron storage
// behind a cpu alias of a running operator, the one behind a cpu alias that a user holds, the cpu
// storage behind a neuron alias.
void release_neuron_owner(void* owner) {
  release(owner);
}
void release_exported_owner(void* owner) {
  end_export(static_cast<StorageImpl*>(owner));
  release(owner);
}
void release_cpu_owner(void* owner) {
  end_export(static_cast<StorageImpl*>(owner));
  release(owner);
}

bool is_cpu_alias(c10::DeleterFnPtr deleter) {
  return deleter == &release_neuron_owner || deleter == &release_exported_owner;
}

// Memory that a host kernel allocated and a neuron storage owns.
struct Adopted {
  c10::DataPtr memory;
  size_t bytes;
  c10::DeviceIndex device;
};

void release_adopted(void* context) {
  auto* adopted = static_cast<Adopted*>(context);
  uncount_adopted(adopted->device, adopted->bytes);
  delete adopted;
}

c10::DataPtr adopt_memory(c10::DataPtr&& memory, size_t bytes, c10::DeviceIndex index) {
  void* data = memory.get();
  count_adopted(index, bytes);
  auto* context = new Adopted{std::move(memory), bytes, index};
  return {data, context, &release_adopted, c10::Device(kNeuron, index)};
}

c10::Storage make_storage(
    c10::DataPtr&& memory, size_t bytes, c10::Allocator* allocator, bool resizable) {
  return c10::Storage(
      c10::Storage::use_byte_size_t(), bytes, std::move(memory), allocator, resizable);
}

// A storage on `device` over the memory of `owner`, which the DataPtr keeps alive.
c10::Storage alias_storage(
    StorageImpl* owner, c10::Device device, c10::DeleterFnPtr deleter, c10::Allocator* allocator) {
  void* data = owner->mutable_data_ptr().get();
  const bool resizable = owner->resizable() && deleter == &release_neuron_owner;
  if (deleter != &release_neuron_owner) {
    begin_export(owner);
  }
  c10::raw::intrusive_ptr::incref(owner); // this reference is what the deleter gives back
  c10::DataPtr memory(data, owner, deleter, device);
  return make_storage(std::move(memory), owner->nbytes(), allocator, resizable);
}

// The storage that `alias` was made from if it is an alias that still describes that memory.
StorageImpl* original_of(StorageImpl* alias) {
  const auto& memory = alias->_mutable_data_ptr_no_checks();
  const auto deleter = memory.get_deleter();
  if (deleter != &release_cpu_owner && !is_cpu_alias(deleter)) {
    return nullptr;
  }
  auto* owner = static_cast<StorageImpl*>(memory.get_context());
  const bool same = owner->_mutable_data_ptr_no_checks().get() == memory.get() &&
      owner->nbytes() == alias->nbytes();
  return same ? owner : nullptr;
}

at::Tensor tensor_over(c10::Storage&& storage, const at::Tensor& like, c10::DispatchKey key) {
  auto tensor = at::detail::make_tensor<c10::TensorImpl>(
      std::move(storage), c10::DispatchKeySet(key), like.dtype());
  auto* impl = tensor.unsafeGetTensorImpl();
  impl->set_sizes_and_strides(like.sizes(), like.strides(), like.storage_offset());
  if (C10_UNLIKELY(like.is_conj())) {
    impl->_set_conj(true);
  }
  if (C10_UNLIKELY(like.is_neg())) {
    impl->_set_neg(true);
  }
  return tensor;
}

} // namespace

namespace {

at::Tensor cpu_alias(const at::Tensor& tensor, c10::DeleterFnPtr deleter) {
  TORCH_CHECK_TYPE(
      tensor.device().type() == kNeuron && tensor.has_storage(),
      "Expected a strided tensor on neuron, got one on ", tensor.device(), ".");
  auto* owner = tensor.unsafeGetTensorImpl()->unsafe_storage().unsafeGetStorageImpl();
  StorageImpl* original = original_of(owner);
  auto storage = original != nullptr
      ? c10::Storage(c10::intrusive_ptr<StorageImpl>::reclaim_copy(original))
      : alias_storage(
            owner, c10::Device(c10::DeviceType::CPU), deleter, c10::GetCPUAllocator());
  return tensor_over(std::move(storage), tensor, c10::DispatchKey::CPU);
}

} // namespace

at::Tensor as_cpu(const at::Tensor& tensor) {
  return cpu_alias(tensor, &release_neuron_owner);
}

at::Tensor export_to_cpu(const at::Tensor& tensor) {
  return cpu_alias(tensor, &release_exported_owner);
}

void move_storage(const at::Tensor& tensor, const at::Tensor& target) {
  auto* own = tensor.unsafeGetTensorImpl()->unsafe_storage().unsafeGetStorageImpl();
  auto* shared = target.unsafeGetTensorImpl()->unsafe_storage().unsafeGetStorageImpl();
  TORCH_CHECK(
      !is_exported(own), "This tensor's memory cannot move while cpu views of it are alive. Delete "
      "what as_cpu(), NumPy or DLPack made of it.");
  TORCH_CHECK_VALUE(
      tensor.device().type() == kNeuron && target.device().is_cpu() &&
          own->nbytes() == shared->nbytes(),
      "move_storage() takes a neuron tensor and a cpu tensor whose storage has as many bytes.");
  std::memcpy(shared->mutable_data(), own->data(), own->nbytes());
  const auto device = tensor.device();
  void* data = shared->mutable_data();
  begin_export(shared);
  c10::raw::intrusive_ptr::incref(shared);
  own->set_data_ptr_noswap(c10::DataPtr(data, shared, &release_cpu_owner, device));
  own->set_resizable(false);
}

at::Tensor as_neuron(const at::Tensor& tensor, c10::DeviceIndex index) {
  TORCH_CHECK_TYPE(
      tensor.device().is_cpu() && tensor.layout() == c10::kStrided && tensor.has_storage(),
      "Expected a strided tensor on cpu, got one on ", tensor.device(), ".");
  ensure_initialized();
  const auto device = resolve_device(index);
  auto* owner = tensor.unsafeGetTensorImpl()->unsafe_storage().unsafeGetStorageImpl();
  StorageImpl* original = original_of(owner);
  if (original != nullptr && original->device().index() != device) {
    original = nullptr;
  }
  auto storage = original != nullptr
      ? c10::Storage(c10::intrusive_ptr<StorageImpl>::reclaim_copy(original))
      : alias_storage(
            owner, c10::Device(kNeuron, device), &release_cpu_owner, device_allocator(device));
  return tensor_over(std::move(storage), tensor, c10::DispatchKey::PrivateUse1);
}

at::Tensor adopt(at::Tensor&& tensor, c10::DeviceIndex index) {
  auto* owner = tensor.unsafeGetTensorImpl()->unsafe_storage().unsafeGetStorageImpl();
  const bool exclusive = tensor.use_count() == 1 &&
      tensor.unsafeGetTensorImpl()->unsafe_storage().use_count() == 1 && owner->resizable() &&
      owner->allocator() == c10::GetCPUAllocator() &&
      !is_cpu_alias(owner->_mutable_data_ptr_no_checks().get_deleter());
  if (!exclusive) {
    return as_neuron(tensor, index);
  }
  ensure_initialized();
  const auto bytes = owner->nbytes();
  auto memory = adopt_memory(std::move(owner->mutable_data_ptr()), bytes, index);
  return tensor_over(
      make_storage(std::move(memory), bytes, device_allocator(index), true), tensor,
      c10::DispatchKey::PrivateUse1);
}

void sync_from_alias(const at::Tensor& tensor, const at::Tensor& alias) {
  auto* impl = tensor.unsafeGetTensorImpl();
  auto* alias_storage_impl = alias.unsafeGetTensorImpl()->unsafe_storage().unsafeGetStorageImpl();
  auto* own = impl->unsafe_storage().unsafeGetStorageImpl();
  auto& memory = alias_storage_impl->_mutable_data_ptr_no_checks();
  if (C10_UNLIKELY(
          memory.get() != own->_mutable_data_ptr_no_checks().get() ||
          alias_storage_impl->nbytes() != own->nbytes())) {
    const auto bytes = alias_storage_impl->nbytes();
    const auto device = tensor.device().index();
    if (is_cpu_alias(memory.get_deleter())) {
      own->set_nbytes(bytes);
    } else if (memory.get_deleter() == &release_cpu_owner || own->allocator() == nullptr) {
      TORCH_CHECK(false, "This tensor shares memory that cannot be resized. Clone it first.");
    } else {
      // The host kernel reallocated: every view of the neuron storage must see the new memory.
      own->set_data_ptr_noswap(adopt_memory(std::move(memory), bytes, device));
      own->set_nbytes(bytes);
      // The alias may be held elsewhere: leave it valid, over the memory's new owner.
      c10::raw::intrusive_ptr::incref(own);
      alias_storage_impl->set_data_ptr_noswap(c10::DataPtr(
          own->_mutable_data_ptr_no_checks().get(), own, &release_neuron_owner,
          c10::Device(c10::DeviceType::CPU)));
    }
  }
  if (C10_UNLIKELY(
          impl->sizes() != alias.sizes() || impl->strides() != alias.strides() ||
          impl->storage_offset() != alias.storage_offset())) {
    impl->set_sizes_and_strides(alias.sizes(), alias.strides(), alias.storage_offset());
  }
}

} // namespace trnx
