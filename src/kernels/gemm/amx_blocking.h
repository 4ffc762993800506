// The blocks, chunks and micro-tiles of a product. Whatever affects the order of summation depends only on
// the shape, never on the number of threads.
#pragma once

#include <algorithm>
#include <cstdint>
#include <numeric>

#include "base/divide_up.h"
#include "base/float_types.h"
#include "kernels/amx/tiles.h"

namespace tessera::amx {

// A micro-tile is 2 x 2 tiles of c, so a panel of either operand is two tiles wide.
inline constexpr int64_t kPanelWidth = 2 * kTileRows;
inline constexpr int64_t kUnitBytes = 2 * kTileBytes;
inline constexpr int64_t kUnitElements = kUnitBytes / static_cast<int64_t>(sizeof(bf16));
inline constexpr int64_t kMicroTileBytes = 4 * kTileBytes;
inline constexpr int64_t kMicroTileElements = kMicroTileBytes / static_cast<int64_t>(sizeof(float));

// The longest chunk: a piece of a must stay in L1 (48 KiB) while pieces of b stream past it.
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

// Panels per side of a square block of c such that its sums, a chunk of b and two pieces of a fill at most
// 7/8 of a thread's share of L2: 16 (512 x 512) for 2 MiB, 10 (320 x 320) for half of that. Not so small that
// moving sums dominates. Chunks keep their length: it is part of the packed form.
constexpr int64_t block_panels(int64_t l2_bytes, int64_t threads_per_core) {
  constexpr int64_t kPieceBytes = kMaxChunkSteps * kUnitBytes;
  const int64_t share_bytes = l2_bytes / threads_per_core / 8 * 7;
  int64_t width = 8;
  while (width < 32 &&
         (width + 1) * ((width + 1) * kMicroTileBytes + kPieceBytes) + 2 * kPieceBytes <= share_bytes) {
    ++width;
  }
  return width / 2 * 2;
}

// c cut into block_rows x block_columns blocks, as evenly as whole panels allow.
struct Blocks {
  int64_t rows, columns;  // panels of c
  int64_t block_rows, block_columns;

  int64_t count() const { return block_rows * block_columns; }
};

// The properties of a pool that determine the blocks.
struct Threads {
  int64_t count, per_core;
};

// Blocks of at most block_panels() squared, in a number that keeps all threads busy to the end. The longer
// side is cut for this: a thread then reads more from its own caches and less of what another thread packed.
inline Blocks choose_blocks(int64_t rows, int64_t columns, int64_t l2_bytes, Threads threads) {
  const int64_t most = block_panels(l2_bytes, threads.per_core);
  const int64_t row_panels = divide_up(rows, kPanelWidth), column_panels = divide_up(columns, kPanelWidth);
  int64_t row_blocks = divide_up(row_panels, most);
  int64_t column_blocks = divide_up(column_panels, most);
  const auto cut = [&](int64_t& blocks, int64_t panels, int64_t others) {
    const int64_t wave = threads.count / std::gcd(threads.count, others);
    blocks = std::min(panels, divide_up(blocks, wave) * wave);
  };
  if (row_panels >= column_panels) {
    cut(row_blocks, row_panels, column_blocks);
  } else {
    cut(column_blocks, column_panels, row_blocks);
  }
  return {row_panels, column_panels, row_blocks, column_blocks};
}

}  // namespace tessera::amx
