// The micro-kernel: 32 x 32 elements of c over one chunk of the contraction, plus the work done between its
// tile products.
//
//        b unit:   tmm6    tmm7          per k-step of 32: 4 tile loads, 4 products of 16 cycles
//   a    tmm4      tmm0    tmm1
//  unit  tmm5      tmm2    tmm3
//
// The piece of a is read again by the next micro-tiles and stays in L1; the piece of b streams from L2 with
// TILELOADDT1, leaving L1 to a. The vector and load units are idle for most of a k-step's 64 cycles: they
// move the previous micro-tile's sums to their destination and prefetch what comes next.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/gemm/amx_blocking.h"
#include "kernels/gemm/amx_operand-inl.h"
#include "kernels/gemm/exact_sum.h"
#include "tensor/dtype.h"

TESSERA_AMX_BEGIN
namespace tessera::amx {

inline constexpr int64_t kLineElements = 64 / static_cast<int64_t>(sizeof(bf16));
inline constexpr int64_t kUnitLines = kUnitElements / kLineElements;

// Consecutive cache lines to fetch into L2, some at each k-step.
struct LineStream {
  const bf16* next;
  int64_t per_step;

  void skip(int64_t steps) { next += steps * per_step * kLineElements; }
  void step() {
    for (int64_t i = 0; i < per_step; ++i, next += kLineElements) {
      _mm_prefetch(reinterpret_cast<const char*>(next), _MM_HINT_T1);
    }
  }
};

// Output rows about to be added to, fetched into L1: two lines of each hold 32 float32 columns (if they are
// not aligned, there is a third, which comes with the neighbour's).
struct RowStream {
  const std::byte* next = nullptr;
  int64_t stride = 0;  // bytes
  int64_t rows_left = 0;
  int64_t per_step = 0;  // rows

  void step() {
    for (int64_t i = 0; i < per_step && rows_left > 0; ++i, --rows_left, next += stride) {
      _mm_prefetch(reinterpret_cast<const char*>(next), _MM_HINT_T0);
      _mm_prefetch(reinterpret_cast<const char*>(next + 64), _MM_HINT_T0);
    }
  }
};

// The lines of a micro-tile's sums, spread over the steps of a full chunk.
inline constexpr int64_t kSumLinesPerStep = kMicroTileBytes / 64 / kMaxChunkSteps;

// Prefetched while a micro-tile is computed: the next pieces of both operands, and sums.
struct Ahead {
  LineStream a, b;
  const float* sums;  // for the next micro-tile to add to; may be null
  RowStream output;

  void step() {
    a.step();
    b.step();
    output.step();
    if (sums == nullptr) return;
    for (int64_t i = 0; i < kSumLinesPerStep; ++i, sums += 16) {
      _mm_prefetch(reinterpret_cast<const char*>(sums), _MM_HINT_T0);
    }
  }
};

// The result c_mn: = or += sums (+ bias_n).
struct Output {
  std::byte* data;
  int64_t rows, columns;
  int64_t stride;  // elements between rows
  DType dtype;     // BF16 or F32
  bool add;
  const bf16* bias;             // of the columns; may be null
  ExactSum* squares = nullptr;  // receives the squares of the final F32 results; may be null

  Output part(int64_t row, int64_t num_rows, int64_t column, int64_t num_columns) const {
    return {data + (row * stride + column) * dtype_bytes(dtype), num_rows, num_columns, stride, dtype, add,
            bias == nullptr ? nullptr : bias + column,           squares};
  }
};

// Where the sums of one micro-tile go.
struct Destination {
  enum class Kind : uint8_t {
    kNowhere,
    kBlock,   // partial sums: stored by the tile unit itself
    kOutput,  // through vector registers
  };
  Kind kind = Kind::kNowhere;
  float* block = nullptr;  // kMicroTileElements, tile after tile
  int64_t row = 0;         // in the output
  int64_t column = 0;
};

inline __m512 load_masked(const float* from, __mmask16 mask) { return _mm512_maskz_loadu_ps(mask, from); }
inline __m512 load_masked(const bf16* from, __mmask16 mask) {
  const __m512i bits = _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(mask, from));
  return _mm512_castsi512_ps(_mm512_slli_epi32(bits, 16));
}

