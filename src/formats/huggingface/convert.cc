#include "formats/huggingface/convert.h"

#include <bit>
#include <cmath>
#include <cstring>
#include <type_traits>
#include <utility>

#include "base/error.h"

namespace tessera {
namespace {

static_assert(std::endian::native == std::endian::little, "files hold little-endian values");

// Calls visit(T{}) with the element type; false if `dtype` is not of that kind.
template <typename Visitor>
bool visit_float(DType dtype, Visitor&& visit) {
  switch (dtype) {
    case DType::kBF16:
      visit(bf16{});
      return true;
    case DType::kF16:
      visit(f16{});
      return true;
    case DType::kF32:
      visit(float{});
      return true;
    case DType::kF64:
      visit(double{});
      return true;
    default:
      return false;
  }
}

template <typename Visitor>
bool visit_integer(DType dtype, Visitor&& visit) {
  switch (dtype) {
    case DType::kI64:
      visit(int64_t{});
      return true;
    case DType::kI32:
      visit(int32_t{});
      return true;
    case DType::kI16:
      visit(int16_t{});
      return true;
    case DType::kI8:
      visit(int8_t{});
      return true;
    case DType::kU64:
      visit(uint64_t{});
      return true;
    case DType::kU32:
      visit(uint32_t{});
      return true;
    case DType::kU16:
      visit(uint16_t{});
      return true;
    case DType::kU8:
    case DType::kBool:
      visit(uint8_t{});
      return true;
    default:
      return false;
  }
}

bool is_float(DType dtype) {
  return visit_float(dtype, [](auto) {});
}

bool is_integer(DType dtype) {
  return visit_integer(dtype, [](auto) {});
}

// Rounds to float32 with the last bit set if inexact (round to odd), so that rounding again to bf16 or f16
// gives the same as rounding the double once.
float round_to_odd(double value) {
  const auto nearest = static_cast<float>(value);
  if (static_cast<double>(nearest) == value || std::isnan(value)) return nearest;
  uint32_t bits = std::bit_cast<uint32_t>(nearest);
  if (std::abs(static_cast<double>(nearest)) > std::abs(value)) --bits;  // truncate towards zero
  return std::bit_cast<float>(bits | 1u);
}

template <typename To, typename From>
To cast_float(From value) {
  if constexpr (std::is_same_v<To, From>) {
    return value;
  } else if constexpr (std::is_same_v<To, double>) {
    return to_float(value);
  } else if constexpr (!std::is_same_v<From, double>) {
    return from_float<To>(to_float(value));
  } else if constexpr (std::is_same_v<To, float>) {
    return static_cast<float>(value);
  } else {
    return from_float<To>(round_to_odd(value));
  }
}

template <typename From, typename To>
void convert_floats(const std::byte* source, std::byte* destination, int64_t count) {
  const From* from = reinterpret_cast<const From*>(source);
  To* to = reinterpret_cast<To*>(destination);
  for (int64_t i = 0; i < count; ++i) to[i] = cast_float<To>(from[i]);
}

template <typename From, typename To>
std::optional<int64_t> convert_integers(const std::byte* source, std::byte* destination, int64_t count) {
  const From* from = reinterpret_cast<const From*>(source);
  To* to = reinterpret_cast<To*>(destination);
  for (int64_t i = 0; i < count; ++i) {
    if (!std::in_range<To>(from[i])) return i;
    to[i] = static_cast<To>(from[i]);
  }
  return std::nullopt;
}

}  // namespace

bool can_convert(DType from, DType to) {
  return from == to || (is_float(from) && is_float(to)) || (is_integer(from) && is_integer(to));
}

std::optional<int64_t> convert_elements(DType from, const std::byte* source, DType to, std::byte* destination,
                                        int64_t count) {
  TESSERA_CHECK(can_convert(from, to), "{} to {}", dtype_name(from), dtype_name(to));
  if (count == 0) return std::nullopt;
  if (from == to) {
    std::memcpy(destination, source, static_cast<size_t>(count * dtype_bytes(from)));
    return std::nullopt;
  }
  std::optional<int64_t> unfit;
  visit_float(from, [&](auto source_type) {
    visit_float(to, [&](auto destination_type) {
      convert_floats<decltype(source_type), decltype(destination_type)>(source, destination, count);
    });
  });
  visit_integer(from, [&](auto source_type) {
    visit_integer(to, [&](auto destination_type) {
      unfit = convert_integers<decltype(source_type), decltype(destination_type)>(source, destination, count);
    });
  });
  return unfit;
}

std::string integer_element(DType dtype, const std::byte* source, int64_t index) {
  std::string text;
  const bool known = visit_integer(dtype, [&](auto type) {
    text = std::to_string(reinterpret_cast<const decltype(type)*>(source)[index]);
  });
  TESSERA_CHECK(known, "{}", dtype_name(dtype));
  return text;
}

}  // namespace tessera
