#include "data/sources/record_reader.h"

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "base/text.h"

namespace tessera {
namespace {

bool is_white_space(char c) { return c == ' ' || c == '\t' || c == '\n' || c == '\r'; }

bool is_blank(std::string_view text) { return std::all_of(text.begin(), text.end(), is_white_space); }

// Scans one JSON value byte by byte to find where the enclosing array continues.
class ValueScanner {
 public:
  // True if `c` comes after the value: a comma or the closing bracket of the enclosing array.
  bool ends_before(char c) {
    if (in_string_) {
      if (escaped_) {
        escaped_ = false;
      } else if (c == '\\') {
        escaped_ = true;
      } else if (c == '"') {
        in_string_ = false;
      }
      return false;
    }
    if (depth_ == 0 && (c == ',' || c == ']')) return true;
    if (c == '"') in_string_ = true;
    if (c == '{' || c == '[') ++depth_;
    if ((c == '}' || c == ']') && depth_ > 0) --depth_;
    return false;
  }

 private:
  int64_t depth_ = 0;
  bool in_string_ = false;
  bool escaped_ = false;
};

}  // namespace

RecordReader::RecordReader(Format format, ByteSource source, std::string origin, int64_t buffer_bytes)
    : format_(format),
      source_(std::move(source)),
      origin_(std::move(origin)),
      buffer_(static_cast<size_t>(buffer_bytes), '\0') {
  TESSERA_CHECK(buffer_bytes >= static_cast<int64_t>(kByteOrderMark.size()), "{} bytes", buffer_bytes);
}

// Appends more data to the unconsumed rest; false at the end of the stream.
bool RecordReader::fill() {
  if (at_end_) return false;
  std::copy(buffer_.begin() + static_cast<std::ptrdiff_t>(begin_),
            buffer_.begin() + static_cast<std::ptrdiff_t>(end_), buffer_.begin());
  buffer_offset_ += static_cast<int64_t>(begin_);
  end_ -= begin_;
  begin_ = 0;
  const int64_t count = source_(std::span(buffer_).subspan(end_));
  TESSERA_CHECK(0 <= count && count <= static_cast<int64_t>(buffer_.size() - end_), "count={}", count);
  end_ += static_cast<size_t>(count);
  at_end_ = count == 0;
  return !at_end_;
}

void RecordReader::start() {
  started_ = true;
  while (end_ - begin_ < kByteOrderMark.size() && fill()) {
  }
  if (std::string_view(buffer_).substr(begin_, end_ - begin_).starts_with(kByteOrderMark))
    begin_ += kByteOrderMark.size();
  if (format_ == Format::kJson && skip_white_space() == '[') {
    in_array_ = true;
    consume();
  }
}

bool RecordReader::next(Record* record) {
  if (!started_) start();
  if (in_array_) return next_element(record);
  while (next_line(record)) {
    if (format_ == Format::kLines || !is_blank(record->text)) return true;
  }
  return false;
}

void RecordReader::append(std::string_view part, Record* record) const {
  const int64_t limit = format_ == Format::kLines ? kMaxLineBytes : kMaxJsonBytes;
  if (std::ssize(record->text) + std::ssize(part) > limit) {
    fail(ExitCode::kBadData, "{}: line {}: {} that begins here has more than {}: expected {}", origin_,
         record->number, in_array_ ? "the object" : "the line", format_bytes(limit),
         format_ == Format::kLines ? "lines of text; split this one"
         : in_array_               ? "a row in each object of the array"
                                   : "a row, as a JSON object, in each line");
  }
  record->text += part;
}

bool RecordReader::next_line(Record* record) {
  if (begin_ == end_ && !fill()) return false;
  record->text.clear();
  record->number = line_;
  record->offset_bytes = offset_bytes();
  do {
    const std::string_view rest = std::string_view(buffer_).substr(begin_, end_ - begin_);
    const size_t length = rest.find('\n');
    append(rest.substr(0, length), record);
    begin_ += std::min(length, rest.size());
    if (length != std::string_view::npos) {
      ++begin_;
      ++line_;
      break;
    }
  } while (fill());
  if (record->text.ends_with('\r')) record->text.pop_back();
  return true;
}

char RecordReader::skip_white_space() {
  for (;;) {
    if (begin_ == end_ && !fill()) return '\0';
    if (!is_white_space(buffer_[begin_])) return buffer_[begin_];
    consume();
  }
}

void RecordReader::consume() {
  if (buffer_[begin_] == '\n') ++line_;
  ++begin_;
}

void RecordReader::fail_here(const char* expected) {
  fail(ExitCode::kBadData, "{}: line {}: byte offset {}: expected {}, found {}", origin_, line_,
       offset_bytes(), expected,
       begin_ == end_ ? std::string("the end of the file")
                      : fmt::format("'{}'", printable(std::string_view(buffer_).substr(begin_, 1))));
}

bool RecordReader::next_element(Record* record) {
  if (array_closed_) return false;
  char c = skip_white_space();
  if (!first_element_ && c == ',') {
    consume();
    c = skip_white_space();
    if (c == ']') fail_here("an object after the comma");
  }
  if (c == ']') {
    consume();
    array_closed_ = true;
    skip_white_space();
    if (begin_ != end_) fail_here("nothing after the closing ']' of the array");
    return false;
  }
  first_element_ = false;
  record->text.clear();
  record->number = line_;
  record->offset_bytes = offset_bytes();
  ValueScanner scanner;
  while (begin_ != end_ || fill()) {
    size_t at = begin_;
    while (at < end_ && !scanner.ends_before(buffer_[at])) ++at;
    const std::string_view part = std::string_view(buffer_).substr(begin_, at - begin_);
    append(part, record);
    line_ += std::count(part.begin(), part.end(), '\n');
    begin_ = at;
    if (at < end_) return true;
  }
  fail_here("']' to close the array");
}

}  // namespace tessera
