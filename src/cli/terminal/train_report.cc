#include "cli/terminal/train_report.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/log.h"
#include "base/text.h"
#include "cli/help_text.h"

namespace tessera {
namespace {

constexpr std::chrono::seconds kLineInterval{10};
constexpr int64_t kMinBarColumns = 5;
constexpr int64_t kMaxBarColumns = 40;
constexpr size_t kMinPlotPoints = 3;
constexpr int64_t kPlanColumn = 9;  // where the values of the plan begin

// Three digits: "6.74", "0.0213".
std::string format_tflops(double tflops) { return fmt::format("{:#.3g}", tflops); }

enum class Speed { kAll, kWithoutTflops, kTokensOnly };

std::string step_text(const BarContents& p, Speed speed) {
  std::string text = fmt::format("{}/{}  loss {:.4f}  {} tokens/s", p.step, p.max_steps, p.loss,
                                 format_count(std::llround(p.tokens_per_second)));
  if (speed == Speed::kAll) text += fmt::format("  {} TFLOPS", format_tflops(p.tflops));
  if (speed != Speed::kTokensOnly && p.mfu) text += fmt::format("  MFU {:.2f}", *p.mfu);
  return text + "  ETA " + (p.eta_s ? format_duration(*p.eta_s) : "--:--");
}

// "4 on one node, 8 threads each; ZeRO stage 2", "8 on 4 nodes, ...; ZeRO stage 3, gathered per layer".
std::string ranks_text(const RunPlan& plan) {
  const int num_nodes = plan.memory.num_nodes;
  const std::string nodes = num_nodes == 1 ? "one node" : format_count(num_nodes, "node");
  std::string text = fmt::format("{} on {}, {} each; ZeRO stage {}", num_nodes * plan.memory.local_world_size,
                                 nodes, format_count(plan.num_threads, "thread"), plan.zero.stage);
  if (num_nodes > 1 && plan.zero.stage == 3) {
    text += plan.zero.schedule == GatherSchedule::kPerLayer ? ", gathered per layer" : ", gathered per step";
  }
  return text;
}

std::string indented(const std::string& lines) {
  std::string out;
  for (size_t begin = 0; begin < lines.size();) {
    const size_t end = std::min(lines.find('\n', begin), lines.size() - 1) + 1;
    out += "  " + lines.substr(begin, end - begin);
    begin = end;
  }
  return out;
}

// ", MFU 0.213 of the best peak seen, 1.57 TFLOPS (7 measurements)"; "" without a peak.
std::string mfu_text(const TrainSummary& summary) {
  if (!summary.mfu) return "";
  const int64_t count = summary.peak->num_measurements;
  return fmt::format(", MFU {:.3f} of the best peak seen, {} TFLOPS ({})", *summary.mfu,
                     format_tflops(summary.peak->tflops), format_count(count, "measurement"));
}

}  // namespace

std::string progress_bar(const BarContents& progress, int64_t width, bool utf8) {
  std::string text = step_text(progress, Speed::kAll);
  const auto columns_left = [&] { return width - static_cast<int64_t>(text.size()) - 3; };
  if (columns_left() < kMinBarColumns) text = step_text(progress, Speed::kWithoutTflops);
  const int64_t columns = std::min(columns_left(), kMaxBarColumns);
  if (columns < kMinBarColumns) {
    if (static_cast<int64_t>(text.size()) > width) text = step_text(progress, Speed::kTokensOnly);
    return text.substr(0, static_cast<size_t>(width));
  }
  const double fraction = progress.max_steps > 0
                              ? static_cast<double>(progress.step) / static_cast<double>(progress.max_steps)
                              : 1;
  return fmt::format("[{}] {}", bar_text(fraction, columns, utf8), text);
}

TerminalReport::TerminalReport(bool bar, std::string resuming)
    : bar_(bar && error_shows_status()), resuming_(std::move(resuming)) {}

void TerminalReport::on_progress(const std::string& what, double fraction) {
  if (bar_) status_.show(fmt::format("{}: {:.0f} %", what, 100 * fraction));
}

void TerminalReport::on_loading(double fraction, double bytes_per_second) {
  if (bar_) {
    status_.show(
        fmt::format("loading weights: {:.0f} % {:.1f} GB/s", 100 * fraction, bytes_per_second * 1e-9));
  }
}

void TerminalReport::on_plan(const RunPlan& plan) {
  max_steps_ = plan.max_steps;
  num_nodes_ = plan.memory.num_nodes;
  num_ranks_ = num_nodes_ * plan.memory.local_world_size;
  print("model    {}\n", format_count(plan.num_parameters, "parameter"));
  if (num_ranks_ > 1) print("ranks    {}\n", ranks_text(plan));
  print("compute  {}", wrap_text(plan.operations, kPlanColumn, terminal_width()).substr(kPlanColumn));
  if (plan.peak) {
    print("peak     {} TFLOPS, {}, {}, measured now\n", format_tflops(plan.peak->tflops),
          plan.peak->instruction_set,
          num_ranks_ > 1 ? "all ranks together" : format_count(plan.num_threads, "thread"));
  }
  print("data     {}{}\n",
        plan.num_rows == 0
            ? "tokenized in the background"
            : format_count(plan.num_rows, "row") + ", " + format_count(plan.num_tokens, "token"),
        plan.eval_rows > 0 ? fmt::format("; {} to evaluate on", format_count(plan.eval_rows, "row")) : "");
  print("steps    {}, {} an epoch, {} of warmup\n", format_count(plan.max_steps),
        format_count(plan.steps_per_epoch), format_count(plan.num_warmup_steps));
  print("passes   {} through the model, at most {}\n",
        plan.micro_batches_per_pass == 1
            ? "one micro-batch"
            : fmt::format("{} micro-batches at once", plan.micro_batches_per_pass),
        format_count(plan.max_pass_tokens, "token"));
  print("memory\n{}", indented(memory_table(plan.memory, plan.free_bytes)));
  print("disk     {}\n", disk_text(plan.disk));
  if (plan.memory.num_nodes > 1) {
    print("network  {} sent per node and step\n", format_bytes(plan.wire.sent()));
  }
  flush_output();
}

void TerminalReport::on_resume(const std::filesystem::path& folder, int64_t step,
                               const std::string& differences) {
  log_info("resuming from {} after step {}", folder.string(), format_count(step));
  if (!differences.empty()) log_info("settings changed since then: {}", differences);
}

void TerminalReport::on_resume_from_memory(const std::string& nodes, int64_t step,
                                           const std::string& differences) {
  log_info("resumed from step {} held in memory of {}", format_count(step), nodes);
  if (!differences.empty()) log_info("settings changed since then: {}", differences);
}

void TerminalReport::on_previous_run(const std::filesystem::path& folder) {
  log_info("files of an earlier run were moved to {}", folder.string());
}

void TerminalReport::on_memory(const MemoryPlan& plan, const MeasuredMemory& measured) {
  if (num_ranks_ == 1) return;  // the summary has the peak
  print("memory   after the first step\n{}", indented(measured_table(plan, measured)));
  flush_output();
}

void TerminalReport::on_step(const StepMetrics& metrics) {
  last_step_ = metrics.step;
  training_loss_.points.push_back({static_cast<double>(metrics.step), metrics.loss});
  recent_steps_.add(metrics);
  if (metrics.peak) peak_tflops_ = metrics.peak->tflops;
  show_step(metrics);
}

void TerminalReport::show_step(const StepMetrics& metrics) {
  BarContents progress;
  progress.step = metrics.step;
  progress.max_steps = max_steps_;
  progress.loss = metrics.loss;
  progress.tokens_per_second = recent_steps_.tokens_per_second();
  progress.tflops = recent_steps_.tflops();
  if (peak_tflops_) progress.mfu = progress.tflops / *peak_tflops_;
  progress.eta_s = recent_steps_.seconds_for(max_steps_ - metrics.step);
  if (bar_) {
    status_.show(progress_bar(progress, terminal_width() - 1, terminal_is_utf8()));
    return;
  }
  const auto now = std::chrono::steady_clock::now();
  if (metrics.step > 1 && metrics.step < max_steps_ && now - last_line_ < kLineInterval) return;
  last_line_ = now;
  log_info("step {}", step_text(progress, Speed::kAll));
}

void TerminalReport::on_log(const LogEntry& entry) {
  print("{}\n", log_line_text(entry));
  flush_output();
}

void TerminalReport::on_evaluation_progress(double fraction) {
  if (bar_) status_.show(fmt::format("evaluating: {:.0f} %", 100 * fraction));
}

void TerminalReport::on_evaluation(const EvalResult& result) {
  evaluation_loss_.points.push_back({static_cast<double>(last_step_), result.loss});
}

void TerminalReport::on_checkpoint(const CheckpointUse& checkpoint) {
  log_info("saved {}", checkpoint.folder.string());
}

void TerminalReport::on_checkpoint_failed(const std::filesystem::path& folder, const std::string& message) {
  log_warning("no checkpoint {}, the run continues: {}", folder.string(), message);
}

void TerminalReport::on_finish(const TrainSummary& summary) {
  status_.clear();
  if (training_loss_.points.size() >= kMinPlotPoints) {
    PlotOptions options;
    options.width = std::min<int64_t>(terminal_width() - 1, 100);
    options.utf8 = terminal_is_utf8();
    options.x_name = "step";
    print("\n{}\n", plot({training_loss_, evaluation_loss_}, options));
  }
  print("{}, {} in {}, {} tokens/s; mean loss {:.4f}; peak memory {}{}\n",
        format_count(summary.num_steps, "step"), format_count(summary.num_tokens, "token"),
        format_duration(summary.runtime_s), format_count(std::llround(summary.tokens_per_second)),
        summary.train_loss, format_bytes(summary.peak_resident_bytes), num_ranks_ > 1 ? " in rank 0" : "");
  if (summary.num_steps > 0) {
    print("{} TFLOPS{}\n", format_tflops(summary.tflops), mfu_text(summary));
  }
  if (summary.network) {
    print("network  {} sent per node and step, in {:.3g} s, {:.0f} % of it hidden behind compute\n",
          format_bytes(summary.network->sent_bytes / num_nodes_), summary.network->time_s,
          100 * summary.network->hidden);
  }
  if (summary.stop_signal == 0) {
    print("model: {}\n", summary.folder.string());
  } else if (summary.folder.empty()) {
    print("stopped by a signal; no checkpoint was written\n");
  } else {
    print("stopped by a signal; model: {}\nto resume: {}\n", summary.folder.string(), resuming_);
  }
  flush_output();
}

}  // namespace tessera
