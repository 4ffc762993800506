// Tokens added to a vocabulary, with the ids that Hugging Face's tokenizers 0.23 gives them.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "tokenizer/model/model_tables.h"
#include "tokenizer/pipeline/added_tokens.h"

namespace tessera {

class AddedVocabulary {
 public:
  // The tables outlive it.
  explicit AddedVocabulary(const ModelTables& tables);

  // Adds a token or changes the flags of one. Its id is the vocabulary's, or else the next free one as
  // tokenizers counts: after the highest added id or the number of tokens in the vocabulary. `token.id` is
  // not read.
  void add(const AddedToken& token);

  std::optional<int32_t> find(std::string_view content) const;  // added, or of the vocabulary
  bool is_added(std::string_view content) const { return by_content_.contains(std::string(content)); }
  // A token that was special once remains so when text is decoded or split, whatever later flags say.
  std::vector<AddedToken> tokens() const;

 private:
  int32_t next_id() const;

  std::unordered_map<std::string_view, int32_t> vocabulary_;
  std::vector<AddedToken> tokens_;
  std::unordered_map<std::string, size_t> by_content_;
  std::unordered_set<std::string> once_special_;
  int32_t highest_ = -1;  // of the added ids
};

}  // namespace tessera
