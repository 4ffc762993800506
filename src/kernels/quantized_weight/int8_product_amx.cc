// Products of 8-bit codes on AMX tiles, which multiply twice as many of them at a time as of bf16 elements.
#include <algorithm>

#include "kernels/amx/pack-inl.h"
#include "kernels/gemm/amx_blocking.h"
#include "kernels/quantized_weight/int8_tiles.h"
#include "kernels/quantized_weight/quantized_weight_impl.h"

TESSERA_AMX_BEGIN
namespace tessera {
namespace {

using amx::kTileBytes;
using amx::kTileColumns;
using amx::kTileRowBytes;
using amx::kTileRows;

static_assert(kInt8PanelRows == amx::kPanelWidth && kInt8StepBytes == amx::kUnitBytes);

// A part of a product: its sums take 1 MiB, half of L2, a chunk of b packed another 256 KiB, and as many
// bytes of b before it is packed; a piece of a (32 rows of a chunk, 32 KiB) stays in L1.
constexpr int64_t kRows = 1024;
constexpr int64_t kColumns = 256;
constexpr int64_t kChunkBytes = kColumns / kInt8PanelRows * amx::kMaxChunkSteps * kInt8StepBytes;

// The codes of b, [n, k] if transposed, otherwise [k, n].
struct Weight {
  const int8_t* data;
  int64_t stride;
  bool is_transposed;
  int64_t columns, depth;
};

// Up to 64 bytes of a row; the rest is zero.
__m512i load_codes(const int8_t* from, int64_t count) {
  if (count >= kTileRowBytes) return _mm512_loadu_si512(from);
  return _mm512_maskz_loadu_epi8((uint64_t{1} << count) - 1, from);
}

// A unit, two tiles: columns [column, column + 32), contraction [k, k + 64), of a weight stored [n, k].
void pack_transposed(const Weight& b, int64_t column, int64_t k, std::byte* unit) {
  const auto* from = reinterpret_cast<const std::byte*>(b.data + column * b.stride + k);
  int64_t stride = b.stride;
  alignas(64) std::byte padded[2 * kTileBytes];
  if (column + kInt8PanelRows > b.columns || k + kInt8StepDepth > b.depth) {
    for (int64_t n = 0; n < kInt8PanelRows; ++n) {
      const int64_t count = column + n < b.columns ? b.depth - k : 0;
      _mm512_store_si512(padded + n * kTileRowBytes, load_codes(b.data + (column + n) * b.stride + k, count));
    }
    from = padded;
    stride = kTileRowBytes;
  }
  amx::pair_tile(from, stride, unit);
  amx::pair_tile(from + kTileColumns * stride, stride, unit + kTileBytes);
}

// Two units, columns [column, column + 64), of a weight stored [k, n]: `second` follows 32 columns after
// `first` and may be null.
void pack_rows(const Weight& b, int64_t column, int64_t k, std::byte* first, std::byte* second) {
  const int64_t columns = b.columns - column;
  for (int64_t quad = 0; quad < kTileRows; ++quad) {
    __m512i rows[4];
    for (int64_t i = 0; i < 4; ++i) {
      const int64_t row = k + 4 * quad + i;
      rows[i] = load_codes(b.data + row * b.stride + column, row < b.depth ? columns : 0);
    }
    // Lane l of quads[j] has columns 16 l + 4 j to 16 l + 4 j + 3, four codes each.
    const __m512i low01 = _mm512_unpacklo_epi8(rows[0], rows[1]),
                  high01 = _mm512_unpackhi_epi8(rows[0], rows[1]);
    const __m512i low23 = _mm512_unpacklo_epi8(rows[2], rows[3]),
                  high23 = _mm512_unpackhi_epi8(rows[2], rows[3]);
    const __m512i quads[4] = {_mm512_unpacklo_epi16(low01, low23), _mm512_unpackhi_epi16(low01, low23),
                              _mm512_unpacklo_epi16(high01, high23), _mm512_unpackhi_epi16(high01, high23)};
    // Transposes the 4 x 4 lanes.
    const __m512i even01 = _mm512_shuffle_i32x4(quads[0], quads[1], 0x88);  // lanes 0 and 2 of both
    const __m512i odd01 = _mm512_shuffle_i32x4(quads[0], quads[1], 0xDD);
    const __m512i even23 = _mm512_shuffle_i32x4(quads[2], quads[3], 0x88);
    const __m512i odd23 = _mm512_shuffle_i32x4(quads[2], quads[3], 0xDD);
    std::byte* const to = first + quad * kTileRowBytes;
    _mm512_store_si512(to, _mm512_shuffle_i32x4(even01, even23, 0x88));
    _mm512_store_si512(to + kTileBytes, _mm512_shuffle_i32x4(odd01, odd23, 0x88));
    if (second == nullptr) continue;
    std::byte* const other = second + quad * kTileRowBytes;
    _mm512_store_si512(other, _mm512_shuffle_i32x4(even01, even23, 0xDD));
    _mm512_store_si512(other + kTileBytes, _mm512_shuffle_i32x4(odd01, odd23, 0xDD));
  }
}

// All columns of k-steps [first, first + steps): panel after panel of 32 columns, `steps` units each.
void pack_chunk(const Weight& b, int64_t first, int64_t steps, std::byte* to) {
  const int64_t panels = divide_up(b.columns, kInt8PanelRows), panel_bytes = steps * kInt8StepBytes;
  if (b.is_transposed) {
    for (int64_t panel = 0; panel < panels; ++panel) {
      for (int64_t step = 0; step < steps; ++step) {
        pack_transposed(b, panel * kInt8PanelRows, (first + step) * kInt8StepDepth,
                        to + panel * panel_bytes + step * kInt8StepBytes);
      }
    }
    return;
  }
  for (int64_t step = 0; step < steps; ++step) {
    for (int64_t panel = 0; panel < panels; panel += 2) {
      std::byte* const unit = to + panel * panel_bytes + step * kInt8StepBytes;
      pack_rows(b, panel * kInt8PanelRows, (first + step) * kInt8StepDepth, unit,
                panel + 1 < panels ? unit + panel_bytes : nullptr);
    }
  }
}

// 32 x 32 sums over `steps` k-steps, in the arrangement of gemm/amx_micro-inl.h; c has `c_stride` bytes
// between rows. Also prefetches `per_step` cache lines per step from `ahead` into L2.
void micro_tile(const std::byte* a, const std::byte* b, int64_t steps, bool add, int32_t* c, int64_t c_stride,
                const std::byte* ahead, int64_t per_step) {
  asm volatile("" : : : "memory");  // GCC's tile loads do not tell the compiler that they read memory
  auto* const upper = reinterpret_cast<std::byte*>(c);
  std::byte* const lower = upper + kTileRows * c_stride;
  if (add) {
    _tile_loadd(0, upper, c_stride);
    _tile_loadd(1, upper + kTileRowBytes, c_stride);
    _tile_loadd(2, lower, c_stride);
    _tile_loadd(3, lower + kTileRowBytes, c_stride);
  } else {
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
  }
  for (int64_t step = 0; step < steps; ++step, a += kInt8StepBytes, b += kInt8StepBytes) {
    _tile_stream_loadd(6, b, kTileRowBytes);
    _tile_stream_loadd(7, b + kTileBytes, kTileRowBytes);
    _tile_loadd(4, a, kTileRowBytes);
    _tile_dpbssd(0, 4, 6);
    _tile_dpbssd(1, 4, 7);
    _tile_loadd(5, a + kTileBytes, kTileRowBytes);
    for (int64_t i = 0; i < per_step; ++i, ahead += 64) {
      _mm_prefetch(reinterpret_cast<const char*>(ahead), _MM_HINT_T1);
    }
    _tile_dpbssd(2, 5, 6);
    _tile_dpbssd(3, 5, 7);
  }
  _tile_stored(0, upper, c_stride);
  _tile_stored(1, upper + kTileRowBytes, c_stride);
  _tile_stored(2, lower, c_stride);
  _tile_stored(3, lower + kTileRowBytes, c_stride);
}

void multiply(const Int8Product& p, std::byte* scratch) {
  const amx::TileScope tiles;
  const Weight b = {p.b, p.b_stride, p.b_is_transposed, p.n, p.k};
  const amx::DepthChunks chunks(divide_up(p.k, kInt8StepDepth), amx::kMaxChunkSteps);
  const int64_t row_panels = divide_up(p.m, kInt8PanelRows), column_panels = divide_up(p.n, kInt8PanelRows);
  const int64_t panel_bytes = chunks.num_steps * kInt8StepBytes;
  const auto* const a = reinterpret_cast<const std::byte*>(p.a);
  for (int64_t chunk = 0; chunk < chunks.count; ++chunk) {
    const int64_t first = chunks.first(chunk), steps = chunks.steps(chunk);
    pack_chunk(b, first, steps, scratch);
    for (int64_t row = 0; row < row_panels; ++row) {
      const std::byte* const piece = a + row * panel_bytes + first * kInt8StepBytes;
      // The piece that is needed next: of the next rows, or of the first rows of the next chunk.
      const bool last = row + 1 == row_panels;
      const std::byte* ahead = last ? a + (first + steps) * kInt8StepBytes : piece + panel_bytes;
      const int64_t per_step =
          last && chunk + 1 == chunks.count ? 0 : divide_up(kInt8StepBytes / 64, column_panels);
      for (int64_t column = 0; column < column_panels; ++column) {
        micro_tile(piece, scratch + column * steps * kInt8StepBytes, steps, chunk > 0,
                   p.c + (row * p.c_stride + column) * kInt8PanelRows,
                   p.c_stride * static_cast<int64_t>(sizeof(int32_t)), ahead, per_step);
        ahead += per_step * steps * 64;
      }
    }
  }
}

}  // namespace
}  // namespace tessera
TESSERA_AMX_END

namespace tessera {

const Int8Kernels kInt8Amx = {kRows,   kColumns, kChunkBytes, /*library_bytes=*/0, /*uses_tiles=*/true,
                              multiply};

}  // namespace tessera
