// Whole files of other writers, next to the rows that they hold as JSON lines.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "formats/json.h"
#include "formats/parquet/parquet_reader.h"
#include "support/value_json.h"
#include "test_paths.h"

namespace tessera {
namespace {

std::vector<std::filesystem::path> files_in(const std::filesystem::path& folder) {
  std::vector<std::filesystem::path> files;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    if (entry.path().extension() == ".parquet") files.push_back(entry.path());
  }
  std::sort(files.begin(), files.end());
  return files;
}

void expect_rows(const std::filesystem::path& file) {
  SCOPED_TRACE(file);
  std::filesystem::path expected_file = file;
  std::ifstream expected(expected_file.replace_extension(".expected.jsonl"));
  ASSERT_TRUE(expected.is_open());
  ParquetReader reader(file);
  int64_t num_rows = 0;
  std::string line;
  for (Value row; reader.next(&row); ++num_rows) {
    ASSERT_TRUE(std::getline(expected, line)) << "row " << num_rows;
    ASSERT_EQ(to_json(row), nlohmann::ordered_json::parse(line)) << "row " << num_rows;
  }
  EXPECT_FALSE(std::getline(expected, line)) << "only " << num_rows << " rows";
  EXPECT_EQ(num_rows, reader.num_rows());
}

TEST(ParquetFiles, OfManyWritersAreReadExactly) {
  const auto files = files_in(data_folder() / "parquet");
  EXPECT_GE(files.size(), 20);
  for (const auto& file : files) expect_rows(file);
}

TEST(ParquetFiles, OfTheSharedDataAreReadExactly) {
  const std::filesystem::path folder = shared_folder() / "data" / "parquet";
  if (!std::filesystem::exists(folder)) GTEST_SKIP() << "no " << folder;
  for (const auto& file : files_in(folder)) expect_rows(file);
}

}  // namespace
}  // namespace tessera
