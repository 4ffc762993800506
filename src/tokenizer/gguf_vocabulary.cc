#include "tokenizer/gguf_vocabulary.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <optional>
#include <string_view>
#include <system_error>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "base/error.h"
#include "base/log.h"
#include "base/text.h"
#include "formats/json.h"
#include "io/file.h"
#include "tokenizer/pipeline/pre_tokenizer.h"
#include "tokenizer/regex/unicode.h"
#include "tokenizer/settings/loaded_tokenizer.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;

// gguf-py, TokenType.
enum TokenType : int32_t {
  kNormal = 1,
  kUnknown = 2,
  kControl = 3,
  kUserDefined = 4,
  kUnused = 5,
  kByte = 6
};

constexpr std::string_view kSpaceMark = "\u2581";

struct Vocabulary {
  std::vector<std::string> tokens;
  std::vector<int32_t> types;
};

// Added tokens that mark structure although their file does not call them special; from the converter.
bool looks_special(std::string_view token) {
  const auto is_between = [&](std::string_view first, std::string_view last) {
    return token.size() >= first.size() + last.size() && token.starts_with(first) && token.ends_with(last);
  };
  return token == "<pad>" || token == "<mask>" || token == "<2mass>" || token == "[@BOS@]" ||
         is_between("<|", "|>") || is_between("<\uff5c", "\uff5c>") || is_between("<unused", ">");
}

std::string with_spaces(std::string text) {
  for (size_t at; (at = text.find(kSpaceMark)) != text.npos;) text.replace(at, kSpaceMark.size(), " ");
  return text;
}

bool is_byte_token(std::string_view token) {
  return token.size() == 6 && token.starts_with("<0x") && token.ends_with(">") &&
         token.find_first_not_of("0123456789ABCDEFabcdef", 3) == 5;
}

// The class LlamaTokenizer has it by name only.
std::string unknown_token(const LoadedTokenizer& loaded, const JsonNode& root) {
  if (const JsonNode token = root["model"]["unk_token"]; token.is_string()) return token.string();
  for (const auto& [name, text] : loaded.special_tokens) {
    if (name == "unk_token") return text;
  }
  return "";
}

Vocabulary make_vocabulary(const LoadedTokenizer& loaded, const JsonNode& root, const ModelConfig& config,
                           bool is_byte_level) {
  const TokenizerFile& file = loaded.file;
  Vocabulary all;
  const auto size = static_cast<size_t>(config.vocab_size);
  for (size_t id = 0; id < size; ++id) all.tokens.push_back(fmt::format("[PAD{}]", id));
  all.types.assign(size, kUnused);
  const auto set = [&](int64_t id, std::string token, TokenType type) {
    if (id >= config.vocab_size) {
      fail(ExitCode::kBadConfig, "{}: token \"{}\" has id {}, but config.json only vocab_size {}",
           root.origin(), printable(token), id, config.vocab_size);
    }
    all.tokens[static_cast<size_t>(id)] = std::move(token);
    all.types[static_cast<size_t>(id)] = type;
  };
  const std::string unknown = unknown_token(loaded, root);
  for (const ModelTables::Token& token : file.tables.tokens) {
    const std::string text(file.tables.token(token));
    const bool is_byte = !is_byte_level && is_byte_token(text);
    set(token.id, text, is_byte ? kByte : kNormal);
  }
  for (const AddedToken& added : loaded.added_tokens) {
    if (added.id >= config.vocab_size && loaded.is_padding_only(added.content)) continue;
    const bool is_unknown = !is_byte_level && added.content == unknown;
    if (is_unknown || added.special || looks_special(added.content)) {
      set(added.id, added.content, is_unknown ? kUnknown : kControl);
    } else {
      set(added.id, with_spaces(added.content), kUserDefined);
    }
  }
  return all;
}

