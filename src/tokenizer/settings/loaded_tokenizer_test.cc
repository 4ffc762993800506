// Ids and texts are those of AutoTokenizer of Transformers 5.24 for the same folders.
#include "tokenizer/settings/loaded_tokenizer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <optional>

#include "expect_error.h"
#include "io/file.h"
#include "support/test_tokenizer.h"
#include "test_folder.h"
#include "test_paths.h"
#include "tokenizer/tokenizer.h"

namespace tessera {
namespace {

using Ids = std::vector<int32_t>;
using Names = std::vector<std::pair<std::string, std::string>>;

Json special_token(int32_t id, const char* content) {
  return {{"id", id}, {"content", content}, {"special", true}};
}

struct FolderCase {
  const char* name;
  const char* config;
  const char* map;
  const char* added;
  const char* text;
  Ids ids;
  std::optional<int32_t> eos;

  friend void PrintTo(const FolderCase& files, std::ostream* out) { *out << files.name; }
};

class FilesBesideTokenizerTest : public testing::TestWithParam<FolderCase> {};

TEST_P(FilesBesideTokenizerTest, GiveTheIdsOfAutoTokenizer) {
  const FolderCase& files = GetParam();
  const TestFolder folder;
  Json json = byte_tokenizer();
  json["added_tokens"] = Json::array({special_token(256, "<s>"), special_token(257, "</s>")});
  folder.write("tokenizer.json", json.dump());
  folder.write("tokenizer_config.json", files.config);
  if (*files.map != 0) folder.write("special_tokens_map.json", files.map);
  if (*files.added != 0) folder.write("added_tokens.json", files.added);
  const Tokenizer tokenizer = Tokenizer::open(folder.path());
  EXPECT_EQ(tokenizer.encode(files.text), files.ids);
  EXPECT_EQ(tokenizer.eos_id(), files.eos);
}

INSTANTIATE_TEST_SUITE_P(
    All, FilesBesideTokenizerTest,
    testing::Values(
        FolderCase{"Decoder",
                   R"({"bos_token":"<s>","added_tokens_decoder":{"258":{"content":"<T>","lstrip":true,
                       "normalized":false,"rstrip":false,"single_word":false,"special":true}}})",
                   "",
                   "",
                   "a <T>b",
                   {97, 258, 98},
                   {}},
        FolderCase{"FlagsOfTheDecoder",
                   R"({"added_tokens_decoder":{"256":{"content":"<s>","rstrip":true,"special":true}}})",
                   "",
                   "",
                   "<s> a",
                   {256, 97},
                   {}},
        FolderCase{"ADecoderHidesTheMap",
                   R"({"eos_token":"</s>","added_tokens_decoder":{"257":{"content":"</s>","special":true}}})",
                   R"({"eos_token":"<s>","additional_special_tokens":["<T>"]})",
                   "",
                   "a<T>",
                   {97, 60, 84, 62},
                   257},
        FolderCase{"TheMapWins",
                   R"({"eos_token":"</s>","additional_special_tokens":["<B>"]})",
                   R"({"eos_token":"<s>","additional_special_tokens":["<A>"]})",
                   "",
                   "<A><B>",
                   {60, 65, 62, 258},
                   256},
        FolderCase{"TheMapAlone",
                   "{}",
                   R"({"eos_token":"</s>","additional_special_tokens":["<A>"]})",
                   "",
                   "<A>",
                   {258},
                   257},
        FolderCase{
            "Additional", R"({"additional_special_tokens":["<B>","<A>"]})", "", "", "<A><B>", {259, 258}, {}},
        FolderCase{"ExtraBeforeAdditional",
                   R"({"extra_special_tokens":["<A>"],"additional_special_tokens":["<B>"]})",
                   "",
                   "",
                   "<A><B>",
                   {258, 60, 66, 62},
                   {}},
        FolderCase{"ExtraByName",
                   R"({"extra_special_tokens":{"z_token":"<Z>","a_token":"<A>"}})",
                   "",
                   "",
                   "<A><Z>",
                   {259, 258},
                   {}},
        FolderCase{
            "OwnNames", R"({"image_token":"<I>","eos_token":"<E>"})", "", "", "<I><E>", {259, 258}, 258},
        FolderCase{"BosIsAdded",
                   R"({"bos_token":"<new>","eos_token":"</s>"})",
                   "",
                   "",
                   "a<new></s>",
                   {97, 258, 257},
                   257},
        FolderCase{"ATokenOfTheVocabulary", R"({"eos_token":"a"})", "", "", "aba", {97, 98, 97}, 97},
        FolderCase{"AddedTokensJson",
                   R"({"bos_token":"<b>"})",
                   "",
                   R"({"<c>":259,"<b>":258})",
                   "<b><c>",
                   {258, 259},
                   {}},
        FolderCase{"SplitSpecialTokens",
                   R"({"split_special_tokens":true,"eos_token":"</s>"})",
                   "",
                   "",
                   "</s>",
                   {60, 47, 115, 62},
                   257},
        FolderCase{"TheSameTextWithOtherFlags",
                   R"({"eos_token":"<E>","pad_token":{"__type":"AddedToken","content":"<E>","lstrip":true,
                       "normalized":false,"rstrip":false,"single_word":false,"special":true}})",
                   "",
                   "",
                   "a <E>",
                   {97, 258},
                   258},
        FolderCase{"AddBosHasNoEffect",
                   R"({"tokenizer_class":"LlamaTokenizer","bos_token":"<s>","eos_token":"</s>",
                       "add_bos_token":true,"add_eos_token":true})",
                   "",
                   "",
                   "a",
                   {97},
                   257},
        FolderCase{"AddPrefixSpaceHasNoEffect", R"({"add_prefix_space":true})", "", "", "a", {97}, {}}),
    [](const auto& instance) { return instance.param.name; });

