// The model of a tokenizer: turns a word, or a text that nothing divides into words, into ids.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tokenizer/model/model_tables.h"
#include "tokenizer/model/word_cache.h"
#include "tokenizer/model/word_merger.h"

namespace tessera {

// Maps ids to strings and back. Ids may have gaps.
class TokenTable {
 public:
  TokenTable() = default;
  // (id, string), ids in [0, num_ids), each id and each string at most once.
  TokenTable(const std::vector<std::pair<int32_t, std::string_view>>& tokens, int64_t num_ids);
  TokenTable(const ModelTables& tables, int64_t num_ids);

  std::optional<int32_t> find(std::string_view token) const;
  // nullopt for an id without a token.
  std::optional<std::string_view> at(int32_t id) const;
  int64_t num_ids() const { return static_cast<int64_t>(begins_.size()) - 1; }

 private:
  std::string text_;
  std::vector<uint32_t> begins_{0};  // num_ids + 1
  std::vector<bool> present_;
  std::vector<int32_t> slots_;  // open addressing, -1 is free
};

// The last token of the best path to a place in a word (Unigram).
struct PathStep {
  double score;    // of the whole path
  uint32_t begin;  // of the token
  int32_t id;
};

// Per-thread state for encoding words with one model.
struct ModelScratch {
  WordCache cache;
  WordMerger merger;
  std::vector<int32_t> symbols;
  std::vector<PathStep> path;
};

class TokenModel {
 public:
  virtual ~TokenModel() = default;
  TokenModel(const TokenModel&) = delete;
  TokenModel& operator=(const TokenModel&) = delete;

  // Appends the ids of one word. `readable_bytes` as in WordCache::make_key. Error(kBadData) for a word that
  // needs the unknown token of a model without one.
  void encode_word(std::string_view word, int64_t readable_bytes, ModelScratch* scratch,
                   std::vector<int32_t>* ids) const;
  // Encodes a word without the cache.
  virtual void encode_word_uncached(std::string_view word, ModelScratch* scratch,
                                    std::vector<int32_t>* ids) const = 0;
  // Appends the ids of a text without a pre-tokenizer.
  virtual void encode_text(std::string_view text, ModelScratch* scratch, std::vector<int32_t>* ids) const {
    encode_word_uncached(text, scratch, ids);
  }

  const TokenTable& tokens() const { return tokens_; }
  // Bytes of a word that the token stands for; nullopt if that depends on the word.
  virtual std::optional<int64_t> num_bytes(int32_t id) const = 0;

 protected:
  explicit TokenModel(TokenTable tokens) : tokens_(std::move(tokens)) {}

  TokenTable tokens_;  // as spelled in the file
};

}  // namespace tessera
