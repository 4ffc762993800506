#include "report/sinks/mlflow_sink.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/error.h"
#include "base/log.h"
#include "base/text.h"
#include "io/file.h"
#include "platform/cpu.h"
#include "report/sinks/log_values.h"

namespace tessera {
namespace {

using Clock = std::chrono::steady_clock;

constexpr size_t kMaxQueued = 10'000;
constexpr size_t kMaxBatch = 500;
constexpr std::chrono::seconds kFirstPause{1}, kLongestPause{60};
constexpr std::chrono::seconds kEndLimit{5};  // a request that is under way then has a limit of its own

struct Problem {
  bool is_transient;
  std::string what;
};

std::optional<Problem> problem_of(const std::function<void()>& action) {
  try {
    action();
    return std::nullopt;
  } catch (const Error& error) {
    return Problem{error.code() == ExitCode::kTryAgain, error.what()};
  } catch (const std::exception& error) {
    return Problem{false, std::string("MLflow: ") + error.what()};
  }
}

}  // namespace

MlflowSink::MlflowSink(std::unique_ptr<MlflowStore> store, MlflowRun run, std::filesystem::path id_file,
                       std::string tracking_uri)
    : store_(std::move(store)),
      run_(std::move(run)),
      id_file_(std::move(id_file)),
      tracking_uri_(std::move(tracking_uri)) {
  const UnpinnedScope unpinned(spare_cpus());
  thread_ = std::thread([this] { work(); });
}

MlflowSink::~MlflowSink() { end(MlflowStatus::kFailed); }

void MlflowSink::on_step(const StepMetrics& metrics) {
  tokens_per_second_ = metrics.tokens_per_second;
  mfu_ = metrics.mfu;
}

void MlflowSink::on_log(const LogEntry& entry) {
  std::vector<MlflowMetric> metrics;
  const int64_t now_ms = unix_milliseconds();
  const auto add = [&](const std::string& name, double value) {
    metrics.push_back({name, value, now_ms, entry.step});
  };
  for (const auto& [name, value] : entry.values) add(name, number_of(value));
  add("epoch", entry.epoch);
  if (is_training_entry(entry)) {
    add("tokens_per_second", tokens_per_second_);
    if (mfu_) add("mfu", *mfu_);
  }
  const std::lock_guard lock(mutex_);
  for (MlflowMetric& metric : metrics) {
    if (queue_.size() < kMaxQueued) {
      queue_.push_back(std::move(metric));
    } else {
      ++num_dropped_;
    }
  }
  wake_.notify_one();
}

void MlflowSink::on_finish(const TrainSummary& summary) {
  end(summary.stop_signal != 0 ? MlflowStatus::kKilled : MlflowStatus::kFinished);
}

void MlflowSink::end(MlflowStatus status) {
  if (!thread_.joinable()) return;
  {
    const std::lock_guard lock(mutex_);
    ending_ = {status, Clock::now() + kEndLimit};
    wake_.notify_one();
  }
  thread_.join();
  if (num_dropped_ + std::ssize(queue_) > 0)
    log_warning("MLflow: {} could not be stored", count_of(num_dropped_ + std::ssize(queue_), "value"));
}

void MlflowSink::work() {
  bool has_begun = false, has_warned = false;
  std::chrono::seconds pause = kFirstPause;
  std::unique_lock lock(mutex_);
  while (!ending_ || (Clock::now() < ending_->deadline && (!has_begun || !queue_.empty()))) {
    const std::vector<MlflowMetric> batch(
        queue_.begin(), queue_.begin() + static_cast<int64_t>(std::min(queue_.size(), kMaxBatch)));
    const bool is_last_attempt = ending_.has_value();
    lock.unlock();
    const std::optional<Problem> problem = problem_of([&] {
      if (!has_begun) begin();
      has_begun = true;
      if (!batch.empty()) store_->log(batch);
    });
    if (problem && !std::exchange(has_warned, true)) log_warning("{}; training continues", problem->what);
    lock.lock();
    if (problem && problem->is_transient) {
      if (is_last_attempt) return;
      wake_.wait_for(lock, pause, [this] { return ending_.has_value(); });
      pause = std::min(2 * pause, kLongestPause);
      continue;
    }
    if (problem && !has_begun) return;
    if (problem) num_dropped_ += std::ssize(batch);
    queue_.erase(queue_.begin(), queue_.begin() + std::ssize(batch));
    pause = kFirstPause;
    wake_.wait(lock, [this] { return ending_ || !queue_.empty(); });
  }
  if (!has_begun) return;
  lock.unlock();
  const auto problem = problem_of([this] { store_->set_status(ending_->status, unix_milliseconds()); });
  if (problem && !has_warned) log_warning("{}", problem->what);
}

void MlflowSink::begin() {
  const std::string id = store_->begin(run_);
  run_.id = id;
  write_text_file(id_file_, nlohmann::json{{"run_id", id}, {"tracking_uri", tracking_uri_}}.dump() + "\n");
}

}  // namespace tessera
