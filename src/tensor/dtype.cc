#include "tensor/dtype.h"

#include <array>

#include "base/error.h"

namespace tessera {
namespace {

struct DTypeInfo {
  DType dtype;
  std::string_view name;
  int64_t bytes;
};

constexpr std::array kDTypes = {
    DTypeInfo{DType::kBF16, "BF16", 2},      DTypeInfo{DType::kF16, "F16", 2},
    DTypeInfo{DType::kF32, "F32", 4},        DTypeInfo{DType::kF64, "F64", 8},
    DTypeInfo{DType::kI64, "I64", 8},        DTypeInfo{DType::kI32, "I32", 4},
    DTypeInfo{DType::kI16, "I16", 2},        DTypeInfo{DType::kI8, "I8", 1},
    DTypeInfo{DType::kU64, "U64", 8},        DTypeInfo{DType::kU32, "U32", 4},
    DTypeInfo{DType::kU16, "U16", 2},        DTypeInfo{DType::kU8, "U8", 1},
    DTypeInfo{DType::kBool, "BOOL", 1},      DTypeInfo{DType::kF8E4M3, "F8_E4M3", 1},
    DTypeInfo{DType::kF8E5M2, "F8_E5M2", 1},
};

const DTypeInfo& info(DType dtype) {
  const auto& entry = kDTypes[static_cast<size_t>(dtype)];
  TESSERA_CHECK(entry.dtype == dtype);
  return entry;
}

}  // namespace

int64_t dtype_bytes(DType dtype) { return info(dtype).bytes; }

std::string_view dtype_name(DType dtype) { return info(dtype).name; }

std::optional<DType> parse_dtype(std::string_view name) {
  for (const DTypeInfo& entry : kDTypes) {
    if (entry.name == name) return entry.dtype;
  }
  return std::nullopt;
}

}  // namespace tessera
