// The class with which AutoTokenizer of Transformers 5.24 opens a folder, and what that class makes of a
// tokenizer.json.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "formats/json.h"

namespace tessera {

enum class TokenizerClass {
  kFile,   // TokenizersBackend: tokenizer.json as it stands
  kLlama,  // the classes that keep vocabulary, merges and post-processor, and build the rest themselves
  kQwen2,
  kGpt2,
  kGemma,
  kCohere,
  kT5,  // these three also have a post-processor of their own
  kXlmRoberta,
  kBert,
  kOther  // another such class
};

// Whether the class builds models of the kind that tokenizer.json has.
bool builds_model_of(TokenizerClass kind, const Json& document);

struct ChosenClass {
  TokenizerClass kind = TokenizerClass::kFile;
  std::string name;  // LlamaTokenizer
};

// `config` is tokenizer_config.json, `model` config.json (or empty); `is_byte_level`: tokenizer.json names
// ByteLevel somewhere.
ChosenClass choose_tokenizer_class(const JsonNode& config, const JsonNode& model, bool is_byte_level);

// The special tokens that a class has if the configuration does not name them.
std::vector<std::pair<std::string, std::string>> default_special_tokens(TokenizerClass kind);

// tokenizer.json with the normalizer, pre-tokenizer, decoder and options of the model that the class builds.
Json rebuilt_by_class(TokenizerClass kind, const JsonNode& config, const Json& document);

// The tokens that kT5, kXlmRoberta and kBert put around a text, by the names of special tokens (eos_token).
struct SurroundingTokens {
  std::vector<std::string> before, after;
};
SurroundingTokens surrounding_tokens(TokenizerClass kind);

// Whether both cut text in the same way, post-processors and added tokens aside. With a pre-tokenizer that
// knows all bytes, unknown tokens do not occur.
bool cut_alike(const Json& a, const Json& b);

// Whether LlamaTokenizer was made for this file: the two forms in which Transformers 4 writes SentencePiece
// models.
bool is_sentencepiece_form(const Json& document);

}  // namespace tessera
