#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <mutex>
#include <vector>

#include "base/error.h"
#include "checkpoint/model_folder.h"
#include "test_folder.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;

std::vector<float> load_all(const fs::path& folder, const ModelConfig& config) {
  const ParameterLayout layout(config);
  std::vector<float> flat(static_cast<size_t>(layout.num_elements()));
  ThreadPool pool(2);
  const auto sink = [&](int64_t begin, std::span<const float> values) {
    std::copy(values.begin(), values.end(), flat.begin() + begin);
  };
  load_weights(SafetensorsModel::open(folder), config, layout, sink, pool);
  return flat;
}

void export_all(const fs::path& folder, const ModelConfig& config, const std::vector<float>& flat,
                const ExportOptions& options) {
  const ParameterLayout layout(config);
  const auto source = [&](int64_t begin, std::span<float> values) {
    std::copy_n(flat.begin() + begin, values.size(), values.begin());
  };
  export_model_folder(folder, config, layout, source, options);
}

TEST(ReferenceFolders, AreLoadedAndExportedUnchanged) {
  for (const char* name : {"llama-gqa", "llama-odd", "llama-tied-rope3"}) {
    const fs::path folder = fs::path(TESSERA_SHARED_DIR) / "reference" / name;
    if (!fs::exists(folder)) GTEST_SKIP() << folder << " is absent";
    const ModelConfig config = read_model_config(folder);
    const std::vector<float> flat = load_all(folder, config);
    EXPECT_GT(*std::max_element(flat.begin(), flat.end()), 0);
    const TestFolder out;
    for (const int64_t max_shard_bytes : {int64_t{5'000'000'000}, int64_t{100'000}}) {
      export_all(out.path(), config, flat, {.max_shard_bytes = max_shard_bytes});
      EXPECT_EQ(load_all(out.path(), read_model_config(out.path())), flat) << name << " " << max_shard_bytes;
    }
  }
}

}  // namespace
}  // namespace tessera
