#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/flags.h"
#include "base/float_types.h"
#include "base/json_value.h"
#include "base/log.h"
#include "base/memory.h"
#include "base/name_hint.h"
#include "base/rng.h"
#include "base/text.h"
#include "base/unique_fd.h"
#include "expect_error.h"

namespace tessera {
namespace {

using testing::HasSubstr;

TEST(Bf16, RoundTripsEveryFiniteValueAndRoundsTiesToEven) {
  for (uint32_t bits = 0; bits <= 0xFFFF; ++bits) {
    const bf16 value{static_cast<uint16_t>(bits)};
    if (std::isnan(to_float(value))) {
      EXPECT_TRUE(std::isnan(to_float(to_bf16(to_float(value)))));
    } else {
      ASSERT_EQ(to_bf16(to_float(value)).bits, value.bits);
    }
  }
  EXPECT_EQ(to_bf16(1.0f + 0x1.0p-8f).bits, to_bf16(1.0f).bits);
  EXPECT_EQ(to_float(to_bf16(1.0f + 0x3.0p-8f)), 1.0f + 0x1.0p-6f);
}

TEST(F16, RoundTripsEveryFiniteValueAndOverflowsToInfinity) {
  for (uint32_t bits = 0; bits <= 0xFFFF; ++bits) {
    const f16 value{static_cast<uint16_t>(bits)};
    if (std::isnan(to_float(value))) {
      EXPECT_TRUE(std::isnan(to_float(to_f16(to_float(value)))));
    } else {
      ASSERT_EQ(to_f16(to_float(value)).bits, value.bits) << "bits " << bits;
    }
  }
  EXPECT_EQ(to_f16(65519.0f).bits, 0x7BFF);
  EXPECT_EQ(to_f16(65520.0f).bits, 0x7C00);
}

// Known answers from the Random123 distribution (kat_vectors, philox4x32 10 rounds).
TEST(Philox, MatchesPublishedVectors) {
  const auto zero = philox4x32(0, 0, 0);
  EXPECT_EQ(zero[0], 0x6627E8D5u);
  EXPECT_EQ(zero[3], 0x9B00DBD8u);
  const auto ones = philox4x32(~uint64_t{0}, ~uint64_t{0}, ~uint64_t{0});
  EXPECT_EQ(ones[0], 0x408F276Du);
  EXPECT_EQ(ones[3], 0x6D5451FDu);
}

TEST(CounterRng, PairsAreTheValuesOneByOne) {
  const CounterRng rng(42, 3);
  for (uint64_t pair = 0; pair < 100; ++pair) {
    EXPECT_EQ(rng.normal_pair(pair)[0], rng.normal(2 * pair)) << pair;
    EXPECT_EQ(rng.normal_pair(pair)[1], rng.normal(2 * pair + 1)) << pair;
  }
}

TEST(CounterRng, NormalHasUnitVariance) {
  const CounterRng rng(7, 3);
  double sum = 0;
  double squares = 0;
  constexpr int kCount = 100000;
  for (int i = 0; i < kCount; ++i) {
    const double value = rng.normal(static_cast<uint64_t>(i));
    sum += value;
    squares += value * value;
  }
  EXPECT_NEAR(sum / kCount, 0, 4 / std::sqrt(kCount));
  EXPECT_NEAR(squares / kCount, 1, 4 * std::sqrt(2.0 / kCount));
}

TEST(Utf8, FindsTheFirstBadByteAtAnyOffset) {
  EXPECT_EQ(find_invalid_utf8(""), -1);
  for (size_t before = 0; before < 20; ++before) {
    const std::string prefix(before, 'a');
    EXPECT_EQ(find_invalid_utf8(prefix + "\xC3\xA4" + prefix), -1) << before;
    EXPECT_EQ(find_invalid_utf8(prefix + "\xFF" + prefix + "\xFE"), static_cast<int64_t>(before)) << before;
    EXPECT_EQ(find_invalid_utf8(prefix + "\xE2\x82"), static_cast<int64_t>(before)) << before;
  }
}

TEST(Utf8, AcceptsWellFormedAndRejectsTheRest) {
  EXPECT_TRUE(is_valid_utf8("a\xC3\xA4\xE2\x82\xAC\xF0\x9F\x98\x80"));
  for (const char* bad :
       {"\x80", "\xC0\x80", "\xE0\x80\x80", "\xED\xA0\x80", "\xF4\x90\x80\x80", "\xC3", "\xFF"}) {
    EXPECT_FALSE(is_valid_utf8(bad)) << printable(bad);
  }
}

TEST(NearestName, FindsTyposOfEveryWordAndNothingElse) {
  const std::vector<std::string> names = {"learning_rate", "weight_decay", "local_rank", "block_size",
                                          "seed",          "adam_beta1",   "bf16",       "bench gemm"};
  const auto nearest = [&](const char* name) { return nearest_name(name, names); };
  for (const char* typo :
       {"learnin_rate", "lerning_rate", "learning_raet", "Learning-Rate", "learningrate"}) {
    EXPECT_EQ(nearest(typo), "learning_rate") << typo;
  }
  EXPECT_EQ(nearest("bench gmem"), "bench gemm");
  // Equally close in letters, but different in meaning.
  for (const char* other :
       {"lora_rank", "batch_size", "adam_beta3", "fp16", "sand", "weight_delay_steps", ""}) {
    EXPECT_EQ(nearest(other), "") << other;
  }
}

constexpr ForeignNames kForeign[] = {{"lr base_lr", "learning_rate", nullptr},
                                     {"batch_size", "train_batch_size", nullptr},
                                     {"batch_size", "eval_batch_size", nullptr},
                                     {"lora lora_*", nullptr, "LoRA is not supported"}};

TEST(NameHint, TakesNamesByMeaningThenBySpellingThenByWords) {
  const std::vector<std::string> known = {"learning_rate",         "eval_batch_size", "warmup_steps",
                                          "warmup_ratio",          "lora_like",       "local_rank",
                                          "gradient_accumulation", "save_steps",      "eval_steps"};
  const std::vector<std::string> usable(known.begin(), known.end() - 4);
  const auto hint = [&](const char* name) {
    return hint_for_name(name, known, usable, kForeign).text("--", "");
  };
  EXPECT_EQ(hint("base-LR"), "; did you mean --learning_rate?");
  EXPECT_EQ(hint("batch_size"), "; did you mean --eval_batch_size?") << "there is no train_batch_size";
  EXPECT_EQ(hint("lora_rank"), ": LoRA is not supported");
  EXPECT_EQ(hint("locla_rank"), "; did you mean --local_rank?");
  EXPECT_EQ(hint("batch"), "") << "one word of three";
  EXPECT_EQ(hint("warmup"), "; did you mean --warmup_steps or --warmup_ratio?");
  EXPECT_EQ(hint("rank"), "") << "only what can be used is found by words";
  EXPECT_EQ(hint("completely_different"), "");
}

TEST(Mistakes, OfOneLineAreNumbered) {
  const auto message = [](const std::vector<std::string>& mistakes) -> std::string {
    try {
      fail_all(ExitCode::kUsage, mistakes);
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ExitCode::kUsage);
      return error.what();
    }
  };
  EXPECT_EQ(message({"one"}), "one");
  EXPECT_EQ(message({"one", "two"}), "2 mistakes: (1) one (2) two");
}

TEST(ShellQuoted, IsWhatAShellReadsAsTheSameWord) {
  EXPECT_EQ(shell_quoted("a-b_c/d.txt,1:2=3@%+"), "a-b_c/d.txt,1:2=3@%+");
  EXPECT_EQ(shell_quoted(""), "''");
  EXPECT_EQ(shell_quoted("=a"), "'=a'");
  EXPECT_EQ(shell_quoted("docs/*.txt"), "'docs/*.txt'");
  EXPECT_EQ(shell_quoted("it's $x"), "'it'\\''s $x'");
  EXPECT_EQ(shell_quoted("\xC3\xA4"), "'\xC3\xA4'");
}

TEST(Formatting, ReadsWell) {
  EXPECT_EQ(format_bytes(1610612736), "1.50 GiB");
  EXPECT_EQ(format_bytes(999 * (1 << 20)) + ", " + format_bytes(1023 * (1 << 20)), "999.0 MiB, 1023 MiB");
  EXPECT_EQ(format_count(-1234567), "-1,234,567");
  EXPECT_EQ(format_count(123), "123");
  EXPECT_EQ(count_of(1, "row") + ", " + count_of(0, "row") + ", " + count_of(4096, "row"),
            "1 row, 0 rows, 4096 rows");
  EXPECT_EQ(hex(std::string_view("\0\x0a\xf0", 3)), "000af0");
  EXPECT_EQ(format_count(1, "row") + ", " + format_count(4096, "row"), "1 row, 4,096 rows");
  EXPECT_EQ(format_duration(3723), "1:02:03");
}

class FlagTableTest : public testing::Test {
 protected:
  FlagTableTest() {
    table_.add("learning_rate", &rate_, "Rate.").aliases = {"lr"};
    table_.add("max_steps", &steps_, "Steps.");
    table_.add("bf16", &bf16_, "Use bf16.");
    table_.add_unsupported("fp16", FlagType::kBool, "false", FlagStatus::kRefused, "use --bf16");
  }
  void set(const char* name, const std::string& value) {
    table_.set(*table_.find(name), {value}, "command line");
  }

