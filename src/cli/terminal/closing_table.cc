#include "cli/terminal/closing_table.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/text.h"
#include "cli/terminal/progress_line.h"
#include "cli/terminal/terminal.h"

namespace tessera {
namespace {

constexpr int64_t kValueColumn = 9;  // as in the plan at the start of the run
constexpr int64_t kNameColumns = 32;

// "speed    0.61 TFLOPS, ...", wrapped.
std::string table_line(const std::string& name, const std::string& text, int64_t width) {
  return fmt::format("{:<{}}", name, kValueColumn) +
         wrap_text(text, kValueColumn, width).substr(static_cast<size_t>(kValueColumn));
}

// A duration, with a decimal below ten seconds: "00:12", "3.4 s".
std::string time_text(double seconds) {
  return seconds < 9.95 ? fmt::format("{:.1f} s", seconds) : format_duration(seconds);
}

class TimeTable {
 public:
  explicit TimeTable(double total_s) : total_s_(total_s) {}

  void add(const std::string& name, double seconds) {
    if (seconds < 0.05 && seconds < 0.005 * total_s_) return;
    text_ += fmt::format("{:<{}}{:>10}{:>6.0f} %\n", name, kNameColumns, time_text(seconds),
                         100 * seconds / total_s_);
  }
  std::string text() const { return text_; }

 private:
  double total_s_;
  std::string text_;
};

std::string with_count(const std::string& name, int64_t count) {
  return count > 0 ? fmt::format("{} ({})", name, format_count(count)) : name;
}

std::string times_text(const RunTimes& times) {
  TimeTable table(std::max(times.total_s, 1e-9));
  const double rest_s = times.total_s - times.startup_s - times.steps_s - times.evaluation_s -
                        times.checkpoint_s - times.snapshot_s - times.model_s;
  table.add("time", times.total_s);
  table.add("  start-up", times.startup_s);
  table.add(with_count("  steps", times.num_steps), times.steps_s);
  table.add("    products", times.steps.products_s);
  table.add("    attention", times.steps.attention_s);
  table.add("    element-wise operations", times.steps.elementwise_s);
  table.add("    optimizer", times.steps.optimizer_s);
  table.add("    waiting for the disk", times.steps.disk_s);
  table.add("    waiting for ranks, network", times.steps.wait_s);
  table.add("    choosing rows", times.steps.rows_s);
  table.add("    other", times.steps.other_s);
  table.add(with_count("  evaluations", times.num_evaluations), times.evaluation_s);
  table.add(with_count("  checkpoints", times.num_checkpoints), times.checkpoint_s);
  table.add("  snapshots in memory", times.snapshot_s);
  table.add("  writing the model", times.model_s);
  table.add("  other", rest_s);
  return table.text();
}

std::string speed_text(const TrainSummary& summary) {
  std::string text = fmt::format("{} TFLOPS", format_tflops(summary.tflops));
  if (!summary.mfu) return text;
  return text + fmt::format(", MFU {:.3f} of the best peak seen, {} TFLOPS ({})", *summary.mfu,
                            format_tflops(summary.peak->tflops),
                            format_count(summary.peak->num_measurements, "measurement"));
}

// Adds up the traffic of all ranks of a node, because they share its disk.
std::string disk_text(const TrainSummary& summary, const ClosingInputs& inputs) {
  const DiskUse& step = summary.disk->step;
  const int64_t num_ranks = std::max(1, inputs.num_ranks / std::max(1, inputs.num_nodes));
  const int64_t read_bytes = num_ranks * step.read_bytes, written_bytes = num_ranks * step.written_bytes;
  std::string text =
      fmt::format("{} read and {} written per step", format_bytes(read_bytes), format_bytes(written_bytes));
  if (const std::optional<DiskRate>& rate = summary.disk->rate) {
    text += fmt::format(", {:.3g} s at the {:.2f} and {:.2f} GB/s measured at the start",
                        rate->seconds_for(read_bytes, written_bytes), rate->read_bytes_per_s * 1e-9,
                        rate->written_bytes_per_s * 1e-9);
  }
  return text + fmt::format("; a step takes {:.3g} s, {:.3g} s of it waiting for the disk",
                            summary.times.steps_s / static_cast<double>(summary.times.num_steps),
                            step.wait_s());
}

std::string memory_text(const TrainSummary& summary, const ClosingInputs& inputs) {
  std::string text = "peak " + format_bytes(summary.peak_resident_bytes);
  if (inputs.num_ranks > 1) text += " in rank 0";
  if (inputs.node_bytes) text += fmt::format(", {} on its node", format_bytes(*inputs.node_bytes));
  return text + (inputs.memory_limit_bytes > 0 ? " of " + format_bytes(inputs.memory_limit_bytes) : "");
}

std::string loss_text(const TrainSummary& summary) {
  std::string text = fmt::format("mean {:.4f}", summary.train_loss);
  if (!summary.best_evaluation) return text;
  const std::string& set = summary.best_evaluation->set;
  return text + fmt::format("; best evaluation{} {:.4f}, after step {}",
                            set.empty() ? "" : " of " + set + ":", summary.best_evaluation->loss,
                            format_count(summary.best_evaluation->step));
}

}  // namespace

std::string closing_table(const TrainSummary& summary, const ClosingInputs& inputs, int64_t width) {
  std::string text = times_text(summary.times);
  text += table_line("tokens",
                     fmt::format("{} in {}, {} tokens/s", format_count(summary.num_tokens),
                                 format_count(summary.num_steps, "step"),
                                 format_count(std::llround(summary.tokens_per_second))),
                     width);
  if (summary.num_steps > 0) text += table_line("speed", speed_text(summary), width);
  if (summary.network) {
    text +=
        table_line("network",
                   fmt::format("{} sent per node and step, in {:.3g} s, {:.0f} % of it hidden behind compute",
                               format_bytes(summary.network->sent_bytes / inputs.num_nodes),
                               summary.network->time_s, 100 * summary.network->hidden),
                   width);
  }
  if (summary.disk && summary.times.num_steps > 0)
    text += table_line("disk", disk_text(summary, inputs), width);
  text += table_line("memory", memory_text(summary, inputs), width);
  text += table_line("loss", loss_text(summary), width);
  if (!summary.hint.empty()) text += table_line("faster", summary.hint, width);
  if (summary.folder.empty()) return text + "model    none: stopped by a signal; no checkpoint was written\n";
  return text + fmt::format("model    {}{}\n", summary.folder.string(),
                            summary.stop_signal == 0 ? "" : ", stopped by a signal");
}

}  // namespace tessera
