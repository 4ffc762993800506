// For tests of the model: small configurations, random weights and batches, a model with its own memory.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "model/model.h"
#include "ops/cpu_ops.h"
#include "platform/thread_pool.h"

namespace tessera {

// A row of tokens and their labels, not shifted, as a data set holds them.
struct TokenRow {
  std::vector<int32_t> ids;
  std::vector<int32_t> labels;
};

// Rows of these lengths with random tokens; about one label in five is ignored.
std::vector<TokenRow> random_rows(const std::vector<int64_t>& lengths, int64_t vocab_size, uint64_t seed);

// The rows one after another, labels shifted into targets.
PackedBatch pack(const std::vector<TokenRow>& rows);

// Two layers, four query and two key-value heads, sizes that no vector width divides.
ModelConfig tiny_config();

// So that tests are listed by the names of their types.
inline void PrintTo(DType dtype, std::ostream* out) { *out << dtype_name(dtype); }

struct NamedConfig {
  std::string name;
  ModelConfig config;

  friend void PrintTo(const NamedConfig& named, std::ostream* out) { *out << named.name; }
};
// tiny_config with every option alone, and with all of them.
std::vector<NamedConfig> all_option_configs();

// Weights in which nothing is trivial: norms around one, biases around zero, matrices of deviation `scale`.
std::vector<float> random_weights(const ParameterLayout& layout, float scale, uint64_t seed);

// A model on its own threads, with bound weights and gradients.
class TestModel {
 public:
  TestModel(const ModelConfig& config, DType dtype, const std::vector<float>& weights,
            int64_t num_threads = 2);

  Model& model() { return model_; }
  void fill_gradients(float value);
  // Into the memory that is bound.
  void set_weights(const std::vector<float>& weights);
  const std::vector<float>& gradients() const { return gradients_; }
  // All logits of a batch, [T, V].
  std::vector<float> logits(const PackedBatch& batch);

 private:
  ThreadPool pool_;
  std::unique_ptr<Ops> ops_;
  Model model_;
  std::vector<float> weights_f32_;
  std::vector<bf16> weights_bf16_;
  std::vector<float> gradients_;
};

// Of a flat array, alignment gaps left out.
double sum_of_squares(const ParameterLayout& layout, const std::vector<float>& values);

// Limits that fit one batch.
ActivationLimits limits_of(const PackedBatch& batch, bool gradient_checkpointing = false);

}  // namespace tessera