class LoadedTokenizerTest : public testing::Test {
 protected:
  // The warnings printed when the folder is opened.
  std::string warnings(const std::string& config) {
    folder_.write("tokenizer_config.json", config);
    testing::internal::CaptureStderr();
    Tokenizer::open(folder_.path());
    return testing::internal::GetCapturedStderr();
  }
  void write(const Json& json) { folder_.write("tokenizer.json", json.dump()); }

  TestFolder folder_;
};

// SentencePiece's alphabet with "a" and its word.
Json sentencepiece_tokenizer() {
  std::vector<std::string> tokens = {"<unk>", "<s>", "</s>"};
  for (int byte = 0; byte < 256; ++byte) tokens.push_back(fmt::format("<0x{:02X}>", byte));
  for (const char* token : {"\u2581", "a", "b",
                            "\u2581"
                            "a"})
    tokens.emplace_back(token);
  Json json = plain_tokenizer(tokens);
  json["model"].update({{"unk_token", "<unk>"}, {"byte_fallback", true}, {"fuse_unk", true}});
  json["model"]["merges"] = {
      "\u2581 "
      "a"};
  json["normalizer"] = Json::parse(R"({"type":"Sequence","normalizers":[{"type":"Prepend","prepend":"\u2581"},
      {"type":"Replace","pattern":{"String":" "},"content":"\u2581"}]})");
  json["decoder"] = Json::parse(R"({"type":"Sequence","decoders":[
      {"type":"Replace","pattern":{"String":"\u2581"},"content":" "},{"type":"ByteFallback"},
      {"type":"Fuse"},{"type":"Strip","content":" ","start":1,"stop":0}]})");
  json["added_tokens"] = {special_token(0, "<unk>"), special_token(1, "<s>"), special_token(2, "</s>")};
  return json;
}

