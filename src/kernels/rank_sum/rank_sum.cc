#include "kernels/rank_sum/rank_sum.h"

#include <algorithm>

#include "base/error.h"
#include "kernels/rank_sum/rank_sum_impl.h"
#include "platform/subnormals.h"

namespace tessera {

namespace {

void for_blocks(int64_t count, ThreadPool* pool, FunctionRef<void(int64_t begin, int64_t end)> body) {
  if (pool != nullptr) {
    pool->parallel_blocks(count, kRankSumBlock, body);
    return;
  }
  const SubnormalsAreZero as_in_a_pool;
  for (int64_t begin = 0; begin < count; begin += kRankSumBlock) {
    body(begin, std::min(begin + kRankSumBlock, count));
  }
}

// A cached store first reads the line it replaces. Two cores, GB/s cached and streaming: 54 and 55 for
// outputs of 4 to 32 MiB, where cached output is still in cache when the optimizer reads it; 36 and 44 for
// 128 MiB, 32 and 40 for 512 MiB. If y must be read anyway, nothing is gained.
Stores stores_for(Update update, int64_t count) {
  constexpr int64_t kStreamFrom = int64_t{16} << 20;  // elements: 64 MiB
  return update == Update::kOverwrite && count >= kStreamFrom ? Stores::kStreaming : Stores::kCached;
}

}  // namespace

const DispatchTable<RankSumKernels>& rank_sum_table() {
  static const DispatchTable<RankSumKernels> table("rank_sum", concat(rank_sum_hwy(), rank_sum_ref()));
  return table;
}

void rank_sum(std::span<const RankInput> inputs, Update update, float* y, int64_t count, ThreadPool* pool) {
  TESSERA_CHECK(!inputs.empty() && std::ssize(inputs) <= kMaxRankSumInputs, "{} inputs", inputs.size());
  const auto sum = rank_sum_table().chosen().sum;
  const Stores stores = stores_for(update, count);
  for_blocks(count, pool, [&](int64_t begin, int64_t end) { sum(inputs, update, stores, y, begin, end); });
}

void round_to_bf16(const float* x, bf16* y, int64_t count, ThreadPool* pool) {
  const auto round = rank_sum_table().chosen().round;
  for_blocks(count, pool, [&](int64_t begin, int64_t end) { round(x, y, begin, end); });
}

}  // namespace tessera
