#include "generator.h"

#include "plan.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/EmptyTensor.h>
#include <ATen/core/Tensor.h>

#include <array>
#include <cstring>
#include <mutex>

namespace trnx {
namespace {

constexpr int64_t kStateBytes = 16;
constexpr uint64_t kBlock = 4;

// SplitMix64: spreads neighbouring seeds and offsets over all 64 bits.
uint64_t mix(uint64_t x) {
  x += 0x9E3779B97F4A7C15ull;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9ull;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBull;
  return x ^ (x >> 31);
}

} // namespace

NeuronGenerator::NeuronGenerator(c10::DeviceIndex index)
    : GeneratorImpl(
          c10::Device(kNeuron, index),
          c10::DispatchKeySet(c10::DispatchKey::PrivateUse1)) {}

void NeuronGenerator::set_current_seed(uint64_t seed) {
  seed_ = seed;
  offset_ = 0;
}

uint64_t NeuronGenerator::current_seed() const {
  return seed_;
}

uint64_t NeuronGenerator::seed() {
  const auto fresh = c10::detail::getNonDeterministicRandom();
  set_current_seed(fresh);
  return fresh;
}

void NeuronGenerator::set_offset(uint64_t offset) {
  TORCH_CHECK_VALUE(
      offset % kBlock == 0, "A generator's offset must be a multiple of 4, not ", offset,
      ". Round it up to one.");
  offset_ = offset;
}

uint64_t NeuronGenerator::get_offset() const {
  return offset_;
}

uint64_t NeuronGenerator::reserve(uint64_t count) {
  const auto first = offset_;
  offset_ += (count + kBlock - 1) / kBlock * kBlock;
  return first;
}

void NeuronGenerator::set_state(const c10::TensorImpl& state) {
  TORCH_CHECK_VALUE(
      state.device_type() == c10::DeviceType::CPU && state.numel() == kStateBytes &&
          state.dtype() == c10::ScalarType::Byte && state.is_contiguous(),
      "The state of a neuron generator is a contiguous uint8 CPU tensor of ", kStateBytes,
      " bytes. Pass what get_state() returned.");
  std::array<uint64_t, 2> words{};
  std::memcpy(words.data(), state.data(), kStateBytes);
  seed_ = words[0];
  set_offset(words[1]);
}

c10::intrusive_ptr<c10::TensorImpl> NeuronGenerator::get_state() const {
  auto state = at::detail::empty_cpu({kStateBytes}, c10::ScalarType::Byte);
  const std::array<uint64_t, 2> words{seed_, offset_};
  std::memcpy(state.mutable_data_ptr(), words.data(), kStateBytes);
  return state.getIntrusivePtr();
}

void NeuronGenerator::graphsafe_set_state(const c10::intrusive_ptr<c10::GeneratorImpl>& state) {
  const auto* other = dynamic_cast<NeuronGenerator*>(state.get());
  TORCH_CHECK_TYPE(
      other != nullptr, "This state is not of a neuron generator. Pass what "
      "graphsafe_get_state() returned.");
  seed_ = other->seed_;
  offset_ = other->offset_;
}

c10::intrusive_ptr<c10::GeneratorImpl> NeuronGenerator::graphsafe_get_state() const {
  return c10::intrusive_ptr<c10::GeneratorImpl>::reclaim(clone_impl());
}

NeuronGenerator* NeuronGenerator::clone_impl() const {
  auto* copy = new NeuronGenerator(device().index());
  copy->seed_ = seed_;
  copy->offset_ = offset_;
  return copy;
}

const at::Generator& default_generator(c10::DeviceIndex index) {
  static auto* const all = [] {
    auto* generators = new std::array<at::Generator, kMaxDevices>();
    for (int i = 0; i < kMaxDevices; ++i) {
      (*generators)[i] = at::make_generator<NeuronGenerator>(static_cast<c10::DeviceIndex>(i));
    }
    return generators;
  }();
  return (*all)[resolve_device(index)];
}

at::Generator new_generator(c10::DeviceIndex index) {
  return at::make_generator<NeuronGenerator>(resolve_device(index));
}

NeuronGenerator* neuron_generator(const at::Generator& generator, c10::DeviceIndex index) {
  const auto& chosen = generator.defined() ? generator : default_generator(index);
  TORCH_CHECK(
      chosen.device().type() == kNeuron && chosen.device().index() == resolve_device(index),
      "Expected a generator of neuron:", static_cast<int>(resolve_device(index)), " but got one of ",
      chosen.device(), ". Make it with torch.Generator(device=tensor.device).");
  return static_cast<NeuronGenerator*>(chosen.unsafeGetGeneratorImpl());
}

namespace {

void write_start(NeuronGenerator* generator, uint64_t count, void* target) {
  const std::lock_guard<std::mutex> lock(generator->mutex_);
  const uint64_t words[2] = {generator->current_seed(), generator->reserve(count) / kBlock};
  std::memcpy(target, words, sizeof words);
}

// Pointers: start. Registers: device, count.
int32_t draw_kernel(void* const* pointers, const int64_t* registers) {
  write_start(
      neuron_generator({}, static_cast<c10::DeviceIndex>(registers[0])),
      static_cast<uint64_t>(registers[1]), pointers[0]);
  return 0;
}

} // namespace

void draw_start(const at::Tensor& start, const at::Generator& generator, uint64_t count) {
  TORCH_CHECK_VALUE(
      start.is_contiguous() && start.nbytes() == sizeof(uint64_t) * 2,
      "The start of a random stream is 16 bytes of a contiguous tensor.");
  const auto device = start.device().index();
  if (generator.defined()) {
    refuse_plan("it draws from a generator of its own");
    return write_start(neuron_generator(generator, device), count, start.mutable_data_ptr());
  }
  call_kernel(
      &draw_kernel, {start.mutable_data_ptr()}, 0, {device, static_cast<int64_t>(count)}, "random");
}

at::Generator host_generator(uint64_t seed, uint64_t offset) {
  return at::detail::createCPUGenerator(mix(seed ^ mix(offset)));
}

} // namespace trnx