  double rate_ = 5e-5;
  int64_t steps_ = -1;
  bool bf16_ = false;
  FlagTable table_;
};

TEST_F(FlagTableTest, FindsAliasesAndBothSpellings) {
  set("lr", "1e-3");
  set("max-steps", "2e3");
  set("bf16", "True");
  EXPECT_EQ(rate_, 1e-3);
  EXPECT_EQ(steps_, 2000);
  EXPECT_TRUE(bf16_);
  EXPECT_TRUE(table_.is_set("learning_rate"));
  EXPECT_FALSE(table_.is_set("fp16"));
  EXPECT_EQ(table_.find("learning_rate")->get(), std::vector<std::string>{"0.001"});
  EXPECT_EQ(table_.hint("max-step").text("", ""), "; did you mean max_steps?");
}

TEST_F(FlagTableTest, AFamilyStandsForNamesWithoutALineOfTheirOwn) {
  table_.add_unsupported("fp8_*", FlagType::kString, "none|16", FlagStatus::kRefused, "there is no fp8");
  table_.add_unsupported("fp8_backend", FlagType::kString, "auto", FlagStatus::kIgnored, "there is no fp8");
  EXPECT_EQ(table_.find("fp8_rank")->name, "fp8_*");
  EXPECT_EQ(table_.find("fp8-backend")->name, "fp8_backend");
  EXPECT_EQ(table_.find("fp8"), nullptr);
  for (const char* value : {"", "none", "16", "16.0"}) set("fp8_rank", value);
  EXPECT_THROW(set("fp8_rank", "8"), Error);
}

TEST_F(FlagTableTest, NamesFlagExpectedAndFound) {
  try {
    set("max_steps", "ten");
    FAIL() << "accepted";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::kUsage);
    EXPECT_STREQ(error.what(), "command line: --max_steps: expected a whole number, found 'ten'");
  }
}

