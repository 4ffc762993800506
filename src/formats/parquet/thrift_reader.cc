#include "formats/parquet/thrift_reader.h"

namespace tessera::parquet {
namespace {

// Parquet's own structures nest about eight deep.
constexpr int kMaxThriftDepth = 32;

}  // namespace

void ThriftReader::enter() {
  if (++depth_ > kMaxThriftDepth) reject("Thrift values nest deeper than {}", kMaxThriftDepth);
}

void ThriftReader::expect(ThriftType found, ThriftType expected) {
  if (found != expected)
    reject("expected a Thrift value of type {}, found type {}", static_cast<int>(expected),
           static_cast<int>(found));
}

uint8_t ThriftReader::byte() {
  if (at_ >= bytes_.size()) throw ThriftTruncated();
  return static_cast<uint8_t>(bytes_[at_++]);
}

uint64_t ThriftReader::varint() {
  uint64_t value = 0;
  for (int shift = 0; shift < 64; shift += 7) {
    const uint8_t next = byte();
    value |= uint64_t{next & 0x7fu} << shift;
    if ((next & 0x80) == 0) return value;
  }
  reject("a Thrift integer has more than 64 bits");
}

int64_t ThriftReader::zigzag() {
  const uint64_t value = varint();
  return static_cast<int64_t>((value >> 1) ^ (~(value & 1) + 1));
}

std::string_view ThriftReader::take(uint64_t count) {
  if (count > bytes_.size() - at_) throw ThriftTruncated();
  at_ += count;
  return bytes_.substr(at_ - count, count);
}

bool ThriftReader::boolean(ThriftType type) {
  if (type != ThriftType::kTrue) expect(type, ThriftType::kFalse);
  return type == ThriftType::kTrue;
}

int64_t ThriftReader::integer(ThriftType type) {
  if (type == ThriftType::kByte) return static_cast<int8_t>(byte());
  if (type != ThriftType::kI16 && type != ThriftType::kI32) expect(type, ThriftType::kI64);
  return zigzag();
}

int32_t ThriftReader::small_integer(ThriftType type) {
  const int64_t value = integer(type);
  if (value < 0 || value > INT32_MAX) reject("expected a number of up to 31 bits, found {}", value);
  return static_cast<int32_t>(value);
}

std::string_view ThriftReader::binary(ThriftType type) {
  expect(type, ThriftType::kBinary);
  return take(varint());
}

int64_t ThriftReader::list_size(ThriftType type, ThriftType* element_type) {
  if (type != ThriftType::kSet) expect(type, ThriftType::kList);
  const uint8_t header = byte();
  *element_type = static_cast<ThriftType>(header & 0xf);
  const uint64_t size = (header >> 4) != 0xf ? uint64_t{header} >> 4 : varint();
  // Every element takes at least one byte.
  if (size > bytes_.size() - at_) throw ThriftTruncated();
  return static_cast<int64_t>(size);
}

// In lists, sets and maps a boolean is a byte of its own.
void ThriftReader::skip_element(ThriftType type) {
  if (type == ThriftType::kTrue || type == ThriftType::kFalse) {
    byte();
  } else {
    skip(type);
  }
}

void ThriftReader::skip(ThriftType type) {
  switch (type) {
    case ThriftType::kTrue:
    case ThriftType::kFalse:
      return;
    case ThriftType::kByte:
      byte();
      return;
    case ThriftType::kI16:
    case ThriftType::kI32:
    case ThriftType::kI64:
      varint();
      return;
    case ThriftType::kDouble:
      take(8);
      return;
    case ThriftType::kBinary:
      take(varint());
      return;
    case ThriftType::kUuid:
      take(16);
      return;
    case ThriftType::kStruct:
      read_struct([&](int, ThriftType field) { skip(field); });
      return;
    case ThriftType::kList:
    case ThriftType::kSet:
      read_list(type, [&](ThriftType element) { skip_element(element); });
      return;
    case ThriftType::kMap: {
      const uint64_t size = varint();
      if (size > bytes_.size() - at_) throw ThriftTruncated();
      if (size == 0) return;
      const uint8_t types = byte();
      enter();
      for (uint64_t i = 0; i < size; ++i) {
        skip_element(static_cast<ThriftType>(types >> 4));
        skip_element(static_cast<ThriftType>(types & 0xf));
      }
      --depth_;
      return;
    }
    case ThriftType::kStop:
      break;
  }
  reject("a Thrift value has the unknown type {}", static_cast<int>(type));
}

}  // namespace tessera::parquet
