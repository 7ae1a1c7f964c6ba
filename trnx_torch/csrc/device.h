// Logical devices: how many there are, which one a thread uses, and when the process first used one.
#pragma once

#include <c10/core/Device.h>
#include <c10/core/Stream.h>

#include <cstdint>

namespace trnx {

constexpr c10::DeviceType kNeuron = c10::DeviceType::PrivateUse1;
constexpr int kMaxDevices = 64;

// Number of logical devices; fixed before the first use.
c10::DeviceIndex device_count() noexcept;
void set_device_count(int64_t count);

c10::DeviceIndex current_device() noexcept;
// Throws c10::Error for an index outside [0, device_count()).
void set_current_device(c10::DeviceIndex index);
// `index` itself, or the current device for -1; throws for an index that does not exist.
c10::DeviceIndex resolve_device(c10::DeviceIndex index);

// The stream a thread uses on a device. Streams run their work at once, so they only carry identity.
c10::Stream current_stream(c10::DeviceIndex index);
c10::Stream exchange_stream(c10::Stream stream);
c10::Stream new_stream(c10::DeviceIndex index);

// True once a tensor, stream or device index of `neuron` was used in this process.
bool is_initialized() noexcept;
// Marks the device as used. The first call starts autograd's device threads: until then importing
// the extension changes nothing for CPU programs, not even how they may fork.
void ensure_initialized();
// Called once, right after the first use was marked, without any lock held.
using FirstUseHook = void (*)();
void set_first_use_hook(FirstUseHook hook);

} // namespace trnx
