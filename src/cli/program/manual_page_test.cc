#include "cli/program/manual_page.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <sstream>

#include "cli/program/build_info.h"
#include "cli/program/commands.h"

namespace tessera {
namespace {

using testing::HasSubstr;
using testing::Not;

// A command whose texts have all that troff would interpret.
class OddCommand : public Command {
 public:
  std::string name() const override { return "odd one"; }
  std::string summary() const override { return "Do 'odd' things"; }
  std::string usage() const override { return "[flags]"; }
  std::string description() const override {
    return ".gz and C:\\x are odd; see `tessera help --man`.\nSecond.";
  }
  std::vector<std::string> examples() const override { return {"tessera odd one '*.gz' \\", ".x -y"}; }
  void declare_flags(FlagTable* table) override {
    table->add("odd", &odd_,
               "Begins a long text whose lines are broken somewhere, and a line may begin with "
               ".gz or .zst there; .gz .gz .gz .gz .gz .gz .gz .gz .gz .gz .gz .gz .gz .gz .gz");
  }
  void run(FlagTable*) override {}

 private:
  std::string odd_;
};

TEST(ManualPage, TroffTakesNothingForARequest) {
  OddCommand command;
  EXPECT_EQ(manual_page_name(command), "tessera-odd-one");
  const std::string page = manual_page(&command);
  EXPECT_THAT(page, HasSubstr(".TH TESSERA\\-ODD\\-ONE 1"));
  EXPECT_THAT(page,
              HasSubstr("\n\\&.gz and C:\\ex are odd; see \\fBtessera help \\-\\-man\\fR.\n.PP\nSecond.\n"));
  EXPECT_THAT(page, HasSubstr(".EX\ntessera odd one \\(aq*.gz\\(aq \\e\n\\&.x \\-y\n.EE\n"));
  std::istringstream lines(page);
  for (std::string line; std::getline(lines, line);) EXPECT_FALSE(line.starts_with(".gz")) << line;
}

TEST(ManualPage, OfTheProgramNamesEveryCommand) {
  const Commands all = commands();
  const std::string page = manual_page_of_program(all);
  for (const auto& command : all) {
    std::string name = manual_page_name(*command);
    for (size_t at = 0; (at = name.find('-', at)) != std::string::npos; at += 2) name.insert(at, "\\");
    EXPECT_THAT(page, HasSubstr(".BR " + name + " (1)\n"));
  }
}

TEST(BuildInfo, AreTheSameAsTextAndAsJson) {
  BuildInfo info = build_info();
  info.commit.clear();
  const std::string text = version_text(info);
  EXPECT_TRUE(text.starts_with("tessera " + info.version + "\n"));
  EXPECT_THAT(text, Not(HasSubstr("commit")));
  const auto json = nlohmann::json::parse(version_json(info));
  EXPECT_TRUE(json["commit"].is_null());
  for (const auto& [name, version] : json["libraries"].items()) {
    EXPECT_THAT(text, testing::ContainsRegex(name + " +" + version.get<std::string>() + "\n"));
  }
  EXPECT_EQ(json["instruction_sets"].back(), "baseline");
  info.commit = "0123456789ab-dirty";
  EXPECT_THAT(version_text(info), HasSubstr("0123456789ab-dirty\n"));
}

}  // namespace
}  // namespace tessera
