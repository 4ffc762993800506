#include "cli/terminal/train_report.h"

#include <algorithm>
#include <utility>

#include "base/log.h"
#include "base/text.h"
#include "forecast/text/plan_text.h"
#include "platform/memory_info.h"

namespace tessera {
namespace {

constexpr size_t kMinPlotPoints = 3;
constexpr int64_t kPlanColumn = 9;  // where the values of the plan begin

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

}  // namespace

TerminalReport::TerminalReport(TerminalOptions options)
    : options_(std::move(options)), bar_(options_.bar && !options_.quiet && error_shows_status()) {}

void TerminalReport::on_progress(const std::string& what, double fraction) {
  if (bar_) status_.show(what, fraction);
}

void TerminalReport::on_loading(double fraction, double bytes_per_second) {
  if (bar_) status_.show("loading weights", fraction, bytes_per_second);
}

void TerminalReport::on_plan(const RunPlan& plan) {
  meter_.set_max_steps(plan.max_steps);
  closing_.num_nodes = plan.memory.num_nodes;
  closing_.num_ranks = plan.memory.num_nodes * plan.memory.local_world_size;
  if (!options_.quiet) print_plan(plan);
}

void TerminalReport::print_plan(const RunPlan& plan) const {
  print("model    {}\n", parameters_text(plan.num_parameters, plan.num_frozen));
  if (closing_.num_ranks > 1) print("ranks    {}\n", ranks_text(plan));
  print("compute  {}", wrap_text(plan.operations, kPlanColumn, terminal_width()).substr(kPlanColumn));
  if (plan.peak) {
    print("peak     {} TFLOPS, {}, {}, measured now\n", format_tflops(plan.peak->tflops),
          plan.peak->instruction_set,
          closing_.num_ranks > 1 ? "all ranks together" : format_count(plan.num_threads, "thread"));
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
        plan.context_size == 1 ? format_count(plan.max_pass_tokens, "token")
                               : fmt::format("{} on {}", format_count(plan.max_pass_tokens, "token"),
                                             count_of(plan.context_size, "rank")));
  print("memory\n{}", indented(memory_table(plan.memory, plan.free_bytes)));
  print("disk     {}\n", disk_text(plan.disk));
  if (plan.memory.num_nodes > 1) {
    print("network  {} sent per node and step{}\n", format_bytes(plan.wire.sent()),
          plan.zero.divides_experts ? ", experts divided among nodes" : "");
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
  if (closing_.num_ranks == 1) return;  // the closing table has the peak
  closing_.node_bytes = measured.node_bytes();
  if (options_.quiet) return;
  print("memory   after the first step\n{}", indented(measured_table(plan, measured)));
  flush_output();
}

void TerminalReport::on_step(const StepMetrics& metrics) {
  if (training_loss_.points.empty()) status_.clear();  // what preparation has shown
  training_loss_.points.push_back({static_cast<double>(metrics.step), metrics.loss});
  meter_.add(metrics);
  since_step_ = Stopwatch();
  if (bar_) {
    status_.show(progress_line(meter_.progress(), terminal_style()));
    return;
  }
  const auto now = std::chrono::steady_clock::now();
  if (metrics.step > 1 && metrics.step < meter_.progress().max_steps && now - last_line_ < kPlainLineInterval)
    return;
  last_line_ = now;
  log_info("{}", plain_progress_line(meter_.progress()));
}

void TerminalReport::on_log(const LogEntry& entry) {
  if (options_.quiet) return;
  print("{}\n", log_line_text(entry));
  flush_output();
}

void TerminalReport::on_evaluation_progress(double fraction) {
  if (!bar_) return;
  RunProgress evaluating = meter_.progress();
  evaluating.activity = fmt::format("eval {:.0f}%", 100 * fraction);
  if (evaluating.eta_s) evaluating.eta_s = std::max(0.0, *evaluating.eta_s - since_step_.seconds());
  status_.show(progress_line(evaluating, terminal_style()));
}

// With several evaluation sets, the plot shows the first.
void TerminalReport::on_evaluation(const std::string& set, const EvalResult& result) {
  if (evaluation_loss_.points.empty() && !set.empty()) {
    shown_set_ = set;
    evaluation_loss_.name += " of " + set;
  }
  if (set != shown_set_) return;
  evaluation_loss_.points.push_back({static_cast<double>(meter_.progress().step), result.loss});
}

void TerminalReport::on_checkpoint(const CheckpointUse& checkpoint) {
  const std::string shared =
      checkpoint.shared_bytes == 0
          ? ""
          : fmt::format("; {} of its {} share the space of the run's files",
                        format_bytes(checkpoint.shared_bytes), format_bytes(checkpoint.bytes));
  log_info("saved {}{}", checkpoint.folder.string(), shared);
}

void TerminalReport::on_checkpoint_failed(const std::filesystem::path& folder, const std::string& message) {
  log_warning("no checkpoint {}, the run continues: {}", folder.string(), message);
}

void TerminalReport::on_finish(const TrainSummary& summary) {
  status_.clear();
  if (options_.quiet) return;
  PlotOptions plot_options;
  plot_options.width = std::min(terminal_width(), kMaxLineColumns) - 1;
  plot_options.utf8 = terminal_is_utf8();
  plot_options.x_name = "step";
  if (training_loss_.points.size() >= kMinPlotPoints)
    print("\n{}\n", plot({training_loss_, evaluation_loss_}, plot_options));
  const MemoryInfo memory = memory_info();
  closing_.memory_limit_bytes = memory.cgroup_limit_bytes.value_or(memory.total_bytes);
  print("{}", closing_table(summary, closing_, std::min(terminal_width(), kMaxLineColumns)));
  if (summary.stop_signal != 0 && !summary.folder.empty()) print("to resume: {}\n", options_.resuming);
  flush_output();
}

}  // namespace tessera
