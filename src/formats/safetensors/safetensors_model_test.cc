#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <vector>

#include "expect_error.h"
#include "formats/json.h"
#include "formats/safetensors/safetensors.h"
#include "safetensors_bytes.h"
#include "support/file_size_limit.h"
#include "test_folder.h"
#include "test_paths.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;
using testing::ElementsAre;
using testing::HasSubstr;

// A file of I8 tensors of one element each.
std::string tensors_file(const std::vector<std::string>& names) {
  std::string json = "{";
  for (size_t i = 0; i < names.size(); ++i)
    json += fmt::format("{}\"{}\":{{\"dtype\":\"I8\",\"shape\":[1],\"data_offsets\":[{},{}]}}",
                        i == 0 ? "" : ",", names[i], i, i + 1);
  return safetensors_bytes(json + "}", std::string(names.size(), '\1'));
}

constexpr const char* kFirst = "model-00001-of-00002.safetensors";
constexpr const char* kSecond = "model-00002-of-00002.safetensors";

// Two shards, {a, b} and {c}.
void write_two_shards(const TestFolder& folder) {
  folder.write(kFirst, tensors_file({"a", "b"}));
  folder.write(kSecond, tensors_file({"c"}));
}

std::string index_of(const std::string& weight_map, const std::string& total_size = "3") {
  return "{\"metadata\":{\"total_size\":" + total_size + "},\"weight_map\":" + weight_map + "}";
}

const std::string kGoodMap = fmt::format(R"({{"a":"{0}","b":"{0}","c":"{1}"}})", kFirst, kSecond);

struct BadIndex {
  const char* name;
  std::string index;
  std::vector<std::string> fragments;
  ExitCode code = ExitCode::kBadData;

  friend void PrintTo(const BadIndex& bad, std::ostream* out) { *out << bad.name; }
};

class BadIndexTest : public testing::TestWithParam<BadIndex> {};

TEST_P(BadIndexTest, IsRefusedInOneLine) {
  const TestFolder folder;
  write_two_shards(folder);
  folder.write("model.safetensors.index.json", GetParam().index);
  std::vector<std::string> fragments = GetParam().fragments;
  fragments.push_back("model.safetensors.index.json");
  expect_error(GetParam().code, fragments, [&] { SafetensorsModel::open(folder.path()); });
}

BadIndex path_case(const char* name, const std::string& shard) {
  return {name,
          index_of(fmt::format(R"({{"a":"{}","b":"{}","c":"{}"}})", kFirst, kFirst, shard)),
          {"weight_map: tensor 'c': expected a file name without a folder"}};
}

INSTANTIATE_TEST_SUITE_P(
    SafetensorsIndex, BadIndexTest,
    testing::Values(
        BadIndex{"NotJson", "{", {"not valid JSON"}},
        BadIndex{"Array", "[]", {"expected an object, found an empty list"}},
        BadIndex{"NoWeightMap", "{}", {"field 'weight_map': expected an object", "found nothing"}},
        BadIndex{"WeightMapIsList",
                 index_of("[]"),
                 {"field 'weight_map': expected an object", "found an empty list"}},
        BadIndex{"EmptyWeightMap",
                 index_of("{}"),
                 {"field 'weight_map': expected an object", "found an empty object"}},
        BadIndex{"ShardIsNumber", index_of(R"({"a":1})"), {"tensor 'a': expected a file name, found 1"}},
        BadIndex{"TensorTwice",
                 index_of(fmt::format(R"({{"a":"{0}","a":"{1}"}})", kFirst, kSecond)),
                 {"key 'a' appears twice"}},
        path_case("ParentFolder", "../secret.safetensors"), path_case("AbsolutePath", "/etc/passwd"),
        path_case("Subfolder", "sub/c.safetensors"), path_case("Backslash", "..\\\\c.safetensors"),
        path_case("DotDot", ".."), path_case("Dot", "."), path_case("Nothing", ""),
        path_case("NulInside", "a\\u0000b"),
        BadIndex{"MissingShard",
                 index_of(fmt::format(R"({{"a":"{0}","b":"{0}","c":"other.safetensors"}})", "x.safetensors")),
                 {"the shard other.safetensors is missing"},
                 ExitCode::kNoInput},
        BadIndex{"FewerShardsThanTheirNamesSay",
                 index_of(fmt::format(R"({{"a":"{0}","b":"{0}"}})", kFirst)),
                 {"expected 2 shards from the name", "found 1"}},
        BadIndex{
            "TotalSizeIsText", index_of(kGoodMap, "\"3\""), {"'metadata.total_size': expected a number"}}),
    [](const auto& bad) { return std::string(bad.param.name); });

