#include "data/sources/record_source.h"

#include <algorithm>
#include <array>
#include <optional>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/text.h"
#include "data/sources/record_reader.h"
#include "formats/byte_order_mark.h"
#include "formats/csv/csv_reader.h"
#include "formats/input_files.h"
#include "formats/json_problem.h"
#include "formats/parquet/parquet_reader.h"
#include "formats/value_json.h"
#include "io/byte_stream.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;

// Limit on a document: tokenizing it takes several times its size in memory.
constexpr int64_t kMaxDocumentBytes = int64_t{512} << 20;

bool is_tab_separated(const fs::path& file) {
  const fs::path name = is_compressed(file) ? file.stem() : file;
  return lower_case(name.extension().string()) == ".tsv";
}

// A text file as one document.
class WholeFile final : public RecordSource {
 public:
  WholeFile(const fs::path& file, int64_t max_bytes)
      : stream_(ByteStream::open(file)), max_bytes_(max_bytes) {}

  bool next(Record* record) override {
    if (is_read_) return false;
    is_read_ = true;
    record->kind = RecordKind::kText;
    record->counts_rows = false;
    record->number = 1;
    record->offset_bytes = 0;
    read(&record->text);
    if (record->text.starts_with(kByteOrderMark)) {
      record->text.erase(0, kByteOrderMark.size());
      record->offset_bytes = std::ssize(kByteOrderMark);
    }
    return true;
  }
  int64_t bytes_read() const override { return stream_->bytes_consumed(); }

 private:
  void read(std::string* text) {
    constexpr int64_t kPieceBytes = int64_t{1} << 20;
    // All of a file that is not compressed, and one byte to see its end; then as much as there is already.
    int64_t piece = std::max(kPieceBytes, stream_->size_bytes() + 1);
    if (std::min(piece, max_bytes_) > kMaxDocumentBytes) refuse_length();
    text->clear();
    while (std::ssize(*text) < max_bytes_) {
      const size_t begin = text->size();
      text->resize(begin + static_cast<size_t>(std::min(piece, max_bytes_ - std::ssize(*text))));
      const int64_t count = stream_->read(std::span(*text).subspan(begin));
      text->resize(begin + static_cast<size_t>(count));
      if (count == 0) return;
      piece = std::max(kPieceBytes, std::ssize(*text));
      if (std::ssize(*text) > kMaxDocumentBytes) refuse_length();
    }
    // Up to the start of a character, which the next byte may be in the middle of.
    while (!text->empty() && (static_cast<unsigned char>(text->back()) & 0xC0) == 0x80) text->pop_back();
    if (!text->empty() && static_cast<unsigned char>(text->back()) >= 0x80) text->pop_back();
  }

  [[noreturn]] void refuse_length() const {
    fail(ExitCode::kBadData,
         "{}: a text file is one document, expected of at most {}: split it, or write its parts as rows of a "
         ".jsonl file",
         stream_->name(), format_bytes(kMaxDocumentBytes));
  }

  std::unique_ptr<ByteStream> stream_;
  int64_t max_bytes_;
  bool is_read_ = false;
};

// The lines of a text file, or the objects of a JSON file.
class FileRecords final : public RecordSource {
 public:
  FileRecords(const fs::path& file, RecordReader::Format format)
      : kind_(format == RecordReader::Format::kJson ? RecordKind::kJson : RecordKind::kText),
        stream_(ByteStream::open(file)),
        records_(
            format, [this](std::span<char> destination) { return stream_->read(destination); },
            file.string()) {}

  bool next(Record* record) override {
    record->kind = kind_;
    record->counts_rows = false;
    return records_.next(record);
  }
  int64_t bytes_read() const override { return stream_->bytes_consumed(); }

 private:
  RecordKind kind_;
  std::unique_ptr<ByteStream> stream_;
  RecordReader records_;
};

// The cells that pandas, and with it Hugging Face's datasets, reads as null (STR_NA_VALUES).
constexpr std::array<std::string_view, 19> kNullCells = {
    "",     "#N/A", "#N/A N/A", "#NA",  "-1.#IND", "-1.#QNAN", "-NaN", "-nan", "1.#IND", "1.#QNAN",
    "<NA>", "N/A",  "NA",       "NULL", "NaN",     "None",     "n/a",  "nan",  "null"};

class TableRecords final : public RecordSource {
 public:
  explicit TableRecords(const fs::path& file)
      : reader_(ByteStream::open(file), is_tab_separated(file) ? '\t' : ',') {}

