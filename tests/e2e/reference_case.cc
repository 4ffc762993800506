#include "e2e/reference_case.h"

#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>
#include <sstream>

#include "e2e/process.h"
#include "formats/safetensors/safetensors.h"

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

}  // namespace

std::vector<std::string> reference_arguments(const fs::path& folder, const std::string& output,
                                             int rows_per_rank, int accumulation) {
  const json settings = json::parse(read_file(folder / "case.json"));
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
          std::to_string(rows_per_rank),
          "--gradient_accumulation_steps",
          std::to_string(accumulation),
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

ReferenceShape reference_shape(const fs::path& folder) {
  const json settings = json::parse(read_file(folder / "case.json"));
  return {.batch = settings.at("batch"), .accumulation = settings.at("accum")};
}

Losses read_losses(const fs::path& output) {
  Losses run;
  std::istringstream lines(read_file(output / "metrics.jsonl"));
  for (std::string line; std::getline(lines, line);) {
    const json metrics = json::parse(line);
    run.loss.push_back(metrics.at("loss"));
    run.grad_norm.push_back(metrics.at("grad_norm"));
    run.learning_rate.push_back(metrics.at("learning_rate"));
  }
  return run;
}

void expect_float32_reference(const fs::path& folder, const fs::path& output) {
  const Losses run = read_losses(output);
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
  const SafetensorsFile weights = SafetensorsFile::open(output / "model.safetensors");
  int64_t compared = 0;
  for (const SafetensorsEntry& entry : expected.entries()) {
    if (!entry.name.starts_with("final.")) continue;
    const std::string name = entry.name.substr(6);
    if (name == "lm_head.weight" && weights.find(name) == nullptr) continue;  // tied embeddings
    ++compared;
    EXPECT_LT(relative_distance(read_tensor(weights, name), read_tensor(expected, entry.name)), 1e-3) << name;
  }
  EXPECT_GE(compared, static_cast<int64_t>(weights.entries().size()));
}

void expect_bfloat16_reference(const fs::path& folder, const fs::path& output) {
  const Losses run = read_losses(output);
  const std::vector<float> loss = read_tensor(SafetensorsFile::open(folder / "expected.safetensors"), "loss");
  ASSERT_EQ(run.loss.size(), loss.size());
  for (size_t i = 0; i < loss.size(); ++i) EXPECT_NEAR(run.loss[i], loss[i], 0.03) << "step " << i + 1;
}

}  // namespace tessera
