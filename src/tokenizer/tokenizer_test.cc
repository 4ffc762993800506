// The whole tokenizer.
#include "tokenizer/tokenizer.h"

#include <gtest/gtest.h>

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <random>
#include <thread>

#include "base/text.h"
#include "expect_error.h"
#include "io/file.h"
#include "support/test_tokenizer.h"
#include "test_paths.h"
#include "tokenizer/model/bpe_model.h"

namespace tessera {
namespace {

using Json = nlohmann::json;
using Ids = std::vector<int32_t>;

Tokenizer parse(const Json& json, bool reference = false) {
  return Tokenizer::parse(json.dump(), "test.json", {.reference = reference});
}

// --- the model ---

// The definition: merge the lowest rank anywhere, leftmost among equals, until none applies.
Ids merged_by_definition(const MergeTable& merges, Ids ids) {
  while (true) {
    MergeTable::Merge best;
    size_t at = 0;
    for (size_t i = 0; i + 1 < ids.size(); ++i) {
      const MergeTable::Merge merge = merges.find(ids[i], ids[i + 1]);
      if (merge.rank < best.rank) {
        best = merge;
        at = i;
      }
    }
    if (best.rank == MergeTable::kNoRank) return ids;
    ids[at] = best.id;
    ids.erase(ids.begin() + static_cast<std::ptrdiff_t>(at) + 1);
  }
}

TEST(WordMerger, MergesShortAndLongWordsAsTheDefinitionSays) {
  for (const uint32_t seed : {1u, 2u, 3u, 4u}) {
    std::mt19937 random(seed);
    const int32_t alphabet = 1 + static_cast<int32_t>(seed);
    constexpr int32_t kNumMerges = 60;
    MergeTable merges(kNumMerges);
    // Merges of any two tokens so far, with ranks unrelated to their lengths.
    std::vector<uint32_t> ranks(kNumMerges);
    for (uint32_t i = 0; i < kNumMerges; ++i) ranks[i] = i;
    std::shuffle(ranks.begin(), ranks.end(), random);
    for (int32_t i = 0; i < kNumMerges; ++i) {
      const auto known = static_cast<uint32_t>(alphabet + i);
      merges.insert(static_cast<int32_t>(random() % known), static_cast<int32_t>(random() % known),
                    {ranks[static_cast<size_t>(i)], alphabet + i});
    }
    WordMerger merger;
    for (const size_t size : {0, 1, 2, 3, 5, 39, 40, 41, 42, 100, 400}) {
      for (int repeat = 0; repeat < 20; ++repeat) {
        Ids ids(size);
        for (int32_t& id : ids) id = static_cast<int32_t>(random() % static_cast<uint32_t>(alphabet));
        const Ids expected = merged_by_definition(merges, ids);
        merger.run(merges, &ids);
        ASSERT_EQ(ids, expected) << "seed " << seed << ", " << size << " symbols";
      }
    }
  }
}

TEST(BpeModel, UnknownCharactersFuseOnlyWhenTold) {
  Json json = plain_tokenizer({"<unk>", "a"});
  EXPECT_EQ(parse(json).encode("xaxx"), (Ids{1}));  // no unknown token: dropped
  json["model"]["unk_token"] = "<unk>";
  EXPECT_EQ(parse(json).encode("xaxx"), (Ids{0, 1, 0, 0}));
  json["model"]["fuse_unk"] = true;
  EXPECT_EQ(parse(json).encode("xaxx"), (Ids{0, 1, 0}));
}

TEST(BpeModel, ByteFallbackNeedsTheTokensOfAllBytesOfACharacter) {
  Json json = plain_tokenizer({"<unk>", "a", "<0xC3>", "<0xA9>"});
  json["model"]["unk_token"] = "<unk>";
  json["model"]["byte_fallback"] = true;
  EXPECT_EQ(parse(json).encode("a\xC3\xA9\xC3\xA8"), (Ids{1, 2, 3, 0}));
}

TEST(BpeModel, AffixesMarkThePlaceInTheWord) {
  Json json = plain_tokenizer({"a", "##b", "##b</w>", "ab", "ab</w>", "a</w>"});
  json["model"]["continuing_subword_prefix"] = "##";
  json["model"]["end_of_word_suffix"] = "</w>";
  json["model"]["merges"] = {"a ##b</w>", "a ##b"};
  json["pre_tokenizer"] = {{"type", "WhitespaceSplit"}};
  EXPECT_EQ(parse(json).encode("ab abb a"), (Ids{4, 3, 2, 5}));
}

TEST(BpeModel, IgnoreMergesTakesWholeWordsOfTheVocabulary) {
  Json json = byte_tokenizer({"ab", "abc"});
  json["model"]["merges"] = {"a b"};
  EXPECT_EQ(parse(json).encode("abc"), (Ids{256, 'c'}));
  json["model"]["ignore_merges"] = true;
  EXPECT_EQ(parse(json).encode("abc"), (Ids{257}));
}

TEST(BpeModel, CutsBeforeMetaspaceOnlyWhereNoMergeReachesOver) {
  const std::string space = "\xE2\x96\x81";
  const std::vector<std::string> parts = {space, "a", "b", "x"};  // x is not in the vocabulary
  std::mt19937 random(3);
  for (const bool crossing : {false, true}) {
    for (const char* unknown : {"", "<unk>", "\xE2\x96\x81"}) {
      Json json = plain_tokenizer(
          {space, "a", "b", space + "a", space + space, "ab", "b" + space, "ab" + space, "<unk>"});
      json["model"]["merges"] = {space + " " + space, space + " a", "a b"};
      if (crossing) {
        json["model"]["merges"].push_back("b " + space);
        json["model"]["merges"].push_back("ab " + space);
      }
      if (*unknown != 0) json["model"]["unk_token"] = unknown;
      const Tokenizer fast = parse(json);
      const Tokenizer reference = parse(json, /*reference=*/true);
      for (int i = 0; i < 1000; ++i) {
        std::string text;
        for (size_t n = random() % 40; n > 0; --n) text += parts[random() % parts.size()];
        ASSERT_EQ(fast.encode(text), reference.encode(text)) << text << " unknown token: " << unknown;
      }
    }
  }
}

// --- encoding ---

TEST(Tokenizer, FindsSpecialTokensInsideTheText) {
  Json json = byte_tokenizer();
  json["added_tokens"] = {{{"id", 256}, {"content", "<|end|>"}, {"special", true}}};
  const Tokenizer tokenizer = parse(json);
  const Ids ids = tokenizer.encode("a<|end|>b<|end|");
  EXPECT_EQ(ids.size(), 3u + 6u);
  EXPECT_EQ(ids[1], 256);
  EXPECT_EQ(tokenizer.decode(ids, /*skip_special_tokens=*/false), "a<|end|>b<|end|");
  EXPECT_EQ(tokenizer.decode(ids), "ab<|end|");
}

TEST(Tokenizer, AddedTokensDecodeToTheirTextInAnyAlphabet) {
  // Characters of the byte-level alphabet that would otherwise stand for other bytes.
  Json json = byte_tokenizer();
  json["added_tokens"] = {{{"id", 256}, {"content", "Größe č"}}};
  const Tokenizer tokenizer = parse(json);
  const Ids ids = tokenizer.encode("Größe č é");
  EXPECT_EQ(ids[0], 256);
  EXPECT_EQ(tokenizer.decode(ids), "Größe č é");
}

TEST(Tokenizer, TakesAnyTextThatIsUtf8) {
  const Tokenizer tokenizer = parse(byte_tokenizer());
  for (const std::string& text :
       {std::string(), std::string("a\0b", 3), std::string("\xEF\xBB\xBFx"), std::string("a\r\nb")})
    EXPECT_EQ(tokenizer.decode(tokenizer.encode(text)), text);
  expect_error(ExitCode::kBadData, {"not UTF-8", "byte 3"}, [&] { tokenizer.encode("abc\xFF"); });
  expect_error(ExitCode::kBadData, {"not UTF-8", "byte 1"}, [&] { tokenizer.encode("a\xED\xA0\x80"); });
}

TEST(Tokenizer, RefusesIdsOutOfRange) {
  const Tokenizer tokenizer = parse(byte_tokenizer());
  for (const int32_t id : {-1, 256, INT32_MAX}) {
    expect_error(ExitCode::kBadData, {std::to_string(id), "0 to 255"}, [&] { tokenizer.decode(Ids{id}); });
    expect_error(ExitCode::kBadData, {std::to_string(id)}, [&] { tokenizer.id_to_token(id); });
  }
}

TEST(Tokenizer, FastAndReferencePathsAgreeOnRandomText) {
  for (const bool prefix : {false, true}) {
    Json json = byte_tokenizer({"th", "the", "Ġt", "Ġthe", "ll", "ĠĠ"});
    json["model"]["merges"] = {"t h", "th e", "Ġ t", "Ġ the", "l l", "Ġ Ġ"};
    json["pre_tokenizer"]["add_prefix_space"] = prefix;
    json["added_tokens"] = {{{"id", 262}, {"content", "<s>"}, {"special", true}, {"rstrip", true}},
                            {{"id", 263}, {"content", "<|x|>"}, {"normalized", true}, {"lstrip", true}}};
    const Tokenizer fast = parse(json);
    const Tokenizer reference = parse(json, /*reference=*/true);
    std::mt19937 random(11);
    for (int i = 0; i < 3000; ++i) {
      const std::string text = random_unicode(random, 20);
      ASSERT_EQ(fast.encode(text), reference.encode(text)) << "text " << i << ": " << text;
    }
  }
}

TEST(Tokenizer, GivesTheSameIdsFromSeveralThreads) {
  Json json = byte_tokenizer({"ab", "abc"});
  json["model"]["merges"] = {"a b", "ab c"};
  const Tokenizer tokenizer = parse(json);
  std::mt19937 random(5);
  std::vector<std::string> texts;
  for (int i = 0; i < 300; ++i) texts.push_back(random_unicode(random, 30) + " abc ab");
  std::vector<Ids> expected;
  for (const std::string& text : texts) expected.push_back(tokenizer.encode(text));
  std::vector<std::vector<Ids>> got(4);
  std::vector<std::thread> threads;
  for (auto& out : got) {
    threads.emplace_back([&] {
      for (const std::string& text : texts) out.push_back(tokenizer.encode(text));
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const auto& out : got) EXPECT_EQ(out, expected);
}

TEST(Tokenizer, FingerprintFollowsTheFile) {
  const Json json = byte_tokenizer();
  Json other = json;
  other["pre_tokenizer"]["add_prefix_space"] = true;
  EXPECT_EQ(parse(json).fingerprint(), parse(json).fingerprint());
  EXPECT_NE(parse(json).fingerprint(), parse(other).fingerprint());
}

TEST(Tokenizer, TimeGrowsWithTheLengthOfAWordNotWithItsSquare) {
  Json json = byte_tokenizer({"aa", "aaaa", "aaaaaaaa"});
  json["model"]["merges"] = {"a a", "aa aa", "aaaa aaaa"};
  const Tokenizer tokenizer = parse(json);
  // One word of 2 MB: quadratic merging would take over an hour.
  const auto begin = std::chrono::steady_clock::now();
  const Ids ids = tokenizer.encode(std::string(2'000'000, 'a'));
  EXPECT_EQ(ids, Ids(250'000, 258));
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(60));
}

// --- decoding as a stream ---

TEST(StreamDecoder, PiecesAreUtf8AndJoinToTheWhole) {
  std::vector<Json> tokenizers = {byte_tokenizer({"ab", "Ã©"})};
  Json bytes = plain_tokenizer({"<unk>", "\xE2\x96\x81", "a", "b"});
  for (int byte = 0; byte < 256; ++byte) bytes["model"]["vocab"][fmt::format("<0x{:02X}>", byte)] = 4 + byte;
  bytes["decoder"] = Json::parse(R"({"type":"Sequence","decoders":[
    {"type":"Replace","pattern":{"String":"\u2581"},"content":" "},{"type":"ByteFallback"},{"type":"Fuse"},
    {"type":"Strip","content":" ","start":1,"stop":0}]})");
  tokenizers.push_back(bytes);
  bytes["decoder"] = {{"type", "Metaspace"}, {"replacement", "\xE2\x96\x81"}};
  tokenizers.push_back(bytes);
  bytes["decoder"] = {{"type", "BPEDecoder"}, {"suffix", "a"}};
  tokenizers.push_back(bytes);
  bytes["decoder"] = nullptr;
  tokenizers.push_back(bytes);
  for (const Json& json : tokenizers) {
    const Tokenizer tokenizer = parse(json);
    std::mt19937 random(9);
    for (int i = 0; i < 500; ++i) {
      Ids ids = tokenizer.encode(random_unicode(random, 8));
      // Also random ids, which give ill-formed text.
      for (size_t n = random() % 6; n > 0; --n)
        ids.push_back(static_cast<int32_t>(random() % static_cast<uint32_t>(tokenizer.vocab_size())));
      StreamDecoder decoder(tokenizer);
      std::string joined;
      for (const int32_t id : ids) {
        const std::string piece = decoder.push(id);
        ASSERT_TRUE(is_valid_utf8(piece));
        joined += piece;
      }
      joined += decoder.finish();
      ASSERT_EQ(joined, tokenizer.decode(ids)) << json["decoder"];
    }
  }
}

TEST(StreamDecoder, GivesTextAsSoonAsItIsCertain) {
  const Tokenizer tokenizer = parse(byte_tokenizer());
  StreamDecoder decoder(tokenizer);
  const Ids ids = tokenizer.encode("a\xC3\xA9");
  EXPECT_EQ(decoder.push(ids[0]), "a");
  EXPECT_EQ(decoder.push(ids[1]), "");
  EXPECT_EQ(decoder.push(ids[2]), "\xC3\xA9");
  EXPECT_EQ(decoder.finish(), "");
}

// --- whole tokenizers, with ids computed by other programs ---

// "gpt2" is in tests/data/tokenizers, "published_gpt2" in ../shared/data/tokenizers, which may be absent.
class WholeTokenizer : public ::testing::TestWithParam<std::string> {
 protected:
  static constexpr std::string_view kPublished = "published_";

  void SetUp() override {
    if (!std::filesystem::exists(folder())) GTEST_SKIP() << "no published tokenizer at " << folder();
  }
  bool is_published() const { return GetParam().starts_with(kPublished); }
  std::filesystem::path folder() const {
    if (is_published()) return shared_folder() / "data" / "tokenizers" / GetParam().substr(kPublished.size());
    return data_folder() / "tokenizers" / GetParam();
  }
  std::filesystem::path text_file() const {
    if (is_published()) return shared_folder() / "data" / "text" / "wikitext2-valid.txt";
    return source_folder() / "docs" / "operations.md";
  }
  Tokenizer reference() const {
    return Tokenizer::parse(read_text_file(folder() / "tokenizer.json"), "reference", {.reference = true});
  }
};

TEST_P(WholeTokenizer, GivesTheExpectedIdsAndTheTextBack) {
  const Tokenizer tokenizer = Tokenizer::open(folder());
  const Tokenizer slow = reference();
  const auto vectors = Json::parse(read_text_file(folder() / "vectors.json"));
  ASSERT_GT(vectors.size(), 40u);
  for (const auto& vector : vectors) {
    const auto text = vector["text"].get<std::string>();
    const auto ids = vector["ids"].get<Ids>();
    EXPECT_EQ(tokenizer.encode(text, /*add_special_tokens=*/false), ids) << '"' << text << '"';
    EXPECT_EQ(slow.encode(text, /*add_special_tokens=*/false), ids) << '"' << text << '"';
    EXPECT_EQ(tokenizer.decode(ids), text);
  }
}

TEST_P(WholeTokenizer, FastAndReferencePathsAgreeOnFilesAndRandomText) {
  const Tokenizer tokenizer = Tokenizer::open(folder());
  const Tokenizer slow = reference();
  // Only part of the file: the reference path is slow under sanitizers.
  const std::string file = read_text_file(text_file()).substr(0, 300'000);
  const std::string text = file.substr(0, file.rfind('\n') + 1);
  EXPECT_EQ(tokenizer.encode(text), slow.encode(text));
  std::mt19937 random(13);
  for (int i = 0; i < 1000; ++i) {
    const std::string sample = random_unicode(random, 20);
    ASSERT_EQ(tokenizer.encode(sample), slow.encode(sample)) << "text " << i << ": " << sample;
  }
}

INSTANTIATE_TEST_SUITE_P(All, WholeTokenizer,
                         ::testing::Values("gpt2", "llama3_pattern", "sentencepiece", "published_gpt2",
                                           "published_llama2", "published_llama3"),
                         [](const auto& instance) { return instance.param; });

}  // namespace
}  // namespace tessera
