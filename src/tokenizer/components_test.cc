// Normalizers, pre-tokenizers, added tokens, post-processors and decoders, one by one. Expected values come
// from the unit tests and documentation of Hugging Face tokenizers where they cover the case.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "expect_error.h"
#include "support/test_tokenizer.h"
#include "tokenizer/pipeline/added_tokens.h"
#include "tokenizer/pipeline/decoder.h"
#include "tokenizer/pipeline/normalizer.h"
#include "tokenizer/pipeline/post_processor.h"
#include "tokenizer/pipeline/pre_tokenizer.h"

namespace tessera {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using Strings = std::vector<std::string>;

std::string normalized(std::string_view json, std::string_view text) {
  const TestNode node(json);
  NormalizedText value{std::string(text)};
  make_normalizer(node.node())->apply(&value);
  return value.text;
}

TEST(Normalizer, UnicodeForms) {
  EXPECT_EQ(normalized(R"({"type":"NFC"})", "e\xCC\x81"), "\xC3\xA9");
  EXPECT_EQ(normalized(R"({"type":"NFD"})", "\xC3\xA9"), "e\xCC\x81");
  EXPECT_EQ(normalized(R"({"type":"NFKC"})", "\xEF\xAC\x81\xC2\xBD"),
            "fi1\xE2\x81\x84"
            "2");
  EXPECT_EQ(normalized(R"({"type":"NFKD"})", "\xEF\xAC\x81\xC3\xA9"), "fie\xCC\x81");
  EXPECT_EQ(normalized(R"({"type":"NFC"})", ""), "");
}

TEST(Normalizer, LowercaseGoesByCharacter) {
  EXPECT_EQ(normalized(R"({"type":"Lowercase"})", "ÀB\xCE\xA3 \xC4\xB0"), "àb\xCF\x83 i\xCC\x87");
}

TEST(Normalizer, StripTakesWhitespaceOfAnyKind) {
  const std::string text = "\xE3\x80\x80 a b\t\n";
  EXPECT_EQ(normalized(R"({"type":"Strip","strip_left":true,"strip_right":true})", text), "a b");
  EXPECT_EQ(normalized(R"({"type":"Strip","strip_left":false,"strip_right":true})", text),
            "\xE3\x80\x80 a b");
  EXPECT_EQ(normalized(R"({"type":"Strip","strip_left":true,"strip_right":false})", text), "a b\t\n");
  EXPECT_EQ(normalized(R"({"type":"Strip","strip_left":true,"strip_right":true})", " \n "), "");
}

TEST(Normalizer, PrependAndReplaceInSequence) {
  const char* json = R"({"type":"Sequence","normalizers":[{"type":"Prepend","prepend":"_"},
    {"type":"Replace","pattern":{"String":" "},"content":"_"},
    {"type":"Replace","pattern":{"Regex":"x{2,}"},"content":"$"}]})";
  expect_error(ExitCode::kBadConfig, {"normalizers[2].content", "group reference"},
               [&] { normalized(json, ""); });
  const char* good = R"({"type":"Sequence","normalizers":[{"type":"Prepend","prepend":"_"},
    {"type":"Replace","pattern":{"String":" "},"content":"_"},
    {"type":"Replace","pattern":{"Regex":"x{2,}"},"content":"-"}]})";
  EXPECT_EQ(normalized(good, "a  bxxx x"), "_a__b-_x");
  EXPECT_EQ(normalized(good, ""), "");
}

TEST(Normalizer, RefusesOthersByName) {
  for (const char* type : {"ByteLevel", "Unknown"}) {
    expect_error(ExitCode::kBadConfig, {"test.json", type, "not supported"},
                 [&] { normalized(R"({"type":")" + std::string(type) + "\"}", ""); });
  }
}

Strings pieces_of(std::string_view json, std::string_view text, bool at_start = true,
                  const PreTokenizerOptions& options = {}) {
  const TestNode node(json);
  Pieces pieces;
  pieces.list.push_back({text, at_start});
  make_pre_tokenizer(node.node(), options)->apply(&pieces);
  Strings out;
  for (const Piece& piece : pieces.list) out.emplace_back(piece.text);
  return out;
}

Strings split(const std::string& pattern, const std::string& behavior, bool invert, std::string_view text) {
  return pieces_of(R"({"type":"Split","pattern":)" + pattern + R"(,"behavior":")" + behavior +
                       R"(","invert":)" + (invert ? "true}" : "false}"),
                   text);
}

