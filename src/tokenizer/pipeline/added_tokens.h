// Added tokens, which are matched in the text before any other step.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "tokenizer/pipeline/normalizer.h"

namespace tessera {

struct AddedToken {
  int32_t id = 0;
  std::string content;
  bool single_word = false;  // matches only between non-word characters
  bool lstrip = false;       // also consumes the whitespace to its left
  bool rstrip = false;
  bool normalized = false;  // matched after normalization, in its own normalized form
  bool special = false;     // omitted from decoded text on request
};

// A set of strings to find; the leftmost match wins, then the longest.
class StringMatcher {
 public:
  // Adds a pattern with a value; of equal patterns the first wins, empty ones are ignored.
  void add(std::string_view pattern, size_t value);

  struct Match {
    int64_t begin;
    int64_t end;
    size_t value;
  };
  // First match at or after `begin`; false if there is none.
  bool find(std::string_view text, int64_t begin, Match* match) const;
  bool empty() const { return nodes_.size() == 1; }

 private:
  static constexpr size_t kNoValue = SIZE_MAX;
  struct Node {
    std::vector<std::pair<char, size_t>> children;
    size_t value = kNoValue;
  };
  const Node* child(const Node& node, char c) const;

  std::vector<Node> nodes_{1};
  std::array<bool, 256> starts_{};
};

// A stretch of text: an added token, or text between them (id -1).
struct Segment {
  int64_t begin;
  int64_t end;
  int32_t id;
};

class AddedTokens {
 public:
  AddedTokens() = default;
  // `splits_special`: special tokens are not matched in text (split_special_tokens).
  AddedTokens(std::vector<AddedToken> tokens, const Normalizer* normalizer, bool splits_special = false);

  // The segments of `text`, in order and covering all of it; `normalized` selects the tokens to look for. A
  // special token is not matched across a barrier, an offset in `text` (ascending).
  std::vector<Segment> find(std::string_view text, bool normalized,
                            std::span<const int64_t> barriers = {}) const;
  bool has(bool normalized) const { return !(normalized ? normalized_ : plain_).empty(); }

  const AddedToken* by_id(int32_t id) const;
  const AddedToken* by_content(std::string_view content) const;
  const std::vector<AddedToken>& tokens() const { return tokens_; }
  // The text that a token decodes to: its normalized form, as in tokenizers since 0.23.
  const std::string& decoded(const AddedToken& token) const {
    return decoded_[static_cast<size_t>(&token - tokens_.data())];
  }
  // Whether decoding leaves it out on request: tokenizers looks for that text among the special tokens.
  bool is_skipped(const AddedToken& token) const {
    const AddedToken* same = by_content(decoded(token));
    return same != nullptr && same->special;
  }

 private:
  std::vector<AddedToken> tokens_;
  std::vector<std::string> decoded_;
  bool splits_special_ = false;
  StringMatcher plain_;
  StringMatcher normalized_;
  std::unordered_map<int32_t, size_t> by_id_;
  std::unordered_map<std::string, size_t> by_content_;
};

}  // namespace tessera
