// Includes point downward: the table of modules in docs/architecture.md is the rule, which this test
// enforces.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <regex>
#include <set>
#include <sstream>
#include <string>
#include <vector>

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

// The modules a module may include: those it uses, and those they use.
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

// A resolved RunSpec is const; whoever can name the type of its fields while they are read could copy and
// change it.
TEST(Layering, OnlySettingsAndCommandsChangeSettings) {
  const std::regex changeable(R"(\bRunSettings\b|\bauto \w+ = (\w+[.>-]+)?(spec|asked)_?;)");
  int64_t num_found = 0;
  for (const fs::path& path : source_files()) {
    const fs::path relative = path.lexically_relative(kSource / "src");
    const std::string room = *relative.begin();
    const std::string stem = path.stem();
    if (room == ".." || stem.ends_with("_test") || stem.ends_with("_fuzz")) continue;
    const std::string text = read_source(path);
    if (!std::regex_search(text, changeable)) continue;
    ++num_found;
    EXPECT_TRUE(room == "settings" || room == "cli" || room == "bench")
        << relative << " changes settings: a RunSpec that differs comes from settings/spec_variants.h";
  }
  EXPECT_GT(num_found, 5) << "the test looked for the wrong type";
}

struct Include {
  fs::path from;    // below src/
  fs::path target;  // below src/
  std::string where;
  bool is_in_test = false;
};

// All includes of files below src/ by files below src/.
std::vector<Include> includes() {
  const std::regex include(R"re(^\s*#\s*include\s+"([^"]+)")re");
  std::vector<Include> found;
  for (const fs::path& path : source_files()) {
    const fs::path relative = path.lexically_relative(kSource / "src");
    if (*relative.begin() == "..") continue;  // in tests/
    const std::string stem = path.stem();
    const bool is_test = stem.find("_test") != std::string::npos || stem.ends_with("_fuzz");
    std::ifstream in(path);
    int64_t number = 0;
    for (std::string line; std::getline(in, line);) {
      ++number;
      std::smatch match;
      if (!std::regex_search(line, match, include)) continue;
      const fs::path target = match[1].str();
      if (is_test && fs::exists(kSource / "tests" / target)) continue;
      found.push_back({relative, target, relative.string() + ":" + std::to_string(number) + ": ", is_test});
    }
  }
  EXPECT_GT(found.size(), 50u) << "the test looked at the wrong place";
  return found;
}

TEST(Layering, IncludesPointDownward) {
  const auto allowed = allowed_modules();
  for (const Include& include : includes()) {
    const std::string module = *include.from.begin(), used = *include.target.begin();
    EXPECT_TRUE(fs::exists(kSource / "src" / include.target))
        << include.where << include.target << " is not a path from src/";
    EXPECT_TRUE(allowed.at(module).count(used)) << include.where << module << " may not use " << used;
  }
}

// Rows "| `module` | `folder`, `folder` |": a folder uses only those before it. "." is the module's own.
std::map<std::string, std::vector<std::string>> folder_orders() {
  std::map<std::string, std::vector<std::string>> orders;
  std::istringstream lines(read_source(kSource / "docs/architecture.md"));
  const std::regex row(R"(\| `(\w+)` \| ((?:`[\w./]+`(?:, )?)+) \|)");
  const std::regex name(R"(`([\w./]+)`)");
  for (std::string line; std::getline(lines, line);) {
    std::smatch match;
    if (!std::regex_match(line, match, row)) continue;
    const std::string list = match[2];
    for (std::sregex_iterator it(list.begin(), list.end(), name); it != std::sregex_iterator(); ++it) {
      orders[match[1]].push_back((*it)[1]);
    }
  }
  return orders;
}

// Tests may use all of their module: those of a family make its models through the table of families.
TEST(Layering, FoldersOfAModuleLieOneAboveTheOther) {
  const auto orders = folder_orders();
  for (const char* module : {"cli", "cluster", "comm", "data", "formats", "jinja", "launch", "model",
                             "monitor", "shard", "tokenizer", "train"}) {
    EXPECT_TRUE(orders.count(module)) << module;
  }
  for (const Include& include : includes()) {
    const std::string module = *include.from.begin();
    const auto order = orders.find(module);
    if (order == orders.end() || include.is_in_test || *include.target.begin() != module) continue;
    const auto level = [&](const fs::path& file) {
      const std::string folder = file.parent_path().lexically_relative(module);
      const auto at = std::find(order->second.begin(), order->second.end(), folder);
      EXPECT_NE(at, order->second.end())
          << "docs/architecture.md does not say where " << module << "/" << folder << " lies";
      return at - order->second.begin();
    };
    EXPECT_LE(level(include.target), level(include.from))
        << include.where << include.target << " lies above the folder that uses it";
  }
}

}  // namespace
}  // namespace tessera
