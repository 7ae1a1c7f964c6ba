// Device guard: current device, streams and events. All work is synchronous on the host.
#include "device.h"

#include <c10/core/DeviceGuard.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>

#include <array>
#include <atomic>
#include <chrono>
#include <memory>

namespace trnx {
namespace {

std::atomic<int> count{1};
thread_local c10::DeviceIndex thread_device = 0;
thread_local std::array<c10::StreamId, kMaxDevices> thread_streams{};
std::atomic<c10::StreamId> next_stream{1};

// A point on the host clock. Since a stream never has pending work, recording is completing.
struct Event {
  std::chrono::steady_clock::time_point time;
  bool recorded = false;
  bool timed = false;
};

} // namespace

c10::DeviceIndex device_count() noexcept {
  return static_cast<c10::DeviceIndex>(count.load(std::memory_order_relaxed));
}

void set_device_count(int64_t value) {
  TORCH_CHECK_VALUE(
      value >= 1 && value <= kMaxDevices,
      "The number of logical neuron devices must be between 1 and ", kMaxDevices, ", not ", value,
      ". Set TRNX_DEVICES to such a number.");
  TORCH_CHECK(
      !is_initialized() || value == device_count(),
      "The number of neuron devices cannot change after the first use. Set it before.");
  count.store(static_cast<int>(value));
}

c10::DeviceIndex current_device() noexcept {
  return thread_device;
}

c10::DeviceIndex resolve_device(c10::DeviceIndex index) {
  if (index == -1) {
    return thread_device;
  }
  TORCH_CHECK(
      index >= 0 && index < device_count(),
      "Device neuron:", static_cast<int>(index), " does not exist: there ",
      device_count() == 1 ? "is 1 logical device" : "are ",
      device_count() == 1 ? "" : std::to_string(device_count()) + " logical devices",
      ". Use a smaller index, or set TRNX_DEVICES before the program starts.");
  return index;
}

void set_current_device(c10::DeviceIndex index) {
  thread_device = resolve_device(index);
  ensure_initialized();
}

c10::Stream current_stream(c10::DeviceIndex index) {
  const auto device = resolve_device(index);
  return c10::Stream(c10::Stream::UNSAFE, c10::Device(kNeuron, device), thread_streams[device]);
}

c10::Stream exchange_stream(c10::Stream stream) {
  const auto device = resolve_device(stream.device_index());
  const auto previous = current_stream(device);
  thread_streams[device] = stream.id();
  return previous;
}

c10::Stream new_stream(c10::DeviceIndex index) {
  return c10::Stream(
      c10::Stream::UNSAFE, c10::Device(kNeuron, resolve_device(index)), next_stream.fetch_add(1));
}

namespace {

struct NeuronGuard final : c10::impl::DeviceGuardImplInterface {
  c10::DeviceType type() const override {
    return kNeuron;
  }

  c10::Device exchangeDevice(c10::Device device) const override {
    const c10::Device previous(kNeuron, thread_device);
    thread_device = resolve_device(device.index());
    return previous;
  }

  c10::Device getDevice() const override {
    return c10::Device(kNeuron, thread_device);
  }

  void setDevice(c10::Device device) const override {
    thread_device = resolve_device(device.index());
  }

  void uncheckedSetDevice(c10::Device device) const noexcept override {
    if (device.index() >= 0 && device.index() < device_count()) {
      thread_device = device.index();
    }
  }

  // Autograd starts one thread per device at its first backward and forbids backward in forked
  // children from then on. A program that never touched `neuron` must not pay for that.
  c10::DeviceIndex deviceCount() const noexcept override {
    return is_initialized() ? device_count() : 0;
  }

  c10::DeviceCapability getDeviceCapability(c10::Device) const override {
    return c10::DeviceCapability();
  }

  c10::Stream getStream(c10::Device device) const override {
    return current_stream(device.index());
  }

  c10::Stream getDefaultStream(c10::Device device) const override {
    return c10::Stream(c10::Stream::DEFAULT, c10::Device(kNeuron, resolve_device(device.index())));
  }

  c10::Stream getStreamFromGlobalPool(c10::Device device, bool) const override {
    return new_stream(device.index());
  }

  c10::Stream getNewStream(c10::Device device, int) const override {
    return new_stream(device.index());
  }

  c10::Stream exchangeStream(c10::Stream stream) const override {
    return exchange_stream(stream);
  }

  bool queryStream(const c10::Stream&) const override {
    return true;
  }

  void synchronizeStream(const c10::Stream&) const override {}

  void synchronizeDevice(c10::DeviceIndex index) const override {
    resolve_device(index);
  }

  void record(
      void** event,
      const c10::Stream& stream,
      const c10::DeviceIndex index,
      const c10::EventFlag flag) const override {
    TORCH_CHECK(
        index == -1 || index == stream.device_index(),
        "An event of neuron:", static_cast<int>(index), " cannot be recorded on a stream of ",
        stream.device(), ". Use a stream of the event's device.");
    if (*event == nullptr) {
      *event = new Event();
    }
    auto* point = static_cast<Event*>(*event);
    point->time = std::chrono::steady_clock::now();
    point->recorded = true;
    point->timed = flag == c10::EventFlag::BACKEND_DEFAULT;
  }

  void block(void*, const c10::Stream&) const override {}

  bool queryEvent(void*) const override {
    return true;
  }

  void synchronizeEvent(void*) const override {}

  void destroyEvent(void* event, const c10::DeviceIndex) const noexcept override {
    delete static_cast<Event*>(event);
  }

  // Milliseconds of host time between two recorded, timed events.
  double elapsedTime(void* start, void* end, const c10::DeviceIndex) const override {
    const auto* first = static_cast<Event*>(start);
    const auto* last = static_cast<Event*>(end);
    TORCH_CHECK(
        first != nullptr && last != nullptr && first->recorded && last->recorded,
        "Both events must be recorded before the time between them is read. Call record() first.");
    TORCH_CHECK(
        first->timed && last->timed,
        "These events do not keep time. Create both with enable_timing=True.");
    return std::chrono::duration<double, std::milli>(last->time - first->time).count();
  }
};

C10_REGISTER_GUARD_IMPL(PrivateUse1, NeuronGuard);

} // namespace
} // namespace trnx
