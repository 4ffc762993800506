#include "tokenizer/gguf_vocabulary.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <map>
#include <nlohmann/json.hpp>

#include "base/log.h"
#include "expect_error.h"
#include "io/file.h"
#include "test_folder.h"
#include "test_paths.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;
using GgufJson = nlohmann::json;

struct Described {
  std::map<std::string, GgufScalar> values;
  std::map<std::string, std::vector<GgufScalar>> lists;

  std::string text(const std::string& key) const { return std::get<std::string>(values.at(key)); }
  uint32_t id(const std::string& name) const {
    return std::get<uint32_t>(values.at("tokenizer.ggml." + name + "_token_id"));
  }
  std::string token(size_t id) const {
    return std::get<std::string>(lists.at("tokenizer.ggml.tokens").at(id));
  }
  int32_t type(size_t id) const { return std::get<int32_t>(lists.at("tokenizer.ggml.token_type").at(id)); }
  float score(size_t id) const { return std::get<float>(lists.at("tokenizer.ggml.scores").at(id)); }
};

Described describe(const fs::path& folder, int64_t vocab_size, const ModelConfig& base = {},
                   const std::vector<int64_t>& end_ids = {}) {
  ModelConfig config = base;
  config.vocab_size = vocab_size;
  Described described;
  for (const GgufField& field : gguf_vocabulary(folder, config, end_ids)) {
    if (const auto* scalar = std::get_if<GgufScalar>(&field.value)) {
      EXPECT_TRUE(described.values.emplace(field.key, *scalar).second) << field.key;
    } else {
      described.lists[field.key] = std::get<GgufArray>(field.value).values;
    }
  }
  return described;
}

fs::path toy(const char* name) { return data_folder() / "tokenizers" / name; }

// A copy of a toy tokenizer with changes.
class ChangedTokenizer {
 public:
  explicit ChangedTokenizer(const char* name)
      : json(GgufJson::parse(read_text_file(toy(name) / "tokenizer.json"))),
        config(GgufJson::parse(read_text_file(toy(name) / "tokenizer_config.json"))) {}
  const fs::path& write() const {
    folder.write("tokenizer.json", json.dump());
    folder.write("tokenizer_config.json", config.dump());
    return folder.path();
  }

  TestFolder folder;
  GgufJson json;
  GgufJson config;
};

// generation_config.json may name several ends of an answer; llama.cpp stops at eos, eot and eom.
TEST(GgufVocabulary, EveryEndOfAnAnswerHasItsPlace) {
  const Described plain = describe(toy("llama3_pattern"), 640);
  EXPECT_FALSE(plain.values.contains("tokenizer.ggml.eot_token_id"));
  const auto eos = static_cast<int64_t>(plain.id("eos"));
  const Described one = describe(toy("llama3_pattern"), 640, {}, {eos, 633, eos});
  EXPECT_EQ(one.id("eos"), eos);
  EXPECT_EQ(one.id("eot"), 633u);
  EXPECT_FALSE(one.values.contains("tokenizer.ggml.eom_token_id"));
  LogTap tap;
  const Described many = describe(toy("llama3_pattern"), 640, {}, {633, eos, 5, 6, 9999});
  EXPECT_EQ(many.id("eot"), 633u);
  EXPECT_EQ(many.id("eom"), 5u);
  EXPECT_THAT(tap.take(), testing::Contains(testing::HasSubstr("no place for a fourth token")));
  // A token that ends a message is eom, wherever it is in the list.
  ChangedTokenizer changed("llama3_pattern");
  for (auto& added : changed.json["added_tokens"])
    if (added["id"] == 633) added["content"] = "<|eom_id|>";
  changed.config["bos_token"] = nullptr;
  const Described named = describe(changed.write(), 640, {}, {633, eos, 5});
  EXPECT_EQ(named.id("eot"), 5u);
  EXPECT_EQ(named.id("eom"), 633u);
}

TEST(GgufVocabulary, AByteLevelBpeHasMergesTypesAndUnusedIds) {
  const Described found = describe(toy("llama3_pattern"), 640);
  EXPECT_EQ(found.text("tokenizer.ggml.model"), "gpt2");
  EXPECT_EQ(found.text("tokenizer.ggml.pre"), "llama-bpe");
  ASSERT_EQ(found.lists.at("tokenizer.ggml.tokens").size(), 640u);
  EXPECT_EQ(found.token(633), "<|begin_of_text|>");
  EXPECT_EQ(found.type(633), 3);
  EXPECT_EQ(found.type(5), 1);
  EXPECT_EQ(found.token(636), "[PAD636]");
  EXPECT_EQ(found.type(636), 5);
  EXPECT_EQ(found.lists.at("tokenizer.ggml.merges").size(), 376u);
  EXPECT_EQ(found.id("bos"), 633u);
  EXPECT_EQ(found.id("eos"), 634u);
  EXPECT_EQ(found.values.at("tokenizer.ggml.add_bos_token"), GgufScalar(true));
  EXPECT_EQ(found.values.at("tokenizer.ggml.add_eos_token"), GgufScalar(false));
  EXPECT_FALSE(found.values.contains("tokenizer.chat_template"));
}

