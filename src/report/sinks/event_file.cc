#include "report/sinks/event_file.h"

#include <unistd.h>

#include <bit>
#include <cstring>
#include <span>
#include <system_error>

#include "base/clock.h"
#include "base/error.h"
#include "io/file.h"
#include "platform/crc32c.h"
#include "platform/system.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;

// Fields of Event, Summary.Value and what they contain, by their numbers in the .proto files.
constexpr int kEventWallTime = 1, kEventStep = 2, kEventFileVersion = 3, kEventSummary = 5,
              kEventSessionLog = 7;
constexpr int kSummaryValue = 1;
constexpr int kValueTag = 1, kValueSimple = 2, kValueTensor = 8, kValueMetadata = 9;
constexpr int kMetadataPlugin = 1, kPluginName = 1;
constexpr int kTensorType = 1, kTensorShape = 2, kTensorStrings = 8, kShapeDim = 2, kDimSize = 1;
constexpr int kTypeString = 7;  // DT_STRING
constexpr int kSessionStatus = 1, kSessionStart = 1;

// Appends little-endian bytes.
template <typename T>
void append_bits(T value, std::string* out) {
  static_assert(std::endian::native == std::endian::little);
  const size_t at = out->size();
  out->resize(at + sizeof value);
  std::memcpy(out->data() + at, &value, sizeof value);
}

// A protobuf message in its wire format.
class Message {
 public:
  Message& number(int field, uint64_t value) {
    key(field, 0);
    return varint(value);
  }
  Message& real64(int field, double value) {
    key(field, 1);
    append_bits(value, &bytes_);
    return *this;
  }
  Message& bytes(int field, std::string_view value) {
    key(field, 2);
    varint(value.size());
    bytes_ += value;
    return *this;
  }
  Message& real32(int field, float value) {
    key(field, 5);
    append_bits(value, &bytes_);
    return *this;
  }
  operator std::string_view() const { return bytes_; }

 private:
  void key(int field, int wire_type) { varint(static_cast<uint64_t>(field << 3 | wire_type)); }
  Message& varint(uint64_t value) {
    for (; value >= 0x80; value >>= 7) bytes_ += static_cast<char>(value | 0x80);
    bytes_ += static_cast<char>(value);
    return *this;
  }

  std::string bytes_;
};

uint32_t masked_crc(std::string_view data) {
  return std::rotr(crc32c(0, std::as_bytes(std::span(data))), 15) + 0xa282ead8U;
}

void append_record(std::string_view data, std::string* out) {
  std::string length;
  append_bits<uint64_t>(data.size(), &length);
  *out += length;
  append_bits(masked_crc(length), out);
  *out += data;
  append_bits(masked_crc(data), out);
}

// TensorBoard reads the files of a folder in the order of their names.
fs::path new_event_file(const fs::path& folder) {
  create_folder(folder);
  const std::string stem = fmt::format("events.out.tfevents.{:010d}.{}.{}",
                                       static_cast<int64_t>(unix_seconds()), host_name(), getpid());
  std::error_code ignored;
  for (int n = 0;; ++n) {
    const fs::path path = folder / fmt::format("{}.{}", stem, n);
    if (!fs::exists(path, ignored)) return path;
  }
}

}  // namespace

EventFile::EventFile(const fs::path& folder, std::optional<int64_t> first_step)
    : file_(new_event_file(folder)) {
  add_event(first_step.value_or(0), kEventFileVersion, "brain.Event:2");
  if (first_step) add_event(*first_step, kEventSessionLog, Message().number(kSessionStatus, kSessionStart));
  flush();
}

void EventFile::add_event(int64_t step, int field, std::string_view content) {
  const Message event = Message()
                            .real64(kEventWallTime, unix_seconds())
                            .number(kEventStep, static_cast<uint64_t>(step))
                            .bytes(field, content);
  append_record(event, &pending_);
}

void EventFile::add_scalar(std::string_view tag, double value, int64_t step) {
  const Message scalar = Message().bytes(kValueTag, tag).real32(kValueSimple, static_cast<float>(value));
  add_event(step, kEventSummary, Message().bytes(kSummaryValue, scalar));
}

void EventFile::add_text(std::string_view tag, std::string_view text, int64_t step) {
  const Message plugin = Message().bytes(kPluginName, "text");
  const Message shape = Message().bytes(kShapeDim, Message().number(kDimSize, 1));
  const Message tensor =
      Message().number(kTensorType, kTypeString).bytes(kTensorShape, shape).bytes(kTensorStrings, text);
  const Message value = Message()
                            .bytes(kValueTag, fmt::format("{}/text_summary", tag))
                            .bytes(kValueTensor, tensor)
                            .bytes(kValueMetadata, Message().bytes(kMetadataPlugin, plugin));
  add_event(step, kEventSummary, Message().bytes(kSummaryValue, value));
}

void EventFile::flush() {
  file_.append(pending_);
  pending_.clear();
}

}  // namespace tessera
