// Everything the format forbids: huggingface/safetensors, README "Format" and the errors in its tensor.rs.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

#include "expect_error.h"
#include "formats/safetensors/safetensors.h"
#include "safetensors_bytes.h"
#include "test_folder.h"

namespace tessera {
namespace {

struct BadFile {
  const char* name;
  std::string bytes;
  std::vector<std::string> fragments;

  friend void PrintTo(const BadFile& bad, std::ostream* out) { *out << bad.name; }
};

class BadFileTest : public testing::TestWithParam<BadFile> {};

TEST_P(BadFileTest, IsRefusedInOneLineThatNamesTheFile) {
  const TestFolder folder;
  const auto path = folder.write("bad.safetensors", GetParam().bytes);
  std::vector<std::string> fragments = GetParam().fragments;
  fragments.push_back(path.native());
  expect_error(ExitCode::kBadData, fragments, [&] { SafetensorsFile::open(path); });
}

std::string with_length(uint64_t length, const std::string& rest) {
  std::string bytes = safetensors_bytes("", rest);
  std::memcpy(bytes.data(), &length, sizeof(length));
  return bytes;
}

// A file whose header has the single tensor 'w' with these fields, followed by data_bytes zeros.
std::string one_tensor(const std::string& fields, size_t data_bytes) {
  return safetensors_bytes("{\"w\":{" + fields + "}}", std::string(data_bytes, '\0'));
}

std::string header(const std::string& json, size_t data_bytes = 0) {
  return safetensors_bytes(json, std::string(data_bytes, '\0'));
}

// F32 tensors of one element at the given offsets.
std::string tensors_at(const std::vector<std::pair<int, int>>& offsets, size_t data_bytes) {
  std::string json = "{";
  for (size_t i = 0; i < offsets.size(); ++i)
    json += fmt::format("{}\"t{}\":{{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[{},{}]}}",
                        i == 0 ? "" : ",", i, offsets[i].first, offsets[i].second);
  return header(json + "}", data_bytes);
}

INSTANTIATE_TEST_SUITE_P(
    File, BadFileTest,
    testing::Values(
        BadFile{"Empty", "", {"too short", "at least 8 bytes, found 0"}},
        BadFile{"SevenBytes", "1234567", {"too short", "at least 8 bytes, found 7"}},
        BadFile{"HeaderAbove100MB",
                with_length(100'000'001, "{}"),
                {"header length", "at most 100000000", "100000001"}},
        BadFile{"HeaderLengthOfAllOnes",
                with_length(~uint64_t{0}, "{}"),
                {"header length", "18446744073709551615"}},
        BadFile{"HeaderBehindTheEnd", with_length(3, "{}"), {"header length: 3 bytes in a file of 10 bytes"}},
        BadFile{"NoHeader", with_length(0, ""), {"header: expected '{', found nothing"}},
        BadFile{"GitLfsPointer",
                "version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 16060522496\n",
                {"Git LFS pointer", "git lfs pull"}},
        BadFile{"Gguf", std::string("GGUF\3\0\0\0\0\0\0\0", 12), {"found a GGUF file"}},
        BadFile{"PyTorchArchive", "PK\x03\x04 and so on", {"zip archive"}},
        BadFile{"Truncated",
                one_tensor(R"("dtype":"F32","shape":[4],"data_offsets":[0,16])", 15),
                {"tensor 'w'", "[0, 16] lies outside the 15 bytes of data", "truncated"}},
        BadFile{"DataBehindTheTensors",
                one_tensor(R"("dtype":"F32","shape":[4],"data_offsets":[0,16])", 17),
                {"expected 16 bytes of data", "found 17"}},
        BadFile{"DataWithoutTensors", header("{}", 1), {"expected 0 bytes of data", "found 1"}}),
    [](const auto& bad) { return std::string(bad.param.name); });

INSTANTIATE_TEST_SUITE_P(
    Json, BadFileTest,
    testing::Values(
        BadFile{"NotUtf8", header("{\"\xff\":1}"), {"header: not valid UTF-8"}},
        BadFile{"NotJson", header("{\"w\":"), {"header: not valid JSON: line 1, column"}},
        BadFile{"TrailingGarbage", header("{} x"), {"header: not valid JSON: line 1, column"}},
        BadFile{"SecondDocumentBehindNul",
                header(std::string("{}\0{}", 5)),
                {"header: not valid JSON: NUL byte"}},
        BadFile{"ByteOrderMark", header("\xEF\xBB\xBF{}"), {"header: expected '{'"}},
        BadFile{"Array", header("[]"), {"header: expected '{', found '[]'"}},
        BadFile{"OnlyBlanks", header("   \n"), {"header: expected '{', found nothing"}},
        BadFile{"DeepArrays", header("{\"w\":" + std::string(1'000'000, '[')), {"header: nested too deep"}},
        BadFile{"DeepObjects", header(R"({"w":{"dtype":{"dtype":{}}}})"), {"header: nested too deep"}},
        BadFile{"DeepShape", header(R"({"w":{"shape":[[1]]}})"), {"header: nested too deep"}},
        BadFile{"TensorIsNull", header(R"({"w":null})"), {"field 'w': expected an object, found null"}},
        BadFile{"TensorIsString", header(R"({"w":"x"})"), {"field 'w': expected an object, found \"x\""}},
        BadFile{
            "DuplicateTensor",
            header(
                R"({"w":{"dtype":"F32","shape":[0],"data_offsets":[0,0]},"\u0077":{"dtype":"I8","shape":[0],"data_offsets":[0,0]}})"),
            {"header: key 'w' appears twice"}},
        BadFile{"DuplicateField",
                header(R"({"w":{"dtype":"F32","dtype":"F32"}})"),
                {"header: key 'dtype' appears twice"}},
        BadFile{"DuplicateShape", header(R"({"w":{"shape":[],"shape":[]}})"), {"key 'shape' appears twice"}},
        BadFile{"DuplicateMetadata",
                header(R"({"__metadata__":{"a":"1","a":"2"}})"),
                {"header: key 'a' appears twice"}},
        BadFile{"TwoMetadata",
                header(R"({"__metadata__":{},"__metadata__":{}})"),
                {"key '__metadata__' appears twice"}},
        BadFile{"MetadataNumber",
                header(R"({"__metadata__":{"epoch":3}})"),
                {"field '__metadata__.epoch': expected a string, found 3"}},
        BadFile{"MetadataNull", header(R"({"__metadata__":{"a":null}})"), {"expected a string, found null"}},
        BadFile{"MetadataNested",
                header(R"({"__metadata__":{"a":{}}})"),
                {"expected a string, found an empty object"}},
        BadFile{"MetadataIsList",
                header(R"({"__metadata__":[]})"),
                {"'__metadata__': expected an object, found an empty list"}},
        BadFile{"LineBreakInName", header("{\"a\\nb\":3}"), {R"(field 'a\x0ab': expected an object)"}}),
    [](const auto& bad) { return std::string(bad.param.name); });

INSTANTIATE_TEST_SUITE_P(
    Tensor, BadFileTest,
    testing::Values(
        BadFile{"MissingDtype",
                one_tensor(R"("shape":[0],"data_offsets":[0,0])", 0),
                {"field 'w.dtype': expected a string, found nothing"}},
        BadFile{"MissingShape",
                one_tensor(R"("dtype":"F32","data_offsets":[0,0])", 0),
                {"field 'w.shape': expected a list, found nothing"}},
        BadFile{"MissingOffsets",
                one_tensor(R"("dtype":"F32","shape":[0])", 0),
                {"field 'w.data_offsets': expected a list, found nothing"}},
        BadFile{"UnknownField",
                one_tensor(R"("dtype":"F32","strides":[1])", 0),
                {"'w': unknown field 'strides'"}},
        BadFile{"UnknownDtype",
                one_tensor(R"("dtype":"F23","shape":[0],"data_offsets":[0,0])", 0),
                {"tensor 'w': field 'dtype': unknown type 'F23', expected one of BF16"}},
        BadFile{"LowerCaseDtype",
                one_tensor(R"("dtype":"f32","shape":[0],"data_offsets":[0,0])", 0),
                {"unknown type 'f32'"}},
        BadFile{"SubByteDtype",
                one_tensor(R"("dtype":"F4","shape":[3],"data_offsets":[0,2])", 2),
                {"tensor 'w': field 'dtype': sub-byte type not supported: 'F4'"}},
        BadFile{"DtypeIsNumber",
                one_tensor(R"("dtype":32)", 0),
                {"field 'w.dtype': expected a string, found 32"}},
        BadFile{"ShapeIsNumber",
                one_tensor(R"("dtype":"I8","shape":4)", 0),
                {"field 'w.shape': expected a list, found 4"}},
        BadFile{"ShapeOfStrings",
                one_tensor(R"("dtype":"I8","shape":["4"])", 0),
                {"field 'w.shape[0]'", "found \"4\""}},
        BadFile{
            "NegativeDim", one_tensor(R"("dtype":"I8","shape":[-1])", 0), {"field 'w.shape[0]'", "found -1"}},
        BadFile{"FractionalDim",
                one_tensor(R"("dtype":"I8","shape":[1.5])", 0),
                {"field 'w.shape[0]'", "found 1.5"}},
        BadFile{"DimAbove63Bits",
                one_tensor(R"("dtype":"I8","shape":[9223372036854775808])", 0),
                {"found 9223372036854775808"}},
        BadFile{"DimAbove64Bits",
                one_tensor(R"("dtype":"I8","shape":[99999999999999999999999])", 0),
                {"field 'w.shape[0]': expected an integer", "found 9.99"}},
        BadFile{"HugeExponent", one_tensor(R"("shape":[1e99999])", 0), {"not valid JSON"}},
        BadFile{"ShapeProductOverflows",
                one_tensor(R"("dtype":"I8","shape":[4294967296,4294967296],"data_offsets":[0,0])", 0),
                {"tensor 'w': field 'shape': the size of I8 [4294967296, 4294967296] overflows"}},
        BadFile{"ShapeProductWrapsToSmall",
                one_tensor(R"("dtype":"I8","shape":[2,9223372036854775807,2],"data_offsets":[0,4])", 4),
                {"overflows"}},
        BadFile{"BytesOverflow",
                one_tensor(R"("dtype":"F32","shape":[9223372036854775807],"data_offsets":[0,4])", 4),
                {"the size of F32 [9223372036854775807] overflows"}},
        BadFile{"OneOffset",
                one_tensor(R"("dtype":"I8","shape":[0],"data_offsets":[0])", 0),
                {"'w.data_offsets': expected two integers", "found a list of 1"}},
        BadFile{"ThreeOffsets",
                one_tensor(R"("dtype":"I8","shape":[0],"data_offsets":[0,0,0])", 0),
                {"'w.data_offsets'", "found a list of 3"}},
        BadFile{"NegativeOffset",
                one_tensor(R"("dtype":"I8","shape":[0],"data_offsets":[-4,0])", 0),
                {"'w.data_offsets[0]'", "found -4"}},
        BadFile{"BeginBehindEnd",
                one_tensor(R"("dtype":"I8","shape":[4],"data_offsets":[4,0])", 4),
                {"tensor 'w': field 'data_offsets': begin 4 is after end 0"}},
        BadFile{"OffsetsOtherThanShape",
                one_tensor(R"("dtype":"F32","shape":[2,2],"data_offsets":[0,8])", 8),
                {"tensor 'w': field 'data_offsets': expected 16 bytes for F32 [2, 2], found 8 ([0, 8])"}},
        BadFile{
            "OffsetsBehindTheFile",
            one_tensor(R"("dtype":"I8","shape":[1],"data_offsets":[9223372036854775806,9223372036854775807])",
                       1),
            {"tensor 'w'", "lies outside the 1 byte of"}},
        BadFile{"FirstOffsetNotZero",
                tensors_at({{4, 8}}, 8),
                {"'t0'", "expected to begin at 0, found 4 (a hole"}},
        BadFile{"Hole",
                tensors_at({{0, 4}, {8, 12}}, 12),
                {"tensor 't1'", "expected to begin at 4, found 8 (a hole"}},
        BadFile{"Overlap", tensors_at({{0, 4}, {2, 6}}, 6), {"tensor 't1'", "begin at 4, found 2 (overlaps"}},
        BadFile{"SameBytesTwice",
                tensors_at({{0, 4}, {0, 4}}, 4),
                {"tensor 't1'", "begin at 4, found 0 (overlaps"}}),
    [](const auto& bad) { return std::string(bad.param.name); });

TEST(SafetensorsHeader, AcceptsWhatTheFormatAllows) {
  std::map<std::string, std::string> metadata;
  const auto entries = parse_safetensors_header(
      " \t\n{\"__metadata__\":{\"format\":\"pt\",\"ü\":\"\"},"
      "\"late\":{\"data_offsets\":[4,12],\"shape\":[2,1,1,1,1,1,1,1,1,2],\"dtype\":\"BF16\"},"
      "\"scalar\":{\"dtype\":\"F32\",\"shape\":[],\"data_offsets\":[0,4]},"
      "\"none\":{\"dtype\":\"I64\",\"shape\":[3,0],\"data_offsets\":[4,4]},"
      "\"\":{\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[12,12]}}   ",
      12, "x", &metadata);
  ASSERT_EQ(entries.size(), 4);
  EXPECT_EQ(entries[0].name, "scalar");
  EXPECT_EQ(entries[0].size_bytes, 4);
  EXPECT_TRUE(entries[0].shape.empty());
  EXPECT_EQ(entries[1].name, "none");
  EXPECT_EQ(entries[2].name, "late");
  EXPECT_EQ(entries[2].shape.size(), 10);
  EXPECT_EQ(entries[3].name, "");
  EXPECT_EQ(metadata, (std::map<std::string, std::string>{{"format", "pt"}, {"ü", ""}}));
}

TEST(SafetensorsHeader, TensorsMayStandInAnyOrder) {
  const auto entries = parse_safetensors_header(
      R"({"b":{"dtype":"I8","shape":[1],"data_offsets":[1,2]},"a":{"dtype":"I8","shape":[1],"data_offsets":[0,1]}})",
      2, "x", nullptr);
  EXPECT_EQ(entries[0].name, "a");
  EXPECT_EQ(entries[1].name, "b");
}

TEST(SafetensorsHeader, FileWithoutTensorsIsValid) {
  const TestFolder folder;
  EXPECT_TRUE(SafetensorsFile::open(folder.write("none.safetensors", header("{}"))).entries().empty());
}

}  // namespace
}  // namespace tessera
