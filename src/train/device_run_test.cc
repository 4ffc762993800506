// Whole runs on a device whose memory the host cannot reach: the same as on the host, bit for bit, and
// either can resume from the other's checkpoints.
#include <gtest/gtest.h>

#include "expect_error.h"
#include "ops/cpu_ops.h"
#include "support/isolated_device.h"
#include "support/train_test_support.h"

namespace tessera {
namespace {

// Ops of a device, which owns everything they need.
class OwnedIsolatedOps final : public ForwardingOps {
 public:
  explicit OwnedIsolatedOps(ThreadPool& pool, int64_t free_bytes = int64_t{1} << 40)
      : ForwardingOps(*this),
        cpu_ops_(make_cpu_ops(pool)),
        device_(free_bytes),
        isolated_(*cpu_ops_, device_) {
    forward_to(isolated_);
  }
  Device& device() const override { return isolated_.device(); }

 private:
  std::unique_ptr<Ops> cpu_ops_;
  IsolatedDevice device_;
  IsolatedOps isolated_;
};

RecordingObserver train_on(bool on_device, const TrainingArguments& args) {
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
  void (*apply)(TrainingArguments* args);

  friend void PrintTo(const Form& form, std::ostream* out) { *out << form.name; }
};

class DeviceRun : public testing::TestWithParam<Form> {
 protected:
  DeviceRun() {
    run_.args.measure_peak = false;
    run_.args.max_steps = 4;
    run_.args.save_strategy = "steps";
    run_.args.save_steps = 2;
    run_.args.weight_decay = 0.1;
    run_.args.eval_dataset = run_.args.dataset;
    run_.args.eval_strategy = "steps";
    run_.args.eval_steps = 2;
    GetParam().apply(&run_.args);
  }
  std::filesystem::path result() const {
    const bool is_adapter = run_.args.finetuning_type == "lora";
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
    run_.args.resume_from_checkpoint = "";
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
    run_.args.resume_from_checkpoint = run_.args.output_dir + "/checkpoint-2";
    run_.args.output_dir += "-resumed";
    EXPECT_EQ(train_on(!on_device, run_.args).resumed_step, 2);
    EXPECT_TRUE(read_tensors(result()) == expected);
  }
}

TEST(DeviceMemory, IsWhatARunMustFitInto) {
  TinyRun run;
  run.args.measure_peak = false;
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

INSTANTIATE_TEST_SUITE_P(Forms, DeviceRun,
                         testing::Values(Form{"Float32", [](TrainingArguments*) {}},
                                         Form{"Bf16",
                                              [](TrainingArguments* args) { args->dtype = "bfloat16"; }},
                                         Form{"OptimizerOnTheHost",
                                              [](TrainingArguments* args) {
                                                args->dtype = "bfloat16";
                                                args->optim = "adamw_bf16";
                                                args->offload_optimizer_device = "cpu";
                                              }},
                                         Form{"ParametersOnTheHost",
                                              [](TrainingArguments* args) {
                                                args->dtype = "bfloat16";
                                                args->offload_param_device = "cpu";
                                                args->gradient_checkpointing = true;
                                              }},
                                         Form{"ParametersOnTheHostOnePass",
                                              [](TrainingArguments* args) {
                                                args->gradient_accumulation_steps = 1;
                                                args->offload_param_device = "cpu";
                                              }},
                                         Form{"UpdatedInBackward",
                                              [](TrainingArguments* args) {
                                                args->dtype = "bfloat16";
                                                args->gradient_accumulation_steps = 1;
                                                args->max_grad_norm = 0;
                                                args->optimizer_in_backward = true;
                                                args->offload_param_device = "cpu";
                                              }},
                                         Form{"OnTheDisk",
                                              [](TrainingArguments* args) {
                                                args->dtype = "bfloat16";
                                                args->gradient_accumulation_steps = 1;
                                                args->max_grad_norm = 0;
                                                args->optimizer_in_backward = true;
                                                args->offload_optimizer_device = "nvme";
                                                args->offload_param_device = "nvme";
                                                args->offload_dir = args->output_dir + "-scratch";
                                              }},
                                         Form{"LoraBesideWeightsOnTheHost",
                                              [](TrainingArguments* args) {
                                                args->dtype = "bfloat16";
                                                args->finetuning_type = "lora";
                                                args->lora_rank = 4;
                                                args->offload_param_device = "cpu";
                                              }},
                                         Form{"Lora",
                                              [](TrainingArguments* args) {
                                                args->dtype = "bfloat16";
                                                args->finetuning_type = "lora";
                                                args->lora_rank = 4;
                                                args->lora_dropout = 0.1;
                                                args->gradient_checkpointing = true;
                                              }}),
                         [](const auto& test) { return std::string(test.param.name); });

}  // namespace
}  // namespace tessera
