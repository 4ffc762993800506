// Throughput of the tile unit when its operands come from registers, L1, L2, L3 or memory: the ceiling of
// every blocked matrix product, one level of the hierarchy at a time.
//
// All feeds but the first run the loop of the matrix product: 2 x 2 tiles of sums, and per 32 elements of the
// contraction two tiles of a, two of b and four TDPBF16PS. Panels of a are reused at once, panels of b are
// streamed.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/memory.h"
#include "platform/thread_pool.h"

namespace tessera {

enum class TileFeed {
  kL1,            // both operands in L1
  kL1AndL2,       // a in L1, b from L2
  kL2,            // both from L2
  kSums,          // like kL1AndL2; sums of 512 products at a time are read from and written to L2
  kSumsL3,        // also a comes from L3, prefetched
  kSumsL3Memory,  // also b from memory, prefetched: all the traffic of a product of 512 tokens
};
inline constexpr TileFeed kTileFeeds[] = {TileFeed::kL1,   TileFeed::kL1AndL2, TileFeed::kL2,
                                          TileFeed::kSums, TileFeed::kSumsL3,  TileFeed::kSumsL3Memory};

// "a and b from L2".
const char* tile_feed_text(TileFeed feed);

class TileFeedMeter {
 public:
  // Fills its memory, about 300 MiB per thread, with random values. Error(kBadConfig) without AMX. The pool
  // must outlive this.
  explicit TileFeedMeter(ThreadPool& pool);

  // 10^12 operations per second over all threads, measured for about `seconds`. Allocates nothing.
  double measure(TileFeed feed, double seconds);

  // One 32 x 32 tile of sums over 512 products from the same loop, with its operands, so that the loop can be
  // verified: element (i, j) is the sum over k of a[i][k] b[k][j].
  struct Sample {
    std::vector<float> a;  // [32, 512]
    std::vector<float> b;  // [512, 32]
    std::vector<float> sums;
  };
  Sample sample() const;

 private:
  struct Buffers {
    PageBuffer a, b, sums;
    int64_t next_b = 0;  // bytes
  };

  ThreadPool* pool_;
  std::vector<Buffers> buffers_;  // one per thread
};

}  // namespace tessera
