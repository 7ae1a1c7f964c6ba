// Compiled kernels: how one is called, and the table that finds one by what it was compiled for.
#pragma once

#include "tracking.h"

#include <ATen/core/Tensor.h>
#include <ATen/core/stack.h>
#include <c10/core/ScalarType.h>
#include <c10/util/ArrayRef.h>
#include <c10/util/SmallVector.h>
#include <c10/util/flat_hash_map.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <shared_mutex>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

namespace trnx {

// A shape-generic kernel. `pointers`: outputs, then tensor inputs, then one value per scalar.
// `registers`: sizes, then strides in elements per operand (each family says which). Returns 0, or a
// status that becomes an error.
using KernelFunction = int32_t (*)(void* const* pointers, const int64_t* registers);
constexpr int32_t kIndexOutOfRange = 101; // a status: becomes an IndexError

// How an operand lies along the innermost dimension. Only this part of its strides is in the key.
enum class Layout : uint8_t {
  Contiguous, // stride 1
  Broadcast, // stride 0
  Strided, // anything else
};

inline Layout layout_of(int64_t stride) {
  return stride == 1 ? Layout::Contiguous : stride == 0 ? Layout::Broadcast : Layout::Strided;
}

struct OperandKey {
  std::string name;
  c10::ScalarType dtype;
  Layout layout;
};

struct ScalarKey {
  std::string name;
  c10::ScalarType dtype; // of the value in memory
};

// What a kernel is compiled for: handed to Python when the table has none yet.
struct KernelRequest {
  std::string family;
  std::string op;
  std::vector<OperandKey> outputs;
  std::vector<OperandKey> inputs;
  std::vector<ScalarKey> scalars;
  std::vector<std::pair<std::string, c10::IValue>> options; // arguments that are neither
  c10::ScalarType compute;
  std::vector<int64_t> ranks; // numbers of dimensions after collapsing; the family says of what
};

// Makes the kernel for a request: its address, or 0 when there is no device kernel for it.
using KernelMaker = std::function<uintptr_t(const KernelRequest&)>;

// The bytes that tell kernels of one operator apart.
class KeyBytes {
 public:
  void add(uint8_t byte) {
    bytes_.push_back(byte);
  }
  void add(c10::ScalarType dtype) {
    add(static_cast<uint8_t>(dtype));
  }
  void add(Layout layout) {
    add(static_cast<uint8_t>(layout));
  }
  void add(int64_t value) {
    const auto* bytes = reinterpret_cast<const uint8_t*>(&value);
    bytes_.append(bytes, bytes + sizeof value);
  }
  // A value of any kind an operator's option can have.
  void add(const c10::IValue& value);

  bool operator==(const KeyBytes& other) const {
    return bytes_ == other.bytes_;
  }
  size_t hash() const;

 private:
  c10::SmallVector<uint8_t, 48> bytes_;
};

struct KeyHash {
  size_t operator()(const KeyBytes& key) const {
    return key.hash();
  }
};

// Kernels of one operator. Looking up is lock-shared and allocates nothing.
class KernelTable {
 public:
  explicit KernelTable(KernelMaker maker) : maker_(std::move(maker)) {}

  // The kernel for `key`, nullptr if there is none. `request` describes the key; it is called, and
  // the maker after it, only at the first look-up of a key.
  template <typename Request>
  KernelFunction find(const KeyBytes& key, const Request& request) {
    {
      const std::shared_lock<std::shared_mutex> lock(lock_);
      const auto found = kernels_.find(key);
      if (C10_LIKELY(found != kernels_.end())) {
        return found->second;
      }
    }
    return make(key, request());
  }

 private:
  KernelFunction make(const KeyBytes& key, const KernelRequest& request);

  KernelMaker maker_;
  std::shared_mutex lock_;
  ska::flat_hash_map<KeyBytes, KernelFunction, KeyHash> kernels_;
};

class Recorder;
extern thread_local Recorder* active_recorder; // plan.h
void record_launch(
    KernelFunction kernel, c10::ArrayRef<void*> pointers, size_t scalars,
    c10::IntArrayRef registers);

// Calls a kernel; a status other than 0 is an error that names the operator. The last `scalars`
// pointers are numbers of up to 16 bytes that are gone after the call.
inline void call_kernel(
    KernelFunction kernel, c10::ArrayRef<void*> pointers, size_t scalars,
    c10::IntArrayRef registers, const std::string& op) {
  if (C10_UNLIKELY(active_recorder != nullptr)) {
    record_launch(kernel, pointers, scalars, registers);
  }
  const int32_t status = kernel(pointers.data(), registers.data());
  TORCH_CHECK_INDEX(status != kIndexOutOfRange, op, ": index out of range in self");
  TORCH_CHECK(
      status == 0, op, ": the device kernel stopped with status ", status,
      ". Run with TRNX_CHECK=1 for more.");
}

// The value of a number in the memory layout of a dtype, for a kernel's scalar operand.
struct ScalarValue {
  alignas(16) char bytes[16];
};
void store_number(const c10::Scalar& value, c10::ScalarType dtype, void* target);

// Registers `kernel` for an operator in place of the fallback.
void replace_kernel(const std::string& op, c10::KernelFunction kernel);

// Operator families. `op` is a full name with overload; `maker` is called at the first use of a key.
struct PointwiseOptions {
  // Arguments whose dtypes decide the compute dtype; empty: all tensor inputs.
  std::vector<std::string> promote;
  bool converts = false; // results may have any dtype, as those of a copy
  bool integers_to_float = false; // compute (and return) float for integer and bool inputs
  // Dtype of a fresh output: Undefined means the compute dtype.
  c10::ScalarType output = c10::ScalarType::Undefined;
};
void register_pointwise(const std::string& op, PointwiseOptions options, KernelMaker maker);

enum class ReductionOutput : uint8_t { Same, Sum, Float, Bool, Int64 };
struct ReductionOptions {
  std::vector<ReductionOutput> outputs; // one rule per output
  std::optional<double> empty; // what reducing no element gives
  bool ordered = false; // reduced dimensions keep the order of the argument (index results)
};
void register_reduction(const std::string& op, ReductionOptions options, KernelMaker maker);

void register_matmul(const std::string& op, KernelMaker maker);

void register_rowwise(const std::string& op, KernelMaker maker);

// Runs an operator in Python: takes its arguments from the stack and pushes its results; false if
// Python has no device kernel for them, and then the stack is as it was.
using PythonOperator =
    std::function<bool(const c10::OperatorHandle& op, torch::jit::Stack* stack)>;
void register_program(const std::string& op, PythonOperator function);
// Calls that ran in Python, and calls that repeated a plan, per operator.
std::vector<std::tuple<std::string, int64_t, int64_t>> program_counts();

} // namespace trnx
