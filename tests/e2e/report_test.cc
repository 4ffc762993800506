// --report_to, on the command line and in configuration files.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <nlohmann/json.hpp>
#include <sstream>

#include "e2e/tiny_model.h"
#include "support/event_reader.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using testing::HasSubstr;

std::vector<fs::path> paths_in(const fs::path& folder) {
  std::vector<fs::path> paths;
  for (const auto& entry : fs::directory_iterator(folder)) paths.push_back(entry.path());
  return paths;
}

// By step, the scalars of one tag.
std::map<int64_t, float> scalars(const fs::path& folder, const std::string& tag) {
  std::map<int64_t, float> values;
  for (const fs::path& path : paths_in(folder)) {
    for (const TestEvent& event : read_event_file(path)) {
      if (event.tag == tag) values[event.step] = *event.value;
    }
  }
  return values;
}

std::map<int64_t, float> losses_in_metrics(const fs::path& output, int64_t step_rows) {
  std::map<int64_t, float> values;
  std::istringstream lines(read_file(output / "metrics.jsonl"));
  for (std::string line; std::getline(lines, line);) {
    const json metrics = json::parse(line);
    values[metrics.at("step").get<int64_t>() * step_rows] = metrics.at("loss").get<float>();
  }
  return values;
}

TEST(Reports, AConfigurationFileAndADeepSpeedFileTurnThemOn) {
  const TinyModel tiny;
  const std::string monitors = tiny.folder / "monitors";
  const std::string deepspeed = tiny.folder.write(
      "ds.json", json({{"train_micro_batch_size_per_gpu", "auto"},
                       {"tensorboard", {{"enabled", true}, {"output_path", monitors}, {"job_name", "tb"}}},
                       {"csv_monitor", {{"enabled", true}, {"output_path", monitors}, {"job_name", "csv"}}},
                       {"wandb", {{"enabled", true}}}})
                     .dump());
  const std::string config = tiny.folder.write(
      "run.yaml", "report_to: [tensorboard, mlflow, wandb]\nrun_name: my run\nlogging_dir: " +
                      (tiny.folder / "logs") + "\nlogging_steps: 1\n");
  const ProcessResult result =
      run_well(tiny.train_arguments("out", {"--config", config, "--deepspeed", deepspeed, "--max_steps", "3",
                                            "--per_device_train_batch_size", "4"}),
               {.environment = {"MLFLOW_TRACKING_URI=" + (tiny.folder / "mlruns")}});
  EXPECT_THAT(result.err, HasSubstr("run.yaml:1: report_to wandb has no effect"));
  EXPECT_THAT(result.err, HasSubstr("ds.json: wandb: has no effect: this service is not supported"));

  const fs::path output = tiny.folder / "out";
  const auto losses = losses_in_metrics(output, 1);
  ASSERT_EQ(losses.size(), 3u);
  EXPECT_EQ(scalars(tiny.folder / "logs", "train/loss"), losses);
  EXPECT_EQ(scalars(monitors + "/tb", "Train/Samples/train_loss"), losses_in_metrics(output, 4));
  EXPECT_THAT(read_file(monitors + "/csv/Train_Samples_train_loss.csv"),
              testing::StartsWith("step,train_loss\n4,"));
  EXPECT_FALSE(fs::exists(output / "runs"));
  EXPECT_FALSE(fs::exists(output / "csv_monitor"));
  const std::string run = json::parse(read_file(output / "mlflow.json")).at("run_id");
  const fs::path folder = fs::path(tiny.folder / "mlruns") / "0" / run;
  EXPECT_EQ(read_file(folder / "params/run_name"), "my run");
  EXPECT_THAT(read_file(folder / "metrics/loss"), testing::MatchesRegex("([0-9]+ [0-9.]+ [0-9]\n){3}"));
  EXPECT_THAT(read_file(folder / "meta.yaml"), HasSubstr("\nstatus: 3\n"));
}

TEST(Reports, TheCommandLineNamesThem) {
  const TinyModel tiny;
  run_well(tiny.train_arguments(
               "out", {"--report_to", "tensorboard", "csv", "--max_steps", "2", "--logging_steps", "1"}),
           {.environment = {"TENSORBOARD_LOGGING_DIR=" + (tiny.folder / "tb")}});
  EXPECT_EQ(scalars(tiny.folder / "tb", "train/loss"), losses_in_metrics(tiny.folder / "out", 1));
  EXPECT_TRUE(fs::exists(fs::path(tiny.folder / "out") / "csv_monitor/Train_Samples_lr.csv"));

  const ProcessResult nothing =
      run_well(tiny.train_arguments("none", {"--report_to", "none", "--max_steps", "1"}));
  EXPECT_TRUE(fs::exists(fs::path(tiny.folder / "none") / "metrics.jsonl"));
  EXPECT_FALSE(fs::exists(fs::path(tiny.folder / "none") / "runs"));

  const ProcessResult unknown = run_tessera(tiny.train_arguments("x", {"--report_to", "wandb"}));
  EXPECT_EQ(unknown.exit_code, 64);
  EXPECT_THAT(
      unknown.errors(),
      testing::ElementsAre("error: command line: --report_to wandb is not supported: choose from jsonl, "
                           "tensorboard, csv, mlflow, prometheus, dashboard"));
  const ProcessResult place = run_tessera(tiny.train_arguments("x", {"--report_to", "mlflow"}),
                                          {.environment = {"MLFLOW_TRACKING_URI=databricks"}});
  EXPECT_EQ(place.exit_code, 78);
}

}  // namespace
}  // namespace tessera
