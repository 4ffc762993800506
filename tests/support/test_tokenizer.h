// Test support for this module: small tokenizers and components from JSON.
#pragma once

#include <nlohmann/json.hpp>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "formats/json.h"
#include "tokenizer/pipeline/byte_level.h"
#include "tokenizer/regex/unicode.h"

namespace tessera {

// A named document, as make_normalizer and similar functions take it.
class TestNode {
 public:
  explicit TestNode(std::string_view json) : value_(nlohmann::json::parse(json)) {}
  JsonNode node() const { return {value_, name_}; }

 private:
  nlohmann::json value_;
  std::string name_ = "test.json";
};

// A tokenizer that works on characters: `tokens` in order as the vocabulary, no merges.
inline nlohmann::json plain_tokenizer(const std::vector<std::string>& tokens) {
  nlohmann::json vocab = nlohmann::json::object();
  for (const std::string& token : tokens) vocab.emplace(token, vocab.size());
  return {{"version", "1.0"},
          {"added_tokens", nlohmann::json::array()},
          {"normalizer", nullptr},
          {"pre_tokenizer", nullptr},
          {"post_processor", nullptr},
          {"decoder", {{"type", "Fuse"}}},
          {"model", {{"type", "BPE"}, {"vocab", vocab}, {"merges", nlohmann::json::array()}}}};
}

// Like plain_tokenizer, with the 256 bytes first and a ByteLevel that splits like GPT-2.
inline nlohmann::json byte_tokenizer(const std::vector<std::string>& more_tokens = {}) {
  std::vector<std::string> tokens;
  for (int byte = 0; byte < 256; ++byte)
    tokens.push_back(byte_level_encode(std::string(1, static_cast<char>(byte))));
  tokens.insert(tokens.end(), more_tokens.begin(), more_tokens.end());
  nlohmann::json json = plain_tokenizer(tokens);
  json["pre_tokenizer"] = {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", true}};
  json["decoder"] = {{"type", "ByteLevel"}};
  return json;
}

// Text on which tokenizers tend to differ, mixed with arbitrary characters.
inline std::string random_unicode(std::mt19937& random, int max_parts) {
  static const std::vector<std::string> kParts = {"the",
                                                  "World",
                                                  "'s",
                                                  "'S",
                                                  "'ll",
                                                  "'LL",
                                                  "'re",
                                                  "'\xC5\xBF",
                                                  "'",
                                                  " ",
                                                  "  ",
                                                  "\t",
                                                  "\n",
                                                  "\r\n",
                                                  "\n\n",
                                                  "\xC2\xA0",
                                                  "\xC2\x85",
                                                  "\xE2\x80\xA8",
                                                  "\xE3\x80\x80",
                                                  "\xE1\xA0\x8E",
                                                  "\xEF\xBB\xBF",
                                                  "1",
                                                  "1234567",
                                                  "\xC2\xBD",
                                                  "\xE2\x85\xA7",
                                                  "\xD9\xA3",
                                                  "!",
                                                  "...",
                                                  "_",
                                                  "-",
                                                  "\xC3\xA9",
                                                  "e\xCC\x81",
                                                  "\xE5\xAD\x97",
                                                  "\xF0\x9F\x98\x80",
                                                  "\xE2\x80\x8D",
                                                  "\xE2\x96\x81",
                                                  "<s>",
                                                  "<|x|>"};
  std::string text;
  for (int n = static_cast<int>(random() % static_cast<unsigned>(max_parts)); n >= 0; --n) {
    if (random() % 3 != 0) {
      text += kParts[random() % kParts.size()];
      continue;
    }
    static constexpr unsigned kLimits[] = {0x80, 0x250, 0x3000, 0x10000, 0x110000};
    const char32_t code_point = random() % kLimits[random() % 5];
    if (code_point < 0xD800 || code_point > 0xDFFF) append_utf8(code_point, &text);
  }
  return text;
}

}  // namespace tessera
