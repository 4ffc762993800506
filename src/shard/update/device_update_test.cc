// Parameters on a device whose memory the host cannot reach train as those on the host, updated there or by
// the host.

#include <gtest/gtest.h>

#include <cmath>

#include "optim/adamw.h"
#include "shard/parameter_store.h"
#include "support/isolated_device.h"
#include "support/model_test_support.h"
#include "support/momentum_sgd.h"

namespace tessera {
namespace {

// Masters and state after three steps from the same start, and a resumed fourth.
std::vector<std::vector<float>> train(Ops& ops, ThreadPool& pool, DType dtype,
                                      const std::function<std::unique_ptr<Optimizer>()>& make,
                                      bool optimizer_on_host = false, int64_t ring_elements = kRingElements) {
  const ModelConfig config = tiny_config();
  const PackedBatch batch = pack(random_rows({9, 5}, config.vocab_size, 3));
  std::vector<std::vector<float>> values;
  for (const bool is_resumed : {false, true}) {
    LlamaModel model(config, dtype, ops);
    ZeroSettings settings;
    settings.optimizer_on_host = optimizer_on_host;
    ParameterStore parameters(model, settings, make(), /*decay_all=*/false, single_process(), pool,
                              ring_elements);
    model.reserve(limits_of(batch));
    const auto num_elements = static_cast<size_t>(model.layout().num_elements());
    if (values.empty()) values = {random_weights(model.layout(), 0.3f, 11), std::vector<float>(num_elements)};
    parameters.write_state(StateKind::kMaster, 0, values[0]);
    if (is_resumed) parameters.write_state(state_kind(0), 0, values[1]);
    parameters.state_written();
    for (int64_t step = 1; step <= 3; ++step) {
      const WeightUpdate update = parameters.begin_pass(/*is_first=*/true, /*is_last=*/true);
      model.forward_backward(batch, 0.1f, /*label_smoothing=*/0, update);
      EXPECT_GT(parameters.gradient_squares(), 0);
      EXPECT_EQ(parameters.not_finite_gradient(), "");
      parameters.update({.step = step, .learning_rate = 1e-2}, /*before_change=*/{});
    }
    parameters.finish_update();
    parameters.read_state(StateKind::kMaster, 0, values[0]);
    parameters.read_state(state_kind(0), 0, values[1]);
  }
  return values;
}

void expect_finite(const std::vector<std::vector<float>>& all) {
  for (const std::vector<float>& values : all) {
    for (const float value : values) ASSERT_TRUE(std::isfinite(value));
  }
}

template <typename Form = AdamW>
std::unique_ptr<Optimizer> make_adamw() {
  return std::make_unique<Form>(OptimizerSpec{.weight_decay = 0.1});
}

TEST(ParametersOnDevice, AreUpdatedByTheHostAsIfTheyWereThere) {
  const std::function<std::unique_ptr<Optimizer>()> optimizers[] = {
      make_adamw<>, [] { return std::make_unique<MomentumSgd>(); }};
  for (const auto& make : optimizers) {
    ThreadPool pool(2);
    const std::unique_ptr<Ops> here = make_cpu_ops(pool);
    IsolatedDevice device;
    IsolatedOps there(*here, device);
    const auto expected = train(*here, pool, DType::kBF16, make);
    EXPECT_TRUE(expected == train(there, pool, DType::kBF16, make, true));
    // Several pieces of a parameter, and more of them than the ring has slots.
    EXPECT_TRUE(expected == train(there, pool, DType::kBF16, make, true, 192));
    expect_finite(expected);
  }
}

TEST(ParametersOnDevice, AreUpdatedByTheDeviceAsByTheHost) {
  for (const DType dtype : {DType::kBF16, DType::kF32}) {
    ThreadPool pool(2);
    const std::unique_ptr<Ops> here = make_cpu_ops(pool);
    IsolatedDevice device;
    IsolatedOps there(*here, device);
    for (const auto& make : {make_adamw<>, make_adamw<AdamWHalf>}) {
      if (!is_on_cards(make()->state_tensors(), dtype)) continue;
      const auto expected = train(*here, pool, dtype, make);
      EXPECT_TRUE(expected == train(there, pool, dtype, make));
      expect_finite(expected);
    }
  }
}

}  // namespace
}  // namespace tessera
