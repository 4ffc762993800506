#include "data/source_target_rows.h"

#include <algorithm>
#include <string>

#include "base/error.h"
#include "data/cache/row_tensor.h"
#include "data/chat/example.h"
#include "data/row_tokenizer.h"
#include "tensor/packed_batch.h"

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

// The tensors of one file.
class SourceTargetTensors : CollatedRows {
 public:
  explicit SourceTargetTensors(const std::filesystem::path& path)
      : CollatedRows(path, "a model with an encoder and a decoder") {
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
    const std::vector<int32_t>& ids = read_ids(row, vocab_size);
    if (!mask_.exists()) return ids;
    const auto [begin, end] = unpadded_range(row);
    return std::span(ids).subspan(begin, end - begin);
  }
  std::span<const int32_t> labels(int64_t row, int64_t vocab_size) {
    kept_labels_ = read_labels(row, vocab_size);
    drop_ignored_end(&kept_labels_);
    return kept_labels_;
  }

 private:
  void expect_rows(const RowTensor& tensor, int64_t num_rows) const {
    if (num_rows == ids_.num_rows()) return;
    fail(ExitCode::kBadData, "{}: expected the rows of input_ids, whose shape is {}, found the shape {}",
         tensor.where(), ids_.shape(), tensor.shape());
  }

  std::vector<int32_t> kept_labels_;
};

}  // namespace

int64_t encode_cut(const Tokenizer& tokenizer, std::string_view text, bool add_special_tokens,
                   const TextLimit& limit, std::vector<int32_t>* ids) {
  const int64_t max_length = limit.max_length;
  tokenizer.encode(text, add_special_tokens, ids);
  const std::optional<int32_t> eos = limit.ends_texts ? tokenizer.eos_id() : std::nullopt;
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
    fail(ExitCode::kBadConfig, "{}: a length of {} has no room for the {} special tokens of the tokenizer",
         limit.setting, max_length, added.before + added.after);
  }
  const auto begin = tokenizer.cuts_left() ? ids->begin() + added.before : ids->end() - added.after - excess;
  ids->erase(begin, begin + excess);
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
