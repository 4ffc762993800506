#include "formats/parquet/leaf_value.h"

#include <fmt/format.h>

#include <bit>
#include <cmath>
#include <string_view>

#include "base/text.h"

namespace tessera::parquet {
namespace {

// "" for the types that are read.
const char* unsupported_name(const SchemaElement& element) {
  switch (element.logical) {
    case LogicalType::kDecimal:
      return "DECIMAL";
    case LogicalType::kDate:
      return "DATE";
    case LogicalType::kTime:
      return "TIME";
    case LogicalType::kTimestamp:
      return "TIMESTAMP";
    case LogicalType::kBson:
      return "BSON";
    case LogicalType::kInterval:
      return "INTERVAL";
    case LogicalType::kVariant:
      return "VARIANT";
    case LogicalType::kOther:
      return "(newer than this reader)";
    default:
      return element.type == PhysicalType::kInt96 ? "INT96 (a timestamp)" : "";
  }
}

double from_float16(uint16_t bits) {
  const int exponent = bits >> 10 & 0x1f;
  const int mantissa = bits & 0x3ff;
  const double sign = (bits & 0x8000) != 0 ? -1.0 : 1.0;
  if (exponent == 0x1f) return mantissa != 0 ? NAN : sign * INFINITY;
  if (exponent == 0) return sign * std::ldexp(mantissa, -24);
  return sign * std::ldexp(mantissa + 0x400, exponent - 25);
}

std::string uuid_text(std::string_view bytes) {
  std::string text;
  for (size_t i = 0; i < bytes.size(); ++i) {
    if (i == 4 || i == 6 || i == 8 || i == 10) text += '-';
    text += fmt::format("{:02x}", static_cast<uint8_t>(bytes[i]));
  }
  return text;
}

}  // namespace

LeafConverter::LeafConverter(const SchemaElement& element) {
  if (const std::string_view name = unsupported_name(element); !name.empty())
    problem_ = fmt::format("its type {} is not supported", name);
  switch (*element.type) {
    case PhysicalType::kBoolean:
      form_ = Form::kBoolean;
      break;
    case PhysicalType::kInt32:
      form_ = element.is_unsigned ? Form::kUint32 : Form::kInteger;
      break;
    case PhysicalType::kInt64:
      form_ = element.is_unsigned ? Form::kUint64 : Form::kInteger;
      break;
    case PhysicalType::kFloat:
      form_ = Form::kFloat;
      break;
    case PhysicalType::kDouble:
      form_ = Form::kDouble;
      break;
    case PhysicalType::kFixedLenByteArray:
      if (element.logical == LogicalType::kFloat16 && element.type_length == 2) form_ = Form::kFloat16;
      if (element.logical == LogicalType::kUuid && element.type_length == 16) form_ = Form::kUuid;
      break;
    default:
      break;
  }
}

Value LeafConverter::convert(const RawValue& raw, std::string* bad_value) const {
  switch (form_) {
    case Form::kBoolean:
      return raw.bits != 0;
    case Form::kInteger:
      return static_cast<int64_t>(raw.bits);
    case Form::kUint32:
      return int64_t{static_cast<uint32_t>(raw.bits)};
    case Form::kUint64:
      if (raw.bits > INT64_MAX) return static_cast<double>(raw.bits);
      return static_cast<int64_t>(raw.bits);
    case Form::kFloat:
      return double{std::bit_cast<float>(static_cast<uint32_t>(raw.bits))};
    case Form::kDouble:
      return std::bit_cast<double>(raw.bits);
    case Form::kFloat16:
      return from_float16(static_cast<uint16_t>(static_cast<uint8_t>(raw.bytes[0]) |
                                                static_cast<uint8_t>(raw.bytes[1]) << 8));
    case Form::kUuid:
      return uuid_text(raw.bytes);
    case Form::kString:
      break;
  }
  if (const int64_t at = find_invalid_utf8(raw.bytes); at >= 0) {
    *bad_value = fmt::format("expected UTF-8 text, found '{}' at byte {} of {}",
                             printable(raw.bytes.substr(static_cast<size_t>(at)), 8), at, raw.bytes.size());
    return {};
  }
  return raw.bytes;
}

}  // namespace tessera::parquet
