// Forward attention on AMX. A task is 64 query rows over all keys they see, in steps of 128 keys:
//
//   scores = q k^T (tiles)    p = 2^(c scores - reference) (vectors)    o += p v (tiles)
//
// as a pipeline: the vector work of step s stands between the tile products q k^T of step s + 1 and p v of
// step s - 1. The reference of a row is its maximum over the first keys; it only moves when a sum outgrows
// kSumLimit, since a float32 sum does not care whether its largest term is 1 or 2^20.
#include "kernels/attention/attention_amx-inl.h"
// attention_amx-inl.h stands before any other header with intrinsics.
#include <cmath>
#include <limits>

#include "kernels/attention/attention_amx.h"
#include "kernels/attention/attention_amx_layout.h"

TESSERA_AMX_BEGIN
namespace tessera::amx {
namespace {

constexpr int64_t kKeyTiles = kForwardKeys / kTileColumns;
constexpr int64_t kKeyGranules = kForwardKeys / kAttentionGranule;
constexpr float kLog2E = 1.4426950408889634f;
constexpr float kLn2 = 0.6931471805599453f;
// Above it the reference follows the maximum. Far below the largest float32, so that p v does not overflow
// for any value below 2^80; far above 1, so that it rarely happens.
constexpr float kSumLimit = 0x1.0p32f;

struct Keys {
  int64_t begin;  // a multiple of 32
  int64_t count;  // a multiple of 32, at most kForwardKeys

  int64_t num_tiles() const { return count / kTileColumns; }
  int64_t num_granules() const { return count / kAttentionGranule; }
};

// One call, seen from a task.
struct ForwardCall {
  const bf16* qkv;
  bf16* o;
  float* lse;
  AttentionShape shape;
  AmxAttentionSizes sizes;
  int64_t T, window;
  float score_factor;  // scale log2(e)
  const bf16 *k, *v;
};

// The 64 rows of a task: row tile i holds rows first_row(i) ... of head first_head + i / tiles_per_head.
class ForwardRows {
 public:
  ForwardRows(const ForwardCall& call, const ForwardBuffers& buffers, int64_t first_head, int64_t num_heads,
              int64_t sequence_begin, int64_t begin, int64_t end)
      : call_(call),
        b_(buffers),
        first_head_(first_head),
        tiles_per_head_(kForwardRowTiles / num_heads),
        sequence_begin_(sequence_begin),
        begin_(begin),
        end_(std::min(end, begin + tiles_per_head_ * kTileRows)),
        // Rows of one head only can end early; with several, tiles of every head are in use.
        row_tiles_(num_heads > 1 ? kForwardRowTiles : round_up(end_ - begin_, 2 * kTileRows) / kTileRows) {}

  void run(const bf16* k, const bf16* v);

 private:
  int64_t first_row(int64_t tile) const { return begin_ + tile % tiles_per_head_ * kTileRows; }
  int64_t head(int64_t tile) const { return first_head_ + tile / tiles_per_head_; }
  int64_t num_rows(int64_t tile) const { return std::clamp<int64_t>(end_ - first_row(tile), 0, kTileRows); }
  int64_t first_key(int64_t row) const { return std::max(sequence_begin_, row - call_.window + 1); }
  float* sums(int64_t tile) const { return b_.sums[0] + tile * kTileRows * kTileColumns; }

  void pack_queries() const;
  template <typename Weave>
  void multiply_keys(const bf16* k, Keys keys, float* scores, Weave& weave) const;
  template <typename Weave>
  void multiply_values(const bf16* v, Keys keys, const bf16* p, bool first, Weave& weave) const;
  void mask(Keys keys, float* scores) const;
  void raise_references(Keys keys, const float* scores) const;
  void shrink_outputs(bool has_outputs) const;
  void store() const;

