// Which operators ran as device kernels and which fell back to torch's CPU kernels, and how often.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>

#include <atomic>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace trnx {

// Counts of one operator overload. Never freed, so references stay good.
struct OpCounts {
  std::string name; // "aten::add.Tensor"
  std::atomic<int64_t> executed{0};
  std::atomic<int64_t> fallback{0};
  std::atomic<bool> warned{false};
};

OpCounts& op_counts(const std::string& name);
std::string full_name(const c10::OperatorName& name);

inline void count_executed(OpCounts& counts) {
  counts.executed.fetch_add(1, std::memory_order_relaxed);
}
// Counts a CPU fallback; the first one of an operator in the process also calls the warning hook.
void count_fallback(OpCounts& counts);

// (name, count) of operators whose count is not zero, sorted by name.
std::vector<std::pair<std::string, int64_t>> executed_ops();
std::vector<std::pair<std::string, int64_t>> fallback_ops();
// Sets all counts to zero. Operators that have warned stay quiet.
void clear_op_tracking();

// The function called at the first fallback of an operator; set once by the Python side.
using WarningHook = void (*)(const std::string& name);
void set_fallback_warning(WarningHook hook);

} // namespace trnx
