#include "storage_ops.h"

#include "alias.h"
#include "allocator.h"
#include "device.h"
#include "fallback.h"
#include "launch.h"
#include "movement.h"
#include "plan.h"
#include "tracking.h"

#include <ATen/EmptyTensor.h>
#include <ATen/native/Resize.h>
#include <ATen/ops/_local_scalar_dense_native.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/alias_native.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/copy_native.h>
#include <ATen/ops/resize_native.h>
#include <ATen/ops/set_native.h>
#include <ATen/ops/unfold_native.h>
#include <ATen/ops/view_as_complex_native.h>
#include <ATen/ops/view_as_real_native.h>
#include <ATen/ops/view_native.h>
#include <torch/library.h>

#include <array>
#include <cstring>
#include <optional>

namespace trnx {
namespace {

using at::IntArrayRef;
using at::Tensor;
using c10::ScalarType;
using std::optional;

constexpr c10::DispatchKeySet kKeys(c10::DispatchKey::PrivateUse1);

c10::DeviceIndex target_device(const optional<c10::Layout>& layout,
                               const optional<c10::Device>& device, const optional<bool>& pinned) {
  TORCH_CHECK_NOT_IMPLEMENTED(
      !layout.has_value() || *layout == c10::kStrided, "Device neuron has strided tensors only, not ",
      layout.value_or(c10::kStrided), ". Use layout=torch.strided.");
  TORCH_CHECK(
      !pinned.value_or(false), "Only cpu tensors can be pinned. Leave pin_memory out for a tensor on "
      "neuron.");
  return resolve_device(device.has_value() ? device->index() : c10::DeviceIndex{-1});
}

Tensor empty(
    IntArrayRef size, optional<ScalarType> dtype, optional<c10::Layout> layout,
    optional<c10::Device> device, optional<bool> pinned, optional<c10::MemoryFormat> format) {
  const auto index = target_device(layout, device, pinned);
  return at::detail::empty_generic(
      size, device_allocator(index), kKeys, c10::dtype_or_default(dtype), format);
}

Tensor empty_strided(
    IntArrayRef size, IntArrayRef stride, optional<ScalarType> dtype, optional<c10::Layout> layout,
    optional<c10::Device> device, optional<bool> pinned) {
  const auto index = target_device(layout, device, pinned);
  return at::detail::empty_strided_generic(
      size, stride, device_allocator(index), kKeys, c10::dtype_or_default(dtype));
}

// ---- fills -----------------------------------------------------------------------------------

constexpr size_t kLargestElement = 16; // complex128

template <typename Word>
void fill_words(char* data, int64_t count, int64_t stride, const void* value) {
  Word word;
  std::memcpy(&word, value, sizeof(Word));
  auto* target = reinterpret_cast<Word*>(data);
  for (int64_t i = 0; i < count; ++i) {
    target[i * stride] = word;
  }
}

struct Wide {
  uint64_t low, high;
};

void fill_row(char* data, int64_t count, int64_t stride, size_t size, const void* value) {
  switch (size) {
    case 1:
      return fill_words<uint8_t>(data, count, stride, value);
    case 2:
      return fill_words<uint16_t>(data, count, stride, value);
    case 4:
      return fill_words<uint32_t>(data, count, stride, value);
    case 8:
      return fill_words<uint64_t>(data, count, stride, value);
    default:
      return fill_words<Wide>(data, count, stride, value);
  }
}

void fill_strided(
    char* data, IntArrayRef sizes, IntArrayRef strides, size_t size, const void* value) {
  if (sizes.size() <= 1) {
    const int64_t count = sizes.empty() ? 1 : sizes[0];
    fill_row(data, count, sizes.empty() ? 1 : strides[0], size, value);
    return;
  }
  for (int64_t i = 0; i < sizes[0]; ++i) {
    fill_strided(
        data + i * strides[0] * static_cast<int64_t>(size), sizes.slice(1), strides.slice(1), size,
        value);
  }
}

// The fill as a kernel, so that a plan can repeat it. Pointers: elements, value. Registers: bytes per
// element, number of dimensions, sizes, strides.
int32_t fill_kernel(void* const* pointers, const int64_t* registers) {
  const auto size = static_cast<size_t>(registers[0]);
  const auto rank = static_cast<size_t>(registers[1]);
  fill_strided(
      static_cast<char*>(pointers[0]), IntArrayRef(registers + 2, rank),
      IntArrayRef(registers + 2 + rank, rank), size, pointers[1]);
  return 0;
}

OpCounts& counts_of(const char* name) {
  return op_counts(name);
}

Tensor& fill_with(Tensor& self, const c10::Scalar& value, OpCounts& counts) {
  count_executed(counts);
  if (self.numel() == 0) {
    return self;
  }
  alignas(16) std::array<char, kLargestElement> bytes{};
  store_number(self.is_neg() ? -value : value, self.scalar_type(), bytes.data());
  c10::SmallVector<int64_t, 12> registers{static_cast<int64_t>(self.element_size())};
  if (self.is_non_overlapping_and_dense()) {
    registers.insert(registers.end(), {1, self.numel(), 1});
  } else {
    registers.push_back(self.dim());
    registers.append(self.sizes().begin(), self.sizes().end());
    registers.append(self.strides().begin(), self.strides().end());
  }
  call_kernel(&fill_kernel, {self.mutable_data_ptr(), bytes.data()}, 1, registers, counts.name);
  return self;
}

Tensor& fill_scalar(Tensor& self, const c10::Scalar& value) {
  static auto& counts = counts_of("aten::fill_.Scalar");
  return fill_with(self, value, counts);
}

Tensor& fill_tensor(Tensor& self, const Tensor& value) {
  static auto& counts = counts_of("aten::fill_.Tensor");
  TORCH_CHECK(
      value.dim() == 0, "fill_ takes a number or a 0-dimensional tensor, not one of ", value.dim(),
      " dimensions. Use copy_ for other shapes.");
  return fill_with(self, value.item(), counts);
}

Tensor& zero(Tensor& self) {
  static auto& counts = counts_of("aten::zero_");
  return fill_with(self, 0, counts);
}

// ---- copies ----------------------------------------------------------------------------------

Tensor host_view(const Tensor& tensor) {
  return tensor.device().type() == kNeuron ? as_cpu(tensor) : tensor;
}

Tensor copy_from(const Tensor& self, const Tensor& target, bool /*non_blocking*/) {
  static auto& counts = counts_of("aten::_copy_from");
  count_executed(counts);
  if (self.sizes() == target.sizes()) {
    copy_values(self, target);
  } else {
    copy_values(self.expand_as(target), target);
  }
  return target;
}

Tensor copy_from_and_resize(const Tensor& self, const Tensor& target) {
  target.resize_(self.sizes());
  return copy_from(self, target, false);
}

c10::Scalar local_scalar(const Tensor& self) {
  refuse_plan("it reads a value");
  return at::native::_local_scalar_dense_cpu(as_cpu(self));
}

// ---- storage ---------------------------------------------------------------------------------

const Tensor& resize(const Tensor& self, IntArrayRef size, optional<c10::MemoryFormat> format) {
  return at::native::resize_(self, size, format);
}

Tensor& set_empty(Tensor& self) {
  auto storage = c10::Storage(
      c10::Storage::use_byte_size_t(), 0, device_allocator(self.device().index()), true);
  return at::native::set_storage_cpu_(self, std::move(storage), 0, {0}, {});
}

Tensor& set_storage(Tensor& self, c10::Storage source) {
  const auto count = static_cast<int64_t>(source.nbytes() / self.element_size());
  return at::native::set_storage_cpu_(self, std::move(source), 0, {count}, {});
}

// Lets `parameter.data = parameter.to("neuron")` swap the implementation in place.
bool has_compatible_shallow_copy_type(const Tensor& self, const Tensor& from) {
  const auto dense = [](const Tensor& tensor) {
    const auto type = tensor.device().type();
    return tensor.layout() == c10::kStrided && (type == kNeuron || type == c10::DeviceType::CPU);
  };
  return dense(self) && dense(from);
}

// torch's own version has no memory behind it, which a kernel reading it would not survive.
Tensor efficient_zero_tensor(
    IntArrayRef size, optional<ScalarType> dtype, optional<c10::Layout> layout,
    optional<c10::Device> device, optional<bool> pinned) {
  auto zeros = empty(size, dtype, layout, device, pinned, std::nullopt);
  return zero(zeros);
}

void record_stream(Tensor&, c10::Stream) {}

// Dtypes that elementwise kernels convert between.
bool computes_with(const Tensor& tensor) {
  switch (tensor.scalar_type()) {
    case ScalarType::Bool:
    case ScalarType::Byte:
    case ScalarType::Char:
    case ScalarType::Short:
    case ScalarType::Int:
    case ScalarType::Long:
    case ScalarType::Half:
    case ScalarType::BFloat16:
    case ScalarType::Float:
      return !tensor.is_neg();
    default:
      return false;
  }
}

void convert_on_device(const Tensor& source, const Tensor& target) {
  static const auto copy = c10::Dispatcher::singleton()
                               .findSchemaOrThrow("trnx::copy", "out")
                               .typed<Tensor&(const Tensor&, Tensor&)>();
  auto written = target;
  copy.redispatch(c10::DispatchKeySet(c10::DispatchKey::PrivateUse1), source, written);
}

Tensor& copy_on_host(const Tensor& source, Tensor& target) {
  return at::native::copy_(target, source, false);
}

} // namespace

void copy_values(const Tensor& source, const Tensor& target) {
  if (target.numel() == 0) {
    return;
  }
  const bool same = source.scalar_type() == target.scalar_type() &&
      source.is_conj() == target.is_conj() && source.is_neg() == target.is_neg();
  if (source.device() == target.device() && source.device().type() == kNeuron) {
    if (same) {
      return move_elements(source, target);
    }
    if (computes_with(source) && computes_with(target)) {
      return convert_on_device(source, target);
    }
  }
  refuse_plan("it copies from or to the host");
  if (same && source.strides() == target.strides() && source.is_non_overlapping_and_dense()) {
    std::memmove(target.mutable_data_ptr(), source.const_data_ptr(), target.nbytes());
    return;
  }
  auto host = host_view(target);
  at::native::copy_(host, host_view(source), false);
}

void register_storage_ops() {
  using c10::DispatchKey;
  // A converting copy as an elementwise operator: its kernels are made like all others.
  static auto* own = new torch::Library(
      torch::Library::FRAGMENT, "trnx", std::nullopt, __FILE__, __LINE__);
  own->def("copy.out(Tensor self, *, Tensor(a!) out) -> Tensor(a!)");
  own->impl("copy.out", c10::DispatchKey::CPU, torch::CppFunction(&copy_on_host));
  static auto* library =
      new torch::Library(torch::Library::IMPL, "aten", DispatchKey::PrivateUse1, __FILE__, __LINE__);
  auto& m = *library;
  m.impl("empty.memory_format", &empty);
  m.impl("empty_strided", &empty_strided);
  m.impl("_efficientzerotensor", &efficient_zero_tensor);
  m.impl("as_strided", &at::native::as_strided_tensorimpl);
  m.impl("view", &at::native::view);
  m.impl("_reshape_alias", &at::native::_reshape_alias);
  m.impl("unfold", &at::native::unfold);
  m.impl("alias", &at::native::alias);
  m.impl("view_as_real", &at::native::view_as_real);
  m.impl("view_as_complex", &at::native::view_as_complex);
  m.impl("resize_", &resize);
  m.impl("set_", &set_empty);
  m.impl("set_.source_Storage", &set_storage);
  m.impl("set_.source_Storage_storage_offset", &at::native::set_storage_cpu_);
  m.impl("set_.source_Tensor", &at::native::set_tensor_);
  m.impl("_copy_from", &copy_from);
  m.impl("_copy_from_and_resize", &copy_from_and_resize);
  m.impl("_local_scalar_dense", &local_scalar);
  m.impl("fill_.Scalar", &fill_scalar);
  m.impl("fill_.Tensor", &fill_tensor);
  m.impl("zero_", &zero);
  m.impl("record_stream", &record_stream);
  m.impl("_has_compatible_shallow_copy_type", &has_compatible_shallow_copy_type);
  // These read state or memory but compute nothing on it.
  for (const char* name : {"is_set_to", "equal"}) {
    m.impl(name, torch::CppFunction::makeFromBoxedFunction<&cpu_uncounted>());
  }

  // A copy is where a lazy conjugate or negation becomes real; resolving it first would call itself.
  for (const auto key : {DispatchKey::Conjugate, DispatchKey::Negative}) {
    auto* lazy = new torch::Library(torch::Library::IMPL, "aten", key, __FILE__, __LINE__);
    lazy->impl("_copy_from", torch::CppFunction::makeFallthrough());
    lazy->impl("_copy_from_and_resize", torch::CppFunction::makeFallthrough());
  }
}

} // namespace trnx
