#include <optional>

#include "bench/commands/bench_command.h"
#include "bench/step/train_step_bench.h"
#include "cli/terminal/terminal.h"
#include "cli/threads.h"
#include "kernels/gemm/onednn_products.h"
#include "settings/choices.h"

namespace tessera {
namespace {

class BenchTrainStepCommand : public BenchCommand {
 public:
  std::string name() const override { return "bench train-step"; }
  std::string summary() const override { return "Measure a training step, part by part"; }
  std::string description() const override {
    return "Steps of real shapes with random weights: times forward, backward and optimizer, measures the "
           "arithmetic peak around every micro-batch, and shows the share of each operation and the peak "
           "memory. Runs only the decoder layers unless --with_head adds embedding, LM head and loss. mfu is "
           "the share of the peak that the model's own operations reach (6 per matrix parameter and token, "
           "plus causal attention; recomputation by checkpointing is not counted): the median of the paired "
           "ratios. Runs without activation checkpointing, then with it.";
  }
  std::vector<std::string> examples() const override {
    return {"tessera-bench train-step --preset llama3-8b --layers 2 --max_length 2048",
            "tessera-bench train-step --preset 15m --with_head --micro_batch 8"};
  }

  void declare_flags(FlagTable* table) override {
    table->add("preset", &preset_, "Named shape.").value_name = preset_value_name();
    limit_flag(table->add("layers", &layers_, "Number of decoder layers, instead of the preset's."), 1, 1e4);
    limit_flag(table->add("max_length", &options_.max_length, "Tokens per row."), 2, 1e7);
    Flag& micro_batch = table->add("micro_batch", &options_.micro_batch, "Rows per micro-batch.");
    micro_batch.aliases = {"per_device_train_batch_size", "micro_batch_size"};
    limit_flag(micro_batch, 1, 1e6);
    limit_flag(table->add("gradient_accumulation_steps", &options_.gradient_accumulation_steps,
                          "Micro-batches per step."),
               1, 1e6);
    table->add_choice("merge_micro_batches", &options_.merge_micro_batches,
                      "Run the micro-batches of a step through the model together, as in training: auto "
                      "merges up to 2048 tokens if that takes little memory.");
    table->add("pack_weights", &options_.pack_weights,
               "Keep the weights packed for the matrix products, and repack them after each update.");
    limit_flag(
        table->add("lora_rank", &lora_rank_,
                   "Train LoRA adapters of this rank on all linear modules of the layers, in turn with "
                   "training all weights, and show how many times faster they are; 0 trains the "
                   "weights alone."),
        0, 1 << 14);
    declare_weights_flag(table,
                         "With lora_rank, form of the frozen weights: dtype, or one of quantization_bit.");
    table->add("with_head", &options_.with_head, "Include the embedding, final norm, LM head and loss.");
    limit_flag(table->add("vocab_size", &vocab_size_,
                          "Vocabulary size of the head, instead of the preset's (8192 if it has none)."),
               2, 1e7);
    table->add("gradient_checkpointing", &gradient_checkpointing_,
               "Run only with (true) or only without (false) activation checkpointing.");
    table
        ->add("against", &against_,
              "Command of a program that processes the same tokens per step and takes a turn after each of "
              "ours (scripts/pytorch_step.py). If oneDNN cannot use everything the processor announces, "
              "ONEDNN_MAX_CPU_ISA is set for that program as well.")
        .value_name = "COMMAND";
    table->add_choice("dtype", &dtype_, kTrainingDTypeWords, "Type of weights and activations.");
    declare_device_flag(table);
    declare_common_flags(table, /*seconds=*/1);
  }

  void run(FlagTable*) override {
    options_.name = preset_;
    options_.config = preset_config(preset_);
    options_.dtype = dtype_;
    if (layers_) {
      options_.config.num_hidden_layers = *layers_;
      options_.config.sliding_window.assign(static_cast<size_t>(*layers_), 0);
    }
    if (lora_rank_ > 0) {
      LoraConfig& lora = options_.config.lora.emplace();
      lora.r = lora_rank_;
      lora.lora_alpha = 2 * static_cast<double>(lora_rank_);
      lora.target_modules = lora_module_names();
    }
    options_.config.base_quantization = weights_form();
    if (weights_form() != Quantization::kNone && !options_.config.lora) {
      fail(ExitCode::kUsage, "--weights: needs lora_rank: weights that are trained are of type dtype");
    }
    if (weights_form() != Quantization::kNone && is_on_device())
      fail(ExitCode::kUsage, "--weights: quantised weights are not available with --device {}", device());
    constexpr int64_t kDefaultVocabulary = 8192;
    if (vocab_size_) options_.config.vocab_size = *vocab_size_;
    if (options_.config.vocab_size == 0) options_.config.vocab_size = kDefaultVocabulary;
    std::optional<OtherProgram> other;
    if (!against_.empty()) other.emplace(against_, onednn_environment(machine_onednn_limit()));
    ThreadPool pool(threads_for_products(num_threads()));
    for (const bool checkpointing : {false, true}) {
      if (gradient_checkpointing_ && *gradient_checkpointing_ != checkpointing) continue;
      options_.gradient_checkpointing = checkpointing;
      StepDevice on;
      if (is_on_device()) on.make = ops_factory(device());
      const TrainStepLine line =
          run_train_step(options_, measure_options(), other ? &*other : nullptr, pool, on);
      write_output(json() ? train_step_json(line, pool.num_threads()) : train_step_table(line));
      flush_output();
    }
  }

 private:
  TrainStepOptions options_;
  std::string preset_ = "llama3-8b";
  std::string against_;
  DType dtype_ = DType::kBF16;
  std::optional<int64_t> layers_;
  int64_t lora_rank_ = 0;
  std::optional<int64_t> vocab_size_;
  std::optional<bool> gradient_checkpointing_;
};

}  // namespace

std::unique_ptr<Command> make_bench_train_step_command() { return std::make_unique<BenchTrainStepCommand>(); }

}  // namespace tessera
