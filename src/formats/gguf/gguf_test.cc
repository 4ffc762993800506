#include "formats/gguf/gguf.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>

#include "base/float_types.h"
#include "expect_error.h"
#include "formats/gguf/q8_0.h"
#include "formats/inspect/inspect.h"
#include "test_folder.h"

namespace tessera {
namespace {

const std::vector<GgufField>& all_gguf_kinds() {
  static const std::vector<GgufField> fields = {
      {"u8", GgufScalar(uint8_t{255})},
      {"i8", GgufScalar(int8_t{-128})},
      {"u16", GgufScalar(uint16_t{65535})},
      {"i16", GgufScalar(int16_t{-32768})},
      {"u32", GgufScalar(uint32_t{4294967295})},
      {"i32", GgufScalar(int32_t{-5})},
      {"f32", GgufScalar(1.5f)},
      {"bool", GgufScalar(true)},
      {"text", GgufScalar(std::string("naïve\n"))},
      {"u64", GgufScalar(uint64_t{1} << 63)},
      {"i64", GgufScalar(int64_t{-1} << 40)},
      {"f64", GgufScalar(0.1)},
      gguf_array("texts", std::vector<std::string>{"a", "", "ccc"}),
      gguf_array("numbers", std::vector<int32_t>{1, -2}),
      gguf_array("none", std::vector<std::string>{}),
  };
  return fields;
}

std::vector<GgufTensor> two_gguf_tensors() {
  return {{.name = "a", .shape = {3}, .type = &ggml_type(GgmlType::kF32)},
          {.name = "b", .shape = {64, 5}, .type = &ggml_type(GgmlType::kQ8_0)}};
}

std::string whole_gguf(const GgufLayout& layout) {
  std::string file = layout.header;
  file.resize(static_cast<size_t>(layout.file_bytes));
  return file;
}

GgufContent parse_bytes(const std::string& file) { return parse_gguf(file, std::ssize(file), "x.gguf"); }

TEST(Gguf, EveryKindOfFieldComesBack) {
  const GgufContent content = parse_bytes(whole_gguf(gguf_layout(all_gguf_kinds(), two_gguf_tensors())));
  ASSERT_EQ(content.fields.size(), all_gguf_kinds().size());
  for (size_t i = 0; i < content.fields.size(); ++i) {
    const GgufField &found = content.fields[i], &written = all_gguf_kinds()[i];
    EXPECT_EQ(found.key, written.key);
    ASSERT_EQ(found.value.index(), written.value.index()) << written.key;
    if (const auto* scalar = std::get_if<GgufScalar>(&written.value)) {
      EXPECT_EQ(std::get<GgufScalar>(found.value), *scalar) << written.key;
    } else {
      EXPECT_EQ(std::get<GgufArray>(found.value).values, std::get<GgufArray>(written.value).values)
          << written.key;
    }
  }
}

TEST(Gguf, TensorsAreAlignedAndCoverTheFile) {
  const GgufLayout layout = gguf_layout(all_gguf_kinds(), two_gguf_tensors());
  const GgufContent content = parse_bytes(whole_gguf(layout));
  ASSERT_EQ(content.tensors.size(), 2u);
  const GgufTensor &a = content.tensors[0], &b = content.tensors[1];
  EXPECT_EQ(a.offset_bytes, std::ssize(layout.header));
  EXPECT_EQ(a.offset_bytes % 32, 0);
  EXPECT_EQ(a.size_bytes, 12);
  EXPECT_EQ(b.offset_bytes, a.offset_bytes + 32);
  EXPECT_EQ(b.shape, (std::vector<int64_t>{64, 5}));
  EXPECT_EQ(b.size_bytes, 5 * 2 * 34);
  EXPECT_EQ(layout.file_bytes, b.offset_bytes + 352);
}

// The bytes of a small file, written by hand from the specification.
TEST(Gguf, TheBytesAreThoseOfTheSpecification) {
  using namespace std::string_literals;
  const GgufLayout layout = gguf_layout({{"k", GgufScalar(uint32_t{7})}},
                                        {{.name = "t", .shape = {2}, .type = &ggml_type(GgmlType::kF16)}});
  const std::string expected = "GGUF\3\0\0\0\1\0\0\0\0\0\0\0\1\0\0\0\0\0\0\0"s +
                               "\1\0\0\0\0\0\0\0k\4\0\0\0\7\0\0\0"s +
                               "\1\0\0\0\0\0\0\0t\1\0\0\0\2\0\0\0\0\0\0\0\1\0\0\0\0\0\0\0\0\0\0\0"s;
  EXPECT_EQ(layout.header.substr(0, expected.size()), expected);
  EXPECT_EQ(layout.header.size(), 96u);
  EXPECT_EQ(layout.file_bytes, 128);
}

TEST(Gguf, EveryTruncationIsRefused) {
  const GgufLayout layout = gguf_layout(all_gguf_kinds(), two_gguf_tensors());
  const std::string file = whole_gguf(layout);
  for (size_t size = 0; size < file.size(); ++size) {
    if (size >= file.size() - 12) break;  // the last tensor's padding may be missing
    expect_error(ExitCode::kBadData, {"x.gguf"}, [&] { parse_bytes(file.substr(0, size)); });
  }
}

TEST(Gguf, ChangedBytesAreReadOrRefused) {
  const std::string file = whole_gguf(gguf_layout(all_gguf_kinds(), two_gguf_tensors()));
  std::mt19937 random(5);
  int num_refused = 0;
  for (int i = 0; i < 20'000; ++i) {
    std::string changed = file;
    for (int n = 1 + static_cast<int>(random() % 3); n > 0; --n)
      changed[random() % changed.size()] = static_cast<char>(random());
    try {
      parse_bytes(changed);
    } catch (const Error& error) {
      ++num_refused;
      EXPECT_EQ(error.code(), ExitCode::kBadData);
      EXPECT_EQ(std::string_view(error.what()).find('\n'), std::string_view::npos);
    }
  }
  EXPECT_GT(num_refused, 1000);
}

template <typename T>
std::string gguf_bytes(T value) {
  return {reinterpret_cast<const char*>(&value), sizeof(value)};
}

std::string gguf_head(uint64_t num_tensors, uint64_t num_fields, uint32_t version = 3) {
  return "GGUF" + gguf_bytes(version) + gguf_bytes(num_tensors) + gguf_bytes(num_fields);
}

std::string gguf_name(const std::string& text) { return gguf_bytes(uint64_t{text.size()}) + text; }

TEST(Gguf, WhatIsWrongIsNamed) {
  const std::string tensor = gguf_name("t");
  const auto dims = [](std::vector<uint64_t> values) {
    std::string text = gguf_bytes(static_cast<uint32_t>(values.size()));
    for (const uint64_t value : values) text += gguf_bytes(value);
    return text;
  };
  const auto place = [](uint32_t type, uint64_t offset) { return gguf_bytes(type) + gguf_bytes(offset); };
  const std::string room(256, '\0');
  const struct {
    std::string file;
    std::vector<std::string> fragments;
  } cases[] = {
      {"GGML" + room, {"expected a GGUF file"}},
      {gguf_head(0, 0, 1) + room, {"version 2 or 3, found 1"}},
      {gguf_head(0, uint64_t{1} << 60), {"metadata fields", "1152921504606846976"}},
      {gguf_head(uint64_t{1} << 60, 0), {"tensors"}},
      {gguf_head(0, 1) + gguf_bytes(uint64_t{1} << 62) + room, {"metadata field 0", "end of the file"}},
      {gguf_head(0, 1) + gguf_name("\xff") + room, {"UTF-8"}},
      {gguf_head(0, 1) + gguf_name("k") + gguf_bytes(uint32_t{13}) + room,
       {"'k'", "value type from 0 to 12, found 13"}},
      {gguf_head(0, 1) + gguf_name("k") + gguf_bytes(uint32_t{9}) + gguf_bytes(uint32_t{9}) + room,
       {"array of arrays"}},
      {gguf_head(0, 1) + gguf_name("k") + gguf_bytes(uint32_t{9}) + gguf_bytes(uint32_t{0}) +
           gguf_bytes(uint64_t{1} << 50) + room,
       {"array values"}},
      {gguf_head(0, 1) + gguf_name("general.alignment") + gguf_bytes(uint32_t{4}) + gguf_bytes(uint32_t{48}) +
           room,
       {"power of two"}},
      {gguf_head(1, 0) + tensor + dims({1, 1, 1, 1, 1}) + room, {"'t'", "at most 4 dimensions, found 5"}},
      {gguf_head(1, 0) + tensor + dims({uint64_t{1} << 40, uint64_t{1} << 40}) + place(0, 0) + room,
       {"2^63"}},
      {gguf_head(1, 0) + tensor + dims({4}) + place(77, 0) + room, {"number 77"}},
      {gguf_head(1, 0) + tensor + dims({33}) + place(8, 0) + room, {"multiple of 32", "Q8_0", "33"}},
      {gguf_head(1, 0) + tensor + dims({4}) + place(0, 8) + room, {"multiple of 32, found 8"}},
      {gguf_head(1, 0) + tensor + dims({4096}) + place(0, 0) + room,
       {"16384 bytes", "damaged or incomplete"}},
      {gguf_head(2, 0) + tensor + dims({4}) + place(0, 0) + tensor + dims({4}) + place(0, 0) + room,
       {"twice"}},
  };
  for (const auto& [file, fragments] : cases) {
    expect_error(ExitCode::kBadData, fragments, [&, &bytes = file] { parse_bytes(bytes); });
  }
}

TEST(Gguf, MetadataBeyondTheLimitIsRefused) {
  const std::string file = gguf_head(0, 1) + gguf_bytes(uint64_t{1000}) + "abcdefgh";
  expect_error(ExitCode::kBadData, {"64.0 MiB"}, [&] { parse_gguf(file, int64_t{1} << 40, "x.gguf"); });
}

TEST(Gguf, InspectListsFieldsAndTensors) {
  const TestFolder folder;
  folder.write("m.gguf", whole_gguf(gguf_layout(all_gguf_kinds(), two_gguf_tensors())));
  EXPECT_THAT(inspect(folder / "m.gguf"),
              testing::AllOf(testing::HasSubstr("i8: -128\n"), testing::HasSubstr("bool: true\n"),
                             testing::HasSubstr("texts: [a, , ccc] (3 values)\n"),
                             testing::HasSubstr("b  Q8_0  [64, 5]  340 B\n"),
                             testing::HasSubstr("2 tensors, 323 elements (3 F32, 320 Q8_0), 352 B\n")));
}

// Follows ggml's quantize_row_q8_0_ref, operation by operation.
void quantize_reference(const float* x, f16* scale, int8_t* q) {
  float largest = 0;
  for (int i = 0; i < 32; ++i) largest = std::max(largest, std::fabs(x[i]));
  const float d = largest / 127;
  const float id = d != 0 ? 1.0f / d : 0.0f;
  *scale = to_f16(d);
  for (int i = 0; i < 32; ++i) q[i] = static_cast<int8_t>(std::round(x[i] * id));
}

TEST(Q8, EqualsTheReferenceForAllSizesOfValues) {
  std::mt19937 random(9);
  constexpr int kBlocks = 200;
  std::vector<float> x(32 * kBlocks);
  for (int block = 0; block < kBlocks; ++block) {
    const float size = std::ldexp(1.0f, block % 40 - 24);
    for (int i = 0; i < 32; ++i)
      x[static_cast<size_t>(32 * block + i)] = size * (static_cast<float>(random()) / 4294967296.0f - 0.5f);
  }
  std::fill_n(x.begin(), 32, 0.0f);
  // Halves: 127 is the largest, so the scale is 1.
  for (int i = 0; i < 32; ++i) x[static_cast<size_t>(32 + i)] = static_cast<float>(i - 16) + 0.5f;
  x[32] = 127;
  std::vector<std::byte> found(34 * kBlocks);
  quantize_q8_0(x.data(), std::ssize(x), found.data());
  for (int block = 0; block < kBlocks; ++block) {
    std::array<std::byte, 34> expected;
    f16 scale;
    std::array<int8_t, 32> q;
    quantize_reference(&x[static_cast<size_t>(32 * block)], &scale, q.data());
    std::memcpy(expected.data(), &scale, 2);
    std::memcpy(expected.data() + 2, q.data(), 32);
    EXPECT_EQ(std::memcmp(expected.data(), &found[static_cast<size_t>(34 * block)], 34), 0)
        << "block " << block;
  }
}

TEST(Q8, TinyValuesBecomeZero) {
  const std::vector<float> x(32, std::numeric_limits<float>::denorm_min());
  std::array<std::byte, 34> found;
  quantize_q8_0(x.data(), 32, found.data());
  EXPECT_TRUE(std::ranges::all_of(found, [](std::byte b) { return b == std::byte{0}; }));
}

}  // namespace
}  // namespace tessera
