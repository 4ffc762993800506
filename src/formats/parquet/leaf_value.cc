#include "formats/parquet/leaf_value.h"

#include <fmt/format.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <string_view>

#include "base/error.h"
#include "base/text.h"
#include "formats/value_json.h"

namespace tessera::parquet {
namespace {

// Limits of 128 bits.
constexpr int32_t kMaxDecimalDigits = 38;
constexpr size_t kMaxDecimalBytes = 16;

// "" for the types that are read.
const char* unsupported_name(const SchemaElement& element) {
  switch (element.logical) {
    case LogicalType::kBson:
      return "BSON";
    case LogicalType::kInterval:
      return "INTERVAL";
    case LogicalType::kOther:
      return "(newer than this reader)";
    case LogicalType::kDecimal:
      return element.scale > kMaxDecimalDigits ? "DECIMAL of more than 38 digits" : "";
    default:
      return "";
  }
}

constexpr int64_t kSecondsPerDay = 86400;
constexpr int64_t kNanosPerSecond = 1'000'000'000;

int64_t floor_divide(int64_t a, int64_t b) { return a / b - (a % b < 0 ? 1 : 0); }
int64_t floor_modulo(int64_t a, int64_t b) { return a % b + (a % b < 0 ? b : 0); }

// Days since 1970-01-01, by Howard Hinnant's "chrono-Compatible Low-Level Date Algorithms".
std::string date_text(int64_t days) {
  days += 719468;  // from 0000-03-01 on, so that leap days end a year
  const int64_t era = floor_divide(days, 146097);
  const int64_t day_of_era = days - era * 146097;
  const int64_t year_of_era =
      (day_of_era - day_of_era / 1460 + day_of_era / 36524 - day_of_era / 146096) / 365;
  const int64_t day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
  const int64_t month_from_march = (5 * day_of_year + 2) / 153;
  const int64_t month = month_from_march < 10 ? month_from_march + 3 : month_from_march - 9;
  return fmt::format("{:04}-{:02}-{:02}", year_of_era + era * 400 + (month <= 2 ? 1 : 0), month,
                     day_of_year - (153 * month_from_march + 2) / 5 + 1);
}

// Seconds and nanoseconds of a day.
std::string time_text(int64_t seconds, int64_t nanoseconds) {
  std::string text = fmt::format("{:02}:{:02}:{:02}", seconds / 3600, seconds / 60 % 60, seconds % 60);
  if (nanoseconds % 1000 != 0) return text + fmt::format(".{:09}", nanoseconds);
  return nanoseconds != 0 ? text + fmt::format(".{:06}", nanoseconds / 1000) : text;
}

std::string time_text_of_units(int64_t units, int64_t units_per_second) {
  return time_text(floor_divide(units, units_per_second),
                   floor_modulo(units, units_per_second) * (kNanosPerSecond / units_per_second));
}

std::string timestamp_text(int64_t units, int64_t units_per_second, bool is_utc) {
  const int64_t units_per_day = units_per_second * kSecondsPerDay;
  return date_text(floor_divide(units, units_per_day)) + " " +
         time_text_of_units(floor_modulo(units, units_per_day), units_per_second) + (is_utc ? "+00:00" : "");
}

// Nanoseconds of the day and the Julian day, as Impala and Spark wrote timestamps.
std::string int96_text(std::string_view bytes) {
  int64_t nanoseconds = 0;
  uint32_t julian_day = 0;
  std::memcpy(&nanoseconds, bytes.data(), sizeof nanoseconds);
  std::memcpy(&julian_day, bytes.data() + sizeof nanoseconds, sizeof julian_day);
  constexpr int64_t kUnixEpoch = 2440588;
  constexpr int64_t kNanosPerDay = kNanosPerSecond * kSecondsPerDay;
  return date_text(int64_t{julian_day} - kUnixEpoch + floor_divide(nanoseconds, kNanosPerDay)) + " " +
         time_text_of_units(floor_modulo(nanoseconds, kNanosPerDay), kNanosPerSecond);
}

__extension__ using Int128 = __int128;
__extension__ using Uint128 = unsigned __int128;

// Big-endian.
Int128 read_twos_complement(std::string_view bytes) {
  Uint128 value = !bytes.empty() && (bytes[0] & 0x80) != 0 ? ~Uint128{0} : 0;
  for (const char byte : bytes) value = value << 8 | static_cast<uint8_t>(byte);
  return static_cast<Int128>(value);
}

std::string decimal_text(Int128 value, int32_t scale) {
  const bool is_negative = value < 0;
  std::string digits;
  for (; value != 0 || std::ssize(digits) <= scale; value /= 10) {
    const auto digit = static_cast<int>(value % 10);
    digits.insert(digits.begin(), static_cast<char>('0' + (is_negative ? -digit : digit)));
  }
  if (scale > 0) digits.insert(digits.end() - scale, '.');
  return (is_negative ? "-" : "") + digits;
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
  std::string text = hex(bytes);
  for (const size_t at : {20, 16, 12, 8}) text.insert(at, 1, '-');
  return text;
}

}  // namespace

LeafConverter::LeafConverter(const SchemaElement& element) : element_(element), form_(form_of(element)) {
  if (const std::string_view name = unsupported_name(element); !name.empty())
    problem_ = fmt::format("its type {} is not supported", name);
}

LeafConverter::Form LeafConverter::form_of(const SchemaElement& element) {
  const LogicalType logical = element.logical;
  switch (*element.type) {
    case PhysicalType::kBoolean:
      return Form::kBoolean;
    case PhysicalType::kInt96:
      return Form::kInt96;
    case PhysicalType::kFloat:
      return Form::kFloat;
    case PhysicalType::kDouble:
      return Form::kDouble;
    case PhysicalType::kInt32:
    case PhysicalType::kInt64:
      if (logical == LogicalType::kDate && element.type == PhysicalType::kInt32) return Form::kDate;
      if (logical == LogicalType::kTime) return Form::kTime;
      if (logical == LogicalType::kTimestamp) return Form::kTimestamp;
      if (logical == LogicalType::kDecimal) return Form::kDecimal;
      if (!element.is_unsigned) return Form::kInteger;
      return element.type == PhysicalType::kInt32 ? Form::kUint32 : Form::kUint64;
    case PhysicalType::kByteArray:
    case PhysicalType::kFixedLenByteArray:
      break;
  }
  if (logical == LogicalType::kDecimal) return Form::kDecimal;
  if (logical == LogicalType::kFloat16 && element.type_length == 2) return Form::kFloat16;
  if (logical == LogicalType::kUuid && element.type_length == 16) return Form::kUuid;
  if (logical == LogicalType::kJson) return Form::kJson;
  return Form::kString;
}

Value LeafConverter::convert(const RawValue& raw, std::string* bad_value) const {
  const auto integer = static_cast<int64_t>(raw.bits);
  switch (form_) {
    case Form::kBoolean:
      return raw.bits != 0;
    case Form::kInteger:
      return integer;
    case Form::kDate:
      return date_text(integer);
    case Form::kTime:
      return time_text_of_units(integer, element_.units_per_second);
    case Form::kTimestamp:
      return timestamp_text(integer, element_.units_per_second, element_.is_utc);
    case Form::kInt96:
      return int96_text(raw.bytes);
    case Form::kDecimal:
      if (element_.type == PhysicalType::kInt32 || element_.type == PhysicalType::kInt64)
        return decimal_text(integer, element_.scale);
      if (raw.bytes.size() <= kMaxDecimalBytes)
        return decimal_text(read_twos_complement(raw.bytes), element_.scale);
      *bad_value =
          fmt::format("expected a DECIMAL of up to {} bytes, found {}", kMaxDecimalBytes, raw.bytes.size());
      return {};
    case Form::kUint32:
      return int64_t{static_cast<uint32_t>(raw.bits)};
    case Form::kUint64:
      if (raw.bits > INT64_MAX) return static_cast<double>(raw.bits);
      return integer;
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
    case Form::kJson:
      break;
  }
  if (const int64_t at = find_invalid_utf8(raw.bytes); at >= 0) {
    constexpr size_t kShownBytes = 16;
    if (element_.logical == LogicalType::kNone)  // bytes, which need not be text
      return Value::Object{{"bytes", hex(std::string_view(raw.bytes).substr(0, kShownBytes))}};
    *bad_value = fmt::format("expected UTF-8 text, found '{}' at byte {} of {}",
                             printable(raw.bytes.substr(static_cast<size_t>(at)), 8), at, raw.bytes.size());
    return {};
  }
  if (form_ == Form::kString) return raw.bytes;
  try {
    return parse_value(raw.bytes, "JSON");
  } catch (const Error& error) {
    *bad_value = error.what();
    return {};
  }
}

}  // namespace tessera::parquet
