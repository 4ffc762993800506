#include "formats/json.h"

#include <gtest/gtest.h>

#include <random>

#include "base/text.h"
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
        BadJson{"Empty",
                "",
                {"x.json: not valid JSON: line 1, column 1: expected a value, found the end of the text"}},
        BadJson{"Cut", "{\"a\": [1,\n ", {"line 2, column 2: expected a value, found the end of the text"}},
        BadJson{"Trailing", "{} {}", {"line 1, column 4: expected nothing after the JSON value, found '{'"}},
        BadJson{"TrailingNul", std::string("{}\0{}", 5), {"x.json", "NUL byte at 2"}},
        BadJson{"NotUtf8", "{\"a\": \"\xff\"}", {"x.json: not valid UTF-8"}},
        BadJson{"LoneSurrogate",
                "\"\\ud800\"",
                {"x.json: not valid JSON: line 1, column 8: expected the second half of a surrogate pair"}},
        BadJson{"DuplicateKey", "{\"a\": 1, \"b\": {\"a\": 1}, \"a\": 2}", {"x.json: key 'a' appears twice"}},
        BadJson{"DuplicateEscapedKey", "{\"a\": 1, \"\\u0061\": 2}", {"x.json: key 'a' appears twice"}},
        BadJson{
            "DeepArrays", std::string(100'000, '['), {"x.json: nested too deep: expected at most 64 levels"}},
        BadJson{"HugeNumber",
                "[1e999]",
                {"x.json: not valid JSON: line 1, column 2: expected a number below 1.8e308, found 1e999"}},
        BadJson{"NaN", "[NaN]", {"column 2: expected a value or ']', found 'NaN'"}},
        BadJson{"Comment", "{} // done", {"expected nothing after the JSON value, found '/'"}}),
    [](const auto& bad) { return std::string(bad.param.name); });

// A separate parser says what is wrong: it must reject exactly what the library rejects.
TEST(JsonProblem, IsFoundWhereTheLibraryFindsOne) {
  const std::vector<std::string> seeds = {
      R"({"a": [1, -2.5e+3, 0, true, false, null], "b\u00e9\ud83d\ude00\n": {"c": ""}, "d": []})",
      "  [ {} , [ [ ] ] , \"\xC3\xA4\\\\\\/\" , 1E9 ]\r\n",
      "\xEF\xBB\xBF\"x\"",
      "-0.1e-5",
  };
  const std::string characters = "{}[],:\"\\ \n\tu0179dDcfe+-.truefalsn\xC3\xA4\xED\xFF\x01";
  std::mt19937 random(1);
  const auto below = [&](size_t bound) {
    return std::uniform_int_distribution<size_t>(0, bound - 1)(random);
  };
  int num_refused = 0;
  for (int round = 0; round < 20'000; ++round) {
    std::string text = seeds[below(seeds.size())];
    for (size_t changes = below(4); changes > 0; --changes) {
      const size_t at = below(text.size());
      switch (below(3)) {
        case 0:
          text[at] = characters[below(characters.size())];
          break;
        case 1:
          text.insert(at, 1, characters[below(characters.size())]);
          break;
        default:
          text.erase(at, below(8));
          if (text.empty()) text = "[";
      }
    }
    const bool is_json = Json::accept(text);
    const std::optional<JsonProblem> problem = find_json_problem(text);
    ASSERT_EQ(!problem, is_json) << testing::PrintToString(text) << (problem ? ": " + problem->text() : "");
    if (!problem) continue;
    ++num_refused;
    ASSERT_EQ(problem->what, printable(problem->what, 1000));
  }
  EXPECT_GT(num_refused, 5'000);
}

TEST(JsonProblem, SaysWhatWasExpectedAndFound) {
  const auto problem = [](std::string_view text) { return find_json_problem(text)->text(); };
  EXPECT_EQ(problem("{\"a\" 1}"), "line 1, column 6: expected ':' after the key, found '1'");
  EXPECT_EQ(problem("{\n  a: 1}"), "line 2, column 3: expected a key in double quotes or '}', found 'a'");
  EXPECT_EQ(problem("{\"a\": 1,}"), "line 1, column 9: expected a key in double quotes, found '}'");
  EXPECT_EQ(problem("[1 2]"), "line 1, column 4: expected ',' or ']', found '2'");
  EXPECT_EQ(problem("{\"a\": \"b"), "line 1, column 7: a string starts here but does not end");
  EXPECT_EQ(problem("\"a\nb\""),
            "line 1, column 3: expected an escape such as \\n in a string, found the control character 0x0a");
  EXPECT_EQ(problem("\"\\q\""),
            "line 1, column 3: expected one of \" \\ / b f n r t u after a backslash, found 'q'");
  EXPECT_EQ(problem("\"\\u12g4\""),
            "line 1, column 6: expected four hexadecimal digits after \\u, found 'g4'");
  EXPECT_EQ(problem("\"\xFF\""), "line 1, column 2: expected UTF-8, found byte 0xff");
  EXPECT_EQ(problem("[1.]"), "line 1, column 4: expected a digit, found ']'");
  EXPECT_EQ(problem("<html>"), "line 1, column 1: expected a value, found '<'");
  EXPECT_EQ(problem(std::string(1'000'000, '[')),
            "line 1, column 1000001: expected a value or ']', found the end of the text");
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
