// Rows of a CSV or TSV file (RFC 4180) as objects of strings.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/value.h"
#include "io/byte_stream.h"

namespace tessera {

// The first row names the columns. A cell in double quotes may hold delimiters, newlines and, doubled,
// quotes. Rows end with LF, CRLF or CR; blank lines and a byte order mark are skipped. Every cell is a
// string, an empty one too. Rows of more than 64 MiB are refused, so that a quote that is never closed does
// not take all memory.
class CsvReader {
 public:
  // Reads the header: Error(kBadData) if there is none, or if it names a column twice.
  CsvReader(std::unique_ptr<ByteStream> source, char delimiter);

  const std::vector<std::string>& column_names() const { return names_; }
  // False at the end. RowError names file, line, what was expected and what was found; the next call reads
  // the row after it.
  bool next(Value* row);
  // The line, from 1, where the row that next() last returned or refused begins.
  int64_t line_number() const { return row_line_; }
  int64_t bytes_consumed() const { return source_->bytes_consumed(); }

 private:
  enum class End { kCell, kRow, kFile };

  bool read_row(size_t max_cells);
  End read_cell(std::string* cell);
  End read_quoted_cell(std::string* cell);
  void read_plain_text(std::string* cell);
  End read_end();
  void skip_line();
  void append(std::string* cell, std::string_view text);
  bool at_end();
  [[noreturn]] void refuse_row(const std::string& problem);

  std::unique_ptr<ByteStream> source_;
  char delimiter_;
  std::string buffer_;
  std::string_view rest_;  // of buffer_
  int64_t line_ = 1;       // of the next byte
  int64_t row_line_ = 0;
  int64_t row_bytes_ = 0;
  std::vector<std::string> names_;
  std::vector<std::string> cells_;
  size_t num_cells_ = 0;  // also counts those above max_cells, which are not kept
};

}  // namespace tessera
