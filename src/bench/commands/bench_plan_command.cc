#include <filesystem>
#include <optional>

#include "base/text.h"
#include "bench/commands/bench_command.h"
#include "bench/plan/plan_bench.h"
#include "cli/terminal/terminal.h"
#include "cli/threads.h"
#include "platform/memory_info.h"
#include "platform/system.h"

namespace tessera {
namespace {

// The row length used here for a preset.
struct Rows {
  const char* preset;
  int64_t max_length;
  int64_t micro_batch;
  int64_t gradient_accumulation_steps;
};
constexpr Rows kRows[] = {{"15m", 256, 4, 2}, {"60m", 512, 2, 2}, {"160m", 512, 2, 1}};
constexpr Rows kOtherRows = {"", 512, 1, 1};

constexpr int64_t kMaxRanksHere = 256;

// A form of a run on a single rank.
struct BenchedForm {
  const char* name;
  std::vector<std::pair<std::string, std::string>> settings;
};
const std::vector<BenchedForm>& benched_forms() {
  static const std::vector<BenchedForm> forms = {
      {"adamw_bf16", {{"optim", "adamw_bf16"}}},
      {"adamw_8bit", {{"optim", "adamw_8bit"}}},
      {"state on disk", {{"offload_optimizer_device", "nvme"}}},
      {"update in backward, step computed twice", {{"optimizer_in_backward", "true"}}},
      {"state and weights on disk, norm of the step before",
       {{"offload_optimizer_device", "nvme"},
        {"offload_param_device", "nvme"},
        {"optimizer_in_backward", "true"},
        {"clip_mode", "previous"}}},
      {"selective checkpointing",
       {{"gradient_checkpointing", "true"}, {"gradient_checkpointing_mode", "selective"}}},
      {"inputs on disk", {{"gradient_checkpointing", "true"}, {"gradient_checkpointing_mode", "offload"}}},
      {"LoRA", {{"finetuning_type", "lora"}}}};
  return forms;
}

class BenchPlanCommand : public BenchCommand {
 public:
  std::string name() const override { return "bench plan"; }
  std::string summary() const override { return "Check predicted step times and memory against real runs"; }
  std::string description() const override {
    return "For each model, number of ranks, with and without activation checkpointing: predicts the time of "
           "a step from measurements of its operations (a few small steps of the first layers), and memory "
           "from the plan; then trains as `tessera train` or `tessera launch` does and compares. Prediction "
           "and runs alternate. By rates: what the measured peak and bandwidth of this machine predict, as "
           "for one that is not at hand.";
  }
  std::vector<std::string> examples() const override {
    return {"tessera-bench plan", "tessera-bench plan --preset 160m --ranks 2 --rounds 5"};
  }

  void declare_flags(FlagTable* table) override {
    table->add("preset", &presets_, "Named shapes of models.").value_name = preset_value_name();
    table->add("ranks", &ranks_, "Numbers of ranks, on this machine.").value_name = "N...";
    limit_flag(
        table->add("layers", &layers_,
                   "Layers, instead of the preset's; models of more than 20 layers have 2 by default."),
        1, 1e4);
    limit_flag(table->add("vocab_size", &vocab_size_, "Vocabulary of all models."), 2, 1e7);
    table->add("gradient_checkpointing", &gradient_checkpointing_,
               "Run only with (true) or only without (false) activation checkpointing.");
    table->add(
        "forms", &forms_,
        "Run the forms of training in little memory, on one rank, instead: fewer bits, disk, update in "
        "the backward pass, kinds of checkpointing, LoRA.");
    table->add("folder", &folder_, "Where to write; a temporary subfolder is created there and removed.")
        .value_name = "DIR";
    declare_common_flags(table, /*seconds=*/5);
  }

  void run(FlagTable*) override {
    PlanBenchOptions options;
    options.baseline = proportional_memory().value_or(ProportionalMemory{resident_bytes()});
    options.program = program_path().parent_path() / "tessera";
    options.folder =
        folder_.empty() ? std::filesystem::temp_directory_path() : std::filesystem::path(folder_);
    options.rounds = measure_options().min_rounds;
    options.seconds = measure_options().seconds;
    options.num_threads = threads_for_products(num_threads());
    if (!json()) write_output(plan_table_header());
    flush_output();
    const auto show = [&](const PlanCase& run) {
      const PlanLine line = run_plan_case(run, options);
      write_output(json() ? plan_json(line) : plan_table_row(line));
      flush_output();
    };
    for (const std::string& preset : presets_) {
      for (const BenchedForm& form : benched_forms()) {
        if (!forms_) break;
        PlanCase run = case_of(preset, 1, false);
        run.form = form.name;
        run.settings = form.settings;
        show(run);
      }
      if (forms_) continue;
      for (const int64_t num_ranks : parse_sizes("ranks", ranks_, kMaxRanksHere)) {
        for (const bool checkpointing : {false, true}) {
          if (gradient_checkpointing_ && *gradient_checkpointing_ != checkpointing) continue;
          show(case_of(preset, num_ranks, checkpointing));
        }
      }
    }
  }

 private:
  PlanCase case_of(const std::string& preset, int64_t num_ranks, bool checkpointing) const {
    constexpr int64_t kManyLayers = 20, kFewLayers = 2;
    PlanCase run;
    run.name = preset;
    run.config = preset_config(preset);
    run.config.vocab_size = vocab_size_;
    // Special tokens of the preset's own vocabulary.
    run.config.bos_token_id.reset();
    run.config.eos_token_ids.clear();
    if (layers_ || run.config.num_hidden_layers > kManyLayers) {
      const int64_t num_layers = layers_.value_or(kFewLayers);
      run.config.num_hidden_layers = num_layers;
      run.config.sliding_window.assign(static_cast<size_t>(num_layers), 0);
      run.name += fmt::format("/{}", num_layers);
    }
    const Rows* rows = &kOtherRows;
    for (const Rows& known : kRows) {
      if (preset == known.preset) rows = &known;
    }
    run.max_length = rows->max_length;
    run.micro_batch = rows->micro_batch;
    run.gradient_accumulation_steps = rows->gradient_accumulation_steps;
    run.num_ranks = static_cast<int>(num_ranks);
    run.gradient_checkpointing = checkpointing;
    return run;
  }

  std::vector<std::string> presets_ = {"15m", "60m", "160m", "llama3-8b"};
  std::vector<std::string> ranks_ = {"1", "2"};
  std::optional<int64_t> layers_;
  int64_t vocab_size_ = 8192;
  std::optional<bool> gradient_checkpointing_;
  bool forms_ = false;
  std::string folder_;
};

}  // namespace

std::unique_ptr<Command> make_bench_plan_command() { return std::make_unique<BenchPlanCommand>(); }

}  // namespace tessera
