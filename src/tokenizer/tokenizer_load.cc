// Builds a tokenizer from tokenizer.json.
#include <algorithm>
#include <filesystem>
#include <system_error>
#include <utility>

#include "base/error.h"
#include "base/text.h"
#include "formats/file_kind.h"
#include "formats/json.h"
#include "tokenizer/model/bpe_model.h"
#include "tokenizer/model/unigram_model.h"
#include "tokenizer/model/word_piece_model.h"
#include "tokenizer/settings/loaded_tokenizer.h"
#include "tokenizer/tokenizer_impl.h"

namespace tessera {
namespace {

// Ids may be unused, but not so many that tables of ids become absurdly large.
constexpr int64_t kMaxFreeIds = int64_t{1} << 20;

// The number of ids. Checks that vocabulary and added tokens are consistent.
int64_t check_ids(const ModelTables& tables, const std::vector<AddedToken>& added,
                  const std::string& origin) {
  int64_t highest = -1;
  for (const ModelTables::Token& token : tables.tokens) highest = std::max<int64_t>(highest, token.id);
  for (const AddedToken& token : added) highest = std::max<int64_t>(highest, token.id);
  const auto num_tokens = static_cast<int64_t>(tables.tokens.size() + added.size());
  if (highest >= num_tokens + kMaxFreeIds) {
    fail(ExitCode::kBadData, "{}: the id {} is far out of range for {}", origin, highest,
         count_of(num_tokens, "token"));
  }
  // The token of each id; a null view if there is none.
  std::vector<std::string_view> token_of(static_cast<size_t>(highest + 1));
  for (const ModelTables::Token& token : tables.tokens) {
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
  return highest + 1;
}

enum class ModelKind { kBpe, kUnigram, kWordPiece };

// Files from before tokenizers 0.10 do not say the type.
ModelKind kind_of_model(const JsonNode& model, bool has_scores) {
  const JsonNode type = model["type"];
  if (type.is_null()) {
    if (has_scores) return ModelKind::kUnigram;
    return model["max_input_chars_per_word"].is_null() ? ModelKind::kBpe : ModelKind::kWordPiece;
  }
  if (type.string() == "BPE") return ModelKind::kBpe;
  if (type.string() == "Unigram") return ModelKind::kUnigram;
  if (type.string() == "WordPiece") return ModelKind::kWordPiece;
  model.not_supported("model", type.string());
}

BpeOptions read_bpe_options(const JsonNode& model) {
  model.expect_keys({"type", "dropout", "unk_token", "continuing_subword_prefix", "end_of_word_suffix",
                     "fuse_unk", "byte_fallback", "ignore_merges", "vocab", "merges"});
  if (model["dropout"].number_or(0) != 0)
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

std::unique_ptr<TokenModel> make_bpe(const JsonNode& root, const TokenizerFile& file, TokenizerOptions how,
                                     Tokenizer::Impl* impl) {
  const JsonNode model = root["model"];
  BpeOptions options = read_bpe_options(model);
  if (!file.has_merges) model["merges"].expected("a list");
  const JsonNode pre_tokenizer = root["pre_tokenizer"];
  options.raw_bytes = !how.reference && ends_in_byte_level(pre_tokenizer) &&
                      options.continuing_subword_prefix.empty() && options.end_of_word_suffix.empty() &&
                      BpeModel::has_all_bytes(file.tables);
  impl->pre_tokenizer =
      make_pre_tokenizer(pre_tokenizer, {.raw_bytes = options.raw_bytes, .fast_scanner = !how.reference});
  if (options.raw_bytes) impl->known_split = known_split(pre_tokenizer);
  if (impl->known_split) impl->scanner.emplace(impl->known_split->pattern);
  return std::make_unique<BpeModel>(file.tables, impl->num_ids, std::move(options), model.where());
}

std::unique_ptr<TokenModel> make_unigram(const JsonNode& model, const TokenizerFile& file, int64_t num_ids) {
  model.expect_keys({"type", "unk_id", "byte_fallback", "vocab"});
  UnigramOptions options;
  options.byte_fallback = model["byte_fallback"].boolean_or(false);
  if (const JsonNode id = model["unk_id"]; !id.is_null())
    options.unk_id = static_cast<int32_t>(id.integer(0, std::ssize(file.tables.tokens) - 1));
  return std::make_unique<UnigramModel>(file.tables, num_ids, options, model.where());
}

std::unique_ptr<TokenModel> make_word_piece(const JsonNode& model, const TokenizerFile& file,
                                            int64_t num_ids) {
  model.expect_keys({"type", "unk_token", "continuing_subword_prefix", "max_input_chars_per_word", "vocab"});
  WordPieceOptions options;
  options.unk_token = model["unk_token"].string();
  options.continuing_subword_prefix = model["continuing_subword_prefix"].string();
  options.max_input_chars_per_word = model["max_input_chars_per_word"].integer(0);
  return std::make_unique<WordPieceModel>(file.tables, num_ids, std::move(options), model.where());
}

void build_model(const JsonNode& root, const TokenizerFile& file, TokenizerOptions how,
                 Tokenizer::Impl* impl) {
  const JsonNode model = root["model"];
  model.object();
  const ModelKind kind = kind_of_model(model, file.has_scores);
  if (kind == ModelKind::kUnigram) {
    if (!file.has_scores) model["vocab"].expected("a list of tokens and scores");
  } else if (!file.has_vocab || file.has_scores) {
    model["vocab"].expected("an object of tokens and ids");
  }
  impl->use_caches = !how.reference;
  if (kind == ModelKind::kBpe) {
    impl->model = make_bpe(root, file, how, impl);
  } else {
    impl->pre_tokenizer = make_pre_tokenizer(root["pre_tokenizer"], {.fast_scanner = !how.reference});
    impl->model = kind == ModelKind::kUnigram ? make_unigram(model, file, impl->num_ids)
                                              : make_word_piece(model, file, impl->num_ids);
  }
  for (const ModelTables::Token& token : file.tables.tokens) {
    if (impl->model->tokens().find(file.tables.token(token)) != token.id) {
      fail(ExitCode::kBadData, "{}.vocab[\"{}\"]: the token appears twice", model.where(),
           printable(file.tables.token(token)));
    }
  }
}

}  // namespace

std::unique_ptr<Tokenizer::Impl> Tokenizer::Impl::build(LoadedTokenizer loaded, const std::string& origin,
                                                        TokenizerOptions options) {
  const JsonNode root(loaded.file.document, origin);
  // truncation and padding are ignored, since Hugging Face's tokenizer classes set both on every call.
  root.expect_keys({"version", "truncation", "padding", "added_tokens", "normalizer", "pre_tokenizer",
                    "post_processor", "decoder", "model"});
  if (const std::string version = root["version"].string_or("1.0"); version != "1.0")
    root["version"].not_supported("version", version);
  auto impl = std::make_unique<Impl>();
  impl->origin = origin;
  impl->fingerprint = loaded.fingerprint;
  impl->normalizer = make_normalizer(root["normalizer"]);
  impl->num_ids = check_ids(loaded.file.tables, loaded.added_tokens, origin);
  impl->num_model_ids = impl->num_ids;
  for (const AddedToken& token : loaded.added_tokens) {
    if (token.id + 1 == impl->num_ids && loaded.is_padding_only(token.content))
      impl->num_model_ids = token.id;
  }
  build_model(root, loaded.file, options, impl.get());
  impl->added =
      AddedTokens(std::move(loaded.added_tokens), impl->normalizer.get(), loaded.split_special_tokens);
  impl->post_processor = make_post_processor(root["post_processor"], impl->num_ids);
  impl->decoders = make_decoders(root["decoder"]);
  impl->special_tokens = std::move(loaded.special_tokens);
  impl->cuts_left = loaded.cuts_left;
  return impl;
}

namespace {

// Explains what to do with a folder that has another form of tokenizer.
void expect_tokenizer_json(const std::filesystem::path& folder) {
  std::error_code error;
  const auto has = [&](const char* name) { return std::filesystem::exists(folder / name, error); };
  if (has("tokenizer.json")) return;
  const char* found = has("tokenizer.model")                   ? "tokenizer.model"
                      : has("vocab.json") && has("merges.txt") ? "vocab.json and merges.txt"
                      : has("vocab.json")                      ? "vocab.json"
                      : has("tekken.json")                     ? "tekken.json"
                      : has("tiktoken.model")                  ? "tiktoken.model"
                      : has("vocab.txt")                       ? "vocab.txt"
                                                               : nullptr;
  if (found == nullptr) return;  // the error names the missing file
  fail(ExitCode::kNoInput,
       "{}: no tokenizer.json, only {}: convert it with Transformers, python3 -c \"from transformers import "
       "AutoTokenizer as A; A.from_pretrained('{}').save_pretrained('{}')\"",
       folder.string(), found, folder.string(), folder.string());
}

}  // namespace

Tokenizer Tokenizer::open(const std::filesystem::path& path) {
  std::error_code unreadable;  // becomes an error that names the file when it is opened
  const bool is_folder = std::filesystem::is_directory(path, unreadable);
  const std::filesystem::path file = is_folder ? path / "tokenizer.json" : path;
  if (is_folder) expect_tokenizer_json(path);
  if (const FileKind kind = kind_of_file(file); !kind.is_json) {
    fail(ExitCode::kBadData,
         "{}: expected a tokenizer.json, as Hugging Face writes it, or its folder, found {}{}", file.string(),
         kind.name,
         file.extension() == ".model" ? "; a SentencePiece model has to be converted to tokenizer.json" : "");
  }
  return Tokenizer(Impl::build(load_tokenizer_file(file), file.string(), {}));
}

std::optional<Tokenizer> Tokenizer::open_if_any(const std::filesystem::path& path) {
  std::error_code error;
  if (std::filesystem::is_directory(path, error) && !std::filesystem::exists(path / "tokenizer.json", error))
    return std::nullopt;
  return open(path);
}

void Tokenizer::check_beside(const std::filesystem::path& folder, const std::string& model_type) {
  std::error_code error;
  if (std::filesystem::exists(folder / "tokenizer.json", error))
    load_tokenizer_file(folder / "tokenizer.json", model_type);
}

Tokenizer Tokenizer::parse(std::string_view json, const std::string& origin, TokenizerOptions options) {
  return Tokenizer(Impl::build(load_tokenizer_text(json, origin), origin, options));
}

}  // namespace tessera
