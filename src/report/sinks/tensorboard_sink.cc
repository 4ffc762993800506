#include "report/sinks/tensorboard_sink.h"

#include <fmt/chrono.h>

#include <ctime>
#include <system_error>

#include "platform/system.h"
#include "report/sinks/log_values.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;

// rewrite_logs of transformers/integrations/integration_utils.py.
std::string tag_of(const std::string& name) {
  constexpr std::string_view kEvaluation = "eval_";
  return name.starts_with(kEvaluation) ? "eval/" + name.substr(kEvaluation.size()) : "train/" + name;
}

}  // namespace

TensorBoardSink::TensorBoardSink(const fs::path& folder, std::optional<int64_t> resumed_step,
                                 const std::string& arguments, const std::string& model_config)
    : file_(folder, resumed_step ? std::optional(*resumed_step + 1) : std::nullopt) {
  file_.add_text("args", arguments, 0);
  file_.add_text("model_config", model_config, 0);
  file_.flush();
}

void TensorBoardSink::on_log(const LogEntry& entry) {
  for (const auto& [name, value] : entry.values) file_.add_scalar(tag_of(name), number_of(value), entry.step);
  file_.add_scalar("train/epoch", entry.epoch, entry.step);
  if (is_training_entry(entry)) add_throughput();
  file_.flush();
}

void TensorBoardSink::add_throughput() {
  const auto add = [this](std::string_view tag, double value) {
    file_.add_scalar(tag, value, last_step_.step);
  };
  add("throughput/tokens_per_second", last_step_.tokens_per_second);
  add("throughput/step_time_s", last_step_.step_time_s);
  add("throughput/tflops", last_step_.tflops);
  if (last_step_.mfu) add("throughput/mfu", *last_step_.mfu);
  for (const auto& [name, seconds] : kStepTimes) {
    if (seconds != &StepTimes::disk_s || last_step_.disk)
      add(fmt::format("times/{}", name), last_step_.times.*seconds);
  }
}

fs::path tensorboard_folder(const std::string& logging_dir, const std::string& variable,
                            const fs::path& output_dir, bool is_resumed) {
  if (!logging_dir.empty()) return logging_dir;
  if (!variable.empty()) return variable;
  const fs::path runs = output_dir / "runs";
  if (is_resumed) {
    fs::path newest;
    fs::file_time_type newest_time;
    std::error_code error;
    for (fs::directory_iterator entry(runs, error), end; !error && entry != end; entry.increment(error)) {
      std::error_code ignored;
      const fs::file_time_type time = fs::last_write_time(entry->path(), ignored);
      if (!fs::is_directory(entry->path(), ignored) || (!newest.empty() && time <= newest_time)) continue;
      newest = entry->path();
      newest_time = time;
    }
    if (!newest.empty()) return newest;
  }
  return runs / fmt::format("{:%b%d_%H-%M-%S}_{}", fmt::localtime(std::time(nullptr)), host_name());
}

}  // namespace tessera
