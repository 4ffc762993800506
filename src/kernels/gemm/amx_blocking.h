// How a product is cut into blocks, chunks and micro-tiles: by its shape, never by the number of threads as
// far as the order of summation goes.
#pragma once

#include <algorithm>
#include <cstdint>

#include "base/float_types.h"
#include "kernels/amx/tiles.h"

namespace tessera::amx {

constexpr int64_t divide_up(int64_t a, int64_t b) { return (a + b - 1) / b; }

// A micro-tile is 2 x 2 tiles of c, so a panel of either operand is two tiles wide.
inline constexpr int64_t kPanelWidth = 2 * kTileRows;
inline constexpr int64_t kUnitBytes = 2 * kTileBytes;
inline constexpr int64_t kUnitElements = kUnitBytes / static_cast<int64_t>(sizeof(bf16));
inline constexpr int64_t kMicroTileBytes = 4 * kTileBytes;
inline constexpr int64_t kMicroTileElements = kMicroTileBytes / static_cast<int64_t>(sizeof(float));

// The longest chunk: a piece of a has to stay in L1 (48 KiB) while pieces of b stream past it.
inline constexpr int64_t kMaxChunkSteps = 16;

// The contraction cut into k-steps of 32 and chunks of equal length, at most kMaxChunkSteps; the last one may
// be shorter.
struct DepthChunks {
  explicit DepthChunks(int64_t depth)
      : DepthChunks(divide_up(depth, kTileDepth), even_steps(divide_up(depth, kTileDepth))) {}
  DepthChunks(int64_t steps_in_all, int64_t steps_per_chunk)
      : num_steps(steps_in_all), chunk_steps(steps_per_chunk), count(divide_up(num_steps, chunk_steps)) {}

  int64_t first(int64_t chunk) const { return chunk * chunk_steps; }
  int64_t steps(int64_t chunk) const { return std::min(chunk_steps, num_steps - first(chunk)); }
  int64_t chunk_of(int64_t step) const { return step / chunk_steps; }

  int64_t num_steps;
  int64_t chunk_steps;
  int64_t count;

 private:
  static constexpr int64_t even_steps(int64_t num_steps) {
    return num_steps == 0 ? 1 : divide_up(num_steps, divide_up(num_steps, kMaxChunkSteps));
  }
};

// c cut into block_rows x block_columns blocks, as even as whole panels allow.
struct Blocks {
  int64_t rows, columns;  // panels of c
  int64_t block_rows, block_columns;

  int64_t count() const { return block_rows * block_columns; }
};

}  // namespace tessera::amx
