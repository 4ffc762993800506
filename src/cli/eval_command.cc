#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>

#include "arguments/data_arguments.h"
#include "base/error.h"
#include "base/log.h"
#include "base/text.h"
#include "cli/command.h"
#include "cli/loaded_model.h"
#include "cli/rank.h"
#include "cli/terminal/terminal.h"
#include "cli/threads.h"
#include "data/dataset.h"
#include "platform/memory_info.h"
#include "tokenizer/tokenizer.h"
#include "train/evaluate.h"

namespace tessera {
namespace {

class EvalCommand : public Command {
 public:
  std::string name() const override { return "eval"; }
  std::string summary() const override { return "Measure the loss and perplexity of a model"; }
  std::string usage() const override { return "--model DIR --dataset FILE... [flags]"; }
  std::string description() const override {
    return "The loss is the sum of the losses of all target tokens divided by their number; perplexity is "
           "its exponential. Under `tessera launch` the ranks share the rows and, within a machine, the "
           "weights; the result is the same as with one process.";
  }
  std::vector<std::string> examples() const override {
    return {"tessera eval --model model --dataset test.txt --packing",
            "tessera launch --nproc_per_node 2 eval --model model --dataset test.txt"};
  }

  DataArguments* data_arguments() override { return &data_; }
  bool is_for_ranks() const override { return true; }
  void declare_flags(FlagTable* table) override {
    Flag& model = table->add("model", &model_, "Model folder, or its name on the Hugging Face Hub.");
    model.value_name = "DIR";
    model.required = true;
    model.aliases = {"model_name_or_path"};
    Flag& dataset = table->add("dataset", &dataset_,
                               "Text, .jsonl or pre-tokenized .safetensors files, folders or globs, given as "
                               "for `train --dataset`.");
    dataset.required = true;
    dataset.aliases = {"eval_dataset", "validation_file"};
    table->add("tokenizer", &tokenizer_, "Folder of the tokenizer. Defaults to the model's folder.")
        .value_name = "DIR";
    declare_data_flags(table, &data_);
    table
        ->add(
            "max_length", &max_length_,
            "Tokens per row. Defaults to 1024, or to the model's max_position_embeddings if that is smaller.")
        .aliases = {"max_seq_length", "block_size"};
    table->add("allow_truncation", &allow_truncation_,
               "Drop the tokens beyond --max_length even if they are more than a tenth of all tokens.");
    table->add("packing", &packing_,
               "Concatenate the documents and cut them into rows, instead of one row per document.");
    table->add("packing_cross_document_attention", &joined_,
               "With --packing, let tokens attend to earlier documents in their row.");
    table->add("per_device_eval_batch_size", &batch_size_,
               "Rows evaluated at once; does not change the result.");
    declare_dtype_flag(table, &dtype_, {"bfloat16", "float32"}, "Type to compute in.");
    table->add("cache_dir", &cache_dir_, "Folder for cached tokenized datasets.").value_name = "DIR";
    table->add("json", &json_, "Print one JSON object instead of text.");
    table->add_foreign_names(inference_names());
  }

  void run(FlagTable*) override {
    if (batch_size_ < 1)
      fail(ExitCode::kUsage, "--per_device_eval_batch_size: expected 1 or more, found {}", batch_size_);
    if (max_length_ && *max_length_ < 2)
      fail(ExitCode::kUsage, "--max_length: expected 2 or more, found {}", *max_length_);
    if (joined_ && !packing_)
      fail(ExitCode::kBadConfig, "--packing_cross_document_attention needs --packing");
    const World world = detect_world();
    if (world.is_single()) {
      report(evaluate_on(single_process()));
      return;
    }
    run_as_rank(world, {}, [&](Communicator& comm) {
      comm.check_same_settings(settings_of_the_job());
      const EvalResult result = evaluate_on(comm);
      if (world.rank == 0) report(result);
    });
  }

 private:
  // What determines the result, apart from the contents of files.
  std::map<std::string, std::string> settings_of_the_job() const {
    std::map<std::string, std::string> settings = {
        {"version of tessera", TESSERA_VERSION},
        {"max_length", max_length_ ? std::to_string(*max_length_) : "of the model"},
        {"allow_truncation", allow_truncation_ ? "true" : "false"},
        {"packing", packing_ ? "true" : "false"},
        {"packing_cross_document_attention", joined_ ? "true" : "false"},
        {"per_device_eval_batch_size", std::to_string(batch_size_)},
        {"dtype", dtype_}};
    FlagTable table;
    DataArguments data = data_;
    declare_data_flags(&table, &data);
    for (const Flag& flag : table.flags())
      settings[flag.name] = fmt::format("{}", fmt::join(flag.get(), " "));
    return settings;
  }