TEST_F(LoadedTokenizerTest, LlamaTokenizerBuildsItsOwnPipeline) {
  write(sentencepiece_tokenizer());
  const auto ids = [&](const std::string& config) {
    folder_.write("tokenizer_config.json", R"({"eos_token":"</s>",)" + config + "}");
    const Tokenizer tokenizer = Tokenizer::open(folder_.path());
    const Ids found = tokenizer.encode(" a</s>a");
    return std::pair(found, tokenizer.decode(found, false));
  };
  const std::string llama = R"("tokenizer_class":"LlamaTokenizer")";
  EXPECT_EQ(ids(R"("tokenizer_class":"PreTrainedTokenizerFast")"),
            (std::pair(Ids{259, 262, 2, 262}, std::string(" a</s> a"))));
  EXPECT_EQ(ids(llama + R"(,"legacy":false)"), (std::pair(Ids{262, 2, 260}, std::string("a</s>a"))));
  EXPECT_EQ(ids(llama + R"(,"legacy":null)"), (std::pair(Ids{262, 2, 260}, std::string("a</s>a"))));
  EXPECT_EQ(ids(llama + R"(,"legacy":true)"), (std::pair(Ids{262, 2, 262}, std::string("a</s> a"))));
  EXPECT_EQ(ids(llama + R"(,"legacy":false,"add_prefix_space":false)"),
            (std::pair(Ids{262, 2, 260}, std::string(" a</s>a"))));
  EXPECT_EQ(Tokenizer::open(folder_.path()).named_special_tokens(),
            (Names{{"bos_token", "<s>"}, {"eos_token", "</s>"}, {"unk_token", "<unk>"}}));
  // Folders from before the setting keep the file's behaviour, with a warning.
  EXPECT_THAT(warnings("{" + llama + "}"), testing::HasSubstr("set \"legacy\": false"));
  EXPECT_EQ(ids(llama).first, (Ids{259, 262, 2, 262}));
  // A model type whose class is not taken from the folder.
  folder_.write("config.json", R"({"model_type":"mistral"})");
  EXPECT_EQ(ids(llama).first, (Ids{259, 262, 2, 262}));
  folder_.write("config.json", R"({"model_type":"phi3"})");
  EXPECT_EQ(ids(llama + R"(,"legacy":false)").first, (Ids{259, 262, 2, 262}));
}

TEST_F(LoadedTokenizerTest, WarnsOfSettingsWithoutEffect) {
  Json json = sentencepiece_tokenizer();
  json["post_processor"] = Json::parse(R"({"type":"TemplateProcessing",
      "single":[{"SpecialToken":{"id":"<s>","type_id":0}},{"Sequence":{"id":"A","type_id":0}}],
      "special_tokens":{"<s>":{"id":"<s>","ids":[1],"tokens":["<s>"]}}})");
  write(json);
  const std::string names =
      R"({"bos_token":"<s>","eos_token":"</s>","tokenizer_class":"LlamaTokenizer","legacy":false,)";
  EXPECT_EQ(warnings(names + R"("add_bos_token":true,"add_eos_token":false})"), "");
  EXPECT_THAT(warnings(names + R"("add_eos_token":true})"),
              testing::HasSubstr("add_eos_token true has no effect"));
  EXPECT_THAT(warnings(names + R"("add_bos_token":false})"),
              testing::HasSubstr("add_bos_token false has no effect"));
  EXPECT_THAT(warnings(names + R"("do_lower_case":true})"), testing::HasSubstr("do_lower_case"));
}

TEST_F(LoadedTokenizerTest, WarnsWhereTransformersBuildsAnotherTokenizer) {
  write(byte_tokenizer());
  EXPECT_EQ(warnings(R"({"tokenizer_class":"PreTrainedTokenizerFast"})"), "");
  EXPECT_THAT(warnings(R"({"tokenizer_class":"Qwen2Tokenizer"})"), testing::HasSubstr("builds another"));
  EXPECT_THAT(warnings(R"({"tokenizer_class":"GemmaTokenizer"})"), testing::HasSubstr("builds another"));
  // Any class beside a qwen2 model, but not beside a qwen3 model.
  folder_.write("config.json", R"({"model_type":"qwen3"})");
  EXPECT_EQ(warnings(R"({"tokenizer_class":"PreTrainedTokenizerFast"})"), "");
  folder_.write("config.json", R"({"model_type":"qwen2"})");
  EXPECT_THAT(warnings(R"({"tokenizer_class":"PreTrainedTokenizerFast"})"),
              testing::HasSubstr("every folder of a qwen2 model as Qwen2Tokenizer"));
}

