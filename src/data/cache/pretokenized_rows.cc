#include "data/cache/pretokenized_rows.h"

#include <algorithm>
#include <array>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "base/text.h"
#include "formats/safetensors/safetensors.h"
#include "tensor/packed_batch.h"
#include "tensor/shape_text.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;

// Values read at once, unless a row is longer.
constexpr int64_t kBlockValues = int64_t{1} << 18;

bool is_integer(DType dtype) {
  constexpr std::array kIntegers = {DType::kI64, DType::kI32, DType::kI16, DType::kI8,
                                    DType::kU64, DType::kU32, DType::kU16, DType::kU8};
  return std::find(kIntegers.begin(), kIntegers.end(), dtype) != kIntegers.end();
}

constexpr std::array<std::string_view, 6> kTensors = {"input_ids",    "labels",          "attention_mask",
                                                      "position_ids", "completion_mask", "assistant_masks"};

// Reads the rows of one file.
class RowTensors {
 public:
  explicit RowTensors(const fs::path& path) : file_(SafetensorsFile::open(path)) {
    for (const SafetensorsEntry& entry : file_.entries()) {
      if (std::find(kTensors.begin(), kTensors.end(), entry.name) == kTensors.end()) {
        fail(ExitCode::kBadData, "{}: tensor '{}': a pre-tokenized dataset has {}", name(),
             printable(entry.name), fmt::join(kTensors, ", "));
      }
    }
    input_ids_ = file_.find("input_ids");
    if (input_ids_ == nullptr) fail(ExitCode::kBadData, "{}: tensor 'input_ids' is missing", name());
    for (const SafetensorsEntry& entry : file_.entries()) {
      const bool is_mask = entry.name.find("mask") != std::string::npos;
      check(entry, is_mask && entry.dtype == DType::kBool);
    }
    labels_ = file_.find("labels");
    attention_mask_ = file_.find("attention_mask");
    position_ids_ = file_.find("position_ids");
    completion_mask_ = file_.find("completion_mask");
    assistant_masks_ = file_.find("assistant_masks");
    row_length_ = input_ids_->shape.back();
    int64_t num_values = 1;
    for (const int64_t dim : input_ids_->shape) num_values *= dim;
    num_rows_ = row_length_ == 0 ? 0 : num_values / row_length_;
  }

  bool has(const std::string& tensor) const { return file_.find(tensor) != nullptr; }
  std::string name() const { return file_.path().string(); }
  bool has_labels() const {
    return labels_ != nullptr || completion_mask_ != nullptr || assistant_masks_ != nullptr;
  }
  int64_t num_rows() const { return num_rows_; }
  int64_t row_length() const { return row_length_; }

  // Reads the first `kept` values of each of rows [row, row + num_rows); num_rows = 1 unless kept =
  // row_length. Labels are made as TRL makes them: given labels, or else the ids where every mask is 1.
  void read(int64_t row, int64_t num_rows, int64_t kept, int64_t vocab_size, bool reads_completion_mask,
            std::vector<int32_t>* ids, std::vector<int32_t>* labels) {
    read_values(*input_ids_, row, num_rows, kept);
    convert(*input_ids_, row, kept, ids, fmt::format("an id from 0 to {}", vocab_size - 1),
            [&](int64_t value) { return 0 <= value && value < vocab_size; });
    if (labels != nullptr && labels_ == nullptr) *labels = *ids;
    if (labels_ != nullptr) {
      read_values(*labels_, row, num_rows, kept);
      convert(*labels_, row, kept, labels, fmt::format("an id from 0 to {} or -100", vocab_size - 1),
              [&](int64_t value) { return value == kIgnoredLabel || (0 <= value && value < vocab_size); });
    } else if (labels != nullptr) {
      if (reads_completion_mask) apply_mask(completion_mask_, row, num_rows, kept, labels);
      apply_mask(assistant_masks_, row, num_rows, kept, labels);
    }
    if (attention_mask_ != nullptr) {
      read_values(*attention_mask_, row, num_rows, kept);
      convert(*attention_mask_, row, kept, &mask_, "1 (mark padding by the label -100 instead)",
              [](int64_t value) { return value == 1; });
    }
  }

  // The lengths of the documents in a row, where its positions start again; empty for one.
  void read_lengths(int64_t row, int64_t kept, std::vector<int32_t>* lengths) {
    lengths->clear();
    if (position_ids_ == nullptr) return;
    read_values(*position_ids_, row, 1, kept);
    for (size_t i = 0; i < values_.size(); ++i) {
      if (values_[i] == 0) lengths->push_back(0);
      if (lengths->empty() || values_[i] != lengths->back()) {
        fail(ExitCode::kBadData, "{}: tensor 'position_ids': row {}, column {}: expected {}, found {}",
             name(), row, i,
             lengths->empty() ? "0" : fmt::format("{}, or 0 where a document begins", lengths->back()),
             values_[i]);
      }
      ++lengths->back();
    }
    if (lengths->size() == 1) lengths->clear();
  }

