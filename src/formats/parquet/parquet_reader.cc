#include "formats/parquet/parquet_reader.h"

#include <algorithm>

#include "base/error.h"
#include "base/text.h"
#include "formats/parquet/leaf_value.h"
#include "formats/parquet/metadata.h"
#include "formats/parquet/problem.h"
#include "formats/parquet/row_assembler.h"
#include "formats/parquet/schema.h"
#include "formats/row_error.h"
#include "io/file.h"

namespace tessera {

using parquet::RowGroup;
using parquet::SchemaNode;

ParquetReader::ParquetReader(const std::filesystem::path& path)
    : file_(InputFile::open(path)), metadata_(parquet::read_metadata(file_)) {
  try {
    schema_ = parquet::build_schema(metadata_.schema);
    check_row_groups();
  } catch (const parquet::Problem& problem) {
    fail(ExitCode::kBadData, "{}: the Parquet footer is damaged: {}", name(), problem.what());
  }
  for (const SchemaNode& column : schema_.columns) columns_.push_back(&column);
}

void ParquetReader::check_row_groups() {
  for (const RowGroup& group : metadata_.row_groups) {
    if (group.columns.size() != schema_.leaves.size())
      parquet::reject("a row group has {} column chunks, the schema {} leaves", group.columns.size(),
                      schema_.leaves.size());
    if (group.num_rows > INT64_MAX - num_rows_) parquet::reject("the row groups have too many rows");
    num_rows_ += group.num_rows;
  }
}

std::string ParquetReader::problem_of(const SchemaNode& column) const {
  for (int leaf = column.first_leaf; leaf < column.first_leaf + column.num_leaves; ++leaf) {
    const parquet::Leaf& part = schema_.leaves[static_cast<size_t>(leaf)];
    if (part.is_variant) return "its type VARIANT is not supported";
    const std::string problem = parquet::LeafConverter(*part.element).problem();
    if (!problem.empty()) return problem;
  }
  return "";
}

const SchemaNode& ParquetReader::column(const std::string& wanted) const {
  const auto found = std::find_if(schema_.columns.begin(), schema_.columns.end(),
                                  [&](const SchemaNode& node) { return node.name == wanted; });
  if (found == schema_.columns.end()) {
    std::string names;
    for (const SchemaNode& node : schema_.columns) names += (names.empty() ? "" : ", ") + node.name;
    fail(ExitCode::kBadData, "{}: no column '{}': expected one of {}", name(), printable(wanted),
         printable(names, 1000));
  }
  return *found;
}

void ParquetReader::select(std::span<const std::string> names) {
  columns_.clear();
  for (const std::string& wanted : names) columns_.push_back(&column(wanted));
  std::sort(columns_.begin(), columns_.end());
  columns_.erase(std::unique(columns_.begin(), columns_.end()), columns_.end());
  assembler_.reset();
  start();
  skip_to(0);
}

// Refuses columns that cannot be read, once it is known which ones are.
void ParquetReader::start() {
  if (assembler_) return;
  for (const SchemaNode* selected : columns_) {
    if (const std::string problem = problem_of(*selected); !problem.empty())
      fail(ExitCode::kBadData, "{}: column '{}': {}: leave the column out", name(), printable(selected->name),
           problem);
  }
  assembler_.emplace(file_, schema_, columns_, keeps_null_fields_);
}

// Opens the row group of the next row, if that is not open yet.
void ParquetReader::open_row_group() {
  while (group_row_ == metadata_.row_groups[group_].num_rows) {
    if (is_open_) assembler_->check_at_end();
    is_open_ = false;
    ++group_;
    group_row_ = 0;
  }
  if (!is_open_) assembler_->open_row_group(metadata_.row_groups[group_]);
  is_open_ = true;
}

bool ParquetReader::next(Value* row) {
  start();
  if (next_row_ == num_rows_) return false;
  open_row_group();
  std::string bad_value;
  *row = assembler_->next(&bad_value);
  ++group_row_;
  ++next_row_;
  if (next_row_ == num_rows_) assembler_->check_at_end();
  if (!bad_value.empty())
    throw RowError(ExitCode::kBadData, fmt::format("{}: row {}: {}", name(), next_row_ - 1, bad_value));
  return true;
}

void ParquetReader::skip_to(int64_t row) {
  TESSERA_CHECK(0 <= row && row <= num_rows_, "row {} of {}", row, num_rows_);
  start();
  int64_t first = 0;
  size_t group = 0;
  while (group < metadata_.row_groups.size() && row >= first + metadata_.row_groups[group].num_rows)
    first += metadata_.row_groups[group++].num_rows;
  if (group != group_ || row < next_row_) {
    group_ = group;
    group_row_ = 0;
    next_row_ = first;
    is_open_ = false;
  }
  std::string ignored;
  for (; next_row_ < row; ++next_row_, ++group_row_) {
    open_row_group();
    assembler_->next(&ignored);
  }
}

int64_t ParquetReader::selected_bytes(const RowGroup& group) const {
  int64_t bytes = 0;
  for (const SchemaNode* selected : columns_) {
    for (int leaf = selected->first_leaf; leaf < selected->first_leaf + selected->num_leaves; ++leaf)
      bytes += std::clamp<int64_t>(group.columns[static_cast<size_t>(leaf)].total_compressed_size, 0,
                                   file_.size_bytes());
  }
  return bytes;
}

int64_t ParquetReader::bytes_before(size_t end_group) const {
  int64_t bytes = 0;
  for (size_t group = 0; group < end_group; ++group) bytes += selected_bytes(metadata_.row_groups[group]);
  return bytes;
}

std::string ParquetReader::metadata(std::string_view key) const {
  for (const auto& [name, text] : metadata_.texts) {
    if (name == key) return text;
  }
  return "";
}

std::vector<std::string> ParquetReader::column_names() const {
  std::vector<std::string> names;
  for (const SchemaNode& column : schema_.columns) names.push_back(column.name);
  return names;
}

std::string ParquetReader::problem_of(const std::string& name) const { return problem_of(column(name)); }

int64_t ParquetReader::bytes_consumed() const {
  return bytes_before(group_) + (is_open_ ? assembler_->bytes_read() : 0);
}

}  // namespace tessera
