// A model that opens its parameters group by group must give the same results as one that has all of them.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <iterator>
#include <map>

#include "base/memory.h"
#include "ops/forwarding_ops.h"
#include "support/model_test_support.h"

namespace tessera {
namespace {

// Places every group elsewhere each time it is opened, and poisons it when closed. Records the calls.
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

  void reserve_packed_forms(std::span<const int64_t>) override { FAIL() << "not asked for"; }
  std::byte* packed_forms(int64_t) override { return nullptr; }

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
    const ParameterLayout layout = parameter_layout(config());
    const std::vector<float> weights = random_weights(layout, 0.3f, 1);
    const PackedBatch batch = pack(random_rows({7, 5}, config().vocab_size, 2));
    TestModel whole(config(), DType::kF32, weights);
    whole.model().reserve(limits_of(batch, checkpointing));
    const LossSums expected = whole.model().forward_backward(batch, 0.5f, 0, Update::kOverwrite);

    ThreadPool pool(2);
    const std::unique_ptr<Ops> ops = make_cpu_ops(pool);
    MovingAccess access(layout, weights);
    LlamaModel model(config(), DType::kF32, *ops);
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
  const ParameterLayout layout = parameter_layout(config());
  PackedBatch batch = pack(random_rows({7, 5}, config().vocab_size, 2));
  ThreadPool pool(1);
  const std::unique_ptr<Ops> ops = make_cpu_ops(pool);
  MovingAccess access(layout, random_weights(layout, 0.3f, 1));
  LlamaModel model(config(), DType::kF32, *ops);
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

// Abandons at every point where the hook is called.
TEST_P(ModelAccess, AnAbandonedPassMakesTheSameCallsAndComputesNothingMore) {
  const ParameterLayout layout = parameter_layout(config());
  const PackedBatch batch = pack(random_rows({7, 5}, config().vocab_size, 2));
  ThreadPool pool(1);
  const std::unique_ptr<Ops> ops = make_cpu_ops(pool);
  MovingAccess access(layout, random_weights(layout, 0.3f, 1));
  LlamaModel model(config(), DType::kF32, *ops);
  model.bind_parameters(access);
  model.reserve(limits_of(batch, /*checkpointing=*/true));
  const LossSums whole = model.forward_backward(batch, 1, 0, Update::kOverwrite);
  const auto calls = std::exchange(access.calls, {});
  std::vector<float> gradients;
  for (int64_t i = 0; i < layout.num_elements(); ++i) gradients.push_back(access.gradient(i));
  const int64_t head = config().num_hidden_layers + 1;
  const int64_t num_forward = head + (config().tie_word_embeddings ? 2 : 1);
  const int64_t num_asked = num_forward + config().num_hidden_layers;

  for (int64_t last = 0; last < num_asked; ++last) {
    int64_t asked = 0;
    model.call_between_layers([&](int64_t, WeightUse) { return asked++ < last; });
    const LossSums sums = model.forward_backward(batch, 1, 0, Update::kOverwrite);
    EXPECT_EQ(asked, num_asked);
    EXPECT_EQ(access.calls, calls) << last;
    EXPECT_TRUE(access.all_closed());
    access.calls.clear();
    EXPECT_EQ(sums.loss_sum, last < num_forward ? 0 : whole.loss_sum) << last;
    const int64_t first_computed = last < num_forward ? head + 1 : head - (last - num_forward);
    for (const Parameter& parameter : layout.parameters()) {
      if (parameter.group >= first_computed) continue;
      const auto begin = static_cast<size_t>(parameter.offset);
      // An expert that no token chose has no gradient to compute.
      bool is_computed = true, is_unused = parameter.name.find(".experts.") != std::string::npos;
      for (size_t i = begin; i < begin + static_cast<size_t>(parameter.num_elements); ++i) {
        is_computed &= access.gradient(static_cast<int64_t>(i)) == gradients[i];
        is_unused &= gradients[i] == 0;
      }
      EXPECT_FALSE(is_computed && !is_unused) << parameter.name << " behind " << last;
    }
  }
  model.call_between_layers([&](int64_t, WeightUse) { return false; });
  EXPECT_EQ(model.forward_loss(batch).num_targets, 0);
  model.call_between_layers({});
  EXPECT_EQ(model.forward_backward(batch, 1, 0, Update::kOverwrite).loss_sum, whole.loss_sum);
}

TEST(ModelAccessOrder, IsTheDocumentedOne) {
  ModelConfig config = tiny_config();
  const auto calls = [&] {
    const ParameterLayout layout = parameter_layout(config);
    ThreadPool pool(1);
    const std::unique_ptr<Ops> ops = make_cpu_ops(pool);
    MovingAccess access(layout, random_weights(layout, 0.3f, 1));
    LlamaModel model(config, DType::kF32, *ops);
    model.bind_parameters(access);
    model.take_part_in_forward_backward(Update::kOverwrite);
    return fmt::format("{}", fmt::join(access.calls, " "));
  };
  config.tie_word_embeddings = false;
  EXPECT_EQ(calls(), "w0f -w0 w1f -w1 w2f -w2 w3b g3 -w3 -g3 w2b g2 -w2 -g2 w1b g1 -w1 -g1 g0 -g0");
  config.tie_word_embeddings = true;
  EXPECT_EQ(calls(), "w0f -w0 w1f -w1 w2f -w2 w0b w3b g0 g3 -w3 -w0 -g3 w2b g2 -w2 -g2 w1b g1 -w1 -g1 -g0");
}

// Keeps everything in one place, with packed forms if requested: made in `num_shares` shares when a group is
// first opened. Works two groups ahead, as an implementation that shares them with other ranks may.
class PackingAccess : public ParameterAccess {
 public:
  PackingAccess(TrainableModel& model, const std::vector<float>& weights, int64_t num_shares)
      : gradients(weights.size()), model_(model), num_shares_(num_shares) {
    std::transform(weights.begin(), weights.end(), std::back_inserter(weights_), to_bf16);
    model.bind_parameters(*this);
  }

