#include "tokenizer/settings/loaded_tokenizer.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <mutex>
#include <optional>
#include <set>

#include "base/error.h"
#include "base/log.h"
#include "base/rng.h"
#include "base/text.h"
#include "formats/json.h"
#include "io/file.h"
#include "tokenizer/pipeline/post_processor.h"
#include "tokenizer/regex/fast_scanner.h"
#include "tokenizer/settings/added_vocabulary.h"
#include "tokenizer/settings/special_tokens.h"
#include "tokenizer/settings/tokenizer_class.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;

// Part of every fingerprint; increment it when the same file gives different ids.
constexpr uint64_t kEncodingVersion = 2;

uint64_t fingerprint_of(std::string_view json) {
  return hash_name(json) ^ kEncodingVersion * 0x9E3779B97F4A7C15u;
}

// A run opens its tokenizer several times.
void warn_once(const std::string& message) {
  static std::mutex mutex;
  static std::set<std::string> said;
  const std::lock_guard lock(mutex);
  if (said.insert(message).second) log_warning("{}", message);
}

std::vector<AddedToken> read_added_tokens(const JsonNode& node) {
  std::vector<AddedToken> tokens;
  if (node.is_null()) return tokens;
  for (const JsonNode& entry : node.list()) {
    AddedToken token = read_added_token(entry, /*special=*/std::nullopt);
    token.id = static_cast<int32_t>(entry["id"].integer(0, INT32_MAX));
    for (const AddedToken& other : tokens) {
      if ((other.id == token.id) != (other.content == token.content)) {
        fail(ExitCode::kBadData, "{}: \"{}\" with id {} contradicts \"{}\" with id {}", entry.where(),
             printable(token.content), token.id, printable(other.content), other.id);
      }
    }
    tokens.push_back(std::move(token));
  }
  return tokens;
}

// The tokens as tokenizers adds them: it counts ids itself.
void add_tokens_of_file(const std::vector<AddedToken>& tokens, const ModelTables& tables,
                        const std::string& origin, AddedVocabulary* vocabulary) {
  for (const AddedToken& token : tokens) {
    const std::optional<int32_t> known = vocabulary->find(token.content);
    if (known && !vocabulary->is_added(token.content) && *known != token.id) {
      fail(ExitCode::kBadData, "{}: the added token \"{}\" has id {}, but model.vocab gives it {}", origin,
           printable(token.content), token.id, *known);
    }
    vocabulary->add(token);
    const std::optional<int32_t> id = vocabulary->find(token.content);
    if (!id || *id == token.id) continue;
    for (const ModelTables::Token& other : tables.tokens) {
      if (other.id != token.id) continue;
      fail(ExitCode::kBadData, "{}: the added token \"{}\" has the id {} of \"{}\"", origin,
           printable(token.content), token.id, printable(tables.token(other)));
    }
    warn_once(
        fmt::format("{}: the added token \"{}\" has id {} there, but gets {}, as in Hugging Face's "
                    "tokenizers, which counts added tokens from the size of the vocabulary",
                    origin, printable(token.content), token.id, *id));
  }
}

bool same_tokens(std::vector<AddedToken> a, std::vector<AddedToken> b) {
  const auto by_id = [](const AddedToken& x, const AddedToken& y) { return x.id < y.id; };
  std::ranges::sort(a, by_id);
  std::ranges::sort(b, by_id);
  return std::ranges::equal(
      a, b, [](const AddedToken& x, const AddedToken& y) { return x.id == y.id && same_flags(x, y); });
}

std::string text_of_tokens(const std::vector<AddedToken>& tokens) {
  std::string text;
  for (const AddedToken& token : tokens) {
    text += fmt::format("{} {} {}{}{}{}{}\n", token.id, token.content, token.single_word, token.lstrip,
                        token.rstrip, token.normalized, token.special);
  }
  return text;
}

