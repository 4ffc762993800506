#include "formats/json.h"

#include <gtest/gtest.h>

#include "expect_error.h"

namespace tessera {
namespace {

struct BadJson {
  const char* name;
  std::string text;
  std::vector<std::string> fragments;
};

class BadJsonTest : public testing::TestWithParam<BadJson> {};

TEST_P(BadJsonTest, IsRefusedInOneLine) {
  expect_error(ExitCode::kBadData, GetParam().fragments, [] { parse_json(GetParam().text, "x.json"); });
}

INSTANTIATE_TEST_SUITE_P(
    ParseJson, BadJsonTest,
    testing::Values(
        BadJson{"Empty", "", {"x.json: not valid JSON"}},
        BadJson{"Cut", "{\"a\": [1, ", {"x.json: not valid JSON"}},
        BadJson{"Trailing", "{} {}", {"x.json: not valid JSON", "line 1"}},
        BadJson{"TrailingNul", std::string("{}\0{}", 5), {"x.json", "NUL byte at 2"}},
        BadJson{"NotUtf8", "{\"a\": \"\xff\"}", {"x.json: not valid UTF-8"}},
        BadJson{"LoneSurrogate", "\"\\ud800\"", {"x.json: not valid JSON", "surrogate"}},
        BadJson{"DuplicateKey", "{\"a\": 1, \"b\": {\"a\": 1}, \"a\": 2}", {"x.json: key 'a' stands twice"}},
        BadJson{"DuplicateEscapedKey", "{\"a\": 1, \"\\u0061\": 2}", {"x.json: key 'a' stands twice"}},
        BadJson{
            "DeepArrays", std::string(100'000, '['), {"x.json: nested too deep: expected at most 64 levels"}},
        BadJson{"HugeNumber", "[1e999]", {"x.json: not valid JSON", "number overflow"}},
        BadJson{"NaN", "[NaN]", {"x.json: not valid JSON"}},
        BadJson{"Comment", "{} // done", {"x.json: not valid JSON"}}),
    [](const auto& bad) { return std::string(bad.param.name); });

TEST(ParseJson, DeepestAllowedNestingIsRead) {
  EXPECT_NO_THROW(parse_json(std::string(64, '[') + std::string(64, ']'), "x"));
  expect_error(ExitCode::kBadData, {"nested too deep"},
               [] { parse_json(std::string(65, '[') + std::string(65, ']'), "x"); });
}

TEST(ParseJson, TheSameKeyInSiblingObjectsIsFine) {
  EXPECT_EQ(parse_json("[{\"a\": 1}, {\"a\": 2}]", "x")[1]["a"], 2);
}

TEST(JsonFields, TellExpectedAndFound) {
  const Json object = parse_json(
      R"({"i": 3, "f": 2.5, "s": "text", "b": true, "n": null, "big": 18446744073709551615, "o": {"k": [1]}})",
      "x");
  const JsonFields fields(object, "x.json", "outer.");
  EXPECT_EQ(fields.integer("i"), 3);
  EXPECT_EQ(fields.number("i"), 3.0);
  EXPECT_EQ(fields.number("f"), 2.5);
  EXPECT_EQ(fields.string("s"), "text");
  EXPECT_EQ(fields.boolean("b"), true);
  EXPECT_EQ(fields.integer("n"), std::nullopt);
  EXPECT_EQ(fields.integer("absent"), std::nullopt);
  const auto refused = [](const std::vector<std::string>& fragments, auto body) {
    expect_error(ExitCode::kBadData, fragments, body);
  };
  refused({"x.json: field 'outer.f': expected an integer, found 2.5"}, [&] { fields.integer("f"); });
  refused({"'outer.big': expected an integer, found 18446744073709551615"}, [&] { fields.integer("big"); });
  refused({"'outer.s': expected a number, found \"text\""}, [&] { fields.number("s"); });
  refused({"'outer.i': expected true or false, found 3"}, [&] { fields.boolean("i"); });
  refused({"'outer.o': expected a string, found {\"k\":[1]}"}, [&] { fields.string("o"); });
}

}  // namespace
}  // namespace tessera