TEST(Split, EveryBehaviorOfADelimiter) {
  const std::string dash = R"({"String":"-"})";
  const std::string_view text = "the-final--countdown";
  EXPECT_THAT(split(dash, "Removed", false, text), ElementsAre("the", "final", "countdown"));
  EXPECT_THAT(split(dash, "Isolated", false, text), ElementsAre("the", "-", "final", "-", "-", "countdown"));
  EXPECT_THAT(split(dash, "MergedWithPrevious", false, text),
              ElementsAre("the-", "final-", "-", "countdown"));
  EXPECT_THAT(split(dash, "MergedWithNext", false, text), ElementsAre("the", "-final", "-", "-countdown"));
  EXPECT_THAT(split(dash, "Contiguous", false, text), ElementsAre("the", "-", "final", "--", "countdown"));
  EXPECT_THAT(split(dash, "Isolated", false, "-"), ElementsAre("-"));
  EXPECT_THAT(split(dash, "Removed", false, "--"), IsEmpty());
}

TEST(Split, EveryBehaviorOfAnInvertedRegularExpression) {
  const std::string words = R"({"Regex":"\\w+|[^\\w\\s]+"})";
  const std::string_view text = "How are you doing?";
  EXPECT_THAT(split(words, "Removed", true, text), ElementsAre("How", "are", "you", "doing", "?"));
  EXPECT_THAT(split(words, "Isolated", true, text),
              ElementsAre("How", " ", "are", " ", "you", " ", "doing", "?"));
  EXPECT_THAT(split(words, "MergedWithPrevious", true, text),
              ElementsAre("How ", "are ", "you ", "doing", "?"));
  EXPECT_THAT(split(words, "MergedWithNext", true, text), ElementsAre("How", " are", " you", " doing", "?"));
  EXPECT_THAT(split(words, "Contiguous", true, text),
              ElementsAre("How", " ", "are", " ", "you", " ", "doing?"));
}

TEST(Split, KnownPatternsGiveTheSamePiecesEitherWay) {
  for (const std::string_view pattern : {kLlama3Pattern, kQwen2Pattern, kGpt2Pattern}) {
    for (const char* behavior : {"Isolated", "Removed", "MergedWithPrevious"}) {
      for (const bool invert : {false, true}) {
        const std::string json = nlohmann::json{
            {"type", "Split"},
            {"pattern", {{"Regex", pattern}}},
            {"behavior", behavior},
            {"invert", invert}}.dump();
        const std::string_view text = "We'RE here\n\n  at 12345!?\r\n ok";
        EXPECT_EQ(pieces_of(json, text), pieces_of(json, text, true, {.fast_scanner = false})) << json;
      }
    }
  }
}

TEST(ByteLevelPreTokenizer, SplitsAndWritesBytes) {
  const char* json = R"({"type":"ByteLevel","add_prefix_space":false,"trim_offsets":true,"use_regex":true})";
  EXPECT_THAT(pieces_of(json, "Hello there       dear"), ElementsAre("Hello", "Ġthere", "ĠĠĠĠĠĠ", "Ġdear"));
  EXPECT_THAT(pieces_of(json, "Hello there\nHello"), ElementsAre("Hello", "Ġthere", "Ċ", "Hello"));
  EXPECT_THAT(pieces_of(json, "i\xE2\xAD\xA2j"), ElementsAre("i", "âŃ¢", "j"));
  const char* prefix = R"({"type":"ByteLevel","add_prefix_space":true,"use_regex":false})";
  EXPECT_THAT(pieces_of(prefix, "Hello my"), ElementsAre("ĠHelloĠmy"));
  EXPECT_THAT(pieces_of(prefix, " Hello"), ElementsAre("ĠHello"));
}