// Folders with the files of tests/data/tokenizers, opened by the class that their settings or the model name.
TEST_F(LoadedTokenizerTest, EncodersAreOpenedByTheirClasses) {
  const auto open = [&](const char* name, const std::string& config, const std::string& model) {
    const auto source = data_folder() / "tokenizers" / name;
    folder_.write("tokenizer.json", read_text_file(source / "tokenizer.json"));
    folder_.write("config.json", model);
    return warnings(config.empty() ? read_text_file(source / "tokenizer_config.json") : config);
  };
  EXPECT_EQ(open("t5", "", "{}"), "");
  EXPECT_EQ(open("t5", R"({"extra_ids":3})", R"({"model_type":"t5"})"), "");
  const Tokenizer t5 = Tokenizer::open(folder_.path());
  EXPECT_EQ(t5.eos_id(), 1);
  EXPECT_EQ(t5.pad_id(), 0);
  EXPECT_EQ(t5.vocab_size(), 263);
  // There are three sentinels, and the class adds the others.
  EXPECT_THAT(open("t5", "{}", R"({"model_type":"mt5"})"), testing::HasSubstr("T5Tokenizer, which builds"));
  EXPECT_EQ(open("bert_uncased", "", R"({"model_type":"bert"})"), "");
  EXPECT_EQ(open("bert_uncased", "{}", R"({"model_type":"bert"})"), "");
  EXPECT_EQ(Tokenizer::open(folder_.path()).mask_id(), 4);
  EXPECT_EQ(open("bert_cased", "", "{}"), "");
  EXPECT_THAT(open("bert_cased", "{}", R"({"model_type":"bert"})"),
              testing::HasSubstr("BertTokenizer, which builds"));  // it lowers text unless told otherwise
  EXPECT_EQ(open("bert_cased", "{}", R"({"model_type":"modernbert"})"), "");
  // The pre-tokenizer is another.
  EXPECT_THAT(open("xlm_roberta", "{}", R"({"model_type":"xlm-roberta"})"),
              testing::HasSubstr("XLMRobertaTokenizer, which builds"));
  EXPECT_EQ(open("xlm_roberta", "", R"({"model_type":"xlm-roberta"})"), "");
  EXPECT_THAT(open("t5", R"({"tokenizer_class":"LlamaTokenizer"})", "{}"),
              testing::HasSubstr("LlamaTokenizer, which builds"));
}

TEST_F(LoadedTokenizerTest, XlmRobertaTokenizerIsWhatItsOwnFilesSay) {
  Json json = Json::parse(read_text_file(data_folder() / "tokenizers/xlm_roberta/tokenizer.json"));
  json["normalizer"] = json["normalizer"]["normalizers"][0];
  json["pre_tokenizer"] = Json::parse(R"({"type":"Sequence","pretokenizers":[{"type":"WhitespaceSplit"},
      {"type":"Metaspace","replacement":"\u2581","add_prefix_space":true}]})");
  write(json);
  EXPECT_EQ(warnings(R"({"tokenizer_class":"XLMRobertaTokenizer"})"), "");
  EXPECT_THAT(warnings(R"({"tokenizer_class":"XLMRobertaTokenizer","bos_token":"<pad>"})"),
              testing::HasSubstr("builds another"));
}

TEST_F(LoadedTokenizerTest, WarnsOfAModelThatIsSavedBesideIt) {
  write(byte_tokenizer());
  EXPECT_EQ(warnings("{}"), "");
  testing::internal::CaptureStderr();
  Tokenizer::check_beside(folder_.path(), "llama");
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "");
  testing::internal::CaptureStderr();
  Tokenizer::check_beside(folder_.path(), "qwen3");
  EXPECT_THAT(testing::internal::GetCapturedStderr(), testing::HasSubstr("builds another"));
}

TEST_F(LoadedTokenizerTest, Qwen2TokenizerIsWhatItsOwnFilesSay) {
  Json json = byte_tokenizer();
  json["normalizer"] = {{"type", "NFC"}};
  json["pre_tokenizer"] = Json::parse(
      R"({"type":"Sequence","pretokenizers":[{"type":"Split","behavior":"Isolated","invert":false,"pattern":
      {"Regex":"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"}},
      {"type":"ByteLevel","add_prefix_space":false,"trim_offsets":false,"use_regex":false}]})");
  json["added_tokens"] = Json::array({special_token(256, "<|endoftext|>")});
  write(json);
  folder_.write("config.json", R"({"model_type":"qwen2"})");
  EXPECT_EQ(warnings(R"({"tokenizer_class":"Qwen2Tokenizer"})"), "");
  const Tokenizer tokenizer = Tokenizer::open(folder_.path());
  EXPECT_EQ(tokenizer.eos_id(), 256);
  EXPECT_EQ(tokenizer.pad_id(), 256);
  EXPECT_EQ(tokenizer.bos_id(), std::nullopt);
}

