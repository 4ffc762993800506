// Forward attention on AMX. A block of 32 query rows takes the keys it sees in steps of 512:
//
//   scores = q k^T (tiles, 32 x 32 at a time)    p = 2^(c scores - reference) (vectors)    o += p v (tiles)
//
// The reference of a row is the score of its own key. Softmax does not need the maximum: float32 and bf16
// hold 2^60 as exactly as 1. Only when a sum outgrows kSumLimit, the reference is raised to the maximum and
// the step is repeated.
#include "kernels/attention/attention_amx-inl.h"
// attention_amx-inl.h stands before any other header with intrinsics.
#include <cmath>

#include "kernels/attention/attention_amx.h"
#include "kernels/attention/attention_amx_layout.h"

TESSERA_AMX_BEGIN
namespace tessera::amx {
namespace {

constexpr int64_t kGranule = kAttentionGranule;
constexpr int64_t kKeyGranules = kForwardKeys / kGranule;
constexpr int64_t kBlockFloats = 4 * kTileFloats;  // a 32 x 32 block of C tiles
constexpr float kLog2E = 1.4426950408889634f;
constexpr float kLn2 = 0.6931471805599453f;
// 44 in units of scores. p v stays finite for all values below 2^60.
constexpr float kSumLimit = 0x1.0p64f;

// One call, seen from a task.
struct ForwardCall {
  const bf16* qkv;
  bf16* o;
  float* lse;
  AttentionShape shape;
  AmxAttentionSizes sizes;
  int64_t T, window;
  float score_factor;  // scale log2(e)
  ForwardScratch scratch;

  int64_t k_column(int64_t g) const { return (shape.num_heads + g) * shape.head_dim; }
  int64_t v_column(int64_t g) const { return k_column(g) + shape.num_key_value_heads * shape.head_dim; }
};

// The half-open range [begin, end) of key granules, counted from token 0.
struct Granules {
  int64_t begin, end;
  int64_t count() const { return end - begin; }
};

// A block of 32 rows: rows begin ... end - 1 of one head, or of first_head and the next. What is left of the
// two row tiles is padding.
struct RowBlock {
  int64_t first_head, num_heads, sequence_begin, begin, end, window;

  int64_t first_row(int64_t tile) const { return num_heads == 2 ? begin : begin + tile * kTileRows; }
  int64_t head(int64_t tile) const { return num_heads == 2 ? first_head + tile : first_head; }
  int64_t rows_in(int64_t tile) const { return std::clamp<int64_t>(end - first_row(tile), 0, kTileRows); }
  int64_t row(int64_t r) const { return first_row(r / kTileRows) + r % kTileRows; }
  int64_t first_key(int64_t row) const { return std::max(sequence_begin, row - window + 1); }
  Granules keys() const { return {first_key(begin) / kGranule, (end - 1) / kGranule + 1}; }
};

// p = 2^(c scores - reference) of all rows and 32 keys.
class Softmax {
 public:
  Softmax(const RowBlock& rows, const ForwardBuffers& buffers, float score_factor)
      : rows_(rows), b_(buffers), factor_(_mm512_set1_ps(score_factor)) {}

  // scores: C tiles; p: an A pair.
  void run(const float* scores, int64_t first_key, bf16* p) const {
    if (is_masked(first_key)) {
      run_rows<true>(scores, first_key, p);
    } else {
      run_rows<false>(scores, first_key, p);
    }
  }

  // reference = max(reference, c scores).
  void raise_references(const float* scores, int64_t first_key) const {
    const __m512 lowest = _mm512_set1_ps(-HUGE_VALF);
    for (int64_t r = 0; r < kForwardRows; ++r) {
      const uint32_t keys = seen_keys(r, first_key);
      const float* score = scores + offset(r);
      const __m512 low =
          _mm512_mask_mul_ps(lowest, static_cast<__mmask16>(keys), _mm512_load_ps(score), factor_);
      const __m512 high = _mm512_mask_mul_ps(lowest, static_cast<__mmask16>(keys >> 16),
                                             _mm512_load_ps(score + kTileFloats), factor_);
      b_.reference[r] = std::max(b_.reference[r], _mm512_reduce_max_ps(_mm512_max_ps(low, high)));
    }
  }

 private:
  static int64_t offset(int64_t r) { return r / kTileRows * 2 * kTileFloats + r % kTileRows * kTileColumns; }

