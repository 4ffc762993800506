// Products, transposes and softmax of float32 blocks with up to 64 columns: the arithmetic of blocked
// attention.
//
// Panels and scores have rows of exactly kAttentionBlock floats. Tokens of one side lie along the columns, so
// that softmax statistics, masks and row factors are vectors and the head size needs no padding. The other
// operand of a product is read one scalar at a time (broadcast) and can have any layout.
//
// Included once per instruction set (Highway's foreach_target), hence the unusual guard.
#if defined(TESSERA_ATTENTION_BLOCK_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef TESSERA_ATTENTION_BLOCK_INL_H_
#undef TESSERA_ATTENTION_BLOCK_INL_H_
#else
#define TESSERA_ATTENTION_BLOCK_INL_H_
#endif

#include <hwy/highway.h>

#include <algorithm>
#include <limits>

#include "base/divide_up.h"
#include "kernels/attention/attention_inputs.h"
#include "kernels/attention/attention_layout.h"
#include "kernels/dropout/dropout_numbers-inl.h"
#include "kernels/soft_cap-inl.h"
#include "kernels/vector-inl.h"

HWY_BEFORE_NAMESPACE();
namespace tessera {
namespace HWY_NAMESPACE {

// The left operand of a product: element (row, depth) is at data[row row_stride + depth depth_stride].
struct Broadcast {
  const float* data;
  int64_t row_stride;
  int64_t depth_stride;
};

// A block of float32 rows [count, width], as stored and transposed.
inline Broadcast as_rows(const float* rows, int64_t width) { return {rows, width, 1}; }
inline Broadcast as_columns(const float* rows, int64_t width) { return {rows, 1, width}; }

// Accumulators of a tile: 4 x 4 of 32 registers (AVX-512), 4 x 2 of 16 (AVX2 and below): enough independent
// sums to hide the latency of two multiply-adds per cycle (4 cycles x 2), with 8 or 6 loads per step for 16
// or 8 of them.
constexpr size_t kTileRows = 4;
constexpr size_t kTileVectors = HWY_TARGET <= HWY_AVX3 ? 4 : 2;

template <size_t kRows, size_t kVectors, Update kUpdate>
HWY_INLINE void multiply_tile(const Broadcast& left, const float* right, int64_t depth, float* out) {
  const FloatTag d;
  const int64_t N = lanes(d);
  hn::Vec<FloatTag> sum[kRows][kVectors];
  for (size_t r = 0; r < kRows; ++r) {
    for (size_t v = 0; v < kVectors; ++v) {
      const int64_t at = static_cast<int64_t>(r) * kAttentionBlock + static_cast<int64_t>(v) * N;
      sum[r][v] = kUpdate == Update::kAdd ? hn::LoadU(d, out + at) : hn::Zero(d);
    }
  }
  const float* scalars = left.data;
  for (int64_t k = 0; k < depth; ++k) {
    hn::Vec<FloatTag> vectors[kVectors];
    for (size_t v = 0; v < kVectors; ++v) vectors[v] = hn::LoadU(d, right + static_cast<int64_t>(v) * N);
    for (size_t r = 0; r < kRows; ++r) {
      const auto scalar = hn::Set(d, scalars[static_cast<int64_t>(r) * left.row_stride]);
      for (size_t v = 0; v < kVectors; ++v) sum[r][v] = hn::MulAdd(scalar, vectors[v], sum[r][v]);
    }
    scalars += left.depth_stride;
    right += kAttentionBlock;
  }
  for (size_t r = 0; r < kRows; ++r) {
    for (size_t v = 0; v < kVectors; ++v) {
      const int64_t at = static_cast<int64_t>(r) * kAttentionBlock + static_cast<int64_t>(v) * N;
      hn::StoreU(sum[r][v], d, out + at);
    }
  }
}

template <size_t kVectors, Update kUpdate>
HWY_INLINE void multiply_columns(Broadcast left, const float* right, int64_t num_rows, int64_t depth,
                                 float* out) {
  int64_t r = 0;
  for (; r + static_cast<int64_t>(kTileRows) <= num_rows; r += kTileRows) {
    multiply_tile<kTileRows, kVectors, kUpdate>(left, right, depth, out);
    left.data += static_cast<int64_t>(kTileRows) * left.row_stride;
    out += static_cast<int64_t>(kTileRows) * kAttentionBlock;
  }
  for (; r < num_rows; ++r) {
    multiply_tile<1, kVectors, kUpdate>(left, right, depth, out);
    left.data += left.row_stride;
    out += kAttentionBlock;
  }
}

// out [num_rows, 64] = or += left [num_rows, depth] right [depth, 64], columns [0, num_columns). Later
// columns, up to a multiple of the vector length, are computed from whatever `right` holds there.
template <Update kUpdate>
HWY_NOINLINE void multiply(const Broadcast& left, const float* right, int64_t num_rows, int64_t depth,
                           int64_t num_columns, float* out) {
  const int64_t N = lanes(FloatTag());
  for (int64_t column = 0; column < num_columns;) {
    const int64_t num_vectors = divide_up(num_columns - column, N);
    if (num_vectors >= 3 && kTileVectors == 4) {
      multiply_columns<kTileVectors, kUpdate>(left, right + column, num_rows, depth, out + column);
      column += 4 * N;
    } else if (num_vectors >= 2) {
      multiply_columns<2, kUpdate>(left, right + column, num_rows, depth, out + column);
      column += 2 * N;
    } else {
      multiply_columns<1, kUpdate>(left, right + column, num_rows, depth, out + column);
      column += N;
    }
  }
}

// rows [count, width] = factor from; rows of `from` are `stride` elements apart.
template <typename A>
HWY_NOINLINE void copy_rows(const A* from, int64_t stride, int64_t count, int64_t width, float factor,
                            float* rows) {
  const FloatTag d;
  const auto scale = hn::Set(d, factor);
  for (int64_t r = 0; r < count; ++r) {
    for_each_vector(d, width, [&](auto access, int64_t i) HWY_ATTR {
      access.store(d, hn::Mul(scale, access.load(d, from + r * stride + i)), rows + r * width + i);
    });
  }
}

// A 4 x 4 piece for pack_panel and unpack_panel.
#if HWY_TARGET == HWY_SCALAR
template <typename A>
void pack_4x4(const A* from, int64_t stride, float factor, float* panel) {
  for (int64_t r = 0; r < 4; ++r) {
    for (int64_t i = 0; i < 4; ++i) panel[i * kAttentionBlock + r] = factor * to_float(from[r * stride + i]);
  }
}
template <typename A>
void unpack_4x4(const float* panel, const float* factors, A* to, int64_t stride) {
  for (int64_t r = 0; r < 4; ++r) {
    for (int64_t i = 0; i < 4; ++i)
      to[r * stride + i] = from_float<A>(panel[i * kAttentionBlock + r] * factors[r]);
  }
}
#else
// Transposes four vectors of four.
template <class D, class V = hn::Vec<D> >
HWY_INLINE void transpose_4x4(D d, V* rows) {
  const V low01 = hn::InterleaveLower(d, rows[0], rows[1]);  // 00 10 01 11
  const V high01 = hn::InterleaveUpper(d, rows[0], rows[1]);
  const V low23 = hn::InterleaveLower(d, rows[2], rows[3]);
  const V high23 = hn::InterleaveUpper(d, rows[2], rows[3]);
  rows[0] = hn::ConcatLowerLower(d, low23, low01);  // 00 10 20 30
  rows[1] = hn::ConcatUpperUpper(d, low23, low01);
  rows[2] = hn::ConcatLowerLower(d, high23, high01);
  rows[3] = hn::ConcatUpperUpper(d, high23, high01);
}

template <typename A>
HWY_INLINE void pack_4x4(const A* from, int64_t stride, float factor, float* panel) {
  const hn::FixedTag<float, 4> d;
  hn::Vec<decltype(d)> rows[4];
  for (int64_t r = 0; r < 4; ++r) rows[r] = hn::Mul(hn::Set(d, factor), load_floats(d, from + r * stride));
  transpose_4x4(d, rows);
  for (int64_t i = 0; i < 4; ++i) hn::StoreU(rows[i], d, panel + i * kAttentionBlock);
}
template <typename A>
HWY_INLINE void unpack_4x4(const float* panel, const float* factors, A* to, int64_t stride) {
  const hn::FixedTag<float, 4> d;
  hn::Vec<decltype(d)> rows[4];
  for (int64_t i = 0; i < 4; ++i) rows[i] = hn::LoadU(d, panel + i * kAttentionBlock);
  transpose_4x4(d, rows);
  for (int64_t r = 0; r < 4; ++r) store_floats(d, hn::Mul(rows[r], hn::Set(d, factors[r])), to + r * stride);
}
#endif

// Calls body_4x4(row, i) on the 4 x 4 pieces of [count, width] and body(row, i) on the remaining elements.
template <class Body4x4, class Body>
HWY_INLINE void for_each_piece(int64_t count, int64_t width, const Body4x4& body_4x4, const Body& body) {
  const int64_t whole_rows = count / 4 * 4, whole_width = width / 4 * 4;
  for (int64_t r = 0; r < whole_rows; r += 4) {
    for (int64_t i = 0; i < whole_width; i += 4) body_4x4(r, i);
  }
  for (int64_t r = 0; r < count; ++r) {
    for (int64_t i = r < whole_rows ? whole_width : 0; i < width; ++i) body(r, i);
  }
}

// panel [width, 64] = the transpose of factor from [count, width]; columns from count on are 0.
template <typename A>
HWY_NOINLINE void pack_panel(const A* from, int64_t stride, int64_t count, int64_t width, float factor,
                             float* panel) {
  if (count < kAttentionBlock) std::fill_n(panel, width * kAttentionBlock, 0.0f);
  for_each_piece(
      count, width,
      [&](int64_t r, int64_t i)
          HWY_ATTR { pack_4x4(from + r * stride + i, stride, factor, panel + i * kAttentionBlock + r); },
      [&](int64_t r, int64_t i)
          HWY_ATTR { panel[i * kAttentionBlock + r] = factor * to_float(from[r * stride + i]); });
}

// to [count, width] = the transpose of panel [width, 64], row r times factors[r].
template <typename A>
HWY_NOINLINE void unpack_panel(const float* panel, int64_t count, int64_t width, const float* factors, A* to,
                               int64_t stride) {
  for_each_piece(
      count, width,
      [&](int64_t r, int64_t i)
          HWY_ATTR { unpack_4x4(panel + i * kAttentionBlock + r, factors + r, to + r * stride + i, stride); },
      [&](int64_t r, int64_t i)
          HWY_ATTR { to[r * stride + i] = from_float<A>(panel[i * kAttentionBlock + r] * factors[r]); });
}

// Sets scores outside the band to -infinity.
HWY_NOINLINE inline void mask_scores(const AttentionBand& band, int64_t num_rows, int64_t num_columns,
                                     float* scores) {
  const FloatTag d;
  const auto hidden = hn::Set(d, -std::numeric_limits<float>::infinity());
  // Small integers, exact in float32. Columns are in [0, 64), so limits outside that range can be clamped to
  // just outside it.
  const auto clamp = [](int64_t limit) {
    return static_cast<float>(std::clamp<int64_t>(limit, -1, kAttentionBlock));
  };
  for (int64_t r = 0; r < num_rows; ++r) {
    const auto lo = hn::Set(d, clamp(band.lo + r)), hi = hn::Set(d, clamp(band.hi + r));
    for (int64_t column = 0; column < num_columns; column += lanes(d)) {
      const auto at = hn::Iota(d, static_cast<float>(column));
      const auto outside = hn::Or(hn::Lt(at, lo), hn::Ge(at, hi));
      float* score = scores + r * kAttentionBlock + column;
      hn::StoreU(hn::IfThenElse(outside, hidden, hn::LoadU(d, score)), d, score);
    }
  }
}

// One step of online softmax over the rows (keys) of a block of scores, for every column (query):
//   new_max = max(max, scores)    scores = exp(scores - new_max)    shrink = exp(max - new_max)
//   sum = sum shrink + scores     out [width, 64] *= shrink         max = new_max
HWY_NOINLINE inline void softmax_step(float* scores, int64_t num_rows, int64_t num_columns, float* max,
                                      float* sum, float* out, int64_t width) {
  const FloatTag d;
  for (int64_t column = 0; column < num_columns; column += lanes(d)) {
    float* score = scores + column;
    const auto old_max = hn::LoadU(d, max + column);
    auto max0 = old_max, max1 = old_max;
    int64_t r = 0;
    for (; r + 2 <= num_rows; r += 2) {
      max0 = hn::Max(max0, hn::LoadU(d, score + r * kAttentionBlock));
      max1 = hn::Max(max1, hn::LoadU(d, score + (r + 1) * kAttentionBlock));
    }
    if (r < num_rows) max0 = hn::Max(max0, hn::LoadU(d, score + r * kAttentionBlock));
    const auto new_max = hn::Max(max0, max1);
    const auto shrink = exp_nonpositive(d, hn::Sub(old_max, new_max));
    auto new_sum = hn::Mul(hn::LoadU(d, sum + column), shrink);
    for (r = 0; r < num_rows; ++r) {
      const auto p = exp_nonpositive(d, hn::Sub(hn::LoadU(d, score + r * kAttentionBlock), new_max));
      hn::StoreU(p, d, score + r * kAttentionBlock);
      new_sum = hn::Add(new_sum, p);
    }
    hn::StoreU(new_max, d, max + column);
    hn::StoreU(new_sum, d, sum + column);
    if (hn::AllTrue(d, hn::Eq(shrink, hn::Set(d, 1.0f)))) continue;
    for (int64_t i = 0; i < width; ++i) {
      float* value = out + i * kAttentionBlock + column;
      hn::StoreU(hn::Mul(hn::LoadU(d, value), shrink), d, value);
    }
  }
}

// values *= factors.
HWY_NOINLINE inline void multiply_elements(const float* factors, int64_t num_rows, int64_t num_columns,
                                           float* values) {
  const FloatTag d;
  for (int64_t r = 0; r < num_rows; ++r) {
    for (int64_t column = 0; column < num_columns; column += lanes(d)) {
      const int64_t at = r * kAttentionBlock + column;
      hn::StoreU(hn::Mul(hn::LoadU(d, values + at), hn::LoadU(d, factors + at)), d, values + at);
    }
  }
}

// scores = c tanh(scores / c), and its derivative there unless `slopes` is null.
HWY_NOINLINE inline void cap_scores(float cap, int64_t num_rows, int64_t num_columns, float* scores,
                                    float* slopes) {
  const FloatTag d;
  for (int64_t r = 0; r < num_rows; ++r) {
    for (int64_t column = 0; column < num_columns; column += lanes(d)) {
      const int64_t at = r * kAttentionBlock + column;
      const auto capped = soft_cap(d, hn::LoadU(d, scores + at), cap);
      hn::StoreU(capped, d, scores + at);
      if (slopes != nullptr) hn::StoreU(soft_cap_slope(d, capped, cap), d, slopes + at);
    }
  }
}

// Biases of a block of scores by the distance of column and row: element (r, c) has values[c - r + 63], the
// bias of the distance base + direction (c - r).
struct BlockBias {
  static constexpr int64_t kZero = kAttentionBlock - 1;
  float values[3 * kAttentionBlock];
};

template <typename A>
HWY_NOINLINE void load_bias(const PositionBias& bias, int64_t head, int64_t base, int64_t direction,
                            int64_t num_rows, int64_t num_columns, BlockBias& block) {
  const A* table = bias.table_BH.as<A>() + head;
  const int64_t num_heads = bias.table_BH.dim(1);
  for (int64_t i = BlockBias::kZero - num_rows + 1; i < BlockBias::kZero + num_columns; ++i) {
    block.values[i] = to_float(table[bias.bucket(base + direction * (i - BlockBias::kZero)) * num_heads]);
  }
}

HWY_NOINLINE inline void add_bias(const BlockBias& bias, int64_t num_rows, int64_t num_columns,
                                  float* scores) {
  const FloatTag d;
  for (int64_t r = 0; r < num_rows; ++r) {
    const float* values = bias.values + BlockBias::kZero - r;
    for (int64_t column = 0; column < num_columns; column += lanes(d)) {
      float* score = scores + r * kAttentionBlock + column;
      hn::StoreU(hn::Add(hn::LoadU(d, score), hn::LoadU(d, values + column)), d, score);
    }
  }
}

// Adds the gradients of a block of scores to those of the buckets of their distances.
HWY_NOINLINE inline void add_bias_gradient(const float* ds, int64_t num_rows, int64_t num_columns,
                                           const PositionBias& bias, int64_t base, int64_t direction,
                                           float* buckets) {
  const FloatTag d;
  BlockBias sums;
  std::fill_n(sums.values, 3 * kAttentionBlock, 0.0f);
  for (int64_t r = 0; r < num_rows; ++r) {
    float* values = sums.values + BlockBias::kZero - r;
    for (int64_t column = 0; column < num_columns; column += lanes(d)) {
      const auto is_column = hn::FirstN(d, static_cast<size_t>(num_columns - column));
      const auto gradient = hn::IfThenElseZero(is_column, hn::LoadU(d, ds + r * kAttentionBlock + column));
      hn::StoreU(hn::Add(hn::LoadU(d, values + column), gradient), d, values + column);
    }
  }
  for (int64_t i = BlockBias::kZero - num_rows + 1; i < BlockBias::kZero + num_columns; ++i) {
    buckets[bias.bucket(base + direction * (i - BlockBias::kZero))] += sums.values[i];
  }
}

// What scores of a block are multiplied by: 0 where they are dropped, otherwise 1 / (1 - probability).
struct BlockDropout {
  alignas(64) float factors[kAttentionBlock * kAttentionBlock];
};

// Of keys [key, key + num_rows), counted from the first of their sequence and a multiple of 64, along the
// rows, by queries along the columns, whose tokens are `tokens`.
HWY_NOINLINE inline void load_dropout(const Dropout& dropout, int64_t head, const uint64_t* tokens,
                                      int64_t key, int64_t num_rows, int64_t num_columns,
                                      BlockDropout& block) {
  const FloatTag d;
  const CounterTag d32;
  HWY_ALIGN uint32_t low[kAttentionBlock] = {}, high[kAttentionBlock] = {};
  for (int64_t column = 0; column < num_columns; ++column) {
    low[column] = static_cast<uint32_t>(tokens[column]);
    high[column] = static_cast<uint32_t>(tokens[column] >> 32);
  }
  const auto threshold = hn::Set(d32, dropout.threshold());
  const auto scale = hn::Set(d, dropout.scale());
  for (int64_t column = 0; column < num_columns; column += lanes(d)) {
    for_each_dropout_number(
        dropout.site, hn::Load(d32, low + column), hn::Load(d32, high + column), dropout_element(head, key),
        num_rows, [&](int64_t row, CounterVec number) HWY_ATTR {
          const auto is_dropped = hn::RebindMask(d, hn::Lt(number, threshold));
          hn::Store(hn::IfThenZeroElse(is_dropped, scale), d, block.factors + row * kAttentionBlock + column);
        });
  }
}

// Whether the statistics of a score vary along the rows or the columns of the block.
enum class Along { kRows, kColumns };

template <Along kAlong, class D>
HWY_INLINE hn::Vec<D> load_statistic(D d, const float* statistic, int64_t row, int64_t column) {
  if constexpr (kAlong == Along::kRows) return hn::Set(d, statistic[row]);
  return hn::LoadU(d, statistic + column);
}

// scores = exp(scores - lse).
template <Along kAlong>
HWY_NOINLINE void probabilities(const float* lse, int64_t num_rows, int64_t num_columns, float* scores) {
  const FloatTag d;
  for (int64_t r = 0; r < num_rows; ++r) {
    for (int64_t column = 0; column < num_columns; column += lanes(d)) {
      float* score = scores + r * kAttentionBlock + column;
      const auto log_sum = load_statistic<kAlong>(d, lse, r, column);
      hn::StoreU(exp_nonpositive(d, hn::Sub(hn::LoadU(d, score), log_sum)), d, score);
    }
  }
}

// ds = p (dp - delta), overwriting dp.
template <Along kAlong>
HWY_NOINLINE void score_gradients(const float* p, const float* delta, int64_t num_rows, int64_t num_columns,
                                  float* dp) {
  const FloatTag d;
  for (int64_t r = 0; r < num_rows; ++r) {
    for (int64_t column = 0; column < num_columns; column += lanes(d)) {
      const int64_t at = r * kAttentionBlock + column;
      const auto difference = hn::Sub(hn::LoadU(d, dp + at), load_statistic<kAlong>(d, delta, r, column));
      hn::StoreU(hn::Mul(hn::LoadU(d, p + at), difference), d, dp + at);
    }
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace tessera
HWY_AFTER_NAMESPACE();

#endif  // guard per target
