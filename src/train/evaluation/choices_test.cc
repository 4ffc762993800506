#include "train/evaluation/choices.h"

#include <gtest/gtest.h>

#include <cmath>

#include "expect_error.h"
#include "io/file.h"
#include "support/test_tokenizer.h"
#include "support/train/saving_run.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;

// Vocabulary of 258: the bytes, <s> and </s>, with <s> before every text.
ModelConfig byte_config() {
  ModelConfig config = tiny_config();
  config.vocab_size = 258;
  return config;
}

nlohmann::json bos_tokenizer() {
  nlohmann::json json = byte_tokenizer({"<s>", "</s>"});
  for (const auto& [content, id] : {std::pair{"<s>", 256}, std::pair{"</s>", 257}}) {
    json["added_tokens"].push_back({{"id", id},
                                    {"content", content},
                                    {"single_word", false},
                                    {"lstrip", false},
                                    {"rstrip", false},
                                    {"normalized", false},
                                    {"special", true}});
  }
  json["post_processor"] = {
      {"type", "TemplateProcessing"},
      {"single",
       {{{"SpecialToken", {{"id", "<s>"}, {"type_id", 0}}}}, {{"Sequence", {{"id", "A"}, {"type_id", 0}}}}}},
      {"pair", nlohmann::json::array()},
      {"special_tokens", {{"<s>", {{"id", "<s>"}, {"ids", {256}}, {"tokens", {"<s>"}}}}}}};
  return json;
}

class ChoicesTest : public testing::Test {
 protected:
  ChoicesTest() {
    ActivationLimits limits;
    limits.max_tokens = 200;
    limits.max_sequence_length = 64;
    model_.model().reserve(limits);
    write_test_model(model_folder(), byte_config());
    write_text_file(model_folder() / "tokenizer.json", bos_tokenizer().dump());
    write_text_file(model_folder() / "tokenizer_config.json", R"({"bos_token": "<s>", "eos_token": "</s>"})");
  }
  fs::path model_folder() const { return folder_ / "model"; }

  std::string write(const std::string& lines) const {
    write_text_file(folder_ / "questions.jsonl", lines);
    return folder_ / "questions.jsonl";
  }
  ChoiceSet open(const std::string& lines, int64_t max_length = 64) const {
    return ChoiceSet::open({write(lines)}, Tokenizer::open(model_folder()), true, max_length, 258);
  }
  void expect_refused(const std::string& lines, const std::vector<std::string>& fragments,
                      int64_t max_length = 64) const {
    expect_error(ExitCode::kBadData, fragments, [&] { open(lines, max_length); });
  }

  // The log-likelihood of a choice after its tokens of context, one sequence at a time.
  double likelihood(const std::string& context, const std::string& choice) {
    std::vector<int32_t> ids = {256};
    for (const char c : context + choice) ids.push_back(byte_ids_.at(static_cast<unsigned char>(c)));
    TokenRow row{ids, ids};
    for (size_t t = 0; t <= context.size(); ++t) row.labels[t] = kIgnoredLabel;
    const PackedBatch batch = pack({row});
    return -model_.model().forward_loss(batch).loss_sum;
  }

  TestFolder folder_;
  std::vector<int32_t> byte_ids_ = [] {
    std::vector<int32_t> ids(256);
    const Tokenizer tokenizer = Tokenizer::parse(byte_tokenizer().dump(), "test");
    for (int byte = 0; byte < 128; ++byte) {
      ids[static_cast<size_t>(byte)] = tokenizer.encode(std::string(1, static_cast<char>(byte)), false).at(0);
    }
    return ids;
  }();
  TestModel model_{byte_config(), DType::kF32, random_weights(parameter_layout(byte_config()), 0.3f, 1)};
};

