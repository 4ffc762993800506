#include "tokenizer/settings/mistral_pattern.h"

#include <algorithm>
#include <array>
#include <charconv>

#include <fmt/format.h>

namespace tessera {
namespace {

constexpr const char* kRight =
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr int64_t kMinTokens = 100'000;  // smaller Mistral tokenizers have no expression

bool is_old_mistral(const JsonNode& model) {
  if (model.json().empty()) return false;  // no config.json
  const std::string version = model["transformers_version"].string_or("0");
  int major = 0;
  std::from_chars(version.data(), version.data() + version.size(), major);
  if (major >= 5) return false;
  constexpr std::array kTypes = {"mistral", "mistral3", "voxtral", "ministral", "pixtral"};
  return model["model_type"].is_null() ||
         std::ranges::find(kTypes, model["model_type"].string()) != kTypes.end();
}

}  // namespace

void follow_mistral_pattern(const JsonNode& config, const JsonNode& model, int64_t num_tokens,
                            const std::string& origin, Json* document,
                            const std::function<void(const std::string&)>& warn) {
  Json& steps = (*document)["pre_tokenizer"];
  const JsonNode fix = config["fix_mistral_regex"];
  if (num_tokens <= kMinTokens || !steps.is_object() || !is_old_mistral(model)) {
    if (fix.boolean_or(false)) {
      warn(fmt::format(
          "{} true has no effect: this is no tokenizer of a Mistral model by Transformers before 5 "
          "with more than {} tokens",
          fix.where(), kMinTokens));
    }
    return;
  }
  if (steps.dump().find(Json(kRight).dump()) != std::string::npos) return;
  if (fix.is_null()) {
    warn(fmt::format(
        "{}: pre_tokenizer has the expression that Transformers before 5 wrote for Mistral models, "
        "which cuts some words and numbers otherwise than the model was trained with; set "
        "\"fix_mistral_regex\": true in tokenizer_config.json to use the right one",
        origin));
    return;
  }
  if (!fix.boolean()) return;
  const Json split = {
      {"type", "Split"}, {"pattern", {{"Regex", kRight}}}, {"behavior", "Isolated"}, {"invert", false}};
  if (steps["type"] == "Sequence" && steps["pretokenizers"].is_array() && !steps["pretokenizers"].empty()) {
    steps["pretokenizers"][0] = split;
    return;
  }
  const Json bytes = {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", false}};
  steps = {{"type", "Sequence"},
           {"pretokenizers", Json::array({split, steps["type"] == "Metaspace" ? bytes : steps})}};
}

}  // namespace tessera
