// Mixtures of experts against Transformers, in runs that lie beside the source tree.
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>

#include "formats/safetensors/safetensors.h"
#include "support/model_test_support.h"
#include "test_paths.h"

namespace tessera {
namespace {

struct MixtureCase {
  explicit MixtureCase(const std::filesystem::path& folder)
      : config(read_model_config(folder)),
        layout(parameter_layout(config)),
        weights(read_weights(folder, layout)),
        expected(SafetensorsFile::open(folder / "expected.safetensors")) {
    const SafetensorsFile batches = SafetensorsFile::open(folder / "batches.safetensors");
    const auto& shape = batches.find("input_ids")->shape;  // [steps, accum, batch, seq]
    const auto row = [&](const char* name, int64_t index) {
      std::vector<int32_t> values(static_cast<size_t>(shape[3]));
      batches.read(*batches.find(name), index * shape[3], TensorView(values.data(), DType::kI32, {shape[3]}));
      return values;
    };
    for (int64_t micro = 0; micro < shape[1]; ++micro) {
      std::vector<TokenRow> rows;
      for (int64_t i = micro * shape[2]; i < (micro + 1) * shape[2]; ++i)
        rows.push_back({row("input_ids", i), row("labels", i)});
      micro_batches.push_back(pack(rows));
    }
  }

  std::vector<float> values(const char* name) const {
    const SafetensorsEntry& entry = *expected.find(name);
    int64_t count = 1;
    for (const int64_t dim : entry.shape) count *= dim;
    std::vector<float> result(static_cast<size_t>(count));
    expected.read(entry, 0, TensorView(result.data(), DType::kF32, {count}));
    return result;
  }

  ModelConfig config;
  ParameterLayout layout;
  std::vector<float> weights;
  SafetensorsFile expected;
  std::vector<PackedBatch> micro_batches;
};

class MixtureRun : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    folder_ = shared_folder() / "reference" / "families" / GetParam();
    if (!std::filesystem::exists(folder_)) GTEST_SKIP() << "no " << folder_;
  }

  std::filesystem::path folder_;
};

// Logits, and loss and gradient norm of the first step: its micro-batches add up, and so do their losses of
// the balance between experts.
TEST_P(MixtureRun, FirstStepEqualsTransformers) {
  const MixtureCase run(folder_);
  TestModel test(run.config, DType::kF32, run.weights);
  test.model().reserve(limits_of(run.micro_batches[0]));
  const std::vector<float> logits = test.logits(run.micro_batches[0]), expected_logits = run.values("logits");
  for (size_t i = 0; i < logits.size(); ++i) ASSERT_NEAR(logits[i], expected_logits[i], 2e-5) << i;
  double loss = 0, num_targets = 0, squares = 0;
  for (const PackedBatch& batch : run.micro_batches) num_targets += static_cast<double>(batch.num_targets);
  for (size_t i = 0; i < run.micro_batches.size(); ++i) {
    const bool is_last = i + 1 == run.micro_batches.size();
    const WeightUpdate update = {i == 0 ? Update::kOverwrite : Update::kAdd, is_last ? &squares : nullptr};
    loss += test.model()
                .forward_backward(run.micro_batches[i], 1 / static_cast<float>(num_targets), 0, update)
                .loss_sum /
            num_targets;
  }
  EXPECT_NEAR(loss, run.values("loss")[0], 1e-5);
  EXPECT_NEAR(std::sqrt(squares), run.values("grad_norm")[0], 1e-5);
}

INSTANTIATE_TEST_SUITE_P(Families, MixtureRun,
                         testing::Values("qwen3-moe", "qwen3-moe-aux", "mixtral", "gpt-oss"),
                         [](const auto& test) {
                           std::string name = test.param;
                           std::ranges::replace(name, '-', '_');
                           return name;
                         });

}  // namespace
}  // namespace tessera
