// Rows of a Parquet file, without Arrow.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/value.h"
#include "formats/parquet/metadata.h"
#include "formats/parquet/row_assembler.h"
#include "formats/parquet/schema.h"
#include "io/file.h"

namespace tessera {

// Reads one row after another; memory holds a page of each selected column, not a row group. Structs become
// objects, lists and repeated fields lists, maps with strings or integers as keys objects, dates, times and
// decimals text as Python's str() writes them, JSON the value it encodes; nulls are kept, and bytes that
// are not UTF-8, such as images, are {"bytes": the first of them in hexadecimal digits}. Errors are
// kNoInput or kIoError of the file, otherwise kBadData: a RowError for a row with a string that is not
// UTF-8 or not JSON (the next row can be read), another Error, which names the column, for a damaged file
// or anything unknown.
class ParquetReader {
 public:
  explicit ParquetReader(const std::filesystem::path& path);
  ParquetReader(const ParquetReader&) = delete;
  ParquetReader& operator=(const ParquetReader&) = delete;

  int64_t num_rows() const { return num_rows_; }
  std::vector<std::string> column_names() const;
  // Why the column cannot be read ("its type BSON is not supported"); empty if it can.
  std::string problem_of(const std::string& column) const;

  // The value that the writing program stored under a key ("huggingface"); "" if it stored none.
  std::string metadata(std::string_view key) const;

  // Leaves out the fields of structs that are null, before the first row is read: a file has the fields of
  // all rows in every row.
  void drop_null_fields() { keeps_null_fields_ = false; }
  // Reads only these columns from now on, from the first row; all columns without it. Rows have them in the
  // file's order. Error if there is no such column, or a problem with it.
  void select(std::span<const std::string> columns);

  // False after the last row. The row is an object.
  bool next(Value* row);
  // The number, from 0, of the row that next() last returned or refused; -1 before the first.
  int64_t row_number() const { return next_row_ - 1; }
  // The next row is `row`, from 0 to num_rows(). Row groups before it are not read.
  void skip_to(int64_t row);

  // Compressed bytes of the selected columns, and how many of them have been read or skipped.
  int64_t total_bytes() const { return bytes_before(metadata_.row_groups.size()); }
  int64_t bytes_consumed() const;

 private:
  const std::string& name() const { return file_.path().native(); }
  void check_row_groups();
  std::string problem_of(const parquet::SchemaNode& column) const;
  const parquet::SchemaNode& column(const std::string& wanted) const;
  void start();
  void open_row_group();
  int64_t selected_bytes(const parquet::RowGroup& group) const;
  int64_t bytes_before(size_t end_group) const;

  InputFile file_;
  parquet::FileMetadata metadata_;
  parquet::Schema schema_;
  int64_t num_rows_ = 0;
  std::vector<const parquet::SchemaNode*> columns_;  // in the order of the schema
  bool keeps_null_fields_ = true;
  std::optional<parquet::RowAssembler> assembler_;
  size_t group_ = 0;       // of the next row
  int64_t group_row_ = 0;  // the next row within it
  bool is_open_ = false;
  int64_t next_row_ = 0;
};

}  // namespace tessera
