#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <sstream>
#include <string>
#include <vector>

#include "base/error.h"
#include "cli/command.h"
#include "cli/flag_parser.h"
#include "cli/help_text.h"
#include "cli/program/app.h"
#include "cli/run/resume_command.h"
#include "cli/terminal/text_plot.h"
#include "cli/terminal/train_report.h"
#include "comm/ranks/launch_variables.h"
#include "launch/job/rank_environment.h"

namespace tessera {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

struct Settings {
  FlagTable table;
  int64_t seed = 42;
  double rate = 5e-5;
  bool packing = false;
  bool shuffle = true;
  std::string prompt;
  std::vector<std::string> files;
  std::vector<std::string> words;

  Settings() {
    table.add("seed", &seed, "Seed.");
    table.add("learning_rate", &rate, "Rate.").aliases = {"lr"};
    table.add("packing", &packing, "Packing.");
    table.add("shuffle", &shuffle, "Shuffle.");
    table.add("prompt", &prompt, "Prompt.");
    table.add("train_file", &files, "Files.");
    Flag& positional = table.add("words", &words, "Words.");
    positional.positional = true;
    positional.required = true;
    positional.value_name = "WORD";
  }
  void parse(const std::vector<std::string>& arguments) { parse_flags(arguments, &table); }
};

// The message of the Error(kUsage) that parsing throws.
std::string usage_error(const std::vector<std::string>& arguments) {
  Settings settings;
  try {
    settings.parse(arguments);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::kUsage);
    return error.what();
  }
  ADD_FAILURE() << "no error";
  return "";
}

TEST(FlagParser, DashesUnderScoresAndAliasesAreTheSame) {
  for (const char* spelling : {"--learning_rate", "--learning-rate", "--lr"}) {
    Settings settings;
    settings.parse({spelling, "-1e-3"});
    EXPECT_EQ(settings.rate, -1e-3) << spelling;
    settings.parse({std::string(spelling) + "=2"});
    EXPECT_EQ(settings.rate, 2) << spelling;
  }
}

TEST(FlagParser, BooleansHaveFiveForms) {
  const auto packing = [](const std::vector<std::string>& arguments) {
    Settings settings;
    settings.packing = arguments[0].starts_with("--no");
    settings.parse(arguments);
    return settings.packing;
  };
  EXPECT_TRUE(packing({"--packing"}));
  EXPECT_TRUE(packing({"--packing", "true"}));
  EXPECT_TRUE(packing({"--packing=yes"}));
  EXPECT_FALSE(packing({"--packing", "False"}));
  EXPECT_FALSE(packing({"--packing=0"}));
  EXPECT_FALSE(packing({"--no_packing"}));
  EXPECT_FALSE(packing({"--no-packing"}));
  EXPECT_TRUE(packing({"--packing", "word"}));
}

TEST(FlagParser, ListsTakeSeveralValuesAndAreRepeated) {
  Settings settings;
  settings.parse({"--train_file", "a", "[b,c]", "--seed", "1", "--seed=2", "--train-file", "d"});
  EXPECT_THAT(settings.files, ElementsAre("a", "[b,c]", "d"));
  EXPECT_EQ(settings.seed, 2);
  settings.parse({"--train_file", "1", "-1"});
  EXPECT_THAT(settings.files, ElementsAre("1", "-1"));
}

TEST(FlagParser, PositionalsMayBeginWithDashesAfterTwoDashes) {
  Settings settings;
  settings.parse({"one", "--packing", "two", "--", "--seed", "-x"});
  EXPECT_THAT(settings.words, ElementsAre("one", "two", "--seed", "-x"));
  EXPECT_TRUE(settings.packing);
}

TEST(FlagParser, ValuesMayBeEmptyOrOddText) {
  Settings settings;
  settings.parse({"--prompt=--a=b"});
  EXPECT_EQ(settings.prompt, "--a=b");
  settings.parse({"--prompt", "-"});
  EXPECT_EQ(settings.prompt, "-");
  settings.parse({"--prompt="});
  EXPECT_EQ(settings.prompt, "");
}

