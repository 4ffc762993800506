// Builds a tokenizer from tokenizer.json.
#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>
#include <system_error>
#include <utility>

#include "base/error.h"
#include "base/rng.h"
#include "base/text.h"
#include "formats/file_kind.h"
#include "formats/json.h"
#include "io/file.h"
#include "tokenizer/tokenizer_impl.h"

namespace tessera {
namespace {

// Part of every fingerprint; increment it when the same file gives different ids.
constexpr uint64_t kEncodingVersion = 1;
// Added tokens may leave gaps above the vocabulary, but not so many that id tables become absurdly large.
constexpr int64_t kMaxFreeIds = int64_t{1} << 20;

std::vector<AddedToken> read_added_tokens(const JsonNode& node) {
  std::vector<AddedToken> tokens;
  if (node.is_null()) return tokens;
  for (const JsonNode& entry : node.list()) {
    entry.expect_keys({"id", "content", "single_word", "lstrip", "rstrip", "normalized", "special"});
    AddedToken token;
    token.id = static_cast<int32_t>(entry["id"].integer(0, INT32_MAX));
    token.content = entry["content"].string();
    token.single_word = entry["single_word"].boolean_or(false);
    token.lstrip = entry["lstrip"].boolean_or(false);
    token.rstrip = entry["rstrip"].boolean_or(false);
    token.special = entry["special"].boolean_or(false);
    token.normalized = entry["normalized"].boolean_or(!token.special);
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

// The number of ids. Checks that vocabulary and added tokens are consistent.
int64_t check_ids(const BpeTables& tables, const std::vector<AddedToken>& added, const std::string& origin) {
  std::unordered_map<std::string_view, int32_t> added_ids;
  for (const AddedToken& token : added) added_ids.emplace(token.content, token.id);
  int64_t highest_own = -1;  // highest id of a token that only the vocabulary has
  int64_t highest = -1;
  for (const BpeTables::Token& token : tables.tokens) {
    highest = std::max<int64_t>(highest, token.id);
    const auto same = added_ids.find(tables.token(token));
    if (same == added_ids.end()) {
      highest_own = std::max<int64_t>(highest_own, token.id);
    } else if (same->second != token.id) {
      fail(ExitCode::kBadData, "{}: the added token \"{}\" has id {}, but model.vocab gives it {}", origin,
           printable(tables.token(token)), same->second, token.id);
    }
  }
  for (const AddedToken& token : added) highest = std::max<int64_t>(highest, token.id);
  const auto num_tokens = static_cast<int64_t>(tables.tokens.size() + added.size());
  if (highest >= num_tokens + kMaxFreeIds) {
    fail(ExitCode::kBadData, "{}: the id {} is far out of range for {}", origin, highest,
         count_of(num_tokens, "token"));
  }
  // The token of each id; a null view if there is none.
  std::vector<std::string_view> token_of(static_cast<size_t>(highest + 1));
  for (const BpeTables::Token& token : tables.tokens) {
    std::string_view& slot = token_of[static_cast<size_t>(token.id)];
    if (slot.data() != nullptr) {
      fail(ExitCode::kBadData, "{}: model.vocab: \"{}\" and \"{}\" have the same id {}", origin,
           printable(slot), printable(tables.token(token)), token.id);
    }
    slot = tables.token(token);
  }
  for (const AddedToken& token : added) {
    std::string_view& slot = token_of[static_cast<size_t>(token.id)];
    if (slot.data() != nullptr && slot != token.content) {
      fail(ExitCode::kBadData, "{}: the added token \"{}\" has the id {} of \"{}\"", origin,
           printable(token.content), token.id, printable(slot));
    }
    slot = token.content;
  }
  for (int64_t id = 0; id <= highest_own; ++id) {
    if (token_of[static_cast<size_t>(id)].data() == nullptr) {
      fail(ExitCode::kBadData, "{}: model.vocab: no token has the id {}, though ids go up to {}", origin, id,
           highest_own);
    }
  }
  return highest + 1;
}

BpeOptions read_model_options(const JsonNode& model) {
  const JsonNode type = model["type"];
  if (!type.is_null() && type.string() != "BPE") model.not_supported("model", type.string());
  model.expect_keys({"type", "dropout", "unk_token", "continuing_subword_prefix", "end_of_word_suffix",
                     "fuse_unk", "byte_fallback", "ignore_merges", "vocab", "merges"});
  if (!model["dropout"].is_null())
    fail(ExitCode::kBadConfig, "{}.dropout: not supported, as it makes ids random; set it to null",
         model.where());
  BpeOptions options;
  if (!model["unk_token"].is_null()) options.unk_token = model["unk_token"].string();
  options.continuing_subword_prefix = model["continuing_subword_prefix"].string_or("");
  options.end_of_word_suffix = model["end_of_word_suffix"].string_or("");
  options.fuse_unk = model["fuse_unk"].boolean_or(false);
  options.byte_fallback = model["byte_fallback"].boolean_or(false);
  options.ignore_merges = model["ignore_merges"].boolean_or(false);
  return options;
}

void build_model(const JsonNode& root, const TokenizerFile& file, TokenizerOptions how,
                 Tokenizer::Impl* impl) {
  const JsonNode model = root["model"];
  model.object();
  BpeOptions options = read_model_options(model);
  if (!file.has_vocab) model["vocab"].expected("an object of tokens and ids");
  if (!file.has_merges) model["merges"].expected("a list");
  const JsonNode pre_tokenizer = root["pre_tokenizer"];
  options.raw_bytes = !how.reference && ends_in_byte_level(pre_tokenizer) &&
                      options.continuing_subword_prefix.empty() && options.end_of_word_suffix.empty() &&
                      BpeModel::has_all_bytes(file.tables);
  impl->pre_tokenizer =
      make_pre_tokenizer(pre_tokenizer, {.raw_bytes = options.raw_bytes, .fast_scanner = !how.reference});
  if (options.raw_bytes) impl->known_split = known_split(pre_tokenizer);
  if (impl->known_split) impl->scanner.emplace(impl->known_split->pattern);
  impl->use_caches = !how.reference;
  impl->model.emplace(file.tables, impl->num_ids, std::move(options), model.where());
  for (const BpeTables::Token& token : file.tables.tokens) {
    if (impl->model->tokens().find(file.tables.token(token)) != token.id) {
      fail(ExitCode::kBadData, "{}.vocab[\"{}\"]: the token appears twice", model.where(),
           printable(file.tables.token(token)));
    }
  }
}

}  // namespace

std::unique_ptr<Tokenizer::Impl> Tokenizer::Impl::parse(std::string_view json, const std::string& origin,
                                                        TokenizerOptions options) {
  const TokenizerFile file = parse_tokenizer_file(json, origin);
  const JsonNode root(file.document, origin);
  // truncation and padding are ignored, since Hugging Face's tokenizer classes set both on every call.
  root.expect_keys({"version", "truncation", "padding", "added_tokens", "normalizer", "pre_tokenizer",
                    "post_processor", "decoder", "model"});
  if (const std::string version = root["version"].string_or("1.0"); version != "1.0")
    root["version"].not_supported("version", version);
  auto impl = std::make_unique<Impl>();
  impl->origin = origin;
  impl->fingerprint = hash_name(json) ^ kEncodingVersion * 0x9E3779B97F4A7C15u;
  impl->normalizer = make_normalizer(root["normalizer"]);
  std::vector<AddedToken> added = read_added_tokens(root["added_tokens"]);
  impl->num_ids = check_ids(file.tables, added, origin);
  build_model(root, file, options, impl.get());
  impl->added = AddedTokens(std::move(added), impl->normalizer.get());
  impl->post_processor = make_post_processor(root["post_processor"], impl->num_ids);
  impl->decoders = make_decoders(root["decoder"]);
  return impl;
}

namespace {

// The class LlamaTokenizer rebuilds its template from two settings of tokenizer_config.json, if given.
void apply_llama_settings(const JsonNode& config, Tokenizer::Impl* impl) {
  const std::string name = config["tokenizer_class"].string_or("");
  const JsonNode add_bos = config["add_bos_token"];
  const JsonNode add_eos = config["add_eos_token"];
  if ((name != "LlamaTokenizer" && name != "LlamaTokenizerFast") || (add_bos.is_null() && add_eos.is_null()))
    return;
  const auto surround = [](const JsonNode& add, bool fallback, const std::optional<int32_t>& id) {
    if (!add.boolean_or(fallback)) return std::vector<int32_t>{};
    if (!id) add.expected("false, as this token is not given");
    return std::vector<int32_t>{*id};
  };
  impl->post_processor = {.before = surround(add_bos, true, impl->bos_id),
                          .after = surround(add_eos, false, impl->eos_id)};
  impl->fingerprint ^= hash_name(fmt::format("{} {}", fmt::join(impl->post_processor.before, ","),
                                             fmt::join(impl->post_processor.after, ",")));
}

// Sets the tokens that are not set yet.
void take_special_tokens(const JsonNode& config, Tokenizer::Impl* impl) {
  const std::pair<const char*, std::optional<int32_t>*> kinds[] = {
      {"bos_token", &impl->bos_id}, {"eos_token", &impl->eos_id}, {"pad_token", &impl->pad_id}};
  for (const auto& [kind, id] : kinds) {
    JsonNode token = config[kind];
    if (token.is_null() || id->has_value()) continue;
    if (token.is_object()) token = token["content"];
    *id = impl->find(token.string());
    // A padding token that is only in the configuration is ignored: nothing is padded.
    if (!id->has_value() && id != &impl->pad_id) {
      fail(ExitCode::kBadData, "{}: \"{}\" is not a token of {}", token.where(), printable(token.string()),
           impl->origin);
    }
  }
}

}  // namespace

void Tokenizer::Impl::read_settings(const std::filesystem::path& folder) {
  const std::string config_path = (folder / "tokenizer_config.json").string();
  const std::string map_path = (folder / "special_tokens_map.json").string();
  const nlohmann::json config = parse_json_file_if_any(config_path);
  const nlohmann::json map = parse_json_file_if_any(map_path);
  take_special_tokens(JsonNode(config, config_path), this);
  take_special_tokens(JsonNode(map, map_path), this);
  apply_llama_settings(JsonNode(config, config_path), this);
}

Tokenizer Tokenizer::open(const std::filesystem::path& path) {
  std::error_code unreadable;  // becomes an error that names the file when it is opened
  const bool is_folder = std::filesystem::is_directory(path, unreadable);
  const std::filesystem::path file = is_folder ? path / "tokenizer.json" : path;
  if (const FileKind kind = kind_of_file(file); !kind.is_json) {
    fail(ExitCode::kBadData,
         "{}: expected a tokenizer.json, as Hugging Face writes it, or its folder, found {}{}", file.string(),
         kind.name,
         file.extension() == ".model" ? "; a SentencePiece model has to be converted to tokenizer.json" : "");
  }
  auto impl = Impl::parse(read_text_file(file), file.string(), {});
  impl->read_settings(file.parent_path());
  return Tokenizer(std::move(impl));
}

Tokenizer Tokenizer::parse(std::string_view json, const std::string& origin, TokenizerOptions options) {
  return Tokenizer(Impl::parse(json, origin, options));
}

}  // namespace tessera
