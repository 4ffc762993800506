// Hand-written scanners for the split patterns of nearly all byte-level models.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string_view>

#include "tokenizer/regex/unicode.h"

namespace tessera {

// Mistral's pattern since Nemo.
inline constexpr const char* kTekkenPattern =
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

enum class KnownPattern { kGpt2, kLlama3, kQwen2 };

// The patterns as tokenizer.json spells them.
inline constexpr std::string_view kGpt2Pattern =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";
inline constexpr std::string_view kLlama3Pattern =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
inline constexpr std::string_view kQwen2Pattern =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

std::optional<KnownPattern> known_pattern(std::string_view regex);

// Finds successive matches of a known pattern. They cover any text without gaps, and where a match ends
// depends only on where it starts and on what follows. \p{L} and \p{N} are those of ICU's Unicode version.
class FastScanner {
 public:
  explicit FastScanner(KnownPattern pattern);

  // End of the match that starts at `begin` < `end`. The text is well-formed UTF-8.
  const char* match_end(const char* begin, const char* end) const;

 private:
  struct Char {
    CharClass char_class;
    int64_t size_bytes;
  };
  Char classify(const char* at) const;
  const char* skip(CharClass char_class, const char* at, const char* end) const;
  const char* gpt2_end(const char* begin, const char* end) const;
  const char* llama3_end(const char* begin, const char* end) const;
  const char* whitespace_end(const char* begin, const char* end, bool newlines_end_it) const;

  KnownPattern pattern_;
  int64_t max_digits_;
  const CharClassTable* table_;
  std::array<CharClass, 128> ascii_;
};

}  // namespace tessera
