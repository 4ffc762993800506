// Random runs on random machines: a plan depends on its inputs alone, and a run that fits by the plan fits.
#include "plan/run_planner.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <initializer_list>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <random>
#include <string>

#include "base/error.h"
#include "plan/planned_model.h"
#include "settings/run_settings.h"
#include "support/draws.h"
#include "support/model_test_support.h"

namespace tessera {
namespace {

struct RandomRun {
  explicit RandomRun(uint64_t seed) : generator(seed) {
    config.num_key_value_heads = one_of<int64_t>({1, 2, 4});
    config.num_attention_heads = config.num_key_value_heads * one_of<int64_t>({1, 2, 3});
    config.head_dim = one_of<int64_t>({8, 32, 64});
    config.hidden_size = one_of<int64_t>({64, 192, 512});
    config.intermediate_size = one_of<int64_t>({100, 512, 2048});
    config.num_hidden_layers = one_of<int64_t>({1, 3, 8});
    config.vocab_size = one_of<int64_t>({500, 32000});
    machine.num_nodes = one_of({1, 1, 2, 3});
    machine.local_world_size = one_of({1, 1, 2, 4});
    machine.num_threads = one_of<int64_t>({1, 2});
    machine.baseline_bytes = one_of<int64_t>({0, 20 << 20});
    machine.free_bytes = one_of<int64_t>({16, 64, 256, 1024, 8192}) << 20;
    machine.first_rank_exports = one_of({false, true});
    spec.precision.dtype = one_of({DType::kBF16, DType::kF32});
    spec.optimizer.form = one_of({OptimizerForm::kAdamW, OptimizerForm::kAdamW, OptimizerForm::kAdamWHalf,
                                  OptimizerForm::kLion, OptimizerForm::kMuon, OptimizerForm::kAdafactor});
    spec.sharding.stage = one_of<int64_t>({0, 1, 2, 3});
    spec.sharding.gather_schedule = one_of({GatherChoice::kAuto, GatherChoice::kPerStep});
    spec.sharding.quantized_gradients =
        one_of<std::optional<GradientCode>>({std::nullopt, GradientCode::kInt8});
    spec.batch.rows_per_device = one_of<int64_t>({1, 2, 8});
    spec.batch.accumulation_steps = one_of<int64_t>({1, 2, 16});
    spec.placement.gradient_checkpointing = one_of({false, true});
    spec.placement.checkpointing_mode =
        one_of({CheckpointingMode::kFull, CheckpointingMode::kSelective, CheckpointingMode::kOffload});
    spec.placement.merge_micro_batches = one_of({AutoChoice::kAuto, AutoChoice::kAlways});
    spec.placement.pack_weights = one_of({AutoChoice::kAuto, AutoChoice::kNever});
    spec.placement.optimizer_in_backward = one_of({false, false, true});
    spec.placement.optimizer_device =
        one_of({OffloadDevice::kNone, OffloadDevice::kNone, OffloadDevice::kNvme});
    spec.saving.in_background = one_of({false, true});
    spec.saving.peer_snapshot_steps = one_of<int64_t>({0, 0, 5});
    data = uniform_rows(one_of<int64_t>({16, 100, 512}), spec.batch.rows_per_device);
    spec = read_run_spec(FlagTable(), spec, machine.num_nodes * machine.local_world_size);
  }

  template <typename T>
  T one_of(std::initializer_list<T> values) {
    return *(values.begin() + static_cast<ptrdiff_t>(generator() % values.size()));
  }

  RunPlan plan(int64_t free_bytes) {
    if (!model) model = std::make_unique<PlannedModel>(config, spec.precision.dtype, machine.num_threads);
    MachineResources with = machine;
    with.free_bytes = free_bytes;
    return plan_run(
        {spec, *model->model, spec.batch_options(with.num_nodes * with.local_world_size), data, with});
  }

  std::mt19937_64 generator;
  ModelConfig config = tiny_config();
  MachineResources machine;
  RowLengths data;
  RunSettings spec;
  std::unique_ptr<PlannedModel> model;
};

// Everything that plan_run() decides.
std::string text_of(const RunPlan& plan) {
  const ActivationLimits& limits = plan.limits;
  const ZeroSettings& zero = plan.zero;
  const WireBytes& wire = plan.wire;
  return fmt::format(
      "passes {} {} {}\nlimits {} {} {} {} {} {}\nzero {} {} {} {} {} {} {}\nwire {} {} {} {} {}\n"
      "bytes {} {} {}\n{}\n{}",
      plan.micro_batches_per_pass, plan.max_pass_tokens, plan.context_size, limits.max_tokens,
      limits.max_sequence_length, limits.gradient_checkpointing, limits.num_kept_outputs,
      limits.offload_inputs, limits.pack_weights, zero.stage, static_cast<int>(zero.schedule),
      zero.passes_per_step, zero.update_workspace_bytes, zero.optimizer_in_backward, zero.computes_twice,
      zero.state_folder ? zero.state_folder->chunks_ahead : -1, wire.sent_gather, wire.received_gather,
      wire.sent_reduce, wire.received_reduce, wire.tokens, plan.snapshot_bytes, plan.free_bytes,
      plan.fits_without_checkpointing, memory_items_json(plan.memory).dump(), plan.refusal);
}

// The outcome of a draw; settings that contradict each other are drawn, too.
std::string plan_twice(uint64_t seed) {
  SCOPED_TRACE(fmt::format("seed {}", seed));
  try {
    RandomRun run(seed);
    const RunPlan plan = run.plan(run.machine.free_bytes);
    EXPECT_EQ(text_of(plan), text_of(RandomRun(seed).plan(run.machine.free_bytes)));
    const MachineResources& machine = run.machine;
    const int64_t needed = plan.memory.node_bytes() - machine.local_world_size * plan.snapshot_bytes -
                           machine.local_world_size * machine.baseline_bytes;
    EXPECT_EQ(plan.refusal.empty(), needed <= machine.free_bytes) << plan.refusal;
    if (plan.refusal.empty()) {
      EXPECT_EQ(run.plan(2 * machine.free_bytes).refusal, "") << "more memory is enough, too";
    }
    return plan.refusal.empty() ? "fits" : "does not fit";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::kBadConfig) << error.what();
    return "contradiction";
  }
}

TEST(PlanRun, DependsOnItsInputsAlone) {
  constexpr uint64_t kNumDraws = draws(1000, 50);
  std::map<std::string, uint64_t> outcomes;
  testing::internal::CaptureStderr();  // warnings of what has no effect
  for (uint64_t seed = 0; seed < kNumDraws; ++seed) ++outcomes[plan_twice(seed)];
  testing::internal::GetCapturedStderr();
  EXPECT_GT(outcomes["fits"], kNumDraws / 5);
  EXPECT_GT(outcomes["does not fit"], kNumDraws / 10);
  EXPECT_GT(outcomes["contradiction"], kNumDraws / 10);
}

}  // namespace
}  // namespace tessera
