#include "train/setup/training_data.h"

#include <algorithm>
#include <optional>
#include <random>
#include <system_error>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/log.h"
#include "base/text.h"
#include "data/masked_rows.h"
#include "data/sources/row_spool.h"
#include "formats/huggingface/model_families.h"
#include "formats/input_files.h"
#include "report/run_phase.h"
#include "settings/derived.h"
#include "settings/run/evaluation_sets.h"
#include "settings/run/seq2seq_settings.h"
#include "settings/spec_variants.h"
#include "tokenizer/tokenizer.h"

namespace tessera {

std::filesystem::path tokenizer_folder(const ModelSource& model) {
  return model.tokenizer.empty() ? model.folder : model.tokenizer;
}

std::string ways_to_more_rows(const DataSpec& data) {
  if (!needs_tokenizer(data.dataset)) return "";
  if (data.packing) return "lower --max_length, ";
  const bool has_text = std::ranges::any_of(data.dataset, [](const std::string& entry) {
    const std::string path = parse_data_source(entry).paths.at(0);
    std::error_code ignored;
    return input_kind(path) == InputKind::kText && !std::filesystem::is_directory(path, ignored);
  });
  // Records of other files are a row each: packing would leave fewer.
  if (!has_text) return "";
  return std::string("set --packing to cut the documents into rows of max_length tokens, ") +
         (data.text_per_line ? "" : "set --text_per_line if every line of a text file is a document, ");
}

namespace {

// The token that ends texts, if it is not the tokenizer's: eos_token, or that of the tokenizer in the folder
// the chat template comes from, as in TRL.
std::string given_eos_token(const std::string& chat_template, const std::string& eos_token,
                            const Tokenizer& tokenizer) {
  std::error_code error;
  const std::filesystem::path other = chat_template;
  if (!std::filesystem::exists(other / "tokenizer.json", error)) return eos_token;
  const Tokenizer source = Tokenizer::open(other);
  for (const std::string& token : source.special_tokens()) {
    if (tokenizer.token_to_id(token)) continue;
    fail(ExitCode::kBadConfig,
         "chat_template {}: its tokenizer has the special token {}, which the model's lacks: add it to the "
         "model first",
         chat_template, printable(token, 80));
  }
  if (!source.eos_id()) return eos_token;
  return source.id_to_token(*source.eos_id());
}

// The files with the rows to train on.
std::vector<std::string> training_sources(const DataSpec& data) {
  return data.dataset_spool.empty() ? data.dataset
                                    : std::vector<std::string>{RowSpool::first_file(data.dataset_spool)};
}

// Collective.
SpoolOptions spool_options(const DataSpec& data, Communicator& comm) {
  std::random_device random;
  const uint64_t drawn = uint64_t{random()} << 32 | random();
  const uint64_t reading = comm.broadcast(drawn, 0, {"dataset_spool"});
  return {data.dataset_spool, fmt::format("{:016x}", reading)};
}

}  // namespace

TrainingData open_training_data(const RunSpec& spec, const ModelConfig& config, ThreadPool& pool,
                                Communicator& comm, TrainObserver& observer, const ResumedRows& resumed) {
  mark_phase(comm, RunPhase::kReadingDataset, 1);
  const DataSpec settings = resumed.packs_in_order ? packed_in_order(spec.data) : spec.data;
  const int64_t row_limit = settings.row_limit(config);
  if (row_limit > config.max_position_embeddings && row_limit != kMaxRowLength) {
    log_warning("max_length {} is above max_position_embeddings {} of {}", row_limit,
                config.max_position_embeddings, spec.model.folder);
  }
  std::unique_ptr<const Tokenizer> tokenizer;
  std::string eos_token;
  const std::vector<EvaluationSet> sets =
      spec.evaluation.evaluates() ? evaluation_sets(settings.eval_dataset) : std::vector<EvaluationSet>();
  const auto needs_one = [](const EvaluationSet& set) { return needs_tokenizer(set.sources); };
  const std::vector<std::string> train_sources = training_sources(settings);
  if (config.encoder || needs_tokenizer(train_sources) || std::ranges::any_of(sets, needs_one)) {
    // Rows of token ids need none, if an encoder's have labels; Dataset::open() refuses others without.
    if (std::optional<Tokenizer> found = Tokenizer::open_if_any(tokenizer_folder(spec.model))) {
      eos_token = given_eos_token(settings.chat_template, spec.sources.script.eos_token, *found);
      if (!eos_token.empty()) found->set_eos_token(eos_token);
      tokenizer = std::make_unique<const Tokenizer>(std::move(*found));
      // They are saved together.
      if (!spec.model.tokenizer.empty())
        Tokenizer::check_beside(spec.model.tokenizer, family_info(config.family).model_type);
    }
  }
  enum class Use { kTrain, kEvaluate, kHeldOut };
  const bool keeps_split =
      resumed.splits_packed_rows && settings.packing_mode() == settings.eval_packing_mode();
  const bool splits = splits_documents(settings) && !keeps_split;
  if (splits_documents(settings) && keeps_split) {
    log_warning(
        "validation_split_percentage: the run goes on with the rows that it began with, of which "
        "packing_strategy {} "
        "put the longest documents into those held out: a new run holds out rows before they are packed",
        settings.packing_strategy);
  }
  const auto open = [&](const std::vector<std::string>& sources, Use use, const std::string& what) {
    DatasetOptions options = dataset_options(settings, sources, tokenizer_folder(spec.model));
    options.chat_template.eos_token = eos_token;
    options.max_length = row_limit;
    options.allow_truncation = settings.allow_truncation;
    options.packing = use == Use::kTrain ? settings.packing_mode() : settings.eval_packing_mode();
    options.cache_folder = settings.cache_dir;
    options.drops_masked_ids = settings.max_length.value_or(kMaxRowLength) != kMaxRowLength;
    if (use == Use::kEvaluate) {
      use_evaluation_splits(&options);
    } else if (splits) {
      options.held_out = {settings.validation_split_percentage, use == Use::kHeldOut};
    }
    options.streaming = settings.streaming && use == Use::kTrain;
    options.streaming_buffer_rows = settings.streaming_buffer_rows;
    if (use == Use::kTrain && !settings.dataset_spool.empty()) options.spool = spool_options(settings, comm);
    fit_rows_to_model(settings, config, use == Use::kTrain ? RowUse::kTraining : RowUse::kEvaluation,
                      settings.max_length, &options);
    if (options.masking) {
      options.masking->seed = static_cast<uint64_t>(spec.seed);
      name_masking_tokens(tokenizer.get(), config.vocab_size, &*options.masking);
    }
    options.while_waiting = [&comm] { comm.failures().check(); };
    Dataset dataset = Dataset::open(options, tokenizer.get(), config.vocab_size, pool, [&](double fraction) {
      comm.failures().check();  // perhaps of the rank that this one waits for
      observer.on_progress(what, fraction);
    });
    for (const std::string& warning : dataset.report().warnings) log_warning("{}", warning);
    return dataset;
  };
  Dataset train = open(train_sources, Use::kTrain, "reading dataset");
  std::vector<EvaluationData> evals;
  if (settings.validation_split_percentage > 0) {
    const double percent = settings.validation_split_percentage;
    evals.push_back({"", EvaluationSet().prefix(),
                     splits ? open(train_sources, Use::kHeldOut, "reading the rows held out")
                            : train.split_off(percent)});
  }
  for (const EvaluationSet& set : sets) {
    const std::string what = set.name.empty() ? "eval_dataset" : "eval_dataset " + set.name;
    evals.push_back({set.name, set.prefix(), open(set.sources, Use::kEvaluate, "reading " + what)});
    if (evals.back().rows.mixture().size() > 1)
      log_warning("{}: weights have no effect: an evaluation reads every row of all sources", what);
  }
  TrainingData data = {
      std::move(tokenizer), row_limit, std::move(train), std::move(evals), {}, {}, {}, false};
  data.splits_documents = splits;
  if (!eos_token.empty()) data.eos_token = {eos_token, *data.tokenizer->eos_id()};
  if (!settings.chat_template.empty() && data.tokenizer) {
    const ChatTemplate given = ChatTemplate::load(tokenizer_folder(spec.model), *data.tokenizer,
                                                  {settings.chat_template, "", eos_token});
    data.chat_template = given.source();
    data.end_of_answer = given.end_of_answer(*data.tokenizer);
    if (!data.end_of_answer) {
      log_warning(
          "chat_template {}: the tokenizer has no special token with which it ends an answer: what it writes "
          "is ordinary text, and programs that generate cannot tell where an answer ends",
          settings.chat_template);
    }
  }
  return data;
}

int64_t TrainingData::num_eval_rows() const {
  int64_t sum = 0;
  for (const EvaluationData& eval : evals) sum += eval.rows.num_rows();
  return sum;
}

int64_t TrainingData::num_eval_tokens() const {
  int64_t sum = 0;
  for (const EvaluationData& eval : evals) sum += eval.rows.num_tokens();
  return sum;
}

int64_t TrainingData::max_eval_row_length() const {
  int64_t longest = 0;
  for (const EvaluationData& eval : evals) longest = std::max(longest, eval.rows.max_row_length());
  return longest;
}

}  // namespace tessera
