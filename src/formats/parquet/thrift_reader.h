// Thrift's compact protocol, as far as Parquet's metadata needs it
// (https://github.com/apache/thrift/blob/master/doc/specs/thrift-compact-protocol.md). Reads never leave the
// given bytes; lists are never longer than the bytes that follow; nesting is limited.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <type_traits>

#include "formats/parquet/problem.h"

namespace tessera::parquet {

// The bytes end inside a value: more of them may help.
class ThriftTruncated : public Problem {
 public:
  ThriftTruncated() : Problem("ends early") {}
};

enum class ThriftType : uint8_t {
  kStop = 0,
  kTrue = 1,
  kFalse = 2,
  kByte = 3,
  kI16 = 4,
  kI32 = 5,
  kI64 = 6,
  kDouble = 7,
  kBinary = 8,
  kList = 9,
  kSet = 10,
  kMap = 11,
  kStruct = 12,
  kUuid = 13,
};

// A field of a structure: its id, and what takes its value.
template <typename Target>
struct Field {
  int id;
  Target* target;
};
template <typename Target>
Field(int, Target*) -> Field<Target>;

class ThriftReader {
 public:
  explicit ThriftReader(std::string_view bytes) : bytes_(bytes) {}

  size_t position() const { return at_; }

  // Calls field(id, type) for each field, which reads the value with one of the functions below or skips it.
  template <typename OnField>
  void read_struct(OnField&& field) {
    enter();
    int id = 0;
    for (;;) {
      const uint8_t header = byte();
      const auto type = static_cast<ThriftType>(header & 0xf);
      if (type == ThriftType::kStop) break;
      id = (header >> 4) != 0 ? id + (header >> 4) : static_cast<int16_t>(zigzag());
      field(id, type);
    }
    --depth_;
  }
  template <typename OnField>
  void read_struct(ThriftType type, OnField&& field) {
    expect(type, ThriftType::kStruct);
    read_struct(field);
  }

  // Reads the given fields into their targets and skips the others.
  template <typename... Targets>
  void read_fields(ThriftType type, Field<Targets>... fields) {
    read_struct(type, [&](int id, ThriftType field) { read_field(id, field, fields...); });
  }
  // Reads a field of read_struct() into the target with its id, or skips it.
  template <typename... Targets>
  void read_field(int id, ThriftType type, Field<Targets>... fields) {
    if (!((id == fields.id && (read(type, fields.target), true)) || ...)) skip(type);
  }

  // Reads one value: with read_value(ThriftReader&, ThriftType, Target*) if it exists, otherwise a boolean, a
  // number (of 32 bits, and of an enum, only 0 and above), text, a list, or an optional.
  template <typename Target>
  void read(ThriftType type, Target* target) {
    if constexpr (requires { read_value(*this, type, target); }) {
      read_value(*this, type, target);
    } else if constexpr (std::is_same_v<Target, bool>) {
      *target = boolean(type);
    } else if constexpr (std::is_same_v<Target, int64_t> || std::is_same_v<Target, uint32_t>) {
      *target = static_cast<Target>(integer(type));
    } else if constexpr (std::is_same_v<Target, int32_t> || std::is_enum_v<Target>) {
      *target = static_cast<Target>(small_integer(type));
    } else if constexpr (std::is_same_v<Target, std::string>) {
      *target = binary(type);
    } else if constexpr (requires { target->emplace_back(); }) {
      read_list(type, [&](ThriftType element) { read(element, &target->emplace_back()); });
    } else {
      read(type, &target->emplace());
    }
  }

  // Calls element(type) for each element.
  template <typename OnElement>
  void read_list(ThriftType type, OnElement&& element) {
    ThriftType element_type = {};
    enter();
    for (int64_t left = list_size(type, &element_type); left > 0; --left) element(element_type);
    --depth_;
  }

  bool boolean(ThriftType type);     // a field; elements of lists are not needed
  int64_t integer(ThriftType type);  // of any width
  int32_t small_integer(ThriftType type);
  std::string_view binary(ThriftType type);
  void skip(ThriftType type);

 private:
  static void expect(ThriftType found, ThriftType expected);
  int64_t list_size(ThriftType type, ThriftType* element_type);
  void skip_element(ThriftType type);
  void enter();
  uint8_t byte();
  uint64_t varint();
  int64_t zigzag();
  std::string_view take(uint64_t count);

  std::string_view bytes_;
  size_t at_ = 0;
  int depth_ = 0;
};

}  // namespace tessera::parquet
