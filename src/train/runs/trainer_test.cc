// The loop of a run: what a step computes, how many there are, when it stops.
#include "train/trainer.h"
#include "support/train/from_word.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <csignal>

#include "expect_error.h"
#include "io/file.h"
#include "optim/clip.h"
#include "support/train/reference_loss.h"
#include "support/train/train_test_support.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;
using testing::ElementsAre;

TEST(ClipFactor, IsTorchs) {
  EXPECT_DOUBLE_EQ(clip_factor(4, 1), 1 / (4 + 1e-6));
  EXPECT_EQ(clip_factor(0.5, 1), 1);
  EXPECT_EQ(clip_factor(0, 1), 1);
  EXPECT_EQ(clip_factor(1e9, 0), 1);  // off
}

TEST(TrainStep, LossIsTheMeanOverTheTargetsOfTheWholeStep) {
  TinyRun tiny;
  tiny.spec.batch.max_steps = 1;
  const double loss = tiny.train().steps.at(0).loss;
  auto rows = random_rows(std::vector<int64_t>(14, 9), tiny_config().vocab_size, 3);
  rows.resize(4);
  EXPECT_NEAR(loss, ReferenceLoss<double>(tiny.spec.model.folder).of(rows), 1e-5);
}

TEST(TrainStep, GradientIsThatOfTheMeanOverTheWholeStep) {
  TinyRun tiny;
  tiny.spec.batch.max_steps = 1;
  const double found = tiny.train().steps.at(0).grad_norm;
  const auto rows = random_rows(std::vector<int64_t>(14, 9), tiny_config().vocab_size, 3);
  const PackedBatch batches[] = {pack({rows[0], rows[1]}), pack({rows[2], rows[3]})};
  const ParameterLayout layout = parameter_layout(tiny_config());
  TestModel test(tiny_config(), DType::kF32, random_weights(layout, 0.3f, 1));
  test.model().reserve(limits_of(batches[0]));
  const float grad_scale = 1.0f / static_cast<float>(batches[0].num_targets + batches[1].num_targets);
  for (const PackedBatch& batch : batches) test.model().forward_backward(batch, grad_scale);
  double sum = 0;
  for (const float gradient : test.gradients()) sum += static_cast<double>(gradient) * gradient;
  EXPECT_NEAR(found, std::sqrt(sum), 1e-6 * std::sqrt(sum));
}

TEST(TrainStep, LabelSmoothingMixesInTheMeanOverTheVocabulary) {
  TinyRun tiny;
  tiny.spec.batch.max_steps = 1;
  tiny.spec.objective.label_smoothing = 0.2;
  const double loss = tiny.train().steps.at(0).loss;
  auto rows = random_rows(std::vector<int64_t>(14, 9), tiny_config().vocab_size, 3);
  rows.resize(4);
  EXPECT_NEAR(loss, ReferenceLoss<double>(tiny.spec.model.folder).of(rows, 0.2), 1e-5);
}

TEST(TrainStep, AccumulationEqualsOneLargeBatch) {
  TinyRun tiny;
  const RecordingObserver accumulated = tiny.train();
  tiny.spec.batch.rows_per_device = 4;
  tiny.spec.batch.accumulation_steps = 1;
  tiny.spec.batch.max_steps = 3;  // the fourth step of an epoch takes other rows
  const RecordingObserver whole = tiny.train();
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_NEAR(accumulated.steps[i].loss, whole.steps[i].loss, 1e-5) << "step " << i + 1;
    EXPECT_NEAR(accumulated.steps[i].grad_norm, whole.steps[i].grad_norm, 1e-5 * whole.steps[i].grad_norm);
    EXPECT_EQ(accumulated.steps[i].num_target_tokens, whole.steps[i].num_target_tokens);
  }
}