  std::byte* open_weights(int64_t group, WeightUse) override {
    for (; !forms_.empty() && num_packed_ < std::ssize(forms_) && num_packed_ <= group + 2; ++num_packed_) {
      for (int64_t share = num_shares_ - 1; share >= 0; --share) {
        model_.pack_group(num_packed_, data_of(num_packed_), {share, num_shares_});
      }
    }
    return data_of(group);
  }
  void close_weights(int64_t) override {}
  void reserve_packed_forms(std::span<const int64_t> bytes_by_group) override {
    forms_.clear();
    for (const int64_t size_bytes : bytes_by_group) {
      forms_.emplace_back(size_bytes);
      for (std::byte& byte : forms_.back().as<std::byte>()) byte = std::byte{0xFF};  // NaN
    }
  }
  std::byte* packed_forms(int64_t group) override {
    return forms_.empty() ? nullptr : forms_[static_cast<size_t>(group)].data();
  }
  std::byte* open_gradients(int64_t group) override {
    return reinterpret_cast<std::byte*>(&gradients[static_cast<size_t>(begin_of(group))]);
  }
  void close_gradients(int64_t) override {}

  void negate_weights() {
    for (bf16& weight : weights_) weight = to_bf16(-to_float(weight));
    num_packed_ = 0;
  }
  std::byte* data_of(int64_t group) {
    return reinterpret_cast<std::byte*>(&weights_[static_cast<size_t>(begin_of(group))]);
  }
  const std::vector<PageBuffer>& all_forms() const { return forms_; }

  std::vector<float> gradients;

 private:
  int64_t begin_of(int64_t group) const { return model_.layout().groups()[static_cast<size_t>(group)].begin; }

