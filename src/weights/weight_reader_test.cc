#include "weights/weight_reader.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "model/families/families.h"
#include "support/isolated_device.h"
#include "support/weights_test_support.h"
#include "test_folder.h"

namespace tessera {
namespace {

ModelConfig reader_config() {
  ModelConfig config = preset_config("15m");
  config.vocab_size = 301;
  config.hidden_size = 24;
  config.intermediate_size = 52;
  config.num_hidden_layers = 2;
  config.num_attention_heads = 3;
  config.num_key_value_heads = 1;
  config.head_dim = 8;
  config.sliding_window.assign(2, 0);
  return config;
}

TEST(WeightReader, FillsADeviceGroupByGroupAndReportsItAsOne) {
  const ModelConfig config = reader_config();
  const ParameterLayout layout = parameter_layout(config);
  const std::vector<float> flat = bf16_weights(layout, 3);
  const TestFolder folder;
  export_flat(folder.path(), config, flat);
  const SafetensorsModel file = SafetensorsModel::open(folder.path());
  ThreadPool pool(2);
  for (const DType dtype : {DType::kBF16, DType::kF32}) {
    SCOPED_TRACE(dtype_name(dtype));
    IsolatedDevice device;
    const DeviceBuffer memory = device.allocate(layout.num_elements() * dtype_bytes(dtype));
    std::vector<LoadProgress> reported;
    WeightReader reader(file, config, layout, pool,
                        [&](const LoadProgress& progress) { reported.push_back(progress); });
    reader.expect_all();
    load_by_groups(reader, memory.view(dtype, {layout.num_elements()}));

    const DeviceBuffer here = host_device().allocate(memory.size_bytes());
    const TensorView got = here.view(dtype, {layout.num_elements()});
    copy(memory.view(dtype, got.shape()), got);
    for (int64_t i = 0; i < layout.num_elements(); ++i) {
      const float value = dtype == DType::kF32 ? got.as<float>()[i] : to_float(got.as<bf16>()[i]);
      ASSERT_EQ(value, flat[static_cast<size_t>(i)]) << i;
    }
    const int64_t total = layout.num_parameters() * dtype_bytes(DType::kBF16);
    EXPECT_EQ(reported.back().bytes_done, total);
    EXPECT_TRUE(std::ranges::all_of(reported, [&](const auto& now) { return now.bytes_total == total; }));
    EXPECT_TRUE(std::ranges::is_sorted(reported, {}, &LoadProgress::bytes_done));
    EXPECT_TRUE(std::ranges::is_sorted(reported, {}, &LoadProgress::seconds));
  }
}

TEST(FillByParts, SkipsEmptyPartsAndClearsTheBuffer) {
  IsolatedDevice device;
  const DeviceBuffer memory = device.allocate(8);
  const std::vector<int64_t> begins = {0, 3, 3, 5, 8};
  std::vector<int64_t> filled;
  fill_by_parts(begins, memory.view(DType::kU8, {8}), [&](int64_t index, std::byte* buffer) {
    filled.push_back(index);
    buffer[0] = static_cast<std::byte>(index + 1);
  });
  EXPECT_EQ(filled, (std::vector<int64_t>{0, 2, 3}));
  std::vector<uint8_t> got(8);
  copy(memory.view(DType::kU8, {8}), TensorView(got.data(), DType::kU8, {8}));
  EXPECT_EQ(got, (std::vector<uint8_t>{1, 0, 0, 3, 0, 4, 0, 0}));
}

}  // namespace
}  // namespace tessera
