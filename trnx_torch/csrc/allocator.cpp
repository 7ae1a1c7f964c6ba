#include "allocator.h"

#include "plan.h"

#include <ATen/core/CachingHostAllocator.h>
#include <c10/util/Exception.h>

#include <array>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include <unistd.h>

namespace trnx {
namespace {

using c10::CachingAllocator::Stat;
using c10::CachingAllocator::StatType;

// Written in the 64 bytes before every block, so that freeing needs no look-up.
struct alignas(kAlignment) Header {
  size_t capacity; // usable bytes behind the header
  size_t requested; // bytes the caller asked for
  int size_class;
  int device;
  Header* next; // in a free list
};
static_assert(sizeof(Header) == kAlignment);

// Size classes: multiples of 64 up to 512 bytes, then four steps per doubling (at most 25 % waste).
constexpr int kLinearClasses = 8;
constexpr int kSteps = 4;
constexpr int kClasses = kLinearClasses + kSteps * 50;
// Blocks above this go straight back to the system: they would pin too much memory.
constexpr size_t kLargestCached = size_t{256} << 20;
constexpr size_t kCacheLimit = size_t{1} << 30; // cached bytes per device

int class_of(size_t bytes) {
  if (bytes <= kLinearClasses * kAlignment) {
    return bytes == 0 ? 0 : static_cast<int>((bytes - 1) / kAlignment);
  }
  const int top = 63 - __builtin_clzll(bytes - 1); // bytes lies in (2^top, 2^(top+1)]
  const size_t step = (size_t{1} << top) / kSteps;
  const int part = static_cast<int>((bytes - 1 - (size_t{1} << top)) / step);
  return kLinearClasses + (top - 9) * kSteps + part;
}

size_t capacity_of(int size_class) {
  if (size_class < kLinearClasses) {
    return (size_class + 1) * kAlignment;
  }
  const int top = (size_class - kLinearClasses) / kSteps + 9;
  const int part = (size_class - kLinearClasses) % kSteps;
  return (size_t{1} << top) + (part + 1) * ((size_t{1} << top) / kSteps);
}

// Memory of one logical device. `lock` guards everything in it.
struct Pool {
  std::mutex lock;
  std::array<Header*, kClasses> free{};
  size_t cached = 0;
  Stat allocations, allocated, active, reserved, requested, segments;
  int64_t retries = 0;
  int64_t out_of_memory = 0;
  int64_t system_allocations = 0;
  int64_t system_frees = 0;
};

std::array<Pool, kMaxDevices>& pools() {
  // Leaked on purpose: tensors held by Python may be freed after static destructors ran.
  static auto* all = new std::array<Pool, kMaxDevices>();
  return *all;
}

void release_to_system(Pool& pool, Header* header) {
  pool.reserved.decrease(header->capacity);
  pool.segments.decrease(1);
  ++pool.system_frees;
  std::free(header);
}

void drop_cache(Pool& pool) {
  for (auto& head : pool.free) {
    while (head != nullptr) {
      Header* next = head->next;
      pool.cached -= head->capacity;
      release_to_system(pool, head);
      head = next;
    }
  }
}

Header* take(Pool& pool, size_t bytes, c10::DeviceIndex device) {
  const int size_class = class_of(bytes);
  const std::lock_guard<std::mutex> lock(pool.lock);
  Header* header = pool.free[size_class];
  if (header != nullptr) {
    pool.free[size_class] = header->next;
    pool.cached -= header->capacity;
  } else {
    const size_t capacity = capacity_of(size_class);
    void* memory = nullptr;
    if (posix_memalign(&memory, kAlignment, sizeof(Header) + capacity) != 0) {
      ++pool.retries;
      drop_cache(pool);
      if (posix_memalign(&memory, kAlignment, sizeof(Header) + capacity) != 0) {
        ++pool.out_of_memory;
        TORCH_CHECK_WITH(
            OutOfMemoryError, false, "neuron:", static_cast<int>(device), " cannot allocate ",
            bytes, " bytes: ", pool.allocated.current,
            " bytes are in use by tensors. Free tensors or use a smaller batch.");
      }
    }
    header = static_cast<Header*>(memory);
    header->capacity = capacity;
    header->size_class = size_class;
    header->device = device;
    pool.reserved.increase(capacity);
    pool.segments.increase(1);
    ++pool.system_allocations;
  }
  header->requested = bytes;
  pool.allocations.increase(1);
  pool.allocated.increase(header->capacity);
  pool.active.increase(1);
  pool.requested.increase(bytes);
  return header;
}

void give_back(void* data) {
  if (C10_UNLIKELY(active_recorder != nullptr)) {
    active_recorder->freed(data);
  }
  Header* header = static_cast<Header*>(data) - 1;
  Pool& pool = pools()[header->device];
  const std::lock_guard<std::mutex> lock(pool.lock);
  pool.allocations.decrease(1);
  pool.allocated.decrease(header->capacity);
  pool.active.decrease(1);
  pool.requested.decrease(header->requested);
  if (header->capacity > kLargestCached || pool.cached + header->capacity > kCacheLimit) {
    release_to_system(pool, header);
    return;
  }
  pool.cached += header->capacity;
  header->next = pool.free[header->size_class];
  pool.free[header->size_class] = header;
}

size_t available_memory() {
  // Linux reports what can be had without swapping; elsewhere free pages are the best estimate.
  if (std::FILE* file = std::fopen("/proc/meminfo", "r")) {
    char line[128];
    unsigned long long kib = 0;
    bool found = false;
    while (!found && std::fgets(line, sizeof line, file) != nullptr) {
      found = std::sscanf(line, "MemAvailable: %llu kB", &kib) == 1;
    }
    std::fclose(file);
    if (found) {
      return static_cast<size_t>(kib) * 1024;
    }
  }
#ifdef _SC_AVPHYS_PAGES
  return static_cast<size_t>(sysconf(_SC_AVPHYS_PAGES)) * static_cast<size_t>(sysconf(_SC_PAGESIZE));
#else
  return 0;
#endif
}

class NeuronAllocator final : public c10::DeviceAllocator {
 public:
  explicit NeuronAllocator(c10::DeviceIndex index) : index_(index) {}

