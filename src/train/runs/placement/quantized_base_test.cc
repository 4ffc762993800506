// Runs that train adapters beside weights in 8 and 4 bits.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <cmath>

#include "base/sanitizers.h"
#include "expect_error.h"
#include "model/families/families.h"
#include "ops/cpu_ops.h"
#include "platform/memory_info.h"
#include "settings/derived.h"
#include "support/draws.h"
#include "support/train/from_word.h"
#include "support/train/saving_run.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;

struct BaseForm {
  const char* name;
  std::optional<int64_t> bits;
  bool double_scales = false;
};
constexpr int64_t kInt8Bits = 8, kNf4Bits = 4;
const BaseForm kForms[] = {{"int8", kInt8Bits}, {"nf4", kNf4Bits}, {"nf4 double", kNf4Bits, true}};

void set_form(const BaseForm& form, RunSettings* spec) {
  spec->lora.finetuning_type = FinetuningType::kLora;
  spec->lora.rank = 4;
  spec->schedule.learning_rate = 1e-2;
  spec->base.bits = form.bits;
  spec->base.double_quant = form.double_scales;
}

SavingRun quantized_run(const BaseForm& form, const Ranks& ranks = {}) {
  SavingRun run(ranks);
  set_form(form, &run.spec);
  return run;
}

// The gap that quantizing the base of a trained model opens in its loss over the data, before adapters have
// learnt anything and after. Bounds: about twice what was seen (int8 0.08 %, nf4 2.9 %).
TEST(QuantizedBase, LossIsCloseToThatOfTheModelItself) {
  ModelConfig config = tiny_config();
  config.hidden_size = 160;
  config.intermediate_size = 420;
  config.head_dim = 40;
  SavingRun model({}, config);
  write_test_model(model.spec.model.folder, config, /*scale=*/0.05f);
  model.spec.schedule.learning_rate = 2e-3;
  model.spec.batch.max_steps = 20;
  model.spec.saving.strategy = SaveStrategy::kNo;
  model.spec.data.eval_dataset = model.spec.data.dataset;
  model.spec.evaluation.on_start = true;
  const double untrained = model.run().evaluations.front().loss;
  const auto losses = [&](const BaseForm& form) {
    SavingRun run = model;
    set_form(form, &run.spec);
    run.spec.precision.dtype = DType::kBF16;
    run.spec.schedule.learning_rate = 1e-3;
    run.spec.batch.max_steps = 6;
    run.spec.evaluation.strategy = IntervalStrategy::kSteps;
    run.spec.evaluation.steps = 6;
    run.spec.model.folder = model.output();
    run.spec.output_dir = model.folder() / form.name;
    const RecordingObserver seen = run.run();
    return std::array{seen.evaluations.front().loss, seen.evaluations.back().loss};
  };
  const auto expected = losses({"plain", std::nullopt});
  EXPECT_LT(expected[0], 0.8 * untrained);  // it is trained
  for (const BaseForm& form : kForms) {
    const auto found = losses(form);
    EXPECT_LT(found[1], found[0]) << form.name;
    for (size_t i = 0; i < 2; ++i) {
      const double gap = found[i] / expected[i] - 1;
      EXPECT_LT(std::abs(gap), form.bits == kInt8Bits ? 0.002 : 0.06) << form.name << ' ' << i;
      EXPECT_NE(gap, 0) << form.name;
      RecordProperty(fmt::format("{} {}", form.name, i), fmt::format("{:.2e}", gap));
    }
  }
}

TEST(QuantizedBase, ResumesBitForBitOnAnyRanks) {
  struct Case {
    BaseForm form;
    RanksCase ranks;
    const char* dtype;
  };
  const Case cases[] = {{kForms[0], {{1, 1}, 0, "auto"}, "bfloat16"},
                        {kForms[0], {{2, 2}, 3, "per_layer"}, "float32"},
                        {kForms[1], {{1, 2}, 2, "auto"}, "float32"},
                        {kForms[2], {{1, 1}, 0, "auto"}, "float32"},
                        {kForms[2], {{2, 2}, 2, "auto"}, "bfloat16"}};
  for (const Case& of : cases) {
    SCOPED_TRACE(of.form.name + of.ranks.name());
    SavingRun run = quantized_run(of.form, of.ranks.ranks);
    run.spec.batch.accumulation_steps = 2;
    run.spec.precision.dtype = from_word(of.dtype);
    run.spec.sharding.stage = of.ranks.stage;
    run.spec.sharding.gather_schedule = from_word(of.ranks.schedule);
    run.spec.placement.pack_weights = AutoChoice::kAlways;
    run.run();
    SavingRun resumed = run;
    resumed.interrupt_at(3, "resumed");
    resumed.spec.resume = parse_resume("true");
    resumed.spec.placement.pack_weights = AutoChoice::kNever;
    resumed.spec.placement.gradient_checkpointing = true;
    EXPECT_EQ(resumed.run().resumed_step, 3);
    expect_same_run(resumed.output(), run.output());
  }
}

