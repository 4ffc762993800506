// Element types of tensors, spelled as in safetensors headers.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#include "base/float_types.h"

namespace tessera {

enum class DType : uint8_t {
  kBF16,
  kF16,
  kF32,
  kF64,
  kI64,
  kI32,
  kI16,
  kI8,
  kU64,
  kU32,
  kU16,
  kU8,
  kBool,
  kF8E4M3,
  kF8E5M2
};

int64_t dtype_bytes(DType dtype);
std::string_view dtype_name(DType dtype);                 // "BF16"
std::optional<DType> parse_dtype(std::string_view name);  // nullopt if unknown

template <typename T>
struct DTypeOf;
template <>
struct DTypeOf<bf16> {
  static constexpr DType value = DType::kBF16;
};
template <>
struct DTypeOf<f16> {
  static constexpr DType value = DType::kF16;
};
template <>
struct DTypeOf<float> {
  static constexpr DType value = DType::kF32;
};
template <>
struct DTypeOf<int32_t> {
  static constexpr DType value = DType::kI32;
};
template <>
struct DTypeOf<int64_t> {
  static constexpr DType value = DType::kI64;
};
template <>
struct DTypeOf<int16_t> {
  static constexpr DType value = DType::kI16;
};
template <>
struct DTypeOf<uint16_t> {
  static constexpr DType value = DType::kU16;
};

}  // namespace tessera