  TrainableModel& model_;
  std::vector<bf16> weights_;
  int64_t num_shares_;
  int64_t num_packed_ = 0;
  std::vector<PageBuffer> forms_;
};

// Packed forms that are copies, on any processor.
class CopyingOps : public ForwardingOps {
 public:
  using ForwardingOps::ForwardingOps;
  int64_t packed_weight_bytes(int64_t N, int64_t K, DType dtype) const override {
    return N * K * dtype_bytes(dtype);
  }
  void pack_linear_weight(ConstTensorView w_NK, const PackedForms& to, RowRange rows) override {
    const ConstTensorView from = w_NK.rows(rows.begin, rows.end);
    const int64_t begin = from.bytes() - w_NK.bytes();
    for (std::byte* form : {to.forward, to.backward_input}) {
      if (form != nullptr) std::copy_n(from.bytes(), from.size_bytes(), form + begin);
    }
  }
};

// Without training, the form of the product alone: that of the gradient if the matrix is transposed.
void expect_packed(const LinearWeight& matrix, bool training, bool transposed = false) {
  const std::byte* const forward = transposed ? matrix.packed.backward_input : matrix.packed.forward;
  const std::byte* const backward = transposed ? matrix.packed.forward : matrix.packed.backward_input;
  const ConstTensorView w_NK = matrix.w_NK;
  const auto holds_copy = [&](const std::byte* form) {
    return std::equal(form, form + w_NK.size_bytes(), w_NK.bytes());
  };
  ASSERT_NE(forward, nullptr);
  EXPECT_TRUE(holds_copy(forward));
  EXPECT_EQ(matrix.packed_rows, w_NK.dim(0));
  ASSERT_EQ(backward != nullptr, training);
  EXPECT_TRUE(!training || holds_copy(backward));
}

void expect_packed(const LlamaWeights& weights, bool training, bool transposed) {
  for (const LayerWeights& layer : weights.layers) {
    expect_packed(layer.attention.wqkv_QD, training);
    expect_packed(layer.attention.wo_DHE, training);
    for (const auto& expert : layer.moe.experts) {
      expect_packed(expert.w1_F2D, training, transposed);
      expect_packed(expert.w2_DF, training, transposed);
    }
    if (!layer.moe.empty()) continue;
    expect_packed(layer.mlp.w1_F2D, training);
    expect_packed(layer.mlp.w2_DF, training);
  }
  expect_packed(weights.head.lm_head_VD, training);
}

TEST_P(ModelAccess, EveryMatrixHasItsPackedForms) {
  ThreadPool pool(1);
  const std::unique_ptr<Ops> cpu_ops = make_cpu_ops(pool);
  CopyingOps ops(*cpu_ops);
  const bool has_transposed = config().experts && config().experts->fused;
  ActivationLimits limits = {8, 8};
  limits.pack_weights = true;
  for (const bool training : {false, true}) {
    limits.training = training;
    LlamaModel whole(config(), DType::kBF16, ops);
    const int64_t size = whole.layout().num_elements();
    const std::vector<float> weights = random_weights(whole.layout(), 0.3f, 1);
    std::vector<bf16> rounded;
    std::transform(weights.begin(), weights.end(), std::back_inserter(rounded), to_bf16);
    whole.bind_parameters({rounded.data(), DType::kBF16, {size}}, {});
    whole.reserve(limits);
    EXPECT_EQ(whole.reserved_bytes().packed_bytes, whole.activation_bytes(limits).packed_bytes);
    for (int step = 0; step < 2; ++step) {
      whole.refresh_packed_forms();
      expect_packed(whole.weights(), training, has_transposed);
      std::reverse(rounded.begin(), rounded.end());
      whole.weights_changed();
    }
    for (const int64_t num_shares : {1, 3}) {
      LlamaModel opened(config(), DType::kBF16, ops);
      PackingAccess access(opened, weights, num_shares);
      opened.reserve(limits);
      opened.take_part_in_forward();
      expect_packed(opened.weights(), training, has_transposed);
      int64_t packed_bytes = 0;
      for (const PageBuffer& forms : access.all_forms()) packed_bytes += forms.size_bytes();
      EXPECT_EQ(packed_bytes, opened.activation_bytes(limits).packed_bytes);
    }
  }
}

TEST_P(ModelAccess, PackedFormsInSharesChangeNoBit) {
  const PackedBatch batch = pack(random_rows({19, 15}, config().vocab_size, 2));
  ThreadPool pool(2);
  const std::unique_ptr<Ops> ops = make_cpu_ops(pool);
  if (ops->packed_weight_bytes(32, 32, DType::kBF16) == 0) GTEST_SKIP() << "no packed forms here";
  const std::vector<float> weights = random_weights(parameter_layout(config()), 0.3f, 1);
  for (const int64_t num_shares : {1, 3}) {
    LlamaModel plain(config(), DType::kBF16, *ops), packing(config(), DType::kBF16, *ops);
    PackingAccess expected(plain, weights, 1), found(packing, weights, num_shares);
    ActivationLimits limits = limits_of(batch);
    plain.reserve(limits);
    limits.pack_weights = true;
    packing.reserve(limits);
    EXPECT_TRUE(expected.all_forms().empty());
    int64_t packed_bytes = 0;
    for (const PageBuffer& forms : found.all_forms()) packed_bytes += forms.size_bytes();
    EXPECT_EQ(packed_bytes, packing.activation_bytes(limits).packed_bytes);
    EXPECT_EQ(packing.reserved_bytes().packed_bytes, 0);
    for (int step = 0; step < 2; ++step) {
      EXPECT_EQ(packing.forward_backward(batch, 0.5f, 0, Update::kOverwrite).loss_sum,
                plain.forward_backward(batch, 0.5f, 0, Update::kOverwrite).loss_sum);
      EXPECT_EQ(found.gradients, expected.gradients) << num_shares << " shares, step " << step;
      expected.negate_weights();
      found.negate_weights();
    }
    // Shows that the forms are what is read: different forms give a different result.
    packing.forward_backward(batch, 0.5f, 0, Update::kOverwrite);
    const std::vector<float> of_weights = found.gradients;
    for (const PageBuffer& forms : found.all_forms()) {
      std::fill_n(forms.data(), forms.size_bytes(), std::byte{0});
    }
    packing.forward_backward(batch, 0.5f, 0, Update::kOverwrite);
    EXPECT_NE(found.gradients, of_weights);
  }
}

TEST(PackShares, AreDisjointAndNearlyEqual) {
  ModelConfig config = tiny_config();
  config.hidden_size = 96;
  config.intermediate_size = 200;
  config.vocab_size = 1000;
  config.head_dim = 24;
  config.num_hidden_layers = 1;
  ThreadPool pool(2);
  const std::unique_ptr<Ops> ops = make_cpu_ops(pool);
  if (ops->packed_weight_bytes(32, 32, DType::kBF16) == 0) GTEST_SKIP() << "no packed forms here";
  constexpr int64_t kNumShares = 4;
  LlamaModel model(config, DType::kBF16, *ops);
  PackingAccess access(model, random_weights(model.layout(), 0.3f, 1), kNumShares);
  const PackedBatch batch = pack(random_rows({19}, config.vocab_size, 2));
  ActivationLimits limits = limits_of(batch);
  limits.pack_weights = true;
  model.reserve(limits);
  for (const int64_t group : {1, 2}) {
    const PageBuffer& forms = access.all_forms()[static_cast<size_t>(group)];
    const int64_t size = forms.size_bytes();
    ASSERT_GT(size, 0);
    std::vector<int> writers(static_cast<size_t>(size));
    for (int64_t share = 0; share < kNumShares; ++share) {
      std::vector<std::byte> former(static_cast<size_t>(size), std::byte{0xFF});
      std::copy(former.begin(), former.end(), forms.data());
      model.pack_group(group, access.data_of(group), {share, kNumShares});
      int64_t written = 0;
      for (int64_t i = 0; i < size; i += 64) {
        if (std::memcmp(forms.data() + i, former.data(), 64) == 0) continue;
        ++writers[static_cast<size_t>(i)];
        written += 64;
      }
      // Each boundary is off by half of 32 rows of the widest matrix (200 columns, padded to 224), in two
      // forms.
      EXPECT_NEAR(static_cast<double>(written), static_cast<double>(size) / kNumShares,
                  2 * 32 * 224 * 2 * 1.5)
          << "group " << group << " share " << share;
    }
    for (int64_t i = 0; i < size; i += 64) {
      ASSERT_EQ(writers[static_cast<size_t>(i)], 1) << "group " << group << " byte " << i;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Options, ModelAccess, testing::ValuesIn(all_option_configs()),
                         [](const auto& test) { return test.param.name; });

}  // namespace
}  // namespace tessera
