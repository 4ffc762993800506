#include "settings/compat/compat_table.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "expect_error.h"
#include "settings/run_settings.h"

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
  RunSpec args;
  FlagTable flags;
  declare_training_flags(&flags, &args);
  for (const CompatTable& table : compat_tables()) {
    for (const CompatName& name : table.names) {
      if (name.use != CompatUse::kSame) continue;
      const Flag* flag = flags.find(name.detail);
      ASSERT_NE(flag, nullptr) << name.name;
      EXPECT_EQ(flag, flags.find(name.name)) << name.name;
    }
  }
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
               {"x.tsv: a: expected same as, sets, read, no effect or refused", "'ignored'"},
               [] { parse_compat_table("x", "a\t-\t-\tignored\twhy\n"); });
  EXPECT_TRUE(parse_compat_table("x", "").empty());
}

}  // namespace
}  // namespace tessera