// Rows of different lengths as they are, and padded on the right to the longest with ignored labels.
TEST(TrainStep, DroppedPaddingChangesNothing) {
  const std::vector<int64_t> lengths = {9, 4, 7, 2};
  std::vector<TokenRow> rows = random_rows(lengths, tiny_config().vocab_size, 8);
  for (TokenRow& row : rows) row.labels.back() = row.ids.back();  // every row has a target
  std::vector<TokenRow> padded = rows;
  for (TokenRow& row : padded) {
    row.ids.resize(9, 5);
    row.labels.resize(9, kIgnoredLabel);
  }
  TinyRun without;
  without.spec.data.dataset.clear();
  for (size_t i = 0; i < rows.size(); ++i) {
    without.spec.data.dataset.push_back(without.folder() / fmt::format("row{}.safetensors", i));
    write_token_rows(without.spec.data.dataset.back(), {rows[i]});
  }
  TinyRun with;
  with.spec.data.dataset = {with.folder() / "padded.safetensors"};
  write_token_rows(with.spec.data.dataset[0], padded);
  const RecordingObserver run = without.train();
  const RecordingObserver padded_run = with.train();
  EXPECT_NEAR(run.steps[0].loss, ReferenceLoss<float>(without.spec.model.folder).of(padded), 1e-5);
  EXPECT_EQ(run.steps[0].num_tokens, 9 + 4 + 7 + 2);
  for (size_t i = 0; i < run.steps.size(); ++i) {
    EXPECT_NEAR(run.steps[i].loss, padded_run.steps[i].loss, 1e-5) << "step " << i + 1;
    EXPECT_EQ(run.steps[i].num_target_tokens, padded_run.steps[i].num_target_tokens);
  }
}

// A tokenizer of the letters a to l and an end-of-text token, 13 ids.
void write_letter_tokenizer(const fs::path& folder) {
  nlohmann::json vocab = nlohmann::json::object();
  for (int i = 0; i < 12; ++i) vocab[std::string(1, static_cast<char>('a' + i))] = i;
  vocab["</s>"] = 12;
  const nlohmann::json end = {{"id", 12},        {"content", "</s>"}, {"single_word", false},
                              {"lstrip", false}, {"rstrip", false},   {"normalized", false},
                              {"special", true}};
  const nlohmann::json tokenizer = {
      {"version", "1.0"},
      {"added_tokens", {end}},
      {"normalizer", nullptr},
      {"pre_tokenizer", nullptr},
      {"post_processor", nullptr},
      {"decoder", nullptr},
      {"model", {{"type", "BPE"}, {"vocab", vocab}, {"merges", nlohmann::json::array()}}}};
  write_text_file(folder / "tokenizer.json", tokenizer.dump());
  write_text_file(folder / "tokenizer_config.json", R"({"eos_token": "</s>"})");
}

// Three documents whose stream with EOS is 16 tokens, in rows of 8.
class PackedRun : public testing::Test {
 protected:
  PackedRun() {
    write_letter_tokenizer(tiny_.spec.model.folder);
    tiny_.spec.data.dataset = {
        tiny_.folder()
            .write("docs.jsonl", "{\"text\":\"abc\"}\n{\"text\":\"defghi\"}\n{\"text\":\"jklab\"}\n")
            .string()};
    tiny_.spec.data.max_length = 8;
    tiny_.spec.batch.rows_per_device = 2;
    tiny_.spec.batch.accumulation_steps = 1;
    tiny_.spec.batch.max_steps = 1;
  }
  static TokenRow row(std::vector<int32_t> ids) { return {ids, ids}; }
  double reference(const std::vector<TokenRow>& rows) const {
    return ReferenceLoss<double>(tiny_.spec.model.folder).of(rows);
  }

  TinyRun tiny_;
};

TEST_F(PackedRun, DocumentsInARowDoNotSeeEachOther) {
  tiny_.spec.data.packing = true;
  tiny_.spec.data.packing_strategy = PackingStrategy::kInOrder;
  const StepMetrics step = tiny_.train().steps.at(0);
  // abc. defg | hi. jklab: the second document is cut at the end of its row.
  const std::vector<TokenRow> pieces = {row({0, 1, 2, 12}), row({3, 4, 5, 6}), row({7, 8, 12}),
                                        row({9, 10, 11, 0, 1})};
  EXPECT_EQ(step.num_tokens, 16);
  EXPECT_EQ(step.num_target_tokens, 3 + 3 + 2 + 4);
  EXPECT_NEAR(step.loss, reference(pieces), 1e-5);
}

TEST_F(PackedRun, DocumentsInARowAreOneSequenceWhenAsked) {
  tiny_.spec.data.packing = tiny_.spec.data.packing_cross_document_attention = true;
  const StepMetrics step = tiny_.train().steps.at(0);
  EXPECT_EQ(step.num_target_tokens, 7 + 7);
  EXPECT_NEAR(step.loss, reference({row({0, 1, 2, 12, 3, 4, 5, 6}), row({7, 8, 12, 9, 10, 11, 0, 1})}), 1e-5);
}

TEST_F(PackedRun, WithoutPackingARowIsADocument) {
  tiny_.spec.batch.rows_per_device = 3;
  const StepMetrics step = tiny_.train().steps.at(0);
  EXPECT_EQ(step.num_target_tokens, 3 + 6 + 5);
  EXPECT_NEAR(step.loss,
              reference({row({0, 1, 2, 12}), row({3, 4, 5, 6, 7, 8, 12}), row({9, 10, 11, 0, 1, 12})}), 1e-5);
}

