// tokenizer.json as parsed, before anything is built from it.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "tokenizer/model/model_tables.h"

namespace tessera {

struct TokenizerFile {
  nlohmann::json document;  // without model.vocab and model.merges
  ModelTables tables;       // these two
  bool has_vocab = false;
  bool has_scores = false;  // the vocabulary is a list of tokens with scores, whose ids are their positions
  bool has_merges = false;
};

// Parses in one pass without a DOM of the whole file: vocabularies have hundreds of thousands of entries.
// Error(kBadData) with the position if the text is not JSON, not UTF-8, nested deeper than 64 levels, or has
// something else where a vocabulary or merge belongs.
TokenizerFile parse_tokenizer_file(std::string_view json, const std::string& origin);

}  // namespace tessera
