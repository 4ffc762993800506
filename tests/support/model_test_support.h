// For tests of the model: small configurations, random weights and batches, and a model that owns its memory.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <type_traits>
#include <vector>

#include "devices/make_ops.h"
#include "model/families/families.h"
#include "model/llama/llama_model.h"
#include "ops/cpu_ops.h"
#include "platform/thread_pool.h"

namespace tessera {

// The device of a TestModel, from the environment variable TESSERA_TEST_DEVICE; "cpu" without it.
DeviceKind test_device();

// A row of tokens and their unshifted labels, as in a data set.
struct TokenRow {
  std::vector<int32_t> ids;
  std::vector<int32_t> labels;
};

// Rows of these lengths with random tokens; about one label in five is ignored.
std::vector<TokenRow> random_rows(const std::vector<int64_t>& lengths, int64_t vocab_size, uint64_t seed);

// Concatenates the rows and shifts labels into targets.
PackedBatch pack(const std::vector<TokenRow>& rows);

// Two layers, four query and two key-value heads, sizes that no vector width divides.
ModelConfig tiny_config();

// Makes test lists show types by name.
inline void PrintTo(DType dtype, std::ostream* out) { *out << dtype_name(dtype); }

struct NamedConfig {
  std::string name;
  ModelConfig config;

  friend void PrintTo(const NamedConfig& named, std::ostream* out) { *out << named.name; }
};
// tiny_config with each option alone, and with all of them.
std::vector<NamedConfig> all_option_configs();

// The layout of the model that make_model(config) makes.
ModelFlops model_flops(const ModelConfig& config, std::span<const int32_t> cu_seqlens, int64_t num_targets);

// Non-trivial weights: norms around one, biases around zero, matrices with standard deviation `scale`.
std::vector<float> random_weights(const ParameterLayout& layout, float scale, uint64_t seed);

// Copies weights to a view of float32 or bfloat16 on any device.
void copy_weights(const std::vector<float>& weights, const TensorView& to);

// The float32 weights of a folder's model.safetensors, in the order of the layout.
std::vector<float> read_weights(const std::filesystem::path& folder, const ParameterLayout& layout);

// A model with its own threads and bound weights and gradients. Only decoders run on test_device().
template <typename Model>
class TestModelOf {
 public:
  TestModelOf(const ModelConfig& config, DType dtype, const std::vector<float>& weights,
              int64_t num_threads = 2)
      : pool_(num_threads),
        ops_(make_ops(std::is_same_v<Model, LlamaModel> ? test_device() : DeviceKind::kCpu, pool_)),
        model_(config, dtype, *ops_),
        weights_(model_.device().allocate(std::ssize(weights) * dtype_bytes(dtype))),
        gradients_(model_.device().allocate(std::ssize(weights) * dtype_bytes(DType::kF32))),
        gradients_on_host_(weights.size()) {
    const Shape shape = {std::ssize(weights)};
    model_.bind_parameters(weights_.view(dtype, shape), gradients_.view(DType::kF32, shape));
    set_weights(weights);
  }

  Model& model() { return model_; }
  void fill_gradients(float value) {
    std::ranges::fill(gradients_on_host_, value);
    const Shape shape = {std::ssize(gradients_on_host_)};
    copy(ConstTensorView(gradients_on_host_.data(), DType::kF32, shape), gradients_.view(DType::kF32, shape));
  }
  // Writes to the bound memory.
  void set_weights(const std::vector<float>& weights) {
    copy_weights(weights, weights_.view(model_.dtype(), {std::ssize(weights)}));
    model_.weights_changed();
  }
  const std::vector<float>& gradients() const {
    const Shape shape = {std::ssize(gradients_on_host_)};
    copy(gradients_.view(DType::kF32, shape), TensorView(gradients_on_host_.data(), DType::kF32, shape));
    return gradients_on_host_;
  }
  // All logits of a batch, [T, V].
  std::vector<float> logits(const PackedBatch& batch) {
    const Shape shape = {batch.num_tokens() - batch.num_source_tokens(), model_.config().vocab_size};
    const DeviceBuffer logits = model_.device().allocate(shape.num_elements() * dtype_bytes(DType::kF32));
    model_.forward_logits(batch, logits.view(DType::kF32, shape));
    std::vector<float> values(static_cast<size_t>(shape.num_elements()));
    copy(logits.view(DType::kF32, shape), TensorView(values.data(), DType::kF32, shape));
    return values;
  }

 private:
  ThreadPool pool_;
  std::unique_ptr<Ops> ops_;
  Model model_;
  DeviceBuffer weights_;
  DeviceBuffer gradients_;
  mutable std::vector<float> gradients_on_host_;
};
using TestModel = TestModelOf<LlamaModel>;

// Over a flat array, excluding alignment gaps.
double sum_of_squares(const ParameterLayout& layout, const std::vector<float>& values);

// Limits that fit one batch.
ActivationLimits limits_of(const PackedBatch& batch, bool gradient_checkpointing = false);

// Expects that the gradients of a float32 model, computed from these weights and this batch, agree in every
// parameter with central differences of `loss()`, along a direction with components in all its elements.
template <typename Model, typename Loss>
void expect_gradients_are_differences(TestModelOf<Model>& test, const std::vector<float>& weights,
                                      double norm, const Loss& loss) {
  const std::vector<float> gradients = test.gradients();
  for (const Parameter& parameter : test.model().layout().parameters()) {
    std::vector<float> direction(static_cast<size_t>(parameter.num_elements));
    double along = 0, length = 0;
    for (size_t i = 0; i < direction.size(); ++i) {
      const float gradient = gradients[static_cast<size_t>(parameter.offset) + i];
      direction[i] = gradient + 0.1f * static_cast<float>((i * 37 + 11) % 19 - 9.0);
      along += static_cast<double>(direction[i]) * gradient;
      length += static_cast<double>(direction[i]) * direction[i];
    }
    const auto step = static_cast<float>(5e-4 / std::sqrt(length));
    const auto loss_at = [&](float factor) {
      std::vector<float> moved = weights;
      for (size_t i = 0; i < direction.size(); ++i)
        moved[static_cast<size_t>(parameter.offset) + i] += factor * direction[i];
      test.set_weights(moved);
      return loss();
    };
    const double difference = (loss_at(step) - loss_at(-step)) / (2.0 * step);
    EXPECT_NEAR(difference, along, 0.02 * std::abs(along) + 2e-3 * norm * std::sqrt(length))
        << parameter.name;
  }
}
template <typename Model>
void expect_gradients_are_differences(TestModelOf<Model>& test, const std::vector<float>& weights,
                                      const PackedBatch& batch, double norm) {
  expect_gradients_are_differences(test, weights, norm,
                                   [&] { return test.model().forward_loss(batch).loss_sum; });
}

// A number for every token of the batch, from its place in its row alone.
std::vector<uint64_t> numbers_of_tokens(const PackedBatch& batch);

}  // namespace tessera