TEST(TrainLoop, EpochsHaveARemainderStep) {
  TinyRun tiny;  // 14 rows: 7 micro-batches, 4 steps per epoch
  tiny.spec.batch.max_steps = -1;
  tiny.spec.batch.num_epochs = 2;
  const RecordingObserver run = tiny.train();
  EXPECT_EQ(run.plan.steps_per_epoch, 4);
  ASSERT_EQ(run.steps.size(), 8u);
  std::vector<int64_t> tokens;
  std::vector<double> epochs;
  for (const StepMetrics& step : run.steps) {
    tokens.push_back(step.num_tokens);
    epochs.push_back(step.epoch);
  }
  EXPECT_THAT(tokens, ElementsAre(36, 36, 36, 18, 36, 36, 36, 18));
  EXPECT_THAT(epochs,
              ElementsAre(2.0 / 7, 4.0 / 7, 6.0 / 7, 1.0, 1 + 2.0 / 7, 1 + 4.0 / 7, 1 + 6.0 / 7, 2.0));
  EXPECT_EQ(run.summary.num_steps, 8);
  EXPECT_EQ(run.summary.num_tokens, 2 * 14 * 9);
}

TEST(TrainLoop, FractionsOfAnEpochAreRoundedUp) {
  TinyRun tiny;
  tiny.spec.batch.max_steps = -1;
  tiny.spec.batch.num_epochs = 0.3;  // ceil(0.3 * 4)
  EXPECT_EQ(tiny.train().steps.size(), 2u);
}

TEST(TrainLoop, CountsTheTokensThatAnEpochTakesOfAMixture) {
  TinyRun tiny;
  const std::string more = tiny.folder() / "more.safetensors";
  write_token_rows(more, random_rows(std::vector<int64_t>(40, 3), tiny_config().vocab_size, 5));
  tiny.spec.data.dataset = {tiny.spec.data.dataset[0] + ":0.5", more + ":0.5"};
  tiny.spec.batch.max_steps = -1;
  tiny.spec.batch.num_epochs = 1;
  const RecordingObserver run = tiny.train();
  EXPECT_EQ(run.plan.num_rows, 14 + 14);
  EXPECT_EQ(run.plan.num_tokens, 14 * 9 + 14 * 3);
  EXPECT_EQ(run.summary.num_tokens, run.plan.num_tokens);
}

TEST(TrainLoop, AnEndlessRunStartsAtOnce) {
  TinyRun tiny;
  tiny.spec.batch.max_steps = int64_t{1} << 50;
  tiny.spec.data.shuffle = true;
  int signal = 0;
  const RecordingObserver run = tiny.train(
      1, [&] { return signal; },
      [&](const StepMetrics& metrics) { signal = metrics.step == 3 ? SIGINT : 0; });
  EXPECT_EQ(run.steps.size(), 3u);
  EXPECT_EQ(run.plan.max_pass_tokens, 18);
}

TEST(TrainLoop, MergedMicroBatchesGiveTheSameStep) {
  TinyRun tiny;
  tiny.spec.placement.merge_micro_batches = AutoChoice::kNever;
  const RecordingObserver apart = tiny.train();
  tiny.spec.placement.merge_micro_batches = AutoChoice::kAlways;
  const RecordingObserver merged = tiny.train();
  EXPECT_EQ(apart.plan.micro_batches_per_pass, 1);
  EXPECT_EQ(apart.plan.max_pass_tokens, 2 * 9);
  EXPECT_EQ(merged.plan.micro_batches_per_pass, 2);
  EXPECT_EQ(merged.plan.max_pass_tokens, 2 * 2 * 9);
  ASSERT_EQ(merged.steps.size(), apart.steps.size());
  for (size_t i = 0; i < apart.steps.size(); ++i) {
    EXPECT_EQ(merged.steps[i].num_tokens, apart.steps[i].num_tokens) << "step " << i + 1;
    EXPECT_NEAR(merged.steps[i].loss, apart.steps[i].loss, 1e-5) << "step " << i + 1;
    EXPECT_NEAR(merged.steps[i].grad_norm, apart.steps[i].grad_norm, 1e-4 * apart.steps[i].grad_norm)
        << "step " << i + 1;
  }
}

