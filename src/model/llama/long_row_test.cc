// Batches of more tokens than one chunk of the MLP.
#include <gtest/gtest.h>

#include <algorithm>

#include "base/rng.h"
#include "model/blocks/mlp_block.h"
#include "support/model_test_support.h"

namespace tessera {
namespace {

constexpr uint64_t kLongRowSeed = 5;

// A tensor in memory of its own.
struct OwnTensor {
  OwnTensor(DType dtype, const Shape& shape)
      : memory(host_device().allocate(shape.num_elements() * dtype_bytes(dtype))),
        view(memory.address(), dtype, shape) {}

  OwnTensor& fill(uint64_t stream) {
    const CounterRng rng(kLongRowSeed, stream);
    for (int64_t i = 0; i < view.num_elements(); ++i) {
      view.as<bf16>()[i] = to_bf16(static_cast<float>(rng.uniform(static_cast<uint64_t>(i))) - 0.5f);
    }
    return *this;
  }
  bool operator==(const OwnTensor& other) const {
    return std::equal(view.bytes(), view.bytes() + memory.size_bytes(), other.view.bytes());
  }

  DeviceBuffer memory;
  TensorView view;
};

// Whole chunks: where the products sum a weight gradient block by block, a block never spans two of them.
TEST(MlpChunks, LeaveTheBitsAsTheyAre) {
  constexpr int64_t T = 2 * kMlpChunkTokens, D = 48, F = 40;
  constexpr float kEps = 1e-5f;
  ModelConfig config = tiny_config();
  config.hidden_size = D;
  config.intermediate_size = F;
  ThreadPool pool(2);
  const std::unique_ptr<Ops> ops = make_cpu_ops(pool);
  OpsLimits limits = {};
  limits.max_tokens = T;
  limits.hidden_size = D;
  limits.max_sum_elements = 2 * F * D;
  limits.dtype = DType::kBF16;
  limits.training = true;
  limits.linears = {{T, {2 * F, D}}, {T, {D, F}}};
  OwnTensor workspace(DType::kU8, {ops->workspace_bytes(limits)});
  ops->bind_workspace(workspace.memory.span());

  OwnTensor norm_w(DType::kBF16, {D}), w1(DType::kBF16, {2 * F, D}), w2(DType::kBF16, {D, F});
  const MlpWeights weights = {
      norm_w.fill(1).view, {w1.fill(2).view, {}}, {}, {w2.fill(3).view, {}}, {}, {}, {}, {}};
  OwnTensor x(DType::kBF16, {T, D}), dx(DType::kBF16, {T, D}), y(DType::kBF16, {T, D});
  OwnTensor dnorm_w(DType::kF32, {D}), dw1(DType::kF32, {2 * F, D}), dw2(DType::kF32, {D, F});
  x.fill(4);
  dx.fill(5);

  // Whole, by the formulas of mlp_block.h.
  OwnTensor whole_dx(DType::kBF16, {T, D}), whole_y(DType::kBF16, {T, D});
  OwnTensor whole_dw1(DType::kF32, {2 * F, D}), whole_dw2(DType::kF32, {D, F});
  OwnTensor norm(DType::kBF16, {T, D}), rstd(DType::kF32, {T}), gate_up(DType::kBF16, {T, 2 * F});
  OwnTensor h(DType::kBF16, {T, F});
  whole_dx.fill(5);
  double whole_squares = 0;
  ops->rmsnorm(x.view, norm_w.view, kEps, norm.view, rstd.view);
  ops->linear(norm.view, weights.w1_F2D, {}, gate_up.view);
  ops->swiglu(gate_up.view, h.view);
  ops->linear(h.view, weights.w2_DF, {}, whole_y.view);
  ops->linear_backward_input(whole_dx.view, weights.w2_DF, h.view, Update::kOverwrite);
  ops->swiglu_backward(h.view, gate_up.view, gate_up.view, h.view);
  const WeightUpdate whole_update = {Update::kOverwrite, &whole_squares};
  ops->linear_backward_weight(whole_dx.view, h.view, whole_dw2.view, whole_update);
  ops->linear_backward_weight(gate_up.view, norm.view, whole_dw1.view, whole_update);
  ops->linear_backward_input(gate_up.view, weights.w1_F2D, norm.view, Update::kOverwrite);
  ops->rmsnorm_backward(norm.view, x.view, norm_w.view, rstd.view, whole_dx.view, Update::kAdd, dnorm_w.view,
                        Update::kOverwrite);

  for (const bool keeps_gate_up : {false, true}) {
    Arena measured = Arena::measuring();
    allocate_mlp_scratch(measured, config, DType::kBF16, T, !keeps_gate_up);
    OwnTensor memory(DType::kU8, {measured.high_water_bytes()});
    Arena arena(memory.memory);
    const MlpScratch scratch = allocate_mlp_scratch(arena, config, DType::kBF16, T, !keeps_gate_up);
    const MlpSaved saved = {x.view, keeps_gate_up ? gate_up.view : TensorView(), {}, {}};
    double squares = 0;
    dx.fill(5);
    mlp_block_forward(*ops, {kEps}, weights, /*residual_TD=*/{}, saved, scratch, y.view);
    mlp_block_backward(*ops, {kEps}, weights, {dnorm_w.view, dw1.view, {}, dw2.view, {}, {}, {}, {}},
                       {Update::kOverwrite, &squares}, saved, scratch, dx.view);
    EXPECT_TRUE(y == whole_y);
    EXPECT_TRUE(dx == whole_dx);
    EXPECT_TRUE(dw1 == whole_dw1);
    EXPECT_TRUE(dw2 == whole_dw2);
    EXPECT_EQ(squares, whole_squares);
  }
}

// A last chunk of any length: what is kept changes no bit.
TEST(MlpChunks, CheckpointingGivesTheSameBitsInLongBatches) {
  ModelConfig config = tiny_config();
  config.mlp_bias = true;
  const PackedBatch batch =
      pack(random_rows({300, kMlpChunkTokens - 301, 2, 250, 60}, config.vocab_size, kLongRowSeed));
  std::vector<std::vector<float>> gradients;
  for (const int64_t num_kept_outputs : {-1, 0, 2}) {
    TestModel test(config, DType::kBF16, random_weights(parameter_layout(config), 0.3f, kLongRowSeed));
    ActivationLimits limits = limits_of(batch, num_kept_outputs >= 0);
    limits.num_kept_outputs = std::max<int64_t>(num_kept_outputs, 0);
    test.model().reserve(limits);
    test.model().forward_backward(batch, 1.0f, 0, Update::kOverwrite);
    gradients.push_back(test.gradients());
  }
  EXPECT_TRUE(gradients[1] == gradients[0]);
  EXPECT_TRUE(gradients[2] == gradients[0]);
}

// Rows of 32,768 tokens in a Llama-3-8B layer: what a pass needs beyond the layers' inputs.
TEST(MlpChunks, ActivationsOfALongRowFitBesideTheRest) {
  ModelConfig config = tiny_config();
  config.hidden_size = 4096;
  config.intermediate_size = 14336;
  config.num_hidden_layers = 32;
  config.num_attention_heads = 32;
  config.num_key_value_heads = 8;
  config.head_dim = 128;
  config.vocab_size = 128256;
  config.max_position_embeddings = 32768;
  ThreadPool pool(1);
  const std::unique_ptr<Ops> ops = make_cpu_ops(pool);
  const LlamaModel model(config, DType::kBF16, *ops);
  const ActivationBytes bytes = model.activation_bytes(
      {.max_tokens = 32768, .max_sequence_length = 32768, .gradient_checkpointing = true});
  const int64_t kStreamBytes = int64_t{2} * 32768 * 4096;
  // Inputs, the final stream and its gradient; qkv, o and the stream of one layer; norm, do and dqkv.
  EXPECT_LT(bytes.saved_bytes + bytes.working_bytes, (32 + 2 + 3.5 + 3.5) * kStreamBytes + (32 << 20));
  EXPECT_LT(bytes.total(), int64_t{11} << 30);
}

}  // namespace
}  // namespace tessera