TEST(MetaspacePreTokenizer, PrependsByScheme) {
  const auto metaspace = [](const std::string& settings, std::string_view text, bool at_start = true) {
    return pieces_of(R"({"type":"Metaspace","replacement":"_")" + settings + "}", text, at_start);
  };
  EXPECT_THAT(metaspace("", "Hey   friend!"), ElementsAre("_Hey", "_", "_", "_friend!"));
  EXPECT_THAT(metaspace(R"(,"prepend_scheme":"never")", "Hey friend"), ElementsAre("Hey", "_friend"));
  EXPECT_THAT(metaspace(R"(,"prepend_scheme":"first")", "Hey"), ElementsAre("_Hey"));
  EXPECT_THAT(metaspace(R"(,"prepend_scheme":"first")", "Hey", /*at_start=*/false), ElementsAre("Hey"));
  EXPECT_THAT(metaspace(R"(,"prepend_scheme":"always","split":false)", "Hey you"), ElementsAre("_Hey_you"));
  EXPECT_THAT(metaspace(R"(,"add_prefix_space":false)", "Hey"), ElementsAre("Hey"));
  EXPECT_THAT(metaspace(R"(,"str_rep":"_","add_prefix_space":true)", " Hey"), ElementsAre("_Hey"));
  expect_error(ExitCode::kBadData, {"prepend_scheme", "add_prefix_space"},
               [&] { metaspace(R"(,"add_prefix_space":false,"prepend_scheme":"always")", ""); });
  expect_error(ExitCode::kBadConfig, {"prepend_scheme", "sometimes"},
               [&] { metaspace(R"(,"prepend_scheme":"sometimes")", ""); });
}

TEST(PreTokenizer, DigitsAreAllNumbersOfUnicode) {
  EXPECT_THAT(pieces_of(R"({"type":"Digits","individual_digits":false})", "Hey 123 friend!"),
              ElementsAre("Hey ", "123", " friend!"));
  EXPECT_THAT(pieces_of(R"({"type":"Digits","individual_digits":true})", "a12\xC2\xBD\xE2\x85\xA7"),
              ElementsAre("a", "1", "2", "\xC2\xBD", "\xE2\x85\xA7"));
}

TEST(PreTokenizer, WhitespaceKeepsWordsAndTheRestApart) {
  EXPECT_THAT(pieces_of(R"({"type":"Whitespace"})", "How are you doing?!"),
              ElementsAre("How", "are", "you", "doing", "?!"));
  EXPECT_THAT(pieces_of(R"({"type":"Whitespace"})", "\n"), IsEmpty());
  EXPECT_THAT(pieces_of(R"({"type":"WhitespaceSplit"})", "Hey, man\xE3\x80\x80Good?"),
              ElementsAre("Hey,", "man", "Good?"));
}

TEST(PreTokenizer, BertSeparatesWordsAndMarksOfPunctuation) {
  EXPECT_THAT(pieces_of(R"({"type":"BertPreTokenizer"})", "Hey\xE3\x80\x80man,  $5!? \xC2\xBFno"),
              ElementsAre("Hey", "man", ",", "$", "5", "!", "?", "\xC2\xBF", "no"));
}

TEST(PreTokenizer, PunctuationIsIsolatedUnlessToldOtherwise) {
  EXPECT_THAT(pieces_of(R"({"type":"Punctuation"})", "Hey friend!  $?"),
              ElementsAre("Hey friend", "!", "  ", "$", "?"));
  EXPECT_THAT(pieces_of(R"({"type":"Punctuation","behavior":"Contiguous"})",
                        "a?!\xE3\x80\x82"
                        "b"),
              ElementsAre("a", "?!\xE3\x80\x82", "b"));
}

TEST(PreTokenizer, OnlyTheFirstPieceIsAtTheStart) {
  const char* json = R"({"type":"Sequence","pretokenizers":[{"type":"Digits","individual_digits":true},
    {"type":"Metaspace","replacement":"_","prepend_scheme":"first"}]})";
  EXPECT_THAT(pieces_of(json, "a1b"), ElementsAre("_a", "1", "b"));
}

TEST(PreTokenizer, RefusesOthersByNameAndUnknownSettings) {
  expect_error(ExitCode::kBadConfig, {"FixedLength"}, [] { pieces_of(R"({"type":"FixedLength"})", ""); });
  expect_error(ExitCode::kBadConfig, {"behavior", "Sideways"},
               [] { split(R"({"String":"-"})", "Sideways", false, ""); });
  expect_error(ExitCode::kBadConfig, {"new_setting"},
               [] { pieces_of(R"({"type":"Digits","individual_digits":true,"new_setting":3})", ""); });
  expect_error(ExitCode::kBadData, {"pretokenizers[0].type", "nothing"},
               [] { pieces_of(R"({"type":"Sequence","pretokenizers":[{}]})", ""); });
}

Strings found(const std::vector<AddedToken>& tokens, std::string_view text, bool normalized_pass = false,
              const Normalizer* normalizer = nullptr) {
  const AddedTokens added(tokens, normalizer);
  Strings out;
  for (const Segment& segment : added.find(text, normalized_pass)) {
    const std::string_view part =
        text.substr(static_cast<size_t>(segment.begin), static_cast<size_t>(segment.end - segment.begin));
    out.push_back((segment.id < 0 ? "" : std::to_string(segment.id) + "=") + std::string(part));
  }
  return out;
}