TEST(QuantizedBase, ResumedInAnotherFormSaysSo) {
  SavingRun run = quantized_run(kForms[0]);
  run.run();
  run.interrupt_at(3, "resumed");
  run.spec.resume = parse_resume("true");
  run.spec.base.bits = 4;
  const RecordingObserver seen = run.run();
  EXPECT_EQ(seen.resumed_step, 3);
  EXPECT_EQ(seen.differences, "quantization_bit 8 -> 4");
}

// --fit takes the form that memory has room for, and a resumed run keeps it.
TEST(QuantizedBase, FitQuantisesOnlyIfNeedBe) {
#if defined(TESSERA_ASAN) || defined(TESSERA_TSAN)
  GTEST_SKIP() << "sanitizers keep memory of their own";
#endif
  ModelConfig config = tiny_config();
  config.hidden_size = 512;
  config.intermediate_size = 8192;
  config.head_dim = 128;
  const BaseForm plain = {"plain", std::nullopt};
  SavingRun run({}, config);
  set_form(plain, &run.spec);
  run.spec.base.double_quant.reset();
  run.spec.precision.dtype = DType::kBF16;
  run.spec.placement.fit = true;
  run.spec.placement.offload_dir = run.folder() / "offload";
  run.spec.sources.given.try_emplace("offload_param_device");  // in memory
  const auto taken = [](const SavingRun& of) {
    return read_json(of.output() / "training_args.json")["quantization_bit"];
  };
  run.run();
  EXPECT_TRUE(taken(run).is_null());
  SavingRun fitted = run;
  fitted.spec.output_dir = run.folder() / "fitted";
  ThreadPool pool(1);
  const auto ops = make_cpu_ops(pool);
  ModelConfig adapted = config;
  adapted.lora = lora_config_of(run.spec.lora, run.spec.model);
  const int64_t plain_bytes = make_model(adapted, DType::kBF16, *ops)->frozen_bytes();
  // Half of the base and what computes with it fit, the whole base does not.
  fitted.spec.placement.fit_memory_bytes = resident_bytes() + plain_bytes * 9 / 10;
  const RecordingObserver seen = fitted.run();
  EXPECT_EQ(taken(fitted), 8);
  SavingRun given = fitted;
  given.spec.output_dir = run.folder() / "given";
  given.spec.placement.fit = false;
  given.spec.base.bits = 8;
  given.run();
  EXPECT_EQ(read_tensors(fitted.output() / "adapter_model.safetensors"),
            read_tensors(given.output() / "adapter_model.safetensors"));

  SavingRun resumed = fitted;
  resumed.spec.placement.fit_memory_bytes.reset();
  resumed.interrupt_at(3, "resumed");
  resumed.spec.resume = parse_resume("true");
  EXPECT_EQ(resumed.run().differences, "");
  EXPECT_EQ(taken(resumed), 8);
}

