// A step takes its memory from arenas reserved beforehand: this program counts what operator new allocates.
#include <gtest/gtest.h>

#include "model/allocation_counter.h"
#include "model/llama/generator.h"
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

TEST(Allocation, ATokenTakesNoMemoryThatGrowsWithTheModel) {
  ModelConfig config = tiny_config();
  config.vocab_size = 2000;  // logits of 8000 bytes
  TestModel test(config, DType::kF32, random_weights(parameter_layout(config), 0.3f, 3));
  Generator generator(test.model(), 8);
  const std::vector<int32_t> ids = {1, 2};
  generator.feed(ids);
  reset_largest_allocation();
  generator.feed(ids);
  EXPECT_LT(largest_allocation_bytes(), kSmallBytes);
}

}  // namespace
}  // namespace tessera