  const ForwardCall& call_;
  ForwardBuffers b_;
  int64_t first_head_, tiles_per_head_, sequence_begin_, begin_, end_, row_tiles_;
};

// p = 2^(c scores - reference), row by row: what runs between the products.
class Softmax {
 public:
  Softmax(const float* scores, const ForwardBuffers& buffers, Keys keys, float score_factor, int64_t num_rows,
          int64_t rows_per_call)
      : scores_(scores),
        p_(buffers.p[0]),
        reference_(buffers.reference),
        sums_before_(buffers.sums[1]),
        sums_after_(buffers.sums[0]),
        factor_(score_factor),
        num_granules_(keys.num_granules()),
        num_rows_(num_rows),
        rows_per_call_(rows_per_call) {}

  void operator()() {
    const int64_t end = std::min(num_rows_, row_ + rows_per_call_);
    for (; row_ < end; ++row_) run_row();
  }
  void finish() {
    for (; row_ < num_rows_; ++row_) run_row();
  }
  // Some sum is above kSumLimit, or NaN.
  bool overflowed() const { return overflowed_ != 0; }

 private:
  void run_row() {
    const int64_t tile = row_ / kTileRows, r = row_ % kTileRows;
    const float* score = scores_ + tile * kKeyTiles * kTileFloats + r * kTileColumns;
    bf16* p = p_ + tile * kKeyGranules * kTileElements + r * kTileDepth;
    const __m512 factor = _mm512_set1_ps(factor_), reference = _mm512_set1_ps(reference_[row_]);
    __m512 sum0 = _mm512_load_ps(sums_before_ + row_ * kTileColumns), sum1 = _mm512_setzero_ps();
    for (int64_t i = 0; i < num_granules_; ++i) {
      const __m512 p0 = exp2_floats(_mm512_fmsub_ps(_mm512_load_ps(score), factor, reference));
      const __m512 p1 = exp2_floats(_mm512_fmsub_ps(_mm512_load_ps(score + kTileFloats), factor, reference));
      sum0 = _mm512_add_ps(sum0, p0);
      sum1 = _mm512_add_ps(sum1, p1);
      _mm512_store_si512(p, to_bf16_pair(p0, p1));
      score += 2 * kTileFloats;
      p += kTileElements;
    }
    sum0 = _mm512_add_ps(sum0, sum1);
    _mm512_store_ps(sums_after_ + row_ * kTileColumns, sum0);
    overflowed_ |= _mm512_cmp_ps_mask(sum0, _mm512_set1_ps(kSumLimit), _CMP_NLE_UQ);
  }

