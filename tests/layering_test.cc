// Includes point downward: the table of modules in docs/architecture.md is the rule, which this test
// enforces.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <regex>
#include <set>
#include <sstream>
#include <string>

#include "test_paths.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;

const fs::path kSource = source_folder();

// Rows "| `module` | what lives there | `used`, `used` |" below the heading "## Modules".
std::map<std::string, std::set<std::string>> direct_uses() {
  std::map<std::string, std::set<std::string>> uses;
  std::istringstream lines(read_source(kSource / "docs/architecture.md"));
  const std::regex row(R"(\| `(\w+)` \|.*\| (.*) \|)");
  const std::regex name(R"(`(\w+)`)");
  for (std::string line; std::getline(lines, line);) {
    std::smatch match;
    if (!std::regex_match(line, match, row)) continue;
    std::set<std::string>& used = uses[match[1]];
    const std::string list = match[2];
    for (std::sregex_iterator it(list.begin(), list.end(), name); it != std::sregex_iterator(); ++it) {
      used.insert((*it)[1]);
    }
  }
  return uses;
}

// What a module may include: the modules it uses, and those they use.
std::map<std::string, std::set<std::string>> allowed_modules() {
  const auto uses = direct_uses();
  std::map<std::string, std::set<std::string>> allowed;
  for (const auto& [module, unused] : uses) {
    std::set<std::string>& reach = allowed[module];
    const std::function<void(const std::string&)> visit = [&](const std::string& at) {
      if (!reach.insert(at).second) return;
      for (const std::string& next : uses.at(at)) visit(next);
    };
    visit(module);
  }
  return allowed;
}

TEST(Layering, TableNamesEveryModuleAndOnlyThose) {
  std::set<std::string> folders;
  for (const auto& entry : fs::directory_iterator(kSource / "src")) {
    if (entry.is_directory()) folders.insert(entry.path().filename());
  }
  std::set<std::string> rows;
  for (const auto& [module, uses] : direct_uses()) {
    rows.insert(module);
    for (const std::string& used : uses)
      EXPECT_TRUE(folders.count(used)) << module << " uses unknown " << used;
  }
  EXPECT_EQ(rows, folders);
}

TEST(Layering, NoModuleReachesItself) {
  const auto uses = direct_uses();
  const auto allowed = allowed_modules();
  for (const auto& [module, used] : uses) {
    for (const std::string& other : used) {
      EXPECT_FALSE(allowed.at(other).count(module)) << module << " and " << other << " use each other";
    }
  }
}

TEST(Layering, IncludesPointDownward) {
  const auto allowed = allowed_modules();
  const std::regex include(R"re(^\s*#\s*include\s+"([^"]+)")re");
  int64_t includes_seen = 0;
  for (const fs::path& path : source_files()) {
    const fs::path relative = path.lexically_relative(kSource / "src");
    if (*relative.begin() == "..") continue;  // in tests/
    const std::string module = *relative.begin();
    std::ifstream in(path);
    int64_t number = 0;
    for (std::string line; std::getline(in, line);) {
      ++number;
      std::smatch match;
      if (!std::regex_search(line, match, include)) continue;
      ++includes_seen;
      const fs::path target = match[1].str();
      const std::string where = relative.string() + ":" + std::to_string(number) + ": ";
      const std::string stem = path.stem();
      const bool is_test = stem.find("_test") != std::string::npos || stem.ends_with("_fuzz");
      if (is_test && fs::exists(kSource / "tests" / target)) continue;
      EXPECT_TRUE(fs::exists(kSource / "src" / target)) << where << target << " is not a path from src/";
      EXPECT_TRUE(allowed.at(module).count(*target.begin()))
          << where << module << " may not use " << target.begin()->string();
    }
  }
  EXPECT_GT(includes_seen, 50) << "the test looked at the wrong place";
}

}  // namespace
}  // namespace tessera
