// Server-sent events (https://html.spec.whatwg.org/multipage/server-sent-events.html) from the bytes of a
// response.
#pragma once

#include <functional>
#include <string>
#include <string_view>

namespace tessera {

class EventStream {
 public:
  // `type` is "message" unless the event has one.
  using Sink = std::function<void(const std::string& type, const std::string& data)>;

  // Calls `sink` for each event that is complete. Error(kBadData) for an event of more than 16 MiB.
  void add(std::string_view bytes, const Sink& sink);

 private:
  void add_line(std::string_view line, const Sink& sink);

  std::string line_;
  bool ends_with_return_ = false;  // a newline that follows belongs to it
  std::string type_, data_;
  bool has_data_ = false;
};

}  // namespace tessera
