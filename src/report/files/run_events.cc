#include "report/files/run_events.h"

#include <nlohmann/json.hpp>

#include "base/clock.h"
#include "platform/system.h"

namespace tessera {
namespace {

using OrderedJson = nlohmann::ordered_json;

// Messages may quote bytes of files that are not UTF-8.
std::string event_line(const char* name, int64_t step, const OrderedJson& fields) {
  OrderedJson event = {{"event", name}, {"time", unix_seconds()}, {"step", step}};
  event.update(fields);
  return event.dump(-1, ' ', /*ensure_ascii=*/false, OrderedJson::error_handler_t::replace);
}

OrderedJson times_json(const RunTimes& times) {
  OrderedJson times_of_run;
  for (const auto& [name, seconds] : kRunTimes) times_of_run[name] = times.*seconds;
  for (const auto& [name, seconds] : kStepTimes) times_of_run[name] = times.steps.*seconds;
  times_of_run["num_steps"] = times.num_steps;
  times_of_run["num_evaluations"] = times.num_evaluations;
  times_of_run["num_checkpoints"] = times.num_checkpoints;
  return times_of_run;
}

OrderedJson disk_json(const DiskSummary& disk) {
  OrderedJson use = {{"step_read_bytes", disk.step.read_bytes},
                     {"step_written_bytes", disk.step.written_bytes},
                     {"step_wait_s", disk.step.wait_s()}};
  if (disk.rate) {
    use["read_bytes_per_s"] = disk.rate->read_bytes_per_s;
    use["written_bytes_per_s"] = disk.rate->written_bytes_per_s;
  }
  return use;
}

}  // namespace

RunEvents::RunEvents(const RunSpec& spec)
    : arguments_json_(training_arguments_json(spec)), num_restarts_(spec.launch.num_restarts) {}

void RunEvents::on_plan(const RunPlan& plan) {
  OrderedJson event = {{"host", host_name()},
                       {"num_nodes", plan.memory.num_nodes},
                       {"world_size", plan.memory.num_nodes * plan.memory.local_world_size},
                       {"num_threads", plan.num_threads},
                       {"operations", plan.operations},
                       {"num_parameters", plan.num_parameters},
                       {"num_rows", plan.num_rows},
                       {"num_tokens", plan.num_tokens},
                       {"eval_rows", plan.eval_rows},
                       {"step_rows", plan.step_rows},
                       {"steps_per_epoch", plan.steps_per_epoch},
                       {"max_steps", plan.max_steps},
                       {"memory", memory_items_json(plan.memory)},
                       {"node_bytes", plan.memory.node_bytes()},
                       {"free_bytes", plan.free_bytes},
                       {"zero_stage", plan.zero.stage},
                       {"restarts", num_restarts_},
                       {"arguments", OrderedJson::parse(arguments_json_)}};
  if (plan.peak) {
    event["peak_tflops"] = plan.peak->tflops;
    event["peak_instruction_set"] = plan.peak->instruction_set;
  }
  write_line(event_line("start", step_, event));
}

void RunEvents::on_resume(const std::filesystem::path& folder, int64_t step, const std::string& differences) {
  step_ = step;
  write_line(event_line("resume", step, {{"folder", folder.string()}, {"differences", differences}}));
}

void RunEvents::on_resume_from_memory(const std::string& nodes, int64_t step,
                                      const std::string& differences) {
  step_ = step;
  write_line(event_line("resume", step, {{"nodes", nodes}, {"differences", differences}}));
}

void RunEvents::on_memory(const MemoryPlan& plan, const MeasuredMemory& measured) {
  write_line(event_line("memory", step_, OrderedJson::parse(memory_json(plan, measured))));
}

void RunEvents::on_log(const LogEntry& entry) {
  bool is_evaluation = false;
  OrderedJson event = {{"epoch", entry.epoch}};
  for (const auto& [name, value] : entry.values) {
    is_evaluation = is_evaluation || name.starts_with("eval_");
    std::visit([&, &key = name](auto number) { event[key] = number; }, value);
  }
  write_line(event_line(is_evaluation ? "evaluation" : "log", entry.step, event));
}

void RunEvents::on_checkpoint(const CheckpointUse& checkpoint) {
  write_line(event_line("checkpoint", checkpoint.step,
                        {{"folder", checkpoint.folder.string()},
                         {"bytes", checkpoint.bytes},
                         {"shared_bytes", checkpoint.shared_bytes},
                         {"write_s", checkpoint.write_s},
                         {"stall_s", checkpoint.stall_s}}));
}

void RunEvents::on_checkpoint_failed(const std::filesystem::path& folder, const std::string& message) {
  write_line(event_line("checkpoint_failed", step_, {{"folder", folder.string()}, {"message", message}}));
}

void RunEvents::on_warning(const std::string& message) {
  write_line(event_line("warning", step_, {{"message", message}}));
}

void RunEvents::on_error(const std::string& message) {
  write_line(event_line("error", step_, {{"message", message}}));
}

void RunEvents::on_finish(const TrainSummary& summary) {
  OrderedJson event = {
      {"stop_signal", summary.stop_signal}, {"epoch", summary.epoch},
      {"train_loss", summary.train_loss},   {"runtime_s", summary.runtime_s},
      {"num_tokens", summary.num_tokens},   {"tokens_per_second", summary.tokens_per_second},
      {"tflops", summary.tflops},           {"peak_resident_bytes", summary.peak_resident_bytes},
      {"folder", summary.folder.string()}};
  if (summary.mfu) event["mfu"] = *summary.mfu;
  if (summary.peak) {
    event["peak_tflops"] = summary.peak->tflops;
    event["num_peak_measurements"] = summary.peak->num_measurements;
  }
  if (summary.best_evaluation) {
    event["best_eval_loss"] = summary.best_evaluation->loss;
    event["best_eval_step"] = summary.best_evaluation->step;
    if (!summary.best_evaluation->set.empty()) event["best_eval_set"] = summary.best_evaluation->set;
  }
  event["times"] = times_json(summary.times);
  if (summary.disk) event["disk"] = disk_json(*summary.disk);
  if (!summary.hint.empty()) event["hint"] = summary.hint;
  write_line(event_line("finish", summary.num_steps, event));
}

}  // namespace tessera
