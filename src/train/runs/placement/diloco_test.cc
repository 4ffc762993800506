// Training in which nodes exchange their weights only now and then (--sync_every).
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "settings/derived.h"
#include "support/draws.h"
#include "support/train/from_word.h"
#include "support/train/saving_run.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;

// Rows of micro-batches 0, 1, ... of one row each; a node takes those of its ranks.
std::vector<TokenRow> rows_of_node(const std::vector<TokenRow>& rows, const Ranks& ranks, int node) {
  std::vector<TokenRow> own;
  for (size_t i = 0; i < rows.size(); ++i) {
    if (static_cast<int>(i) % ranks.world_size() / ranks.local_world_size == node) own.push_back(rows[i]);
  }
  return own;
}

struct ExchangeCase {
  Ranks ranks;
  int64_t num_steps;

  friend void PrintTo(const ExchangeCase& of, std::ostream* out) {
    *out << of.ranks.num_nodes << "x" << of.ranks.local_world_size << " " << of.num_steps << " steps";
  }
};

class FirstExchange : public testing::TestWithParam<ExchangeCase> {};
INSTANTIATE_TEST_SUITE_P(Cases, FirstExchange,
                         testing::Values(ExchangeCase{{2, 1}, 3}, ExchangeCase{{3, 1}, 2},
                                         ExchangeCase{{2, 2}, 2}, ExchangeCase{{1, 1}, 2},
                                         ExchangeCase{{1, 2}, 3}));

// Every node must have trained like a job of its own on its rows, and the finished model is what the outer
// optimizer makes of their weights: w - r (1 + b) (w - mean w_k) after the first exchange.
TEST_P(FirstExchange, MakesOneModelOfThoseOfTheNodes) {
  const auto& [ranks, num_steps] = GetParam();
  TinyRun run;
  const int64_t accumulation = 2;
  const std::vector<TokenRow> rows =
      random_rows(std::vector<int64_t>(static_cast<size_t>(num_steps * accumulation * ranks.world_size()), 9),
                  tiny_config().vocab_size, 5);
  run.spec.batch.rows_per_device = 1;
  run.spec.batch.accumulation_steps = accumulation;
  run.spec.placement.merge_micro_batches = AutoChoice::kNever;
  run.spec.batch.max_steps = num_steps;
  run.spec.clipping.max_norm = 0.5;  // of the node's own gradients
  run.spec.outer.sync_every = num_steps;

  std::map<std::string, std::vector<double>> means;
  for (int node = 0; node < ranks.num_nodes; ++node) {
    RunSettings alone = run.spec;
    alone.outer.sync_every = 0;
    alone.data.dataset = {run.folder() / fmt::format("node-{}.safetensors", node)};
    alone.output_dir = run.folder() / fmt::format("node-{}", node);
    write_token_rows(alone.data.dataset.front(), rows_of_node(rows, ranks, node));
    train_ranks(alone, {1, ranks.local_world_size});
    for (const auto& [name, values] : read_tensors(alone.output_dir)) {
      std::vector<double>& mean = means[name];
      mean.resize(values.size());
      for (size_t i = 0; i < values.size(); ++i) mean[i] += values[i] / static_cast<double>(ranks.num_nodes);
    }
  }
  run.spec.data.dataset = {run.folder() / "all.safetensors"};
  write_token_rows(run.spec.data.dataset.front(), rows);
  const RecordingObserver seen = train_ranks(run.spec, ranks).front();
  ASSERT_EQ(std::ssize(seen.steps), num_steps);

  const auto first = read_tensors(run.spec.model.folder);
  for (const auto& [name, found] : read_tensors(run.output())) {
    std::vector<float> expected;
    for (size_t i = 0; i < found.size(); ++i) {
      const double before = first.at(name)[i];
      expected.push_back(static_cast<float>(before - 0.7 * 1.9 * (before - means.at(name)[i])));
    }
    EXPECT_LT(relative_error(found, expected), 1e-6) << name;
  }
}

struct DilocoCase {
  Ranks ranks;
  int64_t sync_every;
  int64_t num_fragments = 1;
  int64_t delay = 0;
  double alpha = 0;
  const char* code = "none";
  const char* dtype = "float32";
  const char* optim = "adamw_torch";

  std::string name() const {
    return fmt::format("{}x{}every{}fragments{}delay{}{}{}{}", ranks.num_nodes, ranks.local_world_size,
                       sync_every, num_fragments, delay, code, dtype, optim);
  }
  friend void PrintTo(const DilocoCase& of, std::ostream* out) { *out << of.name(); }
};

ModelConfig diloco_config() {
  ModelConfig config = tiny_config();
  config.intermediate_size = 16;  // blocks of 8-bit state
  return config;
}

SavingRun diloco_run(const DilocoCase& of) {
  SavingRun run(of.ranks, diloco_config());
  run.spec.batch.global_rows = 12;
  run.spec.batch.accumulation_steps = 12 / run.ranks.world_size();
  run.spec.precision.dtype = from_word(of.dtype);
  run.spec.optimizer.form = from_word(of.optim);
  run.spec.outer.sync_every = of.sync_every;
  run.spec.outer.num_fragments = of.num_fragments;
  run.spec.outer.sync_delay = of.delay;
  run.spec.outer.update_alpha = of.alpha;
  run.spec.sharding.quantized_gradients = from_word(of.code);
  return run;
}