// 40 questions of 2 to 5 choices of different lengths, with the expected accuracies from one forward pass per
// choice; scored on 1 to 3 ranks in batches of different size.
TEST_F(ChoicesTest, AccuraciesAreThoseOfEachChoiceByItself) {
  std::mt19937 random(3);
  std::string lines;
  int64_t num_right = 0, num_right_norm = 0;
  std::vector<std::vector<double>> all_likelihoods;
  constexpr int64_t kQuestions = 40;
  for (int64_t i = 0; i < kQuestions; ++i) {
    const auto text = [&](size_t length) {
      std::string out;
      for (size_t j = 0; j < length; ++j) out += static_cast<char>('a' + random() % 26);
      return out;
    };
    // Optionally separated by a space, at the end of the context or the start of the choice.
    const std::string context = text(1 + random() % 9), space = i % 2 == 0 ? " " : "";
    std::vector<std::string> choices(2 + random() % 4);
    for (std::string& choice : choices) choice = text(1 + random() % 7);
    size_t answer = random() % choices.size();
    size_t best = 0, best_norm = 0;
    std::vector<double> likelihoods, norms;
    for (size_t c = 0; c < choices.size(); ++c) {
      likelihoods.push_back(likelihood(context, space + choices[c]));
      norms.push_back(likelihoods[c] / static_cast<double>(choices[c].size()));
      if (likelihoods[c] > likelihoods[best]) best = c;
      if (norms[c] > norms[best_norm]) best_norm = c;
    }
    all_likelihoods.push_back(likelihoods);
    const bool leads = i % 4 == 0;
    if (leads) answer = best_norm;  // each of them shows whether the space counts
    num_right += best == answer ? 1 : 0;
    num_right_norm += best_norm == answer ? 1 : 0;
    for (std::string& choice : choices) choice.insert(0, leads ? space : "");
    const nlohmann::json by = i % 3 == 0 ? nlohmann::json(choices[answer]) : nlohmann::json(answer);
    lines += nlohmann::json{{"context", context + (leads ? "" : space)}, {"choices", choices}, {"answer", by}}
                 .dump() +
             "\n";
  }
  ASSERT_NE(num_right, num_right_norm) << "length must matter";
  const ChoiceSet set = open(lines);
  const double p = static_cast<double>(num_right) / kQuestions;
  for (const int ranks : {1, 2, 3}) {
    for (const int64_t max_rows : {1, 4, 1000}) {
      run_ranks({1, ranks}, [&](Communicator& comm) {
        TestModel model(byte_config(), DType::kF32, random_weights(parameter_layout(byte_config()), 0.3f, 1));
        model.model().reserve(set.limits(max_rows, 100));
        const ChoiceResult result = set.score(model.model(), max_rows, 100, comm);
        EXPECT_EQ(result.num_questions, kQuestions);
        EXPECT_EQ(result.accuracy, p);
        EXPECT_EQ(result.accuracy_norm, static_cast<double>(num_right_norm) / kQuestions);
        EXPECT_NEAR(result.accuracy_stderr, std::sqrt(p * (1 - p) / (kQuestions - 1)), 1e-15);
        ASSERT_EQ(std::ssize(result.questions), kQuestions);
        int64_t num_likeliest = 0;
        for (size_t i = 0; i < result.questions.size(); ++i) {
          const ChoiceResult::Question& question = result.questions[i];
          num_likeliest += question.likeliest == question.answer ? 1 : 0;
          ASSERT_EQ(question.log_likelihoods.size(), all_likelihoods[i].size());
          for (size_t c = 0; c < all_likelihoods[i].size(); ++c)
            EXPECT_NEAR(question.log_likelihoods[c], all_likelihoods[i][c],
                        1e-4 * std::abs(all_likelihoods[i][c]));
        }
        EXPECT_EQ(num_likeliest, num_right);
      });
    }
  }
}

TEST_F(ChoicesTest, AnEmptyContextIsTheBeginningOfText) {
  const std::string choices[] = {"ab", "xyz"};
  const size_t best = likelihood("", choices[0]) > likelihood("", choices[1]) ? 0 : 1;
  for (const size_t answer : {0, 1}) {
    const ChoiceSet set =
        open(fmt::format(R"({{"context": "", "choices": ["ab", "xyz"], "answer": {}}})", answer));
    const ChoiceResult result = set.score(model_.model(), 2, 100, single_process());
    EXPECT_EQ(result.accuracy, answer == best ? 1 : 0);
    EXPECT_TRUE(std::isnan(result.accuracy_stderr)) << "one question has no deviation";
  }
}

TEST_F(ChoicesTest, LongContextsLoseTheirBeginning) {
  const std::string line =
      nlohmann::json{{"context", std::string(100, 'a')}, {"choices", {"b", "cd"}}, {"answer", 0}}.dump();
  const ChoiceSet set = open(line, 20);
  EXPECT_EQ(set.num_cut_contexts(), 2);
  EXPECT_EQ(set.max_row_length(), 20);
  EXPECT_EQ(set.cut_contexts_text(20),
            "2 of 2 choices had the beginning of the context cut off, to have at most 20 tokens");
}

