#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "base/error.h"
#include "cli/app.h"
#include "cli/command.h"
#include "cli/flag_parser.h"
#include "cli/help_text.h"
#include "cli/text_plot.h"
#include "cli/train_report.h"
#include "test_paths.h"

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

TEST(Help, FlagReferenceInDocsIsWhatTheProgramWrites) {
  std::ifstream in(source_folder() / "docs/flags.md");
  std::ostringstream text;
  text << in.rdbuf();
  EXPECT_EQ(text.str(), flag_reference(commands()))
      << "run: build/release/tessera help --markdown >docs/flags.md";
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

TEST(ProgressBar, FitsItsWidthWhateverTheNumbers) {
  for (const int64_t width : {20, 40, 79, 200}) {
    for (const int64_t max_steps : {1, 600, 1000000}) {
      for (const int64_t step : {int64_t{0}, max_steps / 2, max_steps}) {
        const Progress progress = {step, max_steps, 123.456789, 1234567.8, 1e-7, 0.123456, 3e6};
        const std::string bar = progress_bar(progress, width, false);
        EXPECT_LE(static_cast<int64_t>(bar.size()), width) << bar;
      }
    }
  }
  const Progress half = {300, 600, 2.5, 12345, 2.868, 0.4256, 83};
  EXPECT_EQ(progress_bar(half, 94, false),
            "[##########..........] 300/600  loss 2.5000  12,345 tokens/s  2.87 TFLOPS  MFU 0.43  ETA 01:23");
  EXPECT_EQ(progress_bar(half, 79, false),
            "[##...] 300/600  loss 2.5000  12,345 tokens/s  2.87 TFLOPS  MFU 0.43  ETA 01:23");
  EXPECT_EQ(progress_bar(half, 78, false),
            "[########.........] 300/600  loss 2.5000  12,345 tokens/s  MFU 0.43  ETA 01:23");
  EXPECT_EQ(progress_bar(half, 60, false), "300/600  loss 2.5000  12,345 tokens/s  MFU 0.43  ETA 01:23");
  EXPECT_EQ(progress_bar(half, 50, false), "300/600  loss 2.5000  12,345 tokens/s  ETA 01:23");
}

TEST(ProgressBar, WithoutAPeakThereIsNoMfu) {
  const Progress half = {300, 600, 2.5, 12345, 2.868, {}, 83};
  EXPECT_EQ(progress_bar(half, 84, false),
            "[##########..........] 300/600  loss 2.5000  12,345 tokens/s  2.87 TFLOPS  ETA 01:23");
}

TEST(Program, UnknownCommandsNameTheNearest) {
  const auto message = [](const std::vector<std::string>& arguments) -> std::string {
    try {
      run_program(arguments);
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ExitCode::kUsage);
      return error.what();
    }
    return "no error";
  };
  EXPECT_THAT(message({"doctr"}), HasSubstr("did you mean 'doctor'?"));
  EXPECT_THAT(message({"x"}), HasSubstr("unknown command 'x'"));
  EXPECT_THAT(message({}), HasSubstr("no command given"));
  EXPECT_THAT(message({"tokenizer"}), HasSubstr("did you mean 'tessera tokenizer train'?"));
  EXPECT_THAT(message({"bench"}),
              HasSubstr("'bench' is not a command; there are bench gemm, bench attention"));
  EXPECT_THAT(message({"bench", "gem"}), HasSubstr("'bench gem' is not a command"));
  EXPECT_THAT(message({"help", "doctr"}), HasSubstr("did you mean 'doctor'?"));
}

TEST(Help, GroupsOfCommandsListTheirMembers) {
  const auto all = commands();
  const std::string text = group_help(all, "bench", 80);
  EXPECT_THAT(text, HasSubstr("Usage: tessera bench COMMAND [flags]"));
  for (const char* name : {"gemm", "attention", "elementwise", "optimizer", "tokenizer", "train-step"}) {
    EXPECT_THAT(text, HasSubstr(fmt::format("  bench {} ", name)));
  }
  EXPECT_TRUE(commands_of_group(all, "benc").empty());
  EXPECT_EQ(commands_of_group(all, "tokenizer").size(), 1u);
}

}  // namespace
}  // namespace tessera