  bool is_masked(int64_t first_key) const {
    return first_key + kGranule > rows_.begin + 1 || first_key < rows_.first_key(rows_.row(kForwardRows - 1));
  }
  // Bit i: key first_key + i.
  uint32_t seen_keys(int64_t r, int64_t first_key) const {
    const auto lo = std::clamp<int64_t>(rows_.first_key(rows_.row(r)) - first_key, 0, kGranule);
    const auto hi = std::clamp<int64_t>(rows_.row(r) + 1 - first_key, 0, kGranule);
    return static_cast<uint32_t>(((uint64_t{1} << hi) - 1) & ~((uint64_t{1} << lo) - 1));
  }

  template <bool kMasked>
  __attribute__((always_inline)) void run_rows(const float* scores, int64_t first_key, bf16* p) const {
#pragma GCC unroll 2
    for (int64_t r = 0; r < kForwardRows; ++r) {
      const float* score = scores + offset(r);
      const __m512 reference = _mm512_set1_ps(b_.reference[r]);
      __m512 p0 = exp2_floats(_mm512_fmsub_ps(_mm512_load_ps(score), factor_, reference));
      __m512 p1 = exp2_floats(_mm512_fmsub_ps(_mm512_load_ps(score + kTileFloats), factor_, reference));
      if constexpr (kMasked) {
        const uint32_t keys = seen_keys(r, first_key);
        p0 = _mm512_maskz_mov_ps(static_cast<__mmask16>(keys), p0);
        p1 = _mm512_maskz_mov_ps(static_cast<__mmask16>(keys >> 16), p1);
      }
      float* sum = b_.sums + r * kTileColumns;
      _mm512_store_ps(sum, _mm512_add_ps(_mm512_load_ps(sum), _mm512_add_ps(p0, p1)));
      _mm512_store_si512(p + r * kTileDepth, to_bf16_pair(p0, p1));
    }
  }

  const RowBlock& rows_;
  const ForwardBuffers& b_;
  __m512 factor_;
};

// Blocks of rows that share a key-value head.
class ForwardTask {
 public:
  ForwardTask(const ForwardCall& call, int64_t g)
      : call_(call),
        b_(call.scratch.thread_buffers(call.sizes)),
        g_(g),
        k_(call.scratch.k + g * call.sizes.head_elements()),
        v_(call.scratch.v + g * call.sizes.head_elements()) {}

  void run(const RowBlock& rows);

 private:
  int64_t depth() const { return call_.sizes.depth_tiles; }

  void prepare(const RowBlock& rows) const;
  void multiply_keys(const Softmax& softmax, Granules keys);
  void multiply_values(Granules keys, bool is_first);
  bool overflowed() const;
  void repeat_with_maximum(const Softmax& softmax, Granules keys, bool is_first);
  void store(const RowBlock& rows) const;

