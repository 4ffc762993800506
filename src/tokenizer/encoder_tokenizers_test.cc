// Unigram and WordPiece. Expected values are those of Hugging Face tokenizers 0.23.3, from
// tests/data/make_encoder_tokenizers.py or one call each.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <map>
#include <random>

#include "base/base64.h"
#include "expect_error.h"
#include "io/file.h"
#include "support/test_tokenizer.h"
#include "test_paths.h"
#include "tokenizer/model/prefix_trie.h"
#include "tokenizer/pipeline/charsmap.h"
#include "tokenizer/pipeline/normalizer.h"
#include "tokenizer/regex/graphemes.h"
#include "tokenizer/settings/tokenizer_file.h"
#include "tokenizer/tokenizer.h"

namespace tessera {
namespace {

using Json = nlohmann::json;
using Ids = std::vector<int32_t>;
using ::testing::ElementsAre;

Tokenizer parse_tokenizer(const Json& json) { return Tokenizer::parse(json.dump(), "test.json"); }

class EncoderTokenizer : public ::testing::TestWithParam<std::string> {
 protected:
  std::filesystem::path folder() const { return data_folder() / "tokenizers" / GetParam(); }
  Tokenizer reference() const {
    return Tokenizer::parse(read_text_file(folder() / "tokenizer.json"), "reference", {.reference = true});
  }
};

TEST_P(EncoderTokenizer, GivesTheIdsAndTextsOfTokenizers) {
  const Tokenizer tokenizer = Tokenizer::open(folder());
  const Tokenizer slow = reference();
  const auto vectors = Json::parse(read_text_file(folder() / "vectors.json"));
  ASSERT_GT(vectors.size(), 40u);
  for (const auto& vector : vectors) {
    const auto text = vector["text"].get<std::string>();
    const auto ids = vector["ids"].get<Ids>();
    EXPECT_EQ(tokenizer.encode(text), ids) << '"' << text << '"';
    EXPECT_EQ(slow.encode(text), ids) << '"' << text << '"';
    EXPECT_EQ(tokenizer.decode(ids), vector["decoded"].get<std::string>()) << '"' << text << '"';
    EXPECT_EQ(tokenizer.decode(ids, /*skip_special_tokens=*/false),
              vector["with_special"].get<std::string>());
    StreamDecoder decoder(tokenizer);
    std::string joined;
    for (const int32_t id : ids) joined += decoder.push(id);
    EXPECT_EQ(joined + decoder.finish(), vector["decoded"].get<std::string>());
  }
}

TEST_P(EncoderTokenizer, FastAndReferencePathsAgreeOnRandomText) {
  const Tokenizer tokenizer = Tokenizer::open(folder());
  const Tokenizer slow = reference();
  std::mt19937 random(13);
  for (int i = 0; i < 500; ++i) {
    const std::string sample = random_unicode(random, 20);
    ASSERT_EQ(tokenizer.encode(sample), slow.encode(sample)) << "text " << i << ": " << sample;
  }
}

// A cut lies where the bytes of the tokens before it end.
TEST_P(EncoderTokenizer, FindsPlacesOfTheTextAmongItsTokens) {
  const Tokenizer tokenizer = Tokenizer::open(folder());
  const std::string text = "the licence and the work";
  Ids ids;
  std::vector<TokenCut> cuts;
  const std::vector<int64_t> places = {0, 12, 16};  // before "the", " and", "the"
  tokenizer.encode(text, /*add_special_tokens=*/false, {.cuts = places, .barriers = {}}, &ids, &cuts);
  ASSERT_EQ(cuts.size(), 3u);
  EXPECT_EQ(cuts[0].token, 0);
  const auto num_before = [&](size_t size) {
    return std::ssize(tokenizer.encode(text.substr(0, size), /*add_special_tokens=*/false));
  };
  EXPECT_EQ(cuts[1].token, num_before(11));
  EXPECT_EQ(cuts[2].token, num_before(15));
}

INSTANTIATE_TEST_SUITE_P(All, EncoderTokenizer,
                         ::testing::Values("t5", "xlm_roberta", "unigram_bytes", "bert_uncased",
                                           "bert_cased"),
                         [](const auto& instance) { return instance.param; });

TEST(EncoderTokenizers, KnowTheirSpecialTokens) {
  const Tokenizer bert = Tokenizer::open(data_folder() / "tokenizers" / "bert_cased");
  EXPECT_EQ(bert.pad_id(), 0);
  EXPECT_EQ(bert.cls_id(), 2);
  EXPECT_EQ(bert.sep_id(), 3);
  EXPECT_EQ(bert.mask_id(), 4);
  EXPECT_EQ(bert.eos_id(), std::nullopt);
  const Tokenizer xlm = Tokenizer::open(data_folder() / "tokenizers" / "xlm_roberta");
  EXPECT_EQ(xlm.cls_id(), xlm.bos_id());
  EXPECT_EQ(xlm.sep_id(), 2);
  EXPECT_EQ(xlm.mask_id(), xlm.token_to_id("<mask>"));
}

// --- Unigram ---

Json unigram(const Json& vocab, const Json& unk_id, bool byte_fallback = false) {
  Json json = plain_tokenizer({});
  json["model"] = {
      {"type", "Unigram"}, {"unk_id", unk_id}, {"vocab", vocab}, {"byte_fallback", byte_fallback}};
  return json;
}

TEST(UnigramModel, TakesTheMostProbablePathAndJoinsUnknownCharacters) {
  const Json vocab = Json::parse(R"([["<unk>",0],["a",0],["b",0],["c",0],["d",0],["cd",1],["ab",2],["abc",5],
                                     ["abcd",10]])");
  EXPECT_EQ(parse_tokenizer(unigram(vocab, 0)).encode("abcdacdxx"), (Ids{8, 1, 5, 0}));
  EXPECT_EQ(parse_tokenizer(unigram(vocab, 0)).encode("xyaxé"), (Ids{0, 1, 0}));
  // Text that spells the unknown token joins its neighbours.
  EXPECT_EQ(parse_tokenizer(unigram(vocab, 0)).encode("x<unk>ya"), (Ids{0, 1}));
}

TEST(UnigramModel, JoinedUnknownCharactersMayBeAToken) {
  // Two unknown characters, at 90 each, are better than "xy".
  const Json vocab = Json::parse(R"([["<unk>",100],["a",100],["xy",100]])");
  EXPECT_EQ(parse_tokenizer(unigram(vocab, 0)).encode("xya"), (Ids{2, 1}));
  EXPECT_EQ(parse_tokenizer(unigram(vocab, 0)).encode("yxa"), (Ids{0, 1}));
}

TEST(UnigramModel, ByteFallbackNeedsTheTokensOfAllBytes) {
  const Json vocab = Json::parse(R"([["<unk>",0],["a",-1],["<0xC3>",-2],["<0xA9>",-2]])");
  EXPECT_EQ(parse_tokenizer(unigram(vocab, 0, true)).encode("a\xC3\xA9"), (Ids{1, 2, 3}));
  EXPECT_EQ(parse_tokenizer(unigram(vocab, 0, true)).encode("a\xC3\xA9x"), (Ids{1, 0}));  // joined with an x
  EXPECT_EQ(parse_tokenizer(unigram(vocab, 0, true)).encode("a\xC3\xA9xa\xC3\xA9"), (Ids{1, 0, 1, 2, 3}));
}

TEST(UnigramModel, WithoutUnknownTokenRefusesWhatTheVocabularyLacks) {
  const Json vocab = Json::parse(R"([["a",-1],["b",-2]])");
  const Tokenizer tokenizer = parse_tokenizer(unigram(vocab, nullptr));
  EXPECT_EQ(tokenizer.encode("ab"), (Ids{0, 1}));
  expect_error(ExitCode::kBadData, {"test.json: model", "\"c\"", "unk_id"}, [&] { tokenizer.encode("ac"); });
}

// The first of equal paths: later ones must be better.
TEST(UnigramModel, AgreesWithTheDefinitionOnRandomVocabularies) {
  std::mt19937 random(5);
  const std::vector<std::string> characters = {"a", "b", "é", "\u2581", "\U0001f600", "z"};
  const auto text_of = [&](size_t max_chars) {
    std::string text;
    for (size_t n = 1 + random() % max_chars; n > 0; --n) text += characters[random() % characters.size()];
    return text;
  };
  for (int round = 0; round < 30; ++round) {
    std::map<std::string, std::pair<int32_t, double>> tokens;
    Json vocab = Json::array({Json::array({"<unk>", 0.0})});
    double lowest = 0;
    for (int i = 0; i < 40; ++i) {
      const std::string token = text_of(4);
      const double score = -static_cast<double>(random() % 7) / 4;  // many equal sums
      if (!tokens.emplace(token, std::pair(static_cast<int32_t>(vocab.size()), score)).second) continue;
      vocab.push_back(Json::array({token, score}));
      lowest = std::min(lowest, score);
    }
    const Tokenizer tokenizer = parse_tokenizer(unigram(vocab, 0));
    for (int i = 0; i < 40; ++i) {
      const std::string text = text_of(12);
      struct Best {
        double score = -std::numeric_limits<double>::infinity();
        size_t begin = 0;
        int32_t id = 0;
      };
      std::vector<Best> best(text.size() + 1);
      best[0].score = 0;
      for (size_t begin = 0; begin < text.size(); begin += static_cast<size_t>(utf8_size(text[begin]))) {
        const size_t one = begin + static_cast<size_t>(utf8_size(text[begin]));
        for (size_t end = begin + 1; end <= text.size(); ++end) {
          const auto token = tokens.find(text.substr(begin, end - begin));
          if (token == tokens.end() && end != one) continue;
          const auto [id, score] = token == tokens.end() ? std::pair(0, lowest - 10) : token->second;
          if (best[begin].score + score > best[end].score) best[end] = {best[begin].score + score, begin, id};
        }
      }
      Ids expected;
      for (size_t at = text.size(); at > 0; at = best[at].begin) {
        if (best[at].id != 0 || expected.empty() || expected.back() != 0) expected.push_back(best[at].id);
      }
      std::ranges::reverse(expected);
      ASSERT_EQ(tokenizer.encode(text), expected) << "round " << round << ": " << text;
    }
  }
}

TEST(UnigramModel, ReadsScoresAsSerdeJsonDoes) {
  const auto score = [](const std::string& number) {
    const std::string json = R"({"model":{"vocab":[["a",)" + number + "]]}}";
    return parse_tokenizer_file(json, "test.json").tables.scores.at(0);
  };
  // The last digits of the first four are not those of the nearest double.
  EXPECT_EQ(score("-2.0154635906219482"), -2.015463590621948);
  EXPECT_EQ(score("-9.773894309997559"), -9.77389430999756);
  EXPECT_EQ(score("-11.830850601196289"), -11.830850601196287);
  EXPECT_EQ(score("123456789012345678901"), 1.2345678901234567e+20);
  EXPECT_EQ(score("-12345678901234567890123.5"), -1.2345678901234568e+22);
  EXPECT_EQ(score("1844674407370955161.55"), 1.8446744073709553e+18);
  EXPECT_EQ(score("-0.00000000000000000000000123456789012345678901234"), -1.2345678901234567e-24);
  EXPECT_EQ(score("-12345678901234567890.25e-5"), -123456789012345.67);
  EXPECT_EQ(score("1e-320"), 1e-320);
  EXPECT_EQ(score("2.5E+2"), 250);
  EXPECT_EQ(score("-0.1e3"), -100);
  EXPECT_EQ(score("-3"), -3);
}

TEST(UnigramModel, RefusesBrokenVocabularies) {
  const auto refuses = [](const char* vocab, const std::vector<std::string>& parts) {
    Json json = unigram(Json::array(), 0);
    std::string text = json.dump();
    text.replace(text.find("[]", text.find("\"vocab\"")), 2, vocab);
    expect_error(ExitCode::kBadData, parts, [&] { Tokenizer::parse(text, "test.json"); });
  };
  refuses(R"([["a"]])", {"model.vocab[0]", "a token and its score"});
  refuses(R"([["a",-1],["b",-1,2]])", {"model.vocab[1]"});
  refuses(R"([["a","b"]])", {"model.vocab[0]"});
  refuses(R"([[-1,"a"]])", {"model.vocab[0]"});
  refuses(R"(["a"])", {"model.vocab[0]", "\"a\""});
  refuses(R"([["a",null]])", {"model.vocab[0]"});
  refuses(R"([["a",[1]]])", {"model.vocab[0]"});
  refuses(R"([{"a":1}])", {"model.vocab[0]"});
  refuses(R"({"a":0})", {"model.vocab", "a list of tokens and scores"});
  refuses("[]", {"model.unk_id"});
  refuses(R"([["a",-1],["a",-2]])", {"\"a\"", "twice"});
  expect_error(ExitCode::kBadData, {"model.unk_id", "from 0 to 0"},
               [] { parse_tokenizer(unigram(Json::parse(R"([["a",-1]])"), 1)); });
  Json bpe = plain_tokenizer({"a"});
  bpe["model"]["vocab"] = Json::parse(R"([["a",-1]])");
  expect_error(ExitCode::kBadData, {"model.vocab", "an object of tokens and ids"},
               [&] { parse_tokenizer(bpe); });
}

TEST(UnigramModel, IsKnownByItsVocabularyInOldFiles) {
  Json json = unigram(Json::parse(R"([["<unk>",0],["a",-1]])"), 0);
  json["model"].erase("type");
  EXPECT_EQ(parse_tokenizer(json).encode("ab"), (Ids{1, 0}));
}

TEST(PrefixTrie, FindsTheTokensOfRandomVocabulariesAndNoOthers) {
  for (const uint32_t seed : {1u, 2u, 3u}) {
    std::mt19937 random(seed);
    const uint32_t alphabet = seed == 1 ? 2 : seed == 2 ? 30 : 256;
    const auto draw = [&] {
      std::string text;
      for (uint32_t n = random() % 7; n > 0; --n) text += static_cast<char>(random() % alphabet);
      return text;
    };
    std::map<std::string, int32_t> expected;
    ModelTables tables;
    for (int i = 0; i < 3000; ++i) {
      const std::string token = draw();
      if (!expected.emplace(token, i).second) continue;
      tables.tokens.push_back(
          {static_cast<uint32_t>(tables.text.size()), static_cast<uint32_t>(token.size()), i});
      tables.text += token;
    }
    expected.erase("");
    const PrefixTrie trie(tables);
    for (int i = 0; i < 10'000; ++i) {
      const std::string text = draw();
      const uint32_t node = trie.descend(text);
      const auto token = expected.find(text);
      const bool is_token = token != expected.end();
      const auto longer = expected.lower_bound(text);
      if (!text.empty()) {
        ASSERT_EQ(node != PrefixTrie::kNone, longer != expected.end() && longer->first.starts_with(text));
      }
      ASSERT_EQ(node == PrefixTrie::kNone ? -1 : trie.id(node), is_token ? token->second : -1);
    }
  }
  EXPECT_EQ(PrefixTrie(ModelTables{}).descend("a"), PrefixTrie::kNone);
}

// --- WordPiece ---

Json word_piece(const std::vector<std::string>& tokens) {
  Json json = plain_tokenizer(tokens);
  json["pre_tokenizer"] = {{"type", "BertPreTokenizer"}};
  json["model"] = {{"type", "WordPiece"},
                   {"unk_token", "[UNK]"},
                   {"continuing_subword_prefix", "##"},
                   {"max_input_chars_per_word", 5},
                   {"vocab", json["model"]["vocab"]}};
  return json;
}

TEST(WordPieceModel, TakesTheLongestTokensFromTheLeft) {
  Json json = word_piece({"[UNK]", "a", "ab", "##c", "##cd", "##é", "##"});
  const Tokenizer tokenizer = parse_tokenizer(json);
  EXPECT_EQ(tokenizer.encode("abcd abcé a c ac\u00e9cd abcabc"), (Ids{2, 4, 2, 3, 5, 1, 0, 1, 3, 5, 4, 0}));
  EXPECT_EQ(tokenizer.encode("accccc accé"), (Ids{0, 1, 3, 3, 5}));  // 6 characters, and 5 bytes of 4
  json["model"].erase("type");
  EXPECT_EQ(parse_tokenizer(json).encode("abcd"), (Ids{2, 4}));
  json["model"]["continuing_subword_prefix"] = "";
  EXPECT_EQ(parse_tokenizer(json).encode("aba"), (Ids{2, 1}));
  json["model"]["continuing_subword_prefix"] = "@@";
  EXPECT_EQ(parse_tokenizer(json).encode("ab aba"), (Ids{2, 0}));
}

TEST(WordPieceModel, NeedsTheUnknownTokenOnlyForUnknownWords) {
  const Tokenizer tokenizer = parse_tokenizer(word_piece({"a"}));
  EXPECT_EQ(tokenizer.encode("a a"), (Ids{0, 0}));
  expect_error(ExitCode::kBadData, {"test.json: model", "\"b\"", "[UNK]"}, [&] { tokenizer.encode("a b"); });
  Json json = word_piece({"a"});
  json["model"].erase("unk_token");
  expect_error(ExitCode::kBadData, {"model.unk_token"}, [&] { parse_tokenizer(json); });
}

// --- characters ---

std::string normalized_by(std::string_view json, std::string_view text) {
  const TestNode node(json);
  NormalizedText value{std::string(text)};
  make_normalizer(node.node())->apply(&value);
  return value.text;
}

std::string bert(const std::string& settings, std::string_view text) {
  return normalized_by(R"({"type":"BertNormalizer",)" + settings + "}", text);
}

TEST(BertNormalizer, DoesEachOfItsFourSteps) {
  const std::string_view text = "\u00c9\t\u3000\u0001\u200d\uE000\uFFFD\u6f22\u304b";
  EXPECT_EQ(
      bert(R"("clean_text":true,"handle_chinese_chars":false,"strip_accents":false,"lowercase":false)", text),
      "\u00c9  \u6f22\u304b");
  EXPECT_EQ(bert(R"("clean_text":false,"handle_chinese_chars":true,"strip_accents":false,"lowercase":false)",
                 "a\u6f22\u304b"),
            "a \u6f22 \u304b");
  EXPECT_EQ(bert(R"("clean_text":false,"handle_chinese_chars":false,"strip_accents":true,"lowercase":false)",
                 "\u00c9\u0301"),
            "E");
  EXPECT_EQ(bert(R"("clean_text":false,"handle_chinese_chars":false,"strip_accents":null,"lowercase":true)",
                 "\u00c9\u0130"),
            "ei");
  EXPECT_EQ(bert(R"("clean_text":false,"handle_chinese_chars":false,"strip_accents":false,"lowercase":true)",
                 "\u00c9"),
            "\u00e9");
}

TEST(Normalizer, PropertiesAreThoseOfTheUnicodeVersionOfTokenizers) {
  const char* strip = R"({"type":"StripAccents"})";
  EXPECT_EQ(normalized_by(strip, "e\u0301\u0903\u20dd"), "e");
  EXPECT_EQ(normalized_by(strip, "\u1cf2\u07fd"), "\u07fd");  // a mark until Unicode 11; one since Unicode 11
  EXPECT_EQ(normalized_by(R"({"type":"NFKC"})", "\u32fe\u32ff"), "\u30f2\u32ff");  // Unicode 12.1
  EXPECT_EQ(normalized_by(R"({"type":"NFKC"})", "\ufb01\u32ff\ufb01"), "fi\u32fffi");
  EXPECT_EQ(normalized_by(R"({"type":"Nmt"})", "a\u0001\u200b\u2581\u0085"), "a  \u0085");
}

TEST(Graphemes, FollowTheRules) {
  const auto sizes = [](std::string_view text) {
    std::vector<int64_t> out;
    for (; !text.empty(); text.remove_prefix(static_cast<size_t>(out.back())))
      out.push_back(grapheme_size(text));
    return out;
  };
  EXPECT_THAT(sizes("ab\r\n\n\r"), ElementsAre(1, 1, 2, 1, 1));
  EXPECT_THAT(sizes("e\u0301\u0323\t\u0301"), ElementsAre(5, 1, 2));
  EXPECT_THAT(sizes("\u0600a\u0915\u093e"), ElementsAre(3, 6));  // Prepend, SpacingMark
  EXPECT_THAT(sizes("\u1100\u1161\u11a8\uac00\u11a8\u11a8\u1100"), ElementsAre(9, 9, 3));  // Hangul
  EXPECT_THAT(sizes("\U0001f1e9\U0001f1ea\U0001f1eb"), ElementsAre(8, 4));
  EXPECT_THAT(sizes("\U0001f469\u200d\U0001f467a\u200d\U0001f467"), ElementsAre(11, 4, 4));
  EXPECT_THAT(sizes("\u00a9\ufe0f\u200d\u00a9x"), ElementsAre(10, 1));
}

// One rule, "a" to "bc": the root's offset is 2, so 'a' is at 2 ^ 0x61 and its value one offset further.
std::string one_rule(std::string_view replacements) {
  std::vector<uint32_t> units(256);
  units[0] = 2 << 10;
  units[2 ^ 'a'] = 1 << 10 | 1 << 8 | 'a';
  units[2 ^ 'a' ^ 1] = 0x80000000;
  std::string bytes;
  const auto append = [&](uint32_t value) {
    for (int shift = 0; shift < 32; shift += 8) bytes += static_cast<char>(value >> shift);
  };
  append(static_cast<uint32_t>(units.size() * 4));
  for (const uint32_t unit : units) append(unit);
  bytes += replacements;
  static constexpr std::string_view kDigits =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string text;
  uint32_t bits = 0;
  int num_bits = 0;
  for (const char c : bytes) {
    bits = bits << 8 | static_cast<unsigned char>(c);
    for (num_bits += 8; num_bits >= 6; num_bits -= 6) text += kDigits[bits >> (num_bits - 6) & 63];
  }
  if (num_bits > 0) text += kDigits[bits << (6 - num_bits) & 63];
  return text + std::string((4 - text.size() % 4) % 4, '=');
}

TEST(Charsmap, ReplacesShortClustersAsAWhole) {
  const auto map = [](const std::string& charsmap, std::string_view text) {
    return normalized_by(R"({"type":"Precompiled","precompiled_charsmap":")" + charsmap + "\"}", text);
  };
  const std::string rule = one_rule(std::string("bc\0d\0", 5));
  EXPECT_EQ(map(rule, "xax\u0301a"), "xbcx\u0301bc");
  EXPECT_EQ(map(rule, "a\u0301a\u20dd"), "bcbc");  // the marks go with it, as in tokenizers
  EXPECT_EQ(map(rule, "a\u0301\u0301\u0301"), "bc\u0301\u0301\u0301");  // 7 bytes
  EXPECT_EQ(map(one_rule(std::string("\0", 1)), "ax"), "x");
  EXPECT_EQ(map(one_rule(""), "ax"), "x");  // the value is the end of the replacements
}

TEST(Charsmap, RefusesWhatIsNone) {
  const auto refuses = [](const std::string& charsmap, const char* part) {
    const TestNode node(R"({"type":"Precompiled","precompiled_charsmap":")" + charsmap + "\"}");
    expect_error(ExitCode::kBadData, {"precompiled_charsmap", part}, [&] { make_normalizer(node.node()); });
  };
  refuses("?", "base64");
  refuses("", "double array");
  refuses("AAAA", "double array");
  refuses("AAAAAA==", "double array");
  refuses("/////w==", "double array");
  refuses("BAAAAAAAAAD/", "UTF-8");
  expect_error(ExitCode::kBadData, {"precompiled_charsmap"},
               [] { normalized_by(R"({"type":"Precompiled"})", ""); });
}

}  // namespace
}  // namespace tessera
