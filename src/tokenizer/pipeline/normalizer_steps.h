// The normalizers that go by the properties of characters.
#pragma once

#include <cstdint>

#include "formats/json.h"
#include "tokenizer/pipeline/normalizer.h"

namespace tessera {

// A text may become this many times as long, and a short one 1 MiB.
inline constexpr int64_t kMaxNormalizedGrowth = 32;
[[noreturn]] void fail_normalized_growth(int64_t max_bytes);

// NFC, NFD, NFKC, NFKD of Unicode 9, as in tokenizers.
NormalizerStep unicode_form_step(const JsonNode& node);
// Character by character, like Rust's char::to_lowercase: no context rules (final sigma).
NormalizerStep lowercase_step(const JsonNode& node);
// Removes combining marks; those of "é" only after NFD or NFKD.
NormalizerStep strip_accents_step(const JsonNode& node);
// SentencePiece's nmt rules: control characters go, whitespace of other kinds becomes a space.
NormalizerStep nmt_step(const JsonNode& node);
// BERT's: control characters go and whitespace becomes a space (clean_text); spaces around CJK ideographs
// (handle_chinese_chars); NFD without nonspacing marks (strip_accents, by default as lowercase); lowercase.
NormalizerStep bert_normalizer_step(const JsonNode& node);

}  // namespace tessera
