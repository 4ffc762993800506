// The number of messages that one member's part of an operation takes to another.
#pragma once

#include <algorithm>
#include <cstdint>

#include "base/divide_up.h"
#include "base/memory.h"

namespace tessera {

// On the wire. Larger chunks are no faster.
inline constexpr int64_t kMaxChunkBytes = 1 << 19;
// For sums and codes: small enough that rounding, summing or coding, checksum and the kernel's copy find it
// in L2 even where several lanes share a core.
inline constexpr int64_t kMaxComputedChunkBytes = 1 << 17;
// A smaller part is not worth a second connection.
inline constexpr int64_t kMinChunkBytes = 1 << 16;

// A part of this many bytes is split evenly over the lanes, a large one into chunks of the maximum size; an
// empty one is a message, too.
inline int64_t num_chunks(int64_t part_bytes, bool is_computed, int num_lanes) {
  const int64_t fair = std::clamp(divide_up(part_bytes, static_cast<int64_t>(num_lanes)), kMinChunkBytes,
                                  is_computed ? kMaxComputedChunkBytes : kMaxChunkBytes);
  const int64_t chunks = std::max<int64_t>(1, divide_up(part_bytes, fair));
  return chunks <= num_lanes ? chunks : round_up(chunks, static_cast<int64_t>(num_lanes));
}

}  // namespace tessera
