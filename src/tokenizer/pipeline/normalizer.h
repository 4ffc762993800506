// Normalizers of tokenizer.json: what happens to text before it is split.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "formats/json.h"

namespace tessera {

struct NormalizedText {
  std::string text;
  // Whether the first character still comes from the start of the original text (for Metaspace's
  // prepend_scheme "first").
  bool at_start = true;
};

class Normalizer {
 public:
  virtual ~Normalizer() = default;
  // Error(kBadData) if the text would grow beyond what any normalization of text needs: replacements may
  // multiply it, one after the other.
  void apply(NormalizedText* text) const;
  // The same, with at most max_bytes of text.
  virtual void run(NormalizedText* text, int64_t max_bytes) const = 0;
};

// nullptr for null. Supported: Sequence, Prepend, Replace, NFC, NFD, NFKC, NFKD, Lowercase, Strip; any other
// is Error(kBadConfig) with its name.
std::unique_ptr<Normalizer> make_normalizer(const JsonNode& node);

}  // namespace tessera
