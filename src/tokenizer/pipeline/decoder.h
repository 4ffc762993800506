// Decoders of tokenizer.json: from tokens back to text.
//
// A decoder is a chain of stages that tokens pass through. Text comes out as soon as no later token can
// change it, so streaming and one-shot decoding share the same code.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "formats/json.h"

namespace tessera {

// One stage, for one sequence of tokens. A token arrives in one or more fragments of well-formed UTF-8; the
// last one has ends_token set.
class DecodeStage {
 public:
  virtual ~DecodeStage() = default;
  virtual void push(std::string_view fragment, bool ends_token) = 0;
  virtual void finish() { next_->finish(); }
  void set_next(DecodeStage* next) { next_ = next; }

 protected:
  DecodeStage* next_ = nullptr;
};

struct Decoder {
  std::function<std::unique_ptr<DecodeStage>()> start;
  bool is_byte_level = false;  // expects tokens in the byte-level alphabet
};

// The stages of a decoder in order. Supported: null (tokens joined by spaces), Sequence, ByteLevel,
// ByteFallback, Fuse, Strip, Replace, Metaspace, BPEDecoder, WordPiece; any other is Error(kBadConfig) with
// its name.
std::vector<Decoder> make_decoders(const JsonNode& node);

class DecodeStream {
 public:
  explicit DecodeStream(const std::vector<Decoder>& decoders);
  ~DecodeStream();
  // `is_added`: an added token, whose text is literal even if the other tokens are in the byte-level
  // alphabet.
  void push(std::string_view token, bool is_added = false);
  void finish();
  // The text produced since the last call.
  std::string take();

 private:
  class Collector;
  std::vector<std::unique_ptr<DecodeStage>> stages_;
  Collector* collector_;
  bool starts_byte_level_;
};

}  // namespace tessera
