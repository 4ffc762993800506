#include "formats/json.h"

#include <gtest/gtest.h>

#include <optional>
#include <string>

#include "expect_error.h"
#include "formats/json_problem.h"

namespace tessera {
namespace {

struct BadJson {
  const char* name;
  std::string text;
  std::vector<std::string> fragments;

  friend void PrintTo(const BadJson& bad, std::ostream* out) { *out << bad.name; }
};

class BadJsonTest : public testing::TestWithParam<BadJson> {};

TEST_P(BadJsonTest, IsRefusedInOneLine) {
  expect_error(ExitCode::kBadData, GetParam().fragments, [] { parse_json(GetParam().text, "x.json"); });
}

INSTANTIATE_TEST_SUITE_P(
    ParseJson, BadJsonTest,
    testing::Values(
        BadJson{"Empty", "", {"x.json: not valid JSON: line 1, column 1: unexpected end of input"}},
        BadJson{"Cut", "{\"a\": [1,\n ", {"line 2, column 2: unexpected end of input"}},
        BadJson{"Trailing", "{} {}", {"line 1, column 4: found '{': unexpected '{'; expected end of input"}},
        BadJson{"TrailingNul", std::string("{}\0{}", 5), {"x.json", "NUL byte at 2"}},
        BadJson{"NotUtf8", "{\"a\": \"\xff\"}", {"x.json: not valid UTF-8"}},
        BadJson{"LoneSurrogate",
                "\"\\ud800\"",
                {"x.json: not valid JSON: line 1, column 8: found '\"': invalid string: surrogate"}},
        BadJson{"DuplicateKey", "{\"a\": 1, \"b\": {\"a\": 1}, \"a\": 2}", {"x.json: key 'a' appears twice"}},
        BadJson{"DuplicateEscapedKey", "{\"a\": 1, \"\\u0061\": 2}", {"x.json: key 'a' appears twice"}},
        BadJson{
            "DeepArrays", std::string(100'000, '['), {"x.json: nested too deep: expected at most 64 levels"}},
        BadJson{"HugeNumber",
                "[1e999]",
                {"x.json: not valid JSON: line 1, column 6: found '9': number overflow parsing '1e999'"}},
        BadJson{"NaN", "[NaN]", {"column 2: found 'N': invalid literal"}},
        BadJson{"Comment", "{} // done", {"column 4: found '/': invalid literal"}}),
    [](const auto& bad) { return std::string(bad.param.name); });

TEST(JsonProblem, SaysWhatWasExpectedAndFound) {
  const auto problem = [](std::string_view text) { return find_json_problem(text)->text(); };
  EXPECT_EQ(problem("{\"a\" 1}"), "line 1, column 6: found '1': unexpected number literal; expected ':'");
  EXPECT_EQ(problem("{\n  a: 1}"), "line 2, column 3: found 'a': invalid literal");
  EXPECT_EQ(problem("{\"a\": 1,}"), "line 1, column 9: found '}': unexpected '}'; expected string literal");
  EXPECT_EQ(problem("\"a\nb\""),
            "line 1, column 3: found '\\x0a': invalid string: control character U+000A (LF) must be escaped "
            "to \\u000A or \\n");
  EXPECT_EQ(problem("\"\xFF\""), "line 1, column 2: found '\\xff': invalid string: ill-formed UTF-8 byte");
  EXPECT_EQ(problem(std::string(1'000'000, '[')),
            "line 1, column 1000001: unexpected end of input; expected '[', '{', or a literal");
}

TEST(JsonProblem, TellsATextThatEndsTooEarly) {
  for (const char* text : {"", "{\"a\": 1", "[1,", "\"a", "tru", "1.", "\"\\u12"}) {
    const std::optional<JsonProblem> problem = find_json_problem(text);
    ASSERT_TRUE(problem) << text;
    EXPECT_TRUE(problem->is_at_end) << text;
  }
  for (const char* text : {"[1 2", "{} x", "[1,}", "nul]"})
    EXPECT_FALSE(find_json_problem(text)->is_at_end) << text;
  EXPECT_FALSE(find_json_problem("\xEF\xBB\xBF[1]"));
}

TEST(ParseJson, DeepestAllowedNestingIsRead) {
  EXPECT_NO_THROW(parse_json(std::string(64, '[') + std::string(64, ']'), "x"));
  expect_error(ExitCode::kBadData, {"nested too deep"},
               [] { parse_json(std::string(65, '[') + std::string(65, ']'), "x"); });
}

TEST(ParseJson, TheSameKeyInSiblingObjectsIsFine) {
  EXPECT_EQ(parse_json("[{\"a\": 1}, {\"a\": 2}]", "x")[1]["a"], 2);
}

TEST(JsonNode, TellsExpectedAndFound) {
  const Json object = parse_json(
      R"({"i": 3, "f": 2.5, "s": "text", "b": true, "n": null, "big": 18446744073709551615, "o": {"k": [1]}})",
      "x");
  const std::string origin = "x.json";
  const JsonNode node(object, origin, "outer");
  EXPECT_EQ(node["i"].integer(), 3);
  EXPECT_EQ(node["i"].number(), 3.0);
  EXPECT_EQ(node["f"].number(), 2.5);
  EXPECT_EQ(node["s"].string(), "text");
  EXPECT_EQ(node["b"].boolean(), true);
  EXPECT_EQ(node["o"]["k"][0].integer(1, 1), 1);
  for (const char* name : {"n", "absent"}) {
    EXPECT_EQ(node[name].integer_or(7), 7);
    EXPECT_EQ(node[name].string_or("none"), "none");
    EXPECT_EQ(node[name].json(), Json());
  }
  EXPECT_TRUE(node.contains("n"));
  EXPECT_FALSE(node.contains("absent"));
  const auto refused = [](const std::vector<std::string>& fragments, auto body) {
    expect_error(ExitCode::kBadData, fragments, body);
  };
  refused({"x.json: field 'outer.f': expected an integer, found 2.5"}, [&] { node["f"].integer(); });
  refused({"'outer.i': expected an integer of at least 4, found 3"}, [&] { node["i"].integer(4); });
  refused({"'outer.i': expected an integer from 0 to 2, found 3"}, [&] { node["i"].integer(0, 2); });
  refused({"'outer.big': expected an integer, found 18446744073709551615"}, [&] { node["big"].integer(); });
  refused({"'outer.s': expected a number, found \"text\""}, [&] { node["s"].number(); });
  refused({"'outer.i': expected true or false, found 3"}, [&] { node["i"].boolean_or(false); });
  refused({"'outer.o': expected a string, found an object with 1 field, {\"k\":[1]}"},
          [&] { node["o"].string(); });
  refused({"'outer.o.k[0]': expected a list, found 1"}, [&] { node["o"]["k"][0].list(); });
  refused({"'outer.absent.k': expected a string, found nothing"}, [&] { node["absent"]["k"].string(); });
  refused({"'outer.i': expected an object, found 3"}, [&] { node["i"]["k"]; });
  refused({"x.json: expected an object, found 3"}, [&] { JsonNode(object["i"], origin)["k"]; });
}

TEST(ParseJson, NamesAGitLfsPointer) {
  expect_error(
      ExitCode::kBadData, {"config.json: expected JSON, found a Git LFS pointer", "git lfs pull"},
      [] { parse_json("version https://git-lfs.github.com/spec/v1\noid sha256:0\n", "config.json"); });
}

}  // namespace
}  // namespace tessera
