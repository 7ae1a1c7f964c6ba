// Random state of a device: a (seed, offset) pair for counter-based (Philox) random numbers.
#pragma once

#include "device.h"

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>
#include <c10/core/GeneratorImpl.h>

namespace trnx {

// State is 16 bytes: seed, then offset, both little-endian 64-bit. Not thread-safe: hold `mutex_`.
class NeuronGenerator final : public c10::GeneratorImpl {
 public:
  explicit NeuronGenerator(c10::DeviceIndex index);

  void set_current_seed(uint64_t seed) override;
  uint64_t current_seed() const override;
  uint64_t seed() override;
  void set_offset(uint64_t offset) override;
  uint64_t get_offset() const override;
  void set_state(const c10::TensorImpl& state) override;
  c10::intrusive_ptr<c10::TensorImpl> get_state() const override;
  void graphsafe_set_state(const c10::intrusive_ptr<c10::GeneratorImpl>& state) override;
  c10::intrusive_ptr<c10::GeneratorImpl> graphsafe_get_state() const override;

  // Reserves `count` random numbers: returns the offset of the first and moves past them, in steps
  // of four because one Philox block makes four 32-bit numbers.
  uint64_t reserve(uint64_t count);

  static c10::DeviceType device_type() {
    return kNeuron;
  }

 private:
  NeuronGenerator* clone_impl() const override;

  uint64_t seed_ = c10::default_rng_seed_val;
  uint64_t offset_ = 0;
};

// The default generator of a device.
const at::Generator& default_generator(c10::DeviceIndex index);
at::Generator new_generator(c10::DeviceIndex index);
// `generator` as a NeuronGenerator, the device's default when it is undefined.
NeuronGenerator* neuron_generator(const at::Generator& generator, c10::DeviceIndex index);

// Reserves `count` numbers of a generator (the device's default when undefined) and writes where they
// begin to `start`, uint32[4]: low and high word of the seed, of the first block's number. A plan
// that draws from the default generator reserves anew at every call.
void draw_start(const at::Tensor& start, const at::Generator& generator, uint64_t count);

// A CPU generator whose stream of numbers is a function of (seed, offset) alone.
at::Generator host_generator(uint64_t seed, uint64_t offset);

} // namespace trnx