TEST(GgufVocabulary, ASentencePieceBpeHasScoresInTheOrderOfItsMerges) {
  const Described found = describe(toy("sentencepiece"), 1000);
  EXPECT_EQ(found.text("tokenizer.ggml.model"), "llama");
  EXPECT_EQ(found.text("tokenizer.ggml.pre"), "default");
  EXPECT_EQ(found.values.at("tokenizer.ggml.add_space_prefix"), GgufScalar(true));
  EXPECT_EQ(found.type(0), 2);
  EXPECT_EQ(found.type(1), 3);
  EXPECT_EQ(found.token(3), "<0x00>");
  EXPECT_EQ(found.type(3), 6);
  // SentencePiece numbers the pieces it learned by descending score.
  float last = 1;
  for (size_t id = 259; id < 1000 && found.score(id) > found.score(999); ++id) {
    EXPECT_LT(found.score(id), last) << id;
    last = found.score(id);
  }
  EXPECT_EQ(found.score(259), 0.0f);
  EXPECT_LT(last, -500);
  EXPECT_EQ(found.id("unknown"), 0u);
}

TEST(GgufVocabulary, PreTokenizersAreNamedByPatternAndMerges) {
  const auto name_of_pre = [](const ChangedTokenizer& changed) {
    return describe(changed.write(), 640).text("tokenizer.ggml.pre");
  };
  EXPECT_EQ(describe(toy("gpt2"), 640).text("tokenizer.ggml.pre"), "gpt-2");
  ChangedTokenizer changed("llama3_pattern");
  changed.json["model"]["ignore_merges"] = false;
  EXPECT_EQ(name_of_pre(changed), "smaug-bpe");
  GgufJson& regex = changed.json["pre_tokenizer"]["pretokenizers"][0]["pattern"]["Regex"];
  std::string pattern = regex;
  pattern.replace(pattern.find("{1,3}"), 5, "");
  regex = pattern;
  EXPECT_EQ(name_of_pre(changed), "qwen2");
  changed.json["pre_tokenizer"]["pretokenizers"] = {
      {{"type", "Digits"}, {"individual_digits", true}},
      {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"trim_offsets", true}, {"use_regex", true}}};
  EXPECT_EQ(name_of_pre(changed), "smollm");
  changed.json["pre_tokenizer"]["pretokenizers"][0]["individual_digits"] = false;
  expect_error(ExitCode::kBadConfig, {"tokenizer.json", "pre_tokenizer that llama.cpp knows"},
               [&] { name_of_pre(changed); });
}

class KnownTokenizerTest : public testing::TestWithParam<std::array<const char*, 2>> {};

TEST_P(KnownTokenizerTest, IsRecognizedByTheIdsOfTheConvertersText) {
  const fs::path folder = shared_folder() / "data/tokenizers" / GetParam()[0];
  if (!fs::exists(folder)) GTEST_SKIP() << "no " << folder;
  // Whatever the file says of its pattern.
  TestFolder copy;
  GgufJson other = {
      {"model", {{"type", "BPE"}, {"vocab", GgufJson::object()}, {"merges", GgufJson::array()}}}};
  copy.write("tokenizer.json", other.dump());
  EXPECT_EQ(gguf_pre_tokenizer(Tokenizer::open(folder), copy / "tokenizer.json"), GetParam()[1]);
}

INSTANTIATE_TEST_SUITE_P(Shared, KnownTokenizerTest,
                         testing::Values(std::array{"llama3", "llama-bpe"}, std::array{"gpt2", "gpt-2"}),
                         [](const auto& param) { return param.param[0]; });

TEST(GgufVocabulary, EveryWayToCutALlama2TokenIsAMerge) {
  const fs::path folder = shared_folder() / "data/tokenizers/llama2";
  if (!fs::exists(folder)) GTEST_SKIP() << "no " << folder;
  testing::internal::CaptureStderr();
  const Described found = describe(folder, 32000);
  EXPECT_THAT(testing::internal::GetCapturedStderr(), testing::Not(testing::HasSubstr("ranked")));
  EXPECT_GT(found.score(260), found.score(261));
}

