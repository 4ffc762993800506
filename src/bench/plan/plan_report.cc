// Formats the check of a plan as a table and as JSON.
#include <nlohmann/json.hpp>

#include "base/text.h"
#include "bench/machine_json.h"
#include "bench/plan/plan_bench.h"

namespace tessera {
namespace {

std::string milliseconds(double seconds) { return fmt::format("{:.4g}", seconds * 1e3); }

}  // namespace

std::string plan_table_header() {
  return fmt::format(
      "Step time in ms: predicted as products + attention + element-wise + optimizer + ranks.\n"
      "{:<11} {:>5} {:>4} {:>25} {:>7} {:>7} {:>15} {:>11}\n",
      "model", "ranks", "ckpt", "parts", "predict", "measure", "ratio (q1-q3)", "memory");
}

std::string plan_table_row(const PlanLine& line) {
  const StepTime& time = line.predicted;
  const double memory = static_cast<double>(line.predicted_bytes) / static_cast<double>(line.measured_bytes);
  std::string text =
      fmt::format("{:<11} {:>5} {:>4} {:>25} {:>7} {:>7} {:>15} {:>11}\n", line.run.name, line.run.num_ranks,
                  line.run.gradient_checkpointing ? "yes" : "no",
                  fmt::format("{}+{}+{}+{}+{}", milliseconds(time.products_s), milliseconds(time.attention_s),
                              milliseconds(time.elementwise_s), milliseconds(time.optimizer_s),
                              milliseconds(time.local_s)),
                  milliseconds(time.step_s()), milliseconds(line.step_s.median),
                  fmt::format("{:.2f} ({:.2f}-{:.2f})", line.ratio.median, line.ratio.q1, line.ratio.q3),
                  fmt::format("{:.3f}", memory));
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
                                 {"num_passes", line.facts.num_passes},
                                 {"pass_rows", line.facts.pass_rows},
                                 {"gradient_checkpointing", line.run.gradient_checkpointing},
                                 {"predicted",
                                  {{"step_s", time.step_s()},
                                   {"products_s", time.products_s},
                                   {"attention_s", time.attention_s},
                                   {"elementwise_s", time.elementwise_s},
                                   {"optimizer_s", time.optimizer_s},
                                   {"local_s", time.local_s},
                                   {"exposed_s", time.exposed_s},
                                   {"other_s", time.other_s},
                                   {"node_bytes", line.predicted_bytes}}},
                                 {"measured_step_s", to_json(line.step_s)},
                                 {"measured_node_bytes", line.measured_bytes},
                                 {"ratio", to_json(line.ratio)},
                                 {"notes", line.notes}};
  json.update(machine_json(line.num_threads * line.run.num_ranks));
  return json.dump() + "\n";
}

}  // namespace tessera
