#include "alias.h"

#include "allocator.h"

#include <c10/core/CPUAllocator.h>
#include <c10/core/StorageImpl.h>

namespace trnx {
namespace {

using c10::StorageImpl;

// The deleter of an alias' DataPtr. Its address also tells what the context is.
void release_neuron_owner(void* owner) {
  c10::intrusive_ptr<StorageImpl>::reclaim(static_cast<StorageImpl*>(owner));
}
void release_cpu_owner(void* owner) {
  c10::intrusive_ptr<StorageImpl>::reclaim(static_cast<StorageImpl*>(owner));
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
    StorageImpl* owner, c10::Device device, c10::DeleterFnPtr release, c10::Allocator* allocator) {
  void* data = owner->mutable_data_ptr().get();
  c10::raw::intrusive_ptr::incref(owner); // this reference is what `release` gives back
  c10::DataPtr memory(data, owner, release, device);
  return make_storage(std::move(memory), owner->nbytes(), allocator, owner->resizable());
}

// The storage that `alias` was made from if `release` made it and it still describes that memory.
StorageImpl* original_of(StorageImpl* alias, c10::DeleterFnPtr release) {
  const auto& memory = alias->_mutable_data_ptr_no_checks();
  if (memory.get_deleter() != release) {
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

at::Tensor as_cpu(const at::Tensor& tensor) {
  TORCH_CHECK_TYPE(
      tensor.device().type() == kNeuron && tensor.has_storage(),
      "Expected a strided tensor on neuron, got one on ", tensor.device(), ".");
  auto* owner = tensor.unsafeGetTensorImpl()->unsafe_storage().unsafeGetStorageImpl();
  StorageImpl* original = original_of(owner, &release_cpu_owner);
  auto storage = original != nullptr
      ? c10::Storage(c10::intrusive_ptr<StorageImpl>::reclaim_copy(original))
      : alias_storage(
            owner, c10::Device(c10::DeviceType::CPU), &release_neuron_owner,
            c10::GetCPUAllocator());
  return tensor_over(std::move(storage), tensor, c10::DispatchKey::CPU);
}

at::Tensor as_neuron(const at::Tensor& tensor, c10::DeviceIndex index) {
  TORCH_CHECK_TYPE(
      tensor.device().is_cpu() && tensor.layout() == c10::kStrided && tensor.has_storage(),
      "Expected a strided tensor on cpu, got one on ", tensor.device(), ".");
  ensure_initialized();
  const auto device = resolve_device(index);
  auto* owner = tensor.unsafeGetTensorImpl()->unsafe_storage().unsafeGetStorageImpl();
  StorageImpl* original = original_of(owner, &release_neuron_owner);
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
      owner->_mutable_data_ptr_no_checks().get_deleter() != &release_neuron_owner;
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
    if (memory.get_deleter() == &release_neuron_owner) {
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
