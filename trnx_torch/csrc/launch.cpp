#include "launch.h"

#include "fallback.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <cstring>
#include <map>
#include <mutex>

namespace trnx {
namespace {

template <typename T>
void add_plain(KeyBytes& key, const T& value) {
  const auto* bytes = reinterpret_cast<const uint8_t*>(&value);
  for (size_t i = 0; i < sizeof(T); ++i) {
    key.add(bytes[i]);
  }
}

template <typename T>
void store(const c10::Scalar& value, void* target) {
  const T converted = value.to<T>();
  std::memcpy(target, &converted, sizeof(T));
}

} // namespace

void KeyBytes::add(const c10::IValue& value) {
  if (value.isNone()) {
    add(uint8_t{0});
  } else if (value.isBool()) {
    add(static_cast<uint8_t>(value.toBool() ? 2 : 1));
  } else if (value.isInt()) {
    add(uint8_t{3});
    add_plain(*this, value.toInt());
  } else if (value.isDouble()) {
    add(uint8_t{4});
    add_plain(*this, value.toDouble());
  } else if (value.isString()) {
    add(uint8_t{5});
    const auto& text = value.toStringRef();
    add_plain(*this, text.size());
    bytes_.append(text.begin(), text.end());
  } else if (value.isIntList()) {
    add(uint8_t{6});
    const auto list = value.toIntVector();
    add_plain(*this, list.size());
    for (const auto item : list) {
      add_plain(*this, item);
    }
  } else if (value.isDoubleList()) {
    add(uint8_t{7});
    const auto list = value.toDoubleVector();
    add_plain(*this, list.size());
    for (const auto item : list) {
      add_plain(*this, item);
    }
  } else if (value.isBoolList()) {
    add(uint8_t{8});
    const auto list = value.toBoolList();
    add_plain(*this, list.size());
    for (size_t i = 0; i < list.size(); ++i) {
      add(static_cast<uint8_t>(list.get(i) ? 1 : 0));
    }
  } else if (value.isDevice()) {
    add(uint8_t{9});
    add(static_cast<uint8_t>(value.toDevice().type()));
    add(static_cast<uint8_t>(value.toDevice().index()));
  } else if (value.isComplexDouble()) {
    add(uint8_t{10});
    add_plain(*this, value.toComplexDouble());
  } else if (value.isList()) {
    add(uint8_t{11});
    const auto list = value.toListRef();
    add_plain(*this, list.size());
    for (const auto& item : list) {
      add(item);
    }
  } else {
    TORCH_CHECK_NOT_IMPLEMENTED(
        false, "A device kernel cannot take an option of kind ", value.tagKind(),
        ". Register the operator in Python instead.");
  }
}

size_t KeyBytes::hash() const {
  uint64_t state = 0xCBF29CE484222325ull; // FNV-1a, eight bytes at a time
  size_t i = 0;
  for (; i + 8 <= bytes_.size(); i += 8) {
    uint64_t word = 0;
    std::memcpy(&word, bytes_.data() + i, 8);
    state = (state ^ word) * 0x9E3779B97F4A7C15ull;
    state ^= state >> 29;
  }
  for (; i < bytes_.size(); ++i) {
    state = (state ^ bytes_[i]) * 0x100000001B3ull;
  }
  return static_cast<size_t>(state ^ (state >> 32));
}

KernelFunction KernelTable::make(const KeyBytes& key, const KernelRequest& request) {
  const auto address = maker_(request);
  const auto kernel = reinterpret_cast<KernelFunction>(address);
  const std::unique_lock<std::shared_mutex> lock(lock_);
  return kernels_.emplace(key, kernel).first->second;
}

void store_number(const c10::Scalar& value, c10::ScalarType dtype, void* target) {
  using c10::ScalarType;
  switch (dtype) {
#define TRNX_CASE(name)   \
  case ScalarType::name:  \
    return store<c10::impl::ScalarTypeToCPPTypeT<ScalarType::name>>(value, target);
    TRNX_CASE(Bool)
    TRNX_CASE(Byte)
    TRNX_CASE(Char)
    TRNX_CASE(Short)
    TRNX_CASE(Int)
    TRNX_CASE(Long)
    TRNX_CASE(UInt16)
    TRNX_CASE(UInt32)
    TRNX_CASE(UInt64)
    TRNX_CASE(Half)
    TRNX_CASE(BFloat16)
    TRNX_CASE(Float)
    TRNX_CASE(Double)
    TRNX_CASE(ComplexHalf)
    TRNX_CASE(ComplexFloat)
    TRNX_CASE(ComplexDouble)
    TRNX_CASE(Float8_e4m3fn)
    TRNX_CASE(Float8_e4m3fnuz)
    TRNX_CASE(Float8_e5m2)
    TRNX_CASE(Float8_e5m2fnuz)
#undef TRNX_CASE
    default:
      TORCH_CHECK_NOT_IMPLEMENTED(
          false, "Device neuron has no numbers of dtype ", dtype, ". Use another dtype.");
  }
}

void replace_kernel(const std::string& op, c10::KernelFunction kernel) {
  static std::mutex lock;
  // Leaked: at exit the dispatcher may already be gone.
  static auto* handles = new std::map<std::string, c10::RegistrationHandleRAII>();
  const std::lock_guard<std::mutex> guard(lock);
  release_fallback(op);
  handles->erase(op);
  const auto dot = op.find('.', op.find("::"));
  const c10::OperatorName name(
      op.substr(0, dot), dot == std::string::npos ? "" : op.substr(dot + 1));
  handles->emplace(
      op,
      c10::Dispatcher::singleton().registerImpl(
          name, c10::DispatchKey::PrivateUse1, std::move(kernel), std::nullopt, nullptr,
          "trnx_torch device kernel"));
}

} // namespace trnx