// The base has its layers in a file; five of them pass through three places in memory.
TEST(QuantizedBase, LayersOnADiskHaveTheBitsOfThoseInMemory) {
  struct Case {
    BaseForm form;
    const char* dtype;
    bool recomputes;
    int64_t num_layers;
    bool is_tied;
  };
  const BaseForm plain = {"plain", std::nullopt};
  const std::vector<Case> cases = {{plain, "bfloat16", false, 5, false},
                                   {plain, "float32", true, 6, true},
                                   {kForms[0], "bfloat16", true, 5, true},
                                   {kForms[1], "float32", false, 2, false},
                                   {kForms[2], "bfloat16", false, 4, false}};
  for (const Case& of : drawn_cases(cases)) {
    SCOPED_TRACE(fmt::format("{} {}", of.form.name, of.dtype));
    ModelConfig config = tiny_config();
    config.num_hidden_layers = of.num_layers;
    config.tie_word_embeddings = of.is_tied;
    SavingRun run({}, config);
    set_form(of.form, &run.spec);
    run.spec.precision.dtype = from_word(of.dtype);
    run.spec.batch.accumulation_steps = 2;
    run.spec.placement.gradient_checkpointing = of.recomputes;
    run.spec.placement.merge_micro_batches = AutoChoice::kNever;
    run.spec.data.eval_dataset = run.spec.data.dataset;
    run.spec.evaluation.strategy = IntervalStrategy::kSteps;
    run.spec.evaluation.steps = 2;
    const RecordingObserver in_memory = run.run();
    SavingRun on_disk = run;
    on_disk.spec.output_dir = run.folder() / "on disk";
    on_disk.spec.placement.offload_dir = run.folder() / "offload";
    on_disk.spec.placement.param_device = OffloadDevice::kNvme;
    const RecordingObserver seen = on_disk.run();
    expect_same_run(on_disk.output(), run.output());
    ASSERT_EQ(seen.evaluations.size(), in_memory.evaluations.size());
    for (size_t i = 0; i < seen.evaluations.size(); ++i) {
      EXPECT_EQ(seen.evaluations[i].loss, in_memory.evaluations[i].loss);
    }
    EXPECT_GT(seen.plan.disk.offload_bytes, 0);
    EXPECT_TRUE(fs::is_empty(run.folder() / "offload"));
    for (const StepMetrics& step : seen.steps) {
      ASSERT_TRUE(step.disk);
      EXPECT_EQ(step.disk->written_bytes, 0);
      EXPECT_EQ(step.disk->read_bytes > 0, of.num_layers > 3);
    }
    // From memory to disk and back.
    for (const bool to_disk : {true, false}) {
      SavingRun resumed = to_disk ? on_disk : run;
      resumed.spec.output_dir = to_disk ? run.output() : on_disk.output();
      resumed.interrupt_at(3, to_disk ? "to disk" : "to memory");
      resumed.spec.resume = parse_resume("auto");
      EXPECT_EQ(resumed.run().resumed_step, 3);
      expect_same_run(resumed.output(), run.output());
    }
  }
}

// Quantizing, and the products of rows, do not depend on ranks: only sums of gradients have another order.
TEST(QuantizedBase, HasTheSameLossesOnAnyRanks) {
  for (const BaseForm& form : kForms) {
    SavingRun one = quantized_run(form);
    const RecordingObserver expected = one.run();
    SavingRun many = quantized_run(form, {2, 2});
    many.spec.model.folder = one.spec.model.folder;
    many.spec.data.dataset = one.spec.data.dataset;
    const RecordingObserver found = many.run();
    EXPECT_NEAR(found.steps[0].loss, expected.steps[0].loss, 1e-6 * expected.steps[0].loss) << form.name;
    for (size_t i = 1; i < 3; ++i) {  // the first epoch, whose steps have the same rows
      EXPECT_NEAR(found.steps[i].loss, expected.steps[i].loss, 1e-3 * expected.steps[i].loss) << form.name;
    }
  }
}

// The saved adapter is like any other; merged, it is added to the weights as they are on disk.
TEST(QuantizedBase, WritesAnAdapterOfTheModelOnDisk) {
  const SavingRun run = quantized_run(kForms[0]);
  const auto before = read_tensors(run.spec.model.folder);
  const MergedLosses losses = train_and_merge(run);
  EXPECT_NEAR(losses.merged, losses.adapted, 1e-3 * losses.adapted);
  EXPECT_EQ(read_tensors(run.spec.model.folder), before);
  const nlohmann::json config = read_json(run.output() / "adapter_config.json");
  EXPECT_EQ(config["base_model_name_or_path"], run.spec.model.folder);
  EXPECT_EQ(config.dump().find("quant"), std::string::npos);
}

TEST(QuantizedBase, IsPlannedOncePerNode) {
  std::map<std::string, int64_t> sizes;
  for (const BaseForm& form : kForms) {
    const RecordingObserver seen = quantized_run(form, {1, 2}).run();
    for (const MemoryItem& item : seen.plan.memory.items) {
      if (item.name != "frozen") continue;
      EXPECT_EQ(item.scope, MemoryScope::kNode);
      sizes[form.name] = item.size_bytes;
    }
  }
  // The embedding, norms and head stay as they are.
  const ParameterLayout layout = parameter_layout(tiny_config());
  int64_t kept = 0, matrices = 0;
  for (const Parameter& parameter : layout.parameters()) {
    (parameter.kind == ParameterKind::kMatrix ? matrices : kept) += parameter.num_elements;
  }
  EXPECT_GE(sizes["int8"], 4 * kept + matrices);
  EXPECT_LT(sizes["int8"], 4 * kept + matrices * 11 / 10 + 64 * 100);
  EXPECT_LT(sizes["nf4"], sizes["int8"]);
  EXPECT_GT(sizes["nf4"], 4 * kept + matrices / 2);
}

}  // namespace
}  // namespace tessera
