// Whole runs on a device whose memory the host cannot reach: the same as on the host, bit for bit, and
// either can resume from the other's checkpoints.
#include <gtest/gtest.h>

#include "expect_error.h"
#include "ops/cpu_ops.h"
#include "support/from_word.h"
#include "support/isolated_device.h"
#include "support/train_test_support.h"

namespace tessera {
namespace {

RecordingObserver train_on(bool on_device, const RunSpec& args) {
  RecordingObserver seen;
  ThreadPool pool(2);
  Trainer trainer(args, pool, seen, single_process(), [&](ThreadPool& threads) -> std::unique_ptr<Ops> {
    if (on_device) return std::make_unique<OwnedIsolatedOps>(threads);
    return make_cpu_ops(threads);
  });
  trainer.run();
  return seen;
}

// Changes of the settings of a run.
struct Form {
  const char* name;
  void (*apply)(RunSpec* args);

  friend void PrintTo(const Form& form, std::ostream* out) { *out << form.name; }
};

class DeviceRun : public testing::TestWithParam<Form> {
 protected:
  DeviceRun() {
    run_.args.reporting.measure_peak = false;
    run_.args.batch.max_steps = 4;
    run_.args.saving.strategy = SaveStrategy::kSteps;
    run_.args.saving.steps = 2;
    run_.args.optimizer.weight_decay = 0.1;
    run_.args.data.eval_dataset = run_.args.data.dataset;
    run_.args.evaluation.strategy = IntervalStrategy::kSteps;
    run_.args.evaluation.steps = 2;
    GetParam().apply(&run_.args);
  }
  std::filesystem::path result() const {
    const bool is_adapter = run_.args.lora.finetuning_type == FinetuningType::kLora;
    return std::filesystem::path(run_.args.output_dir) /
           (is_adapter ? "adapter_model.safetensors" : "model.safetensors");
  }