TEST(TrainLoop, KeptPackedWeightsFollowEveryUpdate) {
  TinyRun tiny;
  tiny.spec.precision.dtype = DType::kBF16;
  tiny.spec.placement.pack_weights = AutoChoice::kNever;
  const RecordingObserver plain = tiny.train();
  for (const char* choice : {"always", "auto"}) {
    tiny.spec.placement.pack_weights = from_word(choice);
    const RecordingObserver packed = tiny.train();
    ASSERT_EQ(packed.steps.size(), plain.steps.size());
    for (size_t i = 0; i < plain.steps.size(); ++i) {
      EXPECT_EQ(packed.steps[i].loss, plain.steps[i].loss) << choice << " step " << i + 1;
      EXPECT_EQ(packed.steps[i].grad_norm, plain.steps[i].grad_norm) << choice << " step " << i + 1;
    }
  }
}

TEST(TrainLoop, LearningRatesFollowTheSchedule) {
  TinyRun tiny;
  tiny.spec.schedule.form = LinearSchedule();
  tiny.spec.schedule.warmup_ratio = 0.3;  // ceil(1.8) = 2 of 6 steps
  std::vector<double> rates;
  for (const StepMetrics& step : tiny.train().steps) rates.push_back(step.learning_rate);
  EXPECT_THAT(rates, ElementsAre(0, 0.005, 0.01, 0.0075, 0.005, 0.0025));
}

TEST(TrainLoop, ALearningRateOfZeroLeavesTheWeightsAlone) {
  TinyRun tiny;
  tiny.spec.schedule.learning_rate = 0;
  tiny.train();
  EXPECT_EQ(read_tensors(tiny.output()), read_tensors(tiny.spec.model.folder));
}

TEST(TrainLoop, LogsAreMeansSinceTheLastLog) {
  TinyRun tiny;
  const RecordingObserver run = tiny.train();
  ASSERT_EQ(run.logs.size(), 4u);  // steps 2, 4, 6 and the end
  for (size_t i = 0; i < 3; ++i) {
    const double mean = (run.steps[2 * i].loss + run.steps[2 * i + 1].loss) / 2;
    EXPECT_EQ(run.logs[i].step, static_cast<int64_t>(2 * i + 2));
    EXPECT_EQ(run.logs[i].values[0].first, "loss");
    EXPECT_DOUBLE_EQ(std::get<double>(run.logs[i].values[0].second), mean);
    EXPECT_EQ(std::get<double>(run.logs[i].values[1].second), run.steps[2 * i + 1].grad_norm);
  }
  std::vector<std::string> names;
  for (const auto& [name, value] : run.logs[3].values) names.push_back(name);
  EXPECT_THAT(names, ElementsAre("train_runtime", "train_samples_per_second", "train_steps_per_second",
                                 "total_flos", "train_loss"));
}

TEST(TrainLoop, TrainingLearns) {
  TinyRun tiny;
  tiny.spec.batch.max_steps = 60;
  const RecordingObserver run = tiny.train();
  EXPECT_LT(run.steps.back().loss, 0.5 * run.steps.front().loss);
}

TEST(TrainLoop, RunsAreBitIdenticalWhateverTheThreads) {
  for (const char* dtype : {"float32", "bfloat16"}) {
    TinyRun tiny;
    tiny.spec.data.shuffle = true;
    tiny.spec.precision.dtype = from_word(dtype);
    tiny.spec.precision.save_dtype = DType::kF32;
    const std::vector<double> expected = losses_of_steps(tiny.train(1));
    const auto weights = read_tensors(tiny.output());
    for (const int64_t num_threads : {1, 2, 3}) {
      EXPECT_EQ(losses_of_steps(tiny.train(num_threads)), expected)
          << dtype << ", " << num_threads << " threads";
      EXPECT_EQ(read_tensors(tiny.output()), weights) << dtype << ", " << num_threads << " threads";
    }
  }
}

TEST(TrainLoop, TheSeedDecidesTheOrderOfTheRows) {
  TinyRun tiny;
  tiny.spec.data.shuffle = true;
  const std::vector<double> first = losses_of_steps(tiny.train());
  tiny.spec.data.seed = 7;
  EXPECT_NE(losses_of_steps(tiny.train()), first);
  tiny.spec.data.seed.reset();
  tiny.spec.seed = 7;
  const std::vector<double> by_seed = losses_of_steps(tiny.train());
  tiny.spec.seed = 42;
  tiny.spec.data.seed = 7;
  EXPECT_EQ(losses_of_steps(tiny.train()), by_seed);
}

