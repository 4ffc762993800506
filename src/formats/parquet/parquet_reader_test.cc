#include "formats/parquet/parquet_reader.h"

#include <gtest/gtest.h>

#include <string>
#include <string_view>
#include <vector>

#include "expect_error.h"
#include "formats/parquet/page_codec.h"
#include "formats/parquet/problem.h"
#include "formats/row_error.h"
#include "support/parquet_bytes.h"
#include "test_folder.h"

namespace tessera {
namespace {

using parquet::Encoding;
using parquet::PageType;
using parquet::PhysicalType;
using parquet::Repetition;

// Pages of a string column "text" of two rows.
ParquetPage text_page(const std::string& values, Encoding encoding = Encoding::kPlain,
                      int64_t num_values = 2) {
  return {PageType::kData, encoding, num_values, "", "", values, false};
}

const std::string kTwoTexts = encode_byte_array("one") + encode_byte_array("two");

// Pages that claim to hold far more than their compressed bytes could, or than any page needs.
TEST(PageCodec, RefusesPagesOfGigabytes) {
  constexpr int64_t kMiB = int64_t{1} << 20;
  for (const int32_t codec : {0, 1, 2, 4, 6, 7}) {
    EXPECT_NO_THROW(parquet::check_codec(codec, 512 * kMiB, 512 * kMiB)) << codec;
    EXPECT_THROW(parquet::check_codec(codec, 1024 * kMiB, 1024 * kMiB), parquet::Problem) << codec;
    EXPECT_THROW(parquet::check_codec(codec, 10, 100 * kMiB), parquet::Problem) << codec;
  }
}

class ParquetReaderTest : public testing::Test {
 protected:
  // A file with one required string column "text", these pages and 2 rows.
  std::string text_file(const std::vector<ParquetPage>& pages, int64_t num_values = 2, int codec = 0) {
    ParquetBytes file;
    file.add_leaf("text", Repetition::kRequired, PhysicalType::kByteArray, ParquetBytes::kUtf8);
    file.start_row_group(2);
    file.start_column(PhysicalType::kByteArray, num_values, codec);
    for (const ParquetPage& page : pages) file.add_page(page);
    return file.finish(1);
  }

  std::vector<Value> rows_of(std::string_view bytes) {
    ParquetReader reader(folder_.write("rows.parquet", bytes));
    std::vector<Value> rows;
    for (Value row; reader.next(&row);) rows.push_back(row);
    return rows;
  }

  void expect_refusal(std::string_view bytes, const std::vector<std::string>& fragments) {
    std::vector<std::string> all = fragments;
    all.emplace_back("rows.parquet: ");
    expect_error(ExitCode::kBadData, all, [&] { rows_of(bytes); });
  }
  void expect_column_refusal(std::string_view bytes, const std::string& problem) {
    expect_refusal(bytes, {"column 'text'", problem});
  }

