#include "data/source_target_rows.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "data/rows/row_statistics.h"
#include "expect_error.h"
#include "support/dataset_test_util.h"
#include "tensor/packed_batch.h"

namespace tessera {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr int32_t kStart = kTestBos;
constexpr int32_t kPad = 0;

class SourceTargetTest : public DatasetTest {
 protected:
  SourceTargetTest() : t5_(make_byte_tokenizer(folder_ / "t5", {.ends_texts = true})) {}

  DatasetOptions pair_options(const std::string& name, const SourceTarget& limits = {},
                              const SourceTargetColumns& columns = {}) {
    DatasetOptions options = options_for({name});
    options.add_special_tokens = true;
    SourceTarget rows = limits;
    rows.decoder_start_token_id = kStart;
    rows.pad_token_id = kPad;
    use_sources_and_targets(rows, columns, &options);
    return options;
  }
  Dataset open_pairs(const DatasetOptions& options) {
    return Dataset::open(options, &t5_, kTestVocabSize, pool_);
  }
  // Every row as "source>|target>", > for the end-of-text token, after checks of its form.
  std::vector<std::string> pairs_of(const Dataset& dataset) {
    std::vector<std::string> pairs;
    for (int64_t i = 0; i < dataset.num_rows(); ++i) {
      Dataset::Row row;
      dataset.read_row(i, &row);
      EXPECT_EQ(row.sequence_lengths.size(), 2u);
      const auto source_length = static_cast<size_t>(row.sequence_lengths[0]);
      EXPECT_EQ(source_length + static_cast<size_t>(row.sequence_lengths[1]), row.input_ids.size());
      EXPECT_EQ(row.input_ids[source_length], kStart);
      std::string text;
      for (size_t t = 0; t < row.input_ids.size(); ++t) {
        const int32_t id = row.input_ids[t];
        if (t == source_length) text += '|';
        if (t != source_length) text += id == kTestEos ? '>' : id == kTestBos ? '<' : static_cast<char>(id);
        EXPECT_EQ(row.labels[t], t <= source_length ? kIgnoredLabel : id) << "row " << i << " token " << t;
      }
      pairs.push_back(text);
    }
    return pairs;
  }
  std::vector<std::string> pairs_of(const DatasetOptions& options) { return pairs_of(open_pairs(options)); }