// Settings of tokenizer_config.json that Transformers 4 followed, or that another class would.
void warn_without_effect(const JsonNode& config, const ChosenClass& chosen, const Json& document) {
  const std::string here = config.origin();
  const auto is_true = [&](const char* key) { return config[key].json() == true; };
  const Json& post = document.contains("post_processor") ? document["post_processor"] : Json();
  for (const char* kind : {"bos", "eos"}) {
    const std::string key = fmt::format("add_{}_token", kind);
    const JsonNode token = config[fmt::format("{}_token", kind)];
    const std::string text = token.is_object() ? token["content"].string_or("") : token.string_or("");
    if (config[key].is_null() || text.empty()) continue;
    const bool adds = post.dump().find(Json(text).dump()) != std::string::npos;
    if (adds == is_true(key.c_str())) continue;
    warn_once(
        fmt::format("{}: {} {} has no effect: post_processor of tokenizer.json, which {} \"{}\", says "
                    "what is added, as in Transformers 5",
                    here, key, is_true(key.c_str()), adds ? "adds" : "does not add", printable(text)));
  }
  const std::string steps_before = document.value("normalizer", Json()).dump();
  const bool lowers = steps_before.find("\"Lowercase\"") != std::string::npos ||
                      steps_before.find("\"lowercase\":true") != std::string::npos;
  if (is_true("do_lower_case") && !lowers) {
    warn_once(fmt::format("{}: do_lower_case true has no effect: tokenizer.json has no normalizer Lowercase",
                          here));
  }
  if (chosen.kind == TokenizerClass::kFile && config["add_prefix_space"].json().is_boolean()) {
    const std::string steps = document.value("pre_tokenizer", Json()).dump();
    const char* other =
        is_true("add_prefix_space") ? "\"add_prefix_space\":false" : "\"add_prefix_space\":true";
    if (steps.find(other) != std::string::npos) {
      warn_once(
          fmt::format("{}: add_prefix_space {} has no effect: pre_tokenizer of tokenizer.json says "
                      "otherwise, and is followed, as in Transformers 5",
                      here, is_true("add_prefix_space")));
    }
  }
  constexpr const char* kCleanUp = "clean_up_tokenization_spaces_for_bpe_even_though_it_will_corrupt_output";
  if (is_true(kCleanUp))
    warn_once(fmt::format("{}: {} has no effect: decoded text is left as it is", here, kCleanUp));
  if (!config["auto_map"].is_null()) {
    warn_once(fmt::format("{}: auto_map names Python code, which is not run: tokenizer.json is used", here));
  }
}

bool reads_left(const JsonNode& side) {
  const std::string word = side.string_or("right");
  if (word != "left" && word != "right") side.expected("left or right");
  return word == "left";
}

void check_file_name(const JsonNode& config) {
  const JsonNode files = config["fast_tokenizer_files"];
  if (files.is_null()) return;
  for (const JsonNode& file : files.list()) {
    if (file.string() != "tokenizer.json") file.expected("tokenizer.json only, without files for versions");
  }
}

constexpr int64_t kMinMistralTokens = 100'000;  // smaller Mistral tokenizers have no expression

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

