// Checks that the tests named in docs/testing.md exist.
#include <gtest/gtest.h>

#include <filesystem>
#include <regex>
#include <set>
#include <string>

#include "test_paths.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;

TEST(TestingPage, NamesTestsAndFuzzTargetsThatExist) {
  std::set<std::string> known;
  const std::regex test(R"(TEST(?:_F|_P)?\(\s*(\w+),\s*(\w+)\))");
  for (const fs::path& path : source_files()) {
    const std::string name = path.filename().string();
    if (name.ends_with("_fuzz.cc")) known.insert(name.substr(0, name.size() - 3));
    if (!name.ends_with("_test.cc")) continue;
    const std::string text = read_source(path);
    for (std::sregex_iterator found(text.begin(), text.end(), test), end; found != end; ++found) {
      known.insert((*found)[1]);
      known.insert((*found)[1].str() + ".*");
      known.insert((*found)[1].str() + "." + (*found)[2].str());
    }
  }
  for (const auto& entry : fs::directory_iterator(source_folder() / "tests/cases")) {
    if (entry.is_directory()) known.insert("case." + entry.path().filename().string());
  }
  const std::string page = read_source(source_folder() / "docs" / "testing.md");
  // "`Suite`", "`Suite.*`", "`Suite.Test`", "`Prefix/Suite.*`", "`case.name`", "`name_fuzz`".
  const std::regex name(R"(`(?:\w+/)?([A-Z]\w+(?:\.(?:\w+|\*))?|case\.\w+|\w+_fuzz)`)");
  const std::set<std::string> words = {"EIO", "NAME", "case.NAME"};
  int num_named = 0;
  for (std::sregex_iterator found(page.begin(), page.end(), name), end; found != end; ++found) {
    const std::string what = (*found)[1];
    if (words.contains(what)) continue;
    EXPECT_TRUE(known.contains(what)) << what;
    ++num_named;
  }
  EXPECT_GT(num_named, 80);
}

}  // namespace
}  // namespace tessera
