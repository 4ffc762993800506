// Formats the check of a plan as a table and as JSON.
#include <nlohmann/json.hpp>

#include "base/text.h"
#include "bench/machine_json.h"
#include "bench/plan/plan_bench.h"

namespace tessera {
namespace {

// Milliseconds, part by part.
std::string parts_text(const StepTime& time) {
  std::string text;
  for (const double seconds : {time.products_s, time.attention_s, time.elementwise_s, time.optimizer_s,
                               time.local_s, time.other_s}) {
    text += fmt::format(" {:>8.4g}", seconds * 1e3);
  }
  return text;
}

nlohmann::ordered_json parts_json(const StepTime& time) {
  return {{"products_s", time.products_s},
          {"attention_s", time.attention_s},
          {"elementwise_s", time.elementwise_s},
          {"optimizer_s", time.optimizer_s},
          {"local_s", time.local_s},
          {"other_s", time.other_s}};
}

}  // namespace

std::string plan_table_header() {
  return fmt::format("{:<11} {:>9} {:>9} {:>8} {:>8} {:>8} {:>8} {:>8} {:>8} {:>8}\n", "ms, MiB", "",
                     "products", "attent.", "elemwise", "optim.", "ranks", "other", "step", "memory");
}

std::string plan_table_row(const PlanLine& line) {
  constexpr double kMiB = 1024 * 1024;
  const auto predicted_bytes = static_cast<double>(line.predicted_bytes);
  const auto measured_bytes = static_cast<double>(line.measured_bytes);
  const auto row = [](const std::string& name, const char* what, const StepTime& parts, double step_s,
                      double bytes) {
    return fmt::format("{:<11} {:>9} {} {:>8.4g} {:>8.0f}\n", name, what, parts_text(parts), step_s * 1e3,
                       bytes / kMiB);
  };
  std::string text =
      row(line.run.name, "predicted", line.predicted, line.predicted.step_s(), predicted_bytes) +
      row(fmt::format(" {}{}", count_of(line.run.num_ranks, "rank"),
                      line.run.gradient_checkpointing ? ", c" : ""),
          "measured", line.measured, line.step_s.median, measured_bytes) +
      fmt::format("{:<11} {:>9} step {:.2f} ({:.2f}-{:.2f}), by rates {:.2f}, memory {:.3f}\n", "", "ratio",
                  line.ratio.median, line.ratio.q1, line.ratio.q3, line.rates_ratio,
                  predicted_bytes / measured_bytes);
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
