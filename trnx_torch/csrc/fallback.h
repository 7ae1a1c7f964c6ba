// Runs an operator that has no device kernel with torch's CPU kernel, on the same memory.
#pragma once

#include "tracking.h"

#include <ATen/core/Tensor.h>
#include <ATen/core/stack.h>

#include <string>

namespace trnx {

// Boxed kernel: aliases neuron arguments as cpu tensors, calls the CPU kernel, maps results back.
// Counts the call; rejects mixed devices, since the CPU kernel could not tell any more.
void cpu_fallback(
    const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack);

// The same without counting: for operators that only move or describe data.
void cpu_uncounted(
    const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack);

// What an operator does when it has no device kernel for its arguments: the CPU fallback, or, if
// torch builds the operator from others on every device, that.
void without_kernel(
    const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack);

// Raises the one sentence about tensors of two devices meeting in `op`.
[[noreturn]] void raise_mixed_devices(
    const std::string& op, const std::string& first_name, c10::Device first,
    const std::string& second_name, c10::Device second);

// Registers the fallback: for the whole backend, and directly on every operator for which torch
// would otherwise pick a composite kernel although a CPU kernel exists.
void register_fallback();

// Takes the directly registered fallback of an operator away, so that another kernel can be
// registered without an override warning. No-op when there is none.
void release_fallback(const std::string& name);

} // namespace trnx
