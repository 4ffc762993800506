#include "bench/plan/plan_bench.h"

#include <algorithm>
#include <cmath>
#include <fstream>
#include <numeric>
#include <utility>

#include "base/error.h"
#include "base/median.h"
#include "base/rng.h"
#include "bench/surroundings.h"
#include "formats/json.h"
#include "formats/safetensors/safetensors.h"
#include "io/disk_rate.h"
#include "io/file.h"
#include "model/families/families.h"
#include "ops/cpu_ops.h"
#include "plan/run_planner.h"
#include "settings/derived.h"
#include "settings/run_settings.h"
#include "weights/model_folder.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;

// The first steps touch pages and compile kernels.
constexpr int64_t kWarmUpSteps = 2;

using Settings = std::vector<std::pair<std::string, std::string>>;

Settings settings_of(const PlanCase& run) {
  Settings settings = {{"max_length", fmt::format("{}", run.max_length)},
                       {"per_device_train_batch_size", fmt::format("{}", run.micro_batch)},
                       {"gradient_accumulation_steps", fmt::format("{}", run.gradient_accumulation_steps)},
                       {"gradient_checkpointing", run.gradient_checkpointing ? "true" : "false"}};
  settings.insert(settings.end(), run.settings.begin(), run.settings.end());
  return settings;
}

void write_model(const fs::path& folder, const ModelConfig& config) {
  const WeightSource source = [&](int64_t begin, std::span<float> values) {
    for (size_t i = 0; i < values.size(); ++i) {
      const uint64_t mixed = ((static_cast<uint64_t>(begin) + i) * 0x9E3779B97F4A7C15u) >> 57;
      values[i] = (static_cast<float>(mixed) - 63.5f) / 640;
    }
  };
  export_model_folder(folder, config, parameter_layout(config), source, {});
}

void write_rows(const fs::path& file, int64_t num_rows, int64_t length, int64_t vocab_size) {
  const CounterRng rng(1, 1);
  std::vector<int32_t> ids(static_cast<size_t>(num_rows * length));
  for (size_t i = 0; i < ids.size(); ++i) {
    ids[i] = static_cast<int32_t>(rng.uniform(i) * static_cast<double>(vocab_size));
  }
  const ConstTensorView view(ids.data(), DType::kI32, {num_rows, length});
  write_safetensors(file, {make_item("input_ids", {num_rows, length}, view, DType::kI32)});
}

// The planner's prediction of a run on this machine.
struct Planned {
  StepInputs inputs;
  int64_t node_bytes = 0;
  ModelConfig config;  // with adapters, if the form has them
  OptimizerForm optimizer;
};

Planned plan_of(const PlanCase& run, const PlanBenchOptions& options) {
  RunSettings spec;
  FlagTable table;
  declare_training_flags(&table, &spec);
  for (const auto& [name, value] : settings_of(run)) table.set(*table.find(name), {value}, "benchmark");
  spec = read_run_spec(table, spec, run.num_ranks);
  const int64_t num_threads = std::max<int64_t>(1, options.num_threads / run.num_ranks);
  ThreadPool pool(num_threads);
  const std::unique_ptr<Ops> ops = make_cpu_ops(pool);
  ModelConfig config = run.config;
  config.lora = lora_config_of(spec.lora, spec.model, config);
  const std::unique_ptr<TrainableModel> model = make_model(config, spec.precision.dtype, *ops);
  const BatchPlanOptions batch = spec.batch_options(run.num_ranks);
  const RunPlanner planner(spec, *model, batch, uniform_rows(run.max_length, micro_batch_rows(batch)));
  MachineResources machine;
  machine.local_world_size = run.num_ranks;
  machine.num_threads = num_threads;
  // Memory of the program's code is shared by the processes that run it: ranks, their agent, this one.
  const int num_processes = run.num_ranks + (run.num_ranks > 1 ? 2 : 1);
  machine.baseline_bytes = options.baseline.anonymous_bytes + options.baseline.file_bytes / num_processes;
  machine.free_bytes = memory_info().free_for_process_bytes;
  const MemoryRequest request = planner.choose_memory(machine);
  if (const std::string refusal = planner.refusal(request, machine); !refusal.empty())
    fail(ExitCode::kBadConfig, "{}", refusal);
  RunPlan plan;
  planner.fill_memory(request, machine, &plan);
  return {step_inputs(request, run.max_length, micro_batch_rows(batch), spec.batch.accumulation_steps,
                      planner.micro_batches_per_pass(), num_threads),
          plan.memory.step_memory().node_bytes(), config, spec.optimizer.form};
}

// Part by part.
StepTime combined(const std::vector<StepTime>& times, double (*combine)(std::vector<double>)) {
  StepTime result;
  for (double StepTime::*part :
       {&StepTime::products_s, &StepTime::attention_s, &StepTime::elementwise_s, &StepTime::optimizer_s,
        &StepTime::local_s, &StepTime::network_s, &StepTime::exposed_s, &StepTime::disk_s,
        &StepTime::disk_wait_s, &StepTime::other_s}) {
    std::vector<double> values;
    for (const StepTime& time : times) values.push_back(time.*part);
    result.*part = combine(std::move(values));
  }
  return result;
}

double mean(std::vector<double> values) {
  return std::reduce(values.begin(), values.end()) / static_cast<double>(values.size());
}

struct Measured {
  double step_s = 0;
  StepTime parts;
  int64_t node_bytes = 0;
};