// llama.cpp joins the two neighbours whose joint token has the highest score, whatever the two are; a merge
// of tokenizer.json names them. So each token is scored by its first merge; that is the same order if every
// way to cut a token in two is a merge, as Transformers writes SentencePiece models. `num_others` counts the
// tokens for which it may not be.
std::vector<float> scores_from_merges(const ModelTables& tables, const Vocabulary& all, int64_t* num_others) {
  std::unordered_map<std::string_view, int32_t> ids;
  for (const ModelTables::Token& token : tables.tokens) ids.emplace(tables.token(token), token.id);
  std::vector<float> scores(all.tokens.size(), 1.0f);  // above all others: not set yet
  std::unordered_set<std::string> merges;
  std::unordered_map<int32_t, int64_t> num_merges;
  int64_t num_scored = 0;
  int32_t last = -1;
  std::unordered_set<int32_t> others;
  for (const ModelTables::Merge& merge : tables.merges) {
    const std::string_view left = tables.left(merge);
    const std::string joint = fmt::format("{}{}", left, tables.right(merge));
    const auto at = ids.find(joint);
    if (at == ids.end()) continue;  // BpeModel has refused it
    float& score = scores[static_cast<size_t>(at->second)];
    // The merge comes after those of another token.
    if (score <= 0 && at->second != last) others.insert(at->second);
    if (score > 0) score = -static_cast<float>(num_scored++);
    last = at->second;
    if (merges.insert(fmt::format("{} {}", left, tables.right(merge))).second) ++num_merges[last];
  }
  for (float& score : scores) {
    if (score > 0) score = -static_cast<float>(num_scored);
  }
  for (const auto& [token, id] : ids) {
    if (all.types[static_cast<size_t>(id)] != kNormal) continue;
    int64_t num_cuts = 0;
    for (int64_t cut = utf8_size(token[0]); cut < std::ssize(token);
         cut += utf8_size(token[static_cast<size_t>(cut)])) {
      const auto at = static_cast<size_t>(cut);
      num_cuts += ids.contains(token.substr(0, at)) && ids.contains(token.substr(at)) ? 1 : 0;
    }
    if (num_cuts != num_merges[id]) others.insert(id);
  }
  *num_others = std::ssize(others);
  return scores;
}

// Whether the tokenizer puts a space in front of a text. Refuses steps that llama.cpp's "llama" tokenizer
// lacks.
bool sentencepiece_adds_space(const JsonNode& root) {
  bool adds_space = false, has_spaces = true;
  const JsonNode normalizer = root["normalizer"];
  std::vector<JsonNode> steps;
  if (!normalizer.is_null()) {
    steps = normalizer.type() == "Sequence" ? normalizer["normalizers"].list() : std::vector{normalizer};
  }
  for (const JsonNode& step : steps) {
    const bool prepends = step.type() == "Prepend" && step["prepend"].string() == kSpaceMark;
    const bool replaces = step.type() == "Replace" && step["pattern"]["String"].string_or("") == " " &&
                          step["content"].string() == kSpaceMark;
    if (!prepends && !replaces) step.not_supported("normalizer (by llama.cpp)", step.type());
    adds_space = adds_space || prepends;
    has_spaces = has_spaces && !replaces;
  }
  const JsonNode pre_tokenizer = root["pre_tokenizer"];
  // Gemma splits at spaces, of which its normalizer leaves none.
  const bool splits_at_spaces = pre_tokenizer.is_object() && pre_tokenizer.type() == "Split" &&
                                pre_tokenizer["pattern"]["String"].string_or("") == " ";
  if (pre_tokenizer.is_null() || (splits_at_spaces && !has_spaces)) return adds_space;
  if (pre_tokenizer.type() != "Metaspace" || pre_tokenizer["replacement"].string_or(kSpaceMark) != kSpaceMark)
    pre_tokenizer.not_supported("pre_tokenizer (by llama.cpp)", pre_tokenizer.type());
  const bool by_default = pre_tokenizer["add_prefix_space"].boolean_or(true);
  const std::string scheme = pre_tokenizer["prepend_scheme"].string_or(by_default ? "always" : "never");
  if (scheme == "first") {
    log_warning(
        "{}: prepend_scheme is \"first\", but llama.cpp also puts a space in front of text that follows a "
        "special "
        "token",
        root.origin());
  }
  return adds_space || scheme != "never";
}

void add_byte_level(const Tokenizer& tokenizer, const fs::path& path, const TokenizerFile& file,
                    const Vocabulary& all, std::vector<GgufField>* fields) {
  std::vector<std::string> merges;
  for (const ModelTables::Merge& merge : file.tables.merges)
    merges.push_back(fmt::format("{} {}", file.tables.left(merge), file.tables.right(merge)));
  fields->push_back({"tokenizer.ggml.model", GgufScalar(std::string("gpt2"))});
  fields->push_back({"tokenizer.ggml.pre", GgufScalar(gguf_pre_tokenizer(tokenizer, path))});
  fields->push_back(gguf_array("tokenizer.ggml.tokens", all.tokens));
  fields->push_back(gguf_array("tokenizer.ggml.token_type", all.types));
  fields->push_back(gguf_array("tokenizer.ggml.merges", merges));
}