  c10::DataPtr allocate(size_t bytes) override {
    const auto device = index_ >= 0 ? index_ : current_device();
    ensure_initialized();
    const c10::Device place(kNeuron, device);
    if (bytes == 0) {
      return {nullptr, nullptr, &give_back_or_nothing, place};
    }
    void* data = take(pools()[device], bytes, device) + 1;
    if (C10_UNLIKELY(active_recorder != nullptr)) {
      active_recorder->allocated(data, bytes);
    }
    return {data, data, &give_back, place};
  }

  c10::DeleterFnPtr raw_deleter() const override {
    return &give_back_or_nothing;
  }

  void copy_data(void* target, const void* source, size_t bytes) const override {
    default_copy_data(target, source, bytes);
  }

  bool initialized() override {
    return true;
  }

  void emptyCache(c10::MempoolId_t) override {
    empty_cache();
  }

  // Work is done when it is issued, so no stream can still read a freed block.
  void recordStream(const c10::DataPtr&, c10::Stream) override {}

  c10::CachingDeviceAllocator::DeviceStats getDeviceStats(c10::DeviceIndex index) override {
    Pool& pool = pools()[resolve_device(index)];
    const std::lock_guard<std::mutex> lock(pool.lock);
    c10::CachingDeviceAllocator::DeviceStats stats;
    const auto all = static_cast<size_t>(StatType::AGGREGATE);
    stats.allocation[all] = pool.allocations;
    stats.segment[all] = pool.segments;
    stats.active[all] = pool.active;
    stats.allocated_bytes[all] = pool.allocated;
    stats.active_bytes[all] = pool.allocated;
    stats.reserved_bytes[all] = pool.reserved;
    stats.requested_bytes[all] = pool.requested;
    stats.num_alloc_retries = pool.retries;
    stats.num_ooms = pool.out_of_memory;
    stats.num_device_alloc = pool.system_allocations;
    stats.num_device_free = pool.system_frees;
    return stats;
  }

  void resetAccumulatedStats(c10::DeviceIndex index) override {
    for_each_stat(index, [](Stat& stat) { stat.reset_accumulated(); });
    Pool& pool = pools()[resolve_device(index)];
    const std::lock_guard<std::mutex> lock(pool.lock);
    pool.retries = pool.out_of_memory = pool.system_allocations = pool.system_frees = 0;
  }

  void resetPeakStats(c10::DeviceIndex index) override {
    for_each_stat(index, [](Stat& stat) { stat.reset_peak(); });
  }

  std::pair<size_t, size_t> getMemoryInfo(c10::DeviceIndex index) override {
    resolve_device(index);
    const auto total =
        static_cast<size_t>(sysconf(_SC_PHYS_PAGES)) * static_cast<size_t>(sysconf(_SC_PAGESIZE));
    return {available_memory(), total};
  }

 private:
  static void give_back_or_nothing(void* data) {
    if (data != nullptr) {
      give_back(data);
    }
  }

  template <typename Function>
  void for_each_stat(c10::DeviceIndex index, Function function) {
    Pool& pool = pools()[resolve_device(index)];
    const std::lock_guard<std::mutex> lock(pool.lock);
    for (Stat* stat : {&pool.allocations, &pool.allocated, &pool.active, &pool.reserved,
                       &pool.requested, &pool.segments}) {
      function(*stat);
    }
  }

