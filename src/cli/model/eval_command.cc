#include <algorithm>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/log.h"
#include "base/text.h"
#include "cli/model/model_command.h"
#include "cli/run/rank.h"
#include "cli/terminal/terminal.h"
#include "cli/threads.h"
#include "data/dataset.h"
#include "data/masked_rows.h"
#include "settings/compat/compat_flags.h"
#include "settings/derived.h"
#include "settings/fields/fields.h"
#include "settings/run/data_settings.h"
#include "settings/run/evaluation_sets.h"
#include "settings/run/seq2seq_settings.h"
#include "tokenizer/tokenizer.h"
#include "train/evaluation/choices.h"
#include "train/evaluation/evaluate.h"

namespace tessera {
namespace {

class EvalCommand : public ModelCommand {
 public:
  std::string name() const override { return "eval"; }

  DataArguments* data_arguments() override { return &data_; }
  bool is_for_ranks() const override { return true; }
  void declare_flags(FlagTable* table) override {
    declare(table, "model", &model_);
    declare(table, "dataset", &dataset_);
    declare(table, "choices", &choices_files_);
    declare(table, "tokenizer", &tokenizer_);
    declare_data_flags(table, &data_);
    declare_max_length(table, &max_length_).help =
        "Tokens per row. Defaults to 1024, or to the model's max_position_embeddings if that is smaller. "
        "none "
        "truncates nothing.";
    declare(table, "allow_truncation", &allow_truncation_);
    declare(table, "packing", &packing_);
    add_field(table, "packing_strategy", &packing_strategy_);
    add_field(table, "packing_cross_document_attention", &joined_);
    declare_compat_flag(table, "truncation_mode");
    declare(table, "per_device_eval_batch_size", &batch_size_);
    declare_model(table);
    declare(table, "cache_dir", &cache_dir_);
    declare(table, "json", &json_);
  }

  void run(FlagTable*) override {
    if (dataset_.empty() && choices_files_.empty())
      fail(ExitCode::kUsage, "missing --dataset FILE... or --choices FILE...; see --help");
    const std::vector<EvaluationSet> sets = evaluation_sets(dataset_);
    if (!sets.empty() && !sets.front().name.empty()) {
      fail(ExitCode::kBadConfig,
           "dataset {}: several evaluation sets by name are for train: run tessera eval on each",
           printable(dataset_.front(), 200));
    }
    check_joined(packing_strategy_, joined_, packing_);
    const World world = detect_world();
    if (world.is_single()) {
      report(evaluate_on(single_process()));
      return;
    }
    run_as_rank(world, {}, [&](Communicator& comm) {
      comm.check_same_settings(settings_of_the_job(settings_of_the_data()));
      const Results results = evaluate_on(comm);
      if (world.rank == 0) report(results);
    });
  }

 private:
  struct Results {
    std::optional<EvalResult> loss;
    std::optional<ChoiceResult> choices;
  };

  // These settings determine the result, apart from the model and the contents of files.
  std::map<std::string, std::string> settings_of_the_data() const {
    std::map<std::string, std::string> settings = {
        {"dataset", dataset_.empty() ? "none" : "given"},
        {"choices", choices_files_.empty() ? "none" : "given"},
        {"max_length", max_length_ ? std::to_string(*max_length_) : "of the model"},
        {"allow_truncation", allow_truncation_ ? "true" : "false"},
        {"packing", packing_ ? "true" : "false"},
        {"packing_strategy", std::string(word_of(packing_strategy_))},
        {"packing_cross_document_attention", joined_ ? "true" : "false"},
        {"per_device_eval_batch_size", std::to_string(batch_size_)}};
    FlagTable table;
    DataArguments data = data_;
    declare_data_flags(&table, &data);
    for (const Flag& flag : table.flags())
      settings[flag.name] = fmt::format("{}", fmt::join(flag.get(), " "));
    return settings;
  }