void add_sentencepiece(const TokenizerFile& file, const JsonNode& root, const Vocabulary& all,
                       std::vector<GgufField>* fields) {
  int64_t num_others = 0;
  const std::vector<float> scores = scores_from_merges(file.tables, all, &num_others);
  if (num_others > 0) {
    log_warning(
        "{}: {} cannot be ranked as in this tokenizer, because llama.cpp ranks tokens, not merges: it may "
        "cut some "
        "texts differently",
        root.origin(), count_of(num_others, "token"));
  }
  fields->push_back({"tokenizer.ggml.model", GgufScalar(std::string("llama"))});
  fields->push_back({"tokenizer.ggml.pre", GgufScalar(std::string("default"))});
  fields->push_back(gguf_array("tokenizer.ggml.tokens", all.tokens));
  fields->push_back(gguf_array("tokenizer.ggml.scores", scores));
  fields->push_back(gguf_array("tokenizer.ggml.token_type", all.types));
  fields->push_back({"tokenizer.ggml.add_space_prefix", GgufScalar(sentencepiece_adds_space(root))});
}

// The end tokens of answers other than eos: first the end of a turn (llama.cpp's eot), then the end of a
// message (<|eom_id|> in Llama 3).
std::vector<int64_t> other_ends(const Tokenizer& tokenizer, const std::vector<int64_t>& end_ids,
                                std::optional<int64_t> eos, int64_t vocab_size) {
  std::vector<int64_t> others;
  for (const int64_t id : end_ids) {
    if (id == eos || id < 0 || id >= vocab_size || std::ranges::find(others, id) != others.end()) continue;
    others.push_back(id);
  }
  const auto ends_message = [&](int64_t id) {
    return tokenizer.id_to_token(static_cast<int32_t>(id)).find("eom") != std::string::npos;
  };
  std::stable_partition(others.begin(), others.end(), [&](int64_t id) { return !ends_message(id); });
  return others;
}

// The tokens that the tokenizer puts around a text; llama.cpp can do bos in front and eos at the end.
void add_special_ids(const Tokenizer& tokenizer, const std::string& origin, const std::string& unknown,
                     const ModelConfig& config, const std::vector<int64_t>& end_ids,
                     std::vector<GgufField>* fields) {
  const auto add_id = [&](const char* name, std::optional<int64_t> id) {
    if (!id || *id < 0 || *id >= config.vocab_size) return;
    fields->push_back(
        {fmt::format("tokenizer.ggml.{}_token_id", name), GgufScalar(static_cast<uint32_t>(*id))});
  };
  std::optional<int64_t> bos = tokenizer.bos_id(), eos = tokenizer.eos_id(), pad = tokenizer.pad_id();
  if (!bos) bos = config.bos_token_id;
  if (!eos && !config.eos_token_ids.empty()) eos = config.eos_token_ids.front();
  if (!pad) pad = config.pad_token_id;
  add_id("bos", bos);
  add_id("eos", eos);
  if (!unknown.empty()) add_id("unknown", tokenizer.token_to_id(unknown));
  add_id("padding", pad);
  const std::vector<int64_t> others = other_ends(tokenizer, end_ids, eos, config.vocab_size);
  if (!others.empty()) add_id("eot", others[0]);
  if (others.size() > 1) add_id("eom", others[1]);
  for (size_t i = 2; i < others.size(); ++i) {
    log_warning("{}: llama.cpp has no place for a fourth token that ends an answer: it may not stop at '{}'",
                origin, printable(tokenizer.id_to_token(static_cast<int32_t>(others[i]))));
  }

  const std::vector<int32_t> text = tokenizer.encode("a", false), whole = tokenizer.encode("a", true);
  const auto begin = std::search(whole.begin(), whole.end(), text.begin(), text.end()) - whole.begin();
  const std::vector<int32_t> before(whole.begin(), whole.begin() + begin);
  const std::vector<int32_t> after(whole.begin() + begin + std::ssize(text), whole.end());
  const auto is_only = [](const std::vector<int32_t>& ids, std::optional<int64_t> id) {
    return ids.size() == 1 && id == ids[0];
  };
  fields->push_back({"tokenizer.ggml.add_bos_token", GgufScalar(is_only(before, bos))});
  fields->push_back({"tokenizer.ggml.add_eos_token", GgufScalar(is_only(after, eos))});
  if ((!before.empty() && !is_only(before, bos)) || (!after.empty() && !is_only(after, eos))) {
    log_warning("{}: puts [{}] before and [{}] after a text; llama.cpp can only add bos and eos", origin,
                fmt::join(before, ", "), fmt::join(after, ", "));
  }
}

