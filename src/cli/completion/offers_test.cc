#include "cli/completion/offers.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/text.h"
#include "cli/program/commands.h"

namespace tessera {
namespace {

using testing::AllOf;
using testing::Contains;
using testing::ElementsAre;
using testing::IsEmpty;
using testing::Not;
using testing::UnorderedElementsAre;

// Returns the words offered after `tessera LINE`.
std::vector<std::string> offered(const std::string& line) {
  static const Commands all = commands();
  std::vector<std::string> words;
  for (const Offer& offer : completion_offers(all, split(line, ' '))) words.push_back(offer.word);
  return words;
}

TEST(Completion, CommandsAreOfferedWordByWord) {
  EXPECT_THAT(offered("tok"), UnorderedElementsAre("tokenize", "tokenizer"));
  EXPECT_THAT(offered("checkpoint "), ElementsAre("list", "verify"));
  EXPECT_THAT(offered("deploy ku"), ElementsAre("kubernetes"));
  EXPECT_THAT(offered("plan s"), ElementsAre("search", kFiles));
  EXPECT_THAT(offered("help ins"), ElementsAre("inspect"));
  EXPECT_THAT(offered("launch ev"), ElementsAre("eval"));
  EXPECT_THAT(offered("--v"), ElementsAre("--version"));
  EXPECT_THAT(offered("launch --nproc_per_node 2 checkpoint v"), ElementsAre("verify"));
}

TEST(Completion, ValuesFollowFromTheFlagTables) {
  EXPECT_THAT(offered("train --save_strategy "), ElementsAre("no", "steps", "epoch", "best"));
  EXPECT_THAT(offered("init --preset 15"), Contains("15m"));
  EXPECT_THAT(offered("train --model "), ElementsAre(kFolders));
  EXPECT_THAT(offered("train --dataset a "), Contains(kFiles));
  EXPECT_THAT(offered("train --packing t"), Contains("true"));
  EXPECT_THAT(offered("train --num_threads "), IsEmpty());
  EXPECT_THAT(offered("launch --nproc_per_node "), ElementsAre("auto", "gpu"));
  EXPECT_THAT(offered("train --resume_from_checkpoint "), ElementsAre("true", "auto", kFolders));
  EXPECT_THAT(offered("train "), Contains(kFiles));
  EXPECT_THAT(offered("completion "), ElementsAre("bash", "zsh", "fish"));
  for (const char* line : {"train --optim=adamw_t", "train --optim = adamw_t"})
    EXPECT_THAT(offered(line), ElementsAre("adamw_torch"));
}

TEST(Completion, FlagsThatHaveNoEffectAreNotOffered) {
  EXPECT_THAT(offered("train --"), AllOf(Contains("--learning_rate"), Not(Contains("--fp16"))));
  EXPECT_THAT(offered("config show --learning_r"), Contains("--learning_rate"));  // accepted, not in its help
  EXPECT_THAT(offered("plan --logging"), IsEmpty());
  EXPECT_THAT(offered("train --lr-s"), UnorderedElementsAre("--lr-scheduler-type", "--lr-scheduler-kwargs"));
  EXPECT_THAT(offered("launch --nproc_per_node 2 train --max_st"), ElementsAre("--max_steps"));
}

TEST(Completion, EveryFlagIsExplainedInAFewWords) {
  const Commands all = commands();
  for (const auto& command : all) {
    std::vector<std::string> words = split(command->name(), ' ');
    words.emplace_back("--");
    const std::vector<Offer> offers = completion_offers(all, words);
    EXPECT_FALSE(offers.empty()) << command->name();
    for (const Offer& offer : offers) {
      EXPECT_FALSE(offer.meaning.empty()) << offer.word;
      EXPECT_LE(offer.meaning.size(), 75u) << offer.meaning;
    }
  }
}

}  // namespace
}  // namespace tessera
