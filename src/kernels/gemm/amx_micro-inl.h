// The micro-kernel: 32 x 32 elements of c over one chunk of the contraction, and the work done between its
// tile products.
//
//        b unit:   tmm6    tmm7          per k-step of 32: 4 tile loads, 4 products of 16 cycles
//   a    tmm4      tmm0    tmm1
//  unit  tmm5      tmm2    tmm3
//
// The piece of a is read again by the next micro-tiles and stays in L1; the piece of b streams from L2 with
// TILELOADDT1, which leaves L1 to a. The vector and load units are idle for most of the 64 cycles of a
// k-step: they take the previous micro-tile's sums to where they belong and prefetch what comes next.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/gemm/amx_blocking.h"
#include "kernels/gemm/amx_operand-inl.h"
#include "tensor/dtype.h"

TESSERA_AMX_BEGIN
namespace tessera::amx {

// Cache lines to be fetched: `rows` rows of `row_lines` lines each, `stride` bytes apart.
struct LineStream {
  const std::byte* line = nullptr;
  int64_t rows = 0;
  int64_t row_lines = 0;
  int64_t stride = 0;
  int64_t left_in_row = 0;
  int64_t lines_per_step = 0;

  static LineStream over(const void* begin, int64_t rows, int64_t row_lines, int64_t stride, int64_t steps) {
    LineStream stream;
    if (rows <= 0 || row_lines <= 0) return stream;
    stream.line = static_cast<const std::byte*>(begin);
    stream.rows = rows;
    stream.row_lines = stream.left_in_row = row_lines;
    stream.stride = stride;
    stream.lines_per_step = divide_up(rows * row_lines, std::max<int64_t>(steps, 1));
    return stream;
  }

  template <_mm_hint kHint>
  void step() {
    for (int64_t i = 0; i < lines_per_step && rows > 0; ++i) {
      _mm_prefetch(reinterpret_cast<const char*>(line), kHint);
      line += 64;
      if (--left_in_row == 0) {
        line += stride - 64 * row_lines;
        left_in_row = row_lines;
        --rows;
      }
    }
  }
};

// The result c_mn: = or += sums (+ bias_n).
struct Output {
  std::byte* data;
  int64_t rows, columns;  // row-major, without gaps
  DType dtype;            // BF16 or F32
  bool add;
  const bf16* bias;  // of the columns; may be null
};

// Where the sums of one micro-tile go.
struct Destination {
  enum class Kind : uint8_t {
    kNowhere,
    kBlock,     // stored by the tile unit itself
    kAddBlock,  // block += sums
    kOutput,    // output from sums, or from block + sums
  };
  Kind kind = Kind::kNowhere;
  bool block_holds_sums = false;
  float* block = nullptr;  // kMicroTileElements, tile after tile
  int64_t row = 0;         // of the output
  int64_t column = 0;
};

inline __m512 load_bf16(const bf16* from, __mmask16 mask) {
  const __m256i bits = _mm256_maskz_loadu_epi16(mask, from);
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(bits), 16));
}

inline void store_bf16(bf16* to, __mmask16 mask, __m512 values) {
  const __m256bh rounded = _mm512_cvtneps_pbh(values);
  _mm256_mask_storeu_epi16(to, mask, reinterpret_cast<const __m256i&>(rounded));
}

// Moves finished sums and prefetches, a little at each k-step.
class SideWork {
 public:
  explicit SideWork(const Output& output) : output_(output) {}

  LineStream a_lines, b_lines, output_lines;

  // The sums of `destination` will be in sums() (or, for kBlock, in its block).
  void begin(const Destination& destination, int64_t steps) {
    destination_ = destination;
    next_row_ = 0;
    end_row_ = 0;
    if (destination.kind == Destination::Kind::kAddBlock) end_row_ = kPanelWidth;
    if (destination.kind == Destination::Kind::kOutput) {
      end_row_ = std::min(kPanelWidth, output_.rows - destination.row);
      const int64_t columns = std::min(kPanelWidth, output_.columns - destination.column);
      const auto mask = static_cast<uint32_t>((uint64_t{1} << columns) - 1);
      low_mask_ = static_cast<__mmask16>(mask);
      high_mask_ = static_cast<__mmask16>(mask >> 16);
    }
    rows_per_call_ = std::max<int64_t>(1, kPanelWidth / std::max<int64_t>(1, 2 * (steps - 1)));
  }

  void drain() {
    for (int64_t i = 0; i < rows_per_call_ && next_row_ < end_row_; ++i) drain_row(next_row_++);
  }
  void prefetch() {
    a_lines.step<_MM_HINT_T1>();
    b_lines.step<_MM_HINT_T1>();
    output_lines.step<_MM_HINT_T0>();
  }
  void finish() {
    while (next_row_ < end_row_) drain_row(next_row_++);
  }

  float* sums() { return sums_; }

