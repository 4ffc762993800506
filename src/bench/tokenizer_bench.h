// Speed of encoding and decoding text.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "bench/measure.h"
#include "devices/measure/statistics.h"

namespace tessera {

struct TokenizerLine {
  std::string operation;  // "encode", "encode_first_time", "decode", "load"
  std::string tokenizer;  // the folder's name, or "trained" for the one made from the text
  std::string text;       // the file's name, or "generated"
  int64_t text_bytes = 0;
  int64_t num_tokens = 0;
  int64_t rounds = 0;
  Quartiles mib_per_second;  // of text; of tokenizer.json for "load"
  // Relative to the tokenizer's reference path (PCRE2 for every pattern, no caches) in the same rounds;
  // nullopt for decode and load, which have only one path.
  std::optional<Quartiles> ratio_to_reference;
};

// English-like text: words from a Zipf distribution, punctuation, numbers; the same for the same seed.
std::string generate_text(int64_t size_bytes, uint64_t seed);

// Encodes and decodes once through both paths and compares all ids and the text, then measures on one thread,
// in turn. Error(kInternal) naming the first token that differs.
std::vector<TokenizerLine> run_tokenizer_bench(const std::string& tokenizer_json,
                                               const std::string& tokenizer_name, const std::string& text,
                                               const std::string& text_name, const MeasureOptions& options);

std::string tokenizer_table_header();
std::string tokenizer_table_row(const TokenizerLine& line);
// One JSON object: benchmark "tokenizer" and the members under their names.
std::string tokenizer_json_line(const TokenizerLine& line);

}  // namespace tessera