TEST(TrainLoop, Float32WeightsSurviveBfloat16TrainingExactly) {
  TinyRun tiny;
  tiny.spec.precision.dtype = DType::kBF16;
  tiny.spec.precision.save_dtype = DType::kF32;
  tiny.spec.schedule.learning_rate = 0;
  tiny.train();
  EXPECT_EQ(read_tensors(tiny.output()), read_tensors(tiny.spec.model.folder));
}

TEST(TrainLoop, StopsBeforeTheUpdateWhenTheLossIsNotFinite) {
  TinyRun tiny;
  tiny.spec.schedule.learning_rate = 1e30;  // the first update throws the weights far out
  tiny.spec.clipping.max_norm = 0;
  tiny.spec.saving.strategy = SaveStrategy::kSteps;
  tiny.spec.saving.steps = 1;
  ThreadPool pool(2);
  RecordingObserver observer;
  Trainer trainer(tiny.spec, pool, observer);
  expect_error(ExitCode::kNumerics,
               {"step 2: loss", "not finite", "after step 1", "not finite again, first in",
                "the step read the rows 4, 5, 6, 7 (from 0)"},
               [&] { trainer.run(); });
  trainer.export_model(tiny.folder() / "now");
  EXPECT_EQ(read_tensors(tiny.folder() / "now"), read_tensors(tiny.output() / "checkpoint-1"));
  EXPECT_EQ(observer.steps.size(), 1u);
  EXPECT_FALSE(fs::exists(tiny.output() / "model.safetensors"));
  EXPECT_THAT(read_text_file(tiny.output() / "events.jsonl"),
              testing::ContainsRegex("\"event\":\"error\",.*\"message\":\"step 2: loss .*\n$"));
}

TEST(TrainLoop, MissingInputsAreNamed) {
  TinyRun tiny;
  const RunSpec good = tiny.spec;
  tiny.spec.model.folder = tiny.folder() / "nowhere";
  expect_error(ExitCode::kNoInput, {"nowhere"}, [&] { tiny.train(); });
  tiny.spec = good;
  tiny.spec.data.dataset = {tiny.folder() / "nothing.safetensors"};
  expect_error(ExitCode::kNoInput, {"nothing.safetensors"}, [&] { tiny.train(); });
  tiny.spec = good;
  tiny.spec.data.dataset = {tiny.folder().write("text.txt", "abc").string()};
  expect_error(ExitCode::kNoInput, {"tokenizer.json"}, [&] { tiny.train(); });
}

TEST(TrainLoop, ASignalEndsTheRunWithACheckpoint) {
  TinyRun tiny;
  int signal = 0;
  const RecordingObserver stopped = tiny.train(
      2, [&] { return signal; },
      [&](const StepMetrics& metrics) { signal = metrics.step == 2 ? SIGTERM : 0; });
  EXPECT_EQ(stopped.steps.size(), 2u);
  EXPECT_EQ(stopped.summary.stop_signal, SIGTERM);
  EXPECT_EQ(stopped.summary.folder, tiny.output() / "checkpoint-2");
  EXPECT_EQ(stopped.checkpoints, std::vector<fs::path>{tiny.output() / "checkpoint-2"});
  EXPECT_FALSE(fs::exists(tiny.output() / "model.safetensors"));
  const auto weights = read_tensors(tiny.output() / "checkpoint-2");
  tiny.spec.batch.max_steps = 2;
  tiny.train();
  EXPECT_EQ(read_tensors(tiny.output()), weights);
}

// The mean loss of steps 40 to 60 over several runs: that of a single one depends on rounding errors.
double loss_with(const std::string& optim) {
  constexpr int kNumRuns = 6;
  ModelConfig config = tiny_config();
  config.hidden_size = config.intermediate_size = 64;
  double sum = 0;
  for (int run = 0; run < kNumRuns; ++run) {
    TinyRun tiny(config);
    const std::vector<int64_t> lengths(16, 32);
    write_token_rows(tiny.spec.data.dataset[0], random_rows(lengths, config.vocab_size, 5 + run));
    tiny.spec.optimizer.form = from_word(optim);
    tiny.spec.batch.max_steps = 60;
    for (const StepMetrics& step : tiny.train().steps) sum += step.step > 40 ? step.loss : 0;
  }
  return sum / (20 * kNumRuns);
}

TEST(Trainer, OtherOptimizersLearn) {
  const double expected = loss_with("adamw_torch");
  EXPECT_NEAR(loss_with("adamw_8bit"), expected, 0.05 * expected);
  EXPECT_LT(loss_with("muon"), 1.1 * expected);
  EXPECT_LT(loss_with("adafactor"), 0.7 * std::log(static_cast<double>(tiny_config().vocab_size)));
}

}  // namespace
}  // namespace tessera