// Trains in processes of its own.
class TrainingRun {
 public:
  TrainingRun(const PlanCase& run, const PlanBenchOptions& options)
      : run_(run), options_(options), folder_(options.folder) {
    write_model(folder_.path() / "model", run.config);
    const int64_t step_rows = run.micro_batch * run.gradient_accumulation_steps * run.num_ranks;
    constexpr int64_t kStepsOfData = 4;
    write_rows(folder_.path() / "rows.safetensors", kStepsOfData * step_rows, run.max_length,
               run.config.vocab_size);
  }

  Measured measure(int64_t num_steps) const {
    const fs::path output = folder_.path() / "out";
    std::string command = fmt::format("'{}'", options_.program.string());
    if (run_.num_ranks > 1) command += fmt::format(" launch --nproc_per_node {}", run_.num_ranks);
    command += fmt::format(
        " train --model '{0}/model' --dataset '{0}/rows.safetensors' --output_dir '{1}' --max_steps {2} "
        "--save_strategy no --measure_peak false --logging_steps {2} --overwrite_output_dir true "
        "--num_threads {3}",
        folder_.path().string(), output.string(), num_steps,
        std::max<int64_t>(1, options_.num_threads / run_.num_ranks));
    for (const auto& [name, value] : settings_of(run_)) command += fmt::format(" --{} {}", name, value);
    run_shell(command);
    Measured measured;
    read_steps(output / "metrics.jsonl", &measured);
    const fs::path memory = output / "memory.json";
    const Json document = parse_json(read_text_file(memory), memory.string());
    const std::string origin = memory.string();
    measured.node_bytes = JsonNode(document, origin)["measured"]["node_bytes"].integer();
    fs::remove_all(output);
    return measured;
  }

 private:
  static void read_steps(const fs::path& metrics, Measured* measured) {
    std::ifstream file(metrics);
    const std::string origin = metrics.string();
    std::vector<double> seconds;
    std::vector<StepTime> parts;
    int64_t number = 0;
    for (std::string line; std::getline(file, line);) {
      if (++number <= kWarmUpSteps) continue;
      const Json document = parse_json(line, origin);
      const JsonNode step(document, origin);
      seconds.push_back(step["step_time_s"].number());
      StepTime time;
      time.products_s = step["time_products_s"].number();
      time.attention_s = step["time_attention_s"].number();
      time.elementwise_s = step["time_elementwise_s"].number();
      time.optimizer_s = step["time_optimizer_s"].number();
      time.local_s = step["time_wait_s"].number();
      time.other_s = seconds.back() - time.step_s();
      parts.push_back(time);
    }
    if (seconds.empty()) fail(ExitCode::kBadData, "{}: expected more than {} steps", origin, kWarmUpSteps);
    measured->step_s = median(seconds);
    measured->parts = combined(parts, median);
  }

  const PlanCase& run_;
  const PlanBenchOptions& options_;
  ScratchFolder folder_;
};

double seconds_by_rates(StepWalks& walks, const StepInputs& inputs, int64_t num_threads,
                        double disk_gb_per_s) {
  ThreadPool pool(num_threads);
  MachineRates rates = measured_rates(pool);
  rates.disk_gb_per_s = disk_gb_per_s;
  RatedCosts op_costs(rates);
  return predict_step(walks, inputs, op_costs).step_s();
}

}  // namespace

PlanLine run_plan_case(const PlanCase& run, const PlanBenchOptions& options) {
  const Planned planned = plan_of(run, options);
  StepWalks walks(planned.config, DType::kBF16);
  MeasuringOptions measuring;
  measuring.optimizer = planned.optimizer;
  if (const auto rate = try_disk_rate(options.folder)) measuring.rates.disk_gb_per_s = rate->gb_per_s();
  MeasuredCosts op_costs(measuring);
  const TrainingRun training(run, options);
  PlanLine line;
  line.run = run;
  line.num_parameters = walks.layout().num_parameters();
  line.num_threads = planned.inputs.num_threads;
  line.inputs = planned.inputs;
  line.predicted_bytes = planned.node_bytes;
  std::vector<StepTime> predictions, parts;
  std::vector<double> predicted, measured, bytes, by_rates;
  for (int64_t round = 0; round < options.rounds; ++round) {
    op_costs.clear();
    const StepTime before = predict_step(walks, planned.inputs, op_costs);
    const auto num_steps = static_cast<int64_t>(std::ceil(options.seconds / before.step_s()));
    const Measured found = training.measure(kWarmUpSteps + std::clamp<int64_t>(num_steps, 3, 200));
    op_costs.clear();
    const StepTime after = predict_step(walks, planned.inputs, op_costs);
    predictions.push_back(combined({before, after}, mean));
    predicted.push_back(predictions.back().step_s());
    measured.push_back(found.step_s);
    parts.push_back(found.parts);
    by_rates.push_back(
        seconds_by_rates(walks, planned.inputs, options.num_threads, measuring.rates.disk_gb_per_s) /
        found.step_s);
    bytes.push_back(static_cast<double>(found.node_bytes));
  }
  line.predicted = combined(predictions, median);
  line.measured = combined(parts, median);
  line.rates_ratio = median(by_rates);
  line.step_s = quartiles(measured);
  line.ratio = quartiles(paired_ratios(predicted, measured));
  line.measured_bytes = static_cast<int64_t>(median(bytes));
  line.notes = op_costs.notes();
  return line;
}

}  // namespace tessera
