#include "inference/text_generator.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "model/llama/llama_generator.h"
#include "model/sampling.h"
#include "support/train/train_test_support.h"
#include "test_paths.h"

namespace tessera {
namespace {

const SamplingOptions kGreedy = {.temperature = 0};

class TextGeneratorTest : public testing::Test {
 protected:
  TextGeneratorTest() {
    config_.vocab_size = tokenizer_.vocab_size();
    const ParameterLayout layout = parameter_layout(config_);
    model_ = std::make_unique<TestModel>(config_, DType::kF32, random_weights(layout, 0.5f, /*seed=*/3));
  }

  TextGenerator generator(std::unordered_set<int64_t> ends = {}, const SamplingOptions& sampling = kGreedy,
                          int64_t capacity = 40) const {
    return {tokenizer_, model_->model(), capacity, sampling, std::move(ends)};
  }
  // The likeliest tokens after the prompt.
  std::vector<int32_t> likeliest(std::vector<int32_t> ids, int64_t num_tokens) const {
    LlamaGenerator plain(model_->model(), 40);
    std::vector<int32_t> found;
    for (std::span<const float> logits = plain.feed(ids); std::ssize(found) < num_tokens;
         logits = plain.feed(std::span(&found.back(), 1)))
      found.push_back(static_cast<int32_t>(std::ranges::max_element(logits) - logits.begin()));
    return found;
  }

  const Tokenizer tokenizer_ = Tokenizer::open(data_folder() / "tokenizers" / "gpt2");
  const std::vector<int32_t> prompt_ = {5, 7, 9};
  ModelConfig config_ = tiny_config();
  std::unique_ptr<TestModel> model_;
};

TEST_F(TextGeneratorTest, WritesTheLikeliestTokensPieceByPiece) {
  std::string shown;
  const Continuation done =
      generator().continue_text(prompt_, 8, [&](const std::string& piece) { shown += piece; });
  EXPECT_EQ(done.text, tokenizer_.decode(likeliest(prompt_, 8)));
  EXPECT_EQ(shown, done.text);
  EXPECT_EQ(done.num_tokens, 8);
  EXPECT_FALSE(done.has_ended || done.is_full);
}

TEST_F(TextGeneratorTest, EndsAtAnEndFullOrStopped) {
  const std::vector<int32_t> ids = likeliest(prompt_, 8);
  const int32_t end = ids[4];
  const auto first = std::ranges::find(ids, end) - ids.begin();
  const Continuation ended = generator({end}).continue_text(prompt_, 8);
  EXPECT_TRUE(ended.has_ended);
  EXPECT_EQ(ended.num_tokens, first + 1);
  EXPECT_EQ(ended.text, tokenizer_.decode(std::span(ids).first(static_cast<size_t>(first))));

  const Continuation full = generator({}, kGreedy, /*capacity=*/5).continue_text(prompt_, 8);
  EXPECT_TRUE(full.is_full);
  EXPECT_EQ(full.num_tokens, 3) << "the last one is not computed with";
  EXPECT_FALSE(generator({}, kGreedy, /*capacity=*/5).continue_text(prompt_, 3).is_full);

  int num_asked = 0;
  EXPECT_EQ(generator().continue_text(prompt_, 8, {}, [&] { return ++num_asked == 3; }).num_tokens, 2);
}

TEST_F(TextGeneratorTest, GoesOnFromTheTextBefore) {
  TextGenerator talking = generator();
  std::vector<int32_t> ids = prompt_;
  talking.continue_text(ids, 4);
  for (const int32_t id : likeliest(ids, 4)) ids.push_back(id);
  ids.insert(ids.end(), {11, 13});
  const std::string expected = generator().continue_text(ids, 4).text;
  EXPECT_EQ(talking.continue_text(ids, 4).text, expected);
  EXPECT_EQ(talking.continue_text(prompt_, 4).text, tokenizer_.decode(likeliest(prompt_, 4)))
      << "another text begins anew";
}

// Samples at random: the random numbers depend on the text, not on the rank.
TEST_F(TextGeneratorTest, RanksContinueWhatOneRankDoes) {
  const std::vector<std::vector<int32_t>> prompts = {{5, 7, 9}, {1}, {5, 7}, {20, 30}, {5}};
  const SamplingOptions random = {.temperature = 2, .seed = 7};
  const auto continue_on = [&](Communicator& comm) {
    TestModel model(config_, DType::kF32, random_weights(parameter_layout(config_), 0.5f, /*seed=*/3));
    TextGenerator texts(tokenizer_, model.model(), 9, random, {});
    std::vector<std::string> found;
    const int64_t num_full =
        continue_in_turn(texts, prompts, 8, comm, [&](size_t number, const std::string& text) {
          EXPECT_EQ(number, found.size());
          found.push_back(text);
        });
    EXPECT_EQ(num_full, 1) << "of three tokens in the prompt";
    return found;
  };
  const std::vector<std::string> alone = continue_on(single_process());
  ASSERT_EQ(alone.size(), prompts.size());
  run_ranks({1, 3}, [&](Communicator& comm) {
    const std::vector<std::string> found = continue_on(comm);
    EXPECT_EQ(found, comm.world().rank == 0 ? alone : std::vector<std::string>());
  });
}

}  // namespace
}  // namespace tessera
