// Pre-tokenizers of tokenizer.json: how normalized text is cut into the words that merges never cross.
#pragma once

#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "formats/json.h"
#include "tokenizer/regex/fast_scanner.h"

namespace tessera {

struct Piece {
  std::string_view text;
  bool at_start;  // starts where the original text starts
};

// A text passing through pre-tokenizers: its pieces in order, none empty, and storage for strings created on
// the way.
struct Pieces {
  std::vector<Piece> list;
  std::deque<std::string> storage;

  std::string_view keep(std::string text) { return storage.emplace_back(std::move(text)); }
};

// One step after the other, each replacing the pieces.
class PreTokenizer {
 public:
  using Step = std::function<void(Pieces*)>;
  explicit PreTokenizer(std::vector<Step> steps) : steps_(std::move(steps)) {}
  void apply(Pieces* pieces) const {
    for (const Step& step : steps_) step(pieces);
  }

 private:
  std::vector<Step> steps_;
};

struct PreTokenizerOptions {
  // ByteLevel leaves bytes as they are (the model then works on bytes) instead of mapping them to the
  // byte-level alphabet.
  bool raw_bytes = false;
  // Known patterns run on FastScanner instead of PCRE2.
  bool fast_scanner = true;
};

// nullptr for null. Supported: Sequence, Split, ByteLevel, Metaspace, Digits, Whitespace, WhitespaceSplit,
// Punctuation, BertPreTokenizer; any other is Error(kBadConfig) with its name.
std::unique_ptr<PreTokenizer> make_pre_tokenizer(const JsonNode& node, const PreTokenizerOptions& options);

// Whether the last step is the only ByteLevel, so that the model may work on bytes.
bool ends_in_byte_level(const JsonNode& node);

// The known pattern, if the whole pre-tokenizer amounts to "split by it, then ByteLevel".
struct KnownSplit {
  KnownPattern pattern;
  bool add_prefix_space;  // prepends a space to text that does not start with one
};
std::optional<KnownSplit> known_split(const JsonNode& node);

}  // namespace tessera