std::string warnings_of(const fs::path& path) {
  testing::internal::CaptureStderr();
  try {
    SafetensorsModel::open(path);
  } catch (const Error& error) {
    ADD_FAILURE() << error.what();
  }
  return testing::internal::GetCapturedStderr();
}

TEST(SafetensorsIndex, ConsistentShardsOpenWithoutAWarning) {
  const TestFolder folder;
  write_two_shards(folder);
  const auto index = folder.write("model.safetensors.index.json", index_of(kGoodMap));
  EXPECT_EQ(warnings_of(folder.path()), "");
  const auto model = SafetensorsModel::open(folder.path());
  EXPECT_EQ(model.files().size(), 2);
  EXPECT_EQ(model.tensors().size(), 3);
  EXPECT_EQ(model.tensors().at("c").file->path().filename(), kSecond);
  EXPECT_EQ(SafetensorsModel::open(index).tensors().size(), 3);
}

TEST(SafetensorsIndex, OddButHarmlessFindsAreWarnings) {
  const TestFolder folder;
  write_two_shards(folder);
  folder.write("model.safetensors.index.json", index_of(kGoodMap, "4.0"));
  EXPECT_THAT(warnings_of(folder.path()), HasSubstr("'metadata.total_size' is 4, the tensors have 3 bytes"));
  folder.write("model.safetensors.index.json", "{\"weight_map\":" + kGoodMap + "}");
  folder.write("model-00003-of-00003.safetensors", tensors_file({"old"}));
  EXPECT_THAT(warnings_of(folder.path()),
              HasSubstr("model-00003-of-00003.safetensors in this folder is not part"));
  folder.write("model.safetensors", tensors_file({"single"}));
  EXPECT_THAT(warnings_of(folder.path()), HasSubstr("the index is ignored"));
  EXPECT_TRUE(SafetensorsModel::open(folder.path()).tensors().contains("single"));
}

// Transformers 5.24 loads such folders the same way.
TEST(SafetensorsIndex, TheShardsCountWhereItDisagrees) {
  const TestFolder folder;
  write_two_shards(folder);
  const auto expect_warning = [&](const std::string& weight_map, const std::string& warning) {
    folder.write("model.safetensors.index.json", index_of(weight_map));
    EXPECT_THAT(warnings_of(folder.path()), HasSubstr(warning));
    EXPECT_EQ(SafetensorsModel::open(folder.path()).tensors().size(), 3);
  };
  expect_warning(fmt::format(R"({{"a":"{0}","b":"{0}","c":"{1}","d":"{1}"}})", kFirst, kSecond),
                 "1 tensor ('d') in none of the shards");
  expect_warning(fmt::format(R"({{"a":"{0}","b":"{1}","c":"{1}"}})", kFirst, kSecond),
                 "1 tensor ('b') in another shard than it says");
  expect_warning(fmt::format(R"({{"a":"{0}","c":"{1}"}})", kFirst, kSecond),
                 "1 tensor ('b') of the shards missing in it: read as if listed");
}

