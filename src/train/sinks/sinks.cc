#include "train/sinks/sinks.h"

#include "train/sinks/deepspeed_monitors.h"
#include "train/sinks/tensorboard_sink.h"

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

}  // namespace

std::vector<std::unique_ptr<TrainObserver>> make_sinks(const SinkContext& context,
                                                       const Environment& environment) {
  const TrainingArguments& args = context.args;
  const std::filesystem::path output_dir = args.output_dir;
  std::optional<int64_t> resumed_samples;
  if (context.resumed_step) resumed_samples = *context.resumed_step * context.step_rows;

  std::vector<std::unique_ptr<TrainObserver>> sinks;
  const auto add_monitor = [&](DeepSpeedMonitor::Write write) {
    sinks.push_back(std::make_unique<DeepSpeedMonitor>(context.step_rows, std::move(write)));
  };
  if (args.reports_to("tensorboard")) {
    const std::string variable = environment("TENSORBOARD_LOGGING_DIR").value_or("");
    sinks.push_back(std::make_unique<TensorBoardSink>(
        tensorboard_folder(args.logging_dir, variable, output_dir, context.resumed_step.has_value()),
        context.resumed_step, training_arguments_json(args), context.model_config));
  }
  if (args.monitor_tensorboard_dir) add_monitor(event_writer(*args.monitor_tensorboard_dir, resumed_samples));
  if (args.monitor_csv_dir || args.reports_to("csv"))
    add_monitor(
        csv_writer(args.monitor_csv_dir.value_or((output_dir / "csv_monitor").string()), resumed_samples));
  return sinks;
}

}  // namespace tessera