inline void store_masked(float* to, __mmask16 mask, __m512 values) {
  _mm512_mask_storeu_ps(to, mask, values);
}
inline void store_masked(bf16* to, __mmask16 mask, __m512 values) {
  const __m256bh rounded = _mm512_cvtneps_pbh(values);
  _mm256_mask_storeu_epi16(to, mask, reinterpret_cast<const __m256i&>(rounded));
}

// Writes float32 past the caches if both lines are whole, and returns whether it did: a gradient is far
// larger than the caches, and a cached store would read it first.
inline bool stream_lines(float* to, __mmask16 high_mask, __m512 low, __m512 high) {
  if (reinterpret_cast<uintptr_t>(to) % 64 != 0 || high_mask != 0xFFFF) return false;
  _mm512_stream_ps(to, low);
  _mm512_stream_ps(to + kTileColumns, high);
  return true;
}
inline bool stream_lines(bf16*, __mmask16, __m512, __m512) { return false; }  // read again soon

// Ways to move sums to their destination: step() moves one of kSteps parts.
struct NoDrain {
  static constexpr int64_t kSteps = 0;
  void step() {}
};

// Writes row after row of the output (of type C): sums (+ bias) (+ output).
template <typename C>
struct OutputDrain {
  static constexpr int64_t kSteps = kPanelWidth;
  const float* sums;
  const bf16* bias;  // may be null
  C* to;
  int64_t stride;
  int64_t rows_left;
  bool add;
  __mmask16 low_mask, high_mask;
  int64_t row = 0;

  OutputDrain(const Output& output, const Destination& from, const float* tile_sums)
      : sums(tile_sums),
        bias(output.bias == nullptr ? nullptr : output.bias + from.column),
        to(reinterpret_cast<C*>(output.data) + from.row * output.stride + from.column),
        stride(output.stride),
        rows_left(output.rows - from.row),
        add(output.add) {
    const int64_t columns = std::min(kPanelWidth, output.columns - from.column);
    const auto mask = static_cast<uint32_t>((uint64_t{1} << columns) - 1);
    low_mask = static_cast<__mmask16>(mask);
    high_mask = static_cast<__mmask16>(mask >> 16);
  }

  void step() {
    if (row < rows_left) move_row();
  }

  struct Row {
    __m512 low, high;
  };
  // Returns the values written to the row.
  Row move_row() {
    const int64_t offset = row / kTileRows * 2 * kTileFloats + row % kTileRows * kTileColumns;
    __m512 low = _mm512_load_ps(sums + offset);
    __m512 high = _mm512_load_ps(sums + offset + kTileFloats);
    if (bias != nullptr) {
      low = _mm512_add_ps(low, load_masked(bias, low_mask));
      high = _mm512_add_ps(high, load_masked(bias + kTileColumns, high_mask));
    }
    if (add) {
      low = _mm512_add_ps(load_masked(to, low_mask), low);
      high = _mm512_add_ps(load_masked(to + kTileColumns, high_mask), high);
    }
    if (add || !stream_lines(to, high_mask, low, high)) {
      store_masked(to, low_mask, low);
      store_masked(to + kTileColumns, high_mask, high);
    }
    to += stride;
    ++row;
    return {low, high};
  }
};

// Also sums the squares of the micro-tile in a fixed order, in double.
struct SquaresDrain : OutputDrain<float> {
  ExactSum* sum;
  int64_t num_rows;
  __m512d lanes[4] = {_mm512_setzero_pd(), _mm512_setzero_pd(), _mm512_setzero_pd(), _mm512_setzero_pd()};

  SquaresDrain(const Output& output, const Destination& from, const float* tile_sums, ExactSum* to_sum)
      : OutputDrain(output, from, tile_sums), sum(to_sum), num_rows(std::min(rows_left, kPanelWidth)) {}

  void step() {
    if (row >= num_rows) return;
    const auto [low, high] = move_row();
    add_squares(_mm512_maskz_mov_ps(low_mask, low), 0);
    add_squares(_mm512_maskz_mov_ps(high_mask, high), 2);
    if (row < num_rows) return;
    const __m512d all = _mm512_add_pd(_mm512_add_pd(lanes[0], lanes[1]), _mm512_add_pd(lanes[2], lanes[3]));
    sum->add(_mm512_reduce_add_pd(all));
  }

 private:
  void add_squares(__m512 values, int64_t lane) {
    const __m512d first = _mm512_cvtps_pd(_mm512_castps512_ps256(values));
    const __m512d second = _mm512_cvtps_pd(_mm512_extractf32x8_ps(values, 1));
    lanes[lane] = _mm512_fmadd_pd(first, first, lanes[lane]);
    lanes[lane + 1] = _mm512_fmadd_pd(second, second, lanes[lane + 1]);
  }
};

