#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

#include "base/error.h"
#include "formats/safetensors.h"
#include "formats/test_folder.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;

TEST(SafetensorsWrite, RoundTripsConvertedTensors) {
  const TestFolder folder;
  std::vector<float> values(1000);
  for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i) - 500;
  const ConstTensorView view(values.data(), DType::kF32, {10, 100});
  write_safetensors(folder / "a.safetensors", {make_item("half", {10, 100}, view, DType::kBF16),
                                               make_item("full", {10, 100}, view, DType::kF32)});
  const auto file = SafetensorsFile::open(folder / "a.safetensors");
  ASSERT_EQ(file.entries().size(), 2);
  EXPECT_EQ(file.entries()[0].name, "full");
  for (const char* name : {"full", "half"}) {
    std::vector<float> back(500);
    file.read(*file.find(name), 400, TensorView(back.data(), DType::kF32, {500}));
    for (size_t i = 0; i < back.size(); ++i)
      ASSERT_EQ(back[i], name == std::string("full") ? values[400 + i] : to_float(to_bf16(values[400 + i])))
          << name << i;
  }
}

TEST(ReferenceFolders, OpenWithTheirTensors) {
  for (const char* name : {"llama-gqa", "llama-odd", "llama-tied-rope3"}) {
    const fs::path folder = fs::path(TESSERA_SHARED_DIR) / "reference" / name;
    if (!fs::exists(folder)) GTEST_SKIP() << folder << " is absent";
    const auto model = SafetensorsModel::open(folder);
    EXPECT_GT(model.tensors().size(), 10);
    EXPECT_TRUE(SafetensorsModel::open(folder / "expected.safetensors").tensors().contains("logits"));
  }
}

}  // namespace
}  // namespace tessera
