// For tests of the model: small configurations, random weights and batches, and a model that owns its memory.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
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

// A model with its own threads and bound weights and gradients, on test_device().
class TestModel {
 public:
  TestModel(const ModelConfig& config, DType dtype, const std::vector<float>& weights,
            int64_t num_threads = 2);

  LlamaModel& model() { return model_; }
  void fill_gradients(float value);
  // Writes to the bound memory.
  void set_weights(const std::vector<float>& weights);
  const std::vector<float>& gradients() const;
  // All logits of a batch, [T, V].
  std::vector<float> logits(const PackedBatch& batch);

 private:
  ThreadPool pool_;
  std::unique_ptr<Ops> ops_;
  LlamaModel model_;
  DeviceBuffer weights_;
  DeviceBuffer gradients_;
  mutable std::vector<float> gradients_on_host_;
};

// Over a flat array, excluding alignment gaps.
double sum_of_squares(const ParameterLayout& layout, const std::vector<float>& values);

// Limits that fit one batch.
ActivationLimits limits_of(const PackedBatch& batch, bool gradient_checkpointing = false);

}  // namespace tessera