  const float* scores_;
  bf16* p_;
  const float* reference_;
  const float* sums_before_;
  float* sums_after_;
  float factor_;
  int64_t num_granules_, num_rows_, rows_per_call_;
  int64_t row_ = 0;
  __mmask16 overflowed_ = 0;
};

void ForwardRows::pack_queries() const {
  const int64_t E = call_.shape.head_dim, Q = call_.shape.qkv_width();
  for (int64_t tile = 0; tile < row_tiles_; ++tile) {
    const bf16* row = call_.qkv + first_row(tile) * Q + head(tile) * E;
    for (int64_t k = 0; k < call_.sizes.depth_tiles; ++k) {
      const int64_t columns = std::min(kTileDepth, E - k * kTileDepth);
      copy_tile(row + k * kTileDepth, Q, num_rows(tile), columns,
                b_.q + (tile * call_.sizes.depth_tiles + k) * kTileElements);
    }
  }
}

// scores = q k^T.
template <typename Weave>
void ForwardRows::multiply_keys(const bf16* k, Keys keys, float* scores, Weave& weave) const {
  const int64_t depth = call_.sizes.depth_tiles;
  const int64_t first_tile = keys.begin / kTileColumns;
  for (int64_t column = 0; column < keys.num_tiles(); column += 2) {
    const TilePanel right = {k + (first_tile + column) * depth * kTileElements, kTileElements,
                             depth * kTileElements};
    for (int64_t row = 0; row < row_tiles_; row += 2) {
      const TilePanel left = {b_.q + row * depth * kTileElements, kTileElements, depth * kTileElements};
      multiply_tiles(
          Start::kZero, left, right, depth,
          {scores + (row * kKeyTiles + column) * kTileFloats, kKeyTiles * kTileFloats, kTileFloats}, weave);
    }
  }
}

// o += p v.
template <typename Weave>
void ForwardRows::multiply_values(const bf16* v, Keys keys, const bf16* p, bool first, Weave& weave) const {
  const int64_t columns = call_.sizes.column_tiles;
  const bf16* granule = v + keys.begin / kAttentionGranule * columns * kTileElements;
  for (int64_t column = 0; column < columns; column += 2) {
    const TilePanel right = {granule + column * kTileElements, columns * kTileElements, kTileElements};
    for (int64_t row = 0; row < row_tiles_; row += 2) {
      const TilePanel left = {p + row * kKeyGranules * kTileElements, kTileElements,
                              kKeyGranules * kTileElements};
      multiply_tiles(first ? Start::kZero : Start::kLoad, left, right, keys.num_granules(),
                     {b_.o + (row * columns + column) * kTileFloats, columns * kTileFloats, kTileFloats},
                     weave);
    }
  }
}

// Scores of keys that a row does not see become -infinity.
void ForwardRows::mask(Keys keys, float* scores) const {
  const __m512 hidden = _mm512_set1_ps(-std::numeric_limits<float>::infinity());
  for (int64_t tile = 0; tile < row_tiles_; ++tile) {
    const int64_t last_row = first_row(tile) + kTileRows - 1;
    if (keys.begin + keys.count <= first_row(tile) + 1 && keys.begin >= first_key(last_row)) continue;
    for (int64_t r = 0; r < kTileRows; ++r) {
      const int64_t row = first_row(tile) + r;
      float* score = scores + tile * kKeyTiles * kTileFloats + r * kTileColumns;
      for (int64_t column = 0; column < keys.num_tiles(); ++column, score += kTileFloats) {
        const int64_t key = keys.begin + column * kTileColumns;
        const auto lo = std::clamp<int64_t>(first_key(row) - key, 0, kTileColumns);
        const auto hi = std::clamp<int64_t>(row + 1 - key, 0, kTileColumns);
        const uint32_t seen = ((1U << hi) - 1) & ~((1U << lo) - 1);
        if (seen != 0xFFFF) _mm512_mask_store_ps(score, static_cast<__mmask16>(~seen), hidden);
      }
    }
  }
}

// reference = max(reference, c scores), shrink = 2^(old reference - new reference).
void ForwardRows::raise_references(Keys keys, const float* scores) const {
  for (int64_t row = 0; row < row_tiles_ * kTileRows; ++row) {
    const float* score = scores + row / kTileRows * kKeyTiles * kTileFloats + row % kTileRows * kTileColumns;
    __m512 max0 = _mm512_load_ps(score), max1 = _mm512_load_ps(score + kTileFloats);
    for (int64_t column = 2; column < keys.num_tiles(); column += 2) {
      max0 = _mm512_max_ps(max0, _mm512_load_ps(score + column * kTileFloats));
      max1 = _mm512_max_ps(max1, _mm512_load_ps(score + (column + 1) * kTileFloats));
    }
    const float top = call_.score_factor * _mm512_reduce_max_ps(_mm512_max_ps(max0, max1));
    const float old = b_.reference[row];
    if (top > old) b_.reference[row] = top;
    b_.shrink[row] = old - b_.reference[row];
  }
  for (int64_t row = 0; row < row_tiles_ * kTileRows; row += kTileColumns) {
    _mm512_store_ps(b_.shrink + row, exp2_floats(_mm512_load_ps(b_.shrink + row)));
  }
}

// Sums before this step, and outputs, times shrink.
void ForwardRows::shrink_outputs(bool has_outputs) const {
  for (int64_t row = 0; row < row_tiles_ * kTileRows; ++row) {
    if (b_.shrink[row] == 1) continue;
    const __m512 factor = _mm512_set1_ps(b_.shrink[row]);
    float* sum = b_.sums[1] + row * kTileColumns;
    _mm512_store_ps(sum, _mm512_mul_ps(_mm512_load_ps(sum), factor));
    if (!has_outputs) continue;
    float* o =
        b_.o + row / kTileRows * call_.sizes.column_tiles * kTileFloats + row % kTileRows * kTileColumns;
    for (int64_t column = 0; column < call_.sizes.column_tiles; ++column, o += kTileFloats) {
      _mm512_store_ps(o, _mm512_mul_ps(_mm512_load_ps(o), factor));
    }
  }
}

void ForwardRows::store() const {
  const int64_t E = call_.shape.head_dim, columns = call_.sizes.column_tiles;
  for (int64_t tile = 0; tile < row_tiles_; ++tile) {
    for (int64_t r = 0; r < num_rows(tile); ++r) {
      const int64_t t = first_row(tile) + r, row = tile * kTileRows + r;
      const float sum = _mm512_reduce_add_ps(_mm512_load_ps(b_.sums[1] + row * kTileColumns));
      if (call_.lse != nullptr) {
        call_.lse[head(tile) * call_.T + t] = b_.reference[row] * kLn2 + std::log(sum);
      }
      const __m512 factor = _mm512_set1_ps(1 / sum);
      const float* o = b_.o + tile * columns * kTileFloats + r * kTileColumns;
      bf16* to = call_.o + (t * call_.shape.num_heads + head(tile)) * E;
      for (int64_t i = 0; i < E; i += kTileDepth, o += 2 * kTileFloats) {
        store_bf16_row(o, o + kTileFloats, factor, E - i, to + i);
      }
    }
  }
}

void ForwardRows::run(const bf16* k, const bf16* v) {
  const int64_t num_rows = row_tiles_ * kTileRows;
  pack_queries();
  std::fill_n(b_.sums[1], num_rows * kTileColumns, 0.0f);
  // Finite, so that differences with it are never NaN.
  std::fill_n(b_.reference, num_rows, std::numeric_limits<float>::lowest());
  stores_before_tile_loads();

  const int64_t keys_begin = first_key(begin_) / kAttentionGranule * kAttentionGranule;
  const int64_t keys_end = round_up(end_, kAttentionGranule);
  const auto keys_from = [&](int64_t begin) { return Keys{begin, std::min(kForwardKeys, keys_end - begin)}; };
  NoWeave nothing;
  multiply_keys(k, keys_from(keys_begin), b_.scores[0], nothing);
  for (int64_t begin = keys_begin; begin < keys_end; begin += kForwardKeys) {
    const Keys keys = keys_from(begin), next = keys_from(begin + kForwardKeys);
    const bool first = begin == keys_begin, second = begin == keys_begin + kForwardKeys;
    const Keys before = keys_from(begin - kForwardKeys);
    mask(keys, b_.scores[0]);
    if (first) raise_references(keys, b_.scores[0]);
    const int64_t depth = (next.count > 0 ? next.count * call_.sizes.padded_head() : 0) +
                          (first ? 0 : before.count * call_.sizes.padded_head());
    const int64_t calls = std::max<int64_t>(1, depth / (kTileDepth * kTileDepth) * row_tiles_ / 2);
    Softmax softmax(b_.scores[0], b_, keys, call_.score_factor, num_rows, (num_rows + calls - 1) / calls);
    if (next.count > 0) multiply_keys(k, next, b_.scores[1], softmax);
    if (!first) multiply_values(v, before, b_.p[1], second, softmax);
    softmax.finish();
    if (softmax.overflowed()) {
      raise_references(keys, b_.scores[0]);
      shrink_outputs(!first);
      Softmax again(b_.scores[0], b_, keys, call_.score_factor, num_rows, num_rows);
      again.finish();
    }
    stores_before_tile_loads();
    std::swap(b_.scores[0], b_.scores[1]);
    std::swap(b_.p[0], b_.p[1]);
    std::swap(b_.sums[0], b_.sums[1]);
    if (next.count <= 0) multiply_values(v, keys, b_.p[1], first, nothing);
  }
  store();
}

// B tiles of k^T and of v for granule `granule` of key-value head g.
void pack_granule(const ForwardCall& call, int64_t g, int64_t granule, bf16* k, bf16* v) {
  const int64_t E = call.shape.head_dim, Q = call.shape.qkv_width(), H = call.shape.num_heads;
  const int64_t begin = granule * kAttentionGranule;
  const bf16* row = call.qkv + begin * Q;
  for (int64_t half = 0; half < 2; ++half) {
    const int64_t rows = std::clamp<int64_t>(call.T - begin - half * kTileColumns, 0, kTileColumns);
    const bf16* from = row + half * kTileColumns * Q + (H + g) * E;
    for (int64_t i = 0; i < call.sizes.depth_tiles; ++i, k += kTileElements) {
      pair_tile(from + i * kTileDepth, Q, rows, std::min(kTileDepth, E - i * kTileDepth), k);
    }
  }
  const int64_t rows = std::min(kAttentionGranule, call.T - begin);
  const bf16* from = row + (H + call.shape.num_key_value_heads + g) * E;
  for (int64_t i = 0; i < call.sizes.column_tiles; ++i, v += kTileElements) {
    interleave_tile(from + i * kTileColumns, Q, rows,
                    std::clamp<int64_t>(E - i * kTileColumns, 0, kTileColumns), v);
  }
}

// Query heads of one task: those that share a key-value head, 1, 2 or 4.
int64_t heads_per_task(const AttentionShape& shape) {
  const int64_t group = shape.num_heads / shape.num_key_value_heads;
  return group % 4 == 0 ? 4 : group % 2 == 0 ? 2 : 1;
}

}  // namespace

void attention_forward(ConstTensorView qkv_TQ, const AttentionShape& shape,
                       std::span<const int32_t> cu_seqlens, TensorView o_THE, TensorView lse_HT,
                       std::span<std::byte> scratch, ThreadPool& pool) {
  const int64_t T = qkv_TQ.dim(0);
  const AmxAttentionSizes sizes(shape, T);
  const ForwardScratch memory(scratch.data(), shape, T, pool.num_threads());
  const ForwardCall call = {.qkv = qkv_TQ.as<bf16>(),
                            .o = o_THE.as<bf16>(),
                            .lse = lse_HT.empty() ? nullptr : lse_HT.as<float>(),
                            .shape = shape,
                            .sizes = sizes,
                            .T = T,
                            .window = shape.sliding_window == 0 ? T : shape.sliding_window,
                            .score_factor = shape.scale * kLog2E,
                            .k = memory.k,
                            .v = memory.v};
  const int64_t granule_elements = kAttentionGranule * sizes.padded_head();
  pool.parallel_for(shape.num_key_value_heads * sizes.granules, [&](int64_t index) {
    pack_granule(call, index / sizes.granules, index % sizes.granules, memory.k + index * granule_elements,
                 memory.v + index * granule_elements);
  });

  const int64_t task_heads = heads_per_task(shape), task_rows = kForwardRows / task_heads;
  int64_t num_tasks = 0;
  for (size_t n = 0; n + 1 < cu_seqlens.size(); ++n) {
    for (int64_t begin = cu_seqlens[n]; begin < cu_seqlens[n + 1]; begin += task_rows) {
      memory.tasks[num_tasks++] = {cu_seqlens[n], cu_seqlens[n + 1], static_cast<int32_t>(begin)};
    }
  }
  // Neighbours in the order share keys and values, which stay in L2. Last rows first: they see the most keys,
  // and long tasks must not be left for the end.
  const int64_t group = shape.num_heads / shape.num_key_value_heads, head_sets = group / task_heads;
  pool.parallel_for(num_tasks * shape.num_key_value_heads * head_sets, [&](int64_t index) {
    const TileScope tiles;
    const int64_t set = index % head_sets, g = index / head_sets / num_tasks;
    const auto& task = memory.tasks[num_tasks - 1 - index / head_sets % num_tasks];
    ForwardRows rows(call, memory.thread_buffers(scratch.data(), sizes), g * group + set * task_heads,
                     task_heads, task.sequence_begin, task.begin, task.sequence_end);
    rows.run(memory.k + g * sizes.head_elements(), memory.v + g * sizes.head_elements());
  });
}

}  // namespace tessera::amx
TESSERA_AMX_END
