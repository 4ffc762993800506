#include "support/train/event_reader.h"

#include <cstring>
#include <map>
#include <stdexcept>
#include <string_view>

#include "io/file.h"

namespace tessera {
namespace {

// Bit by bit, from the polynomial.
uint32_t crc32c_of(std::string_view data) {
  uint32_t crc = ~0U;
  for (const char c : data) {
    crc ^= static_cast<unsigned char>(c);
    for (int bit = 0; bit < 8; ++bit) crc = crc >> 1 ^ ((crc & 1) != 0 ? 0x82f63b78U : 0U);
  }
  return ~crc;
}

template <typename T>
T take(std::string_view* data) {
  T value;
  if (data->size() < sizeof value) throw std::runtime_error("the record ends early");
  std::memcpy(&value, data->data(), sizeof value);
  data->remove_prefix(sizeof value);
  return value;
}

std::string_view take_bytes(std::string_view* data, size_t count) {
  if (data->size() < count) throw std::runtime_error("the record ends early");
  const std::string_view bytes = data->substr(0, count);
  data->remove_prefix(count);
  return bytes;
}

void check_crc(std::string_view data, uint32_t masked) {
  const uint32_t crc = crc32c_of(data);
  if (masked != static_cast<uint32_t>((crc >> 15 | crc << 17) + 0xa282ead8U))
    throw std::runtime_error("the checksum is wrong");
}

uint64_t take_varint(std::string_view* data) {
  uint64_t value = 0;
  for (int shift = 0; shift < 64; shift += 7) {
    const auto byte = take<uint8_t>(data);
    value |= static_cast<uint64_t>(byte & 0x7f) << shift;
    if (byte < 0x80) return value;
  }
  throw std::runtime_error("a varint is too long");
}

// A message of known fields, each given once; numbers as their bytes.
class Fields {
 public:
  explicit Fields(std::string_view data) {
    while (!data.empty()) {
      const uint64_t key = take_varint(&data);
      std::string_view value;
      uint64_t number = 0;
      switch (key & 7) {
        case 0:
          number = take_varint(&data);
          numbers_[static_cast<int>(key >> 3)] = number;
          continue;
        case 1:
          value = take_bytes(&data, 8);
          break;
        case 2:
          value = take_bytes(&data, take_varint(&data));
          break;
        case 5:
          value = take_bytes(&data, 4);
          break;
        default:
          throw std::runtime_error("an unknown wire type");
      }
      if (!bytes_.emplace(static_cast<int>(key >> 3), value).second)
        throw std::runtime_error("a field is given twice");
    }
  }

  bool has(int field) const { return bytes_.contains(field) || numbers_.contains(field); }
  uint64_t number(int field) const { return numbers_.at(field); }
  std::string text(int field) const { return std::string(bytes_.at(field)); }
  Fields message(int field) const { return Fields(bytes_.at(field)); }
  template <typename T>
  T bits(int field) const {
    std::string_view bytes = bytes_.at(field);
    const T value = take<T>(&bytes);
    if (!bytes.empty()) throw std::runtime_error("a number of another width");
    return value;
  }

 private:
  std::map<int, uint64_t> numbers_;
  std::map<int, std::string_view> bytes_;
};

// Numbers of the fields: tensorflow/core/util/event.proto, framework/summary.proto, framework/tensor.proto.
TestEvent event_of(std::string_view data) {
  const Fields fields(data);
  TestEvent event;
  event.wall_time = fields.bits<double>(1);
  event.step = static_cast<int64_t>(fields.number(2));
  if (fields.has(3)) event.file_version = fields.text(3);
  if (fields.has(7)) event.starts_session = fields.message(7).number(1) == 1;
  if (!fields.has(5)) return event;
  const Fields value = fields.message(5).message(1);
  event.tag = value.text(1);
  if (value.has(2)) event.value = value.bits<float>(2);
  if (value.has(9)) event.plugin = value.message(9).message(1).text(1);
  if (value.has(8)) {
    const Fields tensor = value.message(8);
    if (tensor.number(1) != 7 || tensor.message(2).message(2).number(1) != 1)
      throw std::runtime_error("expected a tensor of one string");
    event.text = tensor.text(8);
  }
  return event;
}

}  // namespace

std::vector<TestEvent> read_event_file(const std::filesystem::path& path) {
  const std::string file = read_text_file(path);
  std::string_view rest = file;
  std::vector<TestEvent> events;
  while (!rest.empty()) {
    const std::string_view length_bytes = rest.substr(0, 8);
    const auto length = take<uint64_t>(&rest);
    check_crc(length_bytes, take<uint32_t>(&rest));
    const std::string_view data = take_bytes(&rest, length);
    check_crc(data, take<uint32_t>(&rest));
    events.push_back(event_of(data));
  }
  return events;
}

}  // namespace tessera