// One k-step; `drain` is called between its products.
template <typename DrainParts>
inline __attribute__((always_inline)) void k_step(const bf16* a, const bf16* b, DrainParts&& drain,
                                                  Ahead& ahead) {
  _tile_stream_loadd(6, b, kTileRowBytes);
  _tile_stream_loadd(7, b + kTileElements, kTileRowBytes);
  _tile_loadd(4, a, kTileRowBytes);
  _tile_dpbf16ps(0, 4, 6);
  drain();
  _tile_dpbf16ps(1, 4, 7);
  _tile_loadd(5, a + kTileElements, kTileRowBytes);
  ahead.step();
  _tile_dpbf16ps(2, 5, 6);
  drain();
  _tile_dpbf16ps(3, 5, 7);
}

// Stores the previous micro-tile's sums to `previous` and loads this one's earlier sums (null: zero), tile by
// tile while the products begin, so that the tile unit waits for neither. Leaves this one's sums in tmm0 ...
// tmm3.
template <typename Drain>
inline void micro_tile(const bf16* a, const bf16* b, int64_t steps, float* previous, const float* former,
                       Drain drain, Ahead ahead) {
  asm volatile("" : : : "memory");  // GCC's tile loads do not tell the compiler that they read memory
  _tile_stream_loadd(6, b, kTileRowBytes);
  _tile_loadd(4, a, kTileRowBytes);
  _tile_stored(0, previous, kTileRowBytes);
  if (former == nullptr) {
    _tile_zero(0);
  } else {
    _tile_loadd(0, former, kTileRowBytes);
  }
  _tile_dpbf16ps(0, 4, 6);
  ahead.output.step();
  _tile_stream_loadd(7, b + kTileElements, kTileRowBytes);
  _tile_stored(1, previous + kTileFloats, kTileRowBytes);
  if (former == nullptr) {
    _tile_zero(1);
  } else {
    _tile_loadd(1, former + kTileFloats, kTileRowBytes);
  }
  _tile_dpbf16ps(1, 4, 7);
  _tile_loadd(5, a + kTileElements, kTileRowBytes);
  _tile_stored(2, previous + 2 * kTileFloats, kTileRowBytes);
  if (former == nullptr) {
    _tile_zero(2);
  } else {
    _tile_loadd(2, former + 2 * kTileFloats, kTileRowBytes);
  }
  _tile_dpbf16ps(2, 5, 6);
  _tile_stored(3, previous + 3 * kTileFloats, kTileRowBytes);
  if (former == nullptr) {
    _tile_zero(3);
  } else {
    _tile_loadd(3, former + 3 * kTileFloats, kTileRowBytes);
  }
  _tile_dpbf16ps(3, 5, 7);
  if (steps == kMaxChunkSteps) {  // the usual case, with a constant trip count
    constexpr int64_t kParts = Drain::kSteps / (2 * (kMaxChunkSteps - 1));
    for (int64_t step = 1; step < kMaxChunkSteps; ++step) {
      k_step(
          a + step * kUnitElements, b + step * kUnitElements,
          [&] {
            for (int64_t i = 0; i < kParts; ++i) drain.step();
          },
          ahead);
    }
    for (int64_t i = kParts * 2 * (kMaxChunkSteps - 1); i < Drain::kSteps; ++i) drain.step();
    return;
  }
  const int64_t parts = divide_up(Drain::kSteps, std::max<int64_t>(1, 2 * (steps - 1)));
  int64_t left = Drain::kSteps;
  for (int64_t step = 1; step < steps; ++step) {
    k_step(
        a + step * kUnitElements, b + step * kUnitElements,
        [&] {
          for (int64_t i = 0; i < parts && left > 0; ++i, --left) drain.step();
        },
        ahead);
  }
  for (; left > 0; --left) drain.step();
}

inline void store_micro_tile(float* to) {
  _tile_stored(0, to, kTileRowBytes);
  _tile_stored(1, to + kTileFloats, kTileRowBytes);
  _tile_stored(2, to + 2 * kTileFloats, kTileRowBytes);
  _tile_stored(3, to + 3 * kTileFloats, kTileRowBytes);
}

}  // namespace tessera::amx
TESSERA_AMX_END
