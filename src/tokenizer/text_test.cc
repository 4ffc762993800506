// Characters, patterns and the scanners for known patterns.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unicode/uchar.h>

#include <random>

#include "expect_error.h"
#include "support/test_tokenizer.h"
#include "tokenizer/pipeline/byte_level.h"
#include "tokenizer/regex/fast_scanner.h"
#include "tokenizer/regex/regex.h"
#include "tokenizer/regex/unicode.h"

namespace tessera {
namespace {

using ::testing::ElementsAre;

std::string lossy(std::string_view bytes, size_t piece_size) {
  LossyUtf8 decoder;
  std::string out;
  for (size_t at = 0; at < bytes.size(); at += piece_size) decoder.push(bytes.substr(at, piece_size), &out);
  decoder.finish(&out);
  return out;
}

TEST(LossyUtf8, ReplacesEachMaximalPartOfAnIllFormedSequence) {
  // Table 3-8 of the Unicode standard and similar cases; R is U+FFFD.
  const std::pair<std::string, std::string> cases[] = {
      {"abc", "abc"},
      {"\xC3\xA9", "\xC3\xA9"},
      {"a\xFFz", "aRz"},
      {"\xC0\xAF\xE0\x80\xBF\xF0\x81\x82\x41", "RRRRRRRRA"},
      {"\xED\xA0\x80\xED\xBF\xBF\xED\xAF\x41", "RRRRRRRRA"},
      {"\xF4\x91\x92\x93\xFF\x41\x80\xBF\x42", "RRRRRARRB"},
      {"\xE1\x80\xE2\xF0\x91\x92\xF1\xBF\x41", "RRRRA"},
      {"\xE4\xBD", "R"},
  };
  for (auto [bytes, expected] : cases) {
    for (size_t at = 0; (at = expected.find('R', at)) != std::string::npos;)
      expected.replace(at, 1, "\xEF\xBF\xBD");
    for (const size_t piece_size : {1, 2, 3, 100})
      EXPECT_EQ(lossy(bytes, piece_size), expected) << "pieces of " << piece_size;
  }
}

TEST(ByteLevel, WritesEveryByteAndReadsItBack) {
  std::string bytes;
  for (int byte = 0; byte < 256; ++byte) bytes += static_cast<char>(byte);
  EXPECT_EQ(byte_level_decode(byte_level_encode(bytes)), bytes);
  EXPECT_EQ(byte_level_encode(" \n!\xC3\xA9\xAD"), "ĠĊ!Ã©Ń");
  EXPECT_EQ(byte_level_decode("a b"), std::nullopt);
}

std::vector<std::string> matches(const std::string& pattern, const std::string& text) {
  const Regex regex(pattern, "test");
  std::vector<std::string> found;
  for (const auto& [begin, end] : regex.find_all(text))
    found.push_back(text.substr(static_cast<size_t>(begin), static_cast<size_t>(end - begin)));
  return found;
}

TEST(Regex, HasTheMeaningOfOniguruma) {
  EXPECT_THAT(matches(R"(\s)", "a\xC2\x85\xE1\xA0\x8E\xE3\x80\x80"), ElementsAre("\xC2\x85", "\xE3\x80\x80"));
  EXPECT_THAT(matches(R"([\S])", "a\xC2\x85\xE1\xA0\x8E"), ElementsAre("a", "\xE1\xA0\x8E"));
  EXPECT_THAT(matches(R"(\w+)", "e\xCC\x81_9 \xC2\xBD"), ElementsAre("e\xCC\x81_9", "\xC2\xBD"));
  EXPECT_THAT(matches(R"(\h+)", "xaF9g"), ElementsAre("aF9"));
  EXPECT_THAT(matches(R"(^b$)", "a\nb\nc"), ElementsAre("b"));
  EXPECT_THAT(matches(R"((?m:a.b))", "a\nb"), ElementsAre("a\nb"));
  EXPECT_THAT(matches(R"(a.b)", "a\nb a-b"), ElementsAre("a-b"));
  EXPECT_THAT(matches(R"(x{,2})", "xxx"), ElementsAre("xx", "x"));
  EXPECT_THAT(matches(R"(a{b)", "a{b"), ElementsAre("a{b"));
  EXPECT_THAT(matches(R"([^(\s|[.,!?])]+)", "ab, c|d"), ElementsAre("ab", "c", "d"));
  EXPECT_THAT(matches(R"(\p{Han}+)", "a\xE5\xAD\x97\xE3\x80\x82"), ElementsAre("\xE5\xAD\x97"));
  EXPECT_THAT(matches(R"(\p{^L}+)", "ab12"), ElementsAre("12"));
  EXPECT_THAT(matches(R"([[:alpha:]]+)", "ab12"), ElementsAre("ab"));
  EXPECT_THAT(matches(R"(\u0061)", "ab"), ElementsAre("a"));
  EXPECT_THAT(matches(R"(\bfoo\b)", "foo foo_ foo\xC2\xBD"), ElementsAre("foo"));
  EXPECT_THAT(matches(R"((?i:'s))", "'S'\xC5\xBF"), ElementsAre("'S", "'\xC5\xBF"));
  EXPECT_THAT(matches(R"(x*)", "ax"), ElementsAre("", "x"));
}

TEST(Regex, RefusesWhatWouldMeanSomethingElse) {
  for (const char* pattern : {R"([a-z&&[^b]])", R"([a[^b]])", R"(\d{1,3}+)", R"(a{2}?)", R"([\W])", R"((a)",
                              R"([a)", R"(\p{Nonsense})", R"(\)", R"([[:punct:]])", R"(a\C)"}) {
    expect_error(ExitCode::kBadConfig, {"here", "is not supported"}, [&] { Regex(pattern, "here"); });
  }
}

// Every match looks to the end of the text: no match takes many steps, a text takes hours.
TEST(Regex, GivesUpOnPatternsOfQuadraticCost) {
  const Regex regex(R"((?:\s|\w)*?c|.)", "here");
  expect_error(ExitCode::kBadConfig, {"here", "takes more than", "again and again"},
               [&] { regex.find_all(std::string(400'000, 'a')); });
}

TEST(Regex, GivesUpOnPatternsOfExponentialCost) {
  const Regex regex(R"((a+)+[bc])", "here");
  expect_error(ExitCode::kBadConfig, {"here", "gave up"}, [&] { regex.find_all(std::string(60, 'a')); });
}

TEST(FastScanner, KnowsThePatternsOfTheTokenizersOfItsModels) {
  EXPECT_EQ(known_pattern(kLlama3Pattern), KnownPattern::kLlama3);
  EXPECT_EQ(known_pattern(kQwen2Pattern), KnownPattern::kQwen2);
  EXPECT_EQ(known_pattern(kGpt2Pattern), KnownPattern::kGpt2);
  EXPECT_EQ(known_pattern(R"(\s+)"), std::nullopt);
}

// Characters that PCRE2 10.42 (Unicode 14) does not know yet.
bool is_newer_than_pcre2(std::string_view text) {
  for (size_t at = 0; at < text.size();) {
    const auto [code_point, size_bytes] = decode_utf8(text.data() + at);
    UVersionInfo age;
    u_charAge(static_cast<UChar32>(code_point), age);
    if (age[0] > 14) return true;
    at += static_cast<size_t>(size_bytes);
  }
  return false;
}

std::vector<std::pair<int64_t, int64_t>> scan(const FastScanner& scanner, std::string_view text) {
  std::vector<std::pair<int64_t, int64_t>> found;
  for (const char* at = text.data(); at < text.data() + text.size();) {
    const char* end = scanner.match_end(at, text.data() + text.size());
    found.emplace_back(at - text.data(), end - text.data());
    at = end;
  }
  return found;
}

TEST(FastScanner, FindsWhatTheRegularExpressionFinds) {
  constexpr uint32_t kSeed = 7;
  for (const std::string_view pattern : {kGpt2Pattern, kLlama3Pattern, kQwen2Pattern}) {
    const Regex regex(pattern, "test");
    const FastScanner scanner(*known_pattern(pattern));
    std::mt19937 random(kSeed);
    for (int i = 0; i < 20000; ++i) {
      const std::string text = random_unicode(random, 12);
      if (is_newer_than_pcre2(text)) continue;
      ASSERT_EQ(scan(scanner, text), regex.find_all(text))
          << pattern << " seed " << kSeed << " text " << i << ": " << text;
    }
  }
}

TEST(FastScanner, ClassifiesEveryCharacterAsTheRegularExpressionDoes) {
  // A character between letters, digits and spaces shows its class in the matches around it.
  const Regex regex(kLlama3Pattern, "test");
  const FastScanner scanner(KnownPattern::kLlama3);
  for (char32_t code_point = 1; code_point < 0x110000; ++code_point) {
    if (code_point >= 0xD800 && code_point <= 0xDFFF) continue;
    if (code_point > 0x3FFFF && code_point < 0xE0000) continue;      // unassigned planes
    if (code_point > 0xF0010 && code_point % 0x1000 != 0) continue;  // private use
    std::string text = "a";
    append_utf8(code_point, &text);
    text += "1 ";
    append_utf8(code_point, &text);
    if (is_newer_than_pcre2(text)) continue;
    ASSERT_EQ(scan(scanner, text), regex.find_all(text))
        << "U+" << std::hex << static_cast<uint32_t>(code_point);
  }
}

}  // namespace
}  // namespace tessera