TEST(SafetensorsModel, TheSameTensorInTwoShardsIsRefused) {
  const TestFolder folder;
  folder.write(kFirst, tensors_file({"a", "c"}));
  folder.write(kSecond, tensors_file({"b", "c"}));
  folder.write("model.safetensors.index.json",
               index_of(fmt::format(R"({{"a":"{0}","c":"{0}","b":"{1}"}})", kFirst, kSecond)));
  expect_error(ExitCode::kBadData, {kSecond, "tensor 'c' is also in", kFirst},
               [&] { SafetensorsModel::open(folder.path()); });
}

TEST(SafetensorsModel, ABrokenShardIsNamed) {
  const TestFolder folder;
  write_two_shards(folder);
  folder.write(kSecond, "version https://git-lfs.github.com/spec/v1\n");
  folder.write("model.safetensors.index.json", index_of(kGoodMap));
  expect_error(ExitCode::kBadData, {kSecond, "Git LFS pointer"},
               [&] { SafetensorsModel::open(folder.path()); });
}

TEST(SafetensorsModel, SaysWhatAFolderWithoutWeightsHolds) {
  const TestFolder folder;
  expect_error(ExitCode::kNoInput, {folder.path().native(), "no weights", "model.safetensors.index.json"},
               [&] { SafetensorsModel::open(folder.path()); });
  folder.write("pytorch_model.bin", "PK");
  expect_error(ExitCode::kNoInput, {"found only pytorch_model.bin", "convert it to safetensors"},
               [&] { SafetensorsModel::open(folder.path()); });
  folder.write("adapter_model.safetensors", "");
  expect_error(ExitCode::kNoInput, {"found only adapter_model.safetensors (a LoRA adapter"},
               [&] { SafetensorsModel::open(folder.path()); });
  expect_error(ExitCode::kNoInput, {"absent", "No such file"},
               [&] { SafetensorsModel::open(folder / "absent"); });
}

// Four BF16 tensors of 100, 60, 400 and 40 bytes, all elements `value`.
std::vector<SafetensorsItem> four_items(const std::vector<float>& values) {
  std::vector<SafetensorsItem> items;
  for (const auto& [name, count] :
       std::vector<std::pair<std::string, int64_t>>{{"a", 50}, {"b", 30}, {"big", 200}, {"d", 20}})
    items.push_back(
        make_item(name, {count}, ConstTensorView(values.data(), DType::kF32, {count}), DType::kBF16));
  return items;
}

float first_value(const fs::path& folder, const std::string& name) {
  const auto model = SafetensorsModel::open(folder);
  float value = 0;
  const auto& [file, entry] = model.tensors().at(name);
  file->read(*entry, 0, TensorView(&value, DType::kF32, {1}));
  return value;
}

TEST(SafetensorsModelWrite, ShardsAsHuggingFaceDoes) {
  const TestFolder folder;
  const std::vector<float> values(200, 1.5f);
  write_safetensors_model(folder.path(), four_items(values), 160);
  const std::set<std::string> expected = {"model-00001-of-00003.safetensors",
                                          "model-00002-of-00003.safetensors",
                                          "model-00003-of-00003.safetensors", "model.safetensors.index.json"};
  EXPECT_EQ(folder.names(), expected);
  const Json index = parse_json(read_text_file(folder / "model.safetensors.index.json"), "index");
  EXPECT_EQ(index["metadata"]["total_size"], 600);
  EXPECT_EQ(index["weight_map"]["a"], "model-00001-of-00003.safetensors");
  EXPECT_EQ(index["weight_map"]["b"], "model-00001-of-00003.safetensors");
  EXPECT_EQ(index["weight_map"]["big"], "model-00002-of-00003.safetensors");
  EXPECT_EQ(index["weight_map"]["d"], "model-00003-of-00003.safetensors");
  EXPECT_EQ(warnings_of(folder.path()), "");
  EXPECT_EQ(first_value(folder.path(), "big"), 1.5f);
}

