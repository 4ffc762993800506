#include "data/row_tokenizer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

#include "base/error.h"
#include "expect_error.h"
#include "support/dataset_test_util.h"
#include "tensor/packed_batch.h"
#include "test_paths.h"

namespace tessera {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class ChatDatasetTest : public DatasetTest {
 protected:
  // Bytes in order, with those that are no targets as '.'; bos and eos as '<' and '>'.
  static std::string targets_of(const Dataset::Row& row) {
    std::string text;
    for (size_t i = 0; i < row.input_ids.size(); ++i) {
      const int32_t id = row.labels.empty() ? row.input_ids[i] : row.labels[i];
      text += id == kIgnoredLabel ? '.' : id == kTestBos ? '<' : id == kTestEos ? '>' : static_cast<char>(id);
    }
    return text;
  }
  std::vector<std::string> targets_of(const DatasetOptions& options) {
    const Dataset dataset = open(options);
    std::vector<std::string> rows;
    Dataset::Row row;
    for (int64_t i = 0; i < dataset.num_rows(); ++i) {
      dataset.read_row(i, &row);
      rows.push_back(targets_of(row));
    }
    return rows;
  }
  DatasetOptions chat_options(const std::string& name) {
    DatasetOptions options = options_for({name});
    options.chat_folder = folder_ / "tokenizer";
    folder_.write(
        "tokenizer/chat_template.jinja",
        "{% for m in messages %}{{ m.role[0] }}{{ m.content }}{{ eos_token if m.role == 'assistant' }}"
        "{% endfor %}{% if add_generation_prompt %}a{% endif %}");
    return options;
  }
};

TEST_F(ChatDatasetTest, PromptsAreNoTargetsUnlessAskedFor) {
  folder_.write("d.jsonl",
                "{\"prompt\": \"ab\", \"completion\": \"cd\"}\n{\"prompt\": \"\", \"completion\": \"x\"}\n");
  DatasetOptions options = options_for({"d.jsonl"});
  EXPECT_THAT(targets_of(options), ElementsAre("..cd>", "x>"));
  options.train_on_prompt = true;
  EXPECT_THAT(targets_of(options), ElementsAre("abcd>", "x>"));
}

// TRL's add_eos does this, before rows are cut.
TEST_F(ChatDatasetTest, TextsEndInTheEndOfTextToken) {
  folder_.write("d.jsonl",
                "{\"text\": \"ab\"}\n{\"text\": \"cd</s>\"}\n{\"text\": \"\"}\n{\"text\": \"efgh\"}\n");
  folder_.write("e.txt", "i\nj");
  DatasetOptions options = options_for({"d.jsonl", "e.txt"});
  options.max_length = 4;
  options.allow_truncation = true;
  EXPECT_THAT(targets_of(options), ElementsAre("ab>", "cd>", ">", "efgh", "i\nj>"));
  options.text_per_line = true;
  EXPECT_THAT(targets_of(options), ElementsAre("ab>", "cd>", ">", "efgh", "i>", "j>"));
  const Tokenizer no_eos = make_byte_tokenizer(folder_ / "no eos", {.has_eos = false});
  const Dataset dataset = Dataset::open(options, &no_eos, no_eos.vocab_size(), pool_);
  EXPECT_EQ(dataset.row_length(0), 2);
  EXPECT_THAT(dataset.report().warnings, Contains(HasSubstr("no end-of-text token, so no text ends in one")));
}

// TRL takes the tokens from the first one that differs from those of the prompt alone.
TEST_F(ChatDatasetTest, CompletionBeginsAtTheFirstTokenThatIsNotThePrompts) {
  const std::filesystem::path folder = data_folder() / "tokenizers" / "gpt2";
  const Tokenizer tokenizer = Tokenizer::open(folder);
  folder_.write("d.jsonl", R"({"prompt": "see with ", "completion": "all"})"
                           "\n"
                           R"({"prompt": "see with", "completion": " all"})");
  const Dataset dataset = Dataset::open(options_for({"d.jsonl"}), &tokenizer, tokenizer.vocab_size(), pool_);
  for (int64_t i = 0; i < 2; ++i) {
    Dataset::Row row;
    dataset.read_row(i, &row);
    const auto target =
        std::find_if(row.labels.begin(), row.labels.end(), [](int32_t id) { return id != kIgnoredLabel; });
    EXPECT_EQ(tokenizer.decode(std::span(target, row.labels.end()), true), " all");
    EXPECT_TRUE(std::equal(target, row.labels.end(), row.input_ids.end() - (row.labels.end() - target)));
  }
}

TEST_F(ChatDatasetTest, CompletionOfMessagesIsAllThatFollowsThePrompt) {
  folder_.write("d.jsonl",
                R"({"prompt": [{"role": "user", "content": "1"}, {"role": "assistant", "content": "2"},)"
                R"( {"role": "user", "content": "3"}], "completion": [{"role": "assistant", "content": "4"},)"
                R"( {"role": "tool", "content": "5"}, {"role": "assistant", "content": "6"}]})");
  DatasetOptions options = chat_options("d.jsonl");
  EXPECT_THAT(targets_of(options), ElementsAre("........4>t5a6>"));
  options.assistant_only_loss = true;
  EXPECT_THAT(targets_of(options), ElementsAre("........4>...6>"));
  options.train_on_prompt = true;
  EXPECT_THAT(targets_of(options), ElementsAre("...2>...4>...6>"));
  options.assistant_only_loss = false;
  EXPECT_THAT(targets_of(options), ElementsAre("u1a2>u3a4>t5a6>"));
}

TEST_F(ChatDatasetTest, LossOnAnswersOnlyIsRefusedWithoutConversations) {
  folder_.write("t.jsonl", R"({"text": "a"})");
  folder_.write("p.jsonl", R"({"prompt": "a", "completion": "b"})");
  for (const char* name : {"t.jsonl", "p.jsonl"}) {
    DatasetOptions options = options_for({name});
    options.assistant_only_loss = true;
    options.skip_bad_rows = true;
    const Error error = error_of([&] { open(options); });
    EXPECT_EQ(error.code(), ExitCode::kBadConfig);
    EXPECT_THAT(error.what(), HasSubstr("assistant_only_loss: expected conversations, found"));
  }
}

// TRL's "Dropping fully masked examples". Trainer keeps rows of token ids without labels.
TEST_F(ChatDatasetTest, RowsWithoutALabelAreDropped) {
  folder_.write(
      "d.jsonl",
      "{\"prompt\": \"abcdef\", \"completion\": \"g\"}\n{\"prompt\": \"h\", \"completion\": \"i\"}\n");
  DatasetOptions options = options_for({"d.jsonl"});
  options.max_length = 6;
  options.allow_truncation = true;
  EXPECT_THAT(targets_of(options), ElementsAre(".i>"));
  EXPECT_EQ(open(options).report().num_masked_rows, 1);
  EXPECT_THAT(open(options).report().warnings,
              Contains(HasSubstr("skipped 1 of 2 rows: no label that is not ignored")));
  folder_.write("e.jsonl", R"({"prompt": "abcdef", "completion": "g"})");
  options = options_for({"e.jsonl"});
  options.max_length = 6;
  EXPECT_THAT(error_of([&] { open(options); }).what(),
              HasSubstr("no target in 1 row: all labels are ignored"));
  folder_.write("f.jsonl", R"({"messages": [{"role": "user", "content": "a"}]})"
                           "\n"
                           R"({"messages": [{"role": "assistant", "content": "b"}]})");
  options = chat_options("f.jsonl");
  options.assistant_only_loss = true;
  EXPECT_THAT(targets_of(options), ElementsAre(".b>"));
  folder_.write("g.jsonl",
                "{\"input_ids\": [1, 2], \"labels\": [-100, -100]}\n{\"input_ids\": [1, 2, 3, 4], "
                "\"labels\": [-100, -100, -100, 4]}\n{\"input_ids\": [1, 2]}\n");
  options = options_for({"g.jsonl"});
  options.max_length = 3;
  options.allow_truncation = true;
  const Dataset dataset = Dataset::open(options, nullptr, 6, pool_);
  EXPECT_EQ(dataset.num_rows(), 2);
  EXPECT_EQ(dataset.report().num_masked_rows, 1) << "the one that was cut";
}

// SFTTrainer of TRL 1.16 with max_length=3, and Trainer, which has no max_length.
TEST_F(ChatDatasetTest, RowsOfTokenIdsWithoutALabelAreDroppedWhereMaxLengthIsGiven) {
  const std::string rows =
      "{\"input_ids\": [3, 4, 5], \"labels\": [3, 4, 5]}\n{\"input_ids\": [4, 4, 4], \"labels\": [-100, "
      "-100, "
      "-100]}\n{\"input_ids\": [5, 5, 5], \"labels\": [-100, 5, 5]}\n";
  folder_.write("d.jsonl", rows);
  write_integers(folder_ / "d.safetensors", {{"input_ids", {3, 3}, {3, 4, 5, 4, 4, 4, 5, 5, 5}},
                                             {"labels", {3, 3}, {3, 4, 5, -100, -100, -100, -100, 5, 5}}});
  for (const char* name : {"d.jsonl", "d.safetensors"}) {
    DatasetOptions options = options_for({name});
    options.max_length = 3;
    const Dataset kept = Dataset::open(options, nullptr, 6, pool_);
    EXPECT_EQ(kept.num_rows(), 3) << name;
    options.drops_masked_ids = true;
    const Dataset dropped = Dataset::open(options, nullptr, 6, pool_);
    EXPECT_EQ(dropped.num_rows(), 2) << name;
    EXPECT_EQ(dropped.report().num_masked_rows, 1) << name;
    EXPECT_NE(dropped.fingerprint(), kept.fingerprint());
  }
  folder_.write("e.jsonl", "{\"input_ids\": [3, 4, 5], \"labels\": [3, 4, 5]}\n");
  DatasetOptions options = options_for({"e.jsonl"});
  const std::string before = Dataset::open(options, nullptr, 6, pool_).fingerprint();
  options.drops_masked_ids = true;
  EXPECT_EQ(Dataset::open(options, nullptr, 6, pool_).fingerprint(), before) << "the same rows";
}

TEST_F(ChatDatasetTest, LossOfConversationsIsOnAnswersOnlyIfAskedFor) {
  folder_.write("d.jsonl",
                R"({"messages": [{"role": "user", "content": "1"}, {"role": "assistant", "content": "22"},)"
                R"( {"role": "user", "content": "3"}, {"role": "assistant", "content": "4"}]})");
  DatasetOptions options = chat_options("d.jsonl");
  EXPECT_THAT(targets_of(options), ElementsAre("u1a22>u3a4>"));
  options.assistant_only_loss = true;
  EXPECT_THAT(targets_of(options), ElementsAre("...22>...4>"));
  folder_.write("e.jsonl", R"({"instruction": "1", "output": "2"})");
  EXPECT_THAT(targets_of(chat_options("e.jsonl")), ElementsAre("...2>"));
}

TEST_F(ChatDatasetTest, PairRulesDecideOnTargetsAndLeaveRowsOut) {
  folder_.write(
      "d.jsonl",
      R"({"m": [{"r": "u", "c": "1"}, {"r": "a", "c": "22"}, {"r": "u", "c": "3"}, {"r": "a", "c": "4"}]})"
      "\n"
      R"({"m": [{"r": "u", "c": "5"}]})");
  DatasetOptions options = chat_options("d.jsonl");
  RowFormat& format = options.sources[0].format;
  format = {.shape = RowShape::kConversations, .columns = {{"conversations", "m"}}, .pairs = PairRules()};
  format.tags = {"r", "c", {{"u", "user"}, {"a", "assistant"}}};
  EXPECT_THAT(targets_of(options), ElementsAre("...22>...4>"));
  EXPECT_THAT(open(options).report().warnings, ElementsAre(HasSubstr("skipped 1 of 2 rows")));
  format.pairs->targets = PairRules::Targets::kLastAnswer;
  EXPECT_THAT(targets_of(options), ElementsAre(".........4>"));
  format.pairs->targets = PairRules::Targets::kEverything;
  EXPECT_THAT(targets_of(options), ElementsAre("u1a22>u3a4>"));
  format.pairs->targets = PairRules::Targets::kAnswers;
  options.train_on_prompt = true;
  EXPECT_THAT(targets_of(options), ElementsAre("u1a22>u3a4>"));
}

// OpenAI's fine-tuning format.
TEST_F(ChatDatasetTest, MessagesWithTheWeightZeroAreNoTargets) {
  folder_.write(
      "d.jsonl",
      R"({"messages": [{"role": "user", "content": "1"}, {"role": "assistant", "content": "22", "weight": 0},)"
      R"( {"role": "user", "content": "3"}, {"role": "assistant", "content": "4", "weight": 1}]})");
  DatasetOptions options = chat_options("d.jsonl");
  EXPECT_THAT(targets_of(options), ElementsAre("u1a...u3a4>"));
  options.packing = Packing::kIsolated;
  options.max_length = 11;
  EXPECT_THAT(targets_of(options), ElementsAre("u1a...u3a4>"));
  options.packing = Packing::kNone;
  options.assistant_only_loss = true;
  EXPECT_THAT(targets_of(options), ElementsAre(".........4>"));
  folder_.write(
      "tokenizer/chat_template.jinja",
      "{% for m in messages %}{{ m.role[0] }}{% if m.role == 'assistant' %}{% generation %}{{ m.content }}"
      "{{ eos_token }}{% endgeneration %}{% else %}{{ m.content }}{% endif %}{% endfor %}");
  EXPECT_THAT(targets_of(options), ElementsAre(".........4>"));
}

TEST_F(ChatDatasetTest, WeightsOfOtherMessagesMustAgreeWithTheTargets) {
  folder_.write("d.jsonl", R"({"messages": [{"role": "user", "content": "1", "weight": 0},)"
                           R"( {"role": "assistant", "content": "2"}]})");
  DatasetOptions options = chat_options("d.jsonl");
  EXPECT_THAT(
      error_of([&] { open(options); }).what(),
      HasSubstr("line 1: message 0 of the user has the weight 0, but whole conversations are targets"));
  options.assistant_only_loss = true;
  EXPECT_THAT(targets_of(options), ElementsAre("...2>"));
}

TEST_F(ChatDatasetTest, PackedRowsKeepLabelsAndAddNothingToChats) {
  folder_.write("d.jsonl", R"({"instruction": "12", "output": "34"})"
                           "\n"
                           R"({"instruction": "5", "output": "6"})");
  DatasetOptions options = chat_options("d.jsonl");
  options.packing = Packing::kIsolated;
  options.max_length = 9;
  EXPECT_THAT(targets_of(options), ElementsAre("....34>..", ".6>"));
  EXPECT_THAT(texts_of(open(options)), ElementsAre("u12a34</s>u5", "a6</s>"));
}

TEST_F(ChatDatasetTest, RowsOfTokenIdsNeedNoTokenizer) {
  folder_.write("d.jsonl", "{\"input_ids\": [1, 2, 3], \"labels\": [-100, 2, 3]}\n{\"input_ids\": [4, 5]}\n");
  const DatasetOptions options = options_for({"d.jsonl"});
  const Dataset dataset = Dataset::open(options, nullptr, 6, pool_);
  Dataset::Row row;
  dataset.read_row(0, &row);
  EXPECT_THAT(row.labels, ElementsAre(-100, 2, 3));
  dataset.read_row(1, &row);
  EXPECT_THAT(row.labels, ElementsAre(4, 5));
  EXPECT_THAT(error_of([&] { Dataset::open(options, nullptr, 5, pool_); }).what(),
              HasSubstr("d.jsonl: line 2: field 'input_ids': value 1: expected an id from 0 to 4, found 5"));
}

TEST_F(ChatDatasetTest, ErrorsNameTheRowAndCanBeSkipped) {
  folder_.write("d.jsonl",
                "{\"text\": \"a1\"}\nnonsense\n{\"text\": 5}\n{\"other\": \"b\"}\n{\"text\": \"c2\"}\n");
  DatasetOptions options = options_for({"d.jsonl"});
  EXPECT_THAT(error_of([&] { open(options); }).what(), HasSubstr("d.jsonl: line 2: not valid JSON"));
  options.skip_bad_rows = true;
  const Dataset dataset = open(options);
  EXPECT_THAT(texts_of(dataset), ElementsAre("a1</s>", "c2</s>"));
  EXPECT_EQ(dataset.report().num_bad_rows, 3);
  EXPECT_THAT(dataset.report().warnings, ElementsAre(HasSubstr("skipped 3 of 5 rows; the first: ")));
  EXPECT_THAT(open(options).report().warnings,
              ElementsAre(HasSubstr("skipped 3 of 5 rows that cannot be used")))
      << "from the cache";
  folder_.write("e.jsonl", "{\"messages\": [{\"role\": \"user\", \"content\": \"a\"}]}\n");
  EXPECT_EQ(error_of([&] { open(options_for({"e.jsonl"})); }).code(), ExitCode::kBadConfig)
      << "a missing template is not the row's fault";
}

TEST_F(ChatDatasetTest, TablesGiveTheRowsThatJsonGives) {
  folder_.write(
      "d.jsonl",
      "{\"prompt\": \"a,\\n\\\"b\", \"completion\": \"c\"}\n{\"prompt\": \"d\", \"completion\": \"e\"}");
  folder_.write("d.csv", "prompt,completion\r\n\"a,\n\"\"b\",c\r\nd,e\r\n");
  folder_.write("d.tsv", "id\tcompletion\tprompt\n1\tc\t\"a,\n\"\"b\"\n2\te\td\n");
  const std::vector<std::string> expected = targets_of(options_for({"d.jsonl"}));
  EXPECT_EQ(targets_of(options_for({"d.csv"})), expected);
  EXPECT_EQ(targets_of(options_for({"d.tsv"})), expected);
  folder_.write("e.csv", "prompt,completion\na\nb,c\n");
  DatasetOptions options = options_for({"e.csv"});
  EXPECT_THAT(error_of([&] { open(options); }).what(), HasSubstr("e.csv: line 2: "));
  options.skip_bad_rows = true;
  EXPECT_THAT(targets_of(options), ElementsAre(".c>"));
}

TEST_F(ChatDatasetTest, ColumnsCanHaveOtherNames) {
  folder_.write("d.jsonl", R"({"q": "a", "a": "b", "text": "c"})");
  DatasetOptions options = options_for({"d.jsonl"});
  options.sources[0].format = {.shape = RowShape::kPromptCompletion,
                               .columns = {{"prompt", "q"}, {"completion", "a"}}};
  EXPECT_THAT(targets_of(options), ElementsAre(".b>"));
}

// Cuts at random places of random texts: the tokens before a cut have the bytes of the text before it; if a
// token crosses the cut, it begins before it.
TEST(TextMarks, CutsLieWhereTheirTokensAre) {
  for (const char* name : {"gpt2", "llama3_pattern", "sentencepiece"}) {
    const std::filesystem::path folder = data_folder() / "tokenizers" / name;
    const Tokenizer tokenizer = Tokenizer::open(folder);
    std::mt19937 random(7);
    for (int round = 0; round < 200; ++round) {
      std::string text = "x";
      while (text.size() < 40) text += "abcdeth in  .,\n1"[random() % 16];
      std::vector<int64_t> cuts;
      for (int i = 0; i < 4; ++i) cuts.push_back(random() % 41);
      std::sort(cuts.begin(), cuts.end());
      std::vector<int32_t> ids;
      std::vector<TokenCut> found;
      tokenizer.encode(text, false, {.cuts = cuts, .barriers = {}}, &ids, &found);
      EXPECT_EQ(ids, tokenizer.encode(text, false));
      ASSERT_EQ(found.size(), cuts.size());
      for (size_t i = 0; i < cuts.size(); ++i) {
        const auto before = std::span(ids).first(static_cast<size_t>(found[i].token));
        const std::string decoded = tokenizer.decode(before, false);
        const std::string expected = text.substr(0, static_cast<size_t>(cuts[i]));
        if (found[i].is_inside) {
          EXPECT_TRUE(expected.starts_with(decoded) && decoded.size() < expected.size()) << text;
          const auto with = std::span(ids).first(static_cast<size_t>(found[i].token) + 1);
          EXPECT_GT(tokenizer.decode(with, false).size(), expected.size()) << text;
        } else {
          EXPECT_EQ(decoded, expected) << text;
        }
      }
    }
  }
}

}  // namespace
}  // namespace tessera