  EvalResult evaluate_on(Communicator& comm) {
    const bool is_first = comm.world().rank == 0;
    ThreadPool pool(threads_for_products());
    LoadedModel loaded(model_, dtype_of_flag(dtype_), pool, {}, comm);
    const Dataset dataset = open_dataset(loaded.config(), pool, is_first);
    for (const std::string& warning : dataset.report().warnings) log_warning("{}", warning);
    {
      const PatientScope patient(comm);
      comm.barrier({"evaluation data"});
    }
    const int64_t max_tokens = batch_size_ * dataset.max_row_length();
    reserve(loaded.model(), evaluation_limits(dataset, batch_size_, max_tokens), comm);
    StatusLine status;
    return evaluate_together(loaded.model(), dataset, batch_size_, max_tokens, comm, [&](double fraction) {
      if (is_first) status.show(fmt::format("evaluating: {:.0f} %", 100 * fraction));
      return true;
    });
  }

  // Reserves memory for activations and, if there is room, for packed weights.
  static void reserve(TrainableModel& model, ActivationLimits limits, Communicator& comm) {
    const int64_t free_bytes = memory_info().free_for_process_bytes / comm.node().size();
    comm.node().barrier({"free memory"});  // before any rank allocates
    limits.pack_weights = true;
    limits.pack_weights = model.activation_bytes(limits).total() <= free_bytes;
    const int64_t needed = model.activation_bytes(limits).total();
    if (needed > free_bytes) {
      fail(ExitCode::kBadConfig,
           "activations take {} for {} at once, but only {} of memory are free{}; lower "
           "--per_device_eval_batch_size or --max_length",
           format_bytes(needed), format_count(limits.max_tokens, "token"), format_bytes(free_bytes),
           comm.node().size() == 1 ? "" : " for each rank");
    }
    model.reserve(limits);
  }

  Dataset open_dataset(const ModelConfig& config, ThreadPool& pool, bool shows_progress) {
    constexpr int64_t kDefaultLength = 1024;
    const std::string folder = tokenizer_.empty() ? model_ : tokenizer_;
    DatasetOptions options = dataset_options(data_, dataset_, folder);
    options.max_length = max_length_.value_or(std::min(kDefaultLength, config.max_position_embeddings));
    options.allow_truncation = allow_truncation_;
    options.packing = !packing_ ? Packing::kNone : joined_ ? Packing::kJoined : Packing::kIsolated;
    options.cache_folder = cache_dir_;
    StatusLine status;
    const auto progress = [&](double fraction) {
      if (shows_progress) status.show(fmt::format("reading data: {:.0f} %", 100 * fraction));
    };
    if (!needs_tokenizer(dataset_)) return Dataset::open(options, nullptr, config.vocab_size, pool, progress);
    const Tokenizer tokenizer = Tokenizer::open(folder);
    return Dataset::open(options, &tokenizer, config.vocab_size, pool, progress);
  }

  void report(const EvalResult& result) const {
    if (json_) {
      const nlohmann::ordered_json json = {{"loss", result.loss},
                                           {"perplexity", result.perplexity},
                                           {"num_rows", result.num_rows},
                                           {"num_tokens", result.num_tokens},
                                           {"num_target_tokens", result.num_targets},
                                           {"runtime_s", result.runtime_s},
                                           {"tokens_per_second", result.tokens_per_second()}};
      print("{}\n", json.dump(2));
      return;
    }
    print("loss        {:.4f}\n", result.loss);
    print("perplexity  {:.2f}\n", result.perplexity);
    print("tokens      {} in {}, {} of them targets\n", format_count(result.num_tokens),
          format_count(result.num_rows, "row"), format_count(result.num_targets));
    print("speed       {:.0f} tokens/s\n", result.tokens_per_second());
  }

  std::string model_;
  std::string tokenizer_;
  std::vector<std::string> dataset_;
  DataArguments data_;
  bool allow_truncation_ = false;
  std::optional<int64_t> max_length_;
  bool packing_ = false;
  bool joined_ = false;
  int64_t batch_size_ = 8;
  std::string dtype_ = "bfloat16";
  std::string cache_dir_;
  bool json_ = false;
};

}  // namespace

std::unique_ptr<Command> make_eval_command() { return std::make_unique<EvalCommand>(); }

}  // namespace tessera
