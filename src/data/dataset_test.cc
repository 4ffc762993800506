#include "data/dataset.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <fstream>
#include <random>
#include <set>
#include <thread>

#include "base/error.h"
#include "expect_error.h"
#include "support/dataset_test_util.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

TEST_F(DatasetTest, TextIsADocumentPerFileOrPerLine) {
  folder_.write("a.txt", "one\ntwo\r\n\nthree");
  folder_.write("b.txt", "four\n");
  DatasetOptions options = options_for({"a.txt", "b.txt"});
  EXPECT_THAT(texts_of(open(options)), ElementsAre("one\ntwo\r\n\nthree</s>", "four\n</s>"));
  options.text_per_line = true;
  const Dataset dataset = open(options);
  EXPECT_THAT(texts_of(dataset), ElementsAre("one</s>", "two</s>", "three</s>", "four</s>"));
  EXPECT_EQ(dataset.report().num_empty_documents, 1);
  EXPECT_THAT(dataset.report().warnings,
              ElementsAre(HasSubstr("a.txt and 1 other file: skipped 1 of 5 documents: no text")));
}

TEST_F(DatasetTest, JsonIsAnObjectPerLineOrAnArray) {
  folder_.write("a.jsonl", "{\"text\": \"one\"}\n\n{\"id\": 2, \"text\": \"two\"}\r\n");
  folder_.write("b.json", "[{\"text\": \"three\"},\n{\"text\": \"four\"}]");
  folder_.write("c.json", "{\"text\": \"five\"}\n");
  EXPECT_THAT(texts_of(open(options_for({"a.jsonl", "b.json", "c.json"}))),
              ElementsAre("one</s>", "two</s>", "three</s>", "four</s>", "five</s>"));
  folder_.write("d.jsonl", "{\"content\": \"xy\", \"text\": 1}");
  DatasetOptions options = options_for({"d.jsonl"});
  options.sources[0].format.text_column = "content";
  EXPECT_THAT(texts_of(open(options)), ElementsAre("xy</s>"));
}

TEST_F(DatasetTest, FoldersGlobsAndKindsOfTextMixInOrder) {
  create_folder(folder_ / "d");
  folder_.write("d/2.txt", "two");
  folder_.write("d/1.jsonl", "{\"text\": \"one\"}");
  folder_.write("d/.env", "SECRET=1");
  folder_.write("e.txt", "three");
  const Dataset dataset = open(options_for({"d", "?.txt"}));
  EXPECT_THAT(texts_of(dataset), ElementsAre("one</s>", "two</s>", "three</s>"));
  EXPECT_EQ(dataset.report().num_files, 3);
  EXPECT_EQ(dataset.report().num_documents, 3);
  EXPECT_THAT(dataset.report().warnings, ElementsAre(HasSubstr("/d: skipped 1 file: 1 hidden")));
}

TEST_F(DatasetTest, ByteOrderMarksGoAndNulBytesFarFromTheStartStay) {
  folder_.write("a.txt",
                "\xEF\xBB\xBF"
                "one");
  folder_.write("b.jsonl",
                "\xEF\xBB\xBF"
                "{\"text\": \"two\"}");
  const std::string text = std::string(8000, 'a') + std::string("\0b", 2);
  folder_.write("c.txt", text);
  DatasetOptions options = options_for({"a.txt", "b.jsonl", "c.txt"});
  options.max_length = 10'000;
  EXPECT_THAT(texts_of(open(options)), ElementsAre("one</s>", "two</s>", text + "</s>"));
}

