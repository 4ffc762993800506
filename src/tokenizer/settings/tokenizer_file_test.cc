// Bad files: each is rejected with one line that names the place.
#include <gtest/gtest.h>

#include <functional>

#include "expect_error.h"
#include "io/file.h"
#include "support/test_tokenizer.h"
#include "test_folder.h"
#include "tokenizer/tokenizer.h"

namespace tessera {
namespace {

using Json = nlohmann::json;

void refuses(ExitCode code, const std::vector<std::string>& fragments,
             const std::function<void(Json&)>& change) {
  Json json = byte_tokenizer({"ab", "abc"});
  json["model"]["merges"] = {"a b", "ab c"};
  change(json);
  std::vector<std::string> expected = fragments;
  expected.emplace_back("tokenizer.json");
  expect_error(code, expected, [&] { Tokenizer::parse(json.dump(), "tokenizer.json"); });
}

TEST(TokenizerFile, TheUnchangedFileIsGood) {
  Json json = byte_tokenizer({"ab", "abc"});
  json["model"]["merges"] = {Json::array({"a", "b"}), "ab c"};
  EXPECT_EQ(Tokenizer::parse(json.dump(), "x").encode("abc"), std::vector<int32_t>{257});
}

TEST(TokenizerFile, RefusesWhatIsNotJson) {
  const auto parse = [](const std::string& text) { Tokenizer::parse(text, "tokenizer.json"); };
  for (const std::string text : {"", "{", "[]", "3", "{\"model\":}", "{} x", "null"})
    expect_error(ExitCode::kBadData, {"tokenizer.json"}, [&] { parse(text); });
  expect_error(ExitCode::kBadData, {"tokenizer.json"}, [&] { parse(std::string("{}\0{}", 5)); });
  expect_error(ExitCode::kBadData, {"tokenizer.json", "UTF-8"}, [&] { parse("{\"model\":\"\xFF\"}"); });
  expect_error(ExitCode::kBadData, {"tokenizer.json"}, [&] { parse(R"({"a":"\ud800"})"); });
  expect_error(ExitCode::kBadData, {"nested deeper"},
               [&] { parse(std::string(1000000, '[') + std::string(1000000, ']')); });
}

TEST(TokenizerFile, RefusesUnknownModelsAndSettings) {
  refuses(ExitCode::kBadConfig, {"model", "WordLevel"}, [](Json& j) { j["model"]["type"] = "WordLevel"; });
  refuses(ExitCode::kBadData, {"model.unk_token"}, [](Json& j) { j["model"]["type"] = "WordPiece"; });
  refuses(ExitCode::kBadData, {"model", "expected an object"}, [](Json& j) { j.erase("model"); });
  refuses(ExitCode::kBadConfig, {"dropout"}, [](Json& j) { j["model"]["dropout"] = 0.1; });
  refuses(ExitCode::kBadConfig, {"new_rule"}, [](Json& j) { j["model"]["new_rule"] = true; });
  refuses(ExitCode::kBadConfig, {"version", "2.0"}, [](Json& j) { j["version"] = "2.0"; });
}

TEST(TokenizerFile, RefusesBrokenVocabularies) {
  refuses(ExitCode::kBadData, {"model.vocab", "expected an object"},
          [](Json& j) { j["model"].erase("vocab"); });
  refuses(ExitCode::kBadData, {"model.vocab", "expected an object"},
          [](Json& j) { j["model"]["vocab"] = Json::array(); });
  refuses(ExitCode::kBadData, {"model.vocab[\"ab\"]", "expected an id", "two"},
          [](Json& j) { j["model"]["vocab"]["ab"] = "two"; });
  refuses(ExitCode::kBadData, {"model.vocab[\"ab\"]", "1.5"},
          [](Json& j) { j["model"]["vocab"]["ab"] = 1.5; });
  refuses(ExitCode::kBadData, {"model.vocab[\"ab\"]", "-1"}, [](Json& j) { j["model"]["vocab"]["ab"] = -1; });
  refuses(ExitCode::kBadData, {"out of range"}, [](Json& j) { j["model"]["vocab"]["ab"] = 4294967296; });
  refuses(ExitCode::kBadData, {"2000000000", "out of range"},
          [](Json& j) { j["model"]["vocab"]["ab"] = 2000000000; });
  refuses(ExitCode::kBadData, {"same id 257"}, [](Json& j) { j["model"]["vocab"]["ab"] = 257; });
  expect_error(ExitCode::kBadData, {"model.vocab[\"a\"]", "twice"}, [] {
    Tokenizer::parse(R"({"model":{"type":"BPE","vocab":{"a":0,"a":1},"merges":[]}})", "x");
  });
}

TEST(TokenizerFile, RefusesBrokenMerges) {
  refuses(ExitCode::kBadData, {"model.merges", "expected a list, found nothing"},
          [](Json& j) { j["model"].erase("merges"); });
  refuses(ExitCode::kBadData, {"model.merges", "expected a list"},
          [](Json& j) { j["model"]["merges"] = "a b"; });
  refuses(ExitCode::kBadData, {"model.merges[1]", "expected two tokens"}, [](Json& j) {
    j["model"]["merges"] = {"a b", "abc"};
  });
  refuses(ExitCode::kBadData, {"model.merges[0]", "expected two tokens"},
          [](Json& j) { j["model"]["merges"] = {"a b c"}; });
  refuses(ExitCode::kBadData, {"model.merges[0]", "a list of 3"}, [](Json& j) {
    j["model"]["merges"] = {{"a", "b", "c"}};
  });
  refuses(ExitCode::kBadData, {"model.merges[0]", "7"}, [](Json& j) { j["model"]["merges"] = {7}; });
  refuses(ExitCode::kBadData, {"model.merges[0]", "an object"},
          [](Json& j) { j["model"]["merges"] = Json::array({Json::object()}); });
  refuses(ExitCode::kBadData, {"model.merges[0]", "\"zz\"", "not in the vocabulary"},
          [](Json& j) { j["model"]["merges"] = {"z z"}; });
  refuses(ExitCode::kBadData, {"model.merges[1]", "\"abcd\""}, [](Json& j) {
    j["model"]["merges"] = {"a b", "abcd a"};
  });
  refuses(ExitCode::kBadData, {"unk_token", "<unk>"}, [](Json& j) { j["model"]["unk_token"] = "<unk>"; });
}

TEST(TokenizerFile, RefusesContradictingAddedTokens) {
  const auto added = [](const char* content, int64_t id) { return Json{{"id", id}, {"content", content}}; };
  refuses(ExitCode::kBadData, {"\"ab\" has id 3", "gives it 256"},
          [&](Json& j) { j["added_tokens"] = Json::array({added("ab", 3)}); });
  refuses(ExitCode::kBadData, {"\"<s>\" has the id 256 of \"ab\""},
          [&](Json& j) { j["added_tokens"] = Json::array({added("<s>", 256)}); });
  refuses(ExitCode::kBadData, {"added_tokens[1]", "contradicts"}, [&](Json& j) {
    j["added_tokens"] = {added("x", 300), added("y", 300)};
  });
  refuses(ExitCode::kBadData, {"added_tokens[0].id"},
          [&](Json& j) { j["added_tokens"] = Json::array({added("x", -3)}); });
  refuses(ExitCode::kBadData, {"added_tokens[0].id"}, [&](Json& j) {
    j["added_tokens"] = {{{"content", "x"}}};
  });
  refuses(ExitCode::kBadData, {"added_tokens[0].special"}, [&](Json& j) {
    j["added_tokens"] = {{{"content", "x"}, {"id", 300}, {"special", 1}}};
  });
}

TEST(TokenizerFile, RefusesComponentsByName) {
  refuses(ExitCode::kBadConfig, {"pre_tokenizer", "UnicodeScripts"}, [](Json& j) {
    j["pre_tokenizer"] = {{"type", "UnicodeScripts"}};
  });
  refuses(ExitCode::kBadConfig, {"normalizer", "ByteLevel"}, [](Json& j) {
    j["normalizer"] = {{"type", "ByteLevel"}};
  });
  refuses(ExitCode::kBadConfig, {"post_processor", "Unknown"}, [](Json& j) {
    j["post_processor"] = {{"type", "Unknown"}};
  });
  refuses(ExitCode::kBadConfig, {"decoder", "CTC"}, [](Json& j) { j["decoder"] = {{"type", "CTC"}}; });
  refuses(ExitCode::kBadConfig, {"pre_tokenizer.pattern.Regex", "not supported"}, [](Json& j) {
    j["pre_tokenizer"] = {
        {"type", "Split"}, {"pattern", {{"Regex", "(a"}}}, {"behavior", "Isolated"}, {"invert", false}};
  });
}

TEST(TokenizerFile, ReadsSpecialTokensFromTheFolder) {
  const TestFolder folder;
  Json json = byte_tokenizer({"ab"});
  json["added_tokens"] = {{{"id", 257}, {"content", "<s>"}, {"special", true}},
                          {{"id", 258}, {"content", "</s>"}, {"special", true}}};
  folder.write("tokenizer.json", json.dump());
  EXPECT_EQ(Tokenizer::open(folder.path()).eos_id(), std::nullopt);
  folder.write("tokenizer_config.json",
               R"({"bos_token":{"content":"<s>","special":true},"pad_token":"[PAD]"})");
  folder.write("special_tokens_map.json", R"({"eos_token":"</s>","bos_token":"</s>"})");
  Tokenizer tokenizer = Tokenizer::open(folder.path());
  EXPECT_EQ(tokenizer.bos_id(), 258);  // special_tokens_map.json comes later
  EXPECT_EQ(tokenizer.eos_id(), 258);
  EXPECT_EQ(tokenizer.pad_id(), 259);
  EXPECT_EQ(tokenizer.vocab_size(), 260);
  EXPECT_EQ(tokenizer.token_to_id("<s>"), 257);
  EXPECT_EQ(tokenizer.id_to_token(256), "ab");
  folder.write("tokenizer_config.json", "[]");
  expect_error(ExitCode::kBadData, {"tokenizer_config.json"}, [&] { Tokenizer::open(folder.path()); });
  expect_error(ExitCode::kNoInput, {"missing"}, [&] { Tokenizer::open(folder / "missing"); });
  tokenizer.set_eos_token("ab");
  EXPECT_EQ(tokenizer.eos_id(), 256);
  EXPECT_EQ(error_of([&] { tokenizer.set_eos_token("abc"); }).code(), ExitCode::kBadConfig);
}

TEST(TokenizerFile, TakesWhatTokenizersTakes) {
  Json json = byte_tokenizer();
  json["model"]["vocab"]["ab"] = 300;  // ids 256 to 299 are not used
  json["model"]["merges"] = {"#version: 0.2", "a b"};
  json["model"]["dropout"] = 0.0;
  json["added_tokens"] = {{{"id", 257}, {"content", "<s>"}, {"special", true}}};
  const Tokenizer tokenizer = Tokenizer::parse(json.dump(), "x");
  EXPECT_EQ(tokenizer.encode("ab<s>"), (std::vector<int32_t>{300, 257}));
  EXPECT_EQ(tokenizer.vocab_size(), 301);
  // Ids of added tokens are counted from the size of the vocabulary.
  json["added_tokens"][0]["id"] = 280;
  EXPECT_EQ(Tokenizer::parse(json.dump(), "x").encode("<s>"), (std::vector<int32_t>{257}));
}

TEST(TokenizerFile, NormalizedAddedTokensDecodeToTheirNormalizedForm) {
  Json json = byte_tokenizer();
  json["normalizer"] = {{"type", "Lowercase"}};
  json["added_tokens"] = {{{"id", 256}, {"content", "Tool"}, {"normalized", true}},
                          {{"id", 257}, {"content", "<E>"}, {"normalized", false}}};
  const Tokenizer tokenizer = Tokenizer::parse(json.dump(), "x");
  EXPECT_EQ(tokenizer.decode(tokenizer.encode("A tool<E>")), "a tool<E>");
}

}  // namespace
}  // namespace tessera