TEST_F(LoadedTokenizerTest, APaddingTokenNeedsNoRowOfTheModel) {
  Json json = byte_tokenizer();
  json["added_tokens"] = Json::array({special_token(256, "</s>")});
  write(json);
  folder_.write("tokenizer_config.json", R"({"eos_token":"</s>","pad_token":"[PAD]"})");
  const Tokenizer tokenizer = Tokenizer::open(folder_.path());
  EXPECT_EQ(tokenizer.pad_id(), 257);
  EXPECT_EQ(tokenizer.vocab_size(), 258);
  EXPECT_EQ(tokenizer.num_model_ids(), 257);
}

TEST_F(LoadedTokenizerTest, FingerprintFollowsWhatChangesIds) {
  Json json = byte_tokenizer();
  json["added_tokens"] = Json::array({special_token(256, "</s>")});
  write(json);
  const auto fingerprint = [&](const char* config) {
    folder_.write("tokenizer_config.json", config);
    return Tokenizer::open(folder_.path()).fingerprint();
  };
  const uint64_t plain = Tokenizer::parse(json.dump(), "x").fingerprint();
  EXPECT_EQ(fingerprint(R"({"eos_token":"</s>"})"), plain);
  EXPECT_NE(fingerprint(R"({"eos_token":"<new>"})"), plain);
  EXPECT_NE(fingerprint(R"({"split_special_tokens":true})"), plain);
}

// More than 100,000 tokens; among Mistral's models only those with the expression have that many.
TEST_F(LoadedTokenizerTest, TheWrongExpressionOfMistralIsWarnedAboutOrPutRight) {
  Json json = byte_tokenizer();
  for (int64_t id = 256; id < 100'001; ++id) json["model"]["vocab"].emplace(fmt::format("x{}", id), id);
  json["pre_tokenizer"] = Json::parse(
      R"({"type":"Sequence","pretokenizers":[{"type":"Split","behavior":"Isolated","invert":false,"pattern":
      {"Regex":"[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"}},
      {"type":"ByteLevel","add_prefix_space":false,"trim_offsets":true,"use_regex":false}]})");
  json["model"]["merges"] = Json::array({"1 2"});
  json["model"]["vocab"]["12"] = 100'001;
  write(json);
  folder_.write("config.json", R"({"model_type":"mistral","transformers_version":"4.52.0"})");
  EXPECT_THAT(warnings("{}"), testing::HasSubstr("\"fix_mistral_regex\": true"));
  EXPECT_EQ(Tokenizer::open(folder_.path()).encode("12"), (Ids{100'001}));
  EXPECT_EQ(warnings(R"({"fix_mistral_regex":true})"), "");
  EXPECT_EQ(Tokenizer::open(folder_.path()).encode("12"), (Ids{'1', '2'}));
  folder_.write("config.json", R"({"model_type":"mistral","transformers_version":"5.0.0"})");
  EXPECT_EQ(warnings(R"({"fix_mistral_regex":false})"), "");
}

TEST_F(LoadedTokenizerTest, OtherFormsOfTokenizersAreNamedWithTheWayToConvertThem) {
  expect_error(ExitCode::kNoInput, {"tokenizer.json"}, [&] { Tokenizer::open(folder_.path()); });
  EXPECT_FALSE(Tokenizer::open_if_any(folder_.path()));
  folder_.write("vocab.json", "{}");
  folder_.write("merges.txt", "");
  expect_error(ExitCode::kNoInput, {"only vocab.json and merges.txt", "save_pretrained"},
               [&] { Tokenizer::open(folder_.path()); });
  folder_.write("tokenizer.model", "");
  expect_error(ExitCode::kNoInput, {"only tokenizer.model", "save_pretrained"},
               [&] { Tokenizer::open(folder_.path()); });
}

}  // namespace
}  // namespace tessera
