#define XXH_INLINE_ALL
#include <xxhash.h>

#include <bit>

#include "tokenizer/model/token_model.h"
#include "tokenizer/model/word_merger.h"

namespace tessera {

TokenTable::TokenTable(const std::vector<std::pair<int32_t, std::string_view>>& tokens, int64_t num_ids)
    : present_(static_cast<size_t>(num_ids)) {
  std::vector<std::string_view> by_id(static_cast<size_t>(num_ids));
  size_t size_bytes = 0;
  for (const auto& [id, token] : tokens) {
    by_id[static_cast<size_t>(id)] = token;
    present_[static_cast<size_t>(id)] = true;
    size_bytes += token.size();
  }
  text_.reserve(size_bytes);
  begins_.reserve(by_id.size() + 1);
  for (const std::string_view token : by_id) {
    text_ += token;
    begins_.push_back(static_cast<uint32_t>(text_.size()));
  }
  slots_.assign(std::bit_ceil(tokens.size() * 2 + 2), -1);
  for (const auto& [id, token] : tokens) {
    size_t at = XXH3_64bits(token.data(), token.size()) & (slots_.size() - 1);
    while (slots_[at] >= 0) at = (at + 1) & (slots_.size() - 1);
    slots_[at] = id;
  }
}

TokenTable::TokenTable(const ModelTables& tables, int64_t num_ids)
    : TokenTable(
          [&tables] {
            std::vector<std::pair<int32_t, std::string_view>> tokens;
            tokens.reserve(tables.tokens.size());
            for (const ModelTables::Token& token : tables.tokens)
              tokens.emplace_back(token.id, tables.token(token));
            return tokens;
          }(),
          num_ids) {}

std::optional<int32_t> TokenTable::find(std::string_view token) const {
  if (slots_.empty()) return std::nullopt;
  for (size_t at = XXH3_64bits(token.data(), token.size()) & (slots_.size() - 1); slots_[at] >= 0;
       at = (at + 1) & (slots_.size() - 1)) {
    if (this->at(slots_[at]) == token) return slots_[at];
  }
  return std::nullopt;
}

std::optional<std::string_view> TokenTable::at(int32_t id) const {
  if (id < 0 || id >= num_ids() || !present_[static_cast<size_t>(id)]) return std::nullopt;
  const uint32_t begin = begins_[static_cast<size_t>(id)];
  return std::string_view(text_).substr(begin, begins_[static_cast<size_t>(id) + 1] - begin);
}

MergeTable::MergeTable(int64_t num_merges)
    : slots_(std::bit_ceil(static_cast<size_t>(num_merges) * 3 / 2 + 2)),
      mask_(slots_.size() - 1),
      shift_(64 - std::countr_zero(slots_.size())) {}

void MergeTable::insert(int32_t left, int32_t right, Merge merge) {
  const uint64_t key = key_of(left, right);
  uint64_t at = key * kMultiplier >> shift_;
  while (slots_[at].key != kFree && slots_[at].key != key) at = (at + 1) & mask_;
  slots_[at] = {key, merge};
}

}  // namespace tessera
