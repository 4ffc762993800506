// Normalizers of tokenizer.json: what happens to text before it is split.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "formats/json.h"

namespace tessera {

struct NormalizedText {
  std::string text;
  // Whether the first character still comes from the start of the original text (for Metaspace's
  // prepend_scheme "first").
  bool at_start = true;
};

// One of its steps; leaves at most max_bytes of text.
using NormalizerStep = std::function<void(NormalizedText*, int64_t max_bytes)>;

class Normalizer {
 public:
  explicit Normalizer(std::vector<NormalizerStep> steps) : steps_(std::move(steps)) {}
  // Error(kBadData) if the text would grow beyond the needs of any normalization: replacements may multiply
  // it, one after the other.
  void apply(NormalizedText* text) const;

 private:
  std::vector<NormalizerStep> steps_;
};

// nullptr for null. Supported: Sequence, Prepend, Replace, NFC, NFD, NFKC, NFKD, Nmt, Lowercase, Strip,
// StripAccents, Precompiled, BertNormalizer; any other is Error(kBadConfig) with its name.
std::unique_ptr<Normalizer> make_normalizer(const JsonNode& node);

}  // namespace tessera
