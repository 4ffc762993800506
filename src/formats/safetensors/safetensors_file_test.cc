#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <numeric>
#include <vector>

#include "expect_error.h"
#include "formats/safetensors/safetensors.h"
#include "safetensors_bytes.h"
#include "test_folder.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;

// More elements than one piece of a converting read or of a write.
constexpr int64_t kMany = 1'500'001;

std::vector<float> ramp(int64_t count) {
  std::vector<float> values(static_cast<size_t>(count));
  for (size_t i = 0; i < values.size(); ++i)
    values[i] = static_cast<float>(static_cast<int>(i % 511) - 255) / 2;
  return values;
}

template <typename T>
std::vector<T> read_all(const SafetensorsFile& file, const std::string& name, int64_t begin, int64_t count) {
  std::vector<T> values(static_cast<size_t>(count));
  file.read(*file.find(name), begin, TensorView(values.data(), DTypeOf<T>::value, {count}));
  return values;
}

TEST(SafetensorsWrite, EveryFloatTypeComesBackInEveryOther) {
  const TestFolder folder;
  const std::vector<float> values = ramp(kMany);
  const ConstTensorView view(values.data(), DType::kF32, {kMany});
  std::vector<SafetensorsItem> items;
  for (const DType dtype : {DType::kBF16, DType::kF64, DType::kF16, DType::kF32})
    items.push_back(make_item(std::string(dtype_name(dtype)), {kMany, 1}, view, dtype));
  write_safetensors(folder / "all.safetensors", items, {{"a", "\"quoted\" ü\n"}});

  const auto file = SafetensorsFile::open(folder / "all.safetensors");
  EXPECT_EQ(file.metadata().at("a"), "\"quoted\" ü\n");
  ASSERT_EQ(file.entries().size(), 4);
  for (const SafetensorsEntry& entry : file.entries()) {
    EXPECT_EQ(entry.shape, (std::vector<int64_t>{kMany, 1}));
    EXPECT_EQ(entry.offset_bytes % dtype_bytes(entry.dtype), 0) << entry.name;
    // The values need 9 bits: exact in F16 and F32; BF16 rounds those above 128.
    const auto expected = [&](size_t i) {
      return entry.dtype == DType::kBF16 ? to_float(to_bf16(values[i])) : values[i];
    };
    const auto as_float = read_all<float>(file, entry.name, 0, kMany);
    const auto as_f16 = read_all<f16>(file, entry.name, 0, kMany);
    const auto as_bf16 = read_all<bf16>(file, entry.name, 7, kMany - 7);
    for (size_t i = 0; i < as_float.size(); ++i) {
      ASSERT_EQ(as_float[i], expected(i)) << entry.name << " " << i;
      ASSERT_EQ(to_float(as_f16[i]), expected(i)) << entry.name << " " << i;
      if (i >= 7) {
        ASSERT_EQ(as_bf16[i - 7].bits, to_bf16(values[i]).bits) << entry.name << " " << i;
      }
    }
  }
}

TEST(SafetensorsWrite, KeepsTheOrderGivenAmongTensorsOfOneWidth) {
  const TestFolder folder;
  const std::vector<float> values = ramp(3);
  const ConstTensorView view(values.data(), DType::kF32, {3});
  const fs::path path = folder / "order.safetensors";
  write_safetensors(path, {make_item("z", {3}, view, DType::kBF16), make_item("wide", {3}, view, DType::kF32),
                           make_item("a", {3}, view, DType::kF16)});
  const auto file = SafetensorsFile::open(path);
  std::vector<std::string> names;
  for (const SafetensorsEntry& entry : file.entries()) names.push_back(entry.name);
  EXPECT_THAT(names, testing::ElementsAre("wide", "z", "a"));
  EXPECT_EQ(file.entries().front().offset_bytes % 8, 0);
  EXPECT_EQ(file.metadata().at("format"), "pt");
}

TEST(SafetensorsWrite, ScalarsEmptyTensorsAndOddNamesComeBack) {
  const TestFolder folder;
  const int64_t number = -5;
  const ConstTensorView scalar(&number, DType::kI64, {});
  const ConstTensorView none(&number, DType::kI64, {3, 0});
  const fs::path path = folder / "ü odd.safetensors";
  write_safetensors(
      path, {make_item("", {}, scalar, DType::kI64), make_item("ü \"\\\n", {3, 0}, none, DType::kI64)}, {});
  const auto file = SafetensorsFile::open(path);
  EXPECT_EQ(read_all<int32_t>(file, "", 0, 1)[0], -5);
  ASSERT_NE(file.find("ü \"\\\n"), nullptr);
  EXPECT_EQ(file.find("ü \"\\\n")->size_bytes, 0);
  EXPECT_TRUE(read_all<int64_t>(file, "ü \"\\\n", 0, 0).empty());
  EXPECT_TRUE(file.metadata().empty());
}

