// The walk through a step, the rates and what is predicted from them.
#include "forecast/time/step_time.h"

#include <gtest/gtest.h>

#include "expect_error.h"
#include "forecast/time/measured_costs.h"
#include "model/families/families.h"
#include "ops/cpu_ops.h"
#include "optim/elementwise.h"
#include "optim/optimizer.h"
#include "platform/cpu.h"
#include "platform/memory_info.h"
#include "support/model_config_test_util.h"

namespace tessera {
namespace {

ModelConfig shapes(const char* preset, int64_t num_layers) {
  ModelConfig config = preset_config(preset);
  if (config.vocab_size == 0) config.vocab_size = 8192;
  if (num_layers > 0) {
    config.num_hidden_layers = num_layers;
    config.sliding_window.assign(static_cast<size_t>(num_layers), 0);
  }
  return config;
}

double flop_of(const std::vector<CountedWork>& works, WorkKind kind) {
  double flop = 0;
  for (const auto& [work, count] : works) {
    if (work.kind == kind) flop += static_cast<double>(count) * work.flop();
  }
  return flop;
}

ModelFlops flops_of(const ModelConfig& config, const PassShape& shape) {
  ThreadPool pool(1);
  const std::unique_ptr<Ops> ops = make_cpu_ops(pool);
  std::vector<int32_t> cu_seqlens;
  for (int64_t row = 0; row <= shape.rows; ++row) {
    cu_seqlens.push_back(static_cast<int32_t>(row * shape.row_tokens));
  }
  return make_model(config, DType::kBF16, *ops)->flops(cu_seqlens, 0, shape.rows * (shape.row_tokens - 1));
}

TEST(StepWalk, VisitsTheOperationsOfTheModelAndWhatIsRecomputed) {
  const ModelConfig config = shapes("15m", 0);
  StepWalks walks(config, DType::kBF16);
  const auto L = static_cast<double>(config.num_hidden_layers);
  for (const int64_t num_kept_outputs : {-1, 0, 29}) {  // without checkpointing, with it, of 4 x 8 - 3
    PassShape shape = {.rows = 3, .row_tokens = 200, .gradient_checkpointing = num_kept_outputs >= 0};
    shape.num_kept_outputs = std::max<int64_t>(num_kept_outputs, 0);
    const PassWork& pass = walks.pass(shape);
    const ModelFlops flops = flops_of(config, shape);
    const double recomputed = num_kept_outputs == 0 ? 1 : 0;
    EXPECT_NEAR(flop_of(pass.forward, WorkKind::kProduct), flops.layers, 1);
    EXPECT_NEAR(flop_of(pass.forward, WorkKind::kAttention), flops.attention, 1);
    // The last layer's outputs are still there.
    EXPECT_NEAR(flop_of(pass.backward, WorkKind::kAttention),
                (2 + recomputed * (L - 1) / L) * flops.attention, 1);
    // The output of a layer's last product, down_proj, is not needed again.
    const double down = 2.0 * 600 * L * 384 * 1024;
    const double gate_up = 2 * down, attention_blocks = flops.layers - down - gate_up;
    EXPECT_NEAR(
        flop_of(pass.backward, WorkKind::kProduct),
        2 * flops.layers + 3 * flops.lm_head + recomputed * (gate_up + attention_blocks * (L - 1) / L), 1);
    EXPECT_TRUE(pass.packing.empty());
  }
}

TEST(StepWalk, CountsTheLogitsOfALargeVocabularyThatAreComputedTwice) {
  const ModelConfig config = shapes("llama3-8b", 1);
  StepWalks walks(config, DType::kBF16);
  const PassShape shape = {.rows = 1, .row_tokens = 1024};
  const ModelFlops flops = flops_of(config, shape);
  const double flop = flop_of(walks.pass(shape).backward, WorkKind::kProduct);
  EXPECT_GT(flop, 2 * flops.layers + 3.5 * flops.lm_head);
  EXPECT_LT(flop, 2 * flops.layers + 4 * flops.lm_head);
}

TEST(StepWalk, KnowsWhatIsAddedAndPacked) {
  StepWalks walks(shapes("15m", 2), DType::kBF16);
  const PassShape first = {.rows = 1, .row_tokens = 64};
  PassShape last = first;
  last.adds = last.squares = last.pack_weights = true;
  const auto gradients = [&](const PassShape& shape, const auto& counts) {
    int64_t count = 0;
    for (const auto& [work, n] : walks.pass(shape).backward) {
      if (work.name == "linear_backward_weight" && counts(work)) count += n;
    }
    return count;
  };
  EXPECT_EQ(gradients(first, [](const OpWork& w) { return !w.adds && !w.squares; }), 2 * 4 + 1);
  EXPECT_EQ(gradients(last, [](const OpWork& w) { return w.adds && w.squares; }), 2 * 4);
  EXPECT_FALSE(walks.pass(last).packing.empty());
  for (const auto& [work, n] : walks.pass(last).forward) {
    EXPECT_EQ(work.packed, work.kind == WorkKind::kProduct) << work.name;
  }
}

TEST(StepWalk, TouchesNoMemoryOfAModelLargerThanTheMachine) {
  StepWalks walks(shapes("llama3-8b", 80), DType::kBF16);
  const int64_t before = resident_bytes();
  walks.pass({.rows = 4, .row_tokens = 8192});
  EXPECT_LT(resident_bytes() - before, int64_t{64} << 20);
}

// OpCosts that are all one second, to count.
class CountingCosts : public OpCosts {
 public:
  bool packs_weights(DType) const override { return false; }
  double seconds(const OpWork&, const RankShare&) override { return 1; }
  double update_seconds(const UpdateWork& work, const RankShare&) override {
    return static_cast<double>(work.num_elements);
  }
  double node_sum_seconds(int64_t num_elements, bool, const RankShare&) override {
    return static_cast<double>(num_elements);
  }
  double imbalance() const override { return 0; }
  double node_latency_s() const override { return 0; }
  double step_s() const override { return 0; }
  double network_seconds(int64_t sent, int64_t, int64_t) const override { return static_cast<double>(sent); }
  double disk_seconds(int64_t bytes) const override { return static_cast<double>(bytes); }
};

StepInputs inputs_of(int64_t num_passes, int num_nodes, int local_world_size) {
  StepInputs inputs;
  inputs.row_tokens = 128;
  inputs.num_passes = num_passes;
  inputs.num_nodes = num_nodes;
  inputs.local_world_size = local_world_size;
  inputs.zero.state_tensors = AdamW::kStateTensors;
  return inputs;
}

TEST(PredictStep, CountsEveryPassAndEachRanksShare) {
  StepWalks walks(shapes("15m", 2), DType::kBF16);
  CountingCosts op_costs;
  const StepTime one = predict_step(walks, inputs_of(1, 1, 1), op_costs);
  const StepTime five = predict_step(walks, inputs_of(5, 1, 1), op_costs);
  const StepTime two_ranks = predict_step(walks, inputs_of(5, 1, 2), op_costs);
  EXPECT_EQ(five.products_s, 5 * one.products_s);
  EXPECT_EQ(five.optimizer_s, one.optimizer_s);
  const auto num_elements = static_cast<double>(walks.layout().num_elements());
  EXPECT_EQ(one.optimizer_s, num_elements);
  EXPECT_EQ(two_ranks.optimizer_s, num_elements / 2);
  EXPECT_EQ(one.local_s, 0);
  EXPECT_EQ(two_ranks.local_s, 5 * num_elements / 2) << "in every pass";
  EXPECT_EQ(one.network_s, 0);
}

TEST(PredictStep, StateOnADiskIsReadAndWrittenOnce) {
  StepWalks walks(shapes("15m", 2), DType::kBF16);
  CountingCosts op_costs;
  for (const int num_ranks : {1, 2}) {
    StepInputs inputs = inputs_of(5, 1, num_ranks);
    inputs.zero.state_folder.emplace();
    const double bytes = 2.0 * (4 + 4 + 2) * static_cast<double>(walks.layout().num_elements());
    const StepTime time = predict_step(walks, inputs, op_costs);
    EXPECT_NEAR(time.disk_s, bytes, 0.05 * bytes) << "chunks are rounded up";
    EXPECT_LT(time.disk_wait_s, time.disk_s - time.optimizer_s) << "the update computes meanwhile";
    EXPECT_GT(time.disk_wait_s, 0.8 * (time.disk_s - time.optimizer_s)) << "all but a few chunks wait";
  }
}

// Costs under which every operation takes the same time.
class SlowCosts final : public CountingCosts {
 public:
  explicit SlowCosts(double operation_s) : operation_s_(operation_s) {}
  double seconds(const OpWork&, const RankShare&) override { return operation_s_; }
  double update_seconds(const UpdateWork&, const RankShare&) override { return 0; }

