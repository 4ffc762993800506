// Runs that train adapters: the folder that PEFT reads, resuming, ranks, memory.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "expect_error.h"
#include "io/file.h"
#include "support/train/from_word.h"
#include "support/train/saving_run.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;

SavingRun lora_run(const Ranks& ranks = {}) {
  SavingRun run(ranks);
  run.spec.lora.finetuning_type = FinetuningType::kLora;
  run.spec.lora.rank = 4;
  run.spec.schedule.learning_rate = 1e-2;
  return run;
}

TEST(LoraRun, WritesWhatPeftReadsAndLeavesTheModelAlone) {
  SavingRun run = lora_run();
  run.spec.lora.targets = {"q_proj,down_proj"};
  run.spec.lora.rank_pattern = {{"down_proj", 2}};
  run.spec.data.eval_dataset = run.spec.data.dataset;
  run.spec.evaluation.strategy = IntervalStrategy::kSteps;
  run.spec.evaluation.steps = 6;
  run.spec.evaluation.on_start = true;
  const auto before = read_tensors(run.spec.model.folder);
  const RecordingObserver seen = run.run();
  EXPECT_LT(seen.evaluations.back().loss, 0.98 * seen.evaluations.front().loss);
  EXPECT_EQ(read_tensors(run.spec.model.folder), before);
  for (const fs::path& folder : {run.output(), run.output() / "checkpoint-3"}) {
    SCOPED_TRACE(folder.native());
    EXPECT_FALSE(fs::exists(folder / "config.json"));
    EXPECT_FALSE(fs::exists(folder / "model.safetensors"));
    const auto config = read_json(folder / "adapter_config.json");
    EXPECT_EQ(config["peft_type"], "LORA");
    EXPECT_EQ(config["base_model_name_or_path"], run.spec.model.folder);
    EXPECT_EQ(config["r"], 4);
    EXPECT_EQ(config["lora_alpha"], 8);
    EXPECT_EQ(config["target_modules"], (nlohmann::json{"q_proj", "down_proj"}));
    const auto tensors = read_tensors(folder / "adapter_model.safetensors");
    EXPECT_EQ(tensors.size(), 8u);
    EXPECT_TRUE(tensors.contains("base_model.model.model.layers.1.self_attn.q_proj.lora_A.weight"));
    const ModelConfig model = tiny_config();
    EXPECT_EQ(std::ssize(tensors.at("base_model.model.model.layers.0.mlp.down_proj.lora_B.weight")),
              2 * model.hidden_size);
  }
}

// A is random and B is zero: the first loss is that of the model itself.
TEST(LoraRun, BeginsAtTheModel) {
  SavingRun full, lora = lora_run();
  lora.spec.model.folder = full.spec.model.folder;
  lora.spec.data.dataset = full.spec.data.dataset;
  EXPECT_EQ(lora.run().steps.front().loss, full.run().steps.front().loss);
}

struct LoraRanks {
  RanksCase ranks;
  std::string dtype;
  double dropout;
  const char* optim = "adamw_torch";
};

TEST(LoraRun, ResumesBitForBitOnAnyRanks) {
  const LoraRanks cases[] = {{{{1, 1}, 0, "auto"}, "bfloat16", 0},
                             {{{1, 1}, 0, "auto"}, "float32", 0.1},
                             {{{1, 2}, 2, "auto"}, "bfloat16", 0.1},
                             {{{1, 4}, 2, "auto"}, "float32", 0},
                             {{{2, 1}, 0, "auto"}, "float32", 0},
                             {{{2, 2}, 1, "auto"}, "bfloat16", 0},
                             {{{2, 2}, 3, "per_layer"}, "float32", 0.1},
                             {{{1, 2}, 2, "auto"}, "bfloat16", 0, "muon"},
                             {{{2, 1}, 3, "per_layer"}, "bfloat16", 0, "adafactor"}};
  for (const LoraRanks& of : cases) {
    SCOPED_TRACE(of.ranks.name() + of.dtype);
    SavingRun run = lora_run(of.ranks.ranks);
    run.spec.precision.dtype = from_word(of.dtype);
    run.spec.sharding.stage = of.ranks.stage;
    run.spec.sharding.gather_schedule = from_word(of.ranks.schedule);
    run.spec.lora.dropout = of.dropout;
    run.spec.optimizer.form = from_word(of.optim);
    run.spec.placement.pack_weights = AutoChoice::kAlways;
    run.run();
    SavingRun resumed = run;
    resumed.interrupt_at(3, "resumed");
    resumed.spec.resume = parse_resume("true");
    resumed.spec.placement.pack_weights = AutoChoice::kNever;
    EXPECT_EQ(resumed.run().resumed_step, 3);
    expect_same_run(resumed.output(), run.output());
  }
}

