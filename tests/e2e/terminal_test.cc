// What a run shows on a terminal and without one, quietly, and from elsewhere.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <pty.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <future>
#include <nlohmann/json.hpp>
#include <regex>
#include <sstream>

#include "e2e/tiny_model.h"

namespace tessera {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

// A terminal for standard output.
class PseudoTerminal {
 public:
  PseudoTerminal() { EXPECT_EQ(openpty(&master_, &slave_, name_.data(), nullptr, nullptr), 0); }
  ~PseudoTerminal() {
    close(master_);
    close(slave_);
  }
  PseudoTerminal(const PseudoTerminal&) = delete;
  PseudoTerminal& operator=(const PseudoTerminal&) = delete;

  std::string name() const { return name_.data(); }
  // At least a byte must have been written.
  std::string shown() const {
    std::string text(4096, '\0');
    text.resize(static_cast<size_t>(std::max<ssize_t>(0, read(master_, text.data(), text.size()))));
    return text;
  }

 private:
  int master_ = -1, slave_ = -1;
  std::array<char, 256> name_ = {};
};

// With an evaluation and a checkpoint in the middle.
std::vector<std::string> run_arguments(const TinyModel& tiny, const std::vector<std::string>& more = {}) {
  std::vector<std::string> arguments = tiny.train_arguments(
      "out", {"--max_steps", "12", "--logging_steps", "4", "--eval_strategy", "steps", "--eval_steps", "6",
              "--eval_dataset", tiny.text_file, "--save_steps", "6"});
  arguments.insert(arguments.end(), more.begin(), more.end());
  return arguments;
}

TEST(Terminal, TheLineIsRedrawnInPlaceAndFitsEightyColumns) {
  const TinyModel tiny;
  const ProcessResult result =
      run_well(run_arguments(tiny),
               {.environment = {"TERM=xterm", "NO_COLOR=1", "LC_ALL=C"}, .error_is_terminal = true});
  int num_drawn = 0;
  std::istringstream parts(result.err);
  for (std::string part; std::getline(parts, part, '\r');) {
    EXPECT_LT(part.size(), 90u) << part;  // 79 with the sequence that clears the line
    if (part.find("/12 ") == std::string::npos || part.find("step ") != std::string::npos) continue;
    ++num_drawn;
    EXPECT_THAT(part, AllOf(HasSubstr("loss "), HasSubstr("lr "), HasSubstr(" tokens/s"), HasSubstr("ETA ")));
  }
  EXPECT_GE(num_drawn, 1) << result.err;
}

TEST(Terminal, WithoutATerminalLinesAreSteady) {
  const TinyModel tiny;
  const ProcessResult result = run_well(run_arguments(tiny));
  const std::regex expected(
      R"(info: step \d+/12  loss \d+\.\d{4}  trend (--|[+-]\d+\.\d{4})  lr \d\.\d\de-\d\d  )"
      R"([\d,]+ tokens/s  (MFU \d\.\d\d|[\d.]+ TFLOPS)  ETA (--:--|\d\d:\d\d))");
  int num_lines = 0;
  for (const std::string& line : lines_of(result.err)) {
    if (!line.starts_with("info: step ")) continue;
    ++num_lines;
    EXPECT_TRUE(std::regex_match(line, expected)) << line;
  }
  EXPECT_GE(num_lines, 2) << "the first step and the last";
  EXPECT_THAT(result.err, Not(HasSubstr("\x1b")));
}

TEST(Terminal, EndsWithATableOfTheRun) {
  const TinyModel tiny;
  const std::string out = run_well(run_arguments(tiny)).out;
  const std::string table = out.substr(out.find("\ntime ") + 1);
  // Of the parts of a step those are shown that take a share, which depends on what else the machine does.
  EXPECT_THAT(table, AllOf(HasSubstr("\n  start-up "), HasSubstr("\n  steps (12) "), HasSubstr("\n    "),
                           HasSubstr("\n  evaluations (2) "), HasSubstr("\n  checkpoints (2) "),
                           HasSubstr(" in 12 steps, "), HasSubstr("\nspeed "), HasSubstr("\nmemory   peak "),
                           HasSubstr("; best evaluation "), HasSubstr("\nfaster   "),
                           testing::EndsWith("model    " + (tiny.folder / "out") + "\n")));
  for (const std::string& line : lines_of(table)) {
    EXPECT_LE(line.size(), line.starts_with("model ") ? 500u : 80u) << line;
  }
}

TEST(Terminal, TheTimeLeftIsKnownAfterFourSteps) {
  const TinyModel tiny;
  run_well(run_arguments(tiny));
  std::vector<double> left;
  for (const std::string& line : lines_of(read_file(tiny.folder / "out/metrics.jsonl"))) {
    const auto metrics = nlohmann::json::parse(line);
    EXPECT_EQ(metrics.contains("eta_s"), metrics["step"] >= 4) << line;
    if (metrics.contains("eta_s")) left.push_back(metrics["eta_s"]);
  }
  ASSERT_EQ(left.size(), 9u);
  EXPECT_GT(left.back(), 0) << "an evaluation, a checkpoint and the model are still to come";
}

// Names and contents of files: a cleared screen, a title, C1's way to say the same, text from right to left.
TEST(Terminal, TextFromFilesDoesNotControlIt) {
  const TinyModel tiny;
  const std::string evil =
      "a\x1b[2Jb\x1b]0;t\x07"
      "c\rd\xc2\x9b"
      "1me\u202ef";
  const std::string seen =
      "a\\x1b[2Jb\\x1b]0;t\\x07"
      "c\\x0dd\\u009b1me\\u202ef";
  const std::string rows =
      tiny.folder.write("evil\x1b[2J.jsonl", nlohmann::json{{"text", evil}}.dump() + "\n");
  const auto expect_visible = [](const std::string& text) {
    EXPECT_THAT(text, AllOf(Not(HasSubstr("\x1b")), Not(HasSubstr("\r")), Not(HasSubstr("\u202e")),
                            Not(HasSubstr("\xc2\x9b"))));
  };
  const std::vector<std::string> preview = {"data", "preview", "--dataset", rows, "--model", tiny.model};
  const ProcessResult shown = run_well(preview);
  EXPECT_THAT(shown.out,
              AllOf(HasSubstr("evil\\x1b[2J.jsonl"), HasSubstr("a\\x1b[2Jb"), HasSubstr("e\\u202ef")));
  expect_visible(shown.out + shown.err);
  const ProcessResult refused = run_tessera({"inspect", "no\nerror: such\x1b[2J\u2029file"});
  EXPECT_THAT(refused.err, HasSubstr("no\\x0aerror: such\\x1b[2J\\u2029file"));
  expect_visible(refused.err);
  EXPECT_THAT(lines_of(refused.err), testing::SizeIs(1));

  // What is the result itself is not changed, except on a terminal.
  const std::string ids = run_well({"tokenize", "--tokenizer", tiny.tokenizer}, {.input = evil}).out;
  EXPECT_EQ(run_well({"detokenize", "--tokenizer", tiny.tokenizer}, {.input = ids}).out, evil);
  const PseudoTerminal terminal;
  run_well({"detokenize", "--tokenizer", tiny.tokenizer}, {.input = ids, .output_file = terminal.name()});
  EXPECT_EQ(terminal.shown(), seen);
}

TEST(Quiet, OnlyTheModelsFolderIsShown) {
  const TinyModel tiny;
  for (const std::vector<std::string>& launch :
       {std::vector<std::string>{}, std::vector<std::string>{"launch", "--nproc_per_node", "2"}}) {
    for (const bool is_terminal : {false, true}) {
      std::vector<std::string> arguments = run_arguments(tiny, {"--quiet", "--use_ipex"});
      arguments.insert(arguments.begin(), launch.begin(), launch.end());
      const ProcessResult result = run_well(
          arguments, {.environment = {"TERM=xterm", "NO_COLOR=1"}, .error_is_terminal = is_terminal});
      EXPECT_EQ(result.out, (tiny.folder / "out") + "\n");
      EXPECT_THAT(result.err, HasSubstr("--use_ipex has no effect"));
      EXPECT_THAT(lines_of(result.err), testing::Each(testing::StartsWith("warning: ")));
    }
  }
}

TEST(Watch, ShowsARunFromBeforeItsBeginningToItsEnd) {
  const TinyModel tiny;
  const std::string out = tiny.folder / "out";
  std::future<ProcessResult> watching = std::async(std::launch::async, [&] {
    return run_tessera({"watch", out});
  });
  run_well(run_arguments(tiny));
  const ProcessResult watched = watching.get();
  EXPECT_EQ(watched.exit_code, 0) << watched.err;
  EXPECT_THAT(watched.out, AllOf(HasSubstr("started on "), HasSubstr("{'loss': "),
                                 HasSubstr("{'eval_loss': "), HasSubstr("saved " + out + "/checkpoint-6 ("),
                                 HasSubstr("step 12/12  loss "), HasSubstr("\n  evaluations (2) "),
                                 testing::EndsWith("model    " + (tiny.folder / "out") + "\n")));
}

TEST(Watch, TellsTheStateOnceForPeopleAndPrograms) {
  const TinyModel tiny;
  const std::string out = tiny.folder / "out";
  const ProcessResult nothing = run_tessera({"watch", out, "--once"});
  EXPECT_EQ(nothing.exit_code, 66);
  EXPECT_THAT(nothing.err, HasSubstr("no run has begun"));
  const ProcessResult address = run_tessera({"watch", "localhost:9404"});
  EXPECT_EQ(address.exit_code, 64);
  EXPECT_THAT(address.err, HasSubstr("the page of a run is http://localhost:9404"));
  run_well(run_arguments(tiny));
  EXPECT_THAT(run_well({"watch", out, "--once"}).out,
              AllOf(HasSubstr("step 12/12  loss "), HasSubstr("model    " + out + "\n")));
  const auto state = nlohmann::json::parse(run_well({"watch", out, "--once", "--json"}).out);
  EXPECT_EQ(state["state"], "finished");
  EXPECT_EQ(state["step"], 12);
  EXPECT_EQ(state["finish"]["times"]["num_evaluations"], 2);
  const std::vector<std::string> lines = lines_of(read_file(tiny.folder / "out/metrics.jsonl"));
  EXPECT_EQ(state["loss"], nlohmann::json::parse(lines.back())["loss"]);
}

}  // namespace
}  // namespace tessera
