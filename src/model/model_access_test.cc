// A model that opens its parameters group by group computes what one with everything at hand computes.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <map>

#include "model/model_test_support.h"

namespace tessera {
namespace {

// Every group lives at another place each time it is opened, and is poisoned when closed. Records the calls.
class MovingAccess : public ParameterAccess {
 public:
  MovingAccess(const ParameterLayout& layout, std::vector<float> weights)
      : layout_(layout), weights_(std::move(weights)), gradients_(weights_.size(), kPoison) {}

  std::byte* open_weights(int64_t group, WeightUse use) override {
    calls.push_back(fmt::format("w{}{}", group, use == WeightUse::kForward ? "f" : "b"));
    EXPECT_FALSE(open_.contains(group)) << group;
    std::vector<float>& copy = open_[group];
    const ParameterLayout::Group range = layout_.groups()[static_cast<size_t>(group)];
    copy.assign(weights_.begin() + range.begin, weights_.begin() + range.end);
    return reinterpret_cast<std::byte*>(copy.data());
  }

  void close_weights(int64_t group) override {
    calls.push_back(fmt::format("-w{}", group));
    ASSERT_EQ(open_.erase(group), 1u) << group;
  }

  std::byte* open_gradients(int64_t group) override {
    calls.push_back(fmt::format("g{}", group));
    const ParameterLayout::Group range = layout_.groups()[static_cast<size_t>(group)];
    std::vector<float>& slot = slots_[group];
    slot.assign(static_cast<size_t>(range.end - range.begin), kPoison);
    return reinterpret_cast<std::byte*>(slot.data());
  }

  void close_gradients(int64_t group) override {
    calls.push_back(fmt::format("-g{}", group));
    const std::vector<float>& slot = slots_.at(group);
    std::copy(slot.begin(), slot.end(),
              gradients_.begin() + layout_.groups()[static_cast<size_t>(group)].begin);
    slots_.erase(group);
  }

  bool all_closed() const { return open_.empty() && slots_.empty(); }
  float gradient(int64_t index) const { return gradients_[static_cast<size_t>(index)]; }

  std::vector<std::string> calls;
  static constexpr float kPoison = 1e30f;

 private:
  const ParameterLayout& layout_;
  std::vector<float> weights_;
  std::vector<float> gradients_;
  std::map<int64_t, std::vector<float>> open_;
  std::map<int64_t, std::vector<float>> slots_;
};

class ModelAccess : public testing::TestWithParam<NamedConfig> {
 protected:
  const ModelConfig& config() const { return GetParam().config; }
};

TEST_P(ModelAccess, GradientsAreThoseOfAModelWithEverythingAtHand) {
  for (const bool checkpointing : {false, true}) {
    const ParameterLayout layout(config());
    const std::vector<float> weights = random_weights(layout, 0.3f, 1);
    const PackedBatch batch = pack(random_rows({7, 5}, config().vocab_size, 2));
    TestModel whole(config(), DType::kF32, weights);
    whole.model().reserve(limits_of(batch, checkpointing));
    const LossSums expected = whole.model().forward_backward(batch, 0.5f, 0, Update::kOverwrite);

    ThreadPool pool(2);
    const std::unique_ptr<Ops> ops = make_cpu_ops(pool);
    MovingAccess access(layout, weights);
    Model model(config(), DType::kF32, *ops);
    model.bind_parameters(access);
    model.reserve(limits_of(batch, checkpointing));
    for (int repeat = 0; repeat < 2; ++repeat) {
      const LossSums found = model.forward_backward(batch, 0.5f, 0, Update::kOverwrite);
      EXPECT_EQ(found.loss_sum, expected.loss_sum);
      EXPECT_TRUE(access.all_closed());
      for (const Parameter& parameter : layout.parameters()) {
        for (int64_t i = parameter.offset; i < parameter.offset + parameter.num_elements; ++i) {
          ASSERT_EQ(access.gradient(i), whole.gradients()[static_cast<size_t>(i)])
              << parameter.name << " " << i;
        }
      }
    }
    EXPECT_EQ(model.forward_loss(batch).loss_sum, expected.loss_sum);
    EXPECT_TRUE(access.all_closed());
  }
}

TEST_P(ModelAccess, ABatchWithoutTargetsAndNoBatchMakeTheSameCalls) {
  const ParameterLayout layout(config());
  PackedBatch batch = pack(random_rows({7, 5}, config().vocab_size, 2));
  ThreadPool pool(1);
  const std::unique_ptr<Ops> ops = make_cpu_ops(pool);
  MovingAccess access(layout, random_weights(layout, 0.3f, 1));
  Model model(config(), DType::kF32, *ops);
  model.bind_parameters(access);
  model.reserve(limits_of(batch));
  const auto calls_of = [&](const auto& body) {
    access.calls.clear();
    body();
    EXPECT_TRUE(access.all_closed());
    return access.calls;
  };
  const auto expect_zero = [&](const char* what) {
    for (const Parameter& parameter : layout.parameters()) {
      for (int64_t i = parameter.offset; i < parameter.offset + parameter.num_elements; ++i) {
        ASSERT_EQ(access.gradient(i), 0) << what << ": " << parameter.name << " " << i;
      }
    }
  };
  const auto backward = calls_of([&] { model.forward_backward(batch, 1, 0, Update::kOverwrite); });
  const auto forward = calls_of([&] { model.forward_loss(batch); });
  EXPECT_EQ(calls_of([&] { model.take_part_in_forward_backward(Update::kOverwrite); }), backward);
  expect_zero("no batch");
  EXPECT_EQ(calls_of([&] { model.take_part_in_forward(); }), forward);
  std::fill(batch.targets.begin(), batch.targets.end(), kIgnoredLabel);
  batch.num_targets = 0;
  EXPECT_EQ(calls_of([&] { model.forward_backward(batch, 1, 0, Update::kOverwrite); }), backward);
  expect_zero("no targets");
}

TEST(ModelAccessOrder, IsTheDocumentedOne) {
  ModelConfig config = tiny_config();
  const auto calls = [&] {
    const ParameterLayout layout(config);
    ThreadPool pool(1);
    const std::unique_ptr<Ops> ops = make_cpu_ops(pool);
    MovingAccess access(layout, random_weights(layout, 0.3f, 1));
    Model model(config, DType::kF32, *ops);
    model.bind_parameters(access);
    model.take_part_in_forward_backward(Update::kOverwrite);
    return fmt::format("{}", fmt::join(access.calls, " "));
  };
  config.tie_word_embeddings = false;
  EXPECT_EQ(calls(), "w0f -w0 w1f -w1 w2f -w2 w3b g3 -w3 -g3 w2b g2 -w2 -g2 w1b g1 -w1 -g1 g0 -g0");
  config.tie_word_embeddings = true;
  EXPECT_EQ(calls(), "w0f -w0 w1f -w1 w2f -w2 w0b w3b g0 g3 -w3 -w0 -g3 w2b g2 -w2 -g2 w1b g1 -w1 -g1 -g0");
}

INSTANTIATE_TEST_SUITE_P(Options, ModelAccess, testing::ValuesIn(all_option_configs()),
                         [](const auto& test) { return test.param.name; });

}  // namespace
}  // namespace tessera
