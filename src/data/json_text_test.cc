#include "data/json_text.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "expect_error.h"

namespace tessera {
namespace {

using ::testing::HasSubstr;

std::string text_of(std::string_view json) { return extract_json_text(json, "text", "d.jsonl", 7); }

std::string message_of(std::string_view json) {
  const Error error = error_of([&] { text_of(json); });
  EXPECT_EQ(error.code(), ExitCode::kBadData) << json;
  return error.what();
}

TEST(JsonText, TakesTheColumnWhereverItIs) {
  EXPECT_EQ(text_of(R"({"text": "hello"})"), "hello");
  EXPECT_EQ(text_of(R"({"id": 1, "meta": {"text": "no", "l": [{"text": "no"}]}, "text": "yes", "x": null})"),
            "yes");
  EXPECT_EQ(text_of(R"(  {"text": ""}  )"), "");
  EXPECT_EQ(extract_json_text(R"({"a\"b": "x"})", "a\"b", "d.jsonl", 1), "x");
}

TEST(JsonText, DecodesEscapes) {
  EXPECT_EQ(text_of(R"({"text": "a\n\t\"\\\u00e4\ud83d\ude00/\/"})"), "a\n\t\"\\\xC3\xA4\xF0\x9F\x98\x80//");
  EXPECT_EQ(text_of(R"({"text": "a\u0000b"})"), std::string("a\0b", 3));
}

TEST(JsonText, NamesTheLineOfBrokenJson) {
  EXPECT_THAT(message_of(R"({"text": "a")"), HasSubstr("d.jsonl: line 7: not valid JSON: "));
  EXPECT_THAT(message_of("{\"text\":\n\"a\",\n\n oops}"), HasSubstr("d.jsonl: line 10: not valid JSON: "));
  for (const char* bad :
       {"", "{", "{\"text\": \"a}", "{\"text\": \"a\"} x", "{text: 1}", "{\"text\": \"a\",}",
        "{\"text\": \"\\ud800\"}", "{\"text\": \"\x01\"}", "{'text': 'a'}", "nul",
        "{\"x\": 1e999, \"text\": \"a\"}", "{\"text\": \"a\"}{\"text\": \"b\"}"}) {
    EXPECT_THAT(message_of(bad), HasSubstr("not valid JSON")) << bad;
  }
}

TEST(JsonText, NamesTheColumnsFoundWhenItsOwnIsMissing) {
  EXPECT_THAT(message_of(R"({"content": "a", "meta": {"text": "b"}})"),
              HasSubstr("line 7: no column 'text' (text_column); columns found: content, meta"));
  EXPECT_THAT(message_of("{}"), HasSubstr("columns found: none"));
  std::string many = "{";
  for (int i = 0; i < 100; ++i) many += "\"c" + std::to_string(i) + "\": 1, ";
  EXPECT_THAT(message_of(many + "\"d\": 1}"), HasSubstr("c0, c1, c2, c3, c4, c5, c6, c7, ..."));
}

TEST(JsonText, RefusesWhatIsNotAString) {
  EXPECT_THAT(message_of(R"({"text": 5})"), HasSubstr("column 'text': expected a string, found a number"));
  EXPECT_THAT(message_of(R"({"text": null})"), HasSubstr("found null"));
  EXPECT_THAT(message_of(R"({"text": true})"), HasSubstr("found a boolean"));
  EXPECT_THAT(message_of(R"({"text": ["a"]})"), HasSubstr("found an array"));
  EXPECT_THAT(message_of(R"({"text": {"text": "a"}})"), HasSubstr("found an object"));
}

TEST(JsonText, RefusesRecordsThatAreNotObjects) {
  EXPECT_THAT(message_of(R"("a")"), HasSubstr("expected an object, found a string"));
  EXPECT_THAT(message_of("[1]"), HasSubstr("expected an object, found an array"));
  EXPECT_THAT(message_of("12"), HasSubstr("expected an object, found a number"));
}

TEST(JsonText, RefusesAColumnThatOccursTwice) {
  EXPECT_THAT(message_of(R"({"text": "a", "text": "b"})"), HasSubstr("column 'text' occurs twice"));
}

TEST(JsonText, RefusesDeepNestingWithoutRecursion) {
  const auto nested = [](int64_t levels) {
    return R"({"text": "a", "x": )" + std::string(static_cast<size_t>(levels), '[') +
           std::string(static_cast<size_t>(levels), ']') + "}";
  };
  EXPECT_EQ(text_of(nested(kMaxJsonDepth - 1)), "a");
  EXPECT_THAT(message_of(nested(kMaxJsonDepth)), HasSubstr("nested deeper than 256 levels"));
  EXPECT_THAT(message_of(nested(1'000'000)), HasSubstr("nested deeper"));
}

}  // namespace
}  // namespace tessera