  TinyRun run_;
};

TEST_P(DeviceRun, EqualsTheHostsAndGoesOnFromItsCheckpoints) {
  const std::string folder = run_.args.output_dir;
  std::map<std::string, std::vector<float>> expected;
  double loss = 0;
  for (const bool on_device : {false, true}) {
    run_.args.output_dir = folder + (on_device ? "-device" : "-host");
    run_.args.resume = parse_resume("");
    const RecordingObserver seen = train_on(on_device, run_.args);
    if (!on_device) expected = read_tensors(result()), loss = seen.evaluations.back().loss;
    EXPECT_TRUE(read_tensors(result()) == expected);
    EXPECT_EQ(seen.evaluations.back().loss, loss);
    EXPECT_EQ(seen.plan.memory.device, on_device ? "isolated" : "");
    if (on_device) {
      EXPECT_GT(seen.plan.memory.device_bytes(), 0);
      EXPECT_EQ(seen.plan.free_bytes, int64_t{1} << 40) << "the card's";
    }
    // Steps 3 and 4 once more, on the other.
    run_.args.resume = parse_resume(run_.args.output_dir + "/checkpoint-2");
    run_.args.output_dir += "-resumed";
    EXPECT_EQ(train_on(!on_device, run_.args).resumed_step, 2);
    EXPECT_TRUE(read_tensors(result()) == expected);
  }
}

class DeviceRanks : public testing::TestWithParam<RanksCase> {};

// Each rank has a device of its own, and the host does what it does for ranks without any.
TEST_P(DeviceRanks, EqualThoseOfTheHost) {
  TinyRun run;
  run.args.reporting.measure_peak = false;
  run.args.precision.dtype = DType::kBF16;
  run.args.batch.max_steps = 3;
  run.args.batch.rows_per_device = 1;
  run.args.placement.param_device = OffloadDevice::kCpu;
  run.args.sharding.stage = GetParam().stage;
  run.args.sharding.gather_schedule = from_word(GetParam().schedule);
  run.args.sharding.persistence_threshold = 0;
  run.args.sharding.prefetch_bucket_size = 0;
  run.args.batch.accumulation_steps = GetParam().schedule == "per_layer" ? 1 : 2;
  const std::string folder = run.args.output_dir;
  run.args.output_dir = folder + "-host";
  const std::vector<RecordingObserver> expected = train_ranks(run.args, GetParam().ranks, 1);
  const auto weights = read_tensors(std::filesystem::path(run.args.output_dir) / "model.safetensors");

  run.args.output_dir = folder + "-device";
  std::vector<RecordingObserver> found(expected.size());
  run_ranks(GetParam().ranks, [&](Communicator& comm) {
    ThreadPool pool(1);
    Trainer trainer(run.args, pool, found[static_cast<size_t>(comm.world().rank)], comm,
                    [](ThreadPool& threads) { return std::make_unique<OwnedIsolatedOps>(threads); });
    trainer.run();
  });
  ASSERT_EQ(found[0].steps.size(), expected[0].steps.size());
  for (size_t i = 0; i < expected[0].steps.size(); ++i) {
    EXPECT_EQ(found[0].steps[i].loss, expected[0].steps[i].loss) << "step " << i;
    EXPECT_EQ(found[0].steps[i].grad_norm, expected[0].steps[i].grad_norm) << "step " << i;
  }
  EXPECT_EQ(read_tensors(std::filesystem::path(run.args.output_dir) / "model.safetensors"), weights);
  EXPECT_GT(found[0].plan.memory.device_bytes(), 0);
}

INSTANTIATE_TEST_SUITE_P(Ranks, DeviceRanks,
                         testing::Values(RanksCase{{1, 2}, 2, "per_step"}, RanksCase{{2, 1}, 0, "per_step"},
                                         RanksCase{{2, 1}, 3, "per_layer"}, RanksCase{{2, 2}, 3, "per_step"},
                                         RanksCase{{2, 2}, 3, "per_layer"}),
                         [](const auto& test) { return test.param.name(); });

TEST(DeviceMemory, IsWhatARunMustFitInto) {
  TinyRun run;
  run.args.reporting.measure_peak = false;
  ThreadPool pool(1);
  RecordingObserver seen;
  expect_error(ExitCode::kBadConfig,
               {"does not fit in memory", "of isolated", "activations: workspace of the products",
                "a card with more memory"},
               [&] {
                 Trainer(run.args, pool, seen, single_process(), [](ThreadPool& threads) {
                   return std::make_unique<OwnedIsolatedOps>(threads, 1 << 10);
                 });
               });
  EXPECT_GT(seen.plan.memory.device_bytes(), 1 << 10) << "the plan is shown all the same";
}

TEST(DeviceMemory, TheHostIsAdvisedWhereItHasRoom) {
  TinyRun run;
  run.args.reporting.measure_peak = false;
  const auto plan_with = [&](int64_t free_bytes) {
    ThreadPool pool(1);
    RecordingObserver seen;
    const auto make = [&](ThreadPool& threads) {
      return std::make_unique<OwnedIsolatedOps>(threads, free_bytes);
    };
    Trainer(run.args, pool, seen, single_process(), make);
    return seen.plan.memory.device_bytes();
  };
  run.args.placement.gradient_checkpointing = true;
  const int64_t on_device = plan_with(int64_t{1} << 40);
  run.args.placement.optimizer_device = OffloadDevice::kCpu;
  const int64_t beside_host = plan_with(int64_t{1} << 40);
  EXPECT_LT(beside_host, on_device);
  run.args.placement.optimizer_device = OffloadDevice::kNone;
  expect_error(ExitCode::kBadConfig, {"with offload_optimizer_device cpu it would take"},
               [&] { plan_with(beside_host); });
}

INSTANTIATE_TEST_SUITE_P(Forms, DeviceRun,
                         testing::Values(Form{"Float32", [](RunSpec*) {}},
                                         Form{"Bf16",
                                              [](RunSpec* args) { args->precision.dtype = DType::kBF16; }},
                                         Form{"OptimizerOnTheHost",
                                              [](RunSpec* args) {
                                                args->precision.dtype = DType::kBF16;
                                                args->optimizer.form = OptimizerForm::kAdamWHalf;
                                                args->placement.optimizer_device = OffloadDevice::kCpu;
                                              }},
                                         Form{"ParametersOnTheHost",
                                              [](RunSpec* args) {
                                                args->precision.dtype = DType::kBF16;
                                                args->placement.param_device = OffloadDevice::kCpu;
                                                args->placement.gradient_checkpointing = true;
                                              }},
                                         Form{"ParametersOnTheHostOnePass",
                                              [](RunSpec* args) {
                                                args->batch.accumulation_steps = 1;
                                                args->placement.param_device = OffloadDevice::kCpu;
                                              }},
                                         Form{"UpdatedInBackward",
                                              [](RunSpec* args) {
                                                args->precision.dtype = DType::kBF16;
                                                args->batch.accumulation_steps = 1;
                                                args->clipping.max_norm = 0;
                                                args->placement.optimizer_in_backward = true;
                                                args->placement.param_device = OffloadDevice::kCpu;
                                              }},
                                         Form{"OnTheDisk",
                                              [](RunSpec* args) {
                                                args->precision.dtype = DType::kBF16;
                                                args->batch.accumulation_steps = 1;
                                                args->clipping.max_norm = 0;
                                                args->placement.optimizer_in_backward = true;
                                                args->placement.optimizer_device = OffloadDevice::kNvme;
                                                args->placement.param_device = OffloadDevice::kNvme;
                                                args->placement.offload_dir = args->output_dir + "-scratch";
                                              }},
                                         Form{"LoraBesideWeightsOnTheHost",
                                              [](RunSpec* args) {
                                                args->precision.dtype = DType::kBF16;
                                                args->lora.finetuning_type = FinetuningType::kLora;
                                                args->lora.rank = 4;
                                                args->placement.param_device = OffloadDevice::kCpu;
                                              }},
                                         Form{"Lora",
                                              [](RunSpec* args) {
                                                args->precision.dtype = DType::kBF16;
                                                args->lora.finetuning_type = FinetuningType::kLora;
                                                args->lora.rank = 4;
                                                args->lora.dropout = 0.1;
                                                args->placement.gradient_checkpointing = true;
                                              }}),
                         [](const auto& test) { return std::string(test.param.name); });

}  // namespace
}  // namespace tessera
