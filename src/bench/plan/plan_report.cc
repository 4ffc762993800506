// Formats the check of a plan as a table and as JSON.
#include <nlohmann/json.hpp>

#include "base/text.h"
#include "bench/bench_line.h"
#include "bench/plan/plan_bench.h"

namespace tessera {
namespace {

std::string milliseconds(double seconds) {
  const double value = seconds * 1e3;
  return value < 100 ? fmt::format("{:.3g}", value) : fmt::format("{:.0f}", value);
}

// A line of the table.
std::string row(const std::string& name, const char* what, const StepTime& parts, double step_s,
                int64_t bytes) {
  std::string text = fmt::format("{:<12} {:<4}", name, what);
  for (const double seconds : {parts.products_s, parts.attention_s, parts.elementwise_s,
                               parts.optimizer_s + parts.disk_wait_s, parts.local_s, parts.other_s, step_s}) {
    text += fmt::format(" {:>7}", milliseconds(seconds));
  }
  return text + fmt::format(" {:>6.0f}\n", static_cast<double>(bytes) / (1 << 20));
}

nlohmann::ordered_json parts_json(const StepTime& time) {
  return {{"products_s", time.products_s},
          {"attention_s", time.attention_s},
          {"elementwise_s", time.elementwise_s},
          {"optimizer_s", time.optimizer_s},
          {"disk_s", time.disk_s},
          {"disk_wait_s", time.disk_wait_s},
          {"local_s", time.local_s},
          {"other_s", time.other_s}};
}

}  // namespace

std::string plan_table_header() {
  return fmt::format("{:<17} {:>7} {:>7} {:>7} {:>7} {:>7} {:>7} {:>7} {:>6}\n", "ms", "product", "attent.",
                     "elem.", "optim.", "ranks", "other", "step", "MiB");
}

std::string plan_table_row(const PlanLine& line) {
  std::string text =
      row(line.run.name, "plan", line.predicted, line.predicted.step_s(), line.predicted_bytes) +
      row(fmt::format(" {}{}", count_of(line.run.num_ranks, "rank"),
                      line.run.gradient_checkpointing ? ", c" : ""),
          "run", line.measured, line.step_s.median, line.measured_bytes) +
      fmt::format("  plan / run: step {:.2f} ({:.2f}-{:.2f}), by rates {:.2f}, memory {:.3f}\n",
                  line.ratio.median, line.ratio.q1, line.ratio.q3, line.rates_ratio,
                  static_cast<double>(line.predicted_bytes) / static_cast<double>(line.measured_bytes));
  if (!line.run.form.empty()) text += fmt::format("  form: {}\n", line.run.form);
  for (const std::string& note : line.notes) text += fmt::format("  {}\n", note);
  return text;
}

std::string plan_json(const PlanLine& line) {
  const StepTime& time = line.predicted;
  nlohmann::ordered_json json = {{"benchmark", "plan"},
                                 {"preset", line.run.name},
                                 {"layers", line.run.config.num_hidden_layers},
                                 {"vocab_size", line.run.config.vocab_size},
                                 {"num_parameters", line.num_parameters},
                                 {"num_ranks", line.run.num_ranks},
                                 {"num_threads_per_rank", line.num_threads},
                                 {"max_length", line.run.max_length},
                                 {"micro_batch", line.run.micro_batch},
                                 {"gradient_accumulation_steps", line.run.gradient_accumulation_steps},
                                 {"num_passes", line.inputs.num_passes},
                                 {"pass_rows", line.inputs.pass_rows},
                                 {"gradient_checkpointing", line.run.gradient_checkpointing},
                                 {"form", line.run.form},
                                 {"predicted_step_s", time.step_s()},
                                 {"predicted", parts_json(time)},
                                 {"predicted_node_bytes", line.predicted_bytes},
                                 {"measured_step_s", to_json(line.step_s)},
                                 {"measured", parts_json(line.measured)},
                                 {"measured_node_bytes", line.measured_bytes},
                                 {"ratio", to_json(line.ratio)},
                                 {"rates_ratio", line.rates_ratio},
                                 {"notes", line.notes}};
  json.update(machine_json(line.num_threads * line.run.num_ranks));
  return json.dump() + "\n";
}

}  // namespace tessera
