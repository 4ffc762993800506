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
  constexpr std::array kIntegers = {DType::kI64, DType::kI32, DType::kI16, DType::kI8,
                                    DType::kU64, DType::kU32, DType::kU16, DType::kU8};
  const bool is_mask = entry_->name.find("mask") != std::string::npos;
  if (std::ranges::find(kIntegers, entry_->dtype) == kIntegers.end() &&
      !(is_mask && entry_->dtype == DType::kBool)) {
    fail(ExitCode::kBadData, "{}: expected an integer type, found {}", where(), dtype_name(entry_->dtype));
  }
  if (entry_->shape.empty())
    fail(ExitCode::kBadData, "{}: expected at least one axis, found a scalar", where());
  row_length_ = entry_->shape.back();
  num_rows_ = 1;
  for (size_t axis = 0; axis + 1 < entry_->shape.size(); ++axis) num_rows_ *= entry_->shape[axis];
}

std::string RowTensor::where() const {
  return fmt::format("{}: tensor '{}'", file_.path().string(), entry_->name);
}

std::string RowTensor::shape() const { return shape_text(entry_->shape); }

const std::vector<int64_t>& RowTensor::read_values(const RowBlock& block) {
  const int64_t count = block.num_rows * block.kept;
  values_.resize(static_cast<size_t>(count));
  file_.read(*entry_, block.row * row_length_, TensorView(values_.data(), DType::kI64, Shape{count}));
  return values_;
}

const std::vector<int32_t>& RowTensor::read(const RowBlock& block, int64_t limit, int32_t other,
                                            const std::string& expected) {
  ids_.clear();
  for (const int64_t value : read_values(block)) {
    if (value != other && (value < 0 || value >= limit)) {
      fail(ExitCode::kBadData, "{}: row {}, column {}: expected {}, found {}", where(),
           block.row + std::ssize(ids_) / block.kept, std::ssize(ids_) % block.kept, expected, value);
    }
    ids_.push_back(static_cast<int32_t>(value));
  }
  return ids_;
}

const std::vector<int32_t>& RowTensor::read_ids(const RowBlock& block, int64_t vocab_size) {
  return read(block, vocab_size, 0, fmt::format("an id from 0 to {}", vocab_size - 1));
}

const std::vector<int32_t>& RowTensor::read_labels(const RowBlock& block, int64_t vocab_size) {
  return read(block, vocab_size, kIgnoredLabel, fmt::format("an id from 0 to {} or -100", vocab_size - 1));
}

CollatedRows::CollatedRows(const std::filesystem::path& path, const char* model, bool has_types)
    : file_(SafetensorsFile::open(path)),
      ids_(file_, "input_ids"),
      labels_(file_, "labels"),
      mask_(file_, "attention_mask"),
      types_(file_, "token_type_ids") {
  for (const SafetensorsEntry& entry : file_.entries()) {
    if (entry.name == "input_ids" || entry.name == "labels" || entry.name == "attention_mask") continue;
    if (has_types && entry.name == "token_type_ids") continue;
    fail(ExitCode::kBadData, "{}: tensor '{}': rows of {} have input_ids, labels, {}attention_mask",
         path.string(), printable(entry.name), model, has_types ? "token_type_ids and " : "and ");
  }
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
