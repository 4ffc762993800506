// Names that llama.cpp's converter gives to pre-tokenizers.
#include <openssl/evp.h>

#include <array>
#include <string_view>

#include "base/embedded_text.h"
#include "base/error.h"
#include "base/text.h"
#include "io/file.h"
#include "tokenizer/gguf_vocabulary.h"
#include "tokenizer/pipeline/pre_tokenizer.h"
#include "tokenizer/regex/fast_scanner.h"
#include "tokenizer/settings/tokenizer_file.h"

namespace tessera {

std::span<const EmbeddedText> tokenizer_texts();  // tokenizer/*.tsv

namespace {

// Encoded by the converter to tell pre-tokenizers apart (conversion/base.py, get_vocab_base_pre).
constexpr const char* kProbe =
    "\n \n\n \n\n\n \t \t\t \t\n  \n   \n    \n     \n\U0001f680 (normal) \U0001f636\u200d\U0001f32b"
    "\ufe0f (multiple emojis concatenated) \u2705 \U0001f999\U0001f999 3 33 333 3333 33333 333333 333"
    "3333 33333333 3.3 3..3 3...3 \u1780\u17b6\u1793\u17cb\u178f\u17c2\u1796\u17b7\u179f\u17c1\u179f"
    "\u17a2\u17b6\u1785\U0001f601 ?\u6211\u60f3\u5728apple\u5de5\u4f5c1314151\u5929\uff5e ------====="
    "== \u043d\u0435\u0449\u043e \u043d\u0430 \u0411\u044a\u043b\u0433\u0430\u0440\u0441\u043a\u0438 "
    "''''''```````\"\"\"\"......!!!!!!?????? I've been 'told he's there, 'RE you sure? 'M not sure I'"
    "ll make it, 'D you like some tea? We'Ve a'lL";

std::string sha256_text(std::string_view bytes) {
  std::array<unsigned char, 32> digest;
  const int ok = EVP_Digest(bytes.data(), bytes.size(), digest.data(), nullptr, EVP_sha256(), nullptr);
  TESSERA_CHECK(ok == 1, "SHA-256");
  return fmt::format("{:02x}", fmt::join(digest, ""));
}

bool is_split_by(const JsonNode& step, std::string_view pattern) {
  return step["type"].string_or("") == "Split" && step["pattern"]["Regex"].string_or("") == pattern;
}

// By the pattern and whether words that are tokens are taken whole (ignore_merges), which llama.cpp derives
// from the name. "" = none fits.
std::string name_by_pattern(const JsonNode& pre_tokenizer, bool ignore_merges) {
  if (const std::optional<KnownSplit> split = known_split(pre_tokenizer)) {
    if (split->add_prefix_space) return "";
    switch (split->pattern) {
      case KnownPattern::kGpt2:
        return ignore_merges ? "" : "gpt-2";
      case KnownPattern::kLlama3:
        return ignore_merges ? "llama-bpe" : "smaug-bpe";
      case KnownPattern::kQwen2:
        return ignore_merges ? "" : "qwen2";
    }
  }
  if (!pre_tokenizer["pretokenizers"].is_list()) return "";
  const std::vector<JsonNode> steps = pre_tokenizer["pretokenizers"].list();
  if (steps.size() != 2 || steps[1]["add_prefix_space"].boolean_or(true)) return "";
  const bool use_regex = steps[1]["use_regex"].boolean_or(true);
  if (!use_regex && ignore_merges && is_split_by(steps[0], kTekkenPattern)) return "tekken";
  const bool splits_digits =
      steps[0]["type"].string_or("") == "Digits" && steps[0]["individual_digits"].boolean_or(false);
  return use_regex && !ignore_merges && splits_digits ? "smollm" : "";
}

}  // namespace

std::string gguf_pre_tokenizer(const Tokenizer& tokenizer, const std::filesystem::path& tokenizer_json) {
  const std::string ids = fmt::format("[{}]", fmt::join(tokenizer.encode(kProbe), ", "));
  const std::string hash = sha256_text(ids);
  for (const auto& cells :
       read_cells("gguf_tokenizers", text_named(tokenizer_texts(), "gguf_tokenizers"), 3)) {
    if (cells[0] == hash) return std::string(cells[1]);
  }
  const std::string origin = tokenizer_json.string();
  const TokenizerFile file = parse_tokenizer_file(read_text_file(tokenizer_json), origin);
  const JsonNode root(file.document, origin);
  std::string name = name_by_pattern(root["pre_tokenizer"], root["model"]["ignore_merges"].boolean_or(false));
  if (name.empty()) {
    fail(ExitCode::kBadConfig,
         "{}: expected a pre_tokenizer that llama.cpp knows (those of GPT-2, Llama 3, Qwen 2, Mistral Nemo, "
         "SmolLM), "
         "found another: no GGUF file can describe this tokenizer",
         origin);
  }
  return name;
}

}  // namespace tessera