TEST(GgufVocabulary, TokensThatLlamaCppWouldJoinOtherwiseAreCounted) {
  ChangedTokenizer changed("sentencepiece");
  changed.json["model"]["merges"].erase(0);
  testing::internal::CaptureStderr();
  describe(changed.write(), 1000);
  EXPECT_THAT(testing::internal::GetCapturedStderr(), testing::HasSubstr("1 token cannot be ranked"));
}

TEST(GgufVocabulary, AddedTokensAreControlOrUserDefined) {
  ChangedTokenizer changed("gpt2");
  const auto add = [&](int id, const char* content) {
    changed.json["added_tokens"].push_back({{"id", id}, {"content", content}, {"special", false}});
  };
  add(633, "<think>");
  add(634, "<|tool|>");
  add(635, "\u2581\u2581");
  const Described found = describe(changed.write(), 640);
  EXPECT_EQ(found.type(633), 4);
  EXPECT_EQ(found.type(634), 3);
  EXPECT_EQ(found.token(635), "  ");
  EXPECT_EQ(found.type(635), 4);
  EXPECT_EQ(found.type(636), 5);
}

TEST(GgufVocabulary, NormalizersThatLlamaCppLacksAreWarnedAbout) {
  ChangedTokenizer changed("gpt2");
  testing::internal::CaptureStderr();
  describe(changed.write(), 640);
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "");
  changed.json["normalizer"] = {{"type", "NFC"}};
  testing::internal::CaptureStderr();
  describe(changed.write(), 640);
  EXPECT_THAT(testing::internal::GetCapturedStderr(),
              testing::HasSubstr("NFC: llama.cpp does not normalize"));
}

TEST(GgufVocabulary, HasTheTokensOfTheFilesBesideTokenizerJson) {
  ChangedTokenizer changed("gpt2");
  changed.config["extra_special_tokens"] = {"<|tool|>"};
  EXPECT_EQ(describe(changed.write(), 640).token(633), "<|tool|>");
  changed.config.erase("extra_special_tokens");
  changed.config["pad_token"] = "[PAD]";
  EXPECT_EQ(describe(changed.write(), 640).token(633), "[PAD]");
  EXPECT_FALSE(describe(changed.write(), 633).values.contains("tokenizer.ggml.padding_token_id"));
}

TEST(GgufVocabulary, SpecialTokensThatOnlyTheModelNamesAreTaken) {
  ChangedTokenizer changed("gpt2");
  changed.config = GgufJson::object();
  ModelConfig config;
  config.bos_token_id = 3;
  config.eos_token_ids = {632, 4};
  config.pad_token_id = 5;
  const Described found = describe(changed.write(), 640, config);
  EXPECT_EQ(found.id("bos"), 3u);
  EXPECT_EQ(found.id("eos"), 632u);
  EXPECT_EQ(found.id("padding"), 5u);
  EXPECT_EQ(found.values.at("tokenizer.ggml.add_bos_token"), GgufScalar(false));
}

TEST(GgufVocabulary, ChatTemplatesAreTakenFromEitherFile) {
  ChangedTokenizer changed("gpt2");
  changed.config["chat_template"] = "one";
  EXPECT_EQ(describe(changed.write(), 640).text("tokenizer.chat_template"), "one");
  changed.config["chat_template"] = {{{"name", "default"}, {"template", "two"}},
                                     {{"name", "tool use"}, {"template", "three"}}};
  const Described found = describe(changed.write(), 640);
  EXPECT_EQ(found.text("tokenizer.chat_template"), "two");
  EXPECT_EQ(found.text("tokenizer.chat_template.tool_use"), "three");
  EXPECT_EQ(found.lists.at("tokenizer.chat_templates"), std::vector<GgufScalar>{std::string("tool_use")});
  changed.folder.write("chat_template.jinja", "four");
  EXPECT_EQ(describe(changed.write(), 640).text("tokenizer.chat_template"), "four");
}

TEST(GgufVocabulary, WhatLlamaCppCannotDoIsRefused) {
  expect_error(ExitCode::kBadConfig, {"<|end_of_text|>", "634", "vocab_size 634"},
               [] { describe(toy("llama3_pattern"), 634); });
  ChangedTokenizer changed("sentencepiece");
  changed.config["tokenizer_class"] = "PreTrainedTokenizerFast";  // LlamaTokenizer has its own normalizer
  changed.json["normalizer"]["normalizers"].push_back({{"type", "NFKC"}});
  expect_error(ExitCode::kBadConfig, {"NFKC", "llama.cpp"}, [&] { describe(changed.write(), 1000); });
  ChangedTokenizer without("sentencepiece");
  without.config["tokenizer_class"] = "PreTrainedTokenizerFast";
  without.json["model"]["byte_fallback"] = false;
  expect_error(ExitCode::kBadConfig, {"byte_fallback"}, [&] { describe(without.write(), 1000); });
}

}  // namespace
}  // namespace tessera
