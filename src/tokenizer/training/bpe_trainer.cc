#include "tokenizer/training/bpe_trainer.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string_view>
#include <utility>

#include "base/error.h"
#include "base/text.h"
#include "formats/input_files.h"
#include "io/file.h"
#include "io/synced_folder.h"
#include "tokenizer/pipeline/byte_level.h"
#include "tokenizer/regex/fast_scanner.h"
#include "tokenizer/training/merge_learner.h"
#include "tokenizer/training/word_counter.h"

namespace tessera {
namespace {

using OrderedJson = nlohmann::ordered_json;

// Share of the progress bar.
constexpr double kCountingShare = 0.4;

std::vector<std::string> special_tokens(const BpeTrainingOptions& options) {
  std::vector<std::string> tokens = {options.bos_token};
  for (const std::string& token : {options.eos_token, options.pad_token}) {
    if (token == options.pad_token && token.empty()) continue;
    if (std::find(tokens.begin(), tokens.end(), token) == tokens.end()) tokens.push_back(token);
  }
  for (const std::string& token : tokens) {
    // Single bytes are in every vocabulary already.
    if (token.size() < 2 || !is_valid_utf8(token)) {
      fail(ExitCode::kBadConfig, "the special token \"{}\" must be UTF-8 text of at least two bytes",
           printable(token));
    }
  }
  return tokens;
}

OrderedJson template_processing(const std::string& bos_token, int64_t bos_id) {
  const auto special = [&](int type_id) {
    return OrderedJson{{"SpecialToken", {{"id", bos_token}, {"type_id", type_id}}}};
  };
  const auto sequence = [](const char* id, int type_id) {
    return OrderedJson{{"Sequence", {{"id", id}, {"type_id", type_id}}}};
  };
  return {
      {"type", "TemplateProcessing"},
      {"single", OrderedJson::array({special(0), sequence("A", 0)})},
      {"pair", OrderedJson::array({special(0), sequence("A", 0), special(1), sequence("B", 1)})},
      {"special_tokens",
       {{bos_token,
         {{"id", bos_token},
          {"ids", OrderedJson::array({bos_id})},
          {"tokens", OrderedJson::array({bos_token})}}}}},
  };
}

OrderedJson byte_level(bool add_prefix_space, bool use_regex) {
  return {{"type", "ByteLevel"},
          {"add_prefix_space", add_prefix_space},
          {"trim_offsets", true},
          {"use_regex", use_regex}};
}

OrderedJson tokenizer_json(const LearnedMerges& learned, const std::vector<std::string>& specials) {
  std::vector<std::string> spelled;
  OrderedJson vocab = OrderedJson::object();
  // The ordered container would search all entries linearly for every key: append directly.
  auto& entries = vocab.get_ref<OrderedJson::object_t&>();
  for (const std::string& token : learned.tokens) {
    spelled.push_back(byte_level_encode(token));
    entries.emplace_back(spelled.back(), static_cast<int64_t>(entries.size()));
  }
  OrderedJson merges = OrderedJson::array();
  for (const auto& [left, right] : learned.merges) {
    merges.push_back(
        OrderedJson::array({spelled[static_cast<size_t>(left)], spelled[static_cast<size_t>(right)]}));
  }
  OrderedJson added = OrderedJson::array();
  for (const std::string& token : specials) {
    added.push_back({{"id", learned.tokens.size() + added.size()},
                     {"content", token},
                     {"single_word", false},
                     {"lstrip", false},
                     {"rstrip", false},
                     {"normalized", false},
                     {"special", true}});
  }
  const OrderedJson split = {{"type", "Split"},
                             {"pattern", {{"Regex", kLlama3Pattern}}},
                             {"behavior", "Isolated"},
                             {"invert", false}};
  return {
      {"version", "1.0"},
      {"truncation", nullptr},
      {"padding", nullptr},
      {"added_tokens", added},
      {"normalizer", nullptr},
      {"pre_tokenizer",
       {{"type", "Sequence"}, {"pretokenizers", OrderedJson::array({split, byte_level(false, false)})}}},
      {"post_processor", template_processing(specials[0], static_cast<int64_t>(learned.tokens.size()))},
      {"decoder", byte_level(true, true)},
      {"model",
       {{"type", "BPE"},
        {"dropout", nullptr},
        {"unk_token", nullptr},
        {"continuing_subword_prefix", nullptr},
        {"end_of_word_suffix", nullptr},
        {"fuse_unk", false},
        {"byte_fallback", false},
        {"ignore_merges", false},
        {"vocab", std::move(vocab)},
        {"merges", std::move(merges)}}},
  };
}

// Hugging Face's number for "no limit", int(1e30), does not fit the JSON library's integers: a placeholder is
// replaced in the text.
std::string tokenizer_config_json(const BpeTrainingOptions& options, const OrderedJson& added_tokens) {
  OrderedJson decoder = OrderedJson::object();
  for (OrderedJson token : added_tokens) {
    const std::string id = token["id"].dump();
    token.erase("id");
    decoder[id] = std::move(token);
  }
  constexpr std::string_view kPlaceholder = "\"model_max_length\": 0";
  constexpr std::string_view kNoLimit = "\"model_max_length\": 1000000000000000019884624838656";
  OrderedJson config = {{"tokenizer_class", "PreTrainedTokenizerFast"},
                        {"bos_token", options.bos_token},
                        {"eos_token", options.eos_token}};
  if (!options.pad_token.empty()) config["pad_token"] = options.pad_token;
  config["model_max_length"] = 0;
  config["clean_up_tokenization_spaces"] = false;
  config["added_tokens_decoder"] = std::move(decoder);
  std::string text = config.dump(2);
  const size_t at = text.find(kPlaceholder);
  TESSERA_CHECK(at != std::string::npos);
  return text.replace(at, kPlaceholder.size(), kNoLimit) + "\n";
}

}  // namespace

BpeTrainingResult train_bpe(const BpeTrainingOptions& options, const std::filesystem::path& output,
                            ThreadPool& pool, const std::function<void(double)>& progress) {
  const std::vector<std::string> specials = special_tokens(options);
  const int64_t num_tokens = options.vocab_size - static_cast<int64_t>(specials.size());
  if (num_tokens < 256 || options.vocab_size > INT32_MAX) {
    fail(ExitCode::kBadConfig, "vocab_size {}: expected at least {} (256 bytes and {})", options.vocab_size,
         256 + specials.size(), count_of(std::ssize(specials), "special token"));
  }
  const auto part = [&progress](double begin, double share) {
    return [&progress, begin, share](double done) {
      if (progress) progress(begin + share * done);
    };
  };
  InputFiles input = find_input_files(options.files, InputUse::kPlainText);
  for (const std::filesystem::path& file : input.files)
    check_input_content(InputFile::open(file), InputUse::kPlainText, options.skip_invalid_utf8);
  const WordCounts counts =
      count_words(input.files, options.skip_invalid_utf8, kMaxTrainingWords, pool, part(0, kCountingShare));
  if (counts.words.empty())
    fail(ExitCode::kBadData, "no text to learn from in {}", count_of(counts.num_files, "file"));
  const LearnedMerges learned =
      learn_merges(counts.words, num_tokens, part(kCountingShare, 1 - kCountingShare));
  for (const std::string& token : specials) {
    if (std::find(learned.tokens.begin(), learned.tokens.end(), token) != learned.tokens.end()) {
      fail(ExitCode::kBadConfig, "the special token \"{}\" is also a learned token; choose another",
           printable(token));
    }
  }
  const OrderedJson json = tokenizer_json(learned, specials);
  create_synced_folder(output);
  write_text_file(output / "tokenizer.json", json.dump(2) + "\n");
  write_text_file(output / "tokenizer_config.json", tokenizer_config_json(options, json["added_tokens"]));
  if (progress) progress(1);
  return {.vocab_size = static_cast<int64_t>(learned.tokens.size() + specials.size()),
          .num_merges = static_cast<int64_t>(learned.merges.size()),
          .input_bytes = counts.input_bytes,
          .num_files = counts.num_files,
          .num_files_skipped = counts.num_files_skipped,
          .left_out = std::move(input.left_out)};
}

}  // namespace tessera