TEST(AddedTokens, TheLongestAtTheLeftmostPositionWins) {
  const std::vector<AddedToken> tokens = {
      {.id = 1, .content = "<a>"}, {.id = 2, .content = "<a><b>"}, {.id = 3, .content = "b>"}};
  EXPECT_THAT(found(tokens, "x<a><b><a>b>"), ElementsAre("x", "2=<a><b>", "1=<a>", "3=b>"));
  EXPECT_THAT(found(tokens, "<a"), ElementsAre("<a"));
  EXPECT_THAT(found(tokens, ""), IsEmpty());
}

TEST(AddedTokens, SingleWordNeedsABorderOnBothSides) {
  const std::vector<AddedToken> tokens = {{.id = 7, .content = "<mask>", .single_word = true}};
  EXPECT_THAT(found(tokens, "<mask> My <mask> A<mask> <mask>ony <mask>"),
              ElementsAre("7=<mask>", " My ", "7=<mask>", " A<mask> <mask>ony ", "7=<mask>"));
  // A combining mark is a word character.
  EXPECT_THAT(found(tokens, "<mask>, <mask>- \xE2\x97\x8C\xCC\xB0<mask>"),
              ElementsAre("7=<mask>", ", ", "7=<mask>", "- \xE2\x97\x8C\xCC\xB0<mask>"));
}

TEST(AddedTokens, StripTakesWhitespaceOnce) {
  const std::vector<AddedToken> tokens = {
      {.id = 7, .content = "<mask>", .single_word = true, .lstrip = true, .rstrip = true}};
  EXPECT_THAT(found(tokens, "Hi <mask> there\t<mask>\t<mask>\xE2\x80\x80"),
              ElementsAre("Hi", "7= <mask> ", "there", "7=\t<mask>\t", "7=<mask>\xE2\x80\x80"));
}

TEST(AddedTokens, ATokenOfWhitespaceCanBeTakenByTheOneBefore) {
  const std::vector<AddedToken> tokens = {{.id = 7, .content = "\n", .lstrip = true, .rstrip = true}};
  EXPECT_THAT(found(tokens, "a\n\nb"), ElementsAre("a", "7=\n\n", "b"));
}

TEST(AddedTokens, NormalizedOnesAreLookedForInTheirNormalizedForm) {
  const TestNode node(R"({"type":"Lowercase"})");
  const auto normalizer = make_normalizer(node.node());
  const std::vector<AddedToken> tokens = {
      {.id = 1, .content = "My", .lstrip = true, .rstrip = true, .normalized = true},
      {.id = 2, .content = "[CLS]", .special = true}};
  EXPECT_THAT(found(tokens, "[CLS] My name", false, normalizer.get()), ElementsAre("2=[CLS]", " My name"));
  EXPECT_THAT(found(tokens, " my name", true, normalizer.get()), ElementsAre("1= my ", "name"));
}

TEST(PostProcessor, TemplatesSurroundTheText) {
  const TestNode node(R"({"type":"Sequence","processors":[
    {"type":"TemplateProcessing","single":[{"SpecialToken":{"id":"<s>","type_id":0}},{"Sequence":{"id":"A","type_id":0}},
      {"SpecialToken":{"id":"<s>","type_id":0}}],"pair":[],"special_tokens":{"<s>":{"id":"<s>","ids":[1,2],"tokens":["a","b"]}}},
    {"type":"ByteLevel","trim_offsets":true},
    {"type":"TemplateProcessing","single":[{"SpecialToken":{"id":"x","type_id":0}},{"Sequence":{"id":"A","type_id":0}}],
      "pair":[],"special_tokens":{"x":{"id":"x","ids":[9],"tokens":["x"]}}}]})");
  const PostProcessor post = make_post_processor(node.node(), 10);
  EXPECT_THAT(post.before, ElementsAre(9, 1, 2));
  EXPECT_THAT(post.after, ElementsAre(1, 2));
  expect_error(ExitCode::kBadData, {"processors[2].special_tokens.x.ids[0]", "from 0 to 8"},
               [&] { make_post_processor(node.node(), 9); });
}

