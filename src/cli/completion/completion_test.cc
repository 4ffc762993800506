#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cli/command.h"
#include "cli/completion/completion_table.h"

namespace tessera {
namespace {

using testing::Contains;
using testing::ElementsAre;
using testing::HasSubstr;

class CompletionTest : public testing::Test {
 protected:
  const CompletionCommand& command(const std::string& name) const {
    for (const CompletionCommand& each : table_) {
      if (each.name == name) return each;
    }
    throw std::out_of_range(name);
  }

  const CompletionFlag& flag(const std::string& of, const std::string& name) const {
    for (const CompletionFlag& each : command(of).flags) {
      if (each.name == name) return each;
    }
    throw std::out_of_range(name);
  }

  const std::vector<CompletionCommand> table_ = completion_table(commands());
};

TEST_F(CompletionTest, ValuesFollowFromTheFlagTables) {
  EXPECT_THAT(flag("train", "save_strategy").values.words, ElementsAre("no", "steps", "epoch", "best"));
  EXPECT_THAT(flag("init", "preset").values.words, Contains("15m"));
  EXPECT_TRUE(flag("train", "model").values.folders);
  EXPECT_TRUE(flag("train", "dataset").values.files);
  EXPECT_TRUE(flag("train", "dataset").is_list);
  EXPECT_TRUE(flag("train", "packing").is_bool);
  EXPECT_TRUE(flag("train", "num_threads").values.empty());
  EXPECT_THAT(flag("launch", "nproc_per_node").values.words, ElementsAre("auto", "gpu"));
  const CompletionValues& resume = flag("train", "resume_from_checkpoint").values;
  EXPECT_THAT(resume.words, ElementsAre("true", "auto"));
  EXPECT_TRUE(resume.folders);
  EXPECT_TRUE(command("train").positional.files);
  EXPECT_TRUE(command("launch").takes_command);
  EXPECT_TRUE(command("help").takes_command_name);
}

TEST_F(CompletionTest, FlagsThatHaveNoEffectAreNotOffered) {
  for (const CompletionFlag& each : command("train").flags) EXPECT_NE(each.name, "fp16");
  EXPECT_NO_THROW(flag("config show", "learning_rate"));  // not in its help, but accepted
  EXPECT_ANY_THROW(flag("plan", "logging_steps"));
}

TEST_F(CompletionTest, EveryScriptHasEveryCommandAndFlag) {
  const std::string bash = bash_completion(table_), zsh = zsh_completion(table_),
                    fish = fish_completion(table_);
  for (const CompletionCommand& each : table_) {
    EXPECT_THAT(bash, HasSubstr("'" + each.name + "'"));
    EXPECT_THAT(fish, HasSubstr("__tessera_is \"" + each.name + "\""));
    for (const CompletionFlag& of : each.flags) {
      EXPECT_THAT(bash, HasSubstr("--" + of.name));
      EXPECT_THAT(zsh, HasSubstr("--" + of.name + (of.name == "help" ? "[" : "=")));
      EXPECT_THAT(fish, HasSubstr(" -l " + of.name + " "));
      EXPECT_LE(of.help.size(), 75u) << of.help;
    }
  }
  EXPECT_THAT(zsh, HasSubstr("_tessera_run_deploy_kubernetes"));
}

}  // namespace
}  // namespace tessera
