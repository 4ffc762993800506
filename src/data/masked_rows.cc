#include "data/masked_rows.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "data/cache/row_tensor.h"
#include "data/row_tokenizer.h"
#include "tensor/packed_batch.h"

namespace tessera {
namespace {

// The tensors of one file.
class MaskedTensors : CollatedRows {
 public:
  explicit MaskedTensors(const std::filesystem::path& path) : CollatedRows(path, "an encoder") {
    if (!ids_.exists()) fail(ExitCode::kBadData, "{}: tensor 'input_ids' is missing", path.string());
    for (const RowTensor* tensor : {&labels_, &mask_}) {
      if (tensor->exists() && tensor->shape() != ids_.shape()) {
        fail(ExitCode::kBadData, "{}: expected shape {} as input_ids has, found {}", tensor->where(),
             ids_.shape(), tensor->shape());
      }
    }
  }

  int64_t num_rows() const { return ids_.row_length() == 0 ? 0 : ids_.num_rows(); }
  std::string where() const { return ids_.where(); }

  // Tokens and labels without padding; no labels if the file has none.
  std::pair<std::span<const int32_t>, std::span<const int32_t>> read(int64_t row, int64_t vocab_size) {
    const std::span<const int32_t> ids = read_ids(row, vocab_size);
    std::span<const int32_t> labels;
    if (labels_.exists()) labels = read_labels(row, vocab_size);
    if (!mask_.exists()) return {ids, labels};
    const auto [begin, end] = unpadded_range(row);
    return {ids.subspan(begin, end - begin), labels.empty() ? labels : labels.subspan(begin, end - begin)};
  }
};

}  // namespace

void use_masked_rows(MaskingRule rule, int64_t max_length, DatasetOptions* options) {
  // Packing cuts rows anyway, and joins texts whose special tokens are in the middle.
  const bool is_packed = options->packing != Packing::kNone;
  rule.max_length = is_packed ? kMaxRowLength : max_length;
  options->max_length = is_packed ? max_length : std::min(max_length + 1, kMaxRowLength);
  options->masking = std::move(rule);
  for (DataSource& source : options->sources) source.format.is_masked = true;
}

void name_masking_tokens(const Tokenizer* tokenizer, int64_t vocab_size, MaskingRule* rule) {
  if (tokenizer == nullptr) return;
  const auto add_special = [&](const std::string& token) {
    if (const std::optional<int32_t> id = tokenizer->token_to_id(token)) rule->special_ids.push_back(*id);
  };
  for (const auto& [name, token] : tokenizer->named_special_tokens()) add_special(token);
  for (const std::string& token : tokenizer->special_tokens()) add_special(token);
  std::ranges::sort(rule->special_ids);
  rule->special_ids.erase(std::unique(rule->special_ids.begin(), rule->special_ids.end()),
                          rule->special_ids.end());
  rule->mask_id = tokenizer->mask_id();
  rule->num_random_ids = static_cast<int32_t>(std::min(tokenizer->vocab_size(), vocab_size));
  if (rule->mask_id.value_or(0) >= vocab_size) {
    fail(ExitCode::kBadConfig,
         "the mask token has the id {}, which is not below the model's vocab_size {}: the tokenizer belongs "
         "to "
         "another model",
         *rule->mask_id, vocab_size);
  }
}

void check_can_mask(const MaskingRule& rule, const std::string& where) {
  if (rule.mask_id) return;
  fail(ExitCode::kBadConfig,
       "{}: rows without labels are masked here, which needs a tokenizer (tokenizer.json) with a mask_token "
       "(tokenizer_config.json), such as [MASK]",
       where);
}

void make_masked_row(std::span<const int32_t> ids, std::span<const int32_t> labels, const MaskingRule& rule,
                     TokenizedRow* row) {
  if (ids.empty()) return;
  if (labels.empty()) check_can_mask(rule, "no labels");
  const auto kept = std::min(ids.size(), static_cast<size_t>(rule.max_length));
  row->num_cut_tokens = static_cast<int64_t>(ids.size() - kept);
  row->ids.assign(ids.begin(), ids.begin() + static_cast<std::ptrdiff_t>(kept));
  row->ids.push_back(0);
  row->labels.assign(1, labels.empty() ? kMaskedWhenUsed : kIgnoredLabel);
  const std::span<const int32_t> moved = (labels.empty() ? ids : labels).first(kept);
  row->labels.insert(row->labels.end(), moved.begin(), moved.end());
  row->keeps_masked = true;  // as Trainer does
}

DocumentCounts read_masked_tensors(std::span<const std::filesystem::path> files, int64_t vocab_size,
                                   const MaskingRule& rule, bool has_labels, int64_t max_rows,
                                   const RowSink& sink, const std::function<void(int64_t)>& progress) {
  DocumentCounts counts;
  int64_t bytes_before = 0;
  for (const std::filesystem::path& path : files) {
    MaskedTensors tensors(path);
    const auto file_bytes = static_cast<int64_t>(std::filesystem::file_size(path));
    for (int64_t row = 0; row < tensors.num_rows() && counts.num_documents < max_rows; ++row) {
      const auto [ids, labels] = tensors.read(row, vocab_size);
      if (labels.empty()) check_can_mask(rule, tensors.where());
      TokenizedRow tokens;
      make_masked_row(ids, labels, rule, &tokens);
      ++counts.num_documents;
      counts.num_cut_documents += tokens.num_cut_tokens > 0 ? 1 : 0;
      counts.num_cut_tokens += tokens.num_cut_tokens;
      const std::span<const int32_t> kept = tokens.ids;
      has_labels ? sink(kept, tokens.labels, {}) : sink(kept.first(kept.size() - 1), {}, {});
      if (progress && row % 1024 == 0) progress(bytes_before + file_bytes * row / tensors.num_rows());
    }
    bytes_before += file_bytes;
  }
  return counts;
}

}  // namespace tessera