TEST_F(DatasetTest, DocumentsAreCutToMaxLengthAndCounted) {
  folder_.write("a.txt", "123456\n123\n12345\n1");
  DatasetOptions options = options_for({"a.txt"});
  options.text_per_line = true;
  options.max_length = 4;
  options.allow_truncation = true;
  const Dataset dataset = open(options);
  EXPECT_THAT(texts_of(dataset), ElementsAre("1234", "123</s>", "1234", "1</s>"));
  EXPECT_EQ(dataset.num_tokens(), 14);
  EXPECT_EQ(dataset.num_targets(), 10);
  EXPECT_EQ(dataset.max_row_length(), 4);
  EXPECT_EQ(dataset.row_length(3), 2);
  EXPECT_EQ(dataset.row_num_targets(0), 3);
  EXPECT_EQ(dataset.row_num_targets(3), 1);
  EXPECT_EQ(dataset.report().num_cut_documents, 2);
  EXPECT_EQ(dataset.report().num_cut_tokens, 5);
  EXPECT_THAT(dataset.report().warnings,
              ElementsAre(HasSubstr("cut 2 of 4 documents to max_length 4: 5 tokens not used")));
}

TEST_F(DatasetTest, SpecialTokensStandInEveryDocument) {
  folder_.write("a.txt", "one\ntwo\n");
  DatasetOptions options = options_for({"a.txt"});
  options.text_per_line = true;
  options.add_special_tokens = true;
  EXPECT_THAT(texts_of(open(options)), ElementsAre("<s>one</s>", "<s>two</s>"));
  options.packing = Packing::kIsolated;
  EXPECT_THAT(texts_of(open(options)), ElementsAre("<s>one</s><s>two</s>"));
}

TEST_F(DatasetTest, PackingFollowsTheFormulaOverManyBatches) {
  // More documents than fit in one batch of the reader.
  constexpr uint32_t kSeed = 5;
  constexpr int64_t kDocuments = 40'000;
  constexpr int64_t kMaxLength = 100;
  std::mt19937 random(kSeed);
  std::string file;
  std::string stream;
  std::vector<size_t> document_begins;
  for (int64_t d = 0; d < kDocuments; ++d) {
    const std::string text(1 + random() % 30, static_cast<char>('a' + random() % 26));
    file += text + "\n";
    document_begins.push_back(stream.size());
    stream += text + "\x01";  // stands for EOS
  }
  folder_.write("a.txt", file);
  DatasetOptions options = options_for({"a.txt"});
  options.text_per_line = true;
  options.packing = Packing::kIsolated;
  options.max_length = kMaxLength;
  const Dataset dataset = open(options);
  const auto stream_length = static_cast<int64_t>(stream.size());
  ASSERT_EQ(dataset.num_rows(), stream_length / kMaxLength + (stream_length % kMaxLength >= 2 ? 1 : 0));
  Dataset::Row row;
  size_t at = 0;
  size_t document = 0;
  for (int64_t r = 0; r < dataset.num_rows(); ++r) {
    dataset.read_row(r, &row);
    for (const int32_t length : row.sequence_lengths) {
      while (document + 1 < document_begins.size() && document_begins[document + 1] <= at) ++document;
      const size_t document_end =
          document + 1 < document_begins.size() ? document_begins[document + 1] : stream.size();
      const size_t row_end = std::min(stream.size(), static_cast<size_t>((r + 1) * kMaxLength));
      ASSERT_EQ(static_cast<size_t>(length), std::min(document_end, row_end) - at)
          << "row " << r << " seed " << kSeed;
      at += static_cast<size_t>(length);
    }
    const size_t begin = static_cast<size_t>(r * kMaxLength);
    for (size_t i = 0; i < row.input_ids.size(); ++i) {
      const char expected = stream[begin + i];
      ASSERT_EQ(row.input_ids[i], expected == '\x01' ? kTestEos : expected)
          << "row " << r << " seed " << kSeed;
    }
  }
}

