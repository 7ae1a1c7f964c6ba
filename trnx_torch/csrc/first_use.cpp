// What happens at the first use of the device in a process.
#include "device.h"

#include <c10/util/Exception.h>
#include <torch/csrc/autograd/engine.h>

#include <atomic>
#include <mutex>

namespace trnx {
namespace {

std::atomic<bool> initialized{false};
std::mutex first_use;
std::atomic<FirstUseHook> first_use_hook{nullptr};

// Reaches the two protected members of the engine that starting threads late needs.
struct EngineAccess : torch::autograd::Engine {
  static bool has_device_threads(torch::autograd::Engine& engine) {
    return !(engine.*(&EngineAccess::device_ready_queues_)).empty();
  }
  static void start(torch::autograd::Engine& engine) {
    (engine.*(&EngineAccess::start_device_threads))();
  }
};

} // namespace

bool is_initialized() noexcept {
  return initialized.load(std::memory_order_acquire);
}

void set_first_use_hook(FirstUseHook hook) {
  first_use_hook.store(hook);
}

namespace {

// True for the one call that marked the device as used.
bool mark_initialized() {
  const std::lock_guard<std::mutex> lock(first_use);
  if (is_initialized()) {
    return false;
  }
  initialized.store(true, std::memory_order_release);
  try {
    auto& engine = torch::autograd::Engine::get_default_engine();
    engine.initialize_device_threads_pool();
    // A backward on CPU before this point used up the engine's own one-time start, with no device.
    if (!EngineAccess::has_device_threads(engine)) {
      EngineAccess::start(engine);
    }
  } catch (...) {
    initialized.store(false, std::memory_order_release);
    throw;
  }
  return true;
}

} // namespace

void ensure_initialized() {
  if (C10_LIKELY(is_initialized())) {
    return;
  }
  if (mark_initialized()) {
    // The hook takes the interpreter lock, whose holder may be waiting here: no lock of ours is held.
    if (const auto hook = first_use_hook.load()) {
      hook();
    }
  }
}

} // namespace trnx