TEST(PostProcessor, BertAndRobertaSurroundTheText) {
  for (const char* json :
       {R"({"type":"BertProcessing","sep":["[SEP]",3],"cls":["[CLS]",2]})",
        R"({"type":"RobertaProcessing","sep":["</s>",3],"cls":["<s>",2],"trim_offsets":true,
                               "add_prefix_space":false})"}) {
    const PostProcessor post = make_post_processor(TestNode(json).node(), 10);
    EXPECT_THAT(post.before, ElementsAre(2));
    EXPECT_THAT(post.after, ElementsAre(3));
  }
}

TEST(PostProcessor, RefusesOthersByNameAndBrokenTemplates) {
  const auto make = [](const char* json) { make_post_processor(TestNode(json).node(), 10); };
  expect_error(ExitCode::kBadConfig, {"Unknown"}, [&] { make(R"({"type":"Unknown"})"); });
  expect_error(ExitCode::kBadData, {"cls"}, [&] { make(R"({"type":"RobertaProcessing"})"); });
  expect_error(ExitCode::kBadData, {"sep[1]", "from 0 to 9"},
               [&] { make(R"({"type":"BertProcessing","cls":["c",1],"sep":["s",10]})"); });
  expect_error(ExitCode::kBadData, {"sep", "a token and its id"},
               [&] { make(R"({"type":"BertProcessing","cls":["c",1],"sep":["s"]})"); });
  expect_error(ExitCode::kBadData, {"single", "once"},
               [&] { make(R"({"type":"TemplateProcessing","single":[],"pair":[],"special_tokens":{}})"); });
  expect_error(ExitCode::kBadData, {"special_tokens.<s>"}, [&] {
    make(
        R"({"type":"TemplateProcessing","single":[{"SpecialToken":{"id":"<s>","type_id":0}}],"special_tokens":{}})");
  });
}

std::string decoded(std::string_view json, const Strings& tokens) {
  const TestNode node(json);
  const auto decoders = make_decoders(node.node());
  DecodeStream stream(decoders);
  for (const std::string& token : tokens) stream.push(token);
  stream.finish();
  return stream.take();
}

TEST(Decoder, NoneJoinsWithSpaces) {
  EXPECT_EQ(decoded("null", {"a", "", "b"}), "a  b");
  EXPECT_EQ(decoded("null", {}), "");
}

TEST(Decoder, ByteLevelJoinsBytes) {
  EXPECT_EQ(decoded(R"({"type":"ByteLevel"})", {"Hello", "Ġmy", "Ã", "©", "!"}), "Hello my\xC3\xA9!");
  EXPECT_EQ(decoded(R"({"type":"ByteLevel"})", {"Ã", "a"}),
            "\xEF\xBF\xBD"
            "a");
  // A space is not in the alphabet: the token is literal.
  EXPECT_EQ(decoded(R"({"type":"ByteLevel"})", {"<|a b|>", "Ġ"}), "<|a b|> ");
}

TEST(Decoder, ByteFallbackJoinsRowsOfBytes) {
  const auto chain = [](const Strings& tokens) {
    return decoded(R"({"type":"Sequence","decoders":[{"type":"ByteFallback"},{"type":"Fuse"}]})", tokens);
  };
  EXPECT_EQ(chain({"Hey", "friend!"}), "Heyfriend!");
  EXPECT_EQ(chain({"<0x61>"}), "a");
  EXPECT_EQ(chain({"<0xE5>"}), "\xEF\xBF\xBD");
  EXPECT_EQ(chain({"<0xE5>", "<0x8f>"}), "\xEF\xBF\xBD\xEF\xBF\xBD");
  EXPECT_EQ(chain({"<0xE5>", "<0x8f>", "<0xab>", "a"}),
            "\xE5\x8F\xAB"
            "a");
  EXPECT_EQ(chain({"<0xE5>", "<0x8f>", "a"}),
            "\xEF\xBF\xBD\xEF\xBF\xBD"
            "a");
  EXPECT_EQ(chain({"<0xzz>"}), "<0xzz>");
}

TEST(Decoder, StripCutsEachToken) {
  EXPECT_EQ(decoded(R"({"type":"Strip","content":"H","start":1,"stop":0})", {"Hey", " friend!", "HHH"}),
            "ey friend!HH");
  EXPECT_EQ(decoded(R"({"type":"Strip","content":"y","start":0,"stop":1})", {"Hey", " friend!"}),
            "He friend!");
  EXPECT_EQ(decoded(R"({"type":"Strip","content":"x","start":1,"stop":2})", {"xxaxbxxx", "xx", "x"}),
            "xaxbx");
}

