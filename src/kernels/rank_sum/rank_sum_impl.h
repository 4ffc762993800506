// The implementations behind rank_sum.h, for its dispatch, tests and benchmarks.
#pragma once

#include <vector>

#include "kernels/dispatch.h"
#include "kernels/rank_sum/rank_sum.h"

namespace tessera {

// Elements a thread takes at a time: 128 KiB of output.
inline constexpr int64_t kRankSumBlock = 32 * 1024;

// Whether y is written past the caches.
enum class Stores { kCached, kStreaming };

// Elements [begin, end) on the calling thread.
struct RankSumKernels {
  void (*sum)(std::span<const RankInput> inputs, Update update, Stores stores, float* y, int64_t begin,
              int64_t end);
  void (*round)(const float* x, bf16* y, int64_t begin, int64_t end);
};

std::vector<Implementation<RankSumKernels>> rank_sum_ref();
std::vector<Implementation<RankSumKernels>> rank_sum_hwy();
const DispatchTable<RankSumKernels>& rank_sum_table();

}  // namespace tessera
