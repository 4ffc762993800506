// Compares logits, loss and every gradient of the first optimizer step with PyTorch in float32.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>

#include "formats/huggingface/model_config.h"
#include "formats/huggingface/model_families.h"
#include "formats/json.h"
#include "formats/safetensors/safetensors.h"
#include "support/model_test_support.h"
#include "test_paths.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;

// One case directory: the model, the micro-batches of step 0 and PyTorch's results.
struct GoldenCase {
  explicit GoldenCase(const fs::path& folder)
      : config(read_model_config(folder)),
        layout(parameter_layout(config)),
        weights(read_weights(folder, layout)),
        expected_file(SafetensorsFile::open(folder / "expected.safetensors")) {
    read_batches(SafetensorsFile::open(folder / "batches.safetensors"));
    for (const PackedBatch& batch : micro_batches) num_targets += batch.num_targets;
  }

  static std::vector<float> read(const SafetensorsFile& file, const std::string& name) {
    const SafetensorsEntry* entry = file.find(name);
    TESSERA_CHECK(entry != nullptr, "{}: no '{}'", file.path().string(), name);
    int64_t count = 1;
    for (const int64_t dim : entry->shape) count *= dim;
    std::vector<float> values(static_cast<size_t>(count));
    file.read(*entry, 0, TensorView(values.data(), DType::kF32, {count}));
    return values;
  }
  std::vector<float> expected(const std::string& name) const { return read(expected_file, name); }

  void read_batches(const SafetensorsFile& file) {
    const auto& shape = file.find("input_ids")->shape;  // [steps, accum, batch, seq]
    const int64_t accum = shape[1], num_rows = shape[2], length = shape[3];
    const auto row = [&](const char* name, int64_t index) {
      std::vector<int32_t> values(static_cast<size_t>(length));
      file.read(*file.find(name), index * length, TensorView(values.data(), DType::kI32, {length}));
      return values;
    };
    for (int64_t micro = 0; micro < accum; ++micro) {
      std::vector<TokenRow> rows;
      for (int64_t i = micro * num_rows; i < (micro + 1) * num_rows; ++i) {
        rows.push_back({row("input_ids", i), row("labels", i)});
      }
      micro_batches.push_back(pack(rows));
    }
  }

  ModelConfig config;
  ParameterLayout layout;
  std::vector<float> weights;
  SafetensorsFile expected_file;
  std::vector<PackedBatch> micro_batches;
  int64_t num_targets = 0;
};

// |found - expected| / |expected|, Frobenius.
double relative_error(std::span<const float> found, std::span<const float> expected) {
  double difference = 0;
  double norm = 0;
  for (size_t i = 0; i < expected.size(); ++i) {
    difference += std::pow(static_cast<double>(found[i]) - expected[i], 2);
    norm += std::pow(static_cast<double>(expected[i]), 2);
  }
  return std::sqrt(difference / norm);
}

double root_mean_square(std::span<const float> values) {
  double sum = 0;
  for (const float value : values) sum += static_cast<double>(value) * value;
  return std::sqrt(sum / static_cast<double>(values.size()));
}

