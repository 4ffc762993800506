// Every input and setting that a dataset rejects, with message and exit code.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "data/dataset.h"
#include "expect_error.h"
#include "support/dataset_test_util.h"
#include "test_paths.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::Not;

class DatasetRefusal : public DatasetTest {
 protected:
  // what() of the error from opening these options, without the folder's name.
  std::string message(const DatasetOptions& options, ExitCode code) {
    const Error error = error_of([&] { open(options); });
    EXPECT_EQ(error.code(), code) << error.what();
    std::string text = error.what();
    const std::string folder = folder_.path().string() + "/";
    for (size_t at; (at = text.find(folder)) != std::string::npos;) text.erase(at, folder.size());
    return text;
  }
  std::string message_of_file(const std::string& name, const std::string& content,
                              ExitCode code = ExitCode::kBadData) {
    folder_.write(name, content);
    return message(options_for({name}), code);
  }
};

TEST_F(DatasetRefusal, TextThatIsNotUtf8) {
  EXPECT_EQ(message_of_file("a.txt", "good\nbad \xFF here"),
            "a.txt: line 2: byte offset 9: expected UTF-8, found byte 0xff: convert the file, or skip such "
            "documents (skip_invalid_utf8)");
  EXPECT_THAT(message_of_file("b.txt",
                              "\xEF\xBB\xBF"
                              "ab\xC3"),
              HasSubstr("b.txt: line 1: byte offset 5: "));
  EXPECT_THAT(message_of_file("c.txt", std::string("\xFF\xFE"
                                                   "a\0",
                                                   4)),
              HasSubstr("c.txt: expected UTF-8 text, found UTF-16 text: convert it"));
  EXPECT_THAT(message_of_file("d.jsonl", "{\"text\": \"a\"}\n{\"text\": \"\xED\xA0\x80\"}"),
              HasSubstr("d.jsonl: line 2: byte offset 24: expected UTF-8"));
  folder_.write("e.txt", "one\n\nthr\x80");
  DatasetOptions options = options_for({"e.txt"});
  options.text_per_line = true;
  EXPECT_THAT(message(options, ExitCode::kBadData), HasSubstr("e.txt: line 3: byte offset 8: "));
}

TEST_F(DatasetRefusal, TheFirstBadDocumentIsReportedWhateverTheThreads) {
  std::string file;
  for (int i = 0; i < 1000; ++i) file += i % 100 == 37 ? "{\"text\": 5}\n" : "{\"text\": \"a\"}\n";
  folder_.write("a.jsonl", file);
  for (const int64_t num_threads : {1, 4}) {
    ThreadPool pool(num_threads);
    const Error error =
        error_of([&] { Dataset::open(options_for({"a.jsonl"}), &tokenizer_, kTestVocabSize, pool); });
    EXPECT_THAT(error.what(), HasSubstr("a.jsonl: line 38: "));
  }
}

TEST_F(DatasetRefusal, EmptyInput) {
  EXPECT_EQ(message_of_file("a.txt", ""),
            "a.txt: the dataset is empty: 1 document, 1 of them without text, 0 not UTF-8");
  EXPECT_EQ(message_of_file("a.jsonl", ""),
            "a.jsonl: the dataset is empty: 0 documents, 0 of them without text, 0 not UTF-8");
  EXPECT_THAT(message_of_file("b.json", "[]"), HasSubstr("b.json: the dataset is empty"));
  EXPECT_THAT(message_of_file("c.txt", "\xEF\xBB\xBF"), HasSubstr("c.txt: the dataset is empty"));
  EXPECT_FALSE(fs::exists(folder_ / "cache") && !fs::is_empty(folder_ / "cache"))
      << "nothing may stay behind";
}

TEST_F(DatasetRefusal, RowsWithoutAnyTarget) {
  EXPECT_EQ(message_of_file("a.jsonl", "{\"input_ids\": [1]}"),
            "a.jsonl: no target in 1 row: every label is -100 (the first label of a row is never a target)");
}