 private:
  double operation_s_;
};

TEST(PredictStep, ComputingHidesTheStateThatTheRingHolds) {
  StepWalks walks(shapes("15m", 8), DType::kBF16);
  SlowCosts slow(1e9), fast(1);
  const std::vector<ParameterLayout::Group>& groups = walks.layout().groups();
  const ZeroLayout layout = zero_layout(walks.layout(), 1, 1);
  const auto size_of = [&](size_t group) {
    return static_cast<double>(groups[group].end - groups[group].begin);
  };
  StepInputs inputs = inputs_of(1, 1, 1);
  inputs.zero.optimizer_in_backward = true;
  inputs.zero.state_folder.emplace();
  double last_wait_s = 1e18;
  for (const int64_t chunks_ahead : {int64_t{3}, int64_t{4}, layer_state_chunks(layout, inputs.zero)}) {
    inputs.zero.state_folder->chunks_ahead = chunks_ahead;
    const ZeroMemory memory = zero_memory(layout, inputs.zero);
    const auto ahead = static_cast<double>(memory.state_ahead_bytes);
    // Each is read before the update and written after it, except the embedding, which is updated last and
    // read in no time.
    double hidden = 0;
    for (size_t group = 0; group < groups.size(); ++group) {
      const double state = static_cast<double>(memory.state_file_bytes) * size_of(group) /
                           static_cast<double>(walks.layout().num_elements());
      hidden += (group == 0 ? 1 : 2) * std::min(state, ahead);
    }
    // Writes of the first layer have no time, either.
    hidden -= std::min(ahead, static_cast<double>(memory.state_file_bytes) * size_of(1) /
                                  static_cast<double>(walks.layout().num_elements()));
    const StepTime time = predict_step(walks, inputs, slow);
    EXPECT_NEAR(time.disk_wait_s, time.disk_s - hidden, 100) << chunks_ahead;
    EXPECT_LT(time.disk_wait_s, last_wait_s);
    last_wait_s = time.disk_wait_s;
    const StepTime of_disk = predict_step(walks, inputs, fast);
    EXPECT_NEAR(of_disk.step_s(), of_disk.disk_s, 100) << "a slow disk is never idle";
  }
}

TEST(PredictStep, WeightsAndInputsMoveWhileThePassesCompute) {
  StepWalks walks(shapes("15m", 8), DType::kBF16);
  CountingCosts op_costs;
  StepInputs inputs = inputs_of(1, 1, 1);
  inputs.zero.optimizer_in_backward = true;
  inputs.zero.weight_folder.emplace();
  const std::vector<ParameterLayout::Group>& groups = walks.layout().groups();
  const auto layer = static_cast<double>(2 * (groups[1].end - groups[1].begin));
  const StepTime once = predict_step(walks, inputs, op_costs);
  EXPECT_NEAR(once.disk_s, (5 + 5 + 8) * layer, 18 * 4096) << "5 of 8 layers leave memory; all are written";
  inputs.zero.computes_twice = true;
  const StepTime twice = predict_step(walks, inputs, op_costs);
  EXPECT_NEAR(twice.disk_s, (2 * 5 + 2 * 5 + 8) * layer, 28 * 4096) << "layers are padded";
  EXPECT_EQ(twice.products_s, 2 * once.products_s);
  EXPECT_NEAR(once.disk_wait_s + once.compute_s(), once.disk_s, once.disk_s / 100) << "a slow disk";
  inputs.zero.weight_folder.reset();
  inputs.zero.computes_twice = false;
  inputs.gradient_checkpointing = inputs.offload_inputs = true;
  inputs.pass_rows = inputs.last_pass_rows = 2;
  const double input = 2 * 2 * 128 * static_cast<double>(walks.config().hidden_size);
  EXPECT_NEAR(predict_step(walks, inputs, op_costs).disk_s, 2 * 5 * input, 1) << "5 of 8 inputs, out and in";
  RatedCosts fast(rates_of_instance({.num_cores = 1, .clock_ghz = 1e-3}));
  const StepTime hidden = predict_step(walks, inputs, fast);
  EXPECT_GT(hidden.disk_s, 0);
  EXPECT_EQ(hidden.disk_wait_s, 0) << "a slow processor";
}

TEST(PredictStep, FrozenWeightsAreReadInBothDirectionsAndNeverWritten) {
  ModelConfig config = shapes("15m", 8);
  config.lora.emplace().target_modules = lora_module_names();
  StepWalks walks(config, DType::kBF16);
  CountingCosts op_costs;
  StepInputs inputs = inputs_of(1, 1, 1);
  EXPECT_EQ(predict_step(walks, inputs, op_costs).disk_s, 0);
  inputs.frozen_file_bytes = 8 * 4096'000;
  const StepTime time = predict_step(walks, inputs, op_costs);
  EXPECT_EQ(time.disk_s, 2 * 5 * 4096'000) << "5 of 8 layers leave memory";
  inputs.num_passes = 3;
  EXPECT_EQ(predict_step(walks, inputs, op_costs).disk_s, 3 * time.disk_s);
}

// All on a disk, 2,048 tokens in a step. The rest is state of embedding and head that the ring does not hold.
TEST(PredictStep, AStepOfALargeModelTakesLittleMoreThanComputingOrTheDisk) {
  ModelConfig config = shapes("llama3-8b", 32);
  config.vocab_size = 128256;
  StepWalks walks(config, DType::kBF16);
  StepInputs inputs = inputs_of(1, 1, 1);
  inputs.row_tokens = 2048;
  inputs.gradient_checkpointing = true;
  inputs.zero.state_tensors = AdamW8Bit::kStateTensors;
  inputs.zero.optimizer_in_backward = true;
  inputs.zero.weight_folder.emplace();
  inputs.zero.state_folder.emplace();
  const auto ratio = [&](double disk_gb_per_s) {
    MachineRates rates = rates_of_instance({.num_cores = 32, .clock_ghz = 3});
    rates.disk_gb_per_s = disk_gb_per_s;
    RatedCosts op_costs(rates);
    inputs.num_threads = 32;
    const StepTime time = predict_step(walks, inputs, op_costs);
    return time.step_s() / std::max(time.compute_s() + time.optimizer_s, time.disk_s);
  };
  double worst_before = 0, worst = 0;
  for (const double gb_per_s : {0.3, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, 10.0}) {
    inputs.zero.state_folder->chunks_ahead = kMinChunksAhead;
    worst_before = std::max(worst_before, ratio(gb_per_s));
    inputs.zero.state_folder->chunks_ahead =
        layer_state_chunks(zero_layout(walks.layout(), 1, 1), inputs.zero);
    worst = std::max(worst, ratio(gb_per_s));
  }
  EXPECT_GT(worst_before, 1.3);
  EXPECT_LT(worst, 1.15);
}

TEST(RatedCosts, UpdatesOfCodesWaitForTheProcessor) {
  MachineRates rates = rates_of_instance({.num_cores = 4, .clock_ghz = 3});
  UpdateWork work;
  work.num_elements = 1'000'000'000;
  work.state_bytes = state_bytes(AdamW::kStateTensors, work.num_elements);
  const RankShare share = {4, 1};
  const double exact_s = RatedCosts(rates).update_seconds(work, share);
  work.state_bytes =
      state_bytes(make_optimizer({.form = OptimizerForm::kAdamW8Bit})->state_tensors(), work.num_elements);
  work.has_codes = true;
  rates.core_coded_giga_elements_per_s = 0.01;
  EXPECT_DOUBLE_EQ(RatedCosts(rates).update_seconds(work, share), 25);
  rates.core_coded_giga_elements_per_s = 100;
  EXPECT_LT(RatedCosts(rates).update_seconds(work, share), exact_s) << "fewer bytes";
}

TEST(PredictStep, ComputationHidesTheNetworkUnlessToldOtherwise) {
  StepWalks walks(shapes("15m", 2), DType::kBF16);
  CountingCosts op_costs;
  StepInputs inputs = inputs_of(2, 2, 1);
  const StepTime overlapped = predict_step(walks, inputs, op_costs);
  inputs.zero.overlap = false;
  const StepTime blocking = predict_step(walks, inputs, op_costs);
  EXPECT_EQ(blocking.exposed_s, blocking.network_s);
  EXPECT_GT(overlapped.network_s, 0);
  EXPECT_NEAR(overlapped.network_s - overlapped.exposed_s, overlapped.compute_s() / 2, 1)
      << "per_step: during one of two passes";
}

InstanceFigures amx_instance(int64_t num_cores) {
  InstanceFigures inputs;
  inputs.num_cores = num_cores;
  inputs.clock_ghz = 3;
  inputs.amx = true;
  return inputs;
}

double predicted(const ModelConfig& config, const MachineRates& rates,
                 StepInputs inputs = inputs_of(1, 1, 1)) {
  StepWalks walks(config, DType::kBF16);
  RatedCosts op_costs(rates);
  inputs.num_threads = rates.num_cores / inputs.local_world_size;
  return predict_step(walks, inputs, op_costs).step_s();
}

TEST(RatedCosts, MoreOfAnythingIsNotSlower) {
  const ModelConfig config = shapes("160m", 4);
  const MachineRates rates = rates_of_instance(amx_instance(8));
  const double base = predicted(config, rates);
  EXPECT_LT(predicted(config, rates_of_instance(amx_instance(16))), base);
  EXPECT_GT(predicted(shapes("160m", 8), rates), base);
  InstanceFigures without_amx = amx_instance(8);
  without_amx.amx = false;
  EXPECT_GT(predicted(config, rates_of_instance(without_amx)), base);
  MachineRates changed = rates;
  changed.memory_gb_per_s *= 2;
  EXPECT_LT(predicted(config, changed), base);
  StepInputs checkpointing = inputs_of(1, 1, 1);
  checkpointing.gradient_checkpointing = true;
  EXPECT_GT(predicted(config, rates, checkpointing), base);
  const StepInputs two_nodes = inputs_of(1, 2, 1);
  changed = rates;
  changed.network_gbps *= 10;
  EXPECT_LT(predicted(config, changed, two_nodes), predicted(config, rates, two_nodes));
}

TEST(RatedCosts, ReachTheMeasuredShareOfThePeak) {
  // docs/performance.md, Xeon with AMX, 2 cores: llama3-8b, 2 layers, 2048 tokens at once, 1,258 tokens/s.
  InstanceFigures inputs = amx_instance(2);
  inputs.clock_ghz = 3.2;
  inputs.memory_gb_per_s = 63;
  ModelConfig config = shapes("llama3-8b", 2);
  config.vocab_size = 512;
  StepInputs step = inputs_of(1, 1, 1);
  step.row_tokens = 512;
  step.pass_rows = step.last_pass_rows = 4;
  const double seconds = predicted(config, rates_of_instance(inputs), step);
  EXPECT_NEAR(2048 / seconds, 1050, 210);
}

TEST(RatedCosts, ProductsOfQuantizedWeightsHaveTheirOwnSpeed) {
  MachineRates rates = rates_of_instance({.num_cores = 4, .clock_ghz = 3, .avx512_bf16 = true});
  rates.product_call_s = 0;
  rates.int8_product_speed = 4;
  rates.nf4_product_speed = 0.5;
  ModelConfig config = shapes("15m", 2);
  config.lora.emplace().target_modules = lora_module_names();
  const auto products_s = [&](Quantization form) {
    config.base_quantization = form;
    StepWalks walks(config, DType::kBF16);
    RatedCosts op_costs(rates);
    return predict_step(walks, inputs_of(1, 1, 1), op_costs).products_s;
  };
  // Adapters and the LM head have products of their own.
  const double exact_s = products_s(Quantization::kNone);
  EXPECT_LT(products_s(Quantization::kInt8), 0.7 * exact_s);
  EXPECT_GT(products_s(Quantization::kNf4), 1.4 * exact_s);
  EXPECT_EQ(products_s(Quantization::kNf4), products_s(Quantization::kNf4Double));
}

TEST(MachineRates, SurviveJson) {
  MachineRates rates = rates_of_instance(amx_instance(48));
  rates.network_gbps = 12.5;
  EXPECT_EQ(parse_rates(rates_json(rates), "rates.json"), rates);
  EXPECT_EQ(parse_rates("{}", "rates.json"), MachineRates());
}

TEST(MachineRates, NamesWhatIsWrong) {
  expect_error(ExitCode::kBadData, {"rates.json: unknown member 'core'"},
               [] { parse_rates(R"({"core": 1})", "rates.json"); });
  expect_error(ExitCode::kBadData,
               {"rates.json: field 'memory_gb_per_s': expected a number above 0, found 0"},
               [] { parse_rates(R"({"memory_gb_per_s": 0})", "rates.json"); });
  expect_error(ExitCode::kBadData, {"num_cores"}, [] { parse_rates(R"({"num_cores": 0})", "rates.json"); });
  expect_error(ExitCode::kBadData, {"call_s"}, [] { parse_rates(R"({"call_s": -1})", "rates.json"); });
  expect_error(ExitCode::kBadData, {"rates.json"}, [] { parse_rates("[]", "rates.json"); });
}

// Loose: tests run on machines that are busy with other things.
void expect_plausible(const StepTime& time, const StepInputs& inputs, StepWalks& walks) {
  const PassShape pass = {inputs.pass_rows, inputs.row_tokens};
  const double flop = 3 * flops_of(walks.config(), pass).forward() * static_cast<double>(inputs.num_passes);
  constexpr double kFastest = 50e12, kSlowest = 1e7;  // operations per second
  EXPECT_GT(time.compute_s(), flop / kFastest);
  EXPECT_LT(time.compute_s(), flop / kSlowest);
  for (const double part : {time.products_s, time.attention_s, time.elementwise_s, time.optimizer_s}) {
    EXPECT_GT(part, 0);
    EXPECT_LT(part, time.step_s());
  }
}

TEST(MeasuredRates, AreThoseOfThisProcessor) {
  ThreadPool pool(2);
  const MachineRates rates = measured_rates(pool);
  EXPECT_EQ(rates.num_cores, 2);
  EXPECT_EQ(rates.packs_weights, cpu_features().amx.granted);
  EXPECT_EQ(parse_rates(rates_json(rates), "rates.json"), rates) << "every speed is above 0";
  EXPECT_LE(rates.core_f32_tflops, rates.core_bf16_tflops);
}

TEST(MeasuredCosts, CoverEveryOperationOfStepsOfOneAndTwoRanks) {
  ModelConfig config = shapes("15m", 3);
  config.vocab_size = 256;
  for (const DType dtype : {DType::kBF16, DType::kF32}) {
    StepWalks walks(config, dtype);
    MeasuringOptions options;
    options.seconds = 0;
    MeasuredCosts op_costs(options);
    for (const int local_world_size : {1, 2}) {
      for (const bool checkpointing : {false, true}) {
        SCOPED_TRACE(fmt::format("{} ranks, checkpointing {}", local_world_size, checkpointing));
        StepInputs inputs = inputs_of(3, 1, local_world_size);
        inputs.row_tokens = 32;
        inputs.pass_rows = 2;
        inputs.last_pass_rows = 1;
        inputs.gradient_checkpointing = checkpointing;
        const StepTime time = predict_step(walks, inputs, op_costs);
        expect_plausible(time, inputs, walks);
        EXPECT_EQ(time.local_s > 0, local_world_size > 1);
        EXPECT_EQ(predict_step(walks, inputs, op_costs).step_s(), time.step_s()) << "measured once";
      }
    }
    EXPECT_TRUE(op_costs.notes().empty());
  }
}

TEST(MeasuredCosts, ExtrapolateFromFewerRowsAndSaySo) {
  StepWalks walks(shapes("15m", 2), DType::kBF16);
  MeasuringOptions options;
  options.seconds = 0;
  options.max_tokens = 128;
  MeasuredCosts op_costs(options);
  StepInputs inputs = inputs_of(1, 1, 1);
  inputs.row_tokens = 32;
  inputs.pass_rows = inputs.last_pass_rows = 64;
  expect_plausible(predict_step(walks, inputs, op_costs), inputs, walks);
  ASSERT_EQ(op_costs.notes().size(), 1u);
  EXPECT_EQ(op_costs.notes()[0], "passes of 64 rows were measured with 4");
}

}  // namespace
}  // namespace tessera
