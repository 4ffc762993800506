// Compares the peak memory of runs with the plan.
#include <gtest/gtest.h>

#include <fstream>
#include <optional>
#include <string>

#include "base/sanitizers.h"
#include "platform/memory_info.h"
#include "support/train/from_word.h"
#include "support/train/medium_config.h"
#include "support/train/train_test_support.h"

namespace tessera {
namespace {

// Resets VmHWM to the current size (Documentation/filesystems/proc.rst, clear_refs).
bool reset_peak() { return static_cast<bool>(std::ofstream("/proc/self/clear_refs") << "5" << std::flush); }

struct PeakCase {
  const char* name;
  const char* dtype;  // with checkpointing if BF16
  void (*change)(RunSettings* spec) = [](RunSettings*) {};

  friend void PrintTo(const PeakCase& of, std::ostream* out) { *out << of.name; }
};
class PeakMemory : public testing::TestWithParam<PeakCase> {};

TEST_P(PeakMemory, StaysWithinATenthOfThePlan) {
#if defined(TESSERA_ASAN) || defined(TESSERA_TSAN)
  GTEST_SKIP() << "sanitizers keep memory of their own";
#endif
  TinyRun tiny(medium_config());
  const int64_t vocab_size = medium_config().vocab_size;
  write_token_rows(tiny.spec.data.dataset[0], random_rows(std::vector<int64_t>(4, 100), vocab_size, 5));
  tiny.spec.precision.dtype = from_word(GetParam().dtype);
  tiny.spec.placement.gradient_checkpointing = tiny.spec.precision.dtype == DType::kBF16;
  tiny.spec.placement.offload_dir = tiny.folder() / "offload";
  GetParam().change(&tiny.spec);
  tiny.spec.batch.accumulation_steps = 1;
  tiny.spec.batch.max_steps = 2;
  tiny.spec.saving.strategy = SaveStrategy::kSteps;
  tiny.spec.saving.in_background =
      false;  // the used part of the snapshot depends on what changes before it is written
  tiny.spec.data.eval_dataset = {tiny.folder() / "eval.safetensors"};
  tiny.spec.evaluation.strategy = IntervalStrategy::kEpoch;
  const std::optional<ProportionalMemory> own = proportional_memory();
  if (!own || !reset_peak()) GTEST_SKIP() << "the kernel does not let the memory be measured";
  // The plan counts a share of the pages of the program and its libraries that other processes have mapped,
  // too.
  const int64_t shared_with_others = resident_bytes() - own->private_bytes() - own->shared_bytes;
  const RecordingObserver run = tiny.train();
  const auto planned = static_cast<double>(run.plan.memory.node_bytes() + shared_with_others);
  const auto peak = static_cast<double>(run.summary.peak_resident_bytes);
  RecordProperty("planned_bytes", std::to_string(run.plan.memory.node_bytes()));
  RecordProperty("peak_bytes", std::to_string(run.summary.peak_resident_bytes));
  const bool is_small = tiny.spec.lora.finetuning_type == FinetuningType::kLora ||
                        (tiny.spec.placement.param_device == OffloadDevice::kNvme &&
                         tiny.spec.placement.optimizer_device == OffloadDevice::kNvme);
  EXPECT_GT(planned, is_small ? 80e6 : 200e6);
  EXPECT_NEAR(peak / planned, 1, 0.1) << "planned\n"
                                      << memory_table(run.plan.memory, run.plan.free_bytes) << "peak " << peak
                                      << ", pages of others " << shared_with_others;
}

INSTANTIATE_TEST_SUITE_P(
    Modes, PeakMemory,
    testing::Values(
        PeakCase{"Float32", "float32"}, PeakCase{"Bfloat16Checkpointing", "bfloat16"},
        PeakCase{"EightBits", "bfloat16",
                 [](RunSettings* spec) { spec->optimizer.form = OptimizerForm::kAdamW8Bit; }},
        PeakCase{"OuterOptimizer", "bfloat16",
                 [](RunSettings* spec) {
                   spec->outer.sync_every = 1;
                   spec->sharding.quantized_gradients = GradientCode::kInt8;
                 }},
        PeakCase{"Muon", "bfloat16", [](RunSettings* spec) { spec->optimizer.form = OptimizerForm::kMuon; }},
        PeakCase{"Adafactor", "bfloat16",
                 [](RunSettings* spec) { spec->optimizer.form = OptimizerForm::kAdafactor; }},
        PeakCase{"QuantizedBase", "bfloat16",
                 [](RunSettings* spec) {
                   spec->lora.finetuning_type = FinetuningType::kLora;
                   spec->base.bits = 8;
                 }},
        PeakCase{"FrozenLayersOnDisk", "bfloat16",
                 [](RunSettings* spec) {
                   spec->lora.finetuning_type = FinetuningType::kLora;
                   spec->placement.param_device = OffloadDevice::kNvme;
                 }},
        PeakCase{"OptimizerOnDisk", "bfloat16",
                 [](RunSettings* spec) { spec->placement.optimizer_device = OffloadDevice::kNvme; }},
        PeakCase{"MuonOnDisk", "bfloat16",
                 [](RunSettings* spec) {
                   spec->optimizer.form = OptimizerForm::kMuon;
                   spec->placement.optimizer_device = OffloadDevice::kNvme;
                 }},
        PeakCase{"InputsOnDisk", "bfloat16",
                 [](RunSettings* spec) { spec->placement.checkpointing_mode = CheckpointingMode::kOffload; }},
        PeakCase{"InBackward", "bfloat16",
                 [](RunSettings* spec) { spec->placement.optimizer_in_backward = true; }},
        PeakCase{"LayersOnDisk", "bfloat16",
                 [](RunSettings* spec) {
                   spec->placement.optimizer_in_backward = true;
                   spec->placement.param_device = OffloadDevice::kNvme;
                 }},
        PeakCase{"StateAndLayersOnDisk", "bfloat16",
                 [](RunSettings* spec) {
                   spec->placement.optimizer_in_backward = true;
                   spec->placement.param_device = spec->placement.optimizer_device = OffloadDevice::kNvme;
                 }}),
    [](const auto& test) { return test.param.name; });

}  // namespace
}  // namespace tessera