TEST_F(DatasetRefusal, JsonThatIsBroken) {
  EXPECT_THAT(message_of_file("a.jsonl", "{\"text\": \"a\"}\n{\"text\": \"b\"\n"),
              HasSubstr("a.jsonl: line 2: not valid JSON: column 13: unexpected end of input; expected '}': "
                        "write an object per line, or one array of objects"));
  EXPECT_THAT(
      message_of_file("b.jsonl", "{\"txt\": \"a\", \"id\": 1}\n"),
      EndsWith("b.jsonl: line 1: expected the columns input_ids, or prompt and completion, or messages, or "
               "conversations, or text, or instruction and output; found txt, id: name the column of the "
               "text with --text_column, or "
               "others with --column_mapping"));
  EXPECT_EQ(message_of_file("c.jsonl", "\n{\"text\": 1}"),
            "c.jsonl: line 2: column 'text': expected a string, found an integer");
  EXPECT_THAT(message_of_file("d.jsonl", "{\"text\": \"a\", \"x\": " + std::string(100'000, '[')),
              HasSubstr("d.jsonl: line 1: nested deeper than 256 levels"));
  EXPECT_THAT(message_of_file("e.json", "[{\"text\": \"a\"},\n"),
              HasSubstr("e.json: line 2: byte offset 16: "));
  EXPECT_THAT(message_of_file("f.jsonl", "version https://git-lfs.github.com/spec/v1\noid sha256:00\n"),
              HasSubstr("f.jsonl: expected data, found a Git LFS pointer instead of the file itself"));
}

TEST_F(DatasetRefusal, FilesThatAreNotTextWhateverTheirName) {
  EXPECT_THAT(message_of_file("a.txt", std::string("PK\x03\x04\0\0", 6)),
              HasSubstr("a.txt: expected UTF-8 text, found a zip"));
  EXPECT_THAT(message_of_file("b.txt", "{\"text\": \"a\"}\n"),
              HasSubstr("b.txt: expected text, found JSON Lines"));
  EXPECT_THAT(message_of_file("c.csv", "txt\na\n"), HasSubstr("c.csv: line 2: expected the columns"));
  EXPECT_THAT(message_of_file("d.xlsx", "PK"), HasSubstr("d.xlsx: .xlsx files are not supported"));
}

TEST_F(DatasetRefusal, ImagesThatTheMetadataOfParquetNames) {
  std::filesystem::copy(data_folder() / "image_features.parquet", folder_.path() / "a.parquet");
  EXPECT_EQ(message(options_for({"a.parquet"}), ExitCode::kBadData),
            "a.parquet: row 1: column 'shown': expected text, but the row has images, video or audio, which "
            "are not supported: remove the column to train on the text alone");
  DatasetOptions options = options_for({"a.parquet"});
  options.skip_bad_rows = true;
  EXPECT_EQ(open(options).num_rows(), 1);
}

TEST_F(DatasetRefusal, DocumentsThatLoseMoreThanATenthOfTheTokens) {
  folder_.write("a.txt", std::string(99, 'a'));
  DatasetOptions options = options_for({"a.txt"});
  options.max_length = 89;
  EXPECT_EQ(message(options, ExitCode::kBadConfig),
            "a.txt: 11 of 100 tokens (11 %) would be dropped, as 1 of 1 document is longer than max_length "
            "89 and cut to one "
            "row; set --packing to join the documents and cut them into rows without loss, "
            "--text_per_line if every line is a document, a larger --max_length, or --allow_truncation to "
            "drop them");
  options.allow_truncation = true;
  EXPECT_EQ(open(options).num_tokens(), 89);
  options.allow_truncation = false;
  EXPECT_EQ(message(options, ExitCode::kBadConfig).substr(0, 6), "a.txt:") << "from the cache as well";
  options.packing = Packing::kIsolated;
  EXPECT_EQ(open(options).num_tokens(), 100);
  options.packing = Packing::kNone;
  options.max_length = 90;
  EXPECT_EQ(open(options).num_tokens(), 90) << "a tenth is a warning";
  folder_.write("b.jsonl", R"({"text": "0123456789"})");
  options = options_for({"b.jsonl"});
  options.max_length = 5;
  EXPECT_THAT(message(options, ExitCode::kBadConfig), Not(HasSubstr("text_per_line")));
  write_integers(folder_ / "c.safetensors", {{"input_ids", {2, 3}, {1, 2, 3, 4, 5, 6}}});
  options = options_for({"c.safetensors"});
  options.max_length = 2;
  EXPECT_EQ(message(options, ExitCode::kBadConfig),
            "c.safetensors: 2 of 6 tokens (33 %) would be dropped, as 2 of 2 rows are longer than max_length "
            "2 and cut; set a "
            "larger --max_length, or --allow_truncation to drop them");
}

TEST_F(DatasetRefusal, FilesThatAreMissing) {
  EXPECT_THAT(message(options_for({"no.txt"}), ExitCode::kNoInput),
              HasSubstr("no.txt: cannot be read: No such file"));
  EXPECT_THAT(message(options_for({"*.no"}), ExitCode::kNoInput), HasSubstr("no file matches"));
  EXPECT_THAT(message(options_for({}), ExitCode::kBadConfig), HasSubstr("name at least one file"));
}

TEST_F(DatasetRefusal, SettingsThatCannotBe) {
  folder_.write("a.txt", "text");
  DatasetOptions options = options_for({"a.txt"});
  for (const int64_t max_length : {int64_t{-1}, int64_t{0}, int64_t{1}, int64_t{1} << 40}) {
    options.max_length = max_length;
    EXPECT_THAT(message(options, ExitCode::kBadConfig), HasSubstr("max_length: expected 2 to"));
  }
  const Error no_tokenizer =
      error_of([&] { Dataset::open(options_for({"a.txt"}), nullptr, kTestVocabSize, pool_); });
  EXPECT_EQ(no_tokenizer.code(), ExitCode::kBadConfig);
  EXPECT_THAT(no_tokenizer.what(), HasSubstr("a.txt: text needs a tokenizer"));
}

TEST_F(DatasetRefusal, PackingWithoutAnEndOfText) {
  folder_.write("a.txt", "text");
  const Tokenizer tokenizer = make_byte_tokenizer(folder_ / "no eos", {.has_eos = false});
  DatasetOptions options = options_for({"a.txt"});
  options.packing = Packing::kJoined;
  const Error error = error_of([&] { Dataset::open(options, &tokenizer, kTestVocabSize, pool_); });
  EXPECT_EQ(error.code(), ExitCode::kBadConfig);
  EXPECT_THAT(error.what(), HasSubstr("name eos_token in tokenizer_config.json, or train without packing"));
  options.packing = Packing::kNone;
  EXPECT_EQ(Dataset::open(options, &tokenizer, kTestVocabSize, pool_).num_rows(), 1);
}

TEST_F(DatasetRefusal, IdsThatTheModelDoesNotHave) {
  folder_.write("a.txt", "ab\xC3\xA4");
  const Tokenizer no_eos = make_byte_tokenizer(folder_ / "no eos", {.has_eos = false});
  const Error error = error_of([&] { Dataset::open(options_for({"a.txt"}), &no_eos, 128, pool_); });
  EXPECT_EQ(error.code(), ExitCode::kBadData);
  EXPECT_THAT(error.what(), HasSubstr("a.txt: line 1: token id 195"));
  EXPECT_THAT(error.what(), HasSubstr("is not below the model's vocab_size 128"));
  DatasetOptions options = options_for({"a.txt"});
  const Error eos = error_of([&] { Dataset::open(options, &tokenizer_, kTestEos, pool_); });
  EXPECT_EQ(eos.code(), ExitCode::kBadConfig);
  EXPECT_THAT(eos.what(), HasSubstr("eos id 257 is not below the model's vocab_size 257"));
}

TEST_F(DatasetRefusal, AFileThatChangesWhileItIsRead) {
  folder_.write("a.txt", "one\ntwo\n");
  DatasetOptions options = options_for({"a.txt"});
  const Error error = error_of([&] {
    Dataset::open(options, &tokenizer_, kTestVocabSize, pool_,
                  [&](double) { folder_.write("a.txt", "one\ntwo\nthree\n"); });
  });
  EXPECT_EQ(error.code(), ExitCode::kBadData);
  EXPECT_THAT(error.what(), HasSubstr("a.txt: the file changed while it was being read"));
}

TEST_F(DatasetRefusal, ACacheFolderThatCannotBeMade) {
  folder_.write("a.txt", "one");
  DatasetOptions options = options_for({"a.txt"});
  options.cache_folder = folder_ / "a.txt/cache";
  EXPECT_THAT(message(options, ExitCode::kIoError), HasSubstr("a.txt/cache: cannot create the folder"));
}

TEST_F(DatasetRefusal, PreTokenizedFilesBesideTextOrWithPacking) {
  write_integers(folder_ / "a.safetensors", {{"input_ids", {1, 3}, {1, 2, 3}}});
  folder_.write("b.txt", "text");
  EXPECT_EQ(message(options_for({"b.txt", "a.safetensors"}), ExitCode::kBadConfig),
            "a.safetensors is pre-tokenized and b.txt is not: a dataset is one or the other");
  DatasetOptions options = options_for({"a.safetensors"});
  options.packing = Packing::kIsolated;
  EXPECT_EQ(
      message(options, ExitCode::kBadConfig),
      "a.safetensors: packing joins documents, but a pre-tokenized file has finished rows: leave packing "
      "out");
}

TEST_F(DatasetRefusal, PreTokenizedValuesOutOfRange) {
  const auto message_of = [this](const std::vector<TestTensor>& tensors) {
    write_integers(folder_ / "a.safetensors", tensors);
    return message(options_for({"a.safetensors"}), ExitCode::kBadData);
  };
  EXPECT_EQ(message_of({{"input_ids", {2, 3}, {1, 2, 3, 4, 258, 6}}}),
            "a.safetensors: tensor 'input_ids': row 1, column 1: expected an id from 0 to 257, found 258");
  EXPECT_THAT(message_of({{"input_ids", {1, 3}, {1, 2, -1}}}),
              HasSubstr("row 0, column 2: expected an id from 0"));
  EXPECT_THAT(message_of({{"input_ids", {1, 2}, {1, int64_t{1} << 40}}}), HasSubstr("found 1099511627776"));
  EXPECT_EQ(
      message_of({{"input_ids", {1, 3}, {1, 2, 3}}, {"labels", {1, 3}, {-100, 2, -1}}}),
      "a.safetensors: tensor 'labels': row 0, column 2: expected an id from 0 to 257 or -100, found -1");
  EXPECT_THAT(message_of({{"input_ids", {1, 2}, {1, 2}}, {"labels", {1, 2}, {1, 258}}}),
              HasSubstr("tensor 'labels': row 0, column 1"));
  EXPECT_THAT(
      message_of({{"input_ids", {1, 2}, {1, 2}}, {"attention_mask", {1, 2}, {1, 0}}}),
      HasSubstr("tensor 'attention_mask': row 0, column 1: expected 1 (mark padding by the label -100"));
}

TEST_F(DatasetRefusal, PreTokenizedTensorsOfAnotherForm) {
  const auto message_of = [this](const std::vector<TestTensor>& tensors) {
    write_integers(folder_ / "a.safetensors", tensors);
    return message(options_for({"a.safetensors"}), ExitCode::kBadData);
  };
  EXPECT_EQ(message_of({{"labels", {1, 2}, {1, 2}}}), "a.safetensors: tensor 'input_ids' is missing");
  EXPECT_EQ(message_of({{"input_ids", {2, 2}, {1, 2, 3, 4}}, {"labels", {4}, {1, 2, 3, 4}}}),
            "a.safetensors: tensor 'labels': expected shape [2, 2] as input_ids has, found [4]");
  EXPECT_EQ(message_of({{"input_ids", {2}, {1, 2}}, {"token_type_ids", {2}, {0, 0}}}),
            "a.safetensors: tensor 'token_type_ids': a pre-tokenized dataset has input_ids, labels, "
            "attention_mask, position_ids, completion_mask, assistant_masks");
  EXPECT_EQ(message_of({{"input_ids", {1, 3}, {1, 2, 3}}, {"position_ids", {1, 3}, {0, 1, 3}}}),
            "a.safetensors: tensor 'position_ids': row 0, column 2: expected 2, or 0 where a document "
            "begins, found 3");
  EXPECT_EQ(message_of({{"input_ids", {1, 2}, {1, 2}}, {"completion_mask", {1, 2}, {0, 2}}}),
            "a.safetensors: tensor 'completion_mask': row 0, column 1: expected 0 or 1, found 2");
  EXPECT_EQ(message_of({{"input_ids", {}, {1}}}),
            "a.safetensors: tensor 'input_ids': expected at least one axis, found a scalar");
  EXPECT_EQ(message_of({{"input_ids", {0, 5}, {}}}),
            "a.safetensors: the dataset is empty: input_ids has no values");
  EXPECT_EQ(message_of({{"input_ids", {5, 0}, {}}}),
            "a.safetensors: the dataset is empty: input_ids has no values");
  EXPECT_EQ(message_of({{"input_ids", {1, 3}, {1, 2, 3}}, {"labels", {1, 3}, {5, -100, -100}}}),
            "a.safetensors: no target in 1 row: every label is -100 (the first label of a row is never a "
            "target)");
  const std::string floats = safetensors_bytes(
      R"({"input_ids":{"dtype":"F32","shape":[1,2],"data_offsets":[0,8]}})", std::string(8, '\0'));
  EXPECT_EQ(message_of_file("f.safetensors", floats),
            "f.safetensors: tensor 'input_ids': expected an integer type, found F32");
  EXPECT_THAT(message_of_file("g.safetensors", "short"), HasSubstr("g.safetensors"));
}

}  // namespace
}  // namespace tessera