  bool next(Record* record) override {
    record->kind = RecordKind::kValue;
    record->text.clear();
    record->counts_rows = false;
    const bool found = reader_.next(&record->value);
    record->number = reader_.line_number();
    if (!found) return false;
    for (Value::Field& column : *record->value.object()) {
      if (std::find(kNullCells.begin(), kNullCells.end(), *column.value.string()) != kNullCells.end())
        column.value = nullptr;
    }
    return true;
  }
  int64_t bytes_read() const override { return reader_.bytes_consumed(); }

 private:
  CsvReader reader_;
};

bool is_media_feature(const Value& feature) {
  const std::string* type = feature.find_string("_type");
  constexpr std::string_view kMedia[] = {"Image", "Audio", "Video", "Pdf", "Nifti"};
  if (type != nullptr && std::find(std::begin(kMedia), std::end(kMedia), *type) != std::end(kMedia))
    return true;
  if (const Value* element = feature.find("feature")) return is_media_feature(*element);
  const Value::List* items = feature.list();
  return items != nullptr && items->size() == 1 && is_media_feature(items->front());
}

// The columns that the library datasets, which writes this metadata, knows to be images, audio or video.
std::vector<std::string> media_features(const std::string& metadata) {
  std::vector<std::string> columns;
  if (metadata.empty()) return columns;
  try {
    const Value parsed = parse_value(metadata, "huggingface");
    const Value* info = parsed.find("info");
    const Value* features = info == nullptr ? nullptr : info->find("features");
    if (features == nullptr || features->object() == nullptr) return columns;
    for (const Value::Field& feature : *features->object())
      if (is_media_feature(feature.value)) columns.push_back(feature.name);
  } catch (const Error&) {  // not that library's
  }
  return columns;
}

// The rows of a Parquet file. Columns of kinds that cannot be read are missing.
class ParquetRecords final : public RecordSource {
 public:
  explicit ParquetRecords(const fs::path& file) : reader_(file) {
    std::vector<std::string> columns;
    for (std::string& column : reader_.column_names()) {
      (reader_.problem_of(column).empty() ? columns : unreadable_).push_back(std::move(column));
    }
    reader_.drop_null_fields();
    reader_.select(columns);
    media_ = media_features(reader_.metadata("huggingface"));
  }

  bool next(Record* record) override {
    record->kind = RecordKind::kValue;
    record->text.clear();
    record->counts_rows = true;
    const bool found = reader_.next(&record->value);
    record->number = reader_.row_number();
    if (found && !media_.empty()) mark_media(&record->value);
    return found;
  }
  int64_t bytes_read() const override { return reader_.bytes_consumed(); }
  std::vector<std::string> unreadable_columns() const override { return unreadable_; }

 private:
  // Whatever they are stored as, they look as their feature does.
  void mark_media(Value* row) const {
    for (Value::Field& column : *row->object()) {
      const bool is_empty =
          column.value.is_null() || column.value == Value(Value::List()) || column.value == Value("");
      if (!is_empty && std::find(media_.begin(), media_.end(), column.name) != media_.end())
        column.value = Value::Object{{"bytes", true}, {"path", nullptr}};
    }
  }

  ParquetReader reader_;
  std::vector<std::string> unreadable_;
  std::vector<std::string> media_;
};

}  // namespace

std::string Record::place() const { return fmt::format("{} {}", counts_rows ? "row" : "line", number); }

Value parse_record(const Record& record, const fs::path& file) {
  try {
    return parse_value(record.text, file.string(), record.number);
  } catch (const Error& error) {
    const std::optional<JsonProblem> problem = find_json_problem(record.text);
    if (!problem || !problem->is_at_end) throw;
    fail(error.code(), "{}: write an object per line, or one array of objects", error.what());
  }
}

std::unique_ptr<RecordSource> open_records(const fs::path& file, bool text_per_line, int64_t max_bytes) {
  switch (input_kind(file)) {
    case InputKind::kParquet:
      return std::make_unique<ParquetRecords>(file);
    case InputKind::kTable:
      return std::make_unique<TableRecords>(file);
    case InputKind::kJson:
      return std::make_unique<FileRecords>(file, RecordReader::Format::kJson);
    case InputKind::kText:
      if (text_per_line) return std::make_unique<FileRecords>(file, RecordReader::Format::kLines);
      return std::make_unique<WholeFile>(file, max_bytes);
    case InputKind::kPretokenized:
      break;
  }
  TESSERA_CHECK(false, "{} has no records", file.string());
}

}  // namespace tessera
