// Device memory: 64-byte aligned host memory, cached by size class, counted per logical device.
#pragma once

#include "device.h"

#include <c10/core/CachingDeviceAllocator.h>

#include <cstddef>

namespace trnx {

constexpr size_t kAlignment = 64;

// Allocator of one device. The one returned for -1 follows the thread's current device.
c10::DeviceAllocator* device_allocator(c10::DeviceIndex index);

// Counts memory of `nbytes` that a host kernel allocated and a neuron storage now owns.
void count_adopted(c10::DeviceIndex index, size_t nbytes);
void uncount_adopted(c10::DeviceIndex index, size_t nbytes);

// True if `pointer` lies in pinned memory that was handed out and not returned.
bool is_pinned(const void* pointer);
c10::Allocator* pinned_allocator();

// Hands cached blocks of all devices back to the system.
void empty_cache();

} // namespace trnx
