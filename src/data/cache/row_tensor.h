// A tensor of a pre-tokenized safetensors file, whose last axis is the row, read row by row.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "formats/safetensors/safetensors.h"

namespace tessera {

// The first `kept` values of each of some rows; of a single row unless these are all of its values.
struct RowBlock {
  int64_t row = 0;
  int64_t num_rows = 1;
  int64_t kept = 0;
};

class RowTensor {
 public:
  // `file` must outlive this. Error(kBadData): the tensor has no integers (or booleans, if it is a mask), or
  // no axis.
  RowTensor(const SafetensorsFile& file, const char* name);

  bool exists() const { return entry_ != nullptr; }
  std::string where() const;  // "FILE: tensor 'NAME'"
  int64_t num_rows() const { return num_rows_; }
  int64_t row_length() const { return row_length_; }
  std::string shape() const;

  // Values, valid until the next call. Error(kBadData) for one that is neither in [0, limit) nor `other`;
  // `expected` says so in words.
  const std::vector<int32_t>& read(const RowBlock& block, int64_t limit, int32_t other,
                                   const std::string& expected);
  const std::vector<int32_t>& read(int64_t row, int64_t limit, int32_t other, const std::string& expected) {
    return read({row, 1, row_length_}, limit, other, expected);
  }
  const std::vector<int32_t>& read_ids(const RowBlock& block, int64_t vocab_size);
  const std::vector<int32_t>& read_labels(const RowBlock& block, int64_t vocab_size);
  // Values of any size, valid until the next call.
  const std::vector<int64_t>& read_values(const RowBlock& block);

 private:
  const SafetensorsFile& file_;
  const SafetensorsEntry* entry_;
  int64_t row_length_ = 0;
  int64_t num_rows_ = 0;
  std::vector<int64_t> values_;
  std::vector<int32_t> ids_;
};

// A file of rows as a data collator gives them: "input_ids" and, if there are any, "labels",
// "attention_mask" and, of an encoder, "token_type_ids".
class CollatedRows {
 protected:
  // `model` ("an encoder"): whose rows these are. Error(kBadData): the file has other tensors.
  CollatedRows(const std::filesystem::path& path, const char* model, bool has_types = false);

  // A row's values, valid until the next call. Errors: RowTensor::read().
  const std::vector<int32_t>& read_ids(int64_t row, int64_t vocab_size) {
    return ids_.read_ids({row, 1, ids_.row_length()}, vocab_size);
  }
  const std::vector<int32_t>& read_labels(int64_t row, int64_t vocab_size) {
    return labels_.read_labels({row, 1, labels_.row_length()}, vocab_size);
  }
  // The range [begin, end) of the ones in a row of attention_mask, which exists. Error(kBadData): zeros are
  // not only before and after them.
  std::pair<size_t, size_t> unpadded_range(int64_t row);

  SafetensorsFile file_;
  RowTensor ids_, labels_, mask_, types_;
};

}  // namespace tessera
