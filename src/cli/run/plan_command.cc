#include <algorithm>
#include <cmath>

#include "arguments/arguments.h"
#include "arguments/config_file.h"
#include "base/error.h"
#include "base/log.h"
#include "base/text.h"
#include "cli/command.h"
#include "cli/flag_parser.h"
#include "cli/run/threads.h"
#include "cli/terminal/terminal.h"
#include "formats/huggingface/model_config.h"
#include "plan/forecast.h"
#include "platform/memory_info.h"
#include "platform/thread_pool.h"
#include "train/measure/training_peak.h"

namespace tessera {
namespace {

constexpr int64_t kMaxNodes = 4096;
constexpr int64_t kMaxLocalRanks = 256;

void check_above_zero(const std::string& flag, double value) {
  if (std::isfinite(value) && value > 0) return;
  fail(ExitCode::kUsage, "--{}: expected a finite number above 0, found {}", flag, value);
}

class PlanCommand : public Command {
 public:
  std::string name() const override { return "plan"; }
  std::string summary() const override {
    return "Forecast what a training run will take, before any of it exists";
  }
  std::string usage() const override {
    return "--model DIR | --preset NAME [--nnodes N] [--nproc_per_node N] [--memory SIZE] [flags]";
  }
  std::string description() const override {
    return "Shows the memory of a run by kind, for a rank, a node and the whole job, and for several nodes "
           "what crosses the network in a step and how long that takes under each gather schedule. Needs "
           "only the model's shape, no weights and no data; every row is assumed to have max_length "
           "tokens.\nTakes the command line or the --config file of `tessera train` unchanged; flags that do "
           "not matter here have no effect and are not listed below. Exits with code 78 if a node has too "
           "little memory; the message then says which settings and how many nodes would suffice.";
  }
  std::vector<std::string> examples() const override {
    return {"tessera plan --preset llama3-8b --deepspeed cpu-ds.json --nnodes 4 \\", "    --memory 64GiB",
            "tessera plan --model start --nproc_per_node 2 --max_length 512 --json"};
  }

  void declare_flags(FlagTable* table) override {
    declare_training_flags(table, &args_);
    table->list_only({"model", "tokenizer", "max_length", "config", "deepspeed",
                      "per_device_train_batch_size", "gradient_accumulation_steps", "global_batch_size",
                      "dtype", "gradient_checkpointing", "merge_micro_batches", "pack_weights", "num_threads",
                      "measure_peak", "zero_stage", "gather_schedule", "grad_accum_dtype"});
    table->begin_section("Plan");
    table
        ->add("preset", &preset_,
              fmt::format("Named shape to use instead of a model: {}.", fmt::join(preset_names(), ", ")))
        .value_name = "NAME";
    limit_flag(table->add("vocab_size", &vocab_size_,
                          "Vocabulary size for presets that leave it open: 15m, 60m and 160m."),
               1, int64_t{1} << 31);
    limit_flag(table->add("nnodes", &num_nodes_, "Number of nodes."), 1, kMaxNodes);
    limit_flag(table->add("nproc_per_node", &local_world_size_, "Ranks on each node."), 1, kMaxLocalRanks);
    table->add_size("memory", &memory_, "64GiB",
                    "Memory of a node, such as 64GiB. Defaults to this machine's memory, or to its cgroup "
                    "limit if that is lower.");
    table->add("network_gbps", &network_gbps_,
               "Network speed of a node in each direction, in 10^9 bits per second.");
    table->add("tflops", &tflops_,
               "Arithmetic peak of a node in TFLOPS. By default this machine's peak is measured, unless "
               "measure_peak is false, in which case no compute time is shown.");
    table->add("mfu", &mfu_,
               "Share of the peak that the model's own operations reach, above 0 and at most 1.");
    table->add("json", &json_, "Print a JSON object.");
  }

  void complete_flags(FlagTable* table) override {
    if (!args_.config.empty()) apply_config_file(args_.config, table);
  }

  bool reads_weights() const override { return false; }
  void run(FlagTable* table) override {
    set_log_level(args_.lowest_log_level());
    check_above_zero("network_gbps", network_gbps_);
    if (tflops_) check_above_zero("tflops", *tflops_);
    if (!(mfu_ > 0 && mfu_ <= 1)) {
      fail(ExitCode::kUsage, "--mfu: expected a number above 0 and at most 1, found {}", mfu_);
    }
    const ModelConfig config = model_config();
    resolve_training_arguments(*table, num_nodes_ * local_world_size_, &args_);

    ClusterShape cluster;
    cluster.num_nodes = static_cast<int>(num_nodes_);
    cluster.local_world_size = static_cast<int>(local_world_size_);
    cluster.node_memory_bytes = node_memory();
    cluster.memory_is_of_this_machine = memory_.empty();
    cluster.network_gbps = network_gbps_;
    cluster.mfu = mfu_;
    const int64_t node_threads = threads_for_products();
    cluster.node_tflops = node_tflops(node_threads);
    cluster.tflops_are_of_this_machine = cluster.node_tflops && !tflops_;

    const int64_t num_threads =
        args_.num_threads > 0 ? args_.num_threads : std::max<int64_t>(1, node_threads / local_world_size_);
    ThreadPool pool(num_threads);
    const RunForecast forecast = forecast_run(args_, config, cluster, pool);
    write_output(json_ ? forecast_json(forecast) : forecast_text(forecast));
    flush_output();
    if (!forecast.refusal.empty()) fail(ExitCode::kBadConfig, "{}", forecast.refusal);
  }

 private:
  ModelConfig model_config() const {
    if (args_.model.empty() == preset_.empty()) {
      fail(ExitCode::kUsage, "give either --model DIR (or its config.json) or --preset NAME{}",
           preset_.empty() ? "" : ", not both");
    }
    if (preset_.empty()) return read_model_config(args_.model);
    ModelConfig config = preset_config(preset_);
    if (config.vocab_size == 0) config.vocab_size = vocab_size_;
    return config;
  }

  int64_t node_memory() const {
    if (memory_.empty()) {
      const MemoryInfo info = memory_info();
      return std::min(info.total_bytes, info.cgroup_limit_bytes.value_or(info.total_bytes));
    }
    return parse_bytes(memory_).value();
  }

  std::optional<double> node_tflops(int64_t num_threads) const {
    if (tflops_ || !args_.measure_peak) return tflops_;
    constexpr int kNumMeasurements = 10;  // 70 ms in total; the best counts
    ThreadPool pool(num_threads);
    TrainingPeak peak(pool, args_.training_dtype());
    if (!peak.best()) return std::nullopt;
    while (peak.num_measurements() < kNumMeasurements) peak.measure_again();
    return peak.best_tflops();
  }

  TrainingArguments args_;
  std::string preset_;
  int64_t vocab_size_ = 32000;
  int64_t num_nodes_ = 1;
  int64_t local_world_size_ = 1;
  std::string memory_;
  double network_gbps_ = 25;
  std::optional<double> tflops_;
  double mfu_ = 0.5;
  bool json_ = false;
};

}  // namespace

std::unique_ptr<Command> make_plan_command() { return std::make_unique<PlanCommand>(); }

}  // namespace tessera
