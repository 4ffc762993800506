// Masked language modelling: encoders against Transformers, and masks that follow from the seed alone.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>

#include "expect_error.h"
#include "support/dataset_test_util.h"
#include "support/train/train_test_support.h"
#include "test_paths.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;

fs::path heads_folder() { return shared_folder() / "reference" / "heads"; }

// The cases of masked tokens that are there.
std::vector<std::string> mlm_case_names() {
  std::vector<std::string> names;
  std::error_code error;
  for (const fs::directory_entry& entry : fs::directory_iterator(heads_folder(), error)) {
    const std::string name = entry.path().filename();
    if (name.ends_with("-mlm") && fs::exists(entry.path() / "case.json")) names.push_back(name);
  }
  std::ranges::sort(names);
  if (names.empty()) names.emplace_back(kAbsent);
  return names;
}

class MaskedReference : public testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    if (GetParam() == kAbsent) GTEST_SKIP() << "no reference cases under " << heads_folder();
    case_folder_ = heads_folder() / GetParam();
    expected_ = read_tensors(case_folder_ / "expected.safetensors");
  }

  RunSettings arguments(const Ranks& ranks, const std::string& name) const {
    const nlohmann::json given = read_json(case_folder_ / "case.json");
    RunSettings spec;
    spec.model.folder = case_folder_;
    spec.data.dataset = {case_folder_ / "rows.jsonl"};
    spec.data.cache_dir = folder_ / "cache";
    spec.output_dir = folder_ / name;
    spec.precision.dtype = DType::kF32;
    spec.precision.save_dtype = DType::kF32;
    spec.data.shuffle = false;
    spec.data.sampling_strategy = SamplingStrategy::kSequential;
    spec.schedule.learning_rate = given.at("learning_rate");
    spec.optimizer.beta2 = given.at("adam_beta2");
    spec.optimizer.weight_decay = given.at("weight_decay");
    spec.clipping.max_norm = given.at("max_grad_norm");
    spec.schedule.warmup_steps = given.at("warmup_steps");
    spec.batch.max_steps = given.at("max_steps");
    // The rows of a step are those of one rank; several ranks share them.
    const int64_t rows = given.at("per_device_train_batch_size");
    const int64_t accumulation = given.at("gradient_accumulation_steps");
    spec.batch.rows_per_device = rows;
    spec.batch.accumulation_steps = accumulation;
    if (ranks.world_size() > 1) {
      spec.batch.global_rows = rows * accumulation;
      spec.batch.accumulation_steps = (accumulation + ranks.world_size() - 1) / ranks.world_size();
      spec.sharding.stage = ranks.world_size() == 2 ? 2 : 3;
    }
    return spec;
  }

  void expect_reference(const Ranks& ranks, const std::string& name) const {
    const RunSpec spec = arguments(ranks, name);
    const RecordingObserver run = train_ranks(spec, ranks).at(0);
    ASSERT_EQ(run.steps.size(), expected_.at("loss").size());
    for (size_t i = 0; i < run.steps.size(); ++i) {
      const double grad_norm = expected_.at("grad_norm")[i], learning_rate = expected_.at("lr")[i];
      EXPECT_NEAR(run.steps[i].loss, expected_.at("loss")[i], 2e-4) << name << " step " << i + 1;
      EXPECT_NEAR(run.steps[i].grad_norm, grad_norm, 1e-3 * grad_norm) << name << " step " << i + 1;
      EXPECT_NEAR(run.steps[i].learning_rate, learning_rate, 1e-6 * learning_rate)
          << name << " step " << i + 1;
    }
    const auto found = read_tensors(spec.output_dir);
    int64_t num_compared = 0;
    for (const auto& [tensor, weights] : expected_) {
      if (!tensor.starts_with("final.")) continue;
      // Tied weights are saved once.
      const auto at = found.find(tensor.substr(6));
      if (at == found.end()) continue;
      EXPECT_LT(relative_error(at->second, weights), 1e-3) << name << " " << tensor;
      ++num_compared;
    }
    EXPECT_EQ(num_compared, std::ssize(found)) << "every tensor of the model is compared";
  }

  fs::path case_folder_;
  std::map<std::string, std::vector<float>> expected_;
  TestFolder folder_;
};

TEST_P(MaskedReference, OneRankFollowsTransformers) { expect_reference({1, 1}, "one"); }
TEST_P(MaskedReference, TwoRanksFollowTransformers) { expect_reference({1, 2}, "two"); }
TEST_P(MaskedReference, ThreeRanksFollowTransformers) { expect_reference({3, 1}, "three"); }

INSTANTIATE_TEST_SUITE_P(Cases, MaskedReference, testing::ValuesIn(mlm_case_names()), [](const auto& test) {
  std::string name = test.param;
  std::ranges::replace_if(
      name, [](unsigned char c) { return !std::isalnum(c); }, '_');
  return name;
});

