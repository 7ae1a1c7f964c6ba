// Plans: what an operator did on the device at its first call, to be done again without Python.
//
// An operator that is built from others (a layer norm from reductions and products, a cat from
// copies) runs its Python function once per signature: dtypes, sizes, strides and numbers of its
// arguments. Meanwhile a recorder notes every kernel launch and every block of memory. The plan is
// that list of launches over arguments, results and one arena of temporaries.
#pragma once

#include "launch.h"

#include <ATen/core/Tensor.h>
#include <ATen/core/stack.h>

#include <map>
#include <memory>
#include <string>
#include <vector>

namespace trnx {

// Where a pointer of a launch leads: to an argument's data, into memory that was allocated
// meanwhile, or to a number. Offsets are bytes.
enum class Origin : uint8_t { Argument, Allocation, Constant };
struct Place {
  Origin origin;
  uint32_t index;
  int64_t offset;
};

struct Step {
  KernelFunction kernel;
  uint32_t pointers; // how many places and registers it takes, in order
  uint32_t registers;
};

struct Allocation {
  size_t bytes;
  int64_t arena_offset; // -1: a result lies in it, so it is a block of its own
};

struct Result {
  enum class Kind : uint8_t { Undefined, Argument, Fresh } kind;
  int64_t index; // of the argument, or of the allocation (-1: no elements)
  c10::ScalarType dtype;
  c10::SmallVector<int64_t, 5> sizes, strides;
  int64_t storage_offset; // elements
};

struct Plan {
  std::vector<Step> steps;
  std::vector<Place> places;
  std::vector<int64_t> registers;
  std::vector<ScalarValue> constants;
  std::vector<Allocation> allocations;
  size_t arena_bytes = 0;
  c10::DeviceIndex device = 0;
  std::vector<Result> results;
  std::vector<int64_t> lengths; // per value the operator returns: -1 a tensor, else a list of so many

  // Runs the launches on arguments of the recorded signature and pushes the results.
  void replay(const std::string& op, c10::ArrayRef<const at::Tensor*> arguments,
              torch::jit::Stack* stack) const;
};

using Tensors = c10::SmallVector<const at::Tensor*, 8>;

// Records on this thread from construction to destruction; at most one at a time.
class Recorder {
 public:
  explicit Recorder(const Tensors& arguments);
  ~Recorder();
  Recorder(const Recorder&) = delete;
  Recorder& operator=(const Recorder&) = delete;

  // The plan; nullptr if something happened that a list of launches cannot repeat.
  std::unique_ptr<Plan> finish(c10::ArrayRef<c10::IValue> returned, c10::DeviceIndex device);
  const char* refusal() const {
    return refusal_;
  }

  void launched(
      KernelFunction kernel, c10::ArrayRef<void*> pointers, size_t scalars,
      c10::IntArrayRef registers);
  void allocated(const void* data, size_t bytes);
  void freed(const void* data);
  void refuse(const char* reason) {
    refusal_ = refusal_ == nullptr ? reason : refusal_;
  }

 private:
  struct Argument {
    const at::Tensor* tensor;
    uintptr_t data, begin, end; // its elements' address; its storage
    c10::SmallVector<int64_t, 5> sizes;
  };
  struct Event {
    size_t allocation;
    bool freed;
  };
  bool locate(uintptr_t address, Place& place) const;
  void plan_arena();
  bool add_result(const at::Tensor& tensor);

  std::vector<Argument> arguments_;
  std::map<uintptr_t, size_t> live_; // start of a block -> its allocation
  std::vector<Event> events_;
  std::unique_ptr<Plan> plan_;
  const char* refusal_ = nullptr;
};

// The recorder of this thread, if it records.
extern thread_local Recorder* active_recorder;

// Notes, while recording, that something was done that a plan cannot repeat.
inline void refuse_plan(const char* reason) {
  if (C10_UNLIKELY(active_recorder != nullptr)) {
    active_recorder->refuse(reason);
  }
}

} // namespace trnx
