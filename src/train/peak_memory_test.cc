// What runs take at most, against the plan.
#include <gtest/gtest.h>

#include <fstream>
#include <optional>
#include <string>

#include "base/sanitizers.h"
#include "platform/memory_info.h"
#include "support/from_word.h"
#include "support/medium_config.h"
#include "support/train_test_support.h"

namespace tessera {
namespace {

// Resets VmHWM to the current size (Documentation/filesystems/proc.rst, clear_refs).
bool reset_peak() { return static_cast<bool>(std::ofstream("/proc/self/clear_refs") << "5" << std::flush); }

struct PeakCase {
  const char* name;
  const char* dtype;  // with checkpointing if BF16
  void (*change)(TrainingArguments* args) = [](TrainingArguments*) {};

  friend void PrintTo(const PeakCase& of, std::ostream* out) { *out << of.name; }
};
class PeakMemory : public testing::TestWithParam<PeakCase> {};

TEST_P(PeakMemory, StaysWithinATenthOfThePlan) {
#if defined(TESSERA_ASAN) || defined(TESSERA_TSAN)
  GTEST_SKIP() << "sanitizers keep memory of their own";
#endif
  TinyRun tiny(medium_config());
  const int64_t vocab_size = medium_config().vocab_size;
  write_token_rows(tiny.args.dataset[0], random_rows(std::vector<int64_t>(4, 100), vocab_size, 5));
  tiny.args.dtype = from_word(GetParam().dtype);
  tiny.args.gradient_checkpointing = tiny.args.dtype == DType::kBF16;
  tiny.args.offload_dir = tiny.folder() / "offload";
  GetParam().change(&tiny.args);
  tiny.args.gradient_accumulation_steps = 1;
  tiny.args.max_steps = 2;
  tiny.args.save_strategy = SaveStrategy::kSteps;
  tiny.args.async_save =
      false;  // how much of the snapshot is used depends on what changes before it is written
  tiny.args.eval_dataset = {tiny.folder() / "eval.safetensors"};
  tiny.args.eval_strategy = IntervalStrategy::kEpoch;
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
  const bool is_small = tiny.args.finetuning_type == FinetuningType::kLora ||
                        (tiny.args.offload_param_device == OffloadDevice::kNvme &&
                         tiny.args.offload_optimizer_device == OffloadDevice::kNvme);
  EXPECT_GT(planned, is_small ? 80e6 : 200e6);
  EXPECT_NEAR(peak / planned, 1, 0.1) << "planned\n"
                                      << memory_table(run.plan.memory, run.plan.free_bytes) << "peak " << peak
                                      << ", pages of others " << shared_with_others;
}

INSTANTIATE_TEST_SUITE_P(
    Modes, PeakMemory,
    testing::Values(
        PeakCase{"Float32", "float32"}, PeakCase{"Bfloat16Checkpointing", "bfloat16"},
        PeakCase{"EightBits", "bfloat16", [](TrainingArguments* args) { args->optim = "adamw_8bit"; }},
        PeakCase{"OuterOptimizer", "bfloat16",
                 [](TrainingArguments* args) {
                   args->sync_every = 1;
                   args->zero_quantized_gradients = GradientQuantization::kInt8;
                 }},
        PeakCase{"Muon", "bfloat16", [](TrainingArguments* args) { args->optim = "muon"; }},
        PeakCase{"Adafactor", "bfloat16", [](TrainingArguments* args) { args->optim = "adafactor"; }},
        PeakCase{"QuantizedBase", "bfloat16",
                 [](TrainingArguments* args) {
                   args->finetuning_type = FinetuningType::kLora;
                   args->quantization_bit = 8;
                 }},
        PeakCase{"FrozenLayersOnDisk", "bfloat16",
                 [](TrainingArguments* args) {
                   args->finetuning_type = FinetuningType::kLora;
                   args->offload_param_device = OffloadDevice::kNvme;
                 }},
        PeakCase{"OptimizerOnDisk", "bfloat16",
                 [](TrainingArguments* args) { args->offload_optimizer_device = OffloadDevice::kNvme; }},
        PeakCase{"MuonOnDisk", "bfloat16",
                 [](TrainingArguments* args) {
                   args->optim = "muon";
                   args->offload_optimizer_device = OffloadDevice::kNvme;
                 }},
        PeakCase{
            "InputsOnDisk", "bfloat16",
            [](TrainingArguments* args) { args->gradient_checkpointing_mode = CheckpointingMode::kOffload; }},
        PeakCase{"InBackward", "bfloat16",
                 [](TrainingArguments* args) { args->optimizer_in_backward = true; }},
        PeakCase{"LayersOnDisk", "bfloat16",
                 [](TrainingArguments* args) {
                   args->optimizer_in_backward = true;
                   args->offload_param_device = OffloadDevice::kNvme;
                 }},
        PeakCase{"StateAndLayersOnDisk", "bfloat16",
                 [](TrainingArguments* args) {
                   args->optimizer_in_backward = true;
                   args->offload_param_device = args->offload_optimizer_device = OffloadDevice::kNvme;
                 }}),
    [](const auto& test) { return test.param.name; });

}  // namespace
}  // namespace tessera