// Trains a BERT of random weights on lines of text.
class MaskedTraining : public ::testing::Test {
 protected:
  MaskedTraining() {
    const ModelConfig config = parse_model_config(
        R"({"architectures": ["BertForMaskedLM"], "model_type": "bert", "vocab_size": 260, "hidden_size": 16,
            "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "pad_token_id": 0,
            "max_position_embeddings": 40, "hidden_dropout_prob": 0, "attention_probs_dropout_prob": 0})",
        "config.json");
    write_test_model(folder_ / "model", config, 0.1f);
    make_byte_tokenizer(folder_ / "model", {.has_mask = true});
    std::string text;
    for (int i = 0; i < 23; ++i) text += "the law number " + std::to_string(i * i * 7919) + "\n";
    folder_.write("text.txt", text);
  }

  RunSettings arguments(const std::string& output) const {
    RunSettings spec;
    spec.model.folder = folder_ / "model";
    spec.data.dataset = {folder_ / "text.txt"};
    spec.data.text_per_line = true;
    spec.data.cache_dir = folder_ / "cache";
    spec.output_dir = folder_ / output;
    spec.precision.dtype = DType::kF32;
    spec.schedule.learning_rate = 1e-2;
    spec.batch.max_steps = 6;
    spec.batch.global_rows = 12;
    spec.batch.rows_per_device = 4;
    spec.batch.accumulation_steps = 3;
    spec.saving.strategy = SaveStrategy::kSteps;
    spec.saving.steps = 2;
    return spec;
  }

  TestFolder folder_;
};

TEST_F(MaskedTraining, RanksAndMicroBatchesDoNotChangeTheMasks) {
  const RecordingObserver one = train_ranks(arguments("one"), {1, 1}).at(0);
  RunSettings spec = arguments("three");
  spec.batch.accumulation_steps = 2;
  spec.batch.rows_per_device = 2;
  spec.sharding.stage = 2;
  const RecordingObserver three = train_ranks(spec, {1, 3}).at(0);
  ASSERT_EQ(one.steps.size(), 6u);
  for (size_t i = 0; i < one.steps.size(); ++i) {
    EXPECT_EQ(three.steps[i].num_target_tokens, one.steps[i].num_target_tokens) << "step " << i + 1;
    EXPECT_GT(one.steps[i].num_target_tokens, 0);
    EXPECT_NEAR(three.steps[i].loss, one.steps[i].loss, 1e-5 * one.steps[i].loss) << "step " << i + 1;
  }
}

TEST_F(MaskedTraining, AResumedRunDrawsTheSameMasks) {
  const RecordingObserver whole = train_ranks(arguments("whole"), {1, 1}).at(0);
  RunSettings spec = arguments("parts");
  EXPECT_THROW(train_ranks(spec, {1, 1}, 1, {},
                           [](const StepMetrics& metrics) {
                             if (metrics.step == 5) throw std::runtime_error("power cut");
                           }),
               std::runtime_error);
  spec.resume = parse_resume("auto");
  const RecordingObserver resumed = train_ranks(spec, {1, 1}).at(0);
  // The checkpoint of step 4 may not have been complete.
  ASSERT_GE(resumed.resumed_step, 2);
  ASSERT_EQ(std::ssize(resumed.steps), 6 - resumed.resumed_step);
  for (const StepMetrics& metrics : resumed.steps) {
    const StepMetrics& expected = whole.steps[static_cast<size_t>(metrics.step - 1)];
    EXPECT_EQ(metrics.loss, expected.loss) << "step " << metrics.step;
    EXPECT_EQ(metrics.grad_norm, expected.grad_norm) << "step " << metrics.step;
    EXPECT_EQ(metrics.num_target_tokens, expected.num_target_tokens) << "step " << metrics.step;
  }
}

TEST_F(MaskedTraining, EvaluationsHaveTheSameMasksEveryTime) {
  RunSettings spec = arguments("out");
  spec.schedule.learning_rate = 0;
  spec.data.eval_dataset = {folder_ / "text.txt"};
  spec.evaluation.strategy = IntervalStrategy::kSteps;
  spec.evaluation.steps = 3;
  const RecordingObserver run = train_ranks(spec, {1, 1}).at(0);
  ASSERT_EQ(run.evaluations.size(), 2u);
  EXPECT_EQ(run.evaluations[0].loss_per_token, run.evaluations[1].loss_per_token);
  EXPECT_EQ(run.evaluations[0].num_targets, run.evaluations[1].num_targets);
}

TEST_F(MaskedTraining, AStepWithoutATargetHasNoLoss) {
  RunSettings spec = arguments("out");
  spec.data.masking.mlm_probability = 0;
  spec.batch.max_steps = 2;
  const RecordingObserver run = train_ranks(spec, {1, 1}).at(0);
  EXPECT_EQ(run.steps[0].loss, 0);
  EXPECT_EQ(run.steps[1].num_target_tokens, 0);
}

}  // namespace
}  // namespace tessera