// chat_template.jinja, or chat_template of tokenizer_config.json: one template, or a list of named ones.
void add_chat_templates(const fs::path& folder, std::vector<GgufField>* fields) {
  constexpr const char* kKey = "tokenizer.chat_template";
  std::error_code error;
  if (const fs::path jinja = folder / "chat_template.jinja"; fs::exists(jinja, error)) {
    fields->push_back({kKey, GgufScalar(read_text_file(jinja))});
    return;
  }
  const std::string path = (folder / "tokenizer_config.json").string();
  if (!fs::exists(path, error)) return;
  const Json document = parse_json(read_text_file(path), path);
  const JsonNode templates = JsonNode(document, path)["chat_template"];
  if (templates.is_string()) fields->push_back({kKey, GgufScalar(templates.string())});
  if (!templates.is_list()) return;
  std::vector<std::string> names;
  for (const JsonNode& entry : templates.list()) {
    std::string name = entry["name"].string();
    std::ranges::replace_if(
        name, [](unsigned char c) { return std::isalnum(c) == 0 || c > 127; }, '_');
    if (name != "default") names.push_back(name);
    fields->push_back({name == "default" ? kKey : fmt::format("{}.{}", kKey, name),
                       GgufScalar(entry["template"].string())});
  }
  if (!names.empty()) fields->push_back(gguf_array("tokenizer.chat_templates", names));
}

// llama.cpp has no normalizers for byte-level tokenizers.
void warn_about_normalizer(const JsonNode& normalizer) {
  std::vector<std::string> steps;
  if (normalizer.type() == "Sequence") {
    for (const JsonNode& step : normalizer["normalizers"].list()) steps.push_back(step.type());
  } else {
    steps.push_back(normalizer.type());
  }
  if (steps.empty()) return;
  log_warning(
      "{}: {}: llama.cpp does not normalize text: where this changes a text (letters with separate accents, "
      "for "
      "NFC), it cuts the text differently; normalize what is given to it",
      normalizer.where(), fmt::join(steps, ", "));
}

}  // namespace

std::vector<GgufField> gguf_vocabulary(const fs::path& folder, const ModelConfig& config,
                                       const std::vector<int64_t>& end_ids) {
  const Tokenizer tokenizer = Tokenizer::open(folder);
  const fs::path path = folder / "tokenizer.json";
  const std::string origin = path.string();
  const LoadedTokenizer loaded = load_tokenizer_file(path);
  const TokenizerFile& file = loaded.file;
  const JsonNode root(file.document, origin);
  const bool is_byte_level = ends_in_byte_level(root["pre_tokenizer"]);
  if (!file.has_merges || (!is_byte_level && !root["model"]["byte_fallback"].boolean_or(false))) {
    fail(ExitCode::kBadConfig,
         "{}: expected a byte-level BPE, or one with byte_fallback, found another: llama.cpp has no "
         "tokenizer for it",
         origin);
  }
  if (is_byte_level && !root["normalizer"].is_null()) warn_about_normalizer(root["normalizer"]);
  const Vocabulary all = make_vocabulary(loaded, root, config, is_byte_level);
  std::vector<GgufField> fields;
  if (is_byte_level) {
    add_byte_level(tokenizer, path, file, all, &fields);
  } else {
    add_sentencepiece(file, root, all, &fields);
  }
  add_special_ids(tokenizer, origin,
                  is_byte_level ? root["model"]["unk_token"].string_or("") : unknown_token(loaded, root),
                  config, end_ids, &fields);
  add_chat_templates(folder, &fields);
  return fields;
}

}  // namespace tessera