TEST_F(ChoicesTest, BadLinesAreNamed) {
  const std::string good = R"({"context": "a", "choices": ["b", "c"], "answer": 1})";
  expect_refused("", {"questions.jsonl", "found an empty file"});
  expect_refused(good + "\n\n{\n", {"questions.jsonl:3"});
  expect_refused(good + "\n[1]\n", {"questions.jsonl:2", "expected an object"});
  expect_refused(R"({"choices": ["b", "c"], "answer": 1})", {"questions.jsonl:1", "context", "expected"});
  expect_refused(R"({"context": 1, "choices": ["b", "c"], "answer": 1})", {"context", "found", "1"});
  expect_refused(R"({"context": "a", "choices": ["b"], "answer": 0})", {"choices", "at least two"});
  expect_refused(R"({"context": "a", "choices": ["b", ""], "answer": 0})", {"choices[1]", "not empty"});
  expect_refused(R"({"context": "a", "choices": ["b", 2], "answer": 0})", {"choices[1]", "found"});
  expect_refused(R"({"context": "a", "choices": ["b", "c"], "answer": 2})", {"answer", "found 2"});
  expect_refused(R"({"context": "a", "choices": ["b", "c"], "answer": -1})", {"answer", "found -1"});
  expect_refused(R"({"context": "a", "choices": ["b", "c"], "answer": "d"})", {"answer", "found \"d\""});
  expect_refused(R"({"context": "a", "choices": ["b", "cccccccc"], "answer": 0})", {"cccccccc", "at most 4"},
                 4);
  expect_error(ExitCode::kNoInput, {"nothing.jsonl"}, [&] {
    ChoiceSet::open({folder_ / "nothing.jsonl"}, Tokenizer::open(model_folder()), true, 64, 258);
  });
}

TEST_F(ChoicesTest, AreScoredDuringTrainingAndDecideWhatIsBest) {
  std::string lines;
  for (int i = 0; i < 30; ++i) {
    lines += fmt::format(R"({{"context": "{}", "choices": [" a", " bcd", "e"], "answer": {}}})"
                         "\n",
                         std::string(static_cast<size_t>(i % 5 + 1), static_cast<char>('a' + i % 26)), i % 3);
  }
  TinyRun tiny(byte_config());
  tiny.spec.model.folder = model_folder();
  tiny.spec.data.eval_dataset = {tiny.folder() / "eval.safetensors"};
  tiny.spec.evaluation.choices = {write(lines)};
  tiny.spec.evaluation.strategy = IntervalStrategy::kSteps;
  tiny.spec.evaluation.steps = 2;
  tiny.spec.saving.strategy = SaveStrategy::kSteps;
  tiny.spec.saving.steps = 2;
  tiny.spec.evaluation.load_best_model = true;
  tiny.spec.evaluation.metric = "eval_choices_accuracy_norm";
  tiny.spec.evaluation.greater_is_better = true;
  const RecordingObserver alone = tiny.train();
  tiny.spec.output_dir = tiny.folder() / "two";
  tiny.spec.batch.accumulation_steps = 1;
  const RecordingObserver both = train_ranks(tiny.spec, {1, 2})[0];
  double best = 0;
  std::vector<double> found, of_both;
  for (const auto& [run, values] : {std::pair{&alone, &found}, std::pair{&both, &of_both}}) {
    for (const LogEntry& entry : run->logs) {
      for (const auto& [name, value] : entry.values) {
        if (name == "eval_choices_accuracy_norm") values->push_back(std::get<double>(value));
      }
    }
  }
  ASSERT_EQ(found.size(), 3u);
  EXPECT_EQ(found.size(), of_both.size());
  for (const double value : found) best = std::max(best, value);
  EXPECT_EQ(read_json(tiny.folder() / "out" / "trainer_state.json").at("best_metric"), best);
  // Evaluates the trained model separately.
  const Tokenizer tokenizer = Tokenizer::open(model_folder());
  const ChoiceSet set = ChoiceSet::open(tiny.spec.evaluation.choices, tokenizer, true, 64, 258);
  const ParameterLayout layout = parameter_layout(byte_config());
  std::vector<float> weights(static_cast<size_t>(layout.num_elements()));
  for (const auto& [name, values] : read_tensors(tiny.folder() / "out")) {
    std::copy(values.begin(), values.end(), weights.begin() + layout.at(name).offset);
  }
  TestModel trained(byte_config(), DType::kF32, weights);
  trained.model().reserve(set.limits(4, 100));
  EXPECT_EQ(set.score(trained.model(), 4, 100, single_process()).accuracy_norm, best);
}

}  // namespace
}  // namespace tessera