  Results evaluate_on(Communicator& comm) {
    const bool is_first = comm.world().rank == 0;
    ThreadPool pool(threads_for_products());
    const ModelFolders parts = folders();
    if (tokenizer_.empty()) tokenizer_ = parts.tokenizer.native();
    LoadedModel loaded = load(parts, pool, comm);
    std::optional<Dataset> dataset;
    std::optional<ChoiceSet> choices;
    if (loaded.config().encoder && !choices_files_.empty()) {
      fail(ExitCode::kBadConfig,
           "choices: the model is an encoder, which predicts masked tokens and cannot score what follows a "
           "text");
    }
    if (!dataset_.empty()) {
      dataset = open_dataset(loaded.config(), pool, is_first);
      for (const std::string& warning : dataset->report().warnings) log_warning("{}", warning);
      if (dataset->mixture().size() > 1)
        log_warning("dataset: weights have no effect: an evaluation reads every row of all sources");
    }
    if (!choices_files_.empty()) choices = open_choices(loaded.config());
    {
      const PatientScope patient(comm);
      comm.barrier({"evaluation data"});
    }
    const int64_t longest =
        std::max(dataset ? dataset->max_row_length() : 0, choices ? choices->max_row_length() : 0);
    const int64_t max_tokens = batch_size_ * longest;
    ActivationLimits limits;
    limits.training = false;
    for (const ActivationLimits& part :
         {dataset ? evaluation_limits(*dataset, batch_size_, max_tokens) : ActivationLimits(),
          choices ? choices->limits(batch_size_, max_tokens) : ActivationLimits()}) {
      limits.max_tokens = std::max(limits.max_tokens, part.max_tokens);
      limits.max_sequence_length = std::max(limits.max_sequence_length, part.max_sequence_length);
    }
    loaded.reserve_for_evaluation(limits, comm);
    StatusLine status;
    const auto progress = [&](double fraction) {
      if (is_first) status.show("evaluating", fraction);
      return true;
    };
    Results results;
    if (dataset) {
      results.loss = evaluate(loaded.model(), *dataset, {.max_rows = batch_size_, .max_tokens = max_tokens},
                              comm, progress);
    }
    if (choices) {
      results.choices = choices->score(loaded.model(), batch_size_, max_tokens, comm, progress);
    }
    return results;
  }

  ChoiceSet open_choices(const ModelConfig& config) const {
    const Tokenizer tokenizer = Tokenizer::open(tokenizer_);
    const int64_t max_length = max_length_.value_or(config.max_position_embeddings);
    ChoiceSet choices =
        ChoiceSet::open(choices_files_, tokenizer, data_.add_special_tokens, max_length, config.vocab_size);
    if (choices.num_cut_contexts() > 0) log_warning("{}", choices.cut_contexts_text(max_length));
    return choices;
  }

  Dataset open_dataset(const ModelConfig& config, ThreadPool& pool, bool shows_progress) {
    DatasetOptions options = dataset_options(data_, dataset_, tokenizer_);
    use_evaluation_splits(&options);
    options.max_length = max_length_.value_or(default_row_limit(config.max_position_embeddings));
    options.allow_truncation = allow_truncation_;
    options.packing = packing_ ? packing_by_strategy(packing_strategy_, joined_) : Packing::kNone;
    options.drops_masked_ids = max_length_.value_or(kMaxRowLength) != kMaxRowLength;
    options.cache_folder = cache_dir_;
    fit_rows_to_model(data_, config, RowUse::kEvaluation, max_length_, &options);
    StatusLine status;
    const auto progress = [&](double fraction) {
      if (shows_progress) status.show("reading data", fraction);
    };
    if (!config.encoder && !needs_tokenizer(dataset_))
      return Dataset::open(options, nullptr, config.vocab_size, pool, progress);
    const std::optional<Tokenizer> tokenizer = Tokenizer::open_if_any(tokenizer_);
    if (options.masking)
      name_masking_tokens(tokenizer ? &*tokenizer : nullptr, config.vocab_size, &*options.masking);
    return Dataset::open(options, tokenizer ? &*tokenizer : nullptr, config.vocab_size, pool, progress);
  }