  TestFolder folder_{memory_folder()};
};

Value text_row(const char* text) { return Value::Object{{"text", text}}; }

TEST_F(ParquetReaderTest, ReadsADictionaryThatEndsMidway) {
  const std::string indices = encode_rle({0}, 0);
  EXPECT_EQ(
      rows_of(text_file({{PageType::kDictionary, Encoding::kPlain, 1, "", "", encode_byte_array("one"), true},
                         text_page(std::string(1, '\0') + indices, Encoding::kRleDictionary, 1),
                         text_page(encode_byte_array("two"), Encoding::kPlain, 1)})),
      (std::vector{text_row("one"), text_row("two")}));
}

TEST_F(ParquetReaderTest, ReadsUnsignedNumbersAndHalfPrecision) {
  ParquetBytes file;
  file.add_leaf("u32", Repetition::kRequired, PhysicalType::kInt32, ParquetBytes::kUint32);
  file.add_leaf("u64", Repetition::kRequired, PhysicalType::kInt64, ParquetBytes::kUint64);
  file.add_leaf("name", Repetition::kRequired, PhysicalType::kFixedLenByteArray, ParquetBytes::kNoAnnotation,
                3);
  file.start_row_group(2);
  file.start_column(PhysicalType::kInt32, 2);
  file.add_page(text_page(encode_fixed(0xffffffff, 4) + encode_fixed(7, 4)));
  file.start_column(PhysicalType::kInt64, 2);
  file.add_page(text_page(encode_fixed(~uint64_t{0}, 8) + encode_fixed(INT64_MAX, 8)));
  file.start_column(PhysicalType::kFixedLenByteArray, 2);
  file.add_page(text_page("abcdef"));
  EXPECT_EQ(rows_of(file.finish(3)),
            (std::vector<Value>{
                Value::Object{{"u32", int64_t{4294967295}}, {"u64", 18446744073709551616.0}, {"name", "abc"}},
                Value::Object{{"u32", 7}, {"u64", INT64_MAX}, {"name", "def"}}}));
}

TEST_F(ParquetReaderTest, ReadsDatesTimesAndDecimalsAsPythonPrintsThem) {
  const auto text_of = [&](PhysicalType type, int converted_type, const std::string& value, int scale = 0) {
    ParquetBytes file;
    file.add_leaf("value", Repetition::kRequired, type, converted_type, static_cast<int>(value.size()),
                  scale);
    file.start_row_group(1);
    file.start_column(type, 1);
    file.add_page(text_page(value, Encoding::kPlain, 1));
    return *rows_of(file.finish(1))[0].find("value")->string();
  };
  const auto int32 = [](int64_t value) { return encode_fixed(static_cast<uint64_t>(value), 4); };
  const auto int64 = [](int64_t value) { return encode_fixed(static_cast<uint64_t>(value), 8); };
  EXPECT_EQ(text_of(PhysicalType::kInt32, ParquetBytes::kDate, int32(19782)), "2024-02-29");
  EXPECT_EQ(text_of(PhysicalType::kInt32, ParquetBytes::kDate, int32(-1)), "1969-12-31");
  EXPECT_EQ(text_of(PhysicalType::kInt32, ParquetBytes::kDate, int32(-719162)), "0001-01-01");
  EXPECT_EQ(text_of(PhysicalType::kInt32, ParquetBytes::kTimeMillis, int32(45296789)), "12:34:56.789000");
  EXPECT_EQ(text_of(PhysicalType::kInt64, ParquetBytes::kTimestampMillis, int64(1709210096789)),
            "2024-02-29 12:34:56.789000+00:00");
  EXPECT_EQ(text_of(PhysicalType::kInt64, ParquetBytes::kTimestampMicros, int64(-1)),
            "1969-12-31 23:59:59.999999+00:00");
  EXPECT_EQ(text_of(PhysicalType::kInt64, ParquetBytes::kTimestampMicros, int64(INT64_MIN)),
            "-290308-12-21 19:59:05.224192+00:00");
  EXPECT_EQ(
      text_of(PhysicalType::kInt96, ParquetBytes::kNoAnnotation, int64(45296000000001) + int32(2460370)),
      "2024-02-29 12:34:56.000000001");
  EXPECT_EQ(text_of(PhysicalType::kInt64, ParquetBytes::kDecimal, int64(-1205), 2), "-12.05");
  EXPECT_EQ(text_of(PhysicalType::kInt32, ParquetBytes::kDecimal, int32(7), 3), "0.007");
  EXPECT_EQ(text_of(PhysicalType::kFixedLenByteArray, ParquetBytes::kDecimal, "\xff\x85", 0), "-123");
  EXPECT_EQ(
      text_of(PhysicalType::kFixedLenByteArray, ParquetBytes::kDecimal, "\x80" + std::string(15, '\0'), 38),
      "-1.70141183460469231731687303715884105728");
}

TEST_F(ParquetReaderTest, ReadsNoRows) {
  ParquetBytes file;
  file.add_leaf("text", Repetition::kRequired, PhysicalType::kByteArray, ParquetBytes::kUtf8);
  EXPECT_TRUE(rows_of(file.finish(1)).empty());
}

TEST_F(ParquetReaderTest, GoesOnAfterARowThatIsNotText) {
  const auto path = folder_.write(
      "rows.parquet", text_file({text_page(encode_byte_array("a\xff") + encode_byte_array("two"))}));
  ParquetReader reader(path);
  Value row;
  expect_error(ExitCode::kBadData,
               {"rows.parquet: row 0: column 'text': expected UTF-8 text, found '\\xff' at byte 1 of 2"},
               [&] {
                 try {
                   reader.next(&row);
                 } catch (const RowError& error) {
                   throw Error(error.code(), error.what());
                 }
               });
  EXPECT_EQ(reader.row_number(), 0);
  ASSERT_TRUE(reader.next(&row));
  EXPECT_EQ(row, text_row("two"));
  EXPECT_FALSE(reader.next(&row));
}

// Bytes that the feature Json() of Hugging Face's datasets writes.
TEST_F(ParquetReaderTest, ReadsJsonAsWhatItSays) {
  ParquetBytes file;
  file.add_leaf("message", Repetition::kRequired, PhysicalType::kByteArray, ParquetBytes::kJson);
  file.start_row_group(2);
  file.start_column(PhysicalType::kByteArray, 2);
  file.add_page(text_page(encode_byte_array(R"({"role": "user", "content": null})") +
                          encode_byte_array("{\"role\": ")));
  ParquetReader reader(folder_.write("rows.parquet", file.finish(1)));
  Value row;
  ASSERT_TRUE(reader.next(&row));
  EXPECT_EQ(row, (Value::Object{{"message", Value::Object{{"role", "user"}, {"content", Value()}}}}));
  expect_error(ExitCode::kBadData, {"row 1: column 'message': JSON: line 1: not valid JSON"},
               [&] { reader.next(&row); });
}

TEST_F(ParquetReaderTest, BytesThatAreNotTextAreToldFromText) {
  ParquetBytes file;
  file.add_leaf("image", Repetition::kRequired, PhysicalType::kByteArray);
  file.start_row_group(2);
  file.start_column(PhysicalType::kByteArray, 2);
  file.add_page(text_page(encode_byte_array("\x89PNG") + encode_byte_array("one")));
  EXPECT_EQ(rows_of(file.finish(1)),
            (std::vector<Value>{Value::Object{{"image", Value::Object{{"bytes", "89504e47"}}}},
                                Value::Object{{"image", "one"}}}));
}

TEST_F(ParquetReaderTest, LeavesOutColumnsThatItCannotRead) {
  ParquetBytes file;
  file.add_leaf("text", Repetition::kRequired, PhysicalType::kByteArray, ParquetBytes::kUtf8);
  file.add_leaf("binary", Repetition::kRequired, PhysicalType::kByteArray, ParquetBytes::kBson);
  file.start_row_group(2);
  file.start_column(PhysicalType::kByteArray, 2);
  file.add_page(text_page(kTwoTexts));
  file.start_column(PhysicalType::kByteArray, 2);
  file.add_page(text_page(kTwoTexts));
  const std::string bytes = file.finish(2);
  expect_refusal(bytes, {"column 'binary': its type BSON is not supported: leave the column out"});

  ParquetReader reader(folder_ / "rows.parquet");
  EXPECT_EQ(reader.column_names(), (std::vector<std::string>{"text", "binary"}));
  EXPECT_EQ(reader.problem_of("text"), "");
  EXPECT_EQ(reader.problem_of("binary"), "its type BSON is not supported");
  reader.select(std::vector<std::string>{"text"});
  Value row;
  ASSERT_TRUE(reader.next(&row));
  EXPECT_EQ(row, text_row("one"));
  expect_error(ExitCode::kBadData, {"no column 'txt': expected one of text, binary"},
               [&] { reader.select(std::vector<std::string>{"txt"}); });
}

TEST_F(ParquetReaderTest, RefusesOtherFiles) {
  expect_refusal("", {"expected a Parquet file, found only 0 bytes"});
  expect_refusal("{\"text\": \"a\"}\n", {"expected a Parquet file that ends with 'PAR1', found 'a\"}\\x0a'"});
  std::string bytes = text_file({text_page(kTwoTexts)});
  expect_refusal(bytes.substr(0, bytes.size() - 1), {"it is cut short or of another format"});
  bytes.back() = 'E';
  expect_refusal(bytes, {"the footer is encrypted, which is not supported"});
  bytes.replace(bytes.size() - 8, 8, encode_fixed(1'000'000, 4) + "PAR1");
  expect_refusal(bytes, {"the footer claims 1000000 bytes, but the file has"});
  expect_refusal("PAR1" + std::string(500, '\x1c') + encode_fixed(500, 4) + "PAR1",
                 {"the Parquet footer is damaged"});
}

TEST_F(ParquetReaderTest, RefusesBadSchemas) {
  ParquetBytes deep;
  for (int i = 0; i < 100; ++i) deep.add_group("g", Repetition::kRequired, 1);
  deep.add_leaf("text", Repetition::kRequired, PhysicalType::kByteArray, ParquetBytes::kUtf8);
  expect_refusal(deep.finish(1), {"the schema nests deeper than 64"});
  ParquetBytes twice;
  for (int i = 0; i < 2; ++i)
    twice.add_leaf("text", Repetition::kRequired, PhysicalType::kByteArray, ParquetBytes::kUtf8);
  expect_refusal(twice.finish(2), {"the schema has two fields 'text'"});
  ParquetBytes one;
  one.add_leaf("text", Repetition::kRequired, PhysicalType::kByteArray, ParquetBytes::kUtf8);
  expect_refusal(one.finish(2), {"the schema ends early: it has only 2 elements"});
  expect_refusal(one.finish(0), {"the schema has 2 elements, expected 1"});
}

TEST_F(ParquetReaderTest, RefusesUnknownCodecsAndEncodings) {
  expect_column_refusal(text_file({text_page(kTwoTexts)}, 2, 3),
                        "page at byte 4: compressed with LZO (codec 3)");
  expect_column_refusal(text_file({text_page(kTwoTexts)}, 2, 8),
                        "compressed with an unknown codec (codec 8)");
  expect_column_refusal(text_file({text_page(kTwoTexts, static_cast<Encoding>(10))}),
                        "the encoding 10 of BYTE_ARRAY values is not supported");
  expect_column_refusal(text_file({text_page(kTwoTexts, Encoding::kByteStreamSplit)}),
                        "the encoding 9 of BYTE_ARRAY values is not supported");
}

TEST_F(ParquetReaderTest, RefusesDamagedPages) {
  for (const int codec : {2, 4, 5, 6, 7})
    expect_column_refusal(text_file({text_page(kTwoTexts)}, 2, codec), "data is damaged");
  ParquetPage page = text_page(kTwoTexts);
  page.has_crc = true;
  std::string bytes = text_file({page});
  bytes[bytes.find("two")] = 'T';
  expect_column_refusal(bytes, "page at byte 4: is damaged: its CRC-32 is");
  expect_column_refusal(text_file({text_page(kTwoTexts.substr(0, 12))}), "the page ends early");
  expect_column_refusal(text_file({text_page("\1\2", Encoding::kRleDictionary)}),
                        "a dictionary, which is missing");
  const ParquetPage dictionary = {PageType::kDictionary, Encoding::kPlain, 2, "", "", kTwoTexts, false};
  expect_column_refusal(
      text_file({dictionary, text_page("\2" + encode_rle({0, 3}, 2), Encoding::kRleDictionary)}),
      "a value has the index 3 in a dictionary of 2");
  expect_column_refusal(text_file({dictionary, dictionary}), "the column chunk has a second dictionary");
  expect_column_refusal(
      text_file({{PageType::kDictionary, Encoding::kPlain, 1'000'000, "", "", "few", false}}),
      "a dictionary of 1000000 entries has only 3 bytes");
  for (const Encoding encoding : {Encoding::kDeltaLengthByteArray, Encoding::kDeltaByteArray}) {
    expect_column_refusal(text_file({text_page(encode_delta({-5, 3}) + "abcdefgh", encoding)}), "");
    expect_column_refusal(text_file({text_page(encode_delta({1'000'000, 3}), encoding)}), "");
  }
}

TEST_F(ParquetReaderTest, RefusesCountsThatContradictEachOther) {
  expect_column_refusal(text_file({text_page(kTwoTexts)}, 1),
                        "has 2 values, the column chunk has only 1 left");
  expect_column_refusal(text_file({text_page(kTwoTexts + kTwoTexts, Encoding::kPlain, 4)}, 4),
                        "has more values than the rows of its row group");
  expect_column_refusal(text_file({text_page(encode_byte_array("one"), Encoding::kPlain, 1)}, 1),
                        "has only 1 values");
  expect_column_refusal(text_file({text_page(kTwoTexts)}, 3), "");  // the footer follows in place of a page
}

TEST_F(ParquetReaderTest, RefusesListsWhoseFieldsDisagree) {
  const auto make = [](const std::vector<uint32_t>& role_levels, const std::vector<uint32_t>& text_levels) {
    ParquetBytes file;
    file.add_group("messages", Repetition::kRepeated, 2);
    for (const char* name : {"role", "text"})
      file.add_leaf(name, Repetition::kRequired, PhysicalType::kByteArray, ParquetBytes::kUtf8);
    file.start_row_group(1);
    for (const auto& levels : {role_levels, text_levels}) {
      const auto count = std::ssize(levels);
      file.start_column(PhysicalType::kByteArray, count);
      std::string values;
      for (int64_t i = 0; i < count; ++i) values += encode_byte_array("x");
      const std::vector<uint32_t> present(levels.size(), 1);
      file.add_page({PageType::kData, Encoding::kPlain, count, encode_rle(levels, 1), encode_rle(present, 1),
                     values, false});
    }
    return file.finish(1);
  };
  EXPECT_EQ(rows_of(make({0, 1}, {0, 1})).size(), 1);
  expect_refusal(make({0, 1}, {0}), {"column 'messages.role': its fields disagree on the length of a list"});
  expect_refusal(make({1, 1}, {1, 1}), {"a list goes on that no row has begun"});
}

TEST_F(ParquetReaderTest, BoundsWhatAFewBytesCanClaim) {
  // A list of a billion times the same text.
  constexpr int64_t kMany = 1'000'000'000;
  ParquetBytes file;
  file.add_leaf("text", Repetition::kRepeated, PhysicalType::kByteArray, ParquetBytes::kUtf8);
  file.start_row_group(1);
  file.start_column(PhysicalType::kByteArray, kMany);
  file.add_page({PageType::kDictionary, Encoding::kPlain, 1, "", "",
                 encode_byte_array(std::string(100'000, 'x')), false});
  const auto run = [](int64_t count, char value) {
    std::string bytes;
    for (uint64_t header = static_cast<uint64_t>(count) << 1; header != 0; header >>= 7)
      bytes += static_cast<char>((header & 0x7f) | (header >= 0x80 ? 0x80 : 0));
    return bytes + value;
  };
  file.add_page({PageType::kData, Encoding::kRleDictionary, kMany, run(1, 0) + run(kMany - 1, 1),
                 run(kMany, 1), "\1" + run(kMany, 0), false});
  expect_refusal(file.finish(1), {"a row takes more than 256.0 MiB"});

  // A page header that claims 2 GB.
  ThriftWriter header;
  header.integer(1, 0);
  header.integer(2, 2'000'000'000);
  header.integer(3, 10);
  ParquetBytes huge;
  huge.add_leaf("text", Repetition::kRequired, PhysicalType::kByteArray, ParquetBytes::kUtf8);
  huge.start_row_group(1);
  huge.start_column(PhysicalType::kByteArray, 1, 6);
  huge.add_bytes(header.finish() + "0123456789");
  expect_column_refusal(huge.finish(1), "claims to be 10 bytes of ZSTD that decompress to 2000000000");
}

TEST_F(ParquetReaderTest, SurvivesAnyDamagedByte) {
  const std::string whole = text_file({{PageType::kDictionary, Encoding::kPlain, 2, "", "", kTwoTexts, false},
                                       text_page("\1" + encode_rle({0, 1}, 1), Encoding::kRleDictionary)});
  ASSERT_EQ(rows_of(whole), (std::vector{text_row("one"), text_row("two")}));
  int num_refused = 0;
  for (size_t at = 0; at < whole.size(); ++at) {
    for (const int flip : {1, 0x40, 0xff}) {
      std::string damaged = whole;
      damaged[at] = static_cast<char>(damaged[at] ^ flip);
      try {
        rows_of(damaged);
      } catch (const Error& error) {
        ++num_refused;
        ASSERT_EQ(error.code(), ExitCode::kBadData) << at << ": " << error.what();
        ASSERT_EQ(std::string_view(error.what()).find('\n'), std::string_view::npos) << at;
      }
    }
  }
  EXPECT_GT(num_refused, std::ssize(whole));
}

}  // namespace
}  // namespace tessera
