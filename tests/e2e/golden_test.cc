// The training cases that PyTorch computed in float32, run through the command line.
#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>
#include <sstream>

#include "e2e/tiny_model.h"
#include "formats/safetensors.h"
#include "test_paths.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

std::vector<float> read_tensor(const SafetensorsFile& file, const std::string& name) {
  const SafetensorsEntry* entry = file.find(name);
  if (entry == nullptr) {
    ADD_FAILURE() << file.path() << " has no " << name;
    return {};
  }
  int64_t count = 1;
  for (const int64_t dim : entry->shape) count *= dim;
  std::vector<float> values(static_cast<size_t>(count));
  file.read(*entry, 0, TensorView(values.data(), DType::kF32, Shape({count})));
  return values;
}

std::vector<std::string> arguments_of(const fs::path& folder, const json& settings,
                                      const std::string& output) {
  const auto number = [&](const char* key) { return settings.at(key).dump(); };
  return {"train",
          "--model",
          folder,
          "--dataset",
          folder / "batches.safetensors",
          "--output_dir",
          output,
          "--shuffle",
          "false",
          "--save_dtype",
          "float32",
          "--per_device_train_batch_size",
          number("batch"),
          "--gradient_accumulation_steps",
          number("accum"),
          "--max_steps",
          number("steps"),
          "--max_length",
          number("seq"),
          "--learning_rate",
          number("learning_rate"),
          "--weight_decay",
          number("weight_decay"),
          "--adam_beta1",
          settings.at("betas").at(0).dump(),
          "--adam_beta2",
          settings.at("betas").at(1).dump(),
          "--adam_epsilon",
          number("eps"),
          "--max_grad_norm",
          number("max_grad_norm"),
          "--warmup_steps",
          number("warmup_steps"),
          "--save_strategy",
          "no",
          "--cache_dir",
          output + "-cache"};
}

struct Losses {
  std::vector<double> loss, grad_norm, learning_rate;
};

Losses run_case(const fs::path& folder, const std::string& output, const std::string& dtype) {
  const json settings = json::parse(read_file(folder / "case.json"));
  std::vector<std::string> arguments = arguments_of(folder, settings, output);
  arguments.insert(arguments.end(), {"--dtype", dtype});
  run_well(arguments);
  Losses run;
  std::istringstream lines(read_file(fs::path(output) / "metrics.jsonl"));
  for (std::string line; std::getline(lines, line);) {
    const json metrics = json::parse(line);
    run.loss.push_back(metrics.at("loss"));
    run.grad_norm.push_back(metrics.at("grad_norm"));
    run.learning_rate.push_back(metrics.at("learning_rate"));
  }
  return run;
}

// ||a - b|| / ||b||.
double relative_distance(const std::vector<float>& a, const std::vector<float>& b) {
  double difference = 0;
  double norm = 0;
  for (size_t i = 0; i < b.size(); ++i) {
    difference += std::pow(static_cast<double>(a[i]) - static_cast<double>(b[i]), 2);
    norm += std::pow(static_cast<double>(b[i]), 2);
  }
  return std::sqrt(difference / norm);
}

class Golden : public testing::Test {
 protected:
  void SetUp() override {
    if (reference_cases().empty()) GTEST_SKIP() << "no reference cases in " << shared_folder() / "reference";
  }
  TemporaryFolder temporary_;
};

TEST_F(Golden, Float32TrainingEqualsPyTorch) {
  for (const fs::path& folder : reference_cases()) {
    SCOPED_TRACE(folder.filename());
    const std::string output = temporary_ / folder.filename().string();
    const Losses run = run_case(folder, output, "float32");
    const SafetensorsFile expected = SafetensorsFile::open(folder / "expected.safetensors");
    const std::vector<float> loss = read_tensor(expected, "loss");
    const std::vector<float> grad_norm = read_tensor(expected, "grad_norm");
    const std::vector<float> learning_rate = read_tensor(expected, "lr");
    ASSERT_EQ(run.loss.size(), loss.size());
    for (size_t i = 0; i < loss.size(); ++i) {
      EXPECT_NEAR(run.loss[i], loss[i], 2e-4) << "step " << i + 1;
      EXPECT_NEAR(run.grad_norm[i], grad_norm[i], 1e-3 * grad_norm[i]) << "step " << i + 1;
      EXPECT_NEAR(run.learning_rate[i], learning_rate[i], 1e-6 * learning_rate[i]) << "step " << i + 1;
    }
    const SafetensorsFile weights = SafetensorsFile::open(fs::path(output) / "model.safetensors");
    int64_t compared = 0;
    for (const SafetensorsEntry& entry : expected.entries()) {
      if (!entry.name.starts_with("final.")) continue;
      const std::string name = entry.name.substr(6);
      if (name == "lm_head.weight" && weights.find(name) == nullptr) continue;  // tied embeddings
      ++compared;
      EXPECT_LT(relative_distance(read_tensor(weights, name), read_tensor(expected, entry.name)), 1e-3)
          << name;
    }
    EXPECT_GE(compared, static_cast<int64_t>(weights.entries().size()));
  }
}

TEST_F(Golden, Bfloat16LossesStayClose) {
  for (const fs::path& folder : reference_cases()) {
    SCOPED_TRACE(folder.filename());
    const Losses run = run_case(folder, temporary_ / folder.filename().string(), "bfloat16");
    const std::vector<float> loss =
        read_tensor(SafetensorsFile::open(folder / "expected.safetensors"), "loss");
    ASSERT_EQ(run.loss.size(), loss.size());
    for (size_t i = 0; i < loss.size(); ++i) EXPECT_NEAR(run.loss[i], loss[i], 0.03) << "step " << i + 1;
  }
}

}  // namespace
}  // namespace tessera
