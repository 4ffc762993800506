#include "formats/value_json.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "base/error.h"
#include "expect_error.h"

namespace tessera {
namespace {

using ::testing::HasSubstr;

std::string message_of(std::string_view json) {
  const Error error = error_of([&] { parse_value(json, "d.jsonl", 7); });
  EXPECT_EQ(error.code(), ExitCode::kBadData) << json;
  return error.what();
}

TEST(ValueJson, KeepsKindsAndTheOrderOfFields) {
  const Value value =
      parse_value(R"( {"z": 1, "a": [true, null, -2, 2.5, "x"], "m": {"k": {}}, "e": 1e3} )", "d");
  ASSERT_EQ(value.object()->size(), 4u);
  EXPECT_EQ((*value.object())[0].name, "z");
  const Value::List& list = *value.find("a")->list();
  EXPECT_EQ(list, (Value::List{true, nullptr, -2, 2.5, "x"}));
  EXPECT_NE(value.find("m")->find("k")->object(), nullptr);
  EXPECT_EQ(*value.find("e")->number(), 1000);
  EXPECT_EQ(*parse_value("9223372036854775807", "d").integer(), INT64_MAX);
  EXPECT_EQ(*parse_value("9223372036854775808", "d").number(), 9223372036854775808.0);
}

TEST(ValueJson, ReadsThePythonNumbersThatAreNone) {
  const Value value = parse_value(
      R"({"a": NaN, "b": [Infinity,-Infinity ,NaN], "NaN": "\"NaN\", [Infinity]", "c": [0.0E0, 1.0E0, 2]})",
      "d");
  EXPECT_TRUE(std::isnan(*value.find("a")->number()));
  const Value::List& list = *value.find("b")->list();
  EXPECT_EQ(*list[0].number(), std::numeric_limits<double>::infinity());
  EXPECT_EQ(*list[1].number(), -std::numeric_limits<double>::infinity());
  EXPECT_TRUE(std::isnan(*list[2].number()));
  EXPECT_EQ(*value.find("NaN")->string(), "\"NaN\", [Infinity]");
  EXPECT_EQ(*value.find("c")->list(), (Value::List{0.0, 1.0, 2}));
  for (const char* bad :
       {"-NaN", "nan", "inf", "+Infinity", "1NaN", "NaN5", "[.NaN]", "[Infinity", "[NaN NaN]"})
    EXPECT_THAT(message_of(bad), HasSubstr("not valid JSON")) << bad;
}

TEST(ValueJson, DecodesEscapes) {
  EXPECT_EQ(*parse_value(R"("a\n\t\"\\\u00e4\ud83d\ude00/\/")", "d").string(),
            "a\n\t\"\\\xC3\xA4\xF0\x9F\x98\x80//");
  EXPECT_EQ(*parse_value(R"("a\u0000b")", "d").string(), std::string("a\0b", 3));
}

TEST(ValueJson, NamesTheLineOfBrokenJson) {
  EXPECT_THAT(message_of(R"({"text": "a")"), HasSubstr("d.jsonl: line 7: not valid JSON: column "));
  EXPECT_THAT(message_of("{\"text\":\n\"a\",\n\n oops}"), HasSubstr("d.jsonl: line 10: not valid JSON: "));
  for (const char* bad :
       {"", "{", "{\"text\": \"a}", "{\"text\": \"a\"} x", "{text: 1}", "{\"text\": \"a\",}",
        "{\"text\": \"\\ud800\"}", "{\"text\": \"\x01\"}", "{'text': 'a'}", "nul",
        "{\"x\": 1e999, \"text\": \"a\"}", "{\"text\": \"a\"}{\"text\": \"b\"}"}) {
    EXPECT_THAT(message_of(bad), HasSubstr("not valid JSON")) << bad;
  }
}

TEST(ValueJson, RefusesFieldsThatOccurTwice) {
  EXPECT_THAT(message_of(R"({"a": 1, "b": {"c": 1, "d": 2, "c": 3}})"),
              HasSubstr("line 7: field 'c' occurs twice in an object"));
}

TEST(ValueJson, RefusesDeepNestingWithoutRecursion) {
  const auto nested = [](int64_t levels) {
    return std::string(static_cast<size_t>(levels), '[') + std::string(static_cast<size_t>(levels), ']');
  };
  EXPECT_NE(parse_value(nested(kMaxValueDepth), "d").list(), nullptr);
  EXPECT_THAT(message_of(nested(kMaxValueDepth + 1)), HasSubstr("nested deeper than 256 levels"));
  EXPECT_THAT(message_of(nested(1'000'000)), HasSubstr("nested deeper"));
}

// A value has a few bytes in the file and tens in memory.
TEST(ValueJson, RefusesRowsOfMillionsOfValues) {
  std::string lists = "[", fields = "{";
  while (lists.size() < (size_t{25} << 20)) lists += "[],";
  EXPECT_THAT(message_of(lists + "1]"), HasSubstr("line 7: a row of more than 8000000 values"));
  for (int i = 0; i < 70'000; ++i) fields += "\"" + std::to_string(i) + "\":1,";
  EXPECT_THAT(message_of(fields + "\"x\":1}"), HasSubstr("line 7: an object of more than 65536 fields"));
}

}  // namespace
}  // namespace tessera