  Tokenizer t5_;
};

TEST_F(SourceTargetTest, ARowIsTheSourceAndTheDecodersInputs) {
  folder_.write("d.jsonl", "{\"article\": \"abc\", \"highlights\": \"xy\", \"id\": 7}\n");
  const Dataset dataset = open_pairs(pair_options("d.jsonl", {.source_prefix = "s: "}));
  EXPECT_TRUE(dataset.has_sources());
  EXPECT_THAT(pairs_of(dataset), ElementsAre("s: abc>|xy>"));
  EXPECT_EQ(dataset.row_num_targets(0), 3);
  EXPECT_EQ(dataset.row_length(0), 10) << "7 of the source, and as many of the decoder as there are labels";
  EXPECT_EQ(dataset.num_tokens(), 10);
  EXPECT_EQ(dataset.max_row_length(), 10);
  EXPECT_EQ(dataset.num_input_ids(0), 7);
  EXPECT_THAT(dataset.report().warnings,
              ElementsAre(HasSubstr("not read, as rows of the shape source_target")));
}

// Transformers 5.24: AutoTokenizer(text, max_length=n, truncation=True) keeps the special tokens.
TEST_F(SourceTargetTest, CutsTextsSoThatSpecialTokensStay) {
  folder_.write(
      "d.jsonl",
      "{\"source\": \"abcdef\", \"target\": \"uvwxyz\"}\n{\"source\": \"abc\", \"target\": \"uv\"}\n");
  const DatasetOptions options = pair_options("d.jsonl", {.max_source_length = 4, .max_target_length = 3});
  const Dataset dataset = open_pairs(options);
  EXPECT_THAT(pairs_of(dataset), ElementsAre("abc>|uv>", "abc>|uv>"));
  EXPECT_EQ(dataset.report().num_cut_documents, 1);
  EXPECT_EQ(dataset.report().num_cut_tokens, 3 + 4);
  EXPECT_THAT(dataset.report().warnings,
              ElementsAre(HasSubstr(
                  "cut 1 of 2 documents to max_source_length 4 and max_target_length 3: 7 tokens not used")));
  // This tokenizer adds <s> before a text and nothing after it.
  const Dataset with_bos = Dataset::open(options, &tokenizer_, kTestVocabSize, pool_);
  EXPECT_THAT(pairs_of(with_bos), ElementsAre("<ab>|<u>", "<ab>|<u>"));
  DatasetOptions without_special = options;
  without_special.add_special_tokens = false;
  EXPECT_THAT(pairs_of(without_special), ElementsAre("abc>|uv>", "abc>|uv>"));
  const DatasetOptions tiny = pair_options("d.jsonl", {.max_source_length = 1, .max_target_length = 1});
  EXPECT_THAT(pairs_of(tiny), ElementsAre(">|>", ">|>"));
  expect_error(ExitCode::kBadConfig,
               {"d.jsonl: line 1", "a length of 1 has no room for the 2 special tokens"},
               [&] { Dataset::open(tiny, &tokenizer_, kTestVocabSize, pool_); });
}

// truncation_side left: AutoTokenizer of Transformers 5.24 then keeps the last tokens.
TEST_F(SourceTargetTest, CutsTextsOnTheSideThatTheTokenizerSays) {
  folder_.write("d.jsonl", "{\"source\": \"abcdef\", \"target\": \"uvwxyz\"}\n");
  const DatasetOptions options = pair_options("d.jsonl", {.max_source_length = 4, .max_target_length = 3});
  const std::string plain = read_text_file(folder_ / "t5/tokenizer_config.json");
  const auto pairs_with = [&](const char* side) {
    nlohmann::json config = nlohmann::json::parse(plain);
    config["truncation_side"] = side;
    folder_.write("t5/tokenizer_config.json", config.dump());
    const Tokenizer tokenizer = Tokenizer::open(folder_ / "t5");
    return pairs_of(Dataset::open(options, &tokenizer, kTestVocabSize, pool_));
  };
  EXPECT_THAT(pairs_with("left"), ElementsAre("def>|yz>"));
  EXPECT_THAT(pairs_with("right"), ElementsAre("abc>|uv>")) << "from another file of the cache";
  expect_error(ExitCode::kBadData, {"truncation_side", "left or right"}, [&] { pairs_with("top"); });
}

TEST_F(SourceTargetTest, LongRowsAreLeftOutOrRefusedIfAskedFor) {
  folder_.write("d.jsonl",
                "{\"source\": \"abcdef\", \"target\": \"u\"}\n{\"source\": \"abc\", \"target\": \"uv\"}\n");
  DatasetOptions options = pair_options("d.jsonl", {.max_source_length = 4, .max_target_length = 3});
  options.excess_length = ExcessLength::kDrop;
  const Dataset dataset = open_pairs(options);
  EXPECT_THAT(pairs_of(dataset), ElementsAre("abc>|uv>"));
  EXPECT_EQ(dataset.report().num_bad_rows, 1);
  options.excess_length = ExcessLength::kRaise;
  expect_error(ExitCode::kBadData,
               {"a row is 3 tokens longer than max_source_length 4 and max_target_length 3"},
               [&] { open_pairs(options); });
}

// run_summarization.py leaves out rows in which either text is empty or null.
TEST_F(SourceTargetTest, RowsWithoutASourceOrATargetAreSkippedAndCounted) {
  folder_.write("d.jsonl",
                "{\"text\": \"a\", \"summary\": \"b\"}\n{\"text\": \"\", \"summary\": \"b\"}\n"
                "{\"text\": \"a\", \"summary\": null}\n{\"text\": \"c\", \"summary\": \"d\"}\n");
  const Dataset dataset = open_pairs(pair_options("d.jsonl"));
  EXPECT_THAT(pairs_of(dataset), ElementsAre("a>|b>", "c>|d>"));
  EXPECT_EQ(dataset.report().num_empty_documents, 2);
  EXPECT_THAT(dataset.report().warnings,
              ElementsAre(HasSubstr("skipped 2 of 4 documents: no source or no target")));
}

// run_translation.py keeps empty texts.
TEST_F(SourceTargetTest, TranslationsAreReadByLanguage) {
  folder_.write("d.jsonl",
                "{\"translation\": {\"en\": \"a\", \"de\": \"b\"}}\n{\"translation\": {\"de\": \"\", \"en\": "
                "\"c\"}}\n");
  EXPECT_THAT(pairs_of(pair_options("d.jsonl", {}, {.source_lang = "en", .target_lang = "de"})),
              ElementsAre("a>|b>", "c>|>"));
  EXPECT_THAT(pairs_of(pair_options("d.jsonl", {}, {.source_lang = "de", .target_lang = "en"})),
              ElementsAre("b>|a>", ">|c>"));
  expect_error(ExitCode::kBadData, {"line 1: column 'translation': no language 'fr'; found en, de"},
               [&] { open_pairs(pair_options("d.jsonl", {}, {.source_lang = "en", .target_lang = "fr"})); });
  expect_error(ExitCode::kBadData, {"found translation: set source_lang and target_lang"},
               [&] { open_pairs(pair_options("d.jsonl")); });
  folder_.write("e.jsonl", "{\"translation\": \"a\"}\n");
  expect_error(ExitCode::kBadData, {"column 'translation': expected an object, found a string"},
               [&] { open_pairs(pair_options("e.jsonl", {}, {.source_lang = "en", .target_lang = "de"})); });
}

// Labels of their own length; Transformers' shift_tokens_right puts the padding token where one is ignored.
TEST_F(SourceTargetTest, RowsOfTokenIdsHaveLabelsOfTheirOwnLength) {
  folder_.write(
      "d.jsonl",
      "{\"input_ids\": [0, 0, 5, 6, 7], \"attention_mask\": [0, 0, 1, 1, 1], \"labels\": [8, -100, 9, "
      "-100, -100]}\n"
      "{\"input_ids\": [1], \"labels\": [2]}\n{\"input_ids\": [1], \"labels\": [-100]}\n");
  const Dataset dataset =
      open_pairs(pair_options("d.jsonl", {.max_source_length = 2, .max_target_length = 1}));
  ASSERT_EQ(dataset.num_rows(), 2);
  EXPECT_EQ(dataset.report().num_masked_rows, 1);
  Dataset::Row row;
  dataset.read_row(0, &row);
  EXPECT_THAT(row.input_ids, ElementsAre(5, 6, 7, kStart, 8, kPad, 9)) << "Trainer does not cut them";
  EXPECT_THAT(row.labels, ElementsAre(-100, -100, -100, -100, 8, -100, 9));
  EXPECT_THAT(row.sequence_lengths, ElementsAre(3, 4));
  const Dataset cut = open_pairs(
      pair_options("d.jsonl", {.max_source_length = 2, .max_target_length = 1, .cuts_token_ids = true}));
  cut.read_row(0, &row);
  EXPECT_THAT(row.input_ids, ElementsAre(5, 6, kStart, 8));
  EXPECT_EQ(cut.report().num_cut_tokens, 3);
}

TEST_F(SourceTargetTest, TensorsOfTokenIdsAreReadLikeRows) {
  write_integers(folder_ / "a.safetensors", {{"input_ids", {2, 1, 3}, {5, 6, 7, 1, 2, 3}},
                                             {"attention_mask", {2, 1, 3}, {1, 1, 0, 0, 1, 1}},
                                             {"labels", {2, 1, 2}, {8, -100, -100, 9}}});
  Dataset::Row row;
  const Dataset dataset = open_pairs(pair_options("a.safetensors"));
  ASSERT_EQ(dataset.num_rows(), 2);
  dataset.read_row(0, &row);
  EXPECT_THAT(row.input_ids, ElementsAre(5, 6, kStart, 8));
  dataset.read_row(1, &row);
  EXPECT_THAT(row.input_ids, ElementsAre(2, 3, kStart, kPad, 9));
  EXPECT_THAT(row.labels, ElementsAre(-100, -100, -100, -100, 9));

  const auto refused = [&](const std::vector<TestTensor>& tensors, std::initializer_list<const char*> words) {
    write_integers(folder_ / "b.safetensors", tensors);
    std::vector<std::string> expected(words.begin(), words.end());
    const Error error = error_of([&] { open_pairs(pair_options("b.safetensors")); });
    EXPECT_EQ(error.code(), ExitCode::kBadData);
    for (const std::string& word : expected) EXPECT_THAT(error.what(), HasSubstr(word));
  };
  refused({{"input_ids", {1, 2}, {1, 2}}}, {"tensor 'labels' is missing"});
  refused({{"labels", {1, 2}, {1, 2}}}, {"tensor 'input_ids' is missing"});
  refused({{"input_ids", {2, 1}, {1, 2}}, {"labels", {1, 2}, {1, 2}}},
          {"tensor 'labels'", "[2, 1]", "[1, 2]"});
  refused({{"input_ids", {1, 1}, {258}}, {"labels", {1, 1}, {1}}},
          {"tensor 'input_ids': row 0, column 0: expected an id from 0 to 257, found 258"});
  refused({{"input_ids", {1, 1}, {1}}, {"labels", {1, 2}, {1, -1}}},
          {"tensor 'labels': row 0, column 1: expected an id from 0 to 257 or -100, found -1"});
  refused({{"input_ids", {1, 2}, {1, 1}}, {"labels", {1, 1}, {1}}, {"attention_mask", {1, 2}, {0, 0}}},
          {"tensor 'attention_mask': row 0: expected ones"});
  refused({{"input_ids", {1, 2}, {1, 1}}, {"labels", {1, 1}, {1}}, {"attention_mask", {1, 2}, {2, 1}}},
          {"row 0, column 0: expected 0 or 1, found 2"});
  refused({{"input_ids", {1, 1}, {1}}, {"labels", {1, 1}, {1}}, {"position_ids", {1, 1}, {0}}},
          {"tensor 'position_ids': rows of a model with an encoder and a decoder have"});
}

TEST_F(SourceTargetTest, OtherRowsAreRefusedWithTheColumnsThatAreExpected) {
  const auto refusal = [&](const std::string& row, const SourceTargetColumns& columns = {}) {
    folder_.write("d.jsonl", row + "\n");
    return std::string(error_of([&] { open_pairs(pair_options("d.jsonl", {}, columns)); }).what());
  };
  EXPECT_THAT(refusal("{\"text\": \"a\"}"),
              AllOf(HasSubstr("d.jsonl: line 1: the model has an encoder and a decoder"),
                    HasSubstr("article and highlights"), HasSubstr("found text")));
  EXPECT_THAT(refusal("{\"messages\": []}"), HasSubstr("found messages"));
  EXPECT_THAT(
      refusal("{\"prompt\": [{\"role\": \"user\", \"content\": \"a\"}], \"completion\": []}"),
      HasSubstr("column 'prompt': expected a text, found a list: conversations are for models without"));
  EXPECT_THAT(refusal("{\"instruction\": \"a\", \"input\": \"b\", \"output\": \"c\"}"),
              HasSubstr("found instruction, input, output"))
      << "input and output alone would leave the instruction out";
  EXPECT_THAT(refusal("{\"article\": \"a\", \"highlights\": \"b\", \"summary\": \"c\"}"),
              HasSubstr("'article' and 'highlights', or 'article' and 'summary': name them"));
  EXPECT_THAT(
      refusal("{\"a\": \"a\", \"summary\": \"b\"}", {.source = "b", .target = "summary"}),
      HasSubstr("expected the columns 'b' and 'summary' (text_column, summary_column); found a, summary"));
  EXPECT_THAT(refusal("{\"source\": 1, \"target\": \"b\"}"),
              HasSubstr("column 'source': expected a string, found an integer"));
  EXPECT_THAT(refusal("{\"input_ids\": [1]}"), HasSubstr("column 'labels': expected a list of integers"));
  EXPECT_THAT(refusal("{\"input_ids\": [], \"labels\": [1]}"),
              HasSubstr("column 'input_ids': expected an id"));
  EXPECT_THAT(refusal("{\"input_ids\": [1], \"labels\": [1], \"decoder_input_ids\": [0]}"),
              HasSubstr("column 'decoder_input_ids': not supported"));
  EXPECT_THAT(refusal("{\"input_ids\": [1, 999], \"labels\": [1]}"),
              HasSubstr("field 'input_ids': value 1: expected an id from 0 to 257, found 999"));
  EXPECT_THAT(refusal("{\"input_ids\": [1, 2], \"labels\": [1, 999]}"),
              HasSubstr("field 'labels': value 1: expected an id from 0 to 257 or -100, found 999"));
  folder_.write("d.txt", "a\n");
  expect_error(ExitCode::kBadConfig, {"d.txt: a text file has one text per row"},
               [&] { open_pairs(pair_options("d.txt")); });
}

TEST_F(SourceTargetTest, NamedColumnsAreReadWhateverElseThereIs) {
  folder_.write("d.jsonl", "{\"text\": \"a\", \"summary\": \"b\", \"title\": \"c\", \"body\": \"d\"}\n");
  EXPECT_THAT(pairs_of(pair_options("d.jsonl")), ElementsAre("a>|b>")) << "text comes before body";
  EXPECT_THAT(pairs_of(pair_options("d.jsonl", {}, {.target = "title"})), ElementsAre("a>|c>"));
  EXPECT_THAT(pairs_of(pair_options("d.jsonl", {}, {.source = "body"})), ElementsAre("d>|b>"));
  EXPECT_THAT(pairs_of(pair_options("d.jsonl", {}, {.source = "title", .target = "text"})),
              ElementsAre("c>|a>"));
}

// Everything that changes a row changes the cache's key.
TEST_F(SourceTargetTest, RowsOfOtherSettingsAreOtherRows) {
  folder_.write("d.jsonl", "{\"text\": \"a\", \"summary\": \"b\", \"title\": \"c\"}\n");
  std::vector<std::string> names;
  const auto add = [&](const SourceTarget& limits, const SourceTargetColumns& columns) {
    names.push_back(open_pairs(pair_options("d.jsonl", limits, columns)).fingerprint());
  };
  add({}, {});
  add({.max_source_length = 9}, {});
  add({.max_target_length = 9}, {});
  add({.source_prefix = "x"}, {});
  add({}, {.target = "title"});
  DatasetOptions options = pair_options("d.jsonl");
  options.source_target->pad_token_id = 1;
  names.push_back(open_pairs(options).fingerprint());
  options.source_target->decoder_start_token_id = 1;
  names.push_back(open_pairs(options).fingerprint());
  std::sort(names.begin(), names.end());
  EXPECT_EQ(std::adjacent_find(names.begin(), names.end()), names.end());
}

TEST_F(SourceTargetTest, StreamedAndSplitRowsAreTheSame) {
  std::string file;
  for (int i = 0; i < 20; ++i) file += fmt::format("{{\"source\": \"s{}\", \"target\": \"t{}\"}}\n", i, i);
  folder_.write("d.jsonl", file);
  Dataset all = open_pairs(pair_options("d.jsonl"));
  DatasetOptions options = options_for({"d.jsonl"});
  options.add_special_tokens = true;
  options.streaming = true;
  options.streaming_buffer_rows = 8;
  use_sources_and_targets({.decoder_start_token_id = kStart, .max_source_length = 6, .max_target_length = 5},
                          {}, &options);
  const Dataset stream = open_pairs(options);
  EXPECT_TRUE(stream.has_sources());
  EXPECT_EQ(stream.max_row_length(), 11);
  for (int64_t i = 0; i < 20; ++i) {
    Dataset::Row expected, found;
    all.read_row(i, &expected);
    stream.read_row(i, &found);
    EXPECT_EQ(found.input_ids, expected.input_ids);
    EXPECT_EQ(stream.row_length(i), all.row_length(i));
  }
  const int64_t num_tokens = all.num_tokens();
  const Dataset held_out = all.split_off(20);
  EXPECT_TRUE(held_out.has_sources());
  EXPECT_EQ(held_out.num_rows(), 4);
  EXPECT_EQ(held_out.num_tokens(), 4 * 6);
  EXPECT_EQ(all.num_tokens(), num_tokens - 4 * 6);
  EXPECT_EQ(held_out.max_row_length(), 6);
}

TEST_F(SourceTargetTest, StatisticsKnowBothSides) {
  folder_.write("d.jsonl",
                "{\"source\": \"abcdef\", \"target\": \"uv\"}\n{\"source\": \"a\", \"target\": \"uvwx\"}\n"
                "{\"source\": \"a\", \"target\": \"\"}\n");
  DatasetOptions options = pair_options("d.jsonl", {.max_source_length = 5, .max_target_length = 8});
  const RowPlan plan = plan_rows(options.sources, options);
  const RowStatistics found =
      row_statistics(plan, options, &t5_, kTestVocabSize, {.max_length = options.max_length}, &pool_);
  EXPECT_THAT(found.lengths, ElementsAre(7, 10)) << "uncut: 2 + 5 and 7 + 3";
  EXPECT_THAT(found.source_lengths, ElementsAre(2, 5));
  EXPECT_THAT(found.target_lengths, ElementsAre(3, 5));
  EXPECT_EQ(found.num_targets, 8);
  EXPECT_EQ(found.num_empty, 1);
  EXPECT_EQ(found.num_cut_rows, 1);
  EXPECT_EQ(found.num_cut_tokens, 2);
  EXPECT_DOUBLE_EQ(found.padding_share, 1 - 15.0 / 20) << "padded to 5 on both sides";
}

}  // namespace
}  // namespace tessera