// Folders of Mistral models written by Transformers before 5 have a wrong pre-tokenizer expression. As in
// Transformers 5.24, fix_mistral_regex of tokenizer_config.json replaces the first step of the pre-tokenizer
// with the right one; without it, a file with the wrong one gets a warning.
void follow_mistral_pattern(const JsonNode& config, const JsonNode& model, int64_t num_tokens,
                            const std::string& origin, Json* document) {
  Json& steps = (*document)["pre_tokenizer"];
  const JsonNode fix = config["fix_mistral_regex"];
  if (num_tokens <= kMinMistralTokens || !steps.is_object() || !is_old_mistral(model)) {
    if (fix.boolean_or(false)) {
      warn_once(fmt::format(
          "{} true has no effect: this is no tokenizer of a Mistral model by Transformers before 5 "
          "with more than {} tokens",
          fix.where(), kMinMistralTokens));
    }
    return;
  }
  if (steps.dump().find(Json(kTekkenPattern).dump()) != std::string::npos) return;
  if (fix.is_null()) {
    warn_once(fmt::format(
        "{}: pre_tokenizer has the expression that Transformers before 5 wrote for Mistral models, "
        "which cuts some words and numbers otherwise than the model was trained with; set "
        "\"fix_mistral_regex\": true in tokenizer_config.json to use the right one",
        origin));
    return;
  }
  if (!fix.boolean()) return;
  const Json split = {{"type", "Split"},
                      {"pattern", {{"Regex", kTekkenPattern}}},
                      {"behavior", "Isolated"},
                      {"invert", false}};
  if (steps["type"] == "Sequence" && steps["pretokenizers"].is_array() && !steps["pretokenizers"].empty()) {
    steps["pretokenizers"][0] = split;
    return;
  }
  const Json bytes = {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", false}};
  steps = {{"type", "Sequence"},
           {"pretokenizers", Json::array({split, steps["type"] == "Metaspace" ? bytes : steps})}};
}

// Loads the tokenizer with the files beside it.
class FolderLoader {
 public:
  explicit FolderLoader(const fs::path& file)
      : folder_(file.parent_path()),
        origin_(file.string()),
        text_(read_text_file(file)),
        config_origin_((folder_ / "tokenizer_config.json").string()),
        model_origin_((folder_ / "config.json").string()) {}

  LoadedTokenizer load(const std::string& model_type) {
    config_ = parse_json_file_if_any(config_origin_);
    if (!config_.is_object()) JsonNode(config_, config_origin_).expected("an object");
    model_ = model_type.empty() ? parse_json_file_if_any(model_origin_) : Json{{"model_type", model_type}};
    LoadedTokenizer loaded;
    loaded.file = parse_tokenizer_file(text_, origin_);
    const Json document = loaded.file.document;
    const JsonNode root(document, origin_);
    const std::vector<AddedToken> own = read_added_tokens(root["added_tokens"]);
    const JsonNode config(config_, config_origin_);
    check_file_name(config);
    const JsonNode model(model_, model_origin_);
    const bool is_byte_level = text_.find("\"ByteLevel\"") != std::string::npos;
    chosen_ = choose_tokenizer_class(config, model, is_byte_level);
    if (!builds_model_of(chosen_.kind, document)) chosen_.kind = TokenizerClass::kOther;
    Json rebuilt = rebuilt_by_class(chosen_.kind, config, document);
    SpecialTokens special = read_special_tokens(folder_, config_origin_, root, own);
    AddedVocabulary by_class = added_by(loaded.file.tables, chosen_.kind, own, special);
    // Folders from before Transformers 4.31 lack `legacy`; their models were trained as the file says.
    const bool is_old_llama = chosen_.kind == TokenizerClass::kLlama && !config_.contains("legacy") &&
                              is_sentencepiece_form(document) && !cut_alike(document, rebuilt);
    if (is_old_llama) {
      warn_about_old_llama();
      by_class = added_by(loaded.file.tables, TokenizerClass::kFile, own, special);
      defaults_apply_ = false;
    } else if (chosen_.kind == TokenizerClass::kLlama) {
      warn_about_llama(document, rebuilt);
      loaded.file.document = std::move(rebuilt);
    } else if (chosen_.kind != TokenizerClass::kFile) {
      AddedVocabulary by_file = added_by(loaded.file.tables, TokenizerClass::kFile, own, special);
      if (chosen_.kind == TokenizerClass::kOther || !cut_alike(document, rebuilt) ||
          !same_tokens(by_class.tokens(), by_file.tokens()) ||
          !adds_alike(root["post_processor"], with_defaults(special, chosen_.kind), by_class)) {
        warn_about_class(type_of(model));
        by_class = std::move(by_file);
        defaults_apply_ = false;
      }
    }
    name_special_tokens(by_class, special, &loaded);
    loaded.added_tokens = by_class.tokens();
    warn_without_effect(config, chosen_, document);
    follow_mistral_pattern(config, model, static_cast<int64_t>(loaded.file.tables.tokens.size()), origin_,
                           &loaded.file.document);
    loaded.split_special_tokens = config["split_special_tokens"].boolean_or(false);
    loaded.cuts_left = reads_left(config["truncation_side"]);
    loaded.fingerprint = fingerprint(document, own, loaded);
    return loaded;
  }

 private:
  static std::string type_of(const JsonNode& model) { return model["model_type"].string_or(""); }

  AddedVocabulary added_by(const ModelTables& tables, TokenizerClass kind, const std::vector<AddedToken>& own,
                           const SpecialTokens& special) const {
    AddedVocabulary vocabulary(tables);
    const bool is_rebuilt = kind != TokenizerClass::kFile && kind != TokenizerClass::kOther;
    if (!is_rebuilt) add_tokens_of_file(own, tables, origin_, &vocabulary);
    add_special_tokens(kind == TokenizerClass::kT5 ? with_sentinels(special) : special,
                       with_defaults(special, kind), &vocabulary);
    if (kind == TokenizerClass::kQwen2)
      add_all_as_special(special, with_defaults(special, kind), &vocabulary);
    return vocabulary;
  }

  // T5Tokenizer has the tokens <extra_id_0>, ..., 100 unless extra_ids says otherwise.
  SpecialTokens with_sentinels(SpecialTokens special) const {
    const int64_t count = JsonNode(config_, config_origin_)["extra_ids"].integer_or(100);
    for (int64_t i = 0; i < std::min<int64_t>(count, 1000); ++i) {
      NamedToken token = {"", {.content = fmt::format("<extra_id_{}>", i), .special = true}, true};
      const auto is_same = [&](const NamedToken& other) {
        return other.token.content == token.token.content;
      };
      if (std::ranges::none_of(special.extra, is_same)) special.extra.push_back(std::move(token));
    }
    return special;
  }

  // Whether the file's post-processor puts the tokens around a text that the class does.
  bool adds_alike(const JsonNode& post, const std::vector<NamedToken>& named,
                  const AddedVocabulary& vocabulary) const {
    const SurroundingTokens tokens = surrounding_tokens(chosen_.kind);
    if (tokens.before.empty() && tokens.after.empty()) return true;  // the class keeps the file's
    const auto ids_of = [&](const std::vector<std::string>& names) {
      std::vector<int32_t> ids;
      for (const std::string& name : names) {
        const auto token = std::ranges::find(named, name, &NamedToken::name);
        if (token != named.end()) ids.push_back(vocabulary.find(token->token.content).value_or(-1));
      }
      return ids;
    };
    return make_post_processor(post, INT32_MAX) == PostProcessor{ids_of(tokens.before), ids_of(tokens.after)};
  }

  void name_special_tokens(const AddedVocabulary& vocabulary, const SpecialTokens& special,
                           LoadedTokenizer* loaded) const {
    for (const NamedToken& named : with_defaults(special, chosen_.kind)) {
      if (!defaults_apply_ && !vocabulary.find(named.token.content)) continue;
      loaded->special_tokens.emplace_back(named.name, named.token.content);
    }
  }

  void warn_about_llama(const Json& document, const Json& rebuilt) const {
    if (cut_alike(document, rebuilt) || is_sentencepiece_form(document)) return;
    warn_once(
        fmt::format("{}: tokenizer_class LlamaTokenizer puts its own normalizer and pre-tokenizer in the "
                    "place of those in the file, as in Transformers 5; set tokenizer_class in "
                    "tokenizer_config.json to PreTrainedTokenizerFast to keep the file's",
                    origin_));
  }

  void warn_about_old_llama() const {
    warn_once(fmt::format(
        "{}: tokenizer_class LlamaTokenizer without \"legacy\": the file is used as it stands, as by "
        "Transformers 4; Transformers 5 builds another tokenizer from it, which puts no space after "
        "special tokens and one space less before some texts; set \"legacy\": false in "
        "tokenizer_config.json to have that here, too",
        origin_));
  }

  void warn_about_class(const std::string& model_type) const {
    const bool by_model = model_type == "qwen2";
    warn_once(fmt::format(
        "{}: Transformers 5 opens {} as {}, which builds another tokenizer from this file and gives other "
        "ids "
        "for some texts; the file is used as it stands{}",
        origin_, by_model ? "every folder of a qwen2 model" : "this folder", chosen_.name,
        by_model
            ? ". There, open it with PreTrainedTokenizerFast(tokenizer_file=...)"
            : ". Set tokenizer_class in tokenizer_config.json to PreTrainedTokenizerFast to have the same "
              "there"));
  }

  uint64_t fingerprint(const Json& document, const std::vector<AddedToken>& own,
                       const LoadedTokenizer& loaded) const {
    uint64_t value = fingerprint_of(text_);
    AddedVocabulary plain(loaded.file.tables);
    for (const AddedToken& token : own) plain.add(token);
    std::string changes;
    if (loaded.file.document != document) changes += loaded.file.document.dump();
    if (!same_tokens(plain.tokens(), loaded.added_tokens)) changes += text_of_tokens(loaded.added_tokens);
    if (loaded.split_special_tokens) changes += "split";
    if (loaded.cuts_left) changes += "cuts left";
    return changes.empty() ? value : value ^ hash_name(changes);
  }

  fs::path folder_;
  std::string origin_;
  std::string text_;
  std::string config_origin_;
  std::string model_origin_;
  Json config_;
  Json model_;
  ChosenClass chosen_;
  bool defaults_apply_ = true;
};

}  // namespace

bool LoadedTokenizer::is_padding_only(std::string_view token) const {
  bool is_padding = false;
  for (const auto& [name, text] : special_tokens) {
    if (text == token && name != "pad_token") return false;
    is_padding = is_padding || text == token;
  }
  return is_padding;
}

LoadedTokenizer load_tokenizer_text(std::string_view json, const std::string& origin) {
  LoadedTokenizer loaded;
  loaded.file = parse_tokenizer_file(json, origin);
  AddedVocabulary vocabulary(loaded.file.tables);
  const JsonNode root(loaded.file.document, origin);
  add_tokens_of_file(read_added_tokens(root["added_tokens"]), loaded.file.tables, origin, &vocabulary);
  loaded.added_tokens = vocabulary.tokens();
  loaded.fingerprint = fingerprint_of(json);
  return loaded;
}

LoadedTokenizer load_tokenizer_file(const fs::path& file, const std::string& model_type) {
  return FolderLoader(file).load(model_type);
}

}  // namespace tessera