TEST(FlagParser, ErrorsNameWhatWasGivenAndTheNearestFlag) {
  EXPECT_THAT(usage_error({"--lerning_rate", "1"}), HasSubstr("did you mean --learning_rate?"));
  EXPECT_THAT(usage_error({"--no_pakcing"}), HasSubstr("unknown flag '--no_pakcing'"));
  EXPECT_THAT(usage_error({"--no_seed"}), HasSubstr("unknown flag '--no_seed'"));
  EXPECT_THAT(usage_error({"--no_packing=true"}), HasSubstr("takes no value"));
  EXPECT_THAT(usage_error({"-s", "1"}), HasSubstr("unknown flag '-s'"));
  EXPECT_THAT(usage_error({"--seed"}), HasSubstr("--seed: expected N, found nothing"));
  EXPECT_THAT(usage_error({"--prompt", "--seed", "1"}), HasSubstr("--prompt=--seed"));
  EXPECT_THAT(usage_error({"--seed", "1.5"}), HasSubstr("expected a whole number, found '1.5'"));
  EXPECT_THAT(usage_error({"--packing=maybe"}), HasSubstr("expected true or false, found 'maybe'"));
}

TEST(FlagParser, MistakesAreReportedTogether) {
  EXPECT_EQ(
      usage_error(
          {"--lerning_rate", "-1", "5e-5", "--seed", "x", "--pakcing", "--nothing_like_it=3", "word"}),
      "4 mistakes: (1) unknown flag '--lerning_rate'; did you mean --learning_rate? (2) unknown flag "
      "'--pakcing'; did you mean --packing? (3) unknown flag '--nothing_like_it'; --help lists the known "
      "ones (4) command line: --seed: expected a whole number, found 'x'");
  EXPECT_THAT(usage_error({"--unknown", "1", "--seed"}), HasSubstr("(2) --seed: expected N, found nothing"));
}

TEST(FlagParser, RequiredFlagsAreNamed) {
  Settings settings;
  settings.parse({});
  try {
    check_required_flags(settings.table);
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::kUsage);
    EXPECT_THAT(error.what(), HasSubstr("WORD"));
  }
  settings.parse({"x"});
  check_required_flags(settings.table);
}

TEST(FlagParser, HelpIsSeenAnywhereBeforeTwoDashes) {
  Settings settings;
  EXPECT_EQ(parse_flags({"--seed", "1", "-h"}, &settings.table), ParseOutcome::kHelpWanted);
  EXPECT_EQ(parse_flags({"--unknown", "--help"}, &settings.table), ParseOutcome::kHelpWanted);
  EXPECT_EQ(parse_flags({"--", "--help"}, &settings.table), ParseOutcome::kRun);
}

TEST(Help, WrapsWordsAndKeepsLineBreaks) {
  EXPECT_EQ(wrap_text("one two three", 2, 10), "  one two\n  three\n");
  EXPECT_EQ(wrap_text("one\n\ntwo", 0, 10), "one\n\ntwo\n");
  EXPECT_EQ(wrap_text("longer-than-the-line x", 0, 10), "longer-than-the-line\nx\n");
}

TEST(Help, FitsIn80ColumnsAndExplainsEveryFlag) {
  for (const auto& command : commands()) {
    std::istringstream lines(command_help(command.get(), 80));
    for (std::string line; std::getline(lines, line);)
      EXPECT_LE(line.size(), 80u) << command->name() << ": " << line;
    FlagTable table;
    command->declare_flags(&table);
    for (const Flag& flag : table.flags()) {
      const std::string& text = flag.status == FlagStatus::kHonoured ? flag.help : flag.note;
      EXPECT_FALSE(text.empty()) << command->name() << " --" << flag.name << " is not explained";
    }
  }
  std::istringstream lines(program_help(commands(), 80));
  for (std::string line; std::getline(lines, line);) EXPECT_LE(line.size(), 80u) << line;
}

