#include "data/source_target_rows.h"

#include <algorithm>
#include <array>
#include <string>

#include "base/error.h"
#include "base/text.h"
#include "data/chat/example.h"
#include "data/row_tokenizer.h"
#include "formats/safetensors/safetensors.h"
#include "tensor/packed_batch.h"
#include "tensor/shape_text.h"

namespace tessera {
namespace {

// How many special tokens the tokenizer adds before and after a text.
struct AddedTokens {
  int64_t before = 0;
  int64_t after = 0;
};

AddedTokens tokens_added_to_texts(const Tokenizer& tokenizer) {
  constexpr const char* kAnyText = "a";
  const std::vector<int32_t> own = tokenizer.encode(kAnyText, /*add_special_tokens=*/false);
  const std::vector<int32_t> all = tokenizer.encode(kAnyText);
  const int64_t before = std::search(all.begin(), all.end(), own.begin(), own.end()) - all.begin();
  return {before, std::max<int64_t>(0, std::ssize(all) - before - std::ssize(own))};
}

// One tensor of rows.
class RowTensor {
 public:
  RowTensor(const SafetensorsFile& file, const char* name) : file_(file), entry_(file.find(name)) {
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

  bool exists() const { return entry_ != nullptr; }
  std::string where() const { return fmt::format("{}: tensor '{}'", file_.path().string(), entry_->name); }
  int64_t num_rows() const { return num_rows_; }
  int64_t row_length() const { return row_length_; }
  std::string shape() const { return shape_text(entry_->shape); }

  // Error(kBadData) for a value that is neither in [0, limit) nor `other`.
  const std::vector<int32_t>& read(int64_t row, int64_t limit, int32_t other, const std::string& expected) {
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

 private:
  const SafetensorsFile& file_;
  const SafetensorsEntry* entry_;
  int64_t row_length_ = 0;
  int64_t num_rows_ = 0;
  std::vector<int64_t> values_;
  std::vector<int32_t> ids_;
};

// The tensors of one file.
class SourceTargetTensors {
 public:
  explicit SourceTargetTensors(const std::filesystem::path& path)
      : file_(SafetensorsFile::open(path)),
        ids_(file_, "input_ids"),
        labels_(file_, "labels"),
        mask_(file_, "attention_mask") {
    for (const SafetensorsEntry& entry : file_.entries()) {
      if (entry.name == "input_ids" || entry.name == "labels" || entry.name == "attention_mask") continue;
      fail(ExitCode::kBadData,
           "{}: tensor '{}': rows of a model with an encoder and a decoder have input_ids, labels and "
           "attention_mask",
           path.string(), printable(entry.name));
    }
    if (!ids_.exists() || !labels_.exists()) {
      fail(ExitCode::kBadData,
           "{}: tensor '{}' is missing: rows of a model with an encoder and a decoder have input_ids and "
           "labels",
           path.string(), ids_.exists() ? "labels" : "input_ids");
    }
    expect_rows(labels_, labels_.num_rows());
    if (mask_.exists()) expect_rows(mask_, mask_.row_length() == ids_.row_length() ? mask_.num_rows() : -1);
    if (ids_.row_length() == 0) fail(ExitCode::kBadData, "{}: no values", ids_.where());
  }

  int64_t num_rows() const { return ids_.num_rows(); }
  // The source without its padding, which is before or after it.
  std::span<const int32_t> source(int64_t row, int64_t vocab_size) {
    const std::vector<int32_t>& ids =
        ids_.read(row, vocab_size, 0, fmt::format("an id from 0 to {}", vocab_size - 1));
    if (!mask_.exists()) return ids;
    const std::vector<int32_t>& mask = mask_.read(row, 2, 0, "0 or 1");
    const auto begin = std::ranges::find(mask, 1), end = std::find(begin, mask.end(), 0);
    if (begin == mask.end() || std::find(end, mask.end(), 1) != mask.end()) {
      fail(ExitCode::kBadData, "{}: row {}: expected ones, with zeros before or after them for padding",
           mask_.where(), row);
    }
    return std::span(ids).subspan(static_cast<size_t>(begin - mask.begin()),
                                  static_cast<size_t>(end - begin));
  }
  std::span<const int32_t> labels(int64_t row, int64_t vocab_size) {
    kept_labels_ = labels_.read(row, vocab_size, kIgnoredLabel,
                                fmt::format("an id from 0 to {} or -100", vocab_size - 1));
    drop_ignored_end(&kept_labels_);
    return kept_labels_;
  }

 private:
  void expect_rows(const RowTensor& tensor, int64_t num_rows) const {
    if (num_rows == ids_.num_rows()) return;
    fail(ExitCode::kBadData, "{}: expected the rows of input_ids, whose shape is {}, found the shape {}",
         tensor.where(), ids_.shape(), tensor.shape());
  }

  SafetensorsFile file_;
  RowTensor ids_, labels_, mask_;
  std::vector<int32_t> kept_labels_;
};

}  // namespace

int64_t encode_cut(const Tokenizer& tokenizer, std::string_view text, bool add_special_tokens,
                   int64_t max_length, std::vector<int32_t>* ids) {
  tokenizer.encode(text, add_special_tokens, ids);
  const std::optional<int32_t> eos = tokenizer.eos_id();
  const bool ends = !eos || (!ids->empty() && ids->back() == *eos);
  if (ends && std::ssize(*ids) <= max_length) return 0;
  AddedTokens added = add_special_tokens ? tokens_added_to_texts(tokenizer) : AddedTokens();
  if (eos && added.after == 0) {
    if (!ends) ids->push_back(*eos);
    added.after = 1;
  }
  const int64_t excess = std::ssize(*ids) - max_length;
  if (excess <= 0) return 0;
  if (added.before + added.after > max_length) {
    fail(ExitCode::kBadConfig,
         "max_source_length, max_target_length: a length of {} has no room for the {} special tokens of the "
         "tokenizer",
         max_length, added.before + added.after);
  }
  const auto end = ids->end() - added.after;
  ids->erase(end - excess, end);
  return excess;
}

void append_target(std::span<const int32_t> labels, const SourceTarget& options, TokenizedRow* row) {
  const size_t source_length = row->ids.size();
  row->sequence_lengths = {static_cast<int32_t>(source_length), static_cast<int32_t>(labels.size() + 1)};
  row->ids.push_back(options.decoder_start_token_id);
  row->labels.assign(source_length + 1, kIgnoredLabel);
  for (const int32_t label : labels) {
    row->ids.push_back(label == kIgnoredLabel ? options.pad_token_id : label);
    row->labels.push_back(label);
  }
}

void make_source_target_row(std::span<const int32_t> ids, std::span<const int32_t> labels,
                            const SourceTarget& options, TokenizedRow* row) {
  const auto cut = [&](std::span<const int32_t> all, int64_t max_length) {
    const auto kept =
        options.cuts_token_ids ? std::min(all.size(), static_cast<size_t>(max_length)) : all.size();
    row->num_cut_tokens += static_cast<int64_t>(all.size() - kept);
    return all.first(kept);
  };
  ids = cut(ids, options.max_source_length);
  labels = cut(labels, options.max_target_length);
  row->ids.assign(ids.begin(), ids.end());
  append_target(labels, options, row);
}

DocumentCounts read_source_target_tensors(std::span<const std::filesystem::path> files, int64_t vocab_size,
                                          const SourceTarget& options, int64_t max_rows, const RowSink& sink,
                                          const std::function<void(int64_t)>& progress) {
  DocumentCounts counts;
  int64_t bytes_before = 0;
  for (const std::filesystem::path& path : files) {
    SourceTargetTensors tensors(path);
    const auto file_bytes = static_cast<int64_t>(std::filesystem::file_size(path));
    for (int64_t row = 0; row < tensors.num_rows() && counts.num_documents < max_rows; ++row) {
      const std::span<const int32_t> labels = tensors.labels(row, vocab_size);
      TokenizedRow tokens;
      make_source_target_row(tensors.source(row, vocab_size), labels, options, &tokens);
      if (is_masked(tokens.labels)) {
        ++counts.num_masked_rows;
        continue;
      }
      ++counts.num_documents;
      counts.num_cut_documents += tokens.num_cut_tokens > 0 ? 1 : 0;
      counts.num_cut_tokens += tokens.num_cut_tokens;
      sink(tokens.ids, tokens.labels, tokens.sequence_lengths);
      if (progress && row % 1024 == 0) progress(bytes_before + file_bytes * row / tensors.num_rows());
    }
    bytes_before += file_bytes;
  }
  return counts;
}

}  // namespace tessera
