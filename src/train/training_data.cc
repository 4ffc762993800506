#include "train/training_data.h"

#include <algorithm>
#include <optional>
#include <system_error>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/log.h"
#include "base/text.h"
#include "formats/huggingface/model_families.h"
#include "formats/input_files.h"
#include "tokenizer/tokenizer.h"
#include "train/work_mark.h"

namespace tessera {

std::filesystem::path tokenizer_folder(const TrainingArguments& args) {
  return args.tokenizer.empty() ? args.model : args.tokenizer;
}

std::string ways_to_more_rows(const TrainingArguments& args) {
  if (!needs_tokenizer(args.dataset)) return "";
  if (args.packing) return "lower --max_length, ";
  const bool has_text = std::ranges::any_of(args.dataset, [](const std::string& entry) {
    const std::string path = parse_data_source(entry).paths.at(0);
    std::error_code ignored;
    return input_kind(path) == InputKind::kText && !std::filesystem::is_directory(path, ignored);
  });
  // Records of other files are a row each: packing would leave fewer.
  if (!has_text) return "";
  return std::string("set --packing to cut the documents into rows of max_length tokens, ") +
         (args.text_per_line ? "" : "set --text_per_line if every line of a text file is a document, ");
}

namespace {

// The token that ends texts, if it is to be another one than the tokenizer's: eos_token, or that of the
// tokenizer from whose folder the chat template comes, as in TRL.
std::string given_eos_token(const TrainingArguments& args, const Tokenizer& tokenizer) {
  std::error_code error;
  const std::filesystem::path other = args.chat_template;
  if (!std::filesystem::exists(other / "tokenizer.json", error)) return args.script.eos_token;
  const Tokenizer source = Tokenizer::open(other);
  for (const std::string& token : source.special_tokens()) {
    if (tokenizer.token_to_id(token)) continue;
    fail(ExitCode::kBadConfig,
         "chat_template {}: its tokenizer has the special token {}, which the model's lacks: add it to the "
         "model first",
         args.chat_template, printable(token, 80));
  }
  if (!source.eos_id()) return args.script.eos_token;
  return source.id_to_token(*source.eos_id());
}

}  // namespace

TrainingData open_training_data(const TrainingArguments& args, const ModelConfig& config, ThreadPool& pool,
                                Communicator& comm, TrainObserver& observer) {
  mark_work(comm, OtherWork::kReadingDataset, 1);
  const int64_t row_limit = args.row_limit(config.max_position_embeddings);
  if (row_limit > config.max_position_embeddings && row_limit != kMaxRowLength) {
    log_warning("max_length {} is above max_position_embeddings {} of {}", row_limit,
                config.max_position_embeddings, args.model);
  }
  std::unique_ptr<const Tokenizer> tokenizer;
  std::string eos_token;
  if (needs_tokenizer(args.dataset) || (args.evaluates() && needs_tokenizer(args.eval_dataset))) {
    // Rows of token ids need none; Dataset::open() refuses others without.
    if (std::optional<Tokenizer> found = Tokenizer::open_if_any(tokenizer_folder(args))) {
      eos_token = given_eos_token(args, *found);
      if (!eos_token.empty()) found->set_eos_token(eos_token);
      tokenizer = std::make_unique<const Tokenizer>(std::move(*found));
      // They are saved together.
      if (!args.tokenizer.empty())
        Tokenizer::check_beside(args.tokenizer, family_info(config.family).model_type);
    }
  }
  const auto open = [&](const std::vector<std::string>& sources, const std::string& what) {
    DatasetOptions options = dataset_options(args, sources, tokenizer_folder(args));
    options.chat_template.eos_token = eos_token;
    options.max_length = row_limit;
    options.allow_truncation = args.allow_truncation;
    options.packing = &sources == &args.dataset ? args.packing_mode() : args.eval_packing_mode();
    options.cache_folder = args.cache_dir;
    const bool is_train = &sources == &args.dataset;
    if (!is_train) use_evaluation_splits(&options);
    options.streaming = args.streaming && is_train;
    options.streaming_buffer_rows = args.streaming_buffer_rows;
    options.while_waiting = [&comm] { comm.failures().check(); };
    Dataset dataset = Dataset::open(options, tokenizer.get(), config.vocab_size, pool, [&](double fraction) {
      comm.failures().check();  // perhaps of the rank that this one waits for
      observer.on_progress(what, fraction);
    });
    for (const std::string& warning : dataset.report().warnings) log_warning("{}", warning);
    return dataset;
  };
  Dataset train = open(args.dataset, "reading dataset");
  std::optional<Dataset> eval;
  if (args.validation_split_percentage > 0) {
    eval = train.split_off(args.validation_split_percentage);
  } else if (args.evaluates()) {
    eval = open(args.eval_dataset, "reading eval_dataset");
    if (eval->mixture().size() > 1)
      log_warning("eval_dataset: weights have no effect: an evaluation reads every row of all sources");
  }
  TrainingData data = {std::move(tokenizer), row_limit, std::move(train), std::move(eval), {}, {}, {}};
  if (!eos_token.empty()) data.eos_token = {eos_token, *data.tokenizer->eos_id()};
  if (!args.chat_template.empty() && data.tokenizer) {
    const ChatTemplate given =
        ChatTemplate::load(tokenizer_folder(args), *data.tokenizer, {args.chat_template, "", eos_token});
    data.chat_template = given.source();
    data.end_of_answer = given.end_of_answer(*data.tokenizer);
    if (!data.end_of_answer) {
      log_warning(
          "chat_template {}: the tokenizer has no special token with which it ends an answer: what it writes "
          "is ordinary text, and programs that generate cannot tell where an answer ends",
          args.chat_template);
    }
  }
  return data;
}

}  // namespace tessera
