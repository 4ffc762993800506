#include "formats/hjson.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"

namespace tessera {
namespace {

using testing::HasSubstr;

Json parse_hjson(std::string_view text) { return tessera::parse_hjson(text, "ds.json"); }

std::string hjson_refusal(std::string_view text) {
  try {
    parse_hjson(text);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::kBadConfig) << error.what();
    EXPECT_EQ(std::string(error.what()).find('\n'), std::string::npos) << error.what();
    return error.what();
  }
  ADD_FAILURE() << "accepted: " << text;
  return "";
}

TEST(Hjson, PlainJsonIsRead) {
  const char* text = R"({"a": 1, "b": [true, null, -2.5e3, "x\n\u00e9\"\\"], "c": {"d": {}}, "e": []})";
  EXPECT_EQ(parse_hjson(text), Json::parse(text));
}

TEST(Hjson, CommentsAreSkipped) {
  EXPECT_EQ(parse_hjson("# one\n{ // two\n \"a\": 1, /* three\n four */ \"b\": 2 # five\n}\n// six"),
            Json({{"a", 1}, {"b", 2}}));
}

TEST(Hjson, CommasMayBeMissingOrTooMany) {
  EXPECT_EQ(parse_hjson("{\"a\": [1, 2,],\n \"b\": 3\n \"c\": 4,}"),
            Json({{"a", {1, 2}}, {"b", 3}, {"c", 4}}));
}

TEST(Hjson, KeysAndTextsNeedNoQuotes) {
  EXPECT_EQ(parse_hjson("{ stage: 3, type: AdamW\n path: /mnt/nvme0 # kept\n 'lr': 'auto' }"),
            Json({{"stage", 3}, {"type", "AdamW"}, {"path", "/mnt/nvme0 # kept"}, {"lr", "auto"}}));
}

TEST(Hjson, NumbersEndAtPunctuationAndComments) {
  EXPECT_EQ(parse_hjson("{a: 5e8, b: -1 // c\n d: 2.5# e\n f: [1,2 ]\n g: true}"),
            Json({{"a", 5e8}, {"b", -1}, {"d", 2.5}, {"f", {1, 2}}, {"g", true}}));
  EXPECT_EQ(parse_hjson("{a: 5 GB\n b: 1.2.3\n}"), Json({{"a", "5 GB"}, {"b", "1.2.3"}}));
}

TEST(Hjson, BracesAroundTheWholeMayBeMissing) {
  EXPECT_EQ(parse_hjson("a: 1\nb: {c: 2}\n"), Json({{"a", 1}, {"b", {{"c", 2}}}}));
}

TEST(Hjson, SingleQuotesAreTexts) {
  EXPECT_EQ(parse_hjson(R"({'a': 'it\'s "b"'})"), Json({{"a", "it's \"b\""}}));
}

TEST(Hjson, ErrorsNameTheLine) {
  EXPECT_EQ(hjson_refusal("{\n\"a\": 1,\n\"a\": 2}"), "ds.json:3: key 'a' appears twice in one object");
  EXPECT_EQ(hjson_refusal("{\"b\": {\"a\": 1, 'a': 2}}"), "ds.json:1: key 'a' appears twice in one object");
  EXPECT_EQ(hjson_refusal("{\n\"a\": [1, 2"), "ds.json:2: expected ']', found the end of the file");
  EXPECT_EQ(hjson_refusal("{\"a\": 1"), "ds.json:1: expected '}', found the end of the file");
  EXPECT_EQ(hjson_refusal("{\"a\" 1}"), "ds.json:1: expected ':' after key 'a', found '1}'");
  EXPECT_EQ(hjson_refusal("{\"a\": }"), "ds.json:1: expected a value, found '}'");
  EXPECT_EQ(hjson_refusal("{a: 1}\n{"), "ds.json:2: expected the end of the file, found '{'");
  EXPECT_EQ(hjson_refusal("[1]"), "ds.json:1: expected an object, found a list");
  EXPECT_EQ(hjson_refusal(" # nothing"), "ds.json:1: expected a configuration, found nothing");
  EXPECT_EQ(hjson_refusal("{\"a\": \"b\n\"}"), "ds.json:1: a string does not end on its line: '\"b'");
  EXPECT_THAT(hjson_refusal("{/* {\"a\": 1}"), HasSubstr("does not end"));
  EXPECT_THAT(hjson_refusal("{\"a\": \"\\q\"}"), HasSubstr("ds.json:1: not a valid string"));
  EXPECT_THAT(hjson_refusal("{\"a\": '''b'''}"), HasSubstr("multi-line strings"));
  EXPECT_THAT(hjson_refusal("{\"a\": 1e999}"), HasSubstr("number out of range: 1e999"));
}

TEST(Hjson, HostileBytesAreRefused) {
  EXPECT_EQ(hjson_refusal("{\"a\": \"\xFF\"}"), "ds.json: not valid UTF-8");
  EXPECT_EQ(hjson_refusal(std::string_view("{}\0", 3)), "ds.json: NUL byte at 2");
  std::string deep;
  for (int i = 0; i < 100000; ++i) deep += "{\"a\":";
  EXPECT_EQ(hjson_refusal(deep), "ds.json:1: nested too deep: expected at most 64 levels");
  EXPECT_THAT(hjson_refusal("{\"a\": " + std::string(100000, '[')), HasSubstr("nested too deep"));
}

// Every prefix and every single-byte change gives a value or one clear error.
TEST(Hjson, DamagedTextNeverCrashes) {
  const std::string text =
      "{a: 1, \"b\": [true, 'x\\'', 5e8], # c\n d: {e: text\n}, /* f */ \"g\": \"\\u00e9\"}";
  int refused = 0;
  const auto attempt = [&](const std::string& damaged) {
    try {
      parse_hjson(damaged);
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ExitCode::kBadConfig) << damaged;
      ++refused;
    }
  };
  for (size_t i = 0; i < text.size(); ++i) {
    attempt(text.substr(0, i));
    for (const char c : {'{', '}', '"', '\'', '\\', '#', '\n', ',', '\xC3'}) {
      std::string damaged = text;
      damaged[i] = c;
      attempt(damaged);
    }
  }
  EXPECT_GT(refused, 100);
}

}  // namespace
}  // namespace tessera
