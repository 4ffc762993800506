#include "data/sources/record_reader.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "expect_error.h"

namespace tessera {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// Delivers `text` in chunks of at most `piece` bytes.
ByteSource source_of(std::string_view text, size_t piece) {
  return [text, piece, at = size_t{0}](std::span<char> destination) mutable {
    const size_t count = std::min({piece, text.size() - at, destination.size()});
    std::copy_n(text.begin() + static_cast<std::ptrdiff_t>(at), count, destination.begin());
    at += count;
    return static_cast<int64_t>(count);
  };
}

std::vector<Record> records_of(RecordReader::Format format, std::string_view text, size_t piece = 1 << 20) {
  RecordReader reader(format, source_of(text, piece), "d.json", static_cast<int64_t>(piece + 2));
  std::vector<Record> records;
  for (Record record; reader.next(&record);) records.push_back(record);
  return records;
}

std::vector<std::string> texts_of(RecordReader::Format format, std::string_view text,
                                  size_t piece = 1 << 20) {
  std::vector<std::string> texts;
  for (const Record& record : records_of(format, text, piece)) texts.push_back(record.text);
  return texts;
}

constexpr auto kLines = RecordReader::Format::kLines;
constexpr auto kJson = RecordReader::Format::kJson;

TEST(RecordReader, CutsLinesAtAnyPieceSize) {
  for (const size_t piece : {1, 2, 3, 7, 1000}) {
    EXPECT_THAT(texts_of(kLines, "one\n\ntwo\r\nthree", piece), ElementsAre("one", "", "two", "three"))
        << piece;
    EXPECT_THAT(texts_of(kLines, "one\n", piece), ElementsAre("one")) << piece;
    EXPECT_THAT(texts_of(kLines, "", piece), IsEmpty()) << piece;
    EXPECT_THAT(texts_of(kLines, "\n", piece), ElementsAre("")) << piece;
    EXPECT_THAT(texts_of(kLines, "a\rb\r\n", piece), ElementsAre("a\rb")) << piece;
    EXPECT_THAT(texts_of(kLines,
                         "\xEF\xBB\xBF"
                         "a\n\xEF\xBB\xBF",
                         piece),
                ElementsAre("a", "\xEF\xBB\xBF"))
        << piece;
    EXPECT_THAT(texts_of(kLines, "\xEF\xBB", piece), ElementsAre("\xEF\xBB")) << piece;
  }
}

TEST(RecordReader, CountsLinesAndOffsets) {
  const std::vector<Record> lines = records_of(kLines,
                                               "\xEF\xBB\xBF"
                                               "ab\r\n\nc",
                                               2);
  ASSERT_EQ(lines.size(), 3u);
  EXPECT_EQ(lines[0].number, 1);
  EXPECT_EQ(lines[0].offset_bytes, 3);
  EXPECT_EQ(lines[1].number, 2);
  EXPECT_EQ(lines[1].offset_bytes, 7);
  EXPECT_EQ(lines[2].number, 3);
  EXPECT_EQ(lines[2].offset_bytes, 8);
  const std::vector<Record> elements = records_of(kJson, "[\n {\"a\":\n1},\n\n {}]", 3);
  ASSERT_EQ(elements.size(), 2u);
  EXPECT_EQ(elements[0].number, 2);
  EXPECT_EQ(elements[0].offset_bytes, 3);
  EXPECT_EQ(elements[1].number, 5);
}

TEST(RecordReader, ReadsLinesLongerThanItsBuffer) {
  const std::string line(3'000'001, 'x');
  EXPECT_EQ(texts_of(kLines, line + "\nshort\n" + line), (std::vector<std::string>{line, "short", line}));
}

TEST(RecordReader, SkipsBlankLinesBetweenJsonObjects) {
  EXPECT_THAT(texts_of(kJson, "\n {\"a\": 1}\n\n \t\r\n{}\r\n"), ElementsAre("{\"a\": 1}", "{}"));
}

TEST(RecordReader, CutsArraysAtAnyPieceSize) {
  const std::string_view kText = R"( [ {"a": "]},{\"[", "b": [1, {"c": "\\"}]} , {} ,"x",[1,2],3 ] )";
  for (const size_t piece : {1, 2, 5, 1000}) {
    EXPECT_THAT(texts_of(kJson, kText, piece),
                ElementsAre(R"({"a": "]},{\"[", "b": [1, {"c": "\\"}]} )", "{} ", "\"x\"", "[1,2]", "3 "))
        << piece;
    EXPECT_THAT(texts_of(kJson, "[]", piece), IsEmpty());
    EXPECT_THAT(texts_of(kJson, "[ ]\n", piece), IsEmpty());
  }
}

TEST(RecordReader, RefusesArraysThatDoNotEndWell) {
  const auto message = [](std::string_view text) {
    const Error error = error_of([&] { records_of(kJson, text, 4); });
    EXPECT_EQ(error.code(), ExitCode::kBadData) << text;
    return std::string(error.what());
  };
  EXPECT_EQ(message("[{},\n{}"),
            "d.json: line 2: byte offset 7: expected ']' to close the array, found the end of the file");
  EXPECT_THAT(message("["), HasSubstr("expected ']' to close the array, found the end of the file"));
  EXPECT_THAT(message("[{}] {}"),
              HasSubstr("expected nothing after the closing ']' of the array, found '{'"));
  EXPECT_THAT(message("[{}, ]"), HasSubstr("expected an object after the comma, found ']'"));
  EXPECT_THAT(message("[{\"a\": \"]"), HasSubstr("found the end of the file"));
}

// A gigabyte without a line break is not read into memory.
TEST(RecordReader, RefusesRecordsWithoutEnd) {
  const auto refusal = [](RecordReader::Format format, std::string_view begin, char fill) {
    int64_t num_bytes = 0;
    RecordReader reader(
        format,
        [&](std::span<char> destination) {
          std::fill(destination.begin(), destination.end(), fill);
          if (num_bytes == 0) std::copy(begin.begin(), begin.end(), destination.begin());
          num_bytes += std::ssize(destination);
          TESSERA_CHECK(num_bytes < int64_t{1} << 30, "is read on and on");
          return std::ssize(destination);
        },
        "d.json");
    Record record;
    const Error error = error_of([&] { reader.next(&record); });
    EXPECT_EQ(error.code(), ExitCode::kBadData);
    return std::string(error.what());
  };
  EXPECT_EQ(
      refusal(kJson, "\n{\"text\": \"", 'a'),
      "d.json: line 2: the line that begins here has more than 64.0 MiB: expected a row, as a JSON object, "
      "in each line");
  EXPECT_THAT(refusal(kJson, "{", ' '),
              HasSubstr("line 1: the line that begins here has more than 64.0 MiB"));
  EXPECT_THAT(refusal(kJson, "[{\"text\": \"", 'a'), HasSubstr("the object that begins here has more than"));
  EXPECT_THAT(refusal(kLines, "", 'a'),
              HasSubstr("line 1: the line that begins here has more than 256.0 MiB"));
}

}  // namespace
}  // namespace tessera
