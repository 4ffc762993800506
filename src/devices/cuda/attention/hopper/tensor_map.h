// Descriptors that tell Hopper's copies where the tiles of an array are.
#pragma once

#include <cuda.h>

#include <cstdint>

#include "base/float_types.h"

namespace tessera::cuda::hopper {

// Tiles of `rows` rows of one head of an array [T, num_heads, E] whose tokens are `stride` elements apart, in
// panels of 64 columns with the 128-byte swizzle.
CUtensorMap head_tiles(const bf16* array, int64_t E, int64_t num_heads, int64_t T, int64_t stride, int rows);

// The multiprocessors of the current card.
int num_multiprocessors();

}  // namespace tessera::cuda::hopper