TEST_F(FlagTableTest, ValuesAreUtf8) {
  std::string folder;
  table_.add("output_dir", &folder, "Folder.");
  EXPECT_THROW(set("output_dir", "a\xff"), Error);
  EXPECT_EQ(folder, "");
  set("output_dir", "\xc3\xa9");
  EXPECT_EQ(folder, "\xc3\xa9");
}

TEST_F(FlagTableTest, OptionalSettingsComeAndGo) {
  std::optional<double> steps;
  table_.add("eval_steps", &steps, "Steps.");
  EXPECT_EQ(table_.find("eval_steps")->default_text, "");
  EXPECT_TRUE(table_.find("eval_steps")->get().empty());
  set("eval_steps", "0.25");
  EXPECT_EQ(steps, 0.25);
  EXPECT_THROW(set("eval_steps", "often"), Error);
  set("eval_steps", "None");
  EXPECT_EQ(steps, std::nullopt);
}

TEST_F(FlagTableTest, ChoicesAreNamedWhenRefused) {
  std::string strategy = "no";
  table_.add_choice("strategy", &strategy, {"no", "steps"}, "When.");
  EXPECT_EQ(table_.find("strategy")->value_name, "no|steps");
  set("strategy", "steps");
  EXPECT_EQ(strategy, "steps");
  try {
    set("strategy", "step");
    FAIL() << "accepted";
  } catch (const Error& error) {
    EXPECT_STREQ(error.what(), "command line: --strategy: expected one of no, steps, found 'step'");
  }
}