class Golden : public testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    if (GetParam() == kAbsent) GTEST_SKIP() << "no further reference cases under " << shared_folder();
  }
  fs::path folder() const { return reference_case(GetParam()); }

  // Logits and gradients within `bound` (relative, Frobenius). The loss of a token changes by at most twice
  // the largest change of its logits.
  void check(DType dtype, double rounding) {
    const GoldenCase golden(folder());
    const double bound = rounding * std::sqrt(num_roundings(golden.config));
    TestModel test(golden.config, dtype, golden.weights);
    test.model().reserve(limits_of(golden.micro_batches[0]));
    const auto expected_logits = golden.expected("logits");
    EXPECT_LT(relative_error(test.logits(golden.micro_batches[0]), expected_logits), bound);

    double loss_sum = 0;
    for (const PackedBatch& batch : golden.micro_batches) {
      const float grad_scale = 1.0f / static_cast<float>(golden.num_targets);
      loss_sum += test.model().forward_backward(batch, grad_scale).loss_sum;
    }
    EXPECT_NEAR(loss_sum / static_cast<double>(golden.num_targets), golden.expected("loss")[0],
                2 * bound * root_mean_square(expected_logits));
    for (const Parameter& parameter : golden.layout.parameters()) {
      const auto gradient =
          std::span<const float>(test.gradients())
              .subspan(static_cast<size_t>(parameter.offset), static_cast<size_t>(parameter.num_elements));
      EXPECT_LT(relative_error(gradient, golden.expected("grad." + parameter.name)), bound) << parameter.name;
    }
  }

 private:
  // Rounded results between a token and a parameter's gradient: norm, qkv, rope, scores, o, o_proj, sum,
  // norm, gate_up, h and down of each layer, forward and backward, and the loss head. Their errors are
  // independent and add up as the square root of their number.
  static double num_roundings(const ModelConfig& config) {
    return 22.0 * static_cast<double>(config.num_hidden_layers) + 6.0;
  }
};

// Each result is a sum of up to K products, added in a different order than PyTorch's: sqrt(K) roundings of
// 2^-24 each.
TEST_P(Golden, Float32EqualsPyTorch) {
  const ModelConfig config = read_model_config(folder());
  const int64_t longest = std::max({config.hidden_size, config.intermediate_size, config.vocab_size});
  check(DType::kF32, std::sqrt(static_cast<double>(longest)) * 0x1.0p-24);
}

// Each result is rounded once to 8 bits: a relative error uniform over +-2^-9, standard deviation 2^-9 /
// sqrt(3). Three standard deviations.
TEST_P(Golden, Bf16StaysWithinItsRounding) { check(DType::kBF16, 3 * 0x1.0p-9 / std::sqrt(3.0)); }

// The first step of Transformers' own models of other families: logits, loss and the norm of all gradients.
TEST(FamilyGolden, LogitsLossAndGradientNormAreThoseOfTransformers) {
  int num_cases = 0;
  const fs::path cases = shared_folder() / "reference/families";
  if (!fs::exists(cases)) GTEST_SKIP() << "no reference runs of families under " << shared_folder();
  for (const FamilyInfo& family : model_families()) {
    if (family.kind != FamilyKind::kDecoder) continue;
    for (const auto& entry : fs::directory_iterator(cases)) {
      const Json config = parse_json_file_if_any(entry.path() / "config.json");
      if (config.value("model_type", "") != family.model_type) continue;
      ++num_cases;
      SCOPED_TRACE(entry.path().filename().string());
      const GoldenCase golden(entry.path());
      TestModel test(golden.config, DType::kF32, golden.weights);
      test.model().reserve(limits_of(golden.micro_batches[0]));
      const auto logits = golden.expected("logits");
      EXPECT_LT(relative_error(test.logits(golden.micro_batches[0]), logits), 1e-5);
      double loss = 0, squares = 0;
      for (const PackedBatch& batch : golden.micro_batches) {
        const float grad_scale = 1.0f / static_cast<float>(golden.num_targets);
        loss += test.model().forward_backward(batch, grad_scale).loss_sum;
      }
      for (const float gradient : test.gradients()) squares += static_cast<double>(gradient) * gradient;
      EXPECT_NEAR(loss / static_cast<double>(golden.num_targets) / golden.expected("loss")[0], 1, 1e-5);
      EXPECT_NEAR(std::sqrt(squares) / golden.expected("grad_norm")[0], 1, 1e-4);
    }
  }
  EXPECT_GT(num_cases, 0);
}

INSTANTIATE_TEST_SUITE_P(Reference, Golden, testing::ValuesIn(reference_case_names()), [](const auto& test) {
  std::string name = test.param;
  std::replace_if(
      name.begin(), name.end(), [](char c) { return std::isalnum(static_cast<unsigned char>(c)) == 0; }, '_');
  return name;
});

}  // namespace
}  // namespace tessera
