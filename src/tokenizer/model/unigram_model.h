// The Unigram model of tokenizer.json (Kudo, 2018): of all ways to cut a text into tokens the most probable.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tokenizer/model/prefix_trie.h"
#include "tokenizer/model/token_model.h"

namespace tessera {

struct UnigramOptions {
  std::optional<int32_t> unk_id;  // below the number of tokens
  bool byte_fallback = false;
};

// As tokenizers computes it: a Viterbi search in double precision, from the left, in which the first of two
// equal paths to a place stays. A character without a token of its own costs 10 more than the rarest token.
// Neighbouring unknown characters become one token, or their bytes' tokens with byte_fallback if the
// vocabulary has all of these.
class UnigramModel final : public TokenModel {
 public:
  // `tables` has a score for every token; `where` names the model in errors.
  UnigramModel(const ModelTables& tables, int64_t num_ids, UnigramOptions options, std::string where);

  void encode_word_uncached(std::string_view word, ModelScratch* scratch,
                            std::vector<int32_t>* ids) const override;
  std::optional<int64_t> num_bytes(int32_t id) const override;

 private:
  void find_path(std::string_view word, std::vector<PathStep>* path) const;
  // Appends the ids of a stretch of unknown characters, last id first.
  void append_unknown(std::string_view text, std::vector<int32_t>* reversed) const;
  [[noreturn]] void fail_unknown(std::string_view text) const;

  UnigramOptions options_;
  std::string where_;
  PrefixTrie trie_;
  std::vector<double> scores_;  // by id
  double unk_score_;
  std::array<int32_t, 256> fallback_ids_;  // id of <0x00>..<0xFF>, -1 when missing
};

}  // namespace tessera
