// Whole runs against PyTorch: loss, gradient norm and learning rate of every step, and the weights at the
// end.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>

#include "support/train/from_word.h"
#include "support/train/train_test_support.h"
#include "test_paths.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;

class GoldenTraining : public testing::TestWithParam<std::string> {
 protected:
  void use_case(const fs::path& folder, const fs::path& expected) {
    case_folder_ = folder;
    expected_ = read_tensors(expected / "expected.safetensors");
  }

  RunSettings arguments(const std::string& dtype) const {
    const nlohmann::json parameters = read_json(case_folder_ / "case.json");
    RunSettings spec;
    spec.model.folder = case_folder_;
    spec.data.dataset = {case_folder_ / "batches.safetensors"};
    spec.data.cache_dir = folder_ / "cache";
    spec.output_dir = folder_ / "out";
    spec.precision.dtype = from_word(dtype);
    spec.machine.device = test_device();
    spec.precision.save_dtype = DType::kF32;
    spec.data.shuffle = false;
    spec.schedule.learning_rate = parameters.at("learning_rate");
    spec.optimizer.beta1 = parameters.at("betas")[0];
    spec.optimizer.beta2 = parameters.at("betas")[1];
    spec.optimizer.epsilon = parameters.at("eps");
    spec.optimizer.weight_decay = parameters.at("weight_decay");
    spec.clipping.max_norm = parameters.at("max_grad_norm");
    spec.schedule.warmup_steps = parameters.at("warmup_steps");
    spec.batch.max_steps = parameters.at("steps");
    spec.batch.accumulation_steps = parameters.at("accum");
    spec.batch.rows_per_device = parameters.at("batch");
    return spec;
  }

  RecordingObserver train(const RunSpec& spec) const {
    ThreadPool pool(2);
    RecordingObserver observer;
    Trainer trainer(spec, pool, observer);
    trainer.run();
    EXPECT_EQ(std::ssize(observer.steps), std::ssize(expected_.at("loss")));
    return observer;
  }

  void expect_losses(const RecordingObserver& run, double bound) const {
    for (size_t i = 0; i < run.steps.size(); ++i) {
      EXPECT_NEAR(run.steps[i].loss, expected_.at("loss")[i], bound) << "step " << i + 1;
    }
  }

  void expect_curves(const RecordingObserver& run) const {
    expect_losses(run, 2e-4);
    for (size_t i = 0; i < run.steps.size(); ++i) {
      const double grad_norm = expected_.at("grad_norm")[i];
      const double learning_rate = expected_.at("lr")[i];
      EXPECT_NEAR(run.steps[i].grad_norm, grad_norm, 1e-3 * grad_norm) << "step " << i + 1;
      EXPECT_NEAR(run.steps[i].learning_rate, learning_rate, 1e-6 * learning_rate) << "step " << i + 1;
    }
  }
  // The trained tensors in a file of output_dir.
  void expect_weights(const std::string& file) const {
    const auto found = read_tensors(folder_ / "out" / file);
    int64_t num_compared = 0;
    for (const auto& [name, expected] : expected_) {
      if (!name.starts_with("final.")) continue;
      const std::string parameter = name.substr(6);
      ASSERT_TRUE(found.contains(parameter)) << parameter;
      EXPECT_LT(relative_error(found.at(parameter), expected), 1e-3) << parameter;
      ++num_compared;
    }
    EXPECT_EQ(num_compared, std::ssize(found));
  }

  fs::path case_folder_;
  std::map<std::string, std::vector<float>> expected_;
  TestFolder folder_;
};

class GoldenRun : public GoldenTraining {
 protected:
  void SetUp() override {
    if (GetParam() == kAbsent) GTEST_SKIP() << "no further reference cases under " << shared_folder();
    use_case(reference_case(GetParam()), reference_case(GetParam()));
  }
};

TEST_P(GoldenRun, Float32FollowsPyTorch) {
  expect_curves(train(arguments("float32")));
  expect_weights("model.safetensors");
}

// Adapters in folders inside their models' folders; the expected values follow PEFT's formulas.
class GoldenLora : public GoldenTraining {};

TEST_P(GoldenLora, Float32FollowsPyTorch) {
  const fs::path adapter = reference_case(GetParam());
  use_case(adapter.parent_path(), adapter);
  RunSettings spec = arguments("float32");
  spec.lora.finetuning_type = FinetuningType::kLora;
  spec.lora.adapter = adapter;
  expect_curves(train(spec));
  expect_weights("adapter_model.safetensors");
}

INSTANTIATE_TEST_SUITE_P(Adapters, GoldenLora,
                         testing::Values("llama-wide-heads/lora", "llama-small-tied-rope3/rslora"),
                         [](const auto& test) { return std::to_string(test.index); });

TEST_P(GoldenRun, GradientCheckpointingChangesNothing) {
  RunSettings spec = arguments("float32");
  const RecordingObserver plain = train(spec);
  spec.placement.gradient_checkpointing = true;
  const RecordingObserver checkpointing = train(spec);
  for (size_t i = 0; i < plain.steps.size(); ++i) {
    EXPECT_EQ(plain.steps[i].loss, checkpointing.steps[i].loss) << "step " << i + 1;
    EXPECT_EQ(plain.steps[i].grad_norm, checkpointing.steps[i].grad_norm) << "step " << i + 1;
  }
}

TEST_P(GoldenRun, Bfloat16StaysClose) { expect_losses(train(arguments("bfloat16")), 0.03); }

INSTANTIATE_TEST_SUITE_P(Cases, GoldenRun, testing::ValuesIn(reference_case_names()), [](const auto& test) {
  std::string name = test.param;
  std::replace_if(
      name.begin(), name.end(), [](unsigned char c) { return !std::isalnum(c); }, '_');
  return name;
});

}  // namespace
}  // namespace tessera