TEST(SafetensorsModelWrite, ReplacesAnEarlierModelWhole) {
  const TestFolder folder;
  folder.write("tokenizer.json", "{}");
  folder.write("model-notes.safetensors", "mine");
  const std::set<std::string> others = {"tokenizer.json", "model-notes.safetensors"};
  for (const int64_t max_shard_bytes : {100, 160, 10'000, 300, 400, 10'000}) {
    const std::vector<float> values(200, static_cast<float>(max_shard_bytes));
    write_safetensors_model(folder.path(), four_items(values), max_shard_bytes);
    std::set<std::string> names = folder.names();
    for (const std::string& other : others) EXPECT_EQ(names.erase(other), 1);
    const auto model = SafetensorsModel::open(folder.path());
    EXPECT_EQ(names.size(), model.files().size() + (model.files().size() > 1 ? 1 : 0))
        << testing::PrintToString(names);
    for (const char* name : {"a", "b", "big", "d"})
      EXPECT_EQ(first_value(folder.path(), name), to_float(to_bf16(static_cast<float>(max_shard_bytes))));
    EXPECT_EQ(warnings_of(folder.path()), "");
  }
}

TEST(SafetensorsModelWrite, RemovesWhatKilledProcessesHaveLeft) {
  const TestFolder folder;
  folder.write(".model.safetensors.tmp-4711-1", "a part");
  folder.write(".model-00002-of-00003.safetensors.tmp-4711-2", "a part");
  const AtomicFile living(folder / "model.safetensors");
  const std::set<std::string> before = folder.names();
  write_safetensors_model(folder.path(), four_items(std::vector<float>(200, 1.0f)), 10'000);
  EXPECT_EQ(before.size(), 3u);
  EXPECT_EQ(folder.names().size(), 2u) << "the model and the file of a living process";
}

TEST(SafetensorsModelWrite, AFailureKeepsTheEarlierModel) {
  const TestFolder folder;
  const std::vector<float> old_values(200, 1.0f), new_values(200, 2.0f);
  write_safetensors_model(folder.path(), four_items(old_values), 160);
  const std::set<std::string> before = folder.names();
  {
    const FileSizeLimit full;
    full.set(4096 + 300);  // the second shard needs 400 bytes and a header of a page
    expect_error(ExitCode::kIoError, {"model-00002-of-00003.safetensors", "write failed", "File too large"},
                 [&] { write_safetensors_model(folder.path(), four_items(new_values), 160); });
  }
  EXPECT_EQ(folder.names(), before);
  EXPECT_EQ(first_value(folder.path(), "d"), 1.0f);
}

TEST(SafetensorsModelWrite, AnErrorInTheProducerLeavesNothing) {
  const TestFolder folder;
  const std::vector<float> values(200, 1.0f);
  std::vector<SafetensorsItem> items = four_items(values);
  items[2].produce = [](int64_t, int64_t, std::byte*) { fail(ExitCode::kNumerics, "not finite"); };
  for (const int64_t max_shard_bytes : {160, 10'000}) {
    expect_error(ExitCode::kNumerics, {"not finite"},
                 [&] { write_safetensors_model(folder.path(), items, max_shard_bytes); });
    EXPECT_TRUE(fs::is_empty(folder.path()));
  }
}

TEST(ReferenceFolders, OpenWithTheirTensors) {
  for (const fs::path& folder : reference_cases()) {
    EXPECT_GT(SafetensorsModel::open(folder).tensors().size(), 10);
    const auto expected = SafetensorsModel::open(folder / "expected.safetensors");
    EXPECT_TRUE(expected.tensors().contains("logits"));
    const auto batches = SafetensorsModel::open(folder / "batches.safetensors");
    EXPECT_EQ(batches.tensors().at("input_ids").entry->dtype, DType::kI64);
  }
}

}  // namespace
}  // namespace tessera