  void report(const Results& results) const {
    nlohmann::ordered_json json = nlohmann::ordered_json::object();
    if (results.loss) report_loss(*results.loss, &json);
    if (results.choices)
      report_choices(*results.choices, results.loss ? "choices_runtime_s" : "runtime_s", &json);
    if (json_) print("{}\n", json.dump(2));
  }

  // Prints text, or adds to *json.
  void report_loss(const EvalResult& result, nlohmann::ordered_json* json) const {
    if (json_) {
      json->update({{"loss", result.loss_per_token},
                    {"perplexity", result.perplexity},
                    {"num_rows", result.num_rows},
                    {"num_tokens", result.num_tokens},
                    {"num_target_tokens", result.num_targets},
                    {"runtime_s", result.runtime_s},
                    {"tokens_per_second", result.tokens_per_second()}});
      return;
    }
    print("loss        {:.4f}\n", result.loss_per_token);
    print("perplexity  {:.2f}\n", result.perplexity);
    print("tokens      {} in {}, {} of them targets\n", format_count(result.num_tokens),
          format_count(result.num_rows, "row"), format_count(result.num_targets));
    print("speed       {:.0f} tokens/s\n", result.tokens_per_second());
  }

  void report_choices(const ChoiceResult& result, const char* runtime, nlohmann::ordered_json* json) const {
    if (json_) {
      json->update({{"num_questions", result.num_questions},
                    {"accuracy", result.accuracy},
                    {"accuracy_stderr", result.accuracy_stderr},
                    {"accuracy_norm", result.accuracy_norm},
                    {"accuracy_norm_stderr", result.accuracy_norm_stderr},
                    {runtime, result.runtime_s}});
      for (const ChoiceResult::Question& question : result.questions) {
        (*json)["questions"].push_back({{"log_likelihoods", question.log_likelihoods},
                                        {"answer", question.answer},
                                        {"likeliest", question.likeliest},
                                        {"likeliest_norm", question.likeliest_norm}});
      }
      return;
    }
    for (size_t i = 0; i < result.questions.size(); ++i) print_question(i, result.questions[i]);
    const auto line = [](const char* name, double value, double error) {
      print("{:<14}{:.4f}{}\n", name, value,
            std::isnan(error) ? "" : fmt::format(" +- {:.4f} (standard error)", error));
    };
    line("accuracy", result.accuracy, result.accuracy_stderr);
    line("accuracy_norm", result.accuracy_norm, result.accuracy_norm_stderr);
    print("questions     {} in {:.1f} s\n", format_count(result.num_questions), result.runtime_s);
  }

  // "question 3  -1.2034  -8.1120*  -7.5102  wrong": the choices in order, the answer marked.
  static void print_question(size_t index, const ChoiceResult::Question& question) {
    std::string text = fmt::format("question {:<4}", index);
    for (size_t i = 0; i < question.log_likelihoods.size(); ++i) {
      text += fmt::format(" {:10.4f}{}", question.log_likelihoods[i],
                          static_cast<int64_t>(i) == question.answer ? "*" : " ");
    }
    print("{} {}\n", text, question.likeliest == question.answer ? "right" : "wrong");
  }

  std::string tokenizer_;  // its folder: the model's unless it is given
  std::vector<std::string> dataset_;
  DataArguments data_;
  bool allow_truncation_ = false;
  std::vector<std::string> choices_files_;
  std::optional<int64_t> max_length_;
  bool packing_ = false;
  PackingStrategy packing_strategy_ = PackingStrategy::kAuto;
  bool joined_ = false;
  int64_t batch_size_ = 8;
  std::string cache_dir_;
  bool json_ = false;
};

}  // namespace

std::unique_ptr<Command> make_eval_command() { return std::make_unique<EvalCommand>(); }

}  // namespace tessera
