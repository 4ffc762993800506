// Pre-tokenizers of tokenizer.json: how normalized text is cut into the words that merges never cross.
#pragma once

#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tokenizer/fast_scanner.h"
#include "tokenizer/json_node.h"

namespace tessera {

struct Piece {
  std::string_view text;
  bool at_start;  // begins where the original text begins
};

// A text on its way through pre-tokenizers: pieces in order, none empty, and the strings made on the way.
struct Pieces {
  std::vector<Piece> list;
  std::deque<std::string> storage;

  std::string_view keep(std::string text) { return storage.emplace_back(std::move(text)); }
};

class PreTokenizer {
 public:
  virtual ~PreTokenizer() = default;
  virtual void apply(Pieces* pieces) const = 0;
};

struct PreTokenizerOptions {
  // A ByteLevel leaves bytes as they are (the model then works on bytes) instead of writing each as a
  // character of the byte-level alphabet.
  bool raw_bytes = false;
  // Known patterns run on FastScanner instead of PCRE2.
  bool fast_scanner = true;
};

// nullptr for null. Supported: Sequence, Split, ByteLevel, Metaspace, Digits, Whitespace, WhitespaceSplit,
// Punctuation; any other is Error(kBadConfig) with its name.
std::unique_ptr<PreTokenizer> make_pre_tokenizer(const JsonNode& node, const PreTokenizerOptions& options);

// Whether the last step is the only ByteLevel: then the model sees bytes.
bool ends_in_byte_level(const JsonNode& node);

// When the whole pre-tokenizer comes to "split by a known pattern, then bytes": that pattern.
struct KnownSplit {
  KnownPattern pattern;
  bool add_prefix_space;  // a text that does not begin with a space gets one
};
std::optional<KnownSplit> known_split(const JsonNode& node);

}  // namespace tessera
