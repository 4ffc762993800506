#include "tokenizer/training/bpe_trainer.h"

#include <gtest/gtest.h>

#include <map>
#include <nlohmann/json.hpp>
#include <random>

#include "base/error.h"
#include "io/file.h"
#include "test_folder.h"
#include "tokenizer/tokenizer.h"
#include "tokenizer/training/merge_learner.h"
#include "tokenizer/training/word_counter.h"

namespace tessera {
namespace {

using WordList = std::vector<std::pair<std::string, int64_t>>;

// The definition: count all pairs from scratch for every merge.
std::vector<std::pair<std::string, std::string>> merges_by_definition(
    const WordList& words, int64_t num_merges, const std::vector<std::string>& alphabet) {
  std::map<std::string, int32_t> ids;
  for (const std::string& token : alphabet) ids.emplace(token, static_cast<int32_t>(ids.size()));
  std::vector<std::pair<std::vector<std::string>, int64_t>> split;
  for (const auto& [word, count] : words) {
    std::vector<std::string> symbols;
    for (const char c : word) symbols.emplace_back(1, c);
    split.emplace_back(symbols, count);
  }
  std::vector<std::pair<std::string, std::string>> merges;
  while (static_cast<int64_t>(merges.size()) < num_merges) {
    std::map<std::pair<int32_t, int32_t>, int64_t> counts;
    std::map<std::pair<int32_t, int32_t>, std::pair<std::string, std::string>> names;
    for (const auto& [symbols, count] : split) {
      for (size_t i = 0; i + 1 < symbols.size(); ++i) {
        const std::pair<int32_t, int32_t> pair = {ids.at(symbols[i]), ids.at(symbols[i + 1])};
        counts[pair] += count;
        names[pair] = {symbols[i], symbols[i + 1]};
      }
    }
    const std::pair<const std::pair<int32_t, int32_t>, int64_t>* best = nullptr;
    for (const auto& entry : counts) {
      if (best == nullptr || entry.second > best->second) best = &entry;
    }
    if (best == nullptr || best->second < 2) break;
    const auto [left, right] = names.at(best->first);
    merges.emplace_back(left, right);
    ids.emplace(left + right, static_cast<int32_t>(ids.size()));
    for (auto& [symbols, count] : split) {
      std::vector<std::string> merged;
      for (size_t i = 0; i < symbols.size(); ++i) {
        if (i + 1 < symbols.size() && symbols[i] == left && symbols[i + 1] == right) {
          merged.push_back(left + right);
          ++i;
        } else {
          merged.push_back(symbols[i]);
        }
      }
      symbols = std::move(merged);
    }
  }
  return merges;
}

TEST(MergeLearner, LearnsWhatTheDefinitionSays) {
  for (const uint32_t seed : {1u, 2u, 3u, 4u, 5u, 6u}) {
    std::mt19937 random(seed);
    // Few letters make overlaps ("aaaa"), equal counts and two ways to one token common.
    std::map<std::string, int64_t> unique;
    for (int i = 0; i < 120; ++i) {
      std::string word;
      for (uint32_t length = 2 + random() % 9; length > 0; --length)
        word += static_cast<char>('a' + random() % (1 + seed));
      unique[word] += 1 + random() % 20;
    }
    const WordList words(unique.begin(), unique.end());
    const LearnedMerges learned = learn_merges(words, 256 + 60);
    const std::vector<std::string> alphabet(learned.tokens.begin(), learned.tokens.begin() + 256);
    const auto expected = merges_by_definition(words, static_cast<int64_t>(learned.merges.size()), alphabet);
    ASSERT_EQ(learned.merges.size(), expected.size()) << "seed " << seed;
    for (size_t i = 0; i < expected.size(); ++i) {
      EXPECT_EQ(learned.tokens[static_cast<size_t>(learned.merges[i].first)], expected[i].first)
          << "seed " << seed << " merge " << i;
      EXPECT_EQ(learned.tokens[static_cast<size_t>(learned.merges[i].second)], expected[i].second)
          << "seed " << seed << " merge " << i;
    }
  }
}

TEST(MergeLearner, StopsWhenNoPairOccursTwice) {
  const LearnedMerges learned = learn_merges({{"abc", 2}, {"xy", 1}}, 1000);
  ASSERT_EQ(learned.merges.size(), 2u);
  EXPECT_EQ(learned.tokens.back(), "abc");
}

TEST(WordCounter, CutsBetweenWordsOnly) {
  EXPECT_EQ(cut_between_words("one two\nthree four"), 8);
  EXPECT_EQ(cut_between_words("one\n\n  two"),
            9);  // no line break before a non-space: cut before the last character
  EXPECT_EQ(cut_between_words("a\nb\n"), 2);
  EXPECT_EQ(cut_between_words("abc"), 2);
  EXPECT_EQ(cut_between_words(""), 0);
}

std::string random_text(uint32_t seed, int64_t size_bytes) {
  std::mt19937 random(seed);
  const std::vector<std::string> parts = {"int ",    "main", "(", ")",  " {\n", "\n\n", "  ",
                                          "return ", "0;",   "é", "字", "_t ",  "123",  "++"};
  std::string text;
  while (static_cast<int64_t>(text.size()) < size_bytes) text += parts[random() % parts.size()];
  return text;
}

TEST(BpeTrainer, GivesTheSameFilesOnAnyNumberOfThreads) {
  const TestFolder folder;
  // More than one block of 4 MiB, so that the file is split.
  folder.write("a.txt", random_text(1, 9'000'000));
  folder.write("b.txt", random_text(2, 10'000));
  const BpeTrainingOptions options = {.files = {(folder / "*.txt").string()}, .vocab_size = 300};
  std::string expected;
  for (const int64_t num_threads : {1, 2, 3}) {
    ThreadPool pool(num_threads);
    const BpeTrainingResult result = train_bpe(options, folder / "out", pool);
    EXPECT_EQ(result.num_files, 2);
    EXPECT_EQ(result.vocab_size, 300);
    const std::string json = read_text_file(folder / "out" / "tokenizer.json");
    if (expected.empty()) expected = json;
    EXPECT_EQ(json, expected) << num_threads << " threads";
  }
}

TEST(BpeTrainer, WritesATokenizerThatGivesTheTextBack) {
  const TestFolder folder;
  const std::string text = random_text(3, 200'000);
  folder.write("a.txt", text);
  ThreadPool pool(2);
  double last = 0;
  const BpeTrainingResult result = train_bpe({.files = {folder.path().string()}, .vocab_size = 400},
                                             folder / "out", pool, [&](double done) {
                                               EXPECT_GE(done, last);
                                               last = done;
                                             });
  EXPECT_EQ(last, 1);
  const Tokenizer tokenizer = Tokenizer::open(folder / "out");
  EXPECT_EQ(tokenizer.vocab_size(), result.vocab_size);
  EXPECT_EQ(tokenizer.bos_id(), result.vocab_size - 2);
  EXPECT_EQ(tokenizer.eos_id(), result.vocab_size - 1);
  const std::vector<int32_t> ids = tokenizer.encode(text);
  EXPECT_EQ(ids.front(), tokenizer.bos_id());
  EXPECT_LT(ids.size(), text.size() / 2);
  EXPECT_EQ(tokenizer.decode(ids), text);
  const auto config = nlohmann::json::parse(read_text_file(folder / "out" / "tokenizer_config.json"));
  EXPECT_EQ(config["tokenizer_class"], "PreTrainedTokenizerFast");
  EXPECT_EQ(config["model_max_length"].get<double>(), 1e30);
}

// The ids are those of AutoTokenizer of Transformers 5.24.
TEST(BpeTrainer, WritesATokenizerThatTransformersReadsTheSameWay) {
  const TestFolder folder;
  folder.write("a.txt",
               "the cat sat on the mat, the cat ate the rat and 1234 rats sat\nthe end of the cat\n");
  ThreadPool pool(1);
  train_bpe({.files = {(folder / "a.txt").string()},
             .vocab_size = 271,
             .bos_token = "<s>",
             .eos_token = "</s>",
             .pad_token = "<pad>"},
            folder / "out", pool);
  const Tokenizer tokenizer = Tokenizer::open(folder / "out");
  using TokenIds = std::vector<int32_t>;
  EXPECT_EQ(tokenizer.encode("the cat"), (TokenIds{268, 258, 261}));
  EXPECT_EQ(tokenizer.encode("  12345 caf\u00e9\n\n<pad>x", false),
            (TokenIds{220, 220, 16, 17, 18, 19, 20, 220, 66, 64, 69, 127, 102, 198, 198, 270, 87}));
  EXPECT_EQ(tokenizer.encode("<s>the</s> rat's"), (TokenIds{268, 268, 258, 269, 266, 6, 82}));
  EXPECT_EQ(tokenizer.encode("\tcat  \n sat", false), (TokenIds{197, 260, 220, 220, 198, 267}));
  EXPECT_EQ(tokenizer.bos_id(), 268);
  EXPECT_EQ(tokenizer.eos_id(), 269);
  EXPECT_EQ(tokenizer.pad_id(), 270);
}

TEST(BpeTrainer, NamesFileAndOffsetOfTextThatIsNotUtf8) {
  const TestFolder folder;
  const std::string text = random_text(4, 5'000'000);
  folder.write("good.txt", text);
  folder.write("latin1.txt", text + "caf\xE9 au lait");
  ThreadPool pool(1);
  BpeTrainingOptions options = {.files = {folder.path().string()}, .vocab_size = 300};
  try {
    train_bpe(options, folder / "out", pool);
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::kBadData);
    EXPECT_NE(
        std::string(error.what()).find("latin1.txt: not UTF-8 at byte " + std::to_string(text.size() + 3)),
        std::string::npos)
        << error.what();
  }
  options.skip_invalid_utf8 = true;
  const BpeTrainingResult result = train_bpe(options, folder / "out", pool);
  EXPECT_EQ(result.num_files, 1);
  EXPECT_EQ(result.num_files_skipped, 1);
  EXPECT_EQ(result.input_bytes, static_cast<int64_t>(text.size()));
}

TEST(BpeTrainer, RefusesImpossibleSettings) {
  const TestFolder folder;
  folder.write("a.txt", "some text some text");
  folder.write("empty.txt", "");
  ThreadPool pool(1);
  const auto code_of = [&](BpeTrainingOptions options) {
    try {
      train_bpe(options, folder / "out", pool);
    } catch (const Error& error) {
      return error.code();
    }
    return ExitCode::kDone;
  };
  const std::string file = (folder / "a.txt").string();
  EXPECT_EQ(code_of({.files = {file}, .vocab_size = 257}), ExitCode::kBadConfig);
  EXPECT_EQ(code_of({.files = {file}, .vocab_size = 300, .bos_token = ""}), ExitCode::kBadConfig);
  EXPECT_EQ(code_of({.files = {file}, .vocab_size = 300, .eos_token = " text"}), ExitCode::kBadConfig);
  EXPECT_EQ(code_of({.files = {(folder / "missing").string()}, .vocab_size = 300}), ExitCode::kNoInput);
  EXPECT_EQ(code_of({.files = {(folder / "empty.txt").string()}, .vocab_size = 300}), ExitCode::kBadData);
  EXPECT_EQ(code_of({.files = {file}, .vocab_size = 300}), ExitCode::kDone);
}

}  // namespace
}  // namespace tessera