TEST(TextPlot, DrawsTheCornersWhereTheyBelong) {
  const PlotSeries line{"loss", {{0, 4}, {10, 0}}, true};
  PlotOptions options;
  options.width = 31;
  options.height = 4;
  options.utf8 = false;
  options.x_name = "step";
  EXPECT_EQ(plot({line}, options),
            "           ** loss\n"
            "        4 +****\n"
            "          |    ******\n"
            "          |          ******\n"
            "        0 +                ****\n"
            "           0      step       10\n");
  EXPECT_EQ(plot({{"nothing", {}, true}}, options), "");
  EXPECT_EQ(plot({{"nothing", {{1, NAN}, {2, INFINITY}}, true}}, options), "");
  EXPECT_NE(plot({{"one", {{1, 1}}, true}}, options).find('*'), std::string::npos);
}

TEST(TextPlot, LinesFitTheWidthWithBrailleDots) {
  PlotSeries line{"training loss", {}, true};
  PlotSeries marks{"validation loss", {}, false};
  for (int i = 0; i < 1000; ++i) line.points.push_back({i + 1.0, 10 * std::exp(-i / 100.0)});
  for (int i = 0; i < 5; ++i) marks.points.push_back({200.0 * i + 1, 5});
  PlotOptions options;
  const std::string text = plot({line, marks}, options);
  std::istringstream lines(text);
  int64_t num_lines = 0;
  for (std::string row; std::getline(lines, row); ++num_lines) {
    const auto columns = std::count_if(row.begin(), row.end(), [](char c) { return (c & 0xC0) != 0x80; });
    EXPECT_LE(columns, options.width) << row;
  }
  EXPECT_EQ(num_lines, options.height + 2);
  EXPECT_NE(text.find("\xE2\xA0"), std::string::npos);
}

TEST(ResumeCommand, IsTheCommandLineWithTheFlag) {
  EXPECT_EQ(resume_command({"./tessera", "train", "--model", "my model", "--dataset", "*.txt"}),
            "./tessera train --model 'my model' --dataset '*.txt' --resume_from_checkpoint auto");
  EXPECT_EQ(resume_command({"tessera", "train", "--resume-from-checkpoint", "auto", "--seed", "1"}),
            "tessera train --resume-from-checkpoint auto --seed 1");
  EXPECT_EQ(
      resume_command({"tessera", "train", "--resume_from_checkpoint", "old/checkpoint-2", "--", "run.yaml"}),
      "tessera train --resume_from_checkpoint old/checkpoint-2 --resume_from_checkpoint auto -- run.yaml");
  EXPECT_EQ(resume_command({"tessera", "launch", "--nproc_per_node", "2", "train", "run.yaml"}),
            "tessera launch --nproc_per_node 2 train run.yaml --resume_from_checkpoint auto");
  EXPECT_GE(own_command_line().size(), 1u);
}

TEST(ResumeCommand, IsThatOfTheLauncherForASingleRankToo) {
  World world;
  EXPECT_THAT(describe_resuming(world), HasSubstr(own_command_line().front()));
  const std::string launch = "tessera launch --nnodes 1:2 train run.yaml --resume_from_checkpoint auto";
  ::setenv(kResumeCommandVariable, launch.c_str(), 1);
  EXPECT_THAT(describe_resuming(world), HasSubstr(own_command_line().front()))
      << "no agent started this process";
  ::setenv(kAgentPidVariable, std::to_string(::getppid()).c_str(), 1);
  EXPECT_EQ(describe_resuming(world), launch);
  world.num_nodes = world.world_size = 2;
  EXPECT_EQ(describe_resuming(world), launch + " (and so on the other nodes)");
  ::unsetenv(kAgentPidVariable);
  ::unsetenv(kResumeCommandVariable);
}

}  // namespace
}  // namespace tessera
