#include "report/sinks/sinks.h"

#include <algorithm>
#include <cctype>
#include <map>
#include <nlohmann/json.hpp>
#include <system_error>

#include "io/absolute_path.h"
#include "io/file.h"
#include "report/sinks/deepspeed_monitors.h"
#include "report/sinks/mlflow_sink.h"
#include "report/sinks/tensorboard_sink.h"

namespace tessera {
namespace {

// Writes the events of a DeepSpeedMonitor into an event file.
DeepSpeedMonitor::Write event_writer(const std::string& folder, std::optional<int64_t> resumed_samples) {
  const auto first = resumed_samples ? std::optional(*resumed_samples + 1) : std::nullopt;
  return [file = std::make_shared<EventFile>(folder, first)](const std::string& name, double value,
                                                             int64_t num_samples) {
    file->add_scalar(name, value, num_samples);
    file->flush();
  };
}

DeepSpeedMonitor::Write csv_writer(const std::filesystem::path& folder,
                                   std::optional<int64_t> resumed_samples) {
  return [files = std::make_shared<CsvFolder>(folder, resumed_samples)](const std::string& name, double value,
                                                                        int64_t num_samples) {
    files->write(name, value, num_samples);
  };
}

// The arguments and what the model's configuration has besides, as text; like Hugging Face without values
// that older servers find too long.
std::map<std::string, std::string> mlflow_params(const SinkContext& context) {
  constexpr size_t kMaxValueBytes = 250;
  nlohmann::json values = nlohmann::json::parse(context.model_config);
  values.update(training_arguments(context.spec));
  std::map<std::string, std::string> params;
  for (const auto& [name, value] : values.items()) {
    const std::string text = value.is_string() ? value.get<std::string>() : value.dump();
    const bool is_plain = std::ranges::all_of(
        name, [](unsigned char c) { return std::isalnum(c) != 0 || c == '_' || c == '-'; });
    if (is_plain && !name.empty() && text.size() <= kMaxValueBytes) params[name] = text;
  }
  return params;
}

std::unique_ptr<TrainObserver> make_mlflow_sink(const SinkContext& context, const Environment& environment) {
  const std::filesystem::path output_dir = context.spec.output_dir;
  const std::filesystem::path id_file = output_dir / "mlflow.json";
  const std::string uri = environment("MLFLOW_TRACKING_URI").value_or("");
  MlflowRun run;
  run.id = environment("MLFLOW_RUN_ID").value_or("");
  run.name = context.spec.reporting.run_name;
  if (run.name.empty())
    run.name = absolute_path(output_dir / "").lexically_normal().parent_path().filename().string();
  run.experiment = environment("MLFLOW_EXPERIMENT_NAME").value_or("");
  std::error_code ignored;
  if (run.id.empty() && context.resumed_step && std::filesystem::exists(id_file, ignored)) {
    nlohmann::json earlier =
        nlohmann::json::parse(read_text_file(id_file), nullptr, /*allow_exceptions=*/false);
    if (earlier.is_object() && earlier.value("tracking_uri", nlohmann::json()) == uri &&
        earlier["run_id"].is_string()) {
      run.id = earlier["run_id"];
    }
  }
  if (run.id.empty()) run.params = mlflow_params(context);
  return std::make_unique<MlflowSink>(open_mlflow_store(environment), std::move(run), id_file, uri);
}

}  // namespace

void check_sinks(const ReportingSpec& reporting, const Environment& environment) {
  if (reporting.reports_to(ReportTo::kMlflow)) open_mlflow_store(environment);
}

std::vector<std::unique_ptr<TrainObserver>> make_sinks(const SinkContext& context,
                                                       const Environment& environment) {
  const RunSpec& spec = context.spec;
  const std::filesystem::path output_dir = spec.output_dir;
  std::optional<int64_t> resumed_samples;
  if (context.resumed_step) resumed_samples = *context.resumed_step * context.step_rows;

  std::vector<std::unique_ptr<TrainObserver>> sinks;
  const auto add_monitor = [&](DeepSpeedMonitor::Write write) {
    sinks.push_back(std::make_unique<DeepSpeedMonitor>(context.step_rows, std::move(write)));
  };
  if (spec.reporting.reports_to(ReportTo::kTensorboard)) {
    const std::string variable = environment("TENSORBOARD_LOGGING_DIR").value_or("");
    sinks.push_back(std::make_unique<TensorBoardSink>(
        tensorboard_folder(spec.reporting.logging_dir, variable, output_dir,
                           context.resumed_step.has_value()),
        context.resumed_step, training_arguments_json(spec), context.model_config));
  }
  if (spec.reporting.monitor_tensorboard_dir)
    add_monitor(event_writer(*spec.reporting.monitor_tensorboard_dir, resumed_samples));
  if (spec.reporting.monitor_csv_dir || spec.reporting.reports_to(ReportTo::kCsv))
    add_monitor(csv_writer(spec.reporting.monitor_csv_dir.value_or((output_dir / "csv_monitor").string()),
                           resumed_samples));
  if (spec.reporting.reports_to(ReportTo::kMlflow)) sinks.push_back(make_mlflow_sink(context, environment));
  return sinks;
}

}  // namespace tessera
