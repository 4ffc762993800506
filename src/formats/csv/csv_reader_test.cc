#include "formats/csv/csv_reader.h"

#include <gtest/gtest.h>

#include <memory>
#include <random>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "expect_error.h"
#include "formats/row_error.h"
#include "test_folder.h"

namespace tessera {
namespace {

using Cells = std::vector<std::string>;

class CsvReaderTest : public testing::Test {
 protected:
  CsvReader open(std::string_view text, char delimiter = ',') {
    return CsvReader(ByteStream::open(folder_.write("rows.csv", text)), delimiter);
  }
  // The cells of all rows, after checking that their fields are called like the columns.
  std::vector<Cells> rows_of(std::string_view text, char delimiter = ',') {
    CsvReader reader = open(text, delimiter);
    std::vector<Cells> rows;
    for (Value row; reader.next(&row);) {
      Cells cells;
      for (const Value::Field& field : *row.object()) {
        EXPECT_EQ(field.name, reader.column_names()[cells.size()]);
        cells.push_back(*field.value.string());
      }
      rows.push_back(cells);
    }
    return rows;
  }
  void expect_refusal(std::string_view text, const std::vector<std::string>& fragments) {
    expect_error(ExitCode::kBadData, fragments, [&] { rows_of(text); });
  }

  TestFolder folder_{memory_folder()};
};

TEST_F(CsvReaderTest, ReadsCellsAsStrings) {
  EXPECT_EQ(rows_of("a,b\n1,x y\n,\n\"\",null\n"),
            (std::vector<Cells>{{"1", "x y"}, {"", ""}, {"", "null"}}));
  EXPECT_EQ(rows_of("a\tb\n1,5\t\"x\ty\"\n", '\t'), (std::vector<Cells>{{"1,5", "x\ty"}}));
  EXPECT_TRUE(rows_of("a,b\n").empty());
}

TEST_F(CsvReaderTest, ReadsQuotedCells) {
  EXPECT_EQ(rows_of("a,b\n\"x,\"\"y\"\"\",\"line 1\r\nline 2\n\"\n\"\"\"\",5\" disk\n"),
            (std::vector<Cells>{{"x,\"y\"", "line 1\r\nline 2\n"}, {"\"", "5\" disk"}}));
}

TEST_F(CsvReaderTest, ReadsAnyLineEndsAndBlankLines) {
  const std::vector<Cells> expected = {{"1", "2"}, {"3", "4"}};
  EXPECT_EQ(rows_of("a,b\n1,2\n3,4"), expected);
  EXPECT_EQ(rows_of("\xEF\xBB\xBF\"a\",b\r\n1,2\r\n3,4\r\n"), expected);
  EXPECT_EQ(rows_of("a,b\r1,2\r3,4\r"), expected);
  EXPECT_EQ(rows_of("\n\na,b\n\n1,2\n\r\n3,4\n\n"), expected);
}

TEST_F(CsvReaderTest, CountsLinesWithinCells) {
  CsvReader reader = open("a,b\n\"1\n2\",3\n\n4,5\n");
  Value row;
  ASSERT_TRUE(reader.next(&row));
  EXPECT_EQ(reader.line_number(), 2);
  ASSERT_TRUE(reader.next(&row));
  EXPECT_EQ(reader.line_number(), 5);
  EXPECT_FALSE(reader.next(&row));
  EXPECT_EQ(reader.bytes_consumed(), 17);
}

TEST_F(CsvReaderTest, ReadsRowsThatSpanBuffers) {
  std::minstd_rand random(7);
  std::vector<Cells> expected;
  std::string text = "id,text,note\n";
  for (int i = 0; i < 400; ++i) {
    std::string content;
    const size_t size = i == 100 ? 1'000'000 : random() % 6000;
    while (content.size() < size) content += std::string_view("ab\",\r\n ")[random() % 7];
    std::string quoted = "\"";
    for (const char c : content) quoted += c == '"' ? "\"\"" : std::string(1, c);
    text += std::to_string(i) + "," + quoted + "\",\xc3\xa9\n";
    expected.push_back({std::to_string(i), content, "\xc3\xa9"});
  }
  EXPECT_TRUE(rows_of(text) == expected);
}

TEST_F(CsvReaderTest, GoesOnAfterABadRow) {
  CsvReader reader = open("a,b\n1\n2,3\n\"x\"y,4\n5,6,7,8\n\xff,9\n10,11\n\"12,13\n");
  Cells first_cells;
  std::vector<std::string> problems;
  for (Value row;;) {
    try {
      if (!reader.next(&row)) break;
      first_cells.push_back(*row.find("a")->string());
    } catch (const RowError& error) {
      problems.push_back(std::string(error.what()).substr((folder_ / "rows.csv").native().size()));
    }
  }
  EXPECT_EQ(first_cells, (Cells{"2", "10"}));
  EXPECT_EQ(problems,
            (Cells{": line 2: expected 2 columns, as in the header, found 1",
                   ": line 4: expected ',' or the end of the row after a closing quote, found 'y': write "
                   "a quote within quotes twice",
                   ": line 5: expected 2 columns, as in the header, found 4",
                   ": line 6: column 'a': expected UTF-8 text, found '\\xff' at byte 0 of 1",
                   ": line 8: the quote that opens on line 8 is never closed"}));
}

TEST_F(CsvReaderTest, RefusesBadHeaders) {
  expect_refusal("", {"rows.csv: expected a header row"});
  expect_refusal("\xEF\xBB\xBF\n\n", {"expected a header row"});
  expect_refusal("text,id,text\n", {"line 1: two columns are called 'text'"});
  expect_refusal("te\xfft\n1\n", {"line 1: expected UTF-8 text, found the column name 'te\\xfft'"});
  expect_refusal(std::string_view("a\0b\0\n\0", 6),
                 {"line 1: expected UTF-8 text, found the column name 'a\\x00b\\x00'"});
  expect_refusal(std::string(65536, ','), {"65537 columns, expected at most 65536"});
}

TEST_F(CsvReaderTest, BoundsTheMemoryOfARow) {
  expect_refusal("a\n\"" + std::string(size_t{65} << 20, 'x'),
                 {"rows.csv: line 2: the row has more than 64.0 MiB: is a quote not closed?"});
  expect_refusal("a\n" + std::string(1'000'000, ','),
                 {"line 2: expected 1 column, as in the header, found 1000001"});
}

}  // namespace
}  // namespace tessera
