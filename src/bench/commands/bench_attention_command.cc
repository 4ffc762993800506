#include "base/text.h"
#include "bench/commands/bench_command.h"
#include "bench/kernels/attention_bench.h"
#include "cli/threads.h"
#include "devices/make_ops.h"
#include "formats/huggingface/model_config.h"
#include "settings/choices.h"

namespace tessera {
namespace {

class BenchAttentionCommand : public BenchCommand {
 public:
  std::string name() const override { return "bench attention"; }
  std::string summary() const override { return "Measure causal attention, forward and backward"; }
  std::string description() const override {
    return "Causal grouped-query attention with the heads of a preset. Operations count the causal half of "
           "the score matrix, two products forward and five backward, as FlashAttention's benchmarks do. "
           "Each line is verified against float64 on a sample of rows, then measured in turn with the "
           "arithmetic peak.";
  }
  std::vector<std::string> examples() const override {
    return {"tessera-bench attention --max_length 4096 --compare hwy",
            "tessera-bench attention --preset 160m"};
  }

  void declare_flags(FlagTable* table) override {
    table->add("preset", &presets_, "Presets that give the heads.").value_name = preset_value_name();
    table->add("max_length", &lengths_, "Tokens per sequence.").value_name = "S...";
    limit_flag(table->add("num_rows", &num_rows_, "Sequences, packed back to back."), 1, 1e6);
    table->add_choice("dtype", &dtype_, kTrainingDTypeWords, "Type of the activations.");
    table->add("compare", &compare_, "Implementation to compare with, or none.").value_name = "NAME";
    declare_device_flag(table);
    declare_common_flags(table, /*seconds=*/0.5);
  }

  void run(FlagTable*) override {
    const std::vector<int64_t> lengths = parse_sizes("max_length", lengths_);
    std::vector<AttentionCase> cases;
    for (const std::string& preset : presets_) {
      const ModelConfig config = preset_config(preset);
      for (const int64_t length : lengths) {
        for (const bool backward : {false, true}) {
          cases.push_back({backward, dtype_, num_rows_, length, config.num_attention_heads,
                           config.num_key_value_heads, config.head_dim});
        }
      }
    }
    if (is_on_device()) return run_on_device(cases);
    const auto& table = attention_table();
    const std::vector<AttentionImplementation> others = implementations_to_compare(table, compare_);
    ThreadPool pool(threads_for_products(num_threads()));
    const AttentionImplementation& ours = table.chosen_implementation();
    show_header(fmt::format("attention {}, {}, {}; shape rows x S x H x G x E", implementation_text(ours),
                            dtype_name(dtype_), count_of(pool.num_threads(), "thread")),
                "TFLOPS", others.empty() ? "" : compare_);
    for (const AttentionCase& c : cases)
      show(run_attention_case(c, ours, others, measure_options(), pool), pool);
  }

 private:
  void run_on_device(const std::vector<AttentionCase>& cases) const {
    check_nothing_to_compare(compare_);
    ThreadPool pool(threads_for_pool(num_threads()));
    const std::unique_ptr<Ops> ops = make_ops(device(), pool);
    DevicePeakMeter peak(*ops, dtype_);
    show_header(
        fmt::format("attention {}, {}; shape rows x S x H x G x E", ops->description(), dtype_name(dtype_)),
        "TFLOPS", "");
    for (const AttentionCase& c : cases)
      show(run_device_attention_case(c, {*ops, peak, pool}, measure_options()), pool);
  }

  std::vector<std::string> presets_ = {"llama3-8b", "15m"};
  std::vector<std::string> lengths_ = {"512", "2048"};
  int64_t num_rows_ = 1;
  DType dtype_ = DType::kBF16;
  std::string compare_ = "none";
};

}  // namespace

std::unique_ptr<Command> make_bench_attention_command() { return std::make_unique<BenchAttentionCommand>(); }

}  // namespace tessera
