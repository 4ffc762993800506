// Splits a stream of text into records, each a line or a JSON value, in bounded memory.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>

#include "data/sources/record_source.h"
#include "formats/byte_order_mark.h"

namespace tessera {

// Fills the start of `destination` and returns the number of bytes; 0 = end.
using ByteSource = std::function<int64_t(std::span<char> destination)>;

// Drops a byte order mark at the start, and the line end (LF, CRLF) of each line.
class RecordReader {
 public:
  enum class Format {
    kLines,  // every line, including empty ones
    kJson,   // non-blank lines, or the elements of an array if the first character is '['
  };

  static constexpr int64_t kDefaultBufferBytes = int64_t{64} << 10;
  // Limits on a line of text and on a JSON object, which takes many times its size once parsed.
  static constexpr int64_t kMaxLineBytes = int64_t{256} << 20;
  static constexpr int64_t kMaxJsonBytes = int64_t{64} << 20;

  // `origin` names the file in errors. buffer_bytes >= 3.
  RecordReader(Format format, ByteSource source, std::string origin,
               int64_t buffer_bytes = kDefaultBufferBytes);

  // False at the end. Error(kBadData) if a record is longer than the limit above, or if a JSON array is not
  // closed or is followed by something; does not check that elements are valid JSON.
  bool next(Record* record);

 private:
  bool fill();
  void start();
  int64_t offset_bytes() const { return buffer_offset_ + static_cast<int64_t>(begin_); }
  bool next_line(Record* record);
  bool next_element(Record* record);
  // Peeks at the next non-whitespace character; at the end returns '\0' and sets at_end_.
  char skip_white_space();
  void consume();
  void append(std::string_view part, Record* record) const;
  [[noreturn]] void fail_here(const char* expected);

  Format format_;
  ByteSource source_;
  std::string origin_;
  std::string buffer_;  // [begin_, end_) is not consumed yet
  size_t begin_ = 0;
  size_t end_ = 0;
  int64_t buffer_offset_ = 0;  // of buffer_[0] in the file
  int64_t line_ = 1;
  bool started_ = false;
  bool at_end_ = false;
  bool in_array_ = false;
  bool array_closed_ = false;
  bool first_element_ = true;
};

}  // namespace tessera