// The model of the same values may be in other files; one of other values with the same shape is refused.
TEST(LoraRun, ResumesBesideTheModelThatItBeganWithAlone) {
  SavingRun run = lora_run();
  run.run();
  int number = 0;
  const auto resume = [&](const fs::path& model, const Ranks& ranks, int bits) {
    SavingRun resumed = run;
    resumed.ranks = ranks;
    resumed.spec.batch.accumulation_steps = 4 / ranks.world_size();
    resumed.interrupt_at(3, fmt::format("resumed-{}", ++number));
    resumed.spec.resume = parse_resume("true");
    resumed.spec.model.folder = model;
    if (bits > 0) resumed.spec.base.bits = bits;
    return resumed.run().resumed_step;
  };
  const ModelConfig config = tiny_config();
  const ParameterLayout layout = parameter_layout(config);
  const auto saved = read_tensors(run.spec.model.folder);
  const auto save = [&](const std::string& name, DType dtype, float change) {
    const WeightSource source = [&](int64_t begin, std::span<float> values) {
      for (const Parameter& parameter : layout.parameters()) {
        const std::vector<float>& of = saved.at(parameter.name);
        for (size_t i = 0; i < of.size(); ++i) {
          const int64_t at = parameter.offset + static_cast<int64_t>(i) - begin;
          if (at >= 0 && at < std::ssize(values)) values[static_cast<size_t>(at)] = of[i];
        }
      }
      if (begin == 0) values[0] += change;
    };
    ExportOptions options;
    options.save_dtype = dtype;
    options.max_shard_bytes = 4000;
    export_model_folder(run.folder() / name, config, layout, source, options);
    return run.folder() / name;
  };
  EXPECT_EQ(resume(save("sharded", DType::kF32, 0), {1, 1}, 0), 3);
  EXPECT_EQ(resume(save("rounded", DType::kBF16, 0), {1, 2}, 0), 3);
  EXPECT_EQ(resume(run.spec.model.folder, {2, 1}, 8), 3);
  const fs::path other = save("other", DType::kF32, 0.25f);
  for (const Ranks& ranks : {Ranks{1, 1}, Ranks{1, 2}, Ranks{2, 1}}) {
    expect_error(ExitCode::kBadConfig,
                 {"checkpoint-3 has adapters of another model", other.native(), run.spec.model.folder},
                 [&] { resume(other, ranks, 0); });
  }
  expect_error(ExitCode::kBadConfig, {"another model"}, [&] { resume(other, {1, 2}, 4); });
}

// Ranks and micro-batches change sums by rounding only, with dropout too: the masks are the rows' own.
TEST(LoraRun, HasTheSameLossesOnAnyRanks) {
  SavingRun one = lora_run();
  one.spec.lora.dropout = 0.2;
  const RecordingObserver expected = one.run();
  for (const Ranks& ranks : {Ranks{1, 2}, Ranks{2, 2}}) {
    SavingRun many = lora_run(ranks);
    many.spec.model.folder = one.spec.model.folder;
    many.spec.data.dataset = one.spec.data.dataset;
    many.spec.lora.dropout = 0.2;
    const RecordingObserver found = many.run();
    for (size_t i = 0; i < 3; ++i) {  // the first epoch, whose steps have the same rows
      EXPECT_NEAR(found.steps[i].loss, expected.steps[i].loss, 1e-4 * expected.steps[i].loss) << i;
    }
  }
}

TEST(LoraRun, DropoutChangesTheLossesOfTrainingAlone) {
  SavingRun plain = lora_run(), dropped = plain;
  dropped.spec.output_dir = plain.folder() / "dropped";
  dropped.spec.lora.dropout = 0.3;
  const RecordingObserver a = plain.run(), b = dropped.run();
  EXPECT_EQ(a.steps[0].loss, b.steps[0].loss);  // B is zero
  EXPECT_NE(a.steps[1].loss, b.steps[1].loss);
}

TEST(LoraRun, ContinuesFromAnAdapter) {
  SavingRun first = lora_run();
  first.spec.precision.save_dtype = DType::kF32;
  first.run();
  SavingRun second = first;
  second.spec.output_dir = first.folder() / "second";
  second.spec.lora.adapter = first.output();
  second.spec.batch.max_steps = 1;
  second.spec.schedule.learning_rate = 0;
  second.run();
  EXPECT_EQ(read_tensors(second.output() / "adapter_model.safetensors"),
            read_tensors(first.output() / "adapter_model.safetensors"));
}

// Bounds: float32 rounding of the forward pass in another order.
TEST(LoraRun, MergedIntoTheModelItHasTheSameLoss) {
  const MergedLosses losses = train_and_merge(lora_run());
  EXPECT_NEAR(losses.merged, losses.adapted, 1e-5 * losses.adapted);
}

TEST(LoraRun, PlansTheModelOncePerNodeAndStateForAdaptersAlone) {
  const RecordingObserver seen = lora_run({1, 2}).run();
  ModelConfig config = tiny_config();
  const int64_t weights = parameter_layout(config).num_elements();
  const auto& items = seen.plan.memory.items;
  const auto frozen = std::ranges::find_if(items, [](const MemoryItem& item) {
    return item.kind == MemoryKind::kWeights && item.name == "frozen";
  });
  ASSERT_NE(frozen, items.end());
  EXPECT_EQ(frozen->size_bytes, weights * 4);
  EXPECT_EQ(frozen->scope, MemoryScope::kNode);
  for (const MemoryItem& item : items) {
    if (item.kind != MemoryKind::kOptimizer) continue;
    EXPECT_LT(item.size_bytes, weights * 4) << item.name;
  }
}

TEST(LoraRun, AnAdapterOfAnotherShapeIsRefused) {
  SavingRun first = lora_run();
  first.run();
  SavingRun second = first;
  second.spec.output_dir = first.folder() / "second";
  second.spec.lora.adapter = first.output();
  std::string text = read_text_file(first.output() / "adapter_config.json");
  text.replace(text.find("\"r\": 4"), 6, "\"r\": 5");
  write_text_file(first.output() / "adapter_config.json", text);
  try {
    second.run();
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::kBadData);
    EXPECT_THAT(error.what(),
                testing::AllOf(testing::HasSubstr("lora_"), testing::HasSubstr("expected shape")));
  }
}

}  // namespace
}  // namespace tessera
