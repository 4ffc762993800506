// A model folder written by several writers is byte-identical to a single writer's.
#include "weights/shared_export.h"

#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <thread>

#include "expect_error.h"
#include "io/file.h"
#include "model/families/families.h"
#include "test_folder.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;

ModelConfig tiny_config() {
  ModelConfig config;
  config.vocab_size = 301;
  config.hidden_size = 48;
  config.intermediate_size = 80;
  config.num_hidden_layers = 3;
  config.num_attention_heads = 6;
  config.num_key_value_heads = 3;
  config.head_dim = 8;
  return config;
}

// A different value at every position.
void fill(int64_t begin, std::span<float> values) {
  for (size_t i = 0; i < values.size(); ++i)
    values[i] = std::sin(0.37f * static_cast<float>(begin + static_cast<int64_t>(i)));
}

std::map<std::string, std::string> files_of(const fs::path& folder) {
  std::map<std::string, std::string> files;
  for (const auto& entry : fs::directory_iterator(folder)) {
    files[entry.path().filename().string()] = read_text_file(entry.path());
  }
  return files;
}

void export_by(int num_writers, const fs::path& folder, const ModelConfig& config,
               const ParameterLayout& layout, const ExportOptions& options) {
  SharedExport first(folder, config, layout, options);
  const uint64_t number = first.create();
  std::vector<std::thread> writers;
  for (int64_t i = 0; i < num_writers; ++i) {
    writers.emplace_back([&, i] {
      const SharedExport writer(folder, config, layout, options);
      const int64_t count = layout.num_elements();
      // Each writer has elements in both halves, as ranks have elements in every layer.
      const auto part = [&](int64_t begin, int64_t end) {
        const int64_t size = end - begin;
        return ElementRange{begin + size * i / num_writers, begin + size * (i + 1) / num_writers};
      };
      writer.write(number, {part(0, count / 2), part(count / 2, count)}, fill);
    });
  }
  for (std::thread& writer : writers) writer.join();
  first.commit();
}

TEST(SharedExport, HasTheBytesOfOneWriter) {
  const ModelConfig config = tiny_config();
  const ParameterLayout layout = parameter_layout(config);
  for (const DType dtype : {DType::kBF16, DType::kF16, DType::kF32}) {
    for (const int64_t max_shard_bytes : {int64_t{5'000'000'000}, int64_t{40'000}}) {
      ExportOptions options;
      options.save_dtype = dtype;
      options.max_shard_bytes = max_shard_bytes;
      const TestFolder alone, together;
      export_model_folder(alone.path(), config, layout, fill, options);
      for (const int num_writers : {1, 2, 5}) {
        // Later exports replace earlier ones.
        export_by(num_writers, together.path(), config, layout, options);
        EXPECT_EQ(files_of(together.path()), files_of(alone.path()))
            << dtype_name(dtype) << ", shards of " << max_shard_bytes << ", " << num_writers << " writers";
      }
    }
  }
}

// Parameters that are slices of one tensor of the files.
TEST(SharedExport, WritesSlicesToTheirTensor) {
  ModelConfig config = tiny_config();
  config.family = "gpt_oss";
  config.experts = {3, 2, 20, true, 0, {true, true, true}, ClampedSwiglu{}};
  const ParameterLayout layout = parameter_layout(config);
  const TestFolder alone, together;
  export_model_folder(alone.path(), config, layout, fill, {});
  export_by(3, together.path(), config, layout, {});
  EXPECT_EQ(files_of(together.path()), files_of(alone.path()));
}

TEST(SharedExport, ReplacesShardsByASingleFileAndBack) {
  const ModelConfig config = tiny_config();
  const ParameterLayout layout = parameter_layout(config);
  ExportOptions sharded;
  sharded.max_shard_bytes = 40'000;
  const TestFolder folder, expected, expected_sharded;
  export_model_folder(expected.path(), config, layout, fill, {});
  export_model_folder(expected_sharded.path(), config, layout, fill, sharded);
  for (int i = 0; i < 2; ++i) {
    export_by(2, folder.path(), config, layout, sharded);
    EXPECT_EQ(files_of(folder.path()), files_of(expected_sharded.path()));
    export_by(2, folder.path(), config, layout, {});
    EXPECT_EQ(files_of(folder.path()), files_of(expected.path()));
  }
}

TEST(SharedExport, LeavesTheOlderModelWhenItIsNotFinished) {
  const ModelConfig config = tiny_config();
  const ParameterLayout layout = parameter_layout(config);
  const TestFolder folder;
  export_model_folder(folder.path(), config, layout, fill, {});
  const auto before = files_of(folder.path());
  const WeightSource bad = [](int64_t begin, std::span<float> values) {
    fill(begin, values);
    values.back() = std::nanf("");
  };
  {
    SharedExport files(folder.path(), config, layout, {});
    const uint64_t number = files.create();
    EXPECT_GT(files_of(folder.path()).size(), before.size());
    expect_error(ExitCode::kNumerics, {"found nan"}, [&] {
      files.write(number, {{0, layout.num_elements()}}, bad);
    });
  }
  EXPECT_EQ(files_of(folder.path()), before);
}

}  // namespace
}  // namespace tessera
