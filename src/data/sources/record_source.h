// The records of one file of a dataset, one after the other.
#pragma once

#include <cstdint>
#include <filesystem>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "base/value.h"

namespace tessera {

enum class RecordKind {
  kText,   // `text` is the document
  kJson,   // `text` is a JSON object, not parsed yet: readers of records do that side by side
  kValue,  // `value` is an object, the row of a table
};

struct Record {
  RecordKind kind = RecordKind::kText;
  std::string text;
  Value value;
  bool counts_rows = false;  // `number` counts rows from 0, otherwise lines from 1
  int64_t number = 0;        // of the row, or of its first line
  int64_t offset_bytes = 0;  // text and JSON: of its first byte in the (unpacked) file

  // "line 7", "row 7"
  std::string place() const;
};

// The value of a JSON record of `file`. Error(kBadData) as parse_value(); says what a file holds where a line
// is only the start of a value.
Value parse_record(const Record& record, const std::filesystem::path& file);

class RecordSource {
 public:
  virtual ~RecordSource() = default;
  // Overwrites *record, reusing its memory; false at the end. Error(kBadData) names file and place; after a
  // RowError (formats/row_error.h) the next call continues with the next record.
  virtual bool next(Record* record) = 0;
  virtual int64_t bytes_read() const = 0;  // of the file as it is on disk, about
  // Columns of a table that cannot be read, which its records lack.
  virtual std::vector<std::string> unreadable_columns() const { return {}; }
};

// By the file's name (input_kind()). A text file is one record, or one per line. Any file but a pre-tokenized
// one. A text file that is one record is cut after max_bytes, rounded up to a whole character.
std::unique_ptr<RecordSource> open_records(const std::filesystem::path& file, bool text_per_line,
                                           int64_t max_bytes = std::numeric_limits<int64_t>::max());

}  // namespace tessera
