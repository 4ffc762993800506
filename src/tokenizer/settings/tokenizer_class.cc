#include "tokenizer/settings/tokenizer_class.h"

#include <algorithm>
#include <array>

#include "tokenizer/regex/fast_scanner.h"

namespace tessera {
namespace {

constexpr const char* kSpaceMark = "\u2581";

std::string without_fast(std::string name) {
  if (name.ends_with("Fast")) name.resize(name.size() - 4);
  return name;
}

ChosenClass class_named(const std::string& name) {
  if (name == "LlamaTokenizer") return {TokenizerClass::kLlama, name};
  if (name == "Qwen2Tokenizer") return {TokenizerClass::kQwen2, name};
  if (name == "GPT2Tokenizer") return {TokenizerClass::kGpt2, name};
  if (name == "GemmaTokenizer") return {TokenizerClass::kGemma, name};
  if (name == "CohereTokenizer") return {TokenizerClass::kCohere, name};
  if (name == "T5Tokenizer") return {TokenizerClass::kT5, name};
  if (name == "XLMRobertaTokenizer") return {TokenizerClass::kXlmRoberta, name};
  if (name == "BertTokenizer") return {TokenizerClass::kBert, name};
  constexpr std::array kOthers = {"CodeLlamaTokenizer", "CodeGenTokenizer", "DebertaTokenizer",
                                  "GPTNeoXTokenizer",   "HerbertTokenizer", "CLIPTokenizer",
                                  "NllbTokenizer",      "NougatTokenizer",  "OpenAIGPTTokenizer",
                                  "Qwen3_5Tokenizer",   "RobertaTokenizer", "WhisperTokenizer"};
  if (std::ranges::find(kOthers, name) != kOthers.end()) return {TokenizerClass::kOther, name};
  return {TokenizerClass::kFile, name};
}

// Fields of documents that have not been checked yet.
std::string text_of(const Json& object, const char* key) {
  const bool has = object.is_object() && object.contains(key) && object[key].is_string();
  return has ? object[key].get<std::string>() : "";
}
bool flag_of(const Json& object, const char* key, bool fallback) {
  const bool has = object.is_object() && object.contains(key) && object[key].is_boolean();
  return has ? object[key].get<bool>() : fallback;
}
bool is_step(const Json& step, const char* type) { return text_of(step, "type") == type; }

Json byte_level_step(bool add_prefix_space, bool use_regex) {
  return {{"type", "ByteLevel"}, {"add_prefix_space", add_prefix_space}, {"use_regex", use_regex}};
}

Json metaspace_step(const char* scheme, bool splits) {
  return {{"type", "Metaspace"}, {"replacement", kSpaceMark}, {"prepend_scheme", scheme}, {"split", splits}};
}

// The first Precompiled of a normalizer; null without one.
Json charsmap_of(const Json& normalizer) {
  if (is_step(normalizer, "Precompiled")) return normalizer;
  if (!is_step(normalizer, "Sequence")) return nullptr;
  for (const Json& step : normalizer.value("normalizers", Json::array())) {
    if (is_step(step, "Precompiled")) return step;
  }
  return nullptr;
}

// The Unigram tokenizers of T5 and XLM-RoBERTa.
void set_sentencepiece(int64_t unk_id, bool adds_space, Json* document) {
  (*document)["model"]["unk_id"] = unk_id;
  (*document)["model"]["byte_fallback"] = false;
  (*document)["normalizer"] = charsmap_of(document->value("normalizer", Json()));
  const Json metaspace = metaspace_step(adds_space ? "always" : "never", true);
  (*document)["pre_tokenizer"] = {{"type", "Sequence"},
                                  {"pretokenizers", Json::array({{{"type", "WhitespaceSplit"}}, metaspace})}};
  (*document)["decoder"] = metaspace;
}

// A string of the configuration, or of a special token there.
std::string token_text(const JsonNode& token, const char* absent) {
  return token.is_object() ? token["content"].string() : token.string_or(absent);
}

void set_bert(const JsonNode& config, Json* document) {
  (*document)["model"]["unk_token"] = token_text(config["unk_token"], "[UNK]");
  (*document)["model"]["continuing_subword_prefix"] = "##";
  (*document)["model"]["max_input_chars_per_word"] = 100;
  const JsonNode strips = config["strip_accents"];
  (*document)["normalizer"] = {{"type", "BertNormalizer"},
                               {"clean_text", true},
                               {"handle_chinese_chars", config["tokenize_chinese_chars"].boolean_or(true)},
                               {"strip_accents", strips.is_null() ? Json() : Json(strips.boolean())},
                               {"lowercase", config["do_lower_case"].boolean_or(true)}};
  (*document)["pre_tokenizer"] = {{"type", "BertPreTokenizer"}};
  (*document)["decoder"] = {{"type", "WordPiece"}, {"prefix", "##"}, {"cleanup", true}};
}

void set_llama(const JsonNode& config, Json* document) {
  const bool adds_space = config["add_prefix_space"].boolean_or(true);
  const char* scheme = config["legacy"].boolean_or(false) ? "always" : "first";
  (*document)["normalizer"] = nullptr;
  (*document)["pre_tokenizer"] = metaspace_step(adds_space ? scheme : "never", false);
  Json decoders = {{{"type", "Replace"}, {"pattern", {{"String", kSpaceMark}}}, {"content", " "}},
                   {{"type", "ByteFallback"}},
                   {{"type", "Fuse"}}};
  if (adds_space) decoders.push_back({{"type", "Strip"}, {"content", " "}, {"start", 1}, {"stop", 0}});
  (*document)["decoder"] = {{"type", "Sequence"}, {"decoders", std::move(decoders)}};
}

void set_gemma(const JsonNode& config, Json* document) {
  const Json space = {{"String", " "}}, mark = {{"String", kSpaceMark}};
  (*document)["model"]["unk_token"] = token_text(config["unk_token"], "<unk>");
  (*document)["normalizer"] = {{"type", "Replace"}, {"pattern", space}, {"content", kSpaceMark}};
  (*document)["pre_tokenizer"] = {
      {"type", "Split"}, {"pattern", space}, {"behavior", "MergedWithPrevious"}, {"invert", false}};
  (*document)["decoder"] = {
      {"type", "Sequence"},
      {"decoders", Json::array({{{"type", "Replace"}, {"pattern", mark}, {"content", " "}},
                                {{"type", "ByteFallback"}},
                                {{"type", "Fuse"}}})}};
}

void set_cohere(bool adds_space, Json* document) {
  (*document)["normalizer"] = {{"type", "NFC"}};
  const Json digits = {{"type", "Digits"}, {"individual_digits", true}};
  (*document)["pre_tokenizer"] = {
      {"type", "Sequence"}, {"pretokenizers", Json::array({digits, byte_level_step(adds_space, true)})}};
}

// The parts of a step that change how text is cut, each in one spelling.
Json comparable(const Json& step) {
  if (!step.is_object()) return step;
  Json out = step;
  for (const char* list : {"pretokenizers", "normalizers"}) {
    if (!step.contains(list) || !step[list].is_array()) continue;
    Json parts = Json::array();
    for (const Json& part : step[list]) {
      if (Json same = comparable(part); !same.is_null()) parts.push_back(std::move(same));
    }
    if (parts.empty()) return nullptr;
    if (parts.size() == 1) return parts[0];
    out[list] = std::move(parts);
  }
  if (is_step(step, "ByteLevel"))
    return byte_level_step(flag_of(step, "add_prefix_space", true), flag_of(step, "use_regex", true));
  if (is_step(step, "Metaspace")) {
    const bool adds_space = flag_of(step, "add_prefix_space", true);
    const std::string scheme = text_of(step, "prepend_scheme");
    out = metaspace_step(!scheme.empty() ? scheme.c_str()
                         : adds_space    ? "always"
                                         : "never",
                         flag_of(step, "split", true));
    out["replacement"] = text_of(step, "replacement");
  }
  if (is_step(step, "BertNormalizer"))
    out["strip_accents"] = flag_of(step, "strip_accents", flag_of(step, "lowercase", true));
  if (is_step(step, "Split")) out["invert"] = flag_of(step, "invert", false);
  return out;
}

}  // namespace

ChosenClass choose_tokenizer_class(const JsonNode& config, const JsonNode& model, bool is_byte_level) {
  const std::string type = model["model_type"].string_or("");
  const bool declares_in_config = config["tokenizer_class"].is_string();
  const std::string declared = without_fast(declares_in_config ? config["tokenizer_class"].string()
                                                               : model["tokenizer_class"].string_or(""));
  // Models whose class is taken although the folder names another.
  const bool is_qwen2 = type == "qwen2";
  const bool has_qwen2_class = type.starts_with("qwen2") || type.starts_with("qwen3");
  const bool is_mistral = type.starts_with("mistral") || type.starts_with("mixtral") ||
                          type.starts_with("ministral") || type == "pixtral";
  if (!config["auto_map"].is_null()) return class_named(declared);
  if (is_mistral) return {TokenizerClass::kFile, declared};
  if (is_qwen2) return {TokenizerClass::kQwen2, "Qwen2Tokenizer"};
  if (declared == "LlamaTokenizer" && is_byte_level) return {TokenizerClass::kFile, declared};
  // The class of the model's type is TokenizersBackend, whatever the folder names.
  constexpr std::array kPlainTypes = {"granite", "modernbert", "modernbert-decoder", "olmo2", "olmo3",
                                      "phi3",    "umt5",       "xlm-roberta-xl"};
  if (std::ranges::find(kPlainTypes, type) != kPlainTypes.end()) return {TokenizerClass::kFile, declared};
  if (declared.empty()) {
    constexpr std::pair<std::string_view, const char*> kClasses[] = {
        {"bert", "BertTokenizer"},    {"cohere2", "CohereTokenizer"},        {"gemma2", "GemmaTokenizer"},
        {"gemma3", "GemmaTokenizer"}, {"gemma3_text", "GemmaTokenizer"},     {"mt5", "T5Tokenizer"},
        {"t5", "T5Tokenizer"},        {"xlm-roberta", "XLMRobertaTokenizer"}};
    for (const auto& [known, name] : kClasses) {
      if (type == known) return class_named(name);
    }
  }
  if (declared.empty() && has_qwen2_class) return {TokenizerClass::kQwen2, "Qwen2Tokenizer"};
  return class_named(declared);
}

std::vector<std::pair<std::string, std::string>> default_special_tokens(TokenizerClass kind) {
  switch (kind) {
    case TokenizerClass::kLlama:
      return {{"bos_token", "<s>"}, {"eos_token", "</s>"}, {"unk_token", "<unk>"}};
    case TokenizerClass::kQwen2:
      return {{"eos_token", "<|endoftext|>"}, {"unk_token", "<|endoftext|>"}, {"pad_token", "<|endoftext|>"}};
    case TokenizerClass::kGpt2:
      return {{"bos_token", "<|endoftext|>"}, {"eos_token", "<|endoftext|>"}, {"unk_token", "<|endoftext|>"}};
    case TokenizerClass::kGemma:
      return {{"bos_token", "<bos>"},
              {"eos_token", "<eos>"},
              {"unk_token", "<unk>"},
              {"pad_token", "<pad>"},
              {"mask_token", "<mask>"}};
    case TokenizerClass::kCohere:
      return {{"bos_token", "<BOS_TOKEN>"},  {"eos_token", "<|END_OF_TURN_TOKEN|>"},
              {"unk_token", "<UNK>"},        {"sep_token", "<SEP>"},
              {"pad_token", "<PAD>"},        {"cls_token", "<CLS>"},
              {"mask_token", "<MASK_TOKEN>"}};
    case TokenizerClass::kT5:
      return {{"eos_token", "</s>"}, {"unk_token", "<unk>"}, {"pad_token", "<pad>"}};
    case TokenizerClass::kXlmRoberta:
      return {{"bos_token", "<s>"},   {"eos_token", "</s>"}, {"unk_token", "<unk>"},  {"sep_token", "</s>"},
              {"pad_token", "<pad>"}, {"cls_token", "<s>"},  {"mask_token", "<mask>"}};
    case TokenizerClass::kBert:
      return {{"unk_token", "[UNK]"},
              {"sep_token", "[SEP]"},
              {"pad_token", "[PAD]"},
              {"cls_token", "[CLS]"},
              {"mask_token", "[MASK]"}};
    case TokenizerClass::kFile:
    case TokenizerClass::kOther:
      break;
  }
  return {};
}

bool builds_model_of(TokenizerClass kind, const Json& document) {
  const std::string type = text_of(document["model"], "type");
  switch (kind) {
    case TokenizerClass::kLlama:
    case TokenizerClass::kQwen2:
    case TokenizerClass::kGpt2:
    case TokenizerClass::kGemma:
    case TokenizerClass::kCohere:
      return type.empty() || type == "BPE";
    case TokenizerClass::kT5:
    case TokenizerClass::kXlmRoberta:
      return type.empty() || type == "Unigram";
    case TokenizerClass::kBert:
      return type.empty() || type == "WordPiece";
    case TokenizerClass::kFile:
    case TokenizerClass::kOther:
      break;
  }
  return true;
}

SurroundingTokens surrounding_tokens(TokenizerClass kind) {
  if (kind == TokenizerClass::kT5) return {{}, {"eos_token"}};
  if (kind == TokenizerClass::kXlmRoberta) return {{"bos_token"}, {"eos_token"}};
  if (kind == TokenizerClass::kBert) return {{"cls_token"}, {"sep_token"}};
  return {};
}

Json rebuilt_by_class(TokenizerClass kind, const JsonNode& config, const Json& document) {
  Json out = document;
  if (kind == TokenizerClass::kFile || kind == TokenizerClass::kOther || !out["model"].is_object())
    return out;
  if (kind == TokenizerClass::kT5) {
    set_sentencepiece(2, true, &out);
    return out;
  }
  if (kind == TokenizerClass::kXlmRoberta) {
    set_sentencepiece(3, config["add_prefix_space"].boolean_or(true), &out);
    return out;
  }
  if (kind == TokenizerClass::kBert) {
    set_bert(config, &out);
    return out;
  }
  Json& model = out["model"];
  const bool is_llama = kind == TokenizerClass::kLlama;
  for (const char* option : {"dropout", "unk_token", "continuing_subword_prefix", "end_of_word_suffix"})
    model[option] = nullptr;
  const bool is_gemma = kind == TokenizerClass::kGemma;
  model["fuse_unk"] = model["byte_fallback"] = is_llama || is_gemma;
  model["ignore_merges"] = false;
  if (is_gemma) {
    set_gemma(config, &out);
    return out;
  }
  if (is_llama) {
    set_llama(config, &out);
    return out;
  }
  const bool adds_space = config["add_prefix_space"].boolean_or(false);
  out["decoder"] = {{"type", "ByteLevel"}};
  if (kind == TokenizerClass::kCohere) {
    set_cohere(adds_space, &out);
    return out;
  }
  if (kind == TokenizerClass::kGpt2) {
    out["normalizer"] = nullptr;
    out["pre_tokenizer"] = byte_level_step(adds_space, true);
    return out;
  }
  out["normalizer"] = {{"type", "NFC"}};
  const Json split = {{"type", "Split"},
                      {"pattern", {{"Regex", kQwen2Pattern}}},
                      {"behavior", "Isolated"},
                      {"invert", false}};
  out["pre_tokenizer"] = {{"type", "Sequence"},
                          {"pretokenizers", Json::array({split, byte_level_step(adds_space, false)})}};
  return out;
}

bool cut_alike(const Json& a, const Json& b) {
  for (const char* step : {"normalizer", "pre_tokenizer"}) {
    if (comparable(a.value(step, Json())) != comparable(b.value(step, Json()))) return false;
  }
  for (const char* option : {"ignore_merges", "byte_fallback"}) {
    if (flag_of(a["model"], option, false) != flag_of(b["model"], option, false)) return false;
  }
  for (const char* option : {"continuing_subword_prefix", "end_of_word_suffix"}) {
    if (text_of(a["model"], option) != text_of(b["model"], option)) return false;
  }
  const auto differs = [&](const char* option) {
    return a["model"].value(option, Json()) != b["model"].value(option, Json());
  };
  if (differs("unk_id") || differs("max_input_chars_per_word")) return false;
  if (a["model"].contains("max_input_chars_per_word") && differs("unk_token")) return false;
  return true;
}

bool is_sentencepiece_form(const Json& document) {
  const Json normalizer = document.value("normalizer", Json());
  const Json pre_tokenizer = document.value("pre_tokenizer", Json());
  if (flag_of(document["model"], "ignore_merges", false)) return false;
  if (normalizer.is_null())
    return is_step(pre_tokenizer, "Metaspace") && !flag_of(pre_tokenizer, "split", true);
  const auto is_known = [](const Json& step) { return is_step(step, "Prepend") || is_step(step, "Replace"); };
  if (!is_step(normalizer, "Sequence")) return pre_tokenizer.is_null() && is_known(normalizer);
  const Json steps = normalizer.value("normalizers", Json::array());
  return pre_tokenizer.is_null() && std::ranges::all_of(steps, is_known);
}

}  // namespace tessera
