#include "data/masked_rows.h"

#include <algorithm>
#include <limits>
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
  explicit MaskedTensors(const std::filesystem::path& path)
      : CollatedRows(path, "an encoder", /*has_types=*/true) {
    if (!ids_.exists()) fail(ExitCode::kBadData, "{}: tensor 'input_ids' is missing", path.string());
    for (const RowTensor* tensor : {&labels_, &mask_, &types_}) {
      if (tensor->exists() && tensor->shape() != ids_.shape()) {
        fail(ExitCode::kBadData, "{}: expected shape {} as input_ids has, found {}", tensor->where(),
             ids_.shape(), tensor->shape());
      }
    }
  }

  int64_t num_rows() const { return ids_.row_length() == 0 ? 0 : ids_.num_rows(); }
  std::string where() const { return ids_.where(); }

  // A row without its padding; labels and types are empty if the file has none.
  struct Row {
    std::span<const int32_t> ids, labels, types;
  };
  Row read(int64_t row, int64_t vocab_size, int64_t num_types) {
    Row result;
    result.ids = read_ids(row, vocab_size);
    if (labels_.exists()) result.labels = read_labels(row, vocab_size);
    if (types_.exists())
      result.types = types_.read(row, num_types, 0, fmt::format("a token type from 0 to {}", num_types - 1));
    if (!mask_.exists()) return result;
    const auto [begin, end] = unpadded_range(row);
    for (std::span<const int32_t>* values : {&result.ids, &result.labels, &result.types}) {
      if (!values->empty()) *values = values->subspan(begin, end - begin);
    }
    return result;
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

void add_token_types(std::span<const int32_t> types, const MaskingRule& rule, const std::string& where,
                     TokenizedRow* row) {
  for (size_t i = 0; i < types.size(); ++i) {
    if (0 <= types[i] && types[i] < rule.num_token_types) continue;
    fail(ExitCode::kBadData, "{}: value {}: expected {}, found {}", where, i,
         rule.num_token_types == 1 ? std::string("0, the model's only token type")
                                   : fmt::format("a token type from 0 to {}", rule.num_token_types - 1),
         types[i]);
  }
  if (std::ranges::all_of(types, [](int32_t type) { return type == 0; })) return;
  row->token_types.assign(types.begin(), types.end());
  row->token_types.resize(row->ids.size());  // cut as the ids are, and one token more
  row->token_types.back() = 0;
}

int64_t num_kept_ids(int64_t vocab_size, const MaskingRule* rule) {
  if (rule == nullptr || rule->num_token_types <= 1) return vocab_size;
  const int64_t count = vocab_size * rule->num_token_types;
  if (count > std::numeric_limits<int32_t>::max())
    fail(ExitCode::kBadConfig, "type_vocab_size {}: too many token types beside a vocabulary of {}",
         rule->num_token_types, vocab_size);
  return count;
}

std::span<const int32_t> kept_ids(const TokenizedRow& row, int64_t vocab_size, std::vector<int32_t>* memory) {
  if (row.token_types.empty()) return row.ids;
  *memory = row.ids;
  for (size_t i = 0; i < memory->size(); ++i)
    (*memory)[i] += row.token_types[i] * static_cast<int32_t>(vocab_size);
  return *memory;
}

void split_token_types(int64_t vocab_size, std::vector<int32_t>* ids, std::vector<int32_t>* types) {
  const auto num_ids = static_cast<int32_t>(vocab_size);
  types->clear();
  if (std::ranges::all_of(*ids, [num_ids](int32_t id) { return id < num_ids; })) return;
  for (int32_t& id : *ids) {
    types->push_back(id / num_ids);
    id %= num_ids;
  }
}

DocumentCounts read_masked_tensors(std::span<const std::filesystem::path> files, int64_t vocab_size,
                                   const MaskingRule& rule, bool has_labels, int64_t max_rows,
                                   const RowSink& sink, const std::function<void(int64_t)>& progress) {
  DocumentCounts counts;
  int64_t bytes_before = 0;
  std::vector<int32_t> memory;
  for (const std::filesystem::path& path : files) {
    MaskedTensors tensors(path);
    const auto file_bytes = static_cast<int64_t>(std::filesystem::file_size(path));
    for (int64_t row = 0; row < tensors.num_rows() && counts.num_documents < max_rows; ++row) {
      const auto [ids, labels, types] = tensors.read(row, vocab_size, rule.num_token_types);
      if (labels.empty()) check_can_mask(rule, tensors.where());
      TokenizedRow tokens;
      make_masked_row(ids, labels, rule, &tokens);
      add_token_types(types, rule, "", &tokens);
      ++counts.num_documents;
      counts.num_cut_documents += tokens.num_cut_tokens > 0 ? 1 : 0;
      counts.num_cut_tokens += tokens.num_cut_tokens;
      const std::span<const int32_t> kept = kept_ids(tokens, vocab_size, &memory);
      has_labels ? sink(kept, tokens.labels, {}) : sink(kept.first(kept.size() - 1), {}, {});
      if (progress && row % 1024 == 0) progress(bytes_before + file_bytes * row / tensors.num_rows());
    }
    bytes_before += file_bytes;
  }
  return counts;
}

}  // namespace tessera
