// Device time per operator for `torch.autograd.profiler.profile(use_device="neuron")`.
//
// Work is done when an operator returns, so a mark on the device is a point on the host clock.
#include "device.h"

#include <torch/csrc/profiler/stubs/base.h>

#include <chrono>
#include <functional>
#include <memory>

namespace trnx {
namespace {

using Clock = std::chrono::steady_clock;
using torch::profiler::impl::ProfilerVoidEventStub;

struct NeuronProfiler final : torch::profiler::impl::ProfilerStubs {
  void record(c10::DeviceIndex* device, ProfilerVoidEventStub* event, int64_t* cpu_ns)
      const override {
    if (device != nullptr) {
      *device = current_device();
    }
    const auto now = Clock::now();
    *event = std::make_shared<Clock::time_point>(now);
    if (cpu_ns != nullptr) {
      *cpu_ns =
          std::chrono::duration_cast<std::chrono::nanoseconds>(now.time_since_epoch()).count();
    }
  }

  // Microseconds, as the profiler expects.
  float elapsed(const ProfilerVoidEventStub* first, const ProfilerVoidEventStub* second)
      const override {
    const auto* start = static_cast<const Clock::time_point*>(first->get());
    const auto* end = static_cast<const Clock::time_point*>(second->get());
    return std::chrono::duration<float, std::micro>(*end - *start).count();
  }

  void onEachDevice(std::function<void(int)> visit) const override {
    for (int index = 0; index < device_count(); ++index) {
      visit(index);
    }
  }

  bool enabled() const override {
    return true;
  }
  void synchronize() const override {}
  // There is no tool of the device's own that could take marks and ranges.
  void mark(const char*) const override {}
  void rangePush(const char*) const override {}
  void rangePop() const override {}
};

struct RegisterProfiler {
  RegisterProfiler() {
    // Leaked: the profiler may still ask at exit.
    torch::profiler::impl::registerPrivateUse1Methods(new NeuronProfiler());
  }
} register_profiler;

} // namespace
} // namespace trnx
