// Puts rows together from the values and levels of their columns, as in "Dremel: Interactive Analysis of
// Web-Scale Datasets" (Melnik et al., 2010), section 4.3, by recursion over the schema.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/value.h"
#include "formats/parquet/column_reader.h"
#include "formats/parquet/leaf_value.h"
#include "formats/parquet/schema.h"

namespace tessera::parquet {

class RowAssembler {
 public:
  // All must outlive the assembler; `columns` are fields of the schema's rows.
  RowAssembler(const InputFile& file, const Schema& schema, std::vector<const SchemaNode*> columns,
               bool keeps_null_fields);

  void open_row_group(const RowGroup& group);
  // The next row of the row group, which must have one. Sets bad_value to what is wrong with one of its
  // values, if anything is. Error if columns contradict each other.
  Value next(std::string* bad_value);
  // After the last row of a row group: Error if a column has values left.
  void check_at_end();
  int64_t bytes_read() const;  // of the row group

 private:
  Value assemble(const SchemaNode& node);
  Value assemble_list(const SchemaNode& node);
  Value assemble_map(const SchemaNode& node);
  template <typename OnElement>
  void for_each_element(const SchemaNode& node, OnElement&& element);
  void skip_nulls(const SchemaNode& node);
  void spend(int64_t bytes);
  ColumnReader& reader(int leaf) { return *readers_[static_cast<size_t>(leaf)]; }
  std::string path_of(const SchemaNode& node) const;  // of its first leaf
  [[noreturn]] void fail_at(const SchemaNode& node, const char* message);

  const InputFile& file_;
  const Schema& schema_;
  std::vector<const SchemaNode*> columns_;
  bool keeps_null_fields_;
  // By leaf; null if not read.
  std::vector<std::unique_ptr<ColumnReader>> readers_;
  std::vector<LeafConverter> converters_;
  int64_t row_bytes_left_ = 0;
  std::string* bad_value_ = nullptr;
};

}  // namespace tessera::parquet
