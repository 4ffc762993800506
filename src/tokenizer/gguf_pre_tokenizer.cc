// How llama.cpp's converter names pre-tokenizers.
#include <openssl/evp.h>

#include <algorithm>
#include <array>
#include <iterator>
#include <string_view>

#include "base/error.h"
#include "base/text.h"
#include "io/file.h"
#include "tokenizer/gguf_vocabulary.h"
#include "tokenizer/pipeline/pre_tokenizer.h"
#include "tokenizer/tokenizer_file.h"

namespace tessera {
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

// SHA-256 of the probe's ids, written as a Python list, from the same function: the models of our families.
struct KnownTokenizer {
  std::string_view sha256;
  const char* name;
};
constexpr KnownTokenizer kKnown[] = {
    {"0ef9807a4087ebef797fc749390439009c3b9eda9ad1a097abbe738f486c01e5", "llama-bpe"},  // Llama 3
    {"e636dc30a262dcc0d8c323492e32ae2b70728f4df7dfe9737d9f920a282b8aea", "qwen2"},      // Qwen 1.5 to 3
    {"d4540891389ea895b53b399da6ac824becc30f2fba0e9ddbb98f92e55ca0e97c", "qwen2"},      // Qwen3-Embedding
    {"b3f499bb4255f8ca19fccd664443283318f2fd2414d5e0b040fbdd0cc195d6c5", "deepseek-r1-qwen"},
    {"63b97e4253352e6f357cc59ea5b583e3a680eaeaf2632188c2b952de2588485e", "tekken"},   // Mistral Nemo
    {"0e9433cbbb161f89e264eb32e8e64bfe69e834973ffca5d41d3948a604a3e2a3", "pixtral"},  // Mistral
    {"3ce83efda5659b07b1ad37ca97ca5797ea4285d9b9ab0dc679e4a720c9da7454", "gpt-2"},
    {"c136ed14d01c2745d4f60a9596ae66800e2b61fa45643e72436041855ad4089d", "smaug-bpe"},
    {"855059429035d75a914d1eda9f10a876752e281a054a7a3d421ef0533e5b6249", "smollm"},
    {"9d032fcbd5501f4a38150912590928bfb36091efb5df11b8e2124b0390e3fb1e", "falcon3"},
    {"049ecf7629871e3041641907f3de7c733e4dbfdc736f57d882ba0b0845599754", "deepseek-llm"},
    {"347715f544604f9118bb75ed199f68779f423cabb20db6de6f31b908d04d7821", "deepseek-coder"},
    {"1431a23e583c97432bc230bff598d103ddb5a1f89960c8f1d1051aaa944d0b35", "minerva-7b"},
    {"d5f1dd6f980fec569fb218a81a7658ac45fc56b38c5a0adeb1c232fbe04ef5ec", "seed-coder"},
    {"1994ffd01900cfb37395608534236ecd63f2bd5995d6cb1004dda1af50240f15", "trillion"},
    {"a1e163ecab2e718a4c829d1148b6e86824ec36163bb71941c3dca9cd5ac25756", "mellum"},
    {"d4c8f286ea6b520b3d495c4455483cfa2302c0cfcd4be05d781b6a8a0a7cdaf1", "megrez"},
    {"b0a6b1c0bd5998ebd9df08611efde34a4ff03faed45ae09c43e6b31ebd4b94cf", "a.x-4.0"},
    {"f6791d196f87ce6b56a7d234be618e0d58f8cda3549416635b2bebcd22cd95c4", "midm-2.0"},
};

// Mistral's pattern since Nemo, of which llama.cpp has its own version.
constexpr std::string_view kTekkenPattern =
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

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
  const auto known = std::ranges::find(kKnown, sha256_text(ids), &KnownTokenizer::sha256);
  if (known != std::end(kKnown)) return known->name;
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
