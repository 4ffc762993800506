#include "data/cache/row_tensor.h"

#include <algorithm>
#include <array>

#include "base/error.h"
#include "base/text.h"
#include "tensor/packed_batch.h"
#include "tensor/shape_text.h"

namespace tessera {

RowTensor::RowTensor(const SafetensorsFile& file, const char* name) : file_(file), entry_(file.find(name)) {
  if (entry_ == nullptr) return;
  constexpr std::array kIntegers = {DType::kI64, DType::kI32, DType::kI16, DType::kI8,  DType::kU64,
                                    DType::kU32, DType::kU16, DType::kU8,  DType::kBool};
  if (std::ranges::find(kIntegers, entry_->dtype) == kIntegers.end() || entry_->shape.empty()) {
    fail(ExitCode::kBadData, "{}: expected integers with at least one axis, found {} {}", where(),
         dtype_name(entry_->dtype), shape_text(entry_->shape));
  }
  row_length_ = entry_->shape.back();
  num_rows_ = 1;
  for (size_t axis = 0; axis + 1 < entry_->shape.size(); ++axis) num_rows_ *= entry_->shape[axis];
}

std::string RowTensor::where() const {
  return fmt::format("{}: tensor '{}'", file_.path().string(), entry_->name);
}

std::string RowTensor::shape() const { return shape_text(entry_->shape); }

const std::vector<int32_t>& RowTensor::read(int64_t row, int64_t limit, int32_t other,
                                            const std::string& expected) {
  values_.resize(static_cast<size_t>(row_length_));
  file_.read(*entry_, row * row_length_, TensorView(values_.data(), DType::kI64, Shape{row_length_}));
  ids_.clear();
  for (const int64_t value : values_) {
    if (value != other && (value < 0 || value >= limit)) {
      fail(ExitCode::kBadData, "{}: row {}, column {}: expected {}, found {}", where(), row, ids_.size(),
           expected, value);
    }
    ids_.push_back(static_cast<int32_t>(value));
  }
  return ids_;
}

CollatedRows::CollatedRows(const std::filesystem::path& path, const char* model)
    : file_(SafetensorsFile::open(path)),
      ids_(file_, "input_ids"),
      labels_(file_, "labels"),
      mask_(file_, "attention_mask") {
  for (const SafetensorsEntry& entry : file_.entries()) {
    if (entry.name == "input_ids" || entry.name == "labels" || entry.name == "attention_mask") continue;
    fail(ExitCode::kBadData, "{}: tensor '{}': rows of {} have input_ids, labels and attention_mask",
         path.string(), printable(entry.name), model);
  }
}

const std::vector<int32_t>& CollatedRows::read_ids(int64_t row, int64_t vocab_size) {
  return ids_.read(row, vocab_size, 0, fmt::format("an id from 0 to {}", vocab_size - 1));
}

const std::vector<int32_t>& CollatedRows::read_labels(int64_t row, int64_t vocab_size) {
  return labels_.read(row, vocab_size, kIgnoredLabel,
                      fmt::format("an id from 0 to {} or -100", vocab_size - 1));
}

std::pair<size_t, size_t> CollatedRows::unpadded_range(int64_t row) {
  const std::vector<int32_t>& mask = mask_.read(row, 2, 0, "0 or 1");
  const auto begin = std::ranges::find(mask, 1), end = std::find(begin, mask.end(), 0);
  if (begin == mask.end() || std::find(end, mask.end(), 1) != mask.end()) {
    fail(ExitCode::kBadData, "{}: row {}: expected ones, with zeros before or after them for padding",
         mask_.where(), row);
  }
  return {static_cast<size_t>(begin - mask.begin()), static_cast<size_t>(end - mask.begin())};
}

}  // namespace tessera
