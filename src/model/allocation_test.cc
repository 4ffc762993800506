// A step takes its memory from arenas reserved before: this program counts what operator new hands out.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <new>

#include "model/model_test_support.h"

namespace {
std::atomic<size_t> largest_allocation_bytes{0};
}  // namespace

void* operator new(size_t size_bytes) {
  size_t largest = largest_allocation_bytes.load();
  while (size_bytes > largest && !largest_allocation_bytes.compare_exchange_weak(largest, size_bytes)) {
  }
  if (void* memory = std::malloc(size_bytes)) return memory;
  throw std::bad_alloc();
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, size_t /*size_bytes*/) noexcept { std::free(memory); }

namespace tessera {
namespace {

// Below every tensor of the batch: 256 tokens of 12 values in BF16 are 6144 bytes.
constexpr size_t kSmallBytes = 4096;

TEST(Allocation, AStepTakesNoMemoryThatGrowsWithTheBatch) {
  const ModelConfig config = tiny_config();
  const PackedBatch batch = pack(random_rows({100, 100, 56}, config.vocab_size, 3));
  const auto weights = random_weights(ParameterLayout(config), 0.3f, 3);
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    for (const bool checkpointing : {false, true}) {
      TestModel test(config, dtype, weights);
      test.model().reserve(limits_of(batch, checkpointing));
      test.model().forward_backward(batch, 1.0f);  // what kernels set up once
      largest_allocation_bytes = 0;
      test.model().forward_backward(batch, 1.0f);
      test.model().forward_loss(batch);
      EXPECT_LT(largest_allocation_bytes.load(), kSmallBytes)
          << dtype_name(dtype) << (checkpointing ? " with" : " without") << " checkpointing";
    }
  }
  largest_allocation_bytes = 0;
  const std::vector<float> counted(kSmallBytes);
  EXPECT_GE(largest_allocation_bytes.load(), kSmallBytes) << "allocations are not counted";
}

TEST(Allocation, ATokenTakesNoMemoryThatGrowsWithTheModel) {
  ModelConfig config = tiny_config();
  config.vocab_size = 2000;  // logits of 8000 bytes
  TestModel test(config, DType::kF32, random_weights(ParameterLayout(config), 0.3f, 3));
  Generator generator(test.model(), 8);
  const std::vector<int32_t> ids = {1, 2};
  generator.feed(ids);
  largest_allocation_bytes = 0;
  generator.feed(ids);
  EXPECT_LT(largest_allocation_bytes.load(), kSmallBytes);
}

}  // namespace
}  // namespace tessera