  const c10::DeviceIndex index_;
};

// Pinned host memory is ordinary memory here; what matters is that `is_pinned()` answers truly.
class PinnedAllocator final : public at::HostAllocator {
 public:
  c10::DataPtr allocate(size_t bytes) override {
    if (bytes == 0) {
      return {nullptr, nullptr, &release, c10::Device(c10::DeviceType::CPU)};
    }
    void* memory = nullptr;
    TORCH_CHECK_WITH(
        OutOfMemoryError, posix_memalign(&memory, kAlignment, bytes) == 0, "cannot pin ", bytes,
        " bytes of host memory. Free tensors or pin less.");
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      blocks_[reinterpret_cast<uintptr_t>(memory)] = bytes;
      bytes_.increase(bytes);
      count_.increase(1);
    }
    return {memory, memory, &release, c10::Device(c10::DeviceType::CPU)};
  }

  bool contains(const void* pointer) {
    const auto address = reinterpret_cast<uintptr_t>(pointer);
    const std::lock_guard<std::mutex> lock(mutex_);
    auto above = blocks_.upper_bound(address);
    if (above == blocks_.begin()) {
      return false;
    }
    --above;
    return address < above->first + above->second;
  }

  c10::DeleterFnPtr raw_deleter() const override {
    return &release;
  }
  void copy_data(void* target, const void* source, size_t bytes) const override {
    default_copy_data(target, source, bytes);
  }
  bool record_event(void*, void*, c10::Stream) override {
    return true;
  }
  void empty_cache() override {}
  at::HostStats get_stats() override {
    const std::lock_guard<std::mutex> lock(mutex_);
    at::HostStats stats;
    stats.allocated_bytes = bytes_;
    stats.allocations = count_;
    return stats;
  }
  void reset_accumulated_stats() override {
    const std::lock_guard<std::mutex> lock(mutex_);
    bytes_.reset_accumulated();
    count_.reset_accumulated();
  }
  void reset_peak_stats() override {
    const std::lock_guard<std::mutex> lock(mutex_);
    bytes_.reset_peak();
    count_.reset_peak();
  }

  static PinnedAllocator& instance() {
    static auto* allocator = new PinnedAllocator();
    return *allocator;
  }

 private:
  static void release(void* memory) {
    if (memory == nullptr) {
      return;
    }
    auto& self = instance();
    {
      const std::lock_guard<std::mutex> lock(self.mutex_);
      const auto found = self.blocks_.find(reinterpret_cast<uintptr_t>(memory));
      self.bytes_.decrease(found->second);
      self.count_.decrease(1);
      self.blocks_.erase(found);
    }
    std::free(memory);
  }

  std::mutex mutex_;
  std::map<uintptr_t, size_t> blocks_;
  Stat bytes_, count_;
};

struct RegisterAllocators {
  RegisterAllocators() {
    c10::SetAllocator(kNeuron, device_allocator(-1));
    at::setHostAllocator(kNeuron, &PinnedAllocator::instance());
  }
} register_allocators;

} // namespace

c10::DeviceAllocator* device_allocator(c10::DeviceIndex index) {
  static const auto* all = [] {
    auto* allocators = new std::vector<std::unique_ptr<NeuronAllocator>>();
    for (int i = -1; i < kMaxDevices; ++i) {
      allocators->push_back(std::make_unique<NeuronAllocator>(static_cast<c10::DeviceIndex>(i)));
    }
    return allocators;
  }();
  return (*all)[static_cast<size_t>(index + 1)].get();
}

void count_adopted(c10::DeviceIndex index, size_t nbytes) {
  Pool& pool = pools()[index];
  const std::lock_guard<std::mutex> lock(pool.lock);
  pool.allocations.increase(1);
  pool.allocated.increase(nbytes);
  pool.active.increase(1);
  pool.requested.increase(nbytes);
  pool.reserved.increase(nbytes);
}

void uncount_adopted(c10::DeviceIndex index, size_t nbytes) {
  Pool& pool = pools()[index];
  const std::lock_guard<std::mutex> lock(pool.lock);
  pool.allocations.decrease(1);
  pool.allocated.decrease(nbytes);
  pool.active.decrease(1);
  pool.requested.decrease(nbytes);
  pool.reserved.decrease(nbytes);
}

bool is_pinned(const void* pointer) {
  return PinnedAllocator::instance().contains(pointer);
}

c10::Allocator* pinned_allocator() {
  return &PinnedAllocator::instance();
}

void empty_cache() {
  for (auto& pool : pools()) {
    const std::lock_guard<std::mutex> lock(pool.lock);
    drop_cache(pool);
  }
}

} // namespace trnx