TEST_F(FlagTableTest, RefusesUnsupportedUnlessDefault) {
  set("fp16", "False");
  EXPECT_TRUE(table_.is_set("fp16"));
  EXPECT_THROW(set("fp16", "true"), Error);
}

TEST(FoundText, BeginsWithTheKindOfWhatIsNoScalar) {
  const auto text = [](const char* json) { return found_text(nlohmann::json::parse(json)); };
  EXPECT_EQ(text("[1, 2]"), "a list of 2, [1,2]");
  EXPECT_EQ(text(R"({"k": [null]})"), R"(an object with 1 field, {"k":[null]})");
  EXPECT_EQ(text("[]") + ", " + text("{}"), "an empty list, an empty object");
  EXPECT_EQ(text("null") + text(" true") + text(" -2.5") + text(R"("a\n")"), R"(nulltrue-2.5"a\n")");
  EXPECT_EQ(text("[\"123456789012345678901234567890123456789\"]"),
            "a list of 1, [\"12345678901234567890123456789012345678...");
}

TEST(Check, NamesPlaceAndValues) {
  try {
    TESSERA_CHECK(1 == 2, "x={}", 5);
    FAIL() << "passed";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::kInternal);
    EXPECT_THAT(error.what(), HasSubstr("base/base_test.cc"));
    EXPECT_THAT(error.what(), HasSubstr("1 == 2: x=5"));
  }
}

