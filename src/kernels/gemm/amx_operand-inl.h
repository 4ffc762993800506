// The operands of c_mn = sum_k a_mk b_kn and their packed form, for gemm_amx.cc.
//
//   unit    2 KiB: two adjacent tiles, 32 rows of a (or columns of b) by 32 of the contraction
//   piece   the units of one panel (32 rows or columns) for one chunk of the contraction, in contraction
//           order: at most 32 KiB, what a micro-tile reads from one operand
//   chunk   the pieces of all panels
#pragma once

#include <algorithm>
#include <cstdint>

#include "kernels/amx/pack-inl.h"
#include "kernels/gemm/amx_blocking.h"

TESSERA_AMX_BEGIN
namespace tessera::amx {

// The packing of tiles from the stored matrix (pack-inl.h).
enum class Packing : uint8_t {
  kCopy,        // a, stored [m, k]
  kTranspose,   // a, stored [k, m]
  kInterleave,  // b, stored [k, n]
  kPair,        // b, stored [n, k]
};

// A row-major matrix; `width` is its extent along m (or n), `depth` along k.
struct Operand {
  const bf16* data;
  int64_t stride;
  int64_t width;
  int64_t depth;
  Packing packing;

  bool depth_is_contiguous() const { return packing == Packing::kCopy || packing == Packing::kPair; }
  const bf16* at(int64_t line, int64_t k) const {
    return data + (depth_is_contiguous() ? line * stride + k : k * stride + line);
  }
  // Lines [begin, end) of the operand.
  Operand lines(int64_t begin, int64_t end) const {
    return {at(begin, 0), stride, end - begin, depth, packing};
  }
};

inline void pack_tile(const Operand& from, int64_t line, int64_t k, bf16* tile) {
  const int64_t width = std::clamp<int64_t>(from.width - line, 0, kTileRows);
  const int64_t depth = std::min(from.depth - k, kTileDepth);
  const bf16* part = from.at(line, k);
  switch (from.packing) {
    case Packing::kCopy:
      return copy_tile(part, from.stride, width, depth, tile);
    case Packing::kTranspose:
      return transpose_tile(part, from.stride, depth, width, tile);
    case Packing::kInterleave:
      return interleave_tile(part, from.stride, depth, width, tile);
    case Packing::kPair:
      return pair_tile(part, from.stride, width, depth, tile);
  }
}

// Rows with power-of-two strides compete for one set of L1, which holds 12 lines. So the whole unit takes 64
// bytes of a row at once, or of 8 rows in turn.
inline void pack_whole_unit(const Operand& from, const bf16* part, bf16* unit) {
  bf16* second = unit + kTileElements;
  alignas(64) bf16 rows[2 * kTileElements];
  switch (from.packing) {
    case Packing::kCopy:
      copy_tile(part, from.stride, unit);
      return copy_tile(part + kTileRows * from.stride, from.stride, second);
    case Packing::kPair:
      copy_tile(part, from.stride, rows);
      copy_tile(part + kTileRows * from.stride, from.stride, rows + kTileElements);
      pair_tile(rows, kTileDepth, unit);
      return pair_tile(rows + kTileElements, kTileDepth, second);
    case Packing::kInterleave:
    case Packing::kTranspose:
      bf16* to = from.packing == Packing::kInterleave ? unit : rows;
      for (int64_t step = 0; step < kPackSteps; ++step) {
        interleave_tile_step(part, from.stride, step, to);
        interleave_tile_step(part + kTileColumns, from.stride, step, to + kTileElements);
      }
      if (to == unit) return;
      pair_tile(rows, kTileDepth, unit);
      return pair_tile(rows + kTileElements, kTileDepth, second);
  }
}

inline void pack_unit(const Operand& from, int64_t panel, int64_t step, bf16* unit) {
  const int64_t line = panel * kPanelWidth, k = step * kTileDepth;
  if (line + kPanelWidth <= from.width && k + kTileDepth <= from.depth) {
    return pack_whole_unit(from, from.at(line, k), unit);
  }
  pack_tile(from, line, k, unit);
  pack_tile(from, line + kTileRows, k, unit + kTileElements);
}

// A whole operand, packed: chunk after chunk, each with the pieces of all panels. A range of panels, or of
// whole chunks, is itself an operand.
class PackedOperand {
 public:
  PackedOperand(bf16* data, int64_t panels, DepthChunks chunks)
      : data_(data), panels_(panels), chunks_(chunks) {}
  // One chunk at a time, all in the same memory.
  static PackedOperand of_one_chunk(bf16* data, int64_t panels, DepthChunks chunks) {
    PackedOperand operand(data, panels, chunks);
    operand.holds_one_chunk_ = true;
    return operand;
  }

  // Panel `first` and those after it.
  PackedOperand panels_from(int64_t first) const {
    PackedOperand part = *this;
    part.first_panel_ = first_panel_ + first;
    return part;
  }
  // `steps` k-steps starting at a chunk boundary.
  PackedOperand chunks_from(int64_t first, int64_t steps) const {
    PackedOperand part = *this;
    part.data_ = data_ + chunks_.first(first) * panels_ * kUnitElements;
    part.chunks_ = DepthChunks(steps, chunks_.chunk_steps);
    return part;
  }
  DepthChunks chunks() const { return chunks_; }

  static int64_t bytes(int64_t panels, DepthChunks chunks) { return panels * chunks.num_steps * kUnitBytes; }
  static int64_t chunk_bytes(int64_t panels, DepthChunks chunks) {
    return panels * chunks.chunk_steps * kUnitBytes;
  }

  bf16* piece(int64_t chunk, int64_t panel) const {
    const int64_t units_before = holds_one_chunk_ ? 0 : chunks_.first(chunk) * panels_;
    return data_ + (units_before + (first_panel_ + panel) * chunks_.steps(chunk)) * kUnitElements;
  }
  bf16* unit(int64_t panel, int64_t step) const {
    const int64_t chunk = chunks_.chunk_of(step);
    return piece(chunk, panel) + (step - chunks_.first(chunk)) * kUnitElements;
  }

 private:
  bf16* data_;
  int64_t panels_;  // per chunk in memory
  int64_t first_panel_ = 0;
  DepthChunks chunks_;
  bool holds_one_chunk_ = false;
};

}  // namespace tessera::amx
TESSERA_AMX_END
