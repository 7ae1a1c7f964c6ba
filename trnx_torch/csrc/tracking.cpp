#include "tracking.h"

#include <map>
#include <memory>
#include <mutex>

namespace trnx {
namespace {

std::mutex table_lock;
std::map<std::string, std::unique_ptr<OpCounts>>& table() {
  static auto* counts = new std::map<std::string, std::unique_ptr<OpCounts>>();
  return *counts;
}

std::atomic<WarningHook> warning_hook{nullptr};

template <typename Field>
std::vector<std::pair<std::string, int64_t>> nonzero(Field field) {
  const std::lock_guard<std::mutex> lock(table_lock);
  std::vector<std::pair<std::string, int64_t>> result;
  for (const auto& [name, counts] : table()) {
    const auto count = ((*counts).*field).load(std::memory_order_relaxed);
    if (count != 0) {
      result.emplace_back(name, count);
    }
  }
  return result;
}

} // namespace

std::string full_name(const c10::OperatorName& name) {
  return name.overload_name.empty() ? name.name : name.name + "." + name.overload_name;
}

OpCounts& op_counts(const std::string& name) {
  const std::lock_guard<std::mutex> lock(table_lock);
  auto& counts = table()[name];
  if (counts == nullptr) {
    counts = std::make_unique<OpCounts>();
    counts->name = name;
  }
  return *counts;
}

void count_fallback(OpCounts& counts) {
  counts.fallback.fetch_add(1, std::memory_order_relaxed);
  if (C10_UNLIKELY(!counts.warned.load(std::memory_order_relaxed)) &&
      !counts.warned.exchange(true)) {
    if (const auto hook = warning_hook.load()) {
      hook(counts.name);
    }
  }
}

std::vector<std::pair<std::string, int64_t>> executed_ops() {
  return nonzero(&OpCounts::executed);
}

std::vector<std::pair<std::string, int64_t>> fallback_ops() {
  return nonzero(&OpCounts::fallback);
}

void clear_op_tracking() {
  const std::lock_guard<std::mutex> lock(table_lock);
  for (const auto& [name, counts] : table()) {
    counts->executed.store(0, std::memory_order_relaxed);
    counts->fallback.store(0, std::memory_order_relaxed);
  }
}

void set_fallback_warning(WarningHook hook) {
  warning_hook.store(hook);
}

} // namespace trnx
