#include "monitor/watch/event_stream.h"

#include <utility>

#include "base/error.h"

namespace tessera {
namespace {

constexpr size_t kMaxEventBytes = size_t{16} << 20;

}  // namespace

void EventStream::add(std::string_view bytes, const Sink& sink) {
  while (!bytes.empty()) {
    if (std::exchange(ends_with_return_, false) && bytes[0] == '\n') {
      bytes.remove_prefix(1);
      continue;
    }
    const size_t end = bytes.find_first_of("\r\n");
    line_ += bytes.substr(0, end);
    if (line_.size() + data_.size() > kMaxEventBytes) {
      fail(ExitCode::kBadData, "events of the run: expected at most {} bytes in one of them, found more",
           kMaxEventBytes);
    }
    if (end == std::string_view::npos) return;
    ends_with_return_ = bytes[end] == '\r';
    bytes.remove_prefix(end + 1);
    add_line(std::exchange(line_, {}), sink);
  }
}

void EventStream::add_line(std::string_view line, const Sink& sink) {
  if (line.empty()) {
    if (std::exchange(has_data_, false)) sink(type_.empty() ? "message" : type_, data_);
    type_.clear();
    data_.clear();
    return;
  }
  const size_t colon = line.find(':');
  const std::string_view name = line.substr(0, colon);
  std::string_view value = colon == std::string_view::npos ? "" : line.substr(colon + 1);
  if (value.starts_with(' ')) value.remove_prefix(1);
  if (name == "event") type_ = value;
  if (name != "data") return;
  if (std::exchange(has_data_, true)) data_ += '\n';
  data_ += value;
}

}  // namespace tessera
