// The BPE model of tokenizer.json: a vocabulary and ranked merges.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "tokenizer/model/word_cache.h"

namespace tessera {

// Vocabulary and merges as in the file; strings are slices of `text`.
struct BpeTables {
  struct Token {
    uint32_t begin, size_bytes;
    int32_t id;
  };
  struct Merge {
    uint32_t begin, left_bytes, right_bytes;  // left and right are adjacent
  };
  std::string text;
  std::vector<Token> tokens;
  std::vector<Merge> merges;

  std::string_view token(const Token& t) const {
    return std::string_view(text).substr(t.begin, t.size_bytes);
  }
  std::string_view left(const Merge& m) const { return std::string_view(text).substr(m.begin, m.left_bytes); }
  std::string_view right(const Merge& m) const {
    return std::string_view(text).substr(m.begin + m.left_bytes, m.right_bytes);
  }
};

struct BpeOptions {
  std::optional<std::string> unk_token;
  std::string continuing_subword_prefix;
  std::string end_of_word_suffix;
  bool byte_fallback = false;
  bool fuse_unk = false;
  bool ignore_merges = false;
  bool raw_bytes = false;  // words are raw bytes; the vocabulary is in the byte-level alphabet
};

// Maps ids to strings and back. Ids may have gaps.
class TokenTable {
 public:
  TokenTable() = default;
  // (id, string), ids in [0, num_ids), each id and each string at most once.
  TokenTable(const std::vector<std::pair<int32_t, std::string_view>>& tokens, int64_t num_ids);

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

// (left id, right id) -> rank and id of the merged token.
class MergeTable {
 public:
  static constexpr uint32_t kNoRank = UINT32_MAX;
  struct Merge {
    uint32_t rank = kNoRank;
    int32_t id = -1;
  };

  explicit MergeTable(int64_t num_merges = 0);
  // For a repeated pair the later rank wins, as in Hugging Face.
  void insert(int32_t left, int32_t right, Merge merge);
  Merge find(int32_t left, int32_t right) const {
    const uint64_t key = key_of(left, right);
    for (uint64_t at = key * kMultiplier >> shift_;; at = (at + 1) & mask_) {
      const Slot& slot = slots_[at];
      if (slot.key == key) return slot.merge;
      if (slot.key == kFree) return {};
    }
  }

 private:
  static constexpr uint64_t kFree = UINT64_MAX;
  static constexpr uint64_t kMultiplier = 0x9E3779B97F4A7C15u;
  struct Slot {
    uint64_t key = kFree;
    Merge merge;
  };
  static uint64_t key_of(int32_t left, int32_t right) {
    return static_cast<uint64_t>(static_cast<uint32_t>(left)) << 32 | static_cast<uint32_t>(right);
  }

  std::vector<Slot> slots_;
  uint64_t mask_;
  int shift_;
};

// Applies merges to a word: always the lowest rank, leftmost among equals, until none applies. Keeps its
// memory between words; not thread-safe.
class WordMerger {
 public:
  // Rewrites `symbols` in place.
  void run(const MergeTable& merges, std::vector<int32_t>* symbols);

 private:
  // Up to this many symbols a linear search for the lowest rank beats any queue.
  static constexpr size_t kShortWord = 40;
  // Pending merges of one rank, lowest position first. Positions nearly always arrive in ascending order.
  struct Waiting {
    std::vector<uint32_t> ascending;
    size_t next = 0;
    std::vector<uint32_t> late;  // a heap of those that arrived out of order

    bool empty() const { return next == ascending.size() && late.empty(); }
    void push(uint32_t position);
    uint32_t pop();
  };
  struct Symbol {
    int32_t id;
    uint32_t former;
    uint32_t next;
    uint32_t rank;  // of the merge with the next symbol
  };

  void run_short(const MergeTable& merges, std::vector<int32_t>* symbols);
  void run_long(const MergeTable& merges, std::vector<int32_t>* symbols);
  void rank_pair(const MergeTable& merges, uint32_t position);

  std::vector<uint32_t> ranks_;
  std::vector<Symbol> symbols_;
  std::unordered_map<uint32_t, Waiting> waiting_;  // by rank
  std::vector<uint32_t> rank_heap_;                // ranks with pending merges, each once
};

// Per-thread state for encoding words with one model.
struct BpeScratch {
  WordCache cache;
  WordMerger merger;
  std::vector<int32_t> symbols;
};

class BpeModel {
 public:
  // Errors (kBadData) name `where` and the field: a merge of unknown tokens, an unknown token that is not in
  // the vocabulary. `num_ids` is above every id of the tables.
  BpeModel(const BpeTables& tables, int64_t num_ids, BpeOptions options, const std::string& where);

  // Appends the ids of one word. `readable_bytes` as in WordCache::make_key.
  void encode_word(std::string_view word, int64_t readable_bytes, BpeScratch* scratch,
                   std::vector<int32_t>* ids) const;
  // Encodes a word without the cache.
  void encode_word_uncached(std::string_view word, BpeScratch* scratch, std::vector<int32_t>* ids) const;

  // Appends the ids of a text without a pre-tokenizer. If no merge can span the start of a run of U+2581,
  // each such run starts a new word.
  void encode_text(std::string_view text, BpeScratch* scratch, std::vector<int32_t>* ids) const;

  const TokenTable& tokens() const { return tokens_; }
  // Bytes of a word that the token stands for; nullopt if that depends on the word.
  std::optional<int64_t> num_bytes(int32_t id) const;

  // Whether a vocabulary has a token for each of the 256 bytes, as raw_bytes requires.
  static bool has_all_bytes(const BpeTables& tables);

 private:
  bool may_cut_before_metaspace() const;
  void append_symbols(std::string_view word, std::vector<int32_t>* symbols) const;
  void append_unknown(std::string_view symbol, std::optional<int32_t>* pending,
                      std::vector<int32_t>* symbols) const;

  BpeOptions options_;
  TokenTable tokens_;      // as spelled in the file
  TokenTable raw_tokens_;  // raw_bytes: the bytes they stand for
  MergeTable merges_;
  std::array<int32_t, 256> byte_ids_;      // raw_bytes: id of each byte
  std::array<int32_t, 256> fallback_ids_;  // byte_fallback: id of <0x00>..<0xFF>, -1 when missing
  std::optional<int32_t> unk_id_;
  bool cut_before_metaspace_ = false;
};

}  // namespace tessera
