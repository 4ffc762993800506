// Whole runs on a device whose memory the host cannot reach: the same as on the host, bit for bit, and
// either can resume from the other's checkpoints.
#include <gtest/gtest.h>

#include "expect_error.h"
#include "ops/cpu_ops.h"
#include "support/isolated_device.h"
#include "support/train/from_word.h"
#include "support/train/train_test_support.h"

namespace tessera {
namespace {

RecordingObserver train_on(bool on_device, const RunSpec& spec) {
  RecordingObserver seen;
  ThreadPool pool(2);
  Trainer trainer(spec, pool, seen, single_process(), [&](ThreadPool& threads) -> std::unique_ptr<Ops> {
    if (on_device) return std::make_unique<OwnedIsolatedOps>(threads);
    return make_cpu_ops(threads);
  });
  trainer.run();
  return seen;
}

// Changes of the settings of a run.
struct Form {
  const char* name;
  void (*apply)(RunSettings* spec);

  friend void PrintTo(const Form& form, std::ostream* out) { *out << form.name; }
};

class DeviceRun : public testing::TestWithParam<Form> {
 protected:
  DeviceRun() {
    run_.spec.reporting.measure_peak = false;
    run_.spec.batch.max_steps = 4;
    run_.spec.saving.strategy = SaveStrategy::kSteps;
    run_.spec.saving.steps = 2;
    run_.spec.optimizer.weight_decay = 0.1;
    run_.spec.data.eval_dataset = run_.spec.data.dataset;
    run_.spec.evaluation.strategy = IntervalStrategy::kSteps;
    run_.spec.evaluation.steps = 2;
    GetParam().apply(&run_.spec);
  }
  std::filesystem::path result() const {
    const bool is_adapter = run_.spec.lora.finetuning_type == FinetuningType::kLora;
    return std::filesystem::path(run_.spec.output_dir) /
           (is_adapter ? "adapter_model.safetensors" : "model.safetensors");
  }

