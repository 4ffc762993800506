// A product cut into blocks of c, and what one thread does with them.
#pragma once

#include <unistd.h>

#include <cstddef>
#include <cstdint>

#include "kernels/gemm/amx_micro-inl.h"

TESSERA_AMX_BEGIN
namespace tessera::amx {

inline int64_t l2_bytes() {
  constexpr int64_t kUsualBytes = 2 << 20;  // if the system does not report it
  static const int64_t reported = sysconf(_SC_LEVEL2_CACHE_SIZE);
  return reported > 0 ? reported : kUsualBytes;
}

// Scratch of one thread, sized for the largest block.
inline int64_t thread_scratch_bytes() {
  static const int64_t panels = block_panels(l2_bytes(), 1);
  return panels * panels * kMicroTileBytes;
}

// c = or += a b, both packed.
struct Product {
  PackedOperand a, b;
  DepthChunks chunks;
  Output output;
  Blocks blocks;
};

struct BlockRange {
  int64_t row_begin, row_end, column_begin, column_end;
};

inline BlockRange block_range(const Blocks& blocks, int64_t index) {
  const int64_t row = index % blocks.block_rows, column = index / blocks.block_rows;
  return {blocks.rows * row / blocks.block_rows, blocks.rows * (row + 1) / blocks.block_rows,
          blocks.columns * column / blocks.block_columns,
          blocks.columns * (column + 1) / blocks.block_columns};
}

// The work of one thread: it computes blocks one after the other, chunk by chunk. The sums of each micro-tile
// are moved while the next one is computed, even across blocks.
class Worker {
 public:
  Worker(const Product& product, std::byte* scratch)
      : product_(product), block_sums_(reinterpret_cast<float*>(scratch)) {}

  // `next` is the block this thread will probably compute afterwards, or at least count() for none. Calls
  // before_chunk(chunk) before reading that chunk of the operands.
  template <typename BeforeChunk>
  void run_block(int64_t index, int64_t next, const BeforeChunk& before_chunk) {
    const BlockRange block = block_range(product_.blocks, index);
    for (int64_t chunk = 0; chunk < product_.chunks.count; ++chunk) {
      before_chunk(chunk);
      const bool last = chunk + 1 == product_.chunks.count;
      const bool none = last && next >= product_.blocks.count();
      const int64_t next_chunk = last ? 0 : chunk + 1;
      const BlockRange following = last && !none ? block_range(product_.blocks, next) : block;
      const bf16* next_b = product_.b.piece(next_chunk, following.column_begin);
      const int64_t next_b_units =
          (following.column_end - following.column_begin) * product_.chunks.steps(next_chunk);
      const bool there = none || next_b == product_.b.piece(chunk, block.column_begin);
      run_chunk(block, chunk, next_b, there ? 0 : next_b_units);
    }
  }

  void finish() {
    store_micro_tile(place_of(pending_));
    drain_pending([](auto drain) {
      for (int64_t i = 0; i < drain.kSteps; ++i) drain.step();
    });
    _mm_sfence();  // makes streamed results visible to threads that wait for this one
    if (product_.output.squares != nullptr) squares_.add_to_shared(*product_.output.squares);
  }

 private:
  void run_chunk(const BlockRange& block, int64_t chunk, const bf16* next_b, int64_t next_b_units) {
    const int64_t steps = product_.chunks.steps(chunk);
    const int64_t columns = block.column_end - block.column_begin;
    const int64_t all_steps = (block.row_end - block.row_begin) * columns * steps;
    LineStream b_lines = {next_b, divide_up(next_b_units * kUnitLines, all_steps)};
    const bf16* b = product_.b.piece(chunk, block.column_begin);
    const bool first = chunk == 0, last = chunk + 1 == product_.chunks.count;
    for (int64_t row = block.row_begin; row < block.row_end; ++row) {
      const bf16* a = product_.a.piece(chunk, row);
      LineStream a_lines = lines_after(block, chunk, row, columns * steps);
      for (int64_t column = block.column_begin; column < block.column_end; ++column) {
        const int64_t index = column - block.column_begin;
        float* const sums = block_sums_ + ((row - block.row_begin) * columns + index) * kMicroTileElements;
        const Ahead ahead = {a_lines, b_lines, first ? nullptr : sums + kMicroTileElements,
                             last ? rows_added_to(row, column, steps) : RowStream()};
        drain_pending([&](auto drain) {
          micro_tile(a, b + index * steps * kUnitElements, steps, place_of(pending_), first ? nullptr : sums,
                     drain, ahead);
        });
        a_lines.skip(steps);
        b_lines.skip(steps);
        pending_.kind = last ? Destination::Kind::kOutput : Destination::Kind::kBlock;
        pending_.block = sums;
        pending_.row = row * kPanelWidth;
        pending_.column = column * kPanelWidth;
      }
    }
  }

  // The output rows this micro-tile of `steps` k-steps adds to while the next one is computed.
  RowStream rows_added_to(int64_t row, int64_t column, int64_t steps) const {
    const Output& output = product_.output;
    if (!output.add || output.dtype != DType::kF32) return {};
    const int64_t first_row = row * kPanelWidth;
    const int64_t at = first_row * output.stride + column * kPanelWidth;
    return {output.data + at * static_cast<int64_t>(sizeof(float)),
            output.stride * static_cast<int64_t>(sizeof(float)),
            std::min(kPanelWidth, output.rows - first_row), divide_up(kPanelWidth, steps)};
  }

  // The piece of a needed after this one.
  LineStream lines_after(const BlockRange& block, int64_t chunk, int64_t row, int64_t all_steps) const {
    const bool next_chunk = row + 1 == block.row_end;
    if (next_chunk && chunk + 1 == product_.chunks.count) return {product_.a.piece(chunk, row), 0};
    const bf16* piece =
        next_chunk ? product_.a.piece(chunk + 1, block.row_begin) : product_.a.piece(chunk, row + 1);
    return {piece, divide_up(product_.chunks.steps(next_chunk ? chunk + 1 : chunk) * kUnitLines, all_steps)};
  }

  float* place_of(const Destination& destination) {
    return destination.kind == Destination::Kind::kBlock ? destination.block : sums_;
  }

  // Calls body with the drain that moves the previous micro-tile's sums to their destination.
  template <typename Body>
  void drain_pending(const Body& body) {
    switch (pending_.kind) {
      case Destination::Kind::kNowhere:
      case Destination::Kind::kBlock:
        return body(NoDrain());
      case Destination::Kind::kOutput:
        if (product_.output.squares != nullptr) {
          return body(SquaresDrain(product_.output, pending_, sums_, &squares_));
        }
        if (product_.output.dtype == DType::kF32) {
          return body(OutputDrain<float>(product_.output, pending_, sums_));
        }
        return body(OutputDrain<bf16>(product_.output, pending_, sums_));
    }
  }

  alignas(64) float sums_[kMicroTileElements];  // of the previous micro-tile
  const Product& product_;
  float* block_sums_;    // [micro-tiles of a block][kMicroTileElements]
  Destination pending_;  // of the sums in the tile registers
  ExactSum squares_;     // over this thread's part of the result
};

}  // namespace tessera::amx
TESSERA_AMX_END
