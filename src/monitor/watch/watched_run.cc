#include "monitor/watch/watched_run.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/text.h"
#include "monitor/records/run_records.h"
#include "report/trainer_state.h"

namespace tessera {
namespace {

using OrderedJson = nlohmann::ordered_json;

// Without a step for so long, and for so many times the time of a step, a run is stale.
constexpr double kStaleSeconds = 60, kStaleSteps = 10;
constexpr int64_t kMaxText = 1000;

double number_or(const OrderedJson& record, const char* name, double otherwise = 0) {
  return number_in(record, name).value_or(otherwise);
}

int64_t count_in(const OrderedJson& record, const char* name) {
  constexpr double kMaxCount = 1e18;
  const double count = number_or(record, name);
  return count > 0 && count < kMaxCount ? static_cast<int64_t>(count) : 0;
}

// Without control characters, which a terminal would obey.
std::string text_in(const OrderedJson& record, const char* name) {
  const auto found = record.find(name);
  if (found == record.end() || !found->is_string()) return "";
  return printable(found->get_ref<const std::string&>(), kMaxText);
}

// The line that Hugging Face prints for an entry of log_history.
std::string entry_text(const OrderedJson& event) {
  LogEntry entry;
  entry.epoch = number_or(event, "epoch");
  entry.step = count_in(event, "step");
  for (const auto& [name, value] : event.items()) {
    if (name == "time" || name == "step" || name == "epoch" || !value.is_number()) continue;
    if (value.is_number_integer()) {
      entry.values.emplace_back(printable(name), value.get<int64_t>());
    } else {
      entry.values.emplace_back(printable(name), value.get<double>());
    }
  }
  return log_line_text(entry);
}

std::string start_text(const OrderedJson& start) {
  const int64_t num_ranks = count_in(start, "world_size"), num_nodes = count_in(start, "num_nodes");
  return fmt::format("started on {}: {}, {} on {}, {}", text_in(start, "host"),
                     format_count(count_in(start, "num_parameters"), "parameter"),
                     format_count(num_ranks, "rank"), format_count(num_nodes, "node"),
                     format_count(count_in(start, "max_steps"), "step"));
}

std::string resume_text(const OrderedJson& event) {
  const std::string folder = text_in(event, "folder");
  return fmt::format("resumed from {} after step {}",
                     folder.empty() ? "memory of " + text_in(event, "nodes") : folder,
                     format_count(count_in(event, "step")));
}

// What `finish` of events.jsonl tells.
TrainSummary summary_of(const OrderedJson& finish) {
  TrainSummary summary;
  summary.num_steps = count_in(finish, "step");
  summary.train_loss = number_or(finish, "train_loss");
  summary.runtime_s = number_or(finish, "runtime_s");
  summary.num_tokens = count_in(finish, "num_tokens");
  summary.tokens_per_second = number_or(finish, "tokens_per_second");
  summary.tflops = number_or(finish, "tflops");
  summary.mfu = number_in(finish, "mfu");
  summary.peak = {number_or(finish, "peak_tflops"), count_in(finish, "num_peak_measurements")};
  summary.peak_resident_bytes = count_in(finish, "peak_resident_bytes");
  summary.stop_signal = static_cast<int>(number_or(finish, "stop_signal"));
  summary.folder = text_in(finish, "folder");
  summary.hint = text_in(finish, "hint");
  if (const auto loss = number_in(finish, "best_eval_loss"))
    summary.best_evaluation = {count_in(finish, "best_eval_step"), *loss, text_in(finish, "best_eval_set")};
  if (const auto disk = finish.find("disk"); disk != finish.end() && disk->is_object()) {
    summary.disk = DiskSummary{.step = {.read_bytes = count_in(*disk, "step_read_bytes"),
                                        .written_bytes = count_in(*disk, "step_written_bytes"),
                                        .state_wait_s = number_or(*disk, "step_wait_s")},
                               .rate = {}};
    if (const auto read = number_in(*disk, "read_bytes_per_s")) {
      summary.disk->rate = DiskRate{*read, number_or(*disk, "written_bytes_per_s")};
    }
  }
  const auto found = finish.find("times");
  if (found == finish.end() || !found->is_object()) {
    summary.times.total_s = summary.runtime_s;
    return summary;
  }
  for (const auto& [name, seconds] : kRunTimes) summary.times.*seconds = number_or(*found, name);
  for (const auto& [name, seconds] : kStepTimes) summary.times.steps.*seconds = number_or(*found, name);
  summary.times.num_steps = count_in(*found, "num_steps");
  summary.times.num_evaluations = count_in(*found, "num_evaluations");
  summary.times.num_checkpoints = count_in(*found, "num_checkpoints");
  return summary;
}

}  // namespace

void WatchedRun::restart() {
  WatchedRun fresh;
  fresh.news_ = std::move(news_);
  fresh.last_told_ = last_told_;
  *this = std::move(fresh);
}

void WatchedRun::add(const OrderedJson& record) {
  if (!record.is_object()) return;
  const auto event = record.find("event");
  if (event != record.end() && event->is_string()) {
    add_event(event->get<std::string>(), record);
  } else if (count_in(record, "step") > 0) {
    add_step(record);
  }
}

void WatchedRun::add_step(const OrderedJson& line) {
  StepMetrics step;
  step.step = count_in(line, "step");
  step.loss = number_or(line, "loss", std::nan(""));
  step.learning_rate = number_or(line, "learning_rate");
  step.tokens_per_second = number_or(line, "tokens_per_second");
  step.tflops = number_or(line, "tflops");
  step.skipped = line.contains("skipped");
  if (const auto peak = number_in(line, "peak_tflops")) step.peak = BestPeak{*peak, 1};
  step.eta_s = number_in(line, "eta_s");
  meter_.add(step);
  step_time_s_ = number_or(line, "step_time_s");
}

void WatchedRun::add_event(const std::string& name, const OrderedJson& event) {
  if (name == "start") {
    has_started_ = true;
    finish_.reset();
    meter_.set_max_steps(count_in(event, "max_steps"));
    num_ranks_ = static_cast<int>(std::max<int64_t>(1, count_in(event, "world_size")));
    num_nodes_ = static_cast<int>(std::max<int64_t>(1, count_in(event, "num_nodes")));
    tell(event, start_text(event));
  } else if (name == "resume") {
    tell(event, resume_text(event));
  } else if (name == "log") {
    tell(event, entry_text(event));
  } else if (name == "evaluation") {
    evaluation_ = event;
    tell(event, entry_text(event));
  } else if (name == "checkpoint") {
    checkpoint_ = event;
    tell(event, fmt::format("saved {} ({} in {:.1f} s)", text_in(event, "folder"),
                            format_bytes(count_in(event, "bytes")), number_or(event, "write_s")));
  } else if (name == "checkpoint_failed") {
    tell(event, fmt::format("no checkpoint {}: {}", text_in(event, "folder"), text_in(event, "message")));
  } else if (name == "warning" || name == "error") {
    tell(event, name + ": " + text_in(event, "message"));
  } else if (name == "finish") {
    finish_ = event;
  }
}

void WatchedRun::tell(const OrderedJson& event, std::string line) {
  const double time = number_or(event, "time");
  if (time > 0 && time <= last_told_) return;  // told before a restart
  last_told_ = std::max(last_told_, time);
  news_.push_back(std::move(line));
}

std::vector<std::string> WatchedRun::take_news() { return std::exchange(news_, {}); }

bool WatchedRun::is_stale(double age_s) const {
  return !has_finished() && meter_.progress().step > 0 &&
         age_s > std::max(kStaleSeconds, kStaleSteps * step_time_s_);
}

RunProgress WatchedRun::progress(double age_s) const {
  RunProgress progress = meter_.progress();
  if (is_stale(age_s)) {
    progress.activity = fmt::format("last step {} ago", format_eta(age_s));
    progress.eta_s.reset();
  } else if (progress.eta_s) {
    progress.eta_s = std::max(0.0, *progress.eta_s - age_s);
  }
  return progress;
}

std::optional<TrainSummary> WatchedRun::summary() const {
  return finish_ ? std::optional(summary_of(*finish_)) : std::nullopt;
}

OrderedJson WatchedRun::json(double age_s) const {
  const RunProgress now = progress(age_s);
  OrderedJson json = {{"state", has_finished()    ? "finished"
                                : !has_begun()    ? "waiting"
                                : is_stale(age_s) ? "stale"
                                                  : "running"},
                      {"step", now.step},
                      {"max_steps", now.max_steps}};
  if (now.step > 0) {
    json.update({{"last_step_age_s", age_s},
                 {"loss", now.loss},
                 {"learning_rate", now.learning_rate},
                 {"tokens_per_second", now.tokens_per_second},
                 {"tflops", now.tflops}});
    if (now.loss_change) json["loss_change"] = *now.loss_change;
    if (now.mfu) json["mfu"] = *now.mfu;
    if (now.eta_s) json["eta_s"] = *now.eta_s;
  }
  if (evaluation_) json["evaluation"] = *evaluation_;
  if (checkpoint_) json["checkpoint"] = *checkpoint_;
  if (finish_) json["finish"] = *finish_;
  return json;
}

}  // namespace tessera