TEST(SafetensorsWrite, NamesAreUnique) {
  const TestFolder folder;
  const float value = 1;
  const ConstTensorView view(&value, DType::kF32, {1});
  const auto write = [&](const std::string& a, const std::string& b) {
    write_safetensors(folder / "x",
                      {make_item(a, {1}, view, DType::kF32), make_item(b, {1}, view, DType::kF32)});
  };
  expect_error(ExitCode::kInternal, {"tensor 'a' twice"}, [&] { write("a", "a"); });
  expect_error(ExitCode::kInternal, {"__metadata__"}, [&] { write("a", "__metadata__"); });
  EXPECT_TRUE(fs::is_empty(folder.path())) << "a failed write must leave nothing";
}

TEST(SafetensorsRead, IntegersAreCheckedForTheirRange) {
  const TestFolder folder;
  std::vector<int64_t> wide(300'000);
  std::iota(wide.begin(), wide.end(), -5);
  wide[290'000] = int64_t{1} << 40;
  const ConstTensorView view(wide.data(), DType::kI64, {300'000});
  const fs::path path = folder / "ids.safetensors";
  write_safetensors(path, {make_item("ids", {300'000}, view, DType::kI64)});
  const auto file = SafetensorsFile::open(path);
  EXPECT_EQ(read_all<int64_t>(file, "ids", 0, 300'000), wide);
  EXPECT_EQ(read_all<int32_t>(file, "ids", 3, 100'000)[99'999], 99'997);
  expect_error(ExitCode::kBadData,
               {path.native(), "tensor 'ids'", "element 290000", "fits I32", "found 1099511627776"},
               [&] { read_all<int32_t>(file, "ids", 5, 299'995); });
}

TEST(SafetensorsRead, SmallIntegerTypesWiden) {
  const TestFolder folder;
  const auto path = folder.write(
      "small.safetensors", safetensors_bytes(R"({"u16":{"dtype":"U16","shape":[2],"data_offsets":[0,4]},)"
                                             R"("u8":{"dtype":"U8","shape":[1],"data_offsets":[4,5]},)"
                                             R"("bool":{"dtype":"BOOL","shape":[1],"data_offsets":[5,6]}})",
                                             std::string("\xff\xff\x01\x00\xfe\x01", 6)));
  const auto file = SafetensorsFile::open(path);
  EXPECT_EQ(read_all<int32_t>(file, "u16", 0, 2), (std::vector<int32_t>{65535, 1}));
  EXPECT_EQ(read_all<int64_t>(file, "u8", 0, 1)[0], 254);
  EXPECT_EQ(read_all<int64_t>(file, "bool", 0, 1)[0], 1);
}

TEST(SafetensorsRead, TensorsMayHaveMoreThan32BitsOfElements) {
  const TestFolder folder;
  const int64_t count = 5'000'000'000;
  const std::string head = safetensors_bytes(
      fmt::format(R"({{"w":{{"dtype":"U8","shape":[5,1000000000],"data_offsets":[0,{}]}}}})", count), "");
  const auto path = folder.write("sparse.safetensors", head);
  fs::resize_file(path, head.size() + static_cast<size_t>(count) - 2);  // a hole in the file
  std::ofstream(path, std::ios::app | std::ios::binary) << "\x07\x09";
  const auto file = SafetensorsFile::open(path);
  EXPECT_EQ(read_all<int32_t>(file, "w", count - 3, 3), (std::vector<int32_t>{0, 7, 9}));
}

TEST(SafetensorsRead, KindsDoNotMix) {
  const TestFolder folder;
  const std::vector<float> values = ramp(4);
  const ConstTensorView view(values.data(), DType::kF32, {4});
  const fs::path path = folder / "f.safetensors";
  write_safetensors(path, {make_item("f", {4}, view, DType::kF32)});
  const auto file = SafetensorsFile::open(path);
  expect_error(ExitCode::kBadData, {path.native(), "tensor 'f'", "convert to I32, found F32"},
               [&] { read_all<int32_t>(file, "f", 0, 4); });
  expect_error(ExitCode::kInternal, {"f: elements [2, 2 + 3) of 4"},
               [&] { read_all<float>(file, "f", 2, 3); });
}

TEST(SafetensorsRead, NoticesThatTheFileChangedWhileOpen) {
  const TestFolder folder;
  const std::vector<float> values = ramp(1000);
  const ConstTensorView view(values.data(), DType::kF32, {1000});
  const fs::path path = folder / "f.safetensors";
  write_safetensors(path, {make_item("f", {1000}, view, DType::kF32)});
  const auto truncated = SafetensorsFile::open(path);
  fs::resize_file(path, fs::file_size(path) - 1);
  expect_error(ExitCode::kBadData, {path.native(), "ends early", "truncated"},
               [&] { read_all<float>(truncated, "f", 0, 1000); });
  expect_error(ExitCode::kBadData, {path.native(), "changed while"},
               [&] { read_all<bf16>(truncated, "f", 0, 10); });

  write_safetensors(path, {make_item("f", {1000}, view, DType::kF32)});
  const auto replaced = SafetensorsFile::open(path);
  write_safetensors(path, {make_item("f", {1}, view.rows(0, 1), DType::kF32)});
  EXPECT_EQ(read_all<float>(replaced, "f", 0, 1000), values)
      << "a replaced file stays readable under its old handle";
}

}  // namespace
}  // namespace tessera