TEST(Decoder, ReplaceGoesTokenByToken) {
  EXPECT_EQ(decoded(R"({"type":"Replace","pattern":{"String":"ab"},"content":"-"})", {"a", "b", "xabx"}),
            "abx-x");
  EXPECT_EQ(decoded(R"({"type":"Sequence","decoders":[{"type":"Fuse"},
    {"type":"Replace","pattern":{"String":"ab"},"content":"-"}]})",
                    {"a", "b", "xabx"}),
            "-x-x");
}

TEST(Decoder, MetaspaceDropsThePrefixOfTheFirstToken) {
  EXPECT_EQ(
      decoded(R"({"type":"Metaspace","replacement":"_","prepend_scheme":"always"})", {"_Hey", "_friend!"}),
      "Hey friend!");
  EXPECT_EQ(decoded(R"({"type":"Metaspace","replacement":"_","prepend_scheme":"never"})", {"_Hey", "_you"}),
            " Hey you");
}

TEST(Decoder, BpeSuffixEndsWords) {
  EXPECT_EQ(decoded(R"({"type":"BPEDecoder","suffix":"</w>"})", {"He", "y</w>", "you</w>"}), "Hey you");
}

TEST(Decoder, WordPieceJoinsWordsAndCleansUpWithinTokens) {
  const char* plain = R"({"type":"WordPiece","prefix":"##","cleanup":false})";
  EXPECT_EQ(decoded(plain, {"##uelo", "Ara", "##új", "##o", "No", "##guera", "."}),
            "##uelo Araújo Noguera .");
  const char* cleaned = R"({"type":"WordPiece","prefix":"##","cleanup":true})";
  EXPECT_EQ(decoded(cleaned, {"it", "'", "s", ".", "'s", "n't", "?", "do not"}), "it ' s.'sn't? don't");
  EXPECT_EQ(decoded(cleaned, {}), "");
}

TEST(Decoder, RefusesOthersByName) {
  expect_error(ExitCode::kBadConfig, {"decoders[0]", "CTC"},
               [] { decoded(R"({"type":"Sequence","decoders":[{"type":"CTC"}]})", {}); });
}

// Each replacement makes ten characters of one.
TEST(Normalizer, RefusesToMultiplyTextWithoutEnd) {
  const auto chain = [](int length) {
    std::string json = R"({"type":"Sequence","normalizers":[)";
    for (int i = 0; i < length; ++i)
      json += std::string(i > 0 ? "," : "") +
              R"({"type":"Replace","pattern":{"String":"a"},"content":"aaaaaaaaaa"})";
    return json + "]}";
  };
  EXPECT_EQ(normalized(chain(3), "a").size(), 1000u);
  expect_error(ExitCode::kBadData, {"normalizer", "longer than 1.00 MiB", "Replace"},
               [&] { normalized(chain(30), "a"); });
  expect_error(ExitCode::kBadData, {"normalizer", "32 times"},
               [&] { normalized(chain(2), std::string(100'000, 'a')); });
  std::string prepends = R"({"type":"Sequence","normalizers":[{"type":"NFC"})";
  for (int i = 0; i < 60; ++i)
    prepends +=
        R"(,{"type":"Prepend","prepend":"x"},{"type":"Replace","pattern":{"Regex":"x"},"content":"xx"})";
  expect_error(ExitCode::kBadData, {"normalizer"}, [&] { normalized(prepends + "]}", "a"); });
  std::string ligatures;
  for (int i = 0; i < 50'000; ++i) ligatures += "\xEF\xB7\xBA";  // U+FDFA: 18 characters
  EXPECT_EQ(normalized(R"({"type":"NFKD"})", ligatures).size(), 11 * ligatures.size());
}

TEST(PostProcessor, RefusesThousandsOfTokensAroundAText) {
  std::string ids = "1", pieces;
  for (int i = 0; i < 99; ++i) ids += ",1";
  for (int i = 0; i < 100; ++i) pieces += R"({"SpecialToken":{"id":"x","type_id":0}},)";
  const std::string json =
      R"({"type":"TemplateProcessing","single":[)" + pieces +
      R"({"Sequence":{"id":"A","type_id":0}}],"pair":[],"special_tokens":{"x":{"id":"x","ids":[)" + ids +
      R"(],"tokens":["x"]}}})";
  expect_error(ExitCode::kBadData, {"special_tokens.x", "at most 4096 tokens"},
               [&] { make_post_processor(TestNode(json).node(), 10); });
}

}  // namespace
}  // namespace tessera
