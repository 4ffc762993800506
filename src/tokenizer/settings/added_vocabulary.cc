#include "tokenizer/settings/added_vocabulary.h"

#include <algorithm>

namespace tessera {

AddedVocabulary::AddedVocabulary(const ModelTables& tables) {
  vocabulary_.reserve(tables.tokens.size());
  for (const ModelTables::Token& token : tables.tokens) vocabulary_.emplace(tables.token(token), token.id);
}

int32_t AddedVocabulary::next_id() const {
  return std::max(highest_ + 1, static_cast<int32_t>(vocabulary_.size()));
}

void AddedVocabulary::add(const AddedToken& token) {
  if (token.content.empty()) return;
  if (token.special) once_special_.insert(token.content);
  const auto [at, is_new] = by_content_.emplace(token.content, tokens_.size());
  const int32_t id = find(token.content).value_or(next_id());
  if (is_new) tokens_.emplace_back();
  AddedToken& slot = tokens_[at->second];
  slot = token;
  slot.id = id;
  highest_ = std::max(highest_, id);
}

std::optional<int32_t> AddedVocabulary::find(std::string_view content) const {
  if (const auto at = by_content_.find(std::string(content));
      at != by_content_.end() && at->second < tokens_.size()) {
    return tokens_[at->second].id;
  }
  const auto at = vocabulary_.find(content);
  return at == vocabulary_.end() ? std::nullopt : std::optional(at->second);
}

std::vector<AddedToken> AddedVocabulary::tokens() const {
  std::vector<AddedToken> all = tokens_;
  for (AddedToken& token : all) token.special = once_special_.contains(token.content);
  return all;
}

}  // namespace tessera