TEST(Flags, ASizeNeedsItsUnit) {
  FlagTable table;
  std::optional<int64_t> memory;
  table.add_size("memory", &memory, "64GiB", "Memory of a node.");
  const Flag& flag = *table.find("memory");
  EXPECT_EQ(flag.value_name, "SIZE");
  const std::pair<const char*, std::optional<int64_t>> sizes[] = {
      {"64GiB", int64_t{64} << 30}, {"64GB", 64'000'000'000}, {"1536MiB", 1536 << 20}, {"7B", 7}, {"", {}}};
  for (const auto& [text, bytes] : sizes) {
    table.set(flag, {text}, "command line");
    EXPECT_EQ(memory, bytes);
    EXPECT_THAT(flag.get(), testing::ElementsAre(text));
  }
  table.set(flag, {"1.5GiB"}, "command line");
  EXPECT_THAT(flag.get(), testing::ElementsAre("1536MiB"));
  expect_error(ExitCode::kUsage,
               {"--memory: expected a size with its unit, such as 64GiB, found '64'; 64 bytes would be 64B"},
               [&] { table.set(flag, {"64"}, "command line"); });
  expect_error(ExitCode::kUsage, {"such as 64GiB, found 'lots'"},
               [&] { table.set(flag, {"lots"}, "command line"); });
}

TEST(ParseBytes, TakesUnitsOfBothKindsAndNothingElse) {
  EXPECT_EQ(parse_bytes("4096B"), 4096);
  EXPECT_EQ(parse_bytes("1000000"), 1'000'000);
  EXPECT_EQ(parse_bytes("64GiB"), int64_t{64} << 30);
  EXPECT_EQ(parse_bytes("64G"), int64_t{64} << 30);
  EXPECT_EQ(parse_bytes("64Gi"), int64_t{64} << 30);
  EXPECT_EQ(parse_bytes("1.5 tb"), 1'500'000'000'000);
  EXPECT_EQ(parse_bytes("512m"), 512 << 20);
  EXPECT_EQ(parse_bytes("7 B"), 7);
  for (const char* text :
       {"", "64", "999999", "0.5", "GiB", "64 G B", "-1G", "0", "1e40", "nan", "64X", "64GiBs", "64Gb/s"}) {
    EXPECT_EQ(parse_bytes(text), std::nullopt) << text;
  }
}

TEST(MemoryFile, OfASizeKeepsItAndOpensByItsPath) {
  const UniqueFd file = memory_file(std::string(1000, 'n'), 5000);
  ASSERT_TRUE(file);
  const UniqueFd again(open(file.path().c_str(), O_RDWR | O_CLOEXEC));
  EXPECT_EQ(lseek(again.get(), 0, SEEK_END), 5000);
  EXPECT_NE(ftruncate(again.get(), 4096), 0);
  EXPECT_NE(ftruncate(again.get(), 8192), 0);
  EXPECT_FALSE(memory_file("refused", -1));
}

TEST(MemoryFile, WithoutASizeGrowsWithWhatIsWritten) {
  const UniqueFd file = memory_file("report");
  EXPECT_EQ(write(file.get(), "text", 4), 4);
  EXPECT_EQ(lseek(file.get(), 0, SEEK_END), 4);
}

TEST(Utf8, CharactersAreCodePoints) {
  EXPECT_EQ(count_characters(""), 0);
  EXPECT_EQ(count_characters("a\xC3\xA9\xE2\x82\xAC\xF0\x9F\x98\x80 "), 5);
}

// Bytes that must not reach a terminal or mislead a reader: C0, DEL, C1, bidirectional marks, line
// separators, malformed UTF-8.
TEST(VisibleText, ShowsWhatWouldControlTheTerminal) {
  struct Case {
    std::string text, seen;
  };
  for (const auto& [text, seen] :
       std::vector<Case>{{"\x1b[31mred\x1b[0m", "\\x1b[31mred\\x1b[0m"},
                         {"\x1b]0;title\x07", "\\x1b]0;title\\x07"},
                         {"10 %\r100 %\b\b", "10 %\\x0d100 %\\x08\\x08"},
                         {std::string("a\0b", 3), "a\\x00b"},
                         {"\x7f", "\\u007f"},
                         {"\xc2\x85\xc2\x9b"
                          "2J",
                          "\\u0085\\u009b2J"},
                         {"\u061c\u200e\u200f", "\\u061c\\u200e\\u200f"},
                         {"\u2028\u2029\u202a\u202e", "\\u2028\\u2029\\u202a\\u202e"},
                         {"\u2066\u2069", "\\u2066\\u2069"},
                         {"\x9b"
                          "2J\xff\xc3",
                          "\\x9b2J\\xff\\xc3"},
                         {"\xed\xa0\x80", "\\xed\\xa0\\x80"},
                         {"\u00a0\u00fc\u0645\u200d\u2027\u202f\u2065\u206a\u4e2d\U0001f600",
                          "\u00a0\u00fc\u0645\u200d\u2027\u202f\u2065\u206a\u4e2d\U0001f600"}}) {
    EXPECT_EQ(visible_text(text), seen);
    EXPECT_EQ(visible_line(text), seen);
    EXPECT_EQ(printable(text), seen);
    EXPECT_EQ(visible_text(seen), seen) << "doing it twice changes nothing";
  }
  EXPECT_EQ(visible_text("a\tb\n"), "a\tb\n");
  EXPECT_EQ(visible_line("a\tb\n"), "a\\x09b\\x0a");
}

TEST(Log, NoTextMakesAMessageOfItsOwn) {
  LogTap tap;
  log_warning("{}", "file 'a\x1b[2J\nerror: all is lost'");
  EXPECT_EQ(tap.take(), std::vector<std::string>{"file 'a\\x1b[2J\n  error: all is lost'"});
}

}  // namespace
}  // namespace tessera
