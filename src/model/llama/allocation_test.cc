// A step takes its memory from arenas reserved beforehand: this program counts what operator new allocates.
#include <gtest/gtest.h>

#include "model/llama/llama_generator.h"
#include "ops/forwarding_ops.h"
#include "support/allocation_counter.h"
#include "support/model_test_support.h"

namespace tessera {
namespace {

// Smaller than every tensor of the batch: 256 tokens of 12 values in BF16 are 6144 bytes.
constexpr size_t kSmallBytes = 4096;

TEST(Allocation, AStepTakesNoMemoryThatGrowsWithTheBatch) {
  const ModelConfig config = tiny_config();
  const PackedBatch batch = pack(random_rows({100, 100, 56}, config.vocab_size, 3));
  const auto weights = random_weights(parameter_layout(config), 0.3f, 3);
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    for (const bool checkpointing : {false, true}) {
      TestModel test(config, dtype, weights);
      test.model().reserve(limits_of(batch, checkpointing));
      test.model().forward_backward(batch, 1.0f);  // one-time setup of the kernels
      reset_largest_allocation();
      test.model().forward_backward(batch, 1.0f);
      test.model().forward_loss(batch);
      EXPECT_LT(largest_allocation_bytes(), kSmallBytes)
          << dtype_name(dtype) << (checkpointing ? " with" : " without") << " checkpointing";
    }
  }
  reset_largest_allocation();
  const std::vector<float> counted(kSmallBytes);
  EXPECT_GE(largest_allocation_bytes(), kSmallBytes) << "allocations are not counted";
}

// oneDNN allocates in its products.
class OpsWithoutProducts : public ForwardingOps {
 public:
  using ForwardingOps::ForwardingOps;
  void linear(ConstTensorView, const LinearWeight&, ConstTensorView, TensorView y_TN) override { zero(y_TN); }
  void linear_backward_input(ConstTensorView, const LinearWeight&, TensorView dx_TK, Update) override {
    zero(dx_TK);
  }
  void linear_backward_weight(ConstTensorView, ConstTensorView, TensorView, WeightUpdate) override {}
};

// Every group is at one of two places by turns, so that it is bound again each time.
class AlternatingAccess : public ParameterAccess {
 public:
  explicit AlternatingAccess(const ParameterLayout& layout) : layout_(layout) {
    for (std::vector<float>& copy : copies_) copy.resize(static_cast<size_t>(layout.num_elements()));
  }
  std::byte* open_weights(int64_t group, WeightUse) override { return next_place(group); }
  void close_weights(int64_t) override {}
  void reserve_packed_forms(std::span<const int64_t>) override { FAIL() << "not asked for"; }
  std::byte* packed_forms(int64_t) override { return nullptr; }
  std::byte* open_gradients(int64_t group) override { return next_place(group); }
  void close_gradients(int64_t) override {}

 private:
  std::byte* next_place(int64_t group) {
    std::vector<float>& copy = copies_[num_opened_++ / layout_.groups().size() % 2];
    return reinterpret_cast<std::byte*>(
        &copy[static_cast<size_t>(layout_.groups()[static_cast<size_t>(group)].begin)]);
  }

  const ParameterLayout& layout_;
  std::vector<float> copies_[2];
  size_t num_opened_ = 0;
};

TEST(Allocation, OutsideTheProductsAStepTakesNoMemoryAtAll) {
  ModelConfig config = tiny_config();
  config.num_hidden_layers = 3;
  const PackedBatch batch = pack(random_rows({100, 100, 56}, config.vocab_size, 3));
  ThreadPool pool(2);
  const std::unique_ptr<Ops> cpu_ops = make_cpu_ops(pool);
  OpsWithoutProducts ops(*cpu_ops);
  for (const bool checkpointing : {false, true}) {
    LlamaModel model(config, DType::kF32, ops);
    AlternatingAccess access(model.layout());
    model.bind_parameters(access);
    model.reserve(limits_of(batch, checkpointing));
    const auto step = [&] {
      double squares = 0;
      model.forward_backward(batch, 1.0f, 0, Update::kOverwrite);
      model.take_part_in_forward_backward(Update::kAdd);
      model.forward_backward(batch, 1.0f, 0, {Update::kAdd, &squares});
      model.forward_loss(batch);
      return model.flops(batch.cu_seqlens, 0, batch.num_targets).forward_backward();
    };
    step();
    reset_largest_allocation();
    EXPECT_GT(step(), 0);
    EXPECT_EQ(largest_allocation_bytes(), 0u) << (checkpointing ? "with" : "without") << " checkpointing";
  }
}

TEST(Allocation, ATokenTakesNoMemoryThatGrowsWithTheModel) {
  ModelConfig config = tiny_config();
  config.vocab_size = 2000;  // logits of 8000 bytes
  TestModel test(config, DType::kF32, random_weights(parameter_layout(config), 0.3f, 3));
  LlamaGenerator generator(test.model(), 8);
  const std::vector<int32_t> ids = {1, 2};
  generator.feed(ids);
  reset_largest_allocation();
  generator.feed(ids);
  EXPECT_LT(largest_allocation_bytes(), kSmallBytes);
}

}  // namespace
}  // namespace tessera
