#include "settings/compat/compat_table.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "expect_error.h"
#include "settings/run_settings.h"
#include "support/settings/arguments_test_support.h"

namespace tessera {
namespace {

TEST(CompatTable, HasALineForEveryName) {
  for (const CompatTable& table : compat_tables()) {
    EXPECT_GT(table.names.size(), 50u) << table.program;
    std::set<std::string_view> seen;
    std::string_view last;
    for (const CompatName& name : table.names) {
      EXPECT_TRUE(seen.insert(name.name).second) << table.file << " has " << name.name << " twice";
      EXPECT_LT(last, name.name) << table.file << " is not sorted";
      last = name.name;
    }
  }
}

TEST(CompatTable, WhatKeepsItsMeaningIsAFlag) {
  RunSettings spec;
  FlagTable flags;
  declare_training_flags(&flags, &spec);
  for (const CompatTable& table : compat_tables()) {
    for (const CompatName& name : table.names) {
      if (name.use != CompatUse::kSame || table.file == "deepspeed") continue;
      const Flag* flag = flags.find(name.detail);
      ASSERT_NE(flag, nullptr) << name.name;
      EXPECT_EQ(flag, flags.find(name.name)) << name.name;
    }
  }
}

TEST(CompatTable, WhatSetsAFlagNamesOne) {
  RunSettings spec;
  FlagTable flags;
  declare_training_flags(&flags, &spec);
  for (const CompatTable& table : compat_tables()) {
    for (const CompatName& name : table.names) {
      if (name.use != CompatUse::kSets || name.name == "communication_data_type") continue;
      const std::string target(name.detail.substr(0, name.detail.find_first_of(" ,")));
      const Flag* flag = flags.find(target);
      ASSERT_NE(flag, nullptr) << name.name << ": " << target;
      EXPECT_EQ(flag->status, FlagStatus::kHonoured) << name.name;
    }
  }
}

TEST_F(ArgumentsTest, ABooleanOfAnotherProgramSetsAFlag) {
  give("disable_shuffling", "true");
  EXPECT_FALSE(spec_.data.shuffle);
  give("disable_shuffling", "no");
  EXPECT_TRUE(spec_.data.shuffle);
  give("group_by_length", "false");
  EXPECT_EQ(spec_.data.sampling_strategy, SamplingStrategy::kRandom);
  give("group_by_length", "true");
  EXPECT_EQ(spec_.data.sampling_strategy, SamplingStrategy::kGroupByLength);
  give("neat_packing", "true");
  EXPECT_TRUE(spec_.data.packing);
  EXPECT_EQ(spec_.data.packing_strategy, PackingStrategy::kGreedyKnapsack);
  give("packing_strategy", "wrapped");
  give("neat_packing", "true");
  EXPECT_EQ(spec_.data.packing_strategy, PackingStrategy::kWrapped) << "a strategy that is set stays";
  EXPECT_THAT(refusal("disable_shuffling", "maybe"),
              testing::HasSubstr("--disable_shuffling: expected true or false"));
}

TEST(CompatTable, ANameIsFoundByItselfOrByItsFamily) {
  const CompatTable& table = compat_table("axolotl");
  EXPECT_EQ(table.find("liger_rope")->name, "liger_*");
  EXPECT_EQ(table.find("liger_use_token_scaling")->use, CompatUse::kRefused);
  EXPECT_EQ(table.find("datasets.path")->use, CompatUse::kRead);
  EXPECT_EQ(table.find("liger"), nullptr);
}

TEST(CompatTable, AcceptedValuesAreSeparatedByBars) {
  const CompatName name{"a", "", "false|{}|CAUSAL_LM", CompatUse::kRefused, "why"};
  for (const char* value : {"", "null", "false", "False", "{}", "causal_lm"})
    EXPECT_TRUE(name.accepts(value)) << value;
  for (const char* value : {"true", "0", "false|{}", "none"}) EXPECT_FALSE(name.accepts(value)) << value;
}

TEST(CompatTable, AMistakeInATableIsNamedWithItsLine) {
  expect_error(ExitCode::kInternal, {"x.tsv:3: expected 5 columns separated by tabs", "found 4"},
               [] { parse_compat_table("x", "# comment\na\t-\t-\trefused\twhy\nb\t-\t-\trefused\n"); });
  expect_error(ExitCode::kInternal, {"x.tsv:1: expected 5 columns"},
               [] { parse_compat_table("x", "a\t\t-\trefused\twhy\n"); });
  expect_error(ExitCode::kInternal,
               {"x.tsv: a: expected same as, sets, read, no effect, refused or silent", "'ignored'"},
               [] { parse_compat_table("x", "a\t-\t-\tignored\twhy\n"); });
  EXPECT_TRUE(parse_compat_table("x", "").empty());
}

}  // namespace
}  // namespace tessera
