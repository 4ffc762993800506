// What tokenizer.json holds of a model: its vocabulary and, depending on the kind, merges or scores.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace tessera {

// Vocabulary and merges as in the file; strings are slices of `text`.
struct ModelTables {
  struct Token {
    uint32_t begin, size_bytes;
    int32_t id;
  };
  struct Merge {
    uint32_t begin, left_bytes, right_bytes;  // left and right are adjacent
  };
  std::string text;
  std::vector<Token> tokens;
  std::vector<Merge> merges;   // of a BPE
  std::vector<double> scores;  // of a Unigram, one a token: log-probabilities

  std::string_view token(const Token& t) const {
    return std::string_view(text).substr(t.begin, t.size_bytes);
  }
  std::string_view left(const Merge& m) const { return std::string_view(text).substr(m.begin, m.left_bytes); }
  std::string_view right(const Merge& m) const {
    return std::string_view(text).substr(m.begin + m.left_bytes, m.right_bytes);
  }
};

}  // namespace tessera
