// A model on a device whose memory the host cannot touch: it computes there what it computes on the host, and
// reaches that memory only through operations and copies.
#include <gtest/gtest.h>

#include <algorithm>

#include "model/blocks/loss_head.h"
#include "model/families/families.h"
#include "model/llama/llama_generator.h"
#include "support/isolated_device.h"
#include "support/model_test_support.h"
#include "tensor/arena.h"

namespace tessera {
namespace {

constexpr uint64_t kDeviceSeed = 11;
constexpr int64_t kNumThreads = 1;

// A model with weights and gradients in isolated memory.
class IsolatedModel {
 public:
  IsolatedModel(const ModelConfig& config, DType dtype, const std::vector<float>& weights,
                std::optional<int64_t> free_bytes = int64_t{1} << 40)
      : device_(free_bytes), model_(config, dtype, ops_) {
    const int64_t count = std::ssize(weights);
    weights_ = model_.device().allocate(count * dtype_bytes(dtype));
    gradients_ = model_.device().allocate(count * dtype_bytes(DType::kF32));
    const TensorView to = weights_.view(dtype, {count});
    if (dtype == DType::kF32) {
      copy(ConstTensorView(weights.data(), dtype, {count}), to);
    } else {
      std::vector<bf16> rounded(weights.size());
      std::transform(weights.begin(), weights.end(), rounded.begin(), [](float w) { return to_bf16(w); });
      copy(ConstTensorView(rounded.data(), dtype, {count}), to);
    }
    model_.bind_parameters(to, gradients_.view(DType::kF32, {count}));
  }

  LlamaModel& model() { return model_; }
  std::vector<float> gradients() const { return on_host(gradients_); }
  std::vector<float> logits(const PackedBatch& batch) {
    const int64_t vocab_size = model_.config().vocab_size;
    const DeviceBuffer logits = device_.allocate(batch.num_tokens() * vocab_size * dtype_bytes(DType::kF32));
    model_.forward_logits(batch, logits.view(DType::kF32, {batch.num_tokens(), vocab_size}));
    return on_host(logits);
  }

 private:
  static std::vector<float> on_host(const DeviceBuffer& floats) {
    std::vector<float> values(static_cast<size_t>(floats.size_bytes()) / sizeof(float));
    const Shape shape = {std::ssize(values)};
    copy(floats.view(DType::kF32, shape), TensorView(values.data(), DType::kF32, shape));
    return values;
  }

