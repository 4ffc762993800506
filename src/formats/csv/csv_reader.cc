#include "formats/csv/csv_reader.h"

#include <algorithm>
#include <set>
#include <utility>

#include "base/error.h"
#include "base/text.h"
#include "formats/byte_order_mark.h"
#include "formats/row_error.h"

namespace tessera {
namespace {

constexpr size_t kBufferBytes = size_t{256} << 10;
constexpr int64_t kMaxRowBytes = int64_t{64} << 20;
constexpr size_t kMaxColumns = 65536;

}  // namespace

CsvReader::CsvReader(std::unique_ptr<ByteStream> source, char delimiter)
    : source_(std::move(source)), delimiter_(delimiter), buffer_(kBufferBytes, '\0') {
  // A stream may return fewer bytes than are left.
  size_t size = 0;
  while (const int64_t count = source_->read(std::span(buffer_).subspan(size)))
    size += static_cast<size_t>(count);
  rest_ = std::string_view(buffer_).substr(0, size);
  if (rest_.starts_with(kByteOrderMark)) rest_.remove_prefix(kByteOrderMark.size());
  if (!read_row(kMaxColumns))
    fail(ExitCode::kBadData, "{}: expected a header row with the names of the columns, found no text",
         source_->name());
  if (num_cells_ > kMaxColumns)
    fail(ExitCode::kBadData, "{}: line {}: {} columns, expected at most {}", source_->name(), row_line_,
         num_cells_, kMaxColumns);
  names_ = cells_;
  std::set<std::string_view> seen;
  for (const std::string& name : names_) {
    // A zero byte is valid, but found only in binary files and in UTF-16.
    if (!is_valid_utf8(name) || name.find('\0') != std::string::npos)
      fail(ExitCode::kBadData, "{}: line {}: expected UTF-8 text, found the column name '{}'",
           source_->name(), row_line_, printable(name));
    if (!seen.insert(name).second)
      fail(ExitCode::kBadData, "{}: line {}: two columns are called '{}': rename one", source_->name(),
           row_line_, printable(name));
  }
}

bool CsvReader::next(Value* row) {
  if (!read_row(names_.size())) return false;
  if (num_cells_ != names_.size())
    refuse_row(fmt::format("expected {}, as in the header, found {}", count_of(std::ssize(names_), "column"),
                           num_cells_));
  Value::Object object;
  object.reserve(names_.size());
  for (size_t i = 0; i < names_.size(); ++i) {
    if (const int64_t at = find_invalid_utf8(cells_[i]); at >= 0)
      refuse_row(fmt::format(
          "column '{}': expected UTF-8 text, found '{}' at byte {} of {}", printable(names_[i]),
          printable(std::string_view(cells_[i]).substr(static_cast<size_t>(at)), 8), at, cells_[i].size()));
    object.push_back({names_[i], std::move(cells_[i])});
  }
  *row = std::move(object);
  return true;
}

void CsvReader::refuse_row(const std::string& problem) {
  throw RowError(ExitCode::kBadData, fmt::format("{}: line {}: {}", source_->name(), row_line_, problem));
}

bool CsvReader::at_end() {
  if (rest_.empty()) rest_ = std::string_view(buffer_).substr(0, static_cast<size_t>(source_->read(buffer_)));
  return rest_.empty();
}

// Fills cells_ with up to max_cells and sets num_cells_; false if there is no further row.
bool CsvReader::read_row(size_t max_cells) {
  while (!at_end() && (rest_.front() == '\n' || rest_.front() == '\r')) read_end();
  if (at_end()) return false;
  row_line_ = line_;
  row_bytes_ = 0;
  num_cells_ = 0;
  std::string surplus;
  for (End end = End::kCell; end == End::kCell; ++num_cells_) {
    if (num_cells_ == cells_.size() && num_cells_ < max_cells) cells_.emplace_back();
    std::string& cell = num_cells_ < max_cells ? cells_[num_cells_] : surplus;
    cell.clear();
    end = read_cell(&cell);
  }
  cells_.resize(std::min(num_cells_, max_cells));
  return true;
}

CsvReader::End CsvReader::read_cell(std::string* cell) {
  if (!at_end() && rest_.front() == '"') return read_quoted_cell(cell);
  read_plain_text(cell);
  return read_end();
}

void CsvReader::read_plain_text(std::string* cell) {
  while (!at_end()) {
    const auto stop = std::find_if(rest_.begin(), rest_.end(),
                                   [this](char c) { return c == delimiter_ || c == '\n' || c == '\r'; });
    const auto count = static_cast<size_t>(stop - rest_.begin());
    append(cell, rest_.substr(0, count));
    rest_.remove_prefix(count);
    if (!rest_.empty()) return;
  }
}

CsvReader::End CsvReader::read_quoted_cell(std::string* cell) {
  const int64_t quote_line = line_;
  rest_.remove_prefix(1);
  for (;;) {
    if (at_end()) refuse_row(fmt::format("the quote that opens on line {} is never closed", quote_line));
    const size_t count = std::min(rest_.find('"'), rest_.size());
    line_ += std::count(rest_.begin(), rest_.begin() + static_cast<ptrdiff_t>(count), '\n');
    append(cell, rest_.substr(0, count));
    rest_.remove_prefix(count);
    if (rest_.empty()) continue;
    rest_.remove_prefix(1);
    if (at_end() || rest_.front() != '"') break;
    append(cell, rest_.substr(0, 1));
    rest_.remove_prefix(1);
  }
  if (!at_end() && rest_.front() != delimiter_ && rest_.front() != '\n' && rest_.front() != '\r') {
    const std::string found = printable(rest_.substr(0, 1));
    skip_line();
    refuse_row(
        fmt::format("expected '{}' or the end of the row after a closing quote, found '{}': write a quote "
                    "within quotes twice",
                    printable({&delimiter_, 1}), found));
  }
  return read_end();
}

// Takes a delimiter or the end of a line.
CsvReader::End CsvReader::read_end() {
  if (at_end()) return End::kFile;
  const char end = rest_.front();
  rest_.remove_prefix(1);
  if (end == delimiter_) return End::kCell;
  if (end == '\r' && !at_end() && rest_.front() == '\n') rest_.remove_prefix(1);
  ++line_;
  return End::kRow;
}

void CsvReader::skip_line() {
  while (!at_end()) {
    const size_t count = rest_.find_first_of("\r\n");
    rest_.remove_prefix(std::min(count, rest_.size()));
    if (count == std::string_view::npos) continue;
    read_end();
    return;
  }
}

void CsvReader::append(std::string* cell, std::string_view text) {
  row_bytes_ += std::ssize(text);
  if (row_bytes_ > kMaxRowBytes)
    fail(ExitCode::kBadData, "{}: line {}: the row has more than {}: is a quote not closed?", source_->name(),
         row_line_, format_bytes(kMaxRowBytes));
  *cell += text;
}

}  // namespace tessera
