// The BPE model of tokenizer.json: a vocabulary and ranked merges.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tokenizer/model/token_model.h"

namespace tessera {

struct BpeOptions {
  std::optional<std::string> unk_token;
  std::string continuing_subword_prefix;
  std::string end_of_word_suffix;
  bool byte_fallback = false;
  bool fuse_unk = false;
  bool ignore_merges = false;
  bool raw_bytes = false;  // words are raw bytes; the vocabulary is in the byte-level alphabet
};

class BpeModel final : public TokenModel {
 public:
  // Errors (kBadData) name `where` and the field: a merge of unknown tokens, an unknown token that is not in
  // the vocabulary. `num_ids` is above every id of the tables.
  BpeModel(const ModelTables& tables, int64_t num_ids, BpeOptions options, const std::string& where);

  void encode_word_uncached(std::string_view word, ModelScratch* scratch,
                            std::vector<int32_t>* ids) const override;

  // Appends the ids of a text without a pre-tokenizer. If no merge can span the start of a run of U+2581,
  // each such run starts a new word.
  void encode_text(std::string_view text, ModelScratch* scratch, std::vector<int32_t>* ids) const override;

  std::optional<int64_t> num_bytes(int32_t id) const override;

  // Whether a vocabulary has a token for each of the 256 bytes, as raw_bytes requires.
  static bool has_all_bytes(const ModelTables& tables);

 private:
  bool may_cut_before_metaspace() const;
  void append_symbols(std::string_view word, std::vector<int32_t>* symbols) const;
  void append_unknown(std::string_view symbol, std::optional<int32_t>* pending,
                      std::vector<int32_t>* symbols) const;

  BpeOptions options_;
  TokenTable raw_tokens_;  // raw_bytes: the bytes they stand for
  MergeTable merges_;
  std::array<int32_t, 256> byte_ids_;      // raw_bytes: id of each byte
  std::array<int32_t, 256> fallback_ids_;  // byte_fallback: id of <0x00>..<0xFF>, -1 when missing
  std::optional<int32_t> unk_id_;
  bool cut_before_metaspace_ = false;
};

}  // namespace tessera