  const ForwardCall& call_;
  ForwardBuffers b_;
  int64_t g_;
  const bf16 *k_, *v_;
  TileUnit unit_;
};

// Packs the queries and sets the references.
void ForwardTask::prepare(const RowBlock& rows) const {
  const int64_t E = call_.shape.head_dim, Q = call_.shape.qkv_width();
  bf16* to = b_.q;
  for (int64_t i = 0; i < E; i += kTileDepth) {
    for (int64_t tile = 0; tile < 2; ++tile, to += kTileElements) {
      copy_tile(call_.qkv + rows.first_row(tile) * Q + rows.head(tile) * E + i, Q, rows.rows_in(tile),
                std::min(kTileDepth, E - i), to);
    }
  }
  for (int64_t r = 0; r < kForwardRows; ++r) {
    b_.reference[r] = 0;
    if (r % kTileRows >= rows.rows_in(r / kTileRows)) continue;
    const bf16* q = b_.q + r * kTileDepth;
    const bf16* k = call_.qkv + rows.row(r) * Q + call_.k_column(g_);
    __m512 sum = _mm512_setzero_ps();
    for (int64_t i = 0; i < E; i += kTileDepth, q += TileUnit::kPair) {
      const auto mask = static_cast<__mmask32>((uint64_t{1} << std::min(kTileDepth, E - i)) - 1);
      sum = _mm512_dpbf16_ps(sum, reinterpret_cast<__m512bh>(_mm512_load_si512(q)),
                             reinterpret_cast<__m512bh>(_mm512_maskz_loadu_epi16(mask, k + i)));
    }
    b_.reference[r] = call_.score_factor * _mm512_reduce_add_ps(sum);
  }
  std::fill_n(b_.sums, kForwardRows * kTileColumns, 0.0f);
  stores_before_tile_loads();
}

// scores = q k^T and p; the vector work of 32 keys stands behind the products of the next 32.
void ForwardTask::multiply_keys(const Softmax& softmax, Granules keys) {
  for (int64_t i = keys.begin; i < keys.end; ++i) {
    unit_.multiply(Start::kZero, b_.q, k_ + i * depth() * TileUnit::kPair, depth(), b_.scores[i % 2]);
    if (i == keys.begin) continue;
    softmax.run(b_.scores[(i - 1) % 2], (i - 1) * kGranule, b_.p + (i - 1 - keys.begin) * TileUnit::kPair);
  }
  unit_.flush();
  const int64_t last = keys.end - 1;
  softmax.run(b_.scores[last % 2], last * kGranule, b_.p + (last - keys.begin) * TileUnit::kPair);
  stores_before_tile_loads();
}

// o += p v.
void ForwardTask::multiply_values(Granules keys, bool is_first) {
  for (int64_t piece = 0; piece < depth(); ++piece) {
    unit_.multiply(is_first ? Start::kZero : Start::kLoad, b_.p,
                   v_ + (piece * call_.sizes.granules + keys.begin) * TileUnit::kPair, keys.count(),
                   b_.o + piece * kBlockFloats);
  }
}

// Some sum is above kSumLimit, or NaN.
bool ForwardTask::overflowed() const {
  __mmask16 above = 0;
  for (int64_t r = 0; r < kForwardRows; ++r) {
    above |= _mm512_cmp_ps_mask(_mm512_load_ps(b_.sums + r * kTileColumns), _mm512_set1_ps(kSumLimit),
                                _CMP_NLE_UQ);
  }
  return above != 0;
}

void ForwardTask::repeat_with_maximum(const Softmax& softmax, Granules keys, bool is_first) {
  float before[kForwardRows];
  std::copy_n(b_.reference, kForwardRows, before);
  for (int64_t i = keys.begin; i < keys.end; ++i) {
    unit_.multiply(Start::kZero, b_.q, k_ + i * depth() * TileUnit::kPair, depth(), b_.scores[0]);
    unit_.flush();
    softmax.raise_references(b_.scores[0], i * kGranule);
  }
  for (int64_t r = 0; r < kForwardRows; ++r) {
    const __m512 shrink = exp2_floats(_mm512_set1_ps(before[r] - b_.reference[r]));
    const int64_t at = r * kTileColumns;
    _mm512_store_ps(b_.sums + at, _mm512_mul_ps(_mm512_load_ps(b_.sums_before + at), shrink));
    if (is_first) continue;  // no outputs yet
    float* o = b_.o + r / kTileRows * 2 * kTileFloats + r % kTileRows * kTileColumns;
    for (int64_t piece = 0; piece < depth(); ++piece, o += kBlockFloats) {
      _mm512_store_ps(o, _mm512_mul_ps(_mm512_load_ps(o), shrink));
      _mm512_store_ps(o + kTileFloats, _mm512_mul_ps(_mm512_load_ps(o + kTileFloats), shrink));
    }
  }
  multiply_keys(softmax, keys);
}

void ForwardTask::store(const RowBlock& rows) const {
  const int64_t E = call_.shape.head_dim;
  for (int64_t tile = 0; tile < 2; ++tile) {
    for (int64_t i = 0; i < rows.rows_in(tile); ++i) {
      const int64_t t = rows.first_row(tile) + i, r = tile * kTileRows + i;
      const float sum = _mm512_reduce_add_ps(_mm512_load_ps(b_.sums + r * kTileColumns));
      if (call_.lse != nullptr) {
        call_.lse[rows.head(tile) * call_.T + t] = b_.reference[r] * kLn2 + std::log(sum);
      }
      const __m512 factor = _mm512_set1_ps(1 / sum);
      const float* o = b_.o + tile * 2 * kTileFloats + i * kTileColumns;
      bf16* to = call_.o + (t * call_.shape.num_heads + rows.head(tile)) * E;
      for (int64_t column = 0; column < E; column += kTileDepth, o += kBlockFloats) {
        store_bf16_row(o, o + kTileFloats, factor, E - column, to + column);
      }
    }
  }
}

void ForwardTask::run(const RowBlock& rows) {
  prepare(rows);
  const Softmax softmax(rows, b_, call_.score_factor);
  const Granules all = rows.keys();
  for (int64_t begin = all.begin; begin < all.end; begin += kKeyGranules) {
    const Granules keys = {begin, std::min(all.end, begin + kKeyGranules)};
    const bool is_first = begin == all.begin;
    std::copy_n(b_.sums, kForwardRows * kTileColumns, b_.sums_before);
    multiply_keys(softmax, keys);
    if (overflowed()) repeat_with_maximum(softmax, keys, is_first);
    multiply_values(keys, is_first);
  }
  unit_.flush();
  store(rows);
}

// B pairs of k^T and of v for one granule of key-value head g.
void pack_granule(const ForwardCall& call, int64_t g, int64_t granule) {
  const int64_t E = call.shape.head_dim, Q = call.shape.qkv_width(), begin = granule * kGranule;
  const int64_t depth = call.sizes.depth_tiles, rows = std::min(kGranule, call.T - begin);
  const bf16* row = call.qkv + begin * Q;
  bf16* k = call.scratch.k + g * call.sizes.head_elements() + granule * depth * TileUnit::kPair;
  bf16* v = call.scratch.v + g * call.sizes.head_elements() + granule * TileUnit::kPair;
  for (int64_t piece = 0; piece < depth; ++piece) {
    const int64_t i = piece * kTileDepth, columns = std::min(kTileDepth, E - i);
    bf16* k_pair = k + piece * TileUnit::kPair;
    bf16* v_pair = v + piece * call.sizes.granules * TileUnit::kPair;
    for (int64_t half = 0; half < 2; ++half) {
      pair_tile(row + half * kTileColumns * Q + call.k_column(g) + i, Q,
                std::clamp<int64_t>(rows - half * kTileColumns, 0, kTileColumns), columns,
                k_pair + half * kTileElements);
      interleave_tile(row + call.v_column(g) + i + half * kTileColumns, Q, rows,
                      std::clamp<int64_t>(columns - half * kTileColumns, 0, kTileColumns),
                      v_pair + half * kTileElements);
    }
  }
}

}  // namespace

void attention_forward(ConstTensorView qkv_TQ, const AttentionShape& shape,
                       std::span<const int32_t> cu_seqlens, TensorView o_THE, TensorView lse_HT,
                       std::span<std::byte> scratch, ThreadPool& pool) {
  const int64_t T = qkv_TQ.dim(0), G = shape.num_key_value_heads;
  const ForwardCall call = {.qkv = qkv_TQ.as<bf16>(),
                            .o = o_THE.as<bf16>(),
                            .lse = lse_HT.empty() ? nullptr : lse_HT.as<float>(),
                            .shape = shape,
                            .sizes = AmxAttentionSizes(shape, T),
                            .T = T,
                            .window = shape.sliding_window == 0 ? T : shape.sliding_window,
                            .score_factor = shape.scale * kLog2E,
                            .scratch = ForwardScratch(scratch.data(), shape, T, pool.num_threads())};
  const int64_t granules = call.sizes.granules;
  pool.parallel_for(G * granules,
                    [&](int64_t index) { pack_granule(call, index / granules, index % granules); });

  // Two query heads of a group together see fewer keys in vain than 32 rows of one.
  const int64_t group = shape.num_heads / G, task_heads = group % 2 == 0 ? 2 : 1;
  const int64_t block_rows = kForwardRows / task_heads, task_rows = kForwardBlocks * block_rows;
  ForwardScratch::Task* const tasks = call.scratch.tasks;
  int64_t num_tasks = 0;
  for (size_t n = 0; n + 1 < cu_seqlens.size(); ++n) {
    for (int64_t begin = cu_seqlens[n]; begin < cu_seqlens[n + 1]; begin += task_rows) {
      const auto end = static_cast<int32_t>(std::min<int64_t>(cu_seqlens[n + 1], begin + task_rows));
      tasks[num_tasks++] = {cu_seqlens[n], static_cast<int32_t>(begin), end};
    }
  }
  // Neighbours in the order share keys and values, which stay in L2. Last rows first: they see the most keys,
  // and long tasks must not be left for the end.
  const int64_t head_sets = group / task_heads;
  pool.parallel_for(num_tasks * G * head_sets, [&](int64_t index) {
    const TileScope tiles;
    const int64_t g = index / head_sets / num_tasks;
    const int64_t first_head = g * group + index % head_sets * task_heads;
    const ForwardScratch::Task& task = tasks[num_tasks - 1 - index / head_sets % num_tasks];
    ForwardTask forward(call, g);
    for (int64_t begin = task.begin; begin < task.end; begin += block_rows) {
      const int64_t end = std::min<int64_t>(task.end, begin + block_rows);
      forward.run({first_head, task_heads, task.sequence_begin, begin, end, call.window});
    }
  });
}

}  // namespace tessera::amx
TESSERA_AMX_END