 private:
  void drain_row(int64_t row) {
    const int64_t offset = row / kTileRows * 2 * kTileFloats + row % kTileRows * kTileColumns;
    __m512 low = _mm512_load_ps(sums_ + offset);
    __m512 high = _mm512_load_ps(sums_ + offset + kTileFloats);
    float* block = destination_.block + offset;
    if (destination_.block_holds_sums) {
      low = _mm512_add_ps(_mm512_load_ps(block), low);
      high = _mm512_add_ps(_mm512_load_ps(block + kTileFloats), high);
    }
    if (destination_.kind == Destination::Kind::kAddBlock) {
      _mm512_store_ps(block, low);
      _mm512_store_ps(block + kTileFloats, high);
      return;
    }
    const int64_t at = (destination_.row + row) * output_.columns + destination_.column;
    if (output_.bias != nullptr) {
      low = _mm512_add_ps(low, load_bf16(output_.bias + destination_.column, low_mask_));
      high = _mm512_add_ps(high, load_bf16(output_.bias + destination_.column + kTileColumns, high_mask_));
    }
    if (output_.dtype == DType::kF32) {
      output_f32(reinterpret_cast<float*>(output_.data) + at, low, high);
    } else {
      output_bf16(reinterpret_cast<bf16*>(output_.data) + at, low, high);
    }
  }

  void output_f32(float* to, __m512 low, __m512 high) const {
    if (output_.add) {
      low = _mm512_add_ps(_mm512_maskz_loadu_ps(low_mask_, to), low);
      high = _mm512_add_ps(_mm512_maskz_loadu_ps(high_mask_, to + kTileColumns), high);
    }
    _mm512_mask_storeu_ps(to, low_mask_, low);
    _mm512_mask_storeu_ps(to + kTileColumns, high_mask_, high);
  }

  void output_bf16(bf16* to, __m512 low, __m512 high) const {
    if (output_.add) {
      low = _mm512_add_ps(load_bf16(to, low_mask_), low);
      high = _mm512_add_ps(load_bf16(to + kTileColumns, high_mask_), high);
    }
    store_bf16(to, low_mask_, low);
    store_bf16(to + kTileColumns, high_mask_, high);
  }

  static constexpr int64_t kTileFloats = kTileBytes / static_cast<int64_t>(sizeof(float));

  alignas(64) float sums_[kMicroTileElements];
  Output output_;
  Destination destination_;
  int64_t next_row_ = 0, end_row_ = 0, rows_per_call_ = 1;
  __mmask16 low_mask_ = 0, high_mask_ = 0;
};

// Puts the previous micro-tile's sums to `previous` while the products of this one begin, so that neither the
// stores nor the zeroing hold up the tile unit. Leaves this one's sums in tmm0 ... tmm3.
inline __attribute__((always_inline)) void micro_tile(const bf16* a, const bf16* b, int64_t steps,
                                                      float* previous, SideWork& side) {
  asm volatile("" : : : "memory");  // GCC's tile loads do not tell the compiler that they read memory
  constexpr int64_t kHalf = kTileElements;
  constexpr int64_t kFloats = kMicroTileElements / 4;
  _tile_stream_loadd(6, b, kTileRowBytes);
  _tile_loadd(4, a, kTileRowBytes);
  _tile_stored(0, previous, kTileRowBytes);
  _tile_zero(0);
  _tile_dpbf16ps(0, 4, 6);
  _tile_stream_loadd(7, b + kHalf, kTileRowBytes);
  _tile_stored(1, previous + kFloats, kTileRowBytes);
  _tile_zero(1);
  _tile_dpbf16ps(1, 4, 7);
  _tile_loadd(5, a + kHalf, kTileRowBytes);
  _tile_stored(2, previous + 2 * kFloats, kTileRowBytes);
  _tile_zero(2);
  _tile_dpbf16ps(2, 5, 6);
  _tile_stored(3, previous + 3 * kFloats, kTileRowBytes);
  _tile_zero(3);
  _tile_dpbf16ps(3, 5, 7);
  for (int64_t step = 1; step < steps; ++step) {
    a += kUnitElements;
    b += kUnitElements;
    _tile_stream_loadd(6, b, kTileRowBytes);
    _tile_stream_loadd(7, b + kHalf, kTileRowBytes);
    _tile_loadd(4, a, kTileRowBytes);
    _tile_dpbf16ps(0, 4, 6);
    side.drain();
    _tile_dpbf16ps(1, 4, 7);
    _tile_loadd(5, a + kHalf, kTileRowBytes);
    side.prefetch();
    _tile_dpbf16ps(2, 5, 6);
    side.drain();
    _tile_dpbf16ps(3, 5, 7);
  }
  side.finish();
}

inline void store_micro_tile(float* to) {
  constexpr int64_t kFloats = kMicroTileElements / 4;
  _tile_stored(0, to, kTileRowBytes);
  _tile_stored(1, to + kFloats, kTileRowBytes);
  _tile_stored(2, to + 2 * kFloats, kTileRowBytes);
  _tile_stored(3, to + 3 * kFloats, kTileRowBytes);
}

}  // namespace tessera::amx
TESSERA_AMX_END