 private:
  void apply_mask(const SafetensorsEntry* entry, int64_t row, int64_t num_rows, int64_t kept,
                  std::vector<int32_t>* labels) {
    if (entry == nullptr) return;
    read_values(*entry, row, num_rows, kept);
    convert(*entry, row, kept, &mask_, "0 or 1", [](int64_t value) { return value == 0 || value == 1; });
    for (size_t i = 0; i < mask_.size(); ++i) {
      if (mask_[i] == 0) (*labels)[i] = kIgnoredLabel;
    }
  }

  void check(const SafetensorsEntry& entry, bool may_be_boolean) const {
    if (!is_integer(entry.dtype) && !may_be_boolean) {
      fail(ExitCode::kBadData, "{}: tensor '{}': expected an integer type, found {}", name(), entry.name,
           dtype_name(entry.dtype));
    }
    if (entry.shape.empty()) {
      fail(ExitCode::kBadData, "{}: tensor '{}': expected at least one axis, found a scalar", name(),
           entry.name);
    }
    if (entry.shape != input_ids_->shape) {
      fail(ExitCode::kBadData, "{}: tensor '{}': expected shape {} as input_ids has, found {}", name(),
           entry.name, shape_text(input_ids_->shape), shape_text(entry.shape));
    }
  }

  void read_values(const SafetensorsEntry& entry, int64_t row, int64_t num_rows, int64_t kept) {
    values_.resize(static_cast<size_t>(num_rows * kept));
    file_.read(entry, row * row_length_,
               TensorView(values_.data(), DType::kI64, Shape{static_cast<int64_t>(values_.size())}));
  }

  template <typename Predicate>
  void convert(const SafetensorsEntry& entry, int64_t first_row, int64_t kept, std::vector<int32_t>* out,
               const std::string& expected, Predicate is_good) const {
    const auto bad = std::find_if_not(values_.begin(), values_.end(), is_good);
    if (bad != values_.end()) {
      const int64_t at = bad - values_.begin();
      fail(ExitCode::kBadData, "{}: tensor '{}': row {}, column {}: expected {}, found {}", name(),
           entry.name, first_row + at / kept, at % kept, expected, *bad);
    }
    out->resize(values_.size());
    std::transform(values_.begin(), values_.end(), out->begin(),
                   [](int64_t value) { return static_cast<int32_t>(value); });
  }

  SafetensorsFile file_;
  const SafetensorsEntry* input_ids_;
  const SafetensorsEntry* labels_;
  const SafetensorsEntry* attention_mask_;
  const SafetensorsEntry* position_ids_;
  const SafetensorsEntry* completion_mask_;
  const SafetensorsEntry* assistant_masks_;
  int64_t row_length_;
  int64_t num_rows_;
  std::vector<int64_t> values_;
  std::vector<int32_t> mask_;
};

}  // namespace

bool has_tensor(const fs::path& file, const std::string& name) { return RowTensors(file).has(name); }

bool any_has_labels(std::span<const fs::path> files) {
  return std::any_of(files.begin(), files.end(),
                     [](const fs::path& file) { return RowTensors(file).has_labels(); });
}

DocumentCounts read_pretokenized_rows(std::span<const fs::path> files, int64_t vocab_size, int64_t max_length,
                                      bool with_labels, bool reads_completion_mask, bool drops_masked,
                                      int64_t max_rows, const RowSink& sink,
                                      const std::function<void(int64_t)>& progress) {
  DocumentCounts counts;
  std::vector<int32_t> ids;
  std::vector<int32_t> labels;
  std::vector<int32_t> lengths;
  int64_t bytes_before = 0;
  for (const fs::path& path : files) {
    RowTensors tensors(path);
    const int64_t length = tensors.row_length();
    const int64_t kept = std::min(length, max_length);
    const int64_t block_rows =
        kept == length ? std::max<int64_t>(1, kBlockValues / std::max<int64_t>(1, length)) : 1;
    const auto file_bytes = static_cast<int64_t>(fs::file_size(path));
    const int64_t wanted = std::min(tensors.num_rows(), max_rows - counts.num_documents);
    for (int64_t row = 0; row < wanted; row += block_rows) {
      const int64_t num_rows = std::min(block_rows, wanted - row);
      tensors.read(row, num_rows, kept, vocab_size, reads_completion_mask, &ids,
                   with_labels ? &labels : nullptr);
      for (int64_t i = 0; i < num_rows; ++i) {
        const auto begin = static_cast<size_t>(i * kept);
        const auto count = static_cast<size_t>(kept);
        if (with_labels && (drops_masked || kept < length) &&
            is_masked(std::span(labels).subspan(begin, count))) {
          ++counts.num_masked_rows;
          continue;
        }
        ++counts.num_documents;
        tensors.read_lengths(row + i, kept, &lengths);
        sink(std::span(ids).subspan(begin, count),
             with_labels ? std::span(labels).subspan(begin, count) : std::span<int32_t>(), lengths);
      }
      if (progress) progress(bytes_before + file_bytes * (row + num_rows) / tensors.num_rows());
    }
    bytes_before += file_bytes;
    if (kept < length) {
      counts.num_cut_documents += wanted;
      counts.num_cut_tokens += wanted * (length - kept);
    }
  }
  return counts;
}

}  // namespace tessera
