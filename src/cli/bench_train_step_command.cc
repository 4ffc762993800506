#include <optional>

#include "bench/train_step_bench.h"
#include "cli/bench_command.h"
#include "cli/loaded_model.h"
#include "cli/terminal.h"
#include "cli/threads.h"
#include "kernels/gemm/onednn_products.h"

namespace tessera {
namespace {

class BenchTrainStepCommand : public BenchCommand {
 public:
  std::string name() const override { return "bench train-step"; }
  std::string summary() const override { return "Measure a training step, part by part"; }
  std::string description() const override {
    return "Steps of real shapes with random weights: forward, backward and optimizer each timed, the "
           "arithmetic peak measured around every micro-batch, the share of each operation, peak memory. "
           "Only the decoder layers unless --with_head adds embedding, LM head and loss. mfu is the share of "
           "the peak that the model's own operations reach (6 per matrix parameter and token, and causal "
           "attention; what checkpointing computes again is not counted): the median of the paired ratios. "
           "With and without activation checkpointing, one after the other.";
  }
  std::vector<std::string> examples() const override {
    return {"tessera bench train-step --preset llama3-8b --layers 2 --max_length 2048",
            "tessera bench train-step --preset 15m --with_head --micro_batch 8"};
  }

  void declare_flags(FlagTable* table) override {
    table->add("preset", &preset_, fmt::format("Named shape: {}.", fmt::join(preset_names(), ", ")))
        .value_name = "NAME";
    limit_flag(table->add("layers", &layers_, "Decoder layers, instead of the preset's number."), 1, 1e4);
    limit_flag(table->add("max_length", &options_.max_length, "Tokens of a row."), 2, 1e7);
    Flag& micro_batch = table->add("micro_batch", &options_.micro_batch, "Rows of a micro-batch.");
    micro_batch.aliases = {"per_device_train_batch_size", "micro_batch_size"};
    limit_flag(micro_batch, 1, 1e6);
    limit_flag(table->add("gradient_accumulation_steps", &options_.gradient_accumulation_steps,
                          "Micro-batches of a step."),
               1, 1e6);
    table->add_choice(
        "merge_micro_batches", &options_.merge_micro_batches, {"auto", "always", "never"},
        "Micro-batches of a step go through the model together, as in training: auto up to 2048 tokens "
        "where that takes little memory.");
    table->add("pack_weights", &options_.pack_weights,
               "Keep the weights packed for the matrix products, and pack them again after each update.");
    table->add("with_head", &options_.with_head, "Embedding, final norm, LM head and loss as well.");
    limit_flag(table->add("vocab_size", &vocab_size_,
                          "Vocabulary of the head, instead of the preset's (8192 where it has none)."),
               2, 1e7);
    table->add("gradient_checkpointing", &gradient_checkpointing_, "Only with (true) or without (false) it.");
    table
        ->add("against", &against_,
              "Command of a program that does the same tokens as a step, asked for a turn after each of ours "
              "(scripts/pytorch_step.py). Where oneDNN cannot use all that the processor announces, "
              "ONEDNN_MAX_CPU_ISA tells that program's oneDNN, too.")
        .value_name = "COMMAND";
    declare_dtype_flag(table, &dtype_, {"bfloat16", "float32"}, "Type of weights and activations.");
    declare_common_flags(table, /*seconds=*/1);
  }

  void run(FlagTable*) override {
    options_.name = preset_;
    options_.config = preset_config(preset_);
    options_.dtype = dtype_of_flag(dtype_);
    if (layers_) {
      options_.config.num_hidden_layers = *layers_;
      options_.config.sliding_window.assign(static_cast<size_t>(*layers_), 0);
    }
    constexpr int64_t kDefaultVocabulary = 8192;
    if (vocab_size_) options_.config.vocab_size = *vocab_size_;
    if (options_.config.vocab_size == 0) options_.config.vocab_size = kDefaultVocabulary;
    std::optional<OtherProgram> other;
    if (!against_.empty()) other.emplace(against_, onednn_environment(machine_onednn_limit()));
    ThreadPool pool(threads_for_products(num_threads()));
    for (const bool checkpointing : {false, true}) {
      if (gradient_checkpointing_ && *gradient_checkpointing_ != checkpointing) continue;
      options_.gradient_checkpointing = checkpointing;
      const TrainStepLine line = run_train_step(options_, measure_options(), other ? &*other : nullptr, pool);
      write_output(json() ? train_step_json(line, pool.num_threads()) : train_step_table(line));
      flush_output();
    }
  }

 private:
  TrainStepOptions options_;
  std::string preset_ = "llama3-8b";
  std::string against_;
  std::string dtype_ = "bfloat16";
  std::optional<int64_t> layers_;
  std::optional<int64_t> vocab_size_;
  std::optional<bool> gradient_checkpointing_;
};

}  // namespace

std::unique_ptr<Command> make_bench_train_step_command() { return std::make_unique<BenchTrainStepCommand>(); }

}  // namespace tessera