  ThreadPool pool_{kNumThreads};
  std::unique_ptr<Ops> cpu_ops_ = make_cpu_ops(pool_);
  IsolatedDevice device_;
  IsolatedOps ops_{*cpu_ops_, device_};
  LlamaModel model_;
  DeviceBuffer weights_, gradients_;
};

void expect_same_training(const ModelConfig& config, DType dtype, const PackedBatch& batch,
                          const ActivationLimits& limits,
                          std::optional<int64_t> free_bytes = int64_t{1} << 40) {
  const auto weights = random_weights(parameter_layout(config), 0.3f, kDeviceSeed);
  TestModel here(config, dtype, weights, kNumThreads);
  IsolatedModel there(config, dtype, weights, free_bytes);
  here.model().reserve(limits);
  there.model().reserve(limits);
  double squares_here = 0, squares_there = 0;
  for (const bool is_last : {false, true}) {
    const Update mode = is_last ? Update::kAdd : Update::kOverwrite;
    const LossSums expected =
        here.model().forward_backward(batch, 0.5f, 0.1f, {mode, is_last ? &squares_here : nullptr});
    const LossSums got =
        there.model().forward_backward(batch, 0.5f, 0.1f, {mode, is_last ? &squares_there : nullptr});
    EXPECT_EQ(got.loss_sum, expected.loss_sum);
    EXPECT_EQ(got.num_targets, expected.num_targets);
    EXPECT_TRUE(there.gradients() == here.gradients());
  }
  EXPECT_EQ(squares_there, squares_here);
  EXPECT_GT(squares_here, 0);
  EXPECT_EQ(there.model().forward_loss(batch).loss_sum, here.model().forward_loss(batch).loss_sum);
}

TEST(ModelOnADevice, TrainsBitForBitAsOnTheHost) {
  for (const NamedConfig& named : all_option_configs()) {
    if (named.config.experts) continue;  // on the host alone
    const PackedBatch batch = pack(random_rows({12, 3, 1, 20}, named.config.vocab_size, kDeviceSeed));
    for (const DType dtype : {DType::kBF16, DType::kF32}) {
      for (const bool pack_weights : {false, true}) {
        for (const bool checkpointing : {false, true}) {
          SCOPED_TRACE(fmt::format("{} {}{}{}", named.name, dtype_name(dtype), pack_weights ? " packed" : "",
                                   checkpointing ? " checkpointing" : ""));
          ActivationLimits limits = limits_of(batch, checkpointing);
          limits.pack_weights = pack_weights;
          expect_same_training(named.config, dtype, batch, limits);
        }
      }
    }
  }
}

TEST(ModelOnADevice, CutsTheLogitsByColumnsAsOnTheHost) {
  ModelConfig config = tiny_config();
  config.vocab_size = 40'000;
  const PackedBatch batch = pack(random_rows({64, 64, 64, 64, 64, 64, 64, 64, 64}, config.vocab_size, 5));
  ASSERT_LT(logits_pieces(batch.num_tokens(), config.vocab_size).columns, config.vocab_size);
  for (const DType dtype : {DType::kBF16, DType::kF32}) {
    // A device that says how much memory it has would hold more logits at a time.
    expect_same_training(config, dtype, batch, limits_of(batch), /*free_bytes=*/std::nullopt);
  }
}

TEST(ModelOnADevice, GivesTheLogitsOfTheHostWithAndWithoutACache) {
  for (const NamedConfig& named : all_option_configs()) {
    if (named.config.experts) continue;
    SCOPED_TRACE(named.name);
    const auto weights = random_weights(parameter_layout(named.config), 0.3f, kDeviceSeed);
    const PackedBatch batch = pack(random_rows({9, 4}, named.config.vocab_size, kDeviceSeed));
    TestModel here(named.config, DType::kBF16, weights, kNumThreads);
    IsolatedModel there(named.config, DType::kBF16, weights);
    here.model().reserve(limits_of(batch));
    there.model().reserve(limits_of(batch));
    EXPECT_TRUE(there.logits(batch) == here.logits(batch));

    LlamaGenerator generator_here(here.model(), 16), generator_there(there.model(), 16);
    for (const std::vector<int32_t>& ids : {std::vector<int32_t>{1, 5, 3}, std::vector<int32_t>{2}}) {
      const std::span<const float> expected = generator_here.feed(ids), got = generator_there.feed(ids);
      EXPECT_TRUE(std::equal(got.begin(), got.end(), expected.begin(), expected.end()));
    }
  }
}

TEST(ModelOnADevice, RefusesParametersThatAreElsewhere) {
  ThreadPool pool(1);
  const std::unique_ptr<Ops> cpu_ops = make_cpu_ops(pool);
  IsolatedDevice device;
  IsolatedOps ops(*cpu_ops, device);
  LlamaModel model(tiny_config(), DType::kF32, ops);
  const int64_t count = model.layout().num_elements();
  const DeviceBuffer here = host_device().allocate(4 * count), there = device.allocate(4 * count);
  EXPECT_THROW(model.bind_parameters(here.view(DType::kF32, {count}), {}), Error);
  EXPECT_THROW(model.bind_parameters(there.view(DType::kF32, {count}), here.view(DType::kF32, {count})),
               Error);
  EXPECT_NO_THROW(model.bind_parameters(there.view(DType::kF32, {count}), there.view(DType::kF32, {count})));
}

TEST(IsolatedDevice, CopiesAndIsZeroAtFirst) {
  IsolatedDevice device;
  const DeviceBuffer buffer = device.allocate(3 * 4);
  std::vector<float> values = {1, 2, 3};
  const TensorView there = buffer.view(DType::kF32, {3}), here(values.data(), DType::kF32, {3});
  copy(there, here);
  EXPECT_EQ(values, (std::vector<float>{0, 0, 0}));
  values = {4, 5, 6};
  copy(here.rows(0, 2), there.rows(1, 3));
  copy(there, here);
  EXPECT_EQ(values, (std::vector<float>{0, 4, 5}));
  EXPECT_THROW(copy(there, there), Error) << "neither is the host's";
  EXPECT_THROW(copy(here, there.rows(0, 2)), Error);
}

TEST(IsolatedDevice, RefusesTheHostItsElements) {
  IsolatedDevice device;
  const DeviceBuffer buffer = device.allocate(64);
  Arena arena(buffer);
  const TensorView view(arena.allocate_bytes(16), DType::kF32, {2, 2}, arena.device());
  for (const ConstTensorView& of_device :
       {ConstTensorView(view), ConstTensorView(view.rows(1, 2)), ConstTensorView(view.reshaped({4}))}) {
    EXPECT_EQ(&of_device.device(), &device);
    EXPECT_THROW(of_device.as<float>(), Error);
    EXPECT_THROW(of_device.bytes(), Error);
  }
  const DeviceBuffer of_host = host_device().allocate(64);
  EXPECT_EQ(of_host.view(DType::kF32, {2}).as<float>()[1], 0);
}

TEST(IsolatedDevice, DiesIfTheHostReadsItsMemory) {
  testing::GTEST_FLAG(death_test_style) = "threadsafe";
  IsolatedDevice device;
  const DeviceBuffer buffer = device.allocate(64);
  const volatile auto* address = reinterpret_cast<const volatile char*>(buffer.address());
  EXPECT_DEATH(static_cast<void>(*address), "");
  device.run([&] { EXPECT_EQ(static_cast<int>(*address), 0); });
  EXPECT_DEATH(static_cast<void>(*address), "");
}

}  // namespace
}  // namespace tessera
