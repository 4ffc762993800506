#include "support/train/saving_run.h"

#include <gtest/gtest.h>

#include <fstream>
#include <set>

#include "io/file.h"
#include "weights/merge_models.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;

const std::set<std::string> kTimes = {
    "eta_s", "time_rows_s", "time_products_s", "time_attention_s", "time_elementwise_s", "time_wait_s",
    "time_disk_s", "disk_read_bytes", "disk_written_bytes", "disk_state_wait_s", "disk_weights_wait_s",
    "disk_inputs_wait_s", "replay_check_s", "time_optimizer_s", "time_other_s", "rank_compute_s",
    "tokens_per_second", "step_time_s", "tflops", "network_time_s", "network_hidden", "checkpoint_step",
    "checkpoint_bytes", "checkpoint_shared_bytes", "checkpoint_write_s", "checkpoint_stall_s",
    "train_runtime", "train_samples_per_second", "train_steps_per_second", "eval_runtime",
    "eval_samples_per_second", "eval_steps_per_second",
    // The first step of a process has its weights from disk.
    "network_sent_bytes", "network_received_bytes"};

nlohmann::json without_times(nlohmann::json object) {
  for (const std::string& name : kTimes) object.erase(name);
  return object;
}

}  // namespace

std::vector<nlohmann::json> metrics_of(const fs::path& output) {
  std::vector<nlohmann::json> lines = read_json_lines(output / "metrics.jsonl");
  for (nlohmann::json& line : lines) line = without_times(line);
  return lines;
}

nlohmann::json history_of(const fs::path& folder) {
  nlohmann::json history = read_json(folder / "trainer_state.json").at("log_history");
  for (nlohmann::json& entry : history) entry = without_times(entry);
  return history;
}

std::map<std::string, std::string> tensor_files(const fs::path& folder) {
  std::map<std::string, std::string> files;
  for (const auto& entry : fs::recursive_directory_iterator(folder)) {
    if (entry.path().extension() != ".safetensors") continue;
    files[fs::relative(entry.path(), folder)] = read_text_file(entry.path());
  }
  return files;
}

RecordingObserver SavingRun::run(const std::function<int(int rank)>& stop_signal,
                                 const std::function<void(const StepMetrics&)>& after_step) const {
  if (ranks.world_size() == 1) {
    tiny_->spec = spec;
    return tiny_->train(
        2, [&] { return stop_signal ? stop_signal(0) : 0; }, after_step);
  }
  return train_ranks(spec, ranks, 1, stop_signal, after_step)[0];
}

void SavingRun::interrupt_at(int64_t step, const std::string& name) {
  const fs::path from = output();
  spec.output_dir = folder() / name;
  create_folder(output());
  for (int64_t i = 1; i <= step; ++i) {
    const std::string checkpoint = fmt::format("checkpoint-{}", i);
    if (fs::exists(from / checkpoint)) {
      fs::copy(from / checkpoint, output() / checkpoint, fs::copy_options::recursive);
    }
  }
  const std::vector<nlohmann::json> lines = read_json_lines(from / "metrics.jsonl");
  std::ofstream out(output() / "metrics.jsonl");
  for (const nlohmann::json& line : lines) {
    if (line.at("step") <= step + 1) out << line.dump() << "\n";
  }
  out << "{\"step\": 3, \"lo";
}

MergedLosses train_and_merge(SavingRun run) {
  run.spec.precision.save_dtype = DType::kF32;
  run.spec.data.eval_dataset = run.spec.data.dataset;
  run.spec.evaluation.strategy = IntervalStrategy::kSteps;
  run.spec.evaluation.steps = 6;
  MergedLosses losses;
  losses.adapted = run.run().evaluations.back().loss;
  SavingRun after = run;
  after.spec.lora.finetuning_type = FinetuningType::kFull;
  after.spec.base.bits.reset();
  after.spec.model.folder = run.folder() / "merged";
  after.spec.output_dir = run.folder() / "after";
  after.spec.evaluation.on_start = true;
  after.spec.batch.max_steps = 1;
  ThreadPool pool(2);
  merge_models({run.spec.model.folder},
               {.weights = {1}, .adapters = {run.output()}, .save_dtype = DType::kF32},
               after.spec.model.folder, pool);
  losses.merged = after.run().evaluations.front().loss;
  return losses;
}

void expect_same_run(const fs::path& found, const fs::path& expected) {
  EXPECT_EQ(read_tensors(found), read_tensors(expected));
  EXPECT_EQ(metrics_of(found), metrics_of(expected));
  EXPECT_EQ(history_of(found), history_of(expected));
  EXPECT_EQ(tensor_files(found / "checkpoint-6"), tensor_files(expected / "checkpoint-6"));
}

void expect_near_losses(const RecordingObserver& found, const RecordingObserver& expected, DType dtype) {
  ASSERT_FALSE(found.steps.empty());
  for (const StepMetrics& step : found.steps) {
    const StepMetrics& same = expected.steps.at(static_cast<size_t>(step.step) - 1);
    EXPECT_NEAR(step.loss, same.loss, (dtype == DType::kF32 ? 1e-5 : 5e-3) * same.loss);
    EXPECT_EQ(step.num_tokens, same.num_tokens);
  }
}

void expect_resumes_alike(const SavingRun& run, const std::vector<int64_t>& steps) {
  for (const int64_t step : steps) {
    SCOPED_TRACE(fmt::format("resumed after step {}", step));
    SavingRun resumed = run;
    resumed.interrupt_at(step, fmt::format("resumed{}", step));
    resumed.spec.resume = parse_resume("auto");
    const RecordingObserver seen = resumed.run();
    EXPECT_EQ(seen.resumed_step, step);
    EXPECT_EQ(seen.differences, "");
    expect_same_run(resumed.output(), run.output());
  }
}

}  // namespace tessera
