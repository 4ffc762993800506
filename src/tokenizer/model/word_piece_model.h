// The WordPiece model of tokenizer.json (Schuster and Nakajima, 2012, as in BERT): the longest token that a
// word begins with, then the longest that continues it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tokenizer/model/prefix_trie.h"
#include "tokenizer/model/token_model.h"

namespace tessera {

struct WordPieceOptions {
  std::string unk_token = "[UNK]";
  std::string continuing_subword_prefix = "##";  // of tokens inside a word
  int64_t max_input_chars_per_word = 100;        // a longer word is unknown
};

// A word of which some part has no token is one unknown token.
class WordPieceModel final : public TokenModel {
 public:
  // `where` names the model in errors.
  WordPieceModel(const ModelTables& tables, int64_t num_ids, WordPieceOptions options, std::string where);

  void encode_word_uncached(std::string_view word, ModelScratch* scratch,
                            std::vector<int32_t>* ids) const override;
  std::optional<int64_t> num_bytes(int32_t id) const override;

 private:
  // Appends the word's tokens; false if a part has none.
  bool append_tokens(std::string_view word, std::vector<int32_t>* ids) const;

  WordPieceOptions options_;
  std::string where_;
  PrefixTrie trie_;
  std::optional<uint32_t> inside_;  // the trie's node of the prefix; nullopt if no token has it
  std::optional<int32_t> unk_id_;
};

}  // namespace tessera