std::vector<DilocoCase> diloco_cases() {
  return {{{2, 1}, 2},
          {{2, 1}, 4, 2, 1, 0.5},
          {{3, 1}, 3, 3, 0, 0, "int4", "bfloat16"},
          {{2, 2}, 3, 1, 2, 0.5, "int8", "bfloat16", "adamw_8bit"},
          {{2, 2}, 2, 1, 0, 0, "int8", "bfloat16", "adamw_bf16"},
          {{3, 1}, 5, 1, 3, 0, "none", "bfloat16", "lion_32bit"},
          {{1, 2}, 2, 2, 0, 0, "none", "bfloat16"}};
}

class Diloco : public testing::TestWithParam<DilocoCase> {};
INSTANTIATE_TEST_SUITE_P(Cases, Diloco, testing::ValuesIn(drawn_cases(diloco_cases())),
                         [](const auto& test) { return test.param.name(); });

// Checkpoints after steps 3 and 5: exchanges are due, under way or over.
TEST_P(Diloco, ResumesBitForBit) {
  const SavingRun run = diloco_run(GetParam());
  run.run();
  expect_resumes_alike(run, {1, 3, 4, 5});
}

// The finished model is the last checkpoint's.
TEST_P(Diloco, FinishedModelIsTheSameWithAndWithoutALastCheckpoint) {
  SavingRun run = diloco_run(GetParam());
  run.spec.saving.steps = 6;
  run.run();
  const auto saved = read_tensors(run.output() / "checkpoint-6");
  EXPECT_EQ(read_tensors(run.output()), saved);
  run.spec.saving.strategy = SaveStrategy::kNo;
  run.spec.output_dir = run.folder() / "unsaved";
  run.run();
  EXPECT_EQ(read_tensors(run.output()), saved);
}

TEST_P(Diloco, ResumesOnOtherNodes) {
  SavingRun run = diloco_run(GetParam());
  const RecordingObserver whole = run.run();
  for (const Ranks& ranks : {Ranks{3, 1}, Ranks{2, 1}, Ranks{1, 1}}) {
    SCOPED_TRACE(fmt::format("{} nodes", ranks.num_nodes));
    SavingRun resumed = run;
    resumed.spec.output_dir = run.output();
    resumed.interrupt_at(3, fmt::format("on{}", ranks.num_nodes));
    resumed.ranks = ranks;
    resumed.spec.batch.accumulation_steps = 12 / ranks.world_size();
    resumed.spec.resume = parse_resume("true");
    const RecordingObserver seen = resumed.run();
    ASSERT_EQ(seen.steps.size(), 3u);
    // The weights are the same; sums over other ranks are rounded differently.
    const double rounding = run.spec.precision.dtype == DType::kBF16 ? 2e-3 : 1e-5;
    EXPECT_NEAR(seen.steps[0].loss, whole.steps[3].loss, rounding * whole.steps[3].loss);
    for (size_t i = 1; i < seen.steps.size(); ++i)
      EXPECT_NEAR(seen.steps[i].loss, whole.steps[i + 3].loss, 8e-2 * whole.steps[i + 3].loss);
  }
}

TEST(DilocoTest, ContinuesTogetherAndApart) {
  SavingRun run = diloco_run(diloco_cases()[0]);
  run.run();
  SavingRun together = run;
  together.interrupt_at(3, "together");
  together.spec.outer.sync_every = 0;
  together.spec.resume = parse_resume("true");
  testing::internal::CaptureStderr();
  const RecordingObserver seen = together.run();
  EXPECT_THAT(testing::internal::GetCapturedStderr(),
              HasSubstr("is left out: nodes do not train on their own"));
  EXPECT_EQ(seen.differences, "sync_every 2 -> 0");
  SavingRun apart = together;
  apart.interrupt_at(5, "apart");
  apart.spec.outer.sync_every = 2;
  apart.spec.resume = parse_resume("true");
  EXPECT_EQ(apart.run().differences, "sync_every 0 -> 2");
}

TEST_P(Diloco, MovesWhatTheClosedFormSays) {
  SavingRun run = diloco_run(GetParam());
  if (run.ranks.num_nodes == 1) GTEST_SKIP() << "one node";
  run.spec.saving.strategy = SaveStrategy::kNo;
  run.spec.batch.max_steps = 11;
  const RecordingObserver seen = run.run();
  const ZeroSettings settings =
      zero_settings_of(run.spec, diloco_config(), run.spec.batch.accumulation_steps);
  const ZeroLayout layout =
      zero_layout(parameter_layout(diloco_config()), run.ranks.num_nodes, run.ranks.local_world_size);
  int64_t exchange = 0, sent = 0;
  for (int node = 0; node < layout.num_nodes; ++node)
    exchange += outer_wire_bytes(layout, settings, node).sent();
  for (const StepMetrics& step : seen.steps) sent += step.network.value().sent_bytes;
  // Two full rounds begin and end by step 10, whose traffic is counted in step 11; at most one more is under
  // way.
  const int64_t rounds = 10 / GetParam().sync_every;
  EXPECT_GE(sent, (rounds - 1) * exchange);
  EXPECT_LE(sent, (rounds + 1) * exchange);
  if (GetParam().num_fragments == 1 && GetParam().delay == 0) {
    EXPECT_EQ(sent, rounds * exchange);
  }
}

}  // namespace
}  // namespace tessera