// TRL 1.16 does the same: its rows are [3, 4, 1], [1] and [5, 1] of "a b", "" and "c"; an empty line of a
// text file is no row, and Axolotl leaves empty texts out.
TEST_F(DatasetTest, RowsWithAnEmptyTextAreTheirEndOfText) {
  folder_.write("a.jsonl", "{\"text\": \"a b\"}\n{\"text\": \"\"}\n{\"text\": null}\n{\"text\": \"c\"}\n");
  DatasetOptions options = options_for({"a.jsonl"});
  const Dataset dataset = open(options);
  EXPECT_THAT(texts_of(dataset), ElementsAre("a b</s>", "</s>", "c</s>"));
  EXPECT_EQ(dataset.row_num_targets(1), 0);
  EXPECT_EQ(dataset.report().num_empty_documents, 1) << "the one without text";
  options.add_special_tokens = true;
  EXPECT_THAT(texts_of(open(options)), ElementsAre("<s>a b</s>", "<s></s>", "<s>c</s>"));
  options.add_special_tokens = false;
  options.sources[0].format.drops_empty_text = true;
  EXPECT_THAT(texts_of(open(options)), ElementsAre("a b</s>", "c</s>"));
  EXPECT_NE(open(options).fingerprint(), dataset.fingerprint());
  // If no text is empty, the rows are those of earlier versions, whose runs resume with them.
  folder_.write("b.jsonl", "{\"text\": \"a b\"}\n{\"text\": \"c\"}\n");
  options = options_for({"b.jsonl"});
  const std::string fingerprint = open(options).fingerprint();
  EXPECT_NE(fingerprint, open(options).report().cache_file.stem());
  options.sources[0].format.drops_empty_text = true;
  EXPECT_EQ(open(options).fingerprint(), fingerprint);
}

// pandas, and therefore Hugging Face's datasets, read them so.
TEST_F(DatasetTest, CellsOfTablesThatPandasReadsAsNullAreNull) {
  folder_.write("a.csv", "text\none\nNA\n\"null\"\nnil\n");
  const Dataset dataset = open(options_for({"a.csv"}));
  EXPECT_THAT(texts_of(dataset), ElementsAre("one</s>", "nil</s>"));
  EXPECT_EQ(dataset.report().num_empty_documents, 2);
  folder_.write("b.csv", "prompt,completion\na,b\nc,None\n");
  EXPECT_THAT(error_of([&] { open(options_for({"b.csv"})); }).what(),
              HasSubstr("b.csv: line 3: column 'completion': expected a string, found null"));
}

TEST_F(DatasetTest, ColumnsThatAreNotReadAreNamedOnce) {
  folder_.write("a.jsonl",
                "{\"text\": \"one\", \"id\": 1}\n{\"text\": \"two\", \"score\": 2, \"id\": null}\n");
  EXPECT_THAT(open(options_for({"a.jsonl"})).report().warnings,
              ElementsAre(HasSubstr(
                  "a.jsonl: not read, as rows of the shape text do not have them: the columns id, score")));
}

TEST_F(DatasetTest, ShapeIsThatOfTheFirstRowWithValues) {
  folder_.write("a.jsonl", "{\"text\": null, \"messages\": null}\n{\"text\": \"two\", \"messages\": null}\n");
  const Dataset dataset = open(options_for({"a.jsonl"}));
  EXPECT_THAT(texts_of(dataset), ElementsAre("two</s>"));
}

TEST_F(DatasetTest, JoinedRowsAreOneSequence) {
  folder_.write("a.txt", "one\ntwo\nthree");
  DatasetOptions options = options_for({"a.txt"});
  options.text_per_line = true;
  options.packing = Packing::kJoined;
  options.max_length = 6;
  const Dataset joined = open(options);
  options.packing = Packing::kIsolated;
  const Dataset isolated = open(options);
  EXPECT_THAT(texts_of(joined), ElementsAre("one</s>tw", "o</s>thre", "e</s>"));
  EXPECT_EQ(texts_of(isolated), texts_of(joined));
  Dataset::Row row;
  joined.read_row(0, &row);
  EXPECT_THAT(row.sequence_lengths, ElementsAre(6));
  isolated.read_row(0, &row);
  EXPECT_THAT(row.sequence_lengths, ElementsAre(4, 2));
  EXPECT_EQ(joined.num_targets(), 5 + 5 + 1);
  EXPECT_EQ(isolated.num_targets(), (3 + 1) + (1 + 3) + 1);
}