  TinyRun run_;
};

TEST_P(DeviceRun, EqualsTheHostsAndGoesOnFromItsCheckpoints) {
  const std::string folder = run_.spec.output_dir;
  std::map<std::string, std::vector<float>> expected;
  double loss = 0;
  for (const bool on_device : {false, true}) {
    run_.spec.output_dir = folder + (on_device ? "-device" : "-host");
    run_.spec.resume = parse_resume("");
    const RecordingObserver seen = train_on(on_device, run_.spec);
    if (!on_device) expected = read_tensors(result()), loss = seen.evaluations.back().loss;
    EXPECT_TRUE(read_tensors(result()) == expected);
    EXPECT_EQ(seen.evaluations.back().loss, loss);
    EXPECT_EQ(seen.plan.memory.device, on_device ? "isolated" : "");
    if (on_device) {
      EXPECT_GT(seen.plan.memory.device_bytes(), 0);
      EXPECT_EQ(seen.plan.free_bytes, int64_t{1} << 40) << "the card's";
    }
    // Steps 3 and 4 once more, on the other.
    run_.spec.resume = parse_resume(run_.spec.output_dir + "/checkpoint-2");
    run_.spec.output_dir += "-resumed";
    EXPECT_EQ(train_on(!on_device, run_.spec).resumed_step, 2);
    EXPECT_TRUE(read_tensors(result()) == expected);
  }
}

class DeviceRanks : public testing::TestWithParam<RanksCase> {};

// Each rank has a device of its own, and the host does what it does for ranks without any.
TEST_P(DeviceRanks, EqualThoseOfTheHost) {
  TinyRun run;
  run.spec.reporting.measure_peak = false;
  run.spec.precision.dtype = DType::kBF16;
  run.spec.batch.max_steps = 3;
  run.spec.batch.rows_per_device = 1;
  run.spec.placement.param_device = OffloadDevice::kCpu;
  run.spec.sharding.stage = GetParam().stage;
  run.spec.sharding.gather_schedule = from_word(GetParam().schedule);
  run.spec.sharding.persistence_threshold = 0;
  run.spec.sharding.prefetch_bucket_size = 0;
  run.spec.batch.accumulation_steps = GetParam().schedule == "per_layer" ? 1 : 2;
  const std::string folder = run.spec.output_dir;
  run.spec.output_dir = folder + "-host";
  const std::vector<RecordingObserver> expected = train_ranks(run.spec, GetParam().ranks, 1);
  const auto weights = read_tensors(std::filesystem::path(run.spec.output_dir) / "model.safetensors");

  run.spec.output_dir = folder + "-device";
  std::vector<RecordingObserver> found(expected.size());
  run_ranks(GetParam().ranks, [&](Communicator& comm) {
    ThreadPool pool(1);
    Trainer trainer(run.spec, pool, found[static_cast<size_t>(comm.world().rank)], comm,
                    [](ThreadPool& threads) { return std::make_unique<OwnedIsolatedOps>(threads); });
    trainer.run();
  });
  ASSERT_EQ(found[0].steps.size(), expected[0].steps.size());
  for (size_t i = 0; i < expected[0].steps.size(); ++i) {
    EXPECT_EQ(found[0].steps[i].loss, expected[0].steps[i].loss) << "step " << i;
    EXPECT_EQ(found[0].steps[i].grad_norm, expected[0].steps[i].grad_norm) << "step " << i;
  }
  EXPECT_EQ(read_tensors(std::filesystem::path(run.spec.output_dir) / "model.safetensors"), weights);
  EXPECT_GT(found[0].plan.memory.device_bytes(), 0);
}

INSTANTIATE_TEST_SUITE_P(Ranks, DeviceRanks,
                         testing::Values(RanksCase{{1, 2}, 2, "per_step"}, RanksCase{{2, 1}, 0, "per_step"},
                                         RanksCase{{2, 1}, 3, "per_layer"}, RanksCase{{2, 2}, 3, "per_step"},
                                         RanksCase{{2, 2}, 3, "per_layer"}),
                         [](const auto& test) { return test.param.name(); });

TEST(DeviceMemory, IsWhatARunMustFitInto) {
  TinyRun run;
  run.spec.reporting.measure_peak = false;
  ThreadPool pool(1);
  RecordingObserver seen;
  expect_error(ExitCode::kBadConfig,
               {"does not fit in memory", "of isolated", "activations: workspace of the products",
                "a card with more memory"},
               [&] {
                 Trainer(run.spec, pool, seen, single_process(), [](ThreadPool& threads) {
                   return std::make_unique<OwnedIsolatedOps>(threads, 1 << 10);
                 });
               });
  EXPECT_GT(seen.plan.memory.device_bytes(), 1 << 10) << "the plan is shown all the same";
}

TEST(DeviceMemory, TheHostIsAdvisedWhereItHasRoom) {
  TinyRun run;
  run.spec.reporting.measure_peak = false;
  const auto plan_with = [&](int64_t free_bytes) {
    ThreadPool pool(1);
    RecordingObserver seen;
    const auto make = [&](ThreadPool& threads) {
      return std::make_unique<OwnedIsolatedOps>(threads, free_bytes);
    };
    Trainer(run.spec, pool, seen, single_process(), make);
    return seen.plan.memory.device_bytes();
  };
  run.spec.placement.gradient_checkpointing = true;
  const int64_t on_device = plan_with(int64_t{1} << 40);
  run.spec.placement.optimizer_device = OffloadDevice::kCpu;
  const int64_t beside_host = plan_with(int64_t{1} << 40);
  EXPECT_LT(beside_host, on_device);
  run.spec.placement.optimizer_device = OffloadDevice::kNone;
  expect_error(ExitCode::kBadConfig, {"with offload_optimizer_device cpu it would take"},
               [&] { plan_with(beside_host); });
}

INSTANTIATE_TEST_SUITE_P(
    Forms, DeviceRun,
    testing::Values(Form{"Float32", [](RunSettings*) {}},
                    Form{"Bf16", [](RunSettings* spec) { spec->precision.dtype = DType::kBF16; }},
                    Form{"OptimizerOnTheHost",
                         [](RunSettings* spec) {
                           spec->precision.dtype = DType::kBF16;
                           spec->optimizer.form = OptimizerForm::kAdamWHalf;
                           spec->placement.optimizer_device = OffloadDevice::kCpu;
                         }},
                    Form{"ParametersOnTheHost",
                         [](RunSettings* spec) {
                           spec->precision.dtype = DType::kBF16;
                           spec->placement.param_device = OffloadDevice::kCpu;
                           spec->placement.gradient_checkpointing = true;
                         }},
                    Form{"ParametersOnTheHostOnePass",
                         [](RunSettings* spec) {
                           spec->batch.accumulation_steps = 1;
                           spec->placement.param_device = OffloadDevice::kCpu;
                         }},
                    Form{"UpdatedInBackward",
                         [](RunSettings* spec) {
                           spec->precision.dtype = DType::kBF16;
                           spec->batch.accumulation_steps = 1;
                           spec->clipping.max_norm = 0;
                           spec->placement.optimizer_in_backward = true;
                           spec->placement.param_device = OffloadDevice::kCpu;
                         }},
                    Form{"OnTheDisk",
                         [](RunSettings* spec) {
                           spec->precision.dtype = DType::kBF16;
                           spec->batch.accumulation_steps = 1;
                           spec->clipping.max_norm = 0;
                           spec->placement.optimizer_in_backward = true;
                           spec->placement.optimizer_device = OffloadDevice::kNvme;
                           spec->placement.param_device = OffloadDevice::kNvme;
                           spec->placement.offload_dir = spec->output_dir + "-scratch";
                         }},
                    Form{"LoraBesideWeightsOnTheHost",
                         [](RunSettings* spec) {
                           spec->precision.dtype = DType::kBF16;
                           spec->lora.finetuning_type = FinetuningType::kLora;
                           spec->lora.rank = 4;
                           spec->placement.param_device = OffloadDevice::kCpu;
                         }},
                    Form{"Lora",
                         [](RunSettings* spec) {
                           spec->precision.dtype = DType::kBF16;
                           spec->lora.finetuning_type = FinetuningType::kLora;
                           spec->lora.rank = 4;
                           spec->lora.dropout = 0.1;
                           spec->placement.gradient_checkpointing = true;
                         }}),
    [](const auto& test) { return std::string(test.param.name); });

}  // namespace
}  // namespace tessera
