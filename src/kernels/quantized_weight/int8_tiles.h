// The layout of 8-bit codes in AMX tiles (kernels/amx/tiles.h), each 64 deep along the contraction:
//
//   A (int8)   16 rows x 64 of the contraction
//   B (int8)   16 quads of the contraction x 16 columns: row p: b[4p][0], ..., b[4p+3][0], b[4p][1], ...
//   C (int32)  16 rows x 16 columns
//
// A product reads a in panels of 32 rows: k-step after k-step, two tiles each, so that row t of the panel has
// 64 contiguous bytes of each k-step, 2 KiB apart. The panels follow one another.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "base/memory.h"

namespace tessera {

inline constexpr int64_t kInt8PanelRows = 32;
inline constexpr int64_t kInt8StepDepth = 64;
inline constexpr int64_t kInt8StepBytes = kInt8PanelRows * kInt8StepDepth;

inline int64_t int8_tiled_bytes(int64_t rows, int64_t depth) {
  return round_up(rows, kInt8PanelRows) * round_up(depth, kInt8StepDepth);
}

// The first byte of a row; the others are kInt8StepBytes apart, 64 at a time.
inline int64_t int8_tiled_offset(int64_t row, int64_t depth) {
  return row / kInt8PanelRows * kInt8PanelRows * round_up(depth, kInt8StepDepth) +
         row % kInt8PanelRows * kInt8StepDepth;
}

// Puts a row into its place. `codes` is padded with zeros to a multiple of kInt8StepDepth.
inline void place_int8_row(const int8_t* codes, int64_t depth, int64_t row, int8_t* tiles) {
  int8_t* to = tiles + int8_tiled_offset(row, depth);
  for (int64_t k = 0; k < depth; k += kInt8StepDepth, to += kInt8StepBytes) {
    std::memcpy(to, codes + k, kInt8StepDepth);
  }
}

}  // namespace tessera
