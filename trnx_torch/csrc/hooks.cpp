// What torch asks of an accelerator besides kernels: availability, generators, pinned memory.
#include "allocator.h"
#include "generator.h"

#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <ATen/native/Resize.h>

namespace trnx {
namespace {

struct NeuronHooks final : at::PrivateUse1HooksInterface {
  bool isBuilt() const override {
    return true;
  }
  bool isAvailable() const override {
    return true;
  }
  // Nothing to do: the first tensor, stream or device index initialises (pinning memory does not).
  void init() const override {}
  bool hasPrimaryContext(c10::DeviceIndex) const override {
    return is_initialized();
  }
  c10::DeviceIndex deviceCount() const override {
    return device_count();
  }
  void setCurrentDevice(c10::DeviceIndex index) const override {
    set_current_device(index);
  }
  c10::DeviceIndex getCurrentDevice() const override {
    return current_device();
  }
  c10::DeviceIndex exchangeDevice(c10::DeviceIndex index) const override {
    const auto previous = current_device();
    set_current_device(index);
    return previous;
  }
  c10::DeviceIndex maybeExchangeDevice(c10::DeviceIndex index) const override {
    return index < 0 ? current_device() : exchangeDevice(index);
  }
  const at::Generator& getDefaultGenerator(c10::DeviceIndex index) const override {
    return default_generator(index);
  }
  at::Generator getNewGenerator(c10::DeviceIndex index) const override {
    return new_generator(index);
  }
  bool isPinnedPtr(const void* pointer) const override {
    return is_pinned(pointer);
  }
  at::Allocator* getPinnedMemoryAllocator() const override {
    return pinned_allocator();
  }
  // Device memory is host memory, so an address alone does not tell the device.
  at::Device getDeviceFromPtr(void*) const override {
    return at::Device(kNeuron, current_device());
  }
  void resizePrivateUse1Bytes(const c10::Storage& storage, size_t bytes) const override {
    TORCH_CHECK(
        storage.resizable(), "This storage is not resizable, because a cpu tensor, an array or "
        "another process uses its memory, too. Delete those first, or clone the tensor.");
    at::native::resize_bytes_cpu(storage.unsafeGetStorageImpl(), bytes);
  }
};

struct RegisterHooks {
  RegisterHooks() {
    at::RegisterPrivateUse1HooksInterface(new NeuronHooks());
  }
} register_hooks;

} // namespace
} // namespace trnx