TEST_F(DatasetTest, InvalidUtf8IsLeftOutWhenAskedTo) {
  folder_.write("a.txt",
                "good\nb\xFF"
                "d\nfine\n");
  folder_.write("b.jsonl", "{\"text\": \"a\xC3\"}\n{\"text\": \"last\"}\n");
  DatasetOptions options = options_for({"a.txt", "b.jsonl"});
  options.text_per_line = true;
  options.skip_invalid_utf8 = true;
  const Dataset dataset = open(options);
  EXPECT_THAT(texts_of(dataset), ElementsAre("good</s>", "fine</s>", "last</s>"));
  EXPECT_EQ(dataset.report().num_invalid_documents, 2);
  EXPECT_THAT(dataset.report().warnings, ElementsAre(HasSubstr("skipped 2 of 5 documents: not UTF-8")));
}

TEST_F(DatasetTest, ACacheHitGivesTheSameRowsWithoutTokenizing) {
  folder_.write("a.txt", "one\n\ntwo hundred\n");
  DatasetOptions options = options_for({"a.txt"});
  options.text_per_line = true;
  options.max_length = 5;
  options.allow_truncation = true;
  const Dataset first = open(options);
  EXPECT_FALSE(first.report().cache_hit);
  const fs::path cache_file = first.report().cache_file;
  EXPECT_EQ(cache_file.parent_path(), folder_ / "cache");
  const auto written = fs::last_write_time(cache_file);
  std::vector<double> fractions;
  const Dataset second = Dataset::open(options, &tokenizer_, kTestVocabSize, pool_,
                                       [&](double fraction) { fractions.push_back(fraction); });
  EXPECT_TRUE(second.report().cache_hit);
  EXPECT_THAT(fractions, ElementsAre(1.0)) << "tokenizing reports its progress";
  EXPECT_EQ(fs::last_write_time(cache_file), written);
  EXPECT_EQ(ids_of(second), ids_of(first));
  EXPECT_EQ(second.report().warnings, first.report().warnings);
  EXPECT_EQ(second.report().num_documents, 2);
  EXPECT_EQ(second.report().num_empty_documents, 1);
  EXPECT_EQ(second.report().num_cut_tokens, 7);
}

TEST_F(DatasetTest, TheCacheFollowsTheContentNotTheName) {
  folder_.write("a.txt", "one");
  const fs::path first = open(options_for({"a.txt"})).report().cache_file;
  folder_.write("copy.txt", "one");
  const Dataset copy = open(options_for({"copy.txt"}));
  EXPECT_TRUE(copy.report().cache_hit);
  EXPECT_EQ(copy.report().cache_file, first);
  folder_.write("a.txt", "two");
  const Dataset changed = open(options_for({"a.txt"}));
  EXPECT_FALSE(changed.report().cache_hit);
  EXPECT_THAT(texts_of(changed), ElementsAre("two</s>"));
}

TEST_F(DatasetTest, EverySettingHasACacheOfItsOwn) {
  folder_.write("a.jsonl", "[{\"text\": \"one\", \"other\": \"two\"}]\n");
  folder_.write("a.txt", "[{\"text\": \"one\", \"other\": \"two\"}]\n");
  folder_.write("b.txt", "one");
  const Tokenizer other_tokenizer = make_byte_tokenizer(folder_ / "other", {.reversed = true});
  std::set<fs::path> caches;
  size_t opened = 0;
  const auto add = [&](const DatasetOptions& options, const Tokenizer& tokenizer, int64_t vocab_size) {
    caches.insert(Dataset::open(options, &tokenizer, vocab_size, pool_).report().cache_file);
    ++opened;
    EXPECT_EQ(caches.size(), opened);
  };
  const DatasetOptions base = options_for({"a.jsonl"});
  add(base, tokenizer_, kTestVocabSize);
  add(base, tokenizer_, kTestVocabSize + 1);
  add(base, other_tokenizer, kTestVocabSize);
  DatasetOptions options = base;
  options.sources[0].format.text_column = "other";
  add(options, tokenizer_, kTestVocabSize);
  options = base;
  options.max_length = 77;
  add(options, tokenizer_, kTestVocabSize);
  options = base;
  options.packing = Packing::kIsolated;
  add(options, tokenizer_, kTestVocabSize);
  options.packing = Packing::kJoined;
  add(options, tokenizer_, kTestVocabSize);
  options = base;
  options.add_special_tokens = true;
  add(options, tokenizer_, kTestVocabSize);
  options = base;
  options.text_per_line = true;
  add(options, tokenizer_, kTestVocabSize);
  options = base;
  options.skip_invalid_utf8 = true;
  add(options, tokenizer_, kTestVocabSize);
  add(options_for({"a.txt"}), tokenizer_, kTestVocabSize);
  add(options_for({"a.txt", "b.txt"}), tokenizer_, kTestVocabSize);
  add(options_for({"b.txt", "a.txt"}), tokenizer_, kTestVocabSize);
}

