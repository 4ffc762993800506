#include "data/sources/record_source.h"

#include <algorithm>
#include <span>
#include <utility>

#include "base/error.h"
#include "data/sources/record_reader.h"
#include "formats/byte_order_mark.h"
#include "formats/input_files.h"
#include "formats/parquet/parquet_reader.h"
#include "io/file.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;

// A text file as one document.
class WholeFile final : public RecordSource {
 public:
  explicit WholeFile(const fs::path& file) : file_(InputFile::open(file)) {}

  bool next(Record* record) override {
    if (is_read_) return false;
    is_read_ = true;
    record->text.resize(static_cast<size_t>(file_.size_bytes()));
    file_.read_at(0, std::as_writable_bytes(std::span(record->text)));
    record->kind = RecordKind::kText;
    record->counts_rows = false;
    record->number = 1;
    record->offset_bytes = 0;
    if (record->text.starts_with(kByteOrderMark)) {
      record->text.erase(0, kByteOrderMark.size());
      record->offset_bytes = static_cast<int64_t>(kByteOrderMark.size());
    }
    return true;
  }
  int64_t bytes_read() const override { return is_read_ ? file_.size_bytes() : 0; }

 private:
  InputFile file_;
  bool is_read_ = false;
};

// The lines of a text file, or the objects of a JSON file.
class FileRecords final : public RecordSource {
 public:
  FileRecords(const fs::path& file, RecordReader::Format format)
      : kind_(format == RecordReader::Format::kJson ? RecordKind::kJson : RecordKind::kText),
        file_(InputFile::open(file)),
        records_(
            format, [this](std::span<char> destination) { return read_some(destination); }, file.string()) {}

  bool next(Record* record) override {
    record->kind = kind_;
    record->counts_rows = false;
    return records_.next(record);
  }
  int64_t bytes_read() const override { return offset_bytes_; }

 private:
  int64_t read_some(std::span<char> destination) {
    const int64_t count = std::min(std::ssize(destination), file_.size_bytes() - offset_bytes_);
    file_.read_at(offset_bytes_, std::as_writable_bytes(destination.first(static_cast<size_t>(count))));
    offset_bytes_ += count;
    return count;
  }

  RecordKind kind_;
  InputFile file_;
  int64_t offset_bytes_ = 0;
  RecordReader records_;
};

// The rows of a Parquet file. Columns of kinds that cannot be read are missing.
class ParquetRecords final : public RecordSource {
 public:
  explicit ParquetRecords(const fs::path& file) : reader_(ParquetReader::open(file)) {
    std::vector<std::string> columns = reader_.column_names();
    std::erase_if(columns, [this](const std::string& column) { return !reader_.problem_of(column).empty(); });
    reader_.select(columns);
  }

  bool next(Record* record) override {
    record->kind = RecordKind::kValue;
    record->text.clear();
    const bool found = reader_.next(&record->value);
    record->counts_rows = true;
    record->number = reader_.row_number();
    return found;
  }
  int64_t bytes_read() const override { return reader_.bytes_consumed(); }

 private:
  ParquetReader reader_;
};

}  // namespace

std::string Record::place() const { return fmt::format("{} {}", counts_rows ? "row" : "line", number); }

std::unique_ptr<RecordSource> open_records(const fs::path& file, bool text_per_line) {
  const InputKind kind = input_kind(file);
  if (kind == InputKind::kParquet) return std::make_unique<ParquetRecords>(file);
  if (kind == InputKind::kJson) return std::make_unique<FileRecords>(file, RecordReader::Format::kJson);
  if (text_per_line) return std::make_unique<FileRecords>(file, RecordReader::Format::kLines);
  return std::make_unique<WholeFile>(file);
}

}  // namespace tessera