TEST_F(DatasetTest, RowsDoNotDependOnTheNumberOfThreads) {
  std::string file;
  for (int i = 0; i < 20'000; ++i) file += "line " + std::to_string(i * 7919) + "\n";
  folder_.write("a.txt", file);
  DatasetOptions options = options_for({"a.txt"});
  options.text_per_line = true;
  options.packing = Packing::kIsolated;
  options.max_length = 64;
  std::string expected;
  for (const int64_t num_threads : {1, 2, 5}) {
    ThreadPool pool(num_threads);
    options.cache_folder = folder_ / ("cache" + std::to_string(num_threads));
    const Dataset dataset = Dataset::open(options, &tokenizer_, kTestVocabSize, pool);
    EXPECT_FALSE(dataset.report().cache_hit);
    const std::string bytes = read_text_file(dataset.report().cache_file);
    if (expected.empty()) expected = bytes;
    EXPECT_TRUE(bytes == expected) << num_threads << " threads";
  }
}

TEST_F(DatasetTest, LongLinesAndManyShortOnesStream) {
  const std::string long_line(5'000'000, 'x');
  folder_.write("a.txt", "a\n" + long_line + "\nb\n");
  folder_.write("b.jsonl", "{\"text\": \"" + long_line + "\"}\n{\"text\": \"c\"}");
  DatasetOptions options = options_for({"a.txt", "b.jsonl"});
  options.text_per_line = true;
  options.max_length = 10'000'000;
  const Dataset dataset = open(options);
  ASSERT_EQ(dataset.num_rows(), 5);
  EXPECT_EQ(dataset.row_length(1), 5'000'001);
  EXPECT_EQ(dataset.row_length(3), 5'000'001);
  EXPECT_EQ(dataset.num_tokens(), 10'000'008);
}

TEST_F(DatasetTest, ADamagedCacheIsNamedAndMadeAgain) {
  folder_.write("a.txt", "one two three");
  const DatasetOptions options = options_for({"a.txt"});
  const Dataset first = open(options);
  const fs::path cache_file = first.report().cache_file;
  const std::string good = read_text_file(cache_file);
  std::string flipped = good;
  flipped[20] = static_cast<char>(flipped[20] ^ 1);
  // Cut in the middle of a token, empty, changed.
  for (const std::string& bad :
       {good.substr(0, 19), std::string(), good.substr(0, good.size() - 1), flipped}) {
    write_text_file(cache_file, bad);
    const Dataset again = open(options);
    EXPECT_FALSE(again.report().cache_hit);
    ASSERT_EQ(again.report().warnings.size(), 1u);
    EXPECT_THAT(again.report().warnings[0], HasSubstr(cache_file.string() + ": damaged token cache: "));
    EXPECT_THAT(again.report().warnings[0], HasSubstr("rebuilt"));
    EXPECT_EQ(ids_of(again), ids_of(first));
    EXPECT_EQ(read_text_file(cache_file), good);
  }
  EXPECT_TRUE(open(options).report().cache_hit);
}

TEST_F(DatasetTest, RunsMayShareACacheFolder) {
  std::string file;
  for (int i = 0; i < 3000; ++i) file += "line " + std::to_string(i) + "\n";
  folder_.write("a.txt", file);
  DatasetOptions options = options_for({"a.txt"});
  options.text_per_line = true;
  std::array<std::vector<std::vector<int32_t>>, 4> rows;
  std::vector<std::thread> threads;
  for (auto& result : rows) {
    threads.emplace_back([&] {
      ThreadPool pool(1);
      result = ids_of(Dataset::open(options, &tokenizer_, kTestVocabSize, pool));
    });
  }
  for (std::thread& thread : threads) thread.join();
  ASSERT_EQ(rows[0].size(), 3000u);
  for (const auto& result : rows) EXPECT_EQ(result, rows[0]);
  const auto files = fs::directory_iterator(options.cache_folder);
  EXPECT_EQ(std::distance(begin(files), end(files)), 1) << "no temporary file may stay";
}

TEST_F(DatasetTest, RowsCanBeReadFromSeveralThreads) {
  std::string file;
  for (int i = 0; i < 500; ++i) file += "line " + std::to_string(i) + "\n";
  folder_.write("a.txt", file);
  DatasetOptions options = options_for({"a.txt"});
  options.text_per_line = true;
  const Dataset dataset = open(options);
  ThreadPool pool(4);
  std::vector<std::vector<int32_t>> rows(500);
  pool.parallel_for(500, [&](int64_t index) {
    Dataset::Row row;
    dataset.read_row(index, &row);
    rows[static_cast<size_t>(index)] = row.input_ids;
  });
  EXPECT_EQ(rows, ids_of(dataset));
}

TEST_F(DatasetTest, TheCacheIsInTheUsersCacheFolderByDefault) {
  folder_.write("a.txt", "one");
  DatasetOptions options = options_for({"a.txt"});
  options.cache_folder.clear();
  const char* const before = std::getenv("XDG_CACHE_HOME");
  const std::string saved = before == nullptr ? "" : before;
  ASSERT_EQ(setenv("XDG_CACHE_HOME", (folder_ / "xdg").c_str(), 1), 0);
  EXPECT_EQ(open(options).report().cache_file.parent_path(), folder_ / "xdg/tessera");
  if (before == nullptr) {
    unsetenv("XDG_CACHE_HOME");
  } else {
    setenv("XDG_CACHE_HOME", saved.c_str(), 1);
  }
}

TEST_F(DatasetTest, ACacheFolderThatCannotBeWrittenIsNamedWithItsFlag) {
  folder_.write("a.txt", "one");
  DatasetOptions options = options_for({"a.txt"});
  options.cache_folder = folder_ / "a.txt/cache";
  const Error error = error_of([&] { open(options); });
  EXPECT_EQ(error.code(), ExitCode::kIoError);
  EXPECT_THAT(error.what(), AllOf(HasSubstr("a.txt/cache"), HasSubstr("--cache_dir")));
}

TEST_F(DatasetTest, WeightedSourcesArePartsOfTheirOwn) {
  folder_.write("a.jsonl", "{\"text\": \"a1\"}\n{\"text\": \"a2\"}\n");
  folder_.write("b.jsonl", "{\"text\": \"b1\"}\n{\"text\": \"b2\"}\n{\"text\": \"b3\"}\n");
  DatasetOptions options = options_for({"a.jsonl", "b.jsonl"});
  const std::string unweighted = open(options).fingerprint();
  options.sources[0].weight = 0.75;
  EXPECT_THAT(error_of([&] { open(options); }).what(),
              HasSubstr("expected a weight (NAME:0.7) for all of 2"));
  options.sources[1].weight = 0.25;
  const Dataset dataset = open(options);
  EXPECT_THAT(texts_of(dataset), ElementsAre("a1</s>", "a2</s>", "b1</s>", "b2</s>", "b3</s>"));
  ASSERT_EQ(dataset.mixture().size(), 2u);
  EXPECT_EQ(dataset.mixture()[1].num_rows, 3);
  EXPECT_EQ(dataset.report().num_documents, 5);
  EXPECT_NE(dataset.fingerprint(), unweighted);
  options.sources[1].weight = 0.5;
  EXPECT_NE(open(options).fingerprint(), dataset.fingerprint());
}

}  // namespace
}  // namespace tessera
