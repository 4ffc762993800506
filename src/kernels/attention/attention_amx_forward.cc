// Forward attention on AMX. A block of 32 query rows takes the keys it sees in steps of kForwardKeys:
//
//   scores = q k^T (tiles, 32 x 32 at a time)    p = 2^(c scores - reference) (vectors)    o += p v (tiles)
//
// The reference of a row is the score of its own key. Softmax does not need the maximum: float32 and bf16
// represent 2^60 as accurately as 1. Only if a sum exceeds kSumLimit is the reference raised to the maximum
// and the block of rows repeated.
#include "kernels/attention/attention_amx-inl.h"
// attention_amx-inl.h must come before any other header with intrinsics.
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

// One call, as seen by a task.
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

// A block of 32 rows: rows begin ... end - 1 of one head, or of first_head and the next. The rest of the two
// row tiles is padding.
struct RowBlock {
  int64_t first_head, num_heads, sequence_begin, begin, end, window;

  int64_t first_row(int64_t tile) const { return num_heads == 2 ? begin : begin + tile * kTileRows; }
  int64_t head(int64_t tile) const { return num_heads == 2 ? first_head + tile : first_head; }
  int64_t rows_in(int64_t tile) const { return std::clamp<int64_t>(end - first_row(tile), 0, kTileRows); }
  int64_t row(int64_t r) const { return first_row(r / kTileRows) + r % kTileRows; }
  int64_t first_key(int64_t row) const { return std::max(sequence_begin, row - window + 1); }
  Granules keys() const { return {first_key(begin) / kGranule, (end - 1) / kGranule + 1}; }
};

// p = 2^(c scores - reference) for all rows and 32 keys, a few rows at a time: the work interleaved with the
// products.
class Softmax {
 public:
  Softmax() = default;
  // scores: C tiles; p: an A pair.
  Softmax(const RowBlock& rows, const ForwardBuffers& buffers, const float* scores, float score_factor,
          int64_t first_key, int64_t rows_per_call, bf16* p)
      : sums_(buffers.sums),
        reference_(buffers.reference),
        rows_(&rows),
        buffers_(&buffers),
        scores_(scores),
        p_(p),
        factor_(score_factor),
        first_key_(first_key),
        rows_per_call_(rows_per_call),
        masked_(first_key + kGranule > rows.begin + 1 ||
                first_key < rows.first_key(rows.row(kForwardRows - 1))),
        row_(0) {}

  void operator()() { run_until(std::min(kForwardRows, row_ + rows_per_call_)); }
  void finish() { run_until(kForwardRows); }

  // reference = max(reference, c scores).
  void raise_references() const {
    const __m512 lowest = _mm512_set1_ps(-HUGE_VALF), factor = _mm512_set1_ps(factor_);
    for (int64_t r = 0; r < kForwardRows; ++r) {
      const uint32_t keys = seen_keys(r);
      const float* score = scores_ + offset(r);
      const __m512 low =
          _mm512_mask_mul_ps(lowest, static_cast<__mmask16>(keys), _mm512_load_ps(score), factor);
      const __m512 high = _mm512_mask_mul_ps(lowest, static_cast<__mmask16>(keys >> 16),
                                             _mm512_load_ps(score + kTileFloats), factor);
      float& reference = buffers_->reference[r];
      reference = std::max(reference, _mm512_reduce_max_ps(_mm512_max_ps(low, high)));
    }
  }

 private:
  static int64_t offset(int64_t r) { return r / kTileRows * 2 * kTileFloats + r % kTileRows * kTileColumns; }

  // Bit i is set if row r sees key first_key + i.
  uint32_t seen_keys(int64_t r) const {
    const auto lo = std::clamp<int64_t>(rows_->first_key(rows_->row(r)) - first_key_, 0, kGranule);
    const auto hi = std::clamp<int64_t>(rows_->row(r) + 1 - first_key_, 0, kGranule);
    return static_cast<uint32_t>(((uint64_t{1} << hi) - 1) & ~((uint64_t{1} << lo) - 1));
  }

  __attribute__((always_inline)) void run_until(int64_t end) {
    if (masked_) {
      for (; row_ < end; row_ += 2) run_rows<true, 2>();
    } else {
      for (; row_ + 4 <= end; row_ += 4) run_rows<false, 4>();
      for (; row_ < end; row_ += 2) run_rows<false, 2>();
    }
  }
  template <bool kMasked, int kCount>
  __attribute__((always_inline)) void run_rows() const {
    const __m512 factor = _mm512_set1_ps(factor_);
    const int64_t row = row_;
    const float* score = scores_ + (row & kTileRows) * kTileColumns + row * kTileColumns;
    float* sum = sums_ + row * kTileColumns;
    const float* ref = reference_ + row;
    bf16* p = p_ + row * kTileDepth;
#pragma GCC unroll 4
    for (int64_t r = 0; r < kCount; ++r) {
      const __m512 reference = _mm512_set1_ps(ref[r]);
      __m512 p0 = exp2_floats(_mm512_fmsub_ps(_mm512_load_ps(score + r * 16), factor, reference));
      __m512 p1 =
          exp2_floats(_mm512_fmsub_ps(_mm512_load_ps(score + r * 16 + kTileFloats), factor, reference));
      if constexpr (kMasked) {
        const uint32_t keys = seen_keys(row + r);
        p0 = _mm512_maskz_mov_ps(static_cast<__mmask16>(keys), p0);
        p1 = _mm512_maskz_mov_ps(static_cast<__mmask16>(keys >> 16), p1);
      }
      _mm512_store_ps(sum + r * 16, _mm512_add_ps(_mm512_load_ps(sum + r * 16), _mm512_add_ps(p0, p1)));
      _mm512_store_si512(p + r * kTileDepth, to_bf16_pair(p0, p1));
    }
  }

  float* sums_ = nullptr;
  const float* reference_ = nullptr;
  const RowBlock* rows_ = nullptr;
  const ForwardBuffers* buffers_ = nullptr;
  const float* scores_ = nullptr;
  bf16* p_ = nullptr;
  float factor_ = 0;
  int64_t first_key_ = 0, rows_per_call_ = 0;
  bool masked_ = false;
  int64_t row_ = kForwardRows;  // rows finished
};

// Blocks of rows that share a key-value head. Keys are taken in steps of kForwardKeys; three things run
// concurrently, 32 keys at a time:
//
//   tile unit     scores = q k^T of granule i;  then o += p v of the previous step, some columns
//   vector units  p of granule i - 1
class ForwardTask {
 public:
  ForwardTask(const ForwardCall& call, int64_t g)
      : call_(call),
        b_(call.scratch.thread_buffers(call.sizes)),
        g_(g),
        k_(call.scratch.k + g * call.sizes.head_elements()),
        v_(call.scratch.v + g * call.sizes.head_elements()) {}

  // `next`: the rows of the next call.
  void run(const RowBlock& rows, const RowBlock& next);

 private:
  int64_t depth() const { return call_.sizes.depth_tiles; }
  bf16* weights(int64_t step) const { return b_.p[step % 2]; }

  void prepare(const RowBlock& rows) const;
  void prefetch(const RowBlock& next, int64_t begin, int64_t end) const;
  Softmax softmax(const RowBlock& rows, Granules all, int64_t granule) const;
  void multiply_key(int64_t granule, Softmax* vectors);
  void multiply_values(int64_t end_piece, Softmax* vectors);
  void begin_values(Granules all, int64_t step);
  void attend(const RowBlock& rows, const RowBlock& next);
  bool overflowed() const;
  void raise_references(const RowBlock& rows);
  void store(const RowBlock& rows) const;

  const ForwardCall& call_;
  ForwardBuffers b_;
  int64_t g_;
  const bf16 *k_, *v_;
  TileUnit unit_;
  // State of o += p v: pieces of 32 columns from next_piece_ on are still to be done.
  Granules values_;
  const bf16* p_;
  bool has_outputs_;  // o is set
  int64_t next_piece_;
};

// Packs the queries and sets the references.
void ForwardTask::prepare(const RowBlock& rows) const {
  const int64_t E = call_.shape.head_dim, Q = call_.shape.qkv_width();
  for (int64_t tile = 0; tile < 2; ++tile) {
    const int64_t count = rows.rows_in(tile);
    const bf16* q = call_.qkv + rows.first_row(tile) * Q + rows.head(tile) * E;
    const bf16* k = call_.qkv + rows.first_row(tile) * Q + call_.k_column(g_);
    bf16* to = b_.q + tile * kTileElements;
    float* products = b_.sums + tile * kTileFloats;
    for (int64_t r = 0; r < kTileRows; ++r, q += Q, k += Q, to += kTileDepth, products += kTileColumns) {
      __m512 sum = _mm512_setzero_ps();
      for (int64_t i = 0; i < E; i += kTileDepth) {
        const uint64_t columns = r < count ? static_cast<uint64_t>(std::min(kTileDepth, E - i)) : 0;
        const auto mask = static_cast<__mmask32>((uint64_t{1} << columns) - 1);
        const __m512i part = _mm512_maskz_loadu_epi16(mask, q + i);
        _mm512_store_si512(to + i / kTileDepth * TileUnit::kPair, part);
        sum = _mm512_dpbf16_ps(sum, reinterpret_cast<__m512bh>(part),
                               reinterpret_cast<__m512bh>(_mm512_maskz_loadu_epi16(mask, k + i)));
      }
      _mm512_store_ps(products, sum);
    }
    _mm512_store_ps(
        b_.reference + tile * kTileRows,
        _mm512_mul_ps(_mm512_set1_ps(call_.score_factor), sums_of_rows(b_.sums + tile * kTileFloats)));
  }
  stores_before_tile_loads();
}

// Prefetches to L2 what `prepare` will read of rows begin ... end - 1.
void ForwardTask::prefetch(const RowBlock& next, int64_t begin, int64_t end) const {
  const int64_t E = call_.shape.head_dim;
  for (int64_t r = begin; r < std::min(end, kForwardRows); ++r) {
    if (r % kTileRows >= next.rows_in(r / kTileRows)) continue;
    const bf16* row = call_.qkv + next.row(r) * call_.shape.qkv_width();
    for (int64_t i = 0; i < E; i += kTileDepth) {
      _mm_prefetch(row + next.head(r / kTileRows) * E + i, _MM_HINT_T1);
      _mm_prefetch(row + call_.k_column(g_) + i, _MM_HINT_T1);
    }
  }
}

// The vector work of a granule whose scores are in memory by the time it runs.
Softmax ForwardTask::softmax(const RowBlock& rows, Granules all, int64_t granule) const {
  const int64_t at = granule - all.begin,
                rows_per_call = round_up((kForwardRows + 2 * depth() - 1) / (2 * depth()), 2);
  return {rows,
          b_,
          b_.scores[granule % 2],
          call_.score_factor,
          granule * kGranule,
          rows_per_call,
          weights(at / kKeyGranules) + at % kKeyGranules * TileUnit::kPair};
}

void ForwardTask::multiply_key(int64_t granule, Softmax* vectors) {
  unit_.multiply(Start::kZero, b_.q, k_ + granule * depth() * TileUnit::kPair, depth(),
                 b_.scores[granule % 2], *vectors);
}

// o += p v, columns up to those of end_piece.
void ForwardTask::multiply_values(int64_t end_piece, Softmax* vectors) {
  for (; next_piece_ < end_piece; ++next_piece_) {
    unit_.multiply(has_outputs_ ? Start::kLoad : Start::kZero, p_,
                   v_ + (next_piece_ * call_.sizes.granules + values_.begin) * TileUnit::kPair,
                   values_.count(), b_.o + next_piece_ * kBlockFloats, *vectors);
  }
}

// The weights of a step are complete: finishes o += p v of the previous step and begins this one's.
void ForwardTask::begin_values(Granules all, int64_t step) {
  Softmax none;
  multiply_values(depth(), &none);
  if (step > 0) has_outputs_ = true;
  const int64_t begin = all.begin + step * kKeyGranules;
  values_ = {begin, std::min(all.end, begin + kKeyGranules)};
  p_ = weights(step);
  next_piece_ = 0;
  stores_before_tile_loads();
}

// Weights of all keys, their sums and o.
void ForwardTask::attend(const RowBlock& rows, const RowBlock& next) {
  const Granules all = rows.keys();
  const int64_t prefetched_rows = (kForwardRows + all.count() - 1) / all.count();
  std::fill_n(b_.sums, kForwardRows * kTileColumns, 0.0f);
  has_outputs_ = false;
  next_piece_ = depth();  // no weights yet
  Softmax vectors;
  for (int64_t i = all.begin; i < all.end; ++i) {
    const int64_t at = i - all.begin, in_step = at % kKeyGranules;
    multiply_key(i, &vectors);
    // Part 1 of the products with v runs after granule 1 of the next step of keys, and so on.
    multiply_values(in_step == 0 ? depth() : depth() * in_step / kKeyGranules, &vectors);
    vectors.finish();
    if (at > 0 && in_step == 0) begin_values(all, at / kKeyGranules - 1);
    vectors = softmax(rows, all, i);
    prefetch(next, at * prefetched_rows, (at + 1) * prefetched_rows);
  }
  unit_.flush();
  vectors.finish();
  begin_values(all, (all.count() - 1) / kKeyGranules);
  multiply_values(depth(), &vectors);
  unit_.flush();
}

// Whether some sum is above kSumLimit or NaN.
bool ForwardTask::overflowed() const {
  __mmask16 above = 0;
  for (int64_t r = 0; r < kForwardRows; ++r) {
    above |= _mm512_cmp_ps_mask(_mm512_load_ps(b_.sums + r * kTileColumns), _mm512_set1_ps(kSumLimit),
                                _CMP_NLE_UQ);
  }
  return above != 0;
}

// Sets the references to the maximum of all scores.
void ForwardTask::raise_references(const RowBlock& rows) {
  const Granules all = rows.keys();
  Softmax none;
  for (int64_t i = all.begin; i < all.end; ++i) {
    multiply_key(i, &none);
    unit_.flush();
    softmax(rows, all, i).raise_references();
  }
}

void ForwardTask::store(const RowBlock& rows) const {
  const int64_t E = call_.shape.head_dim;
  alignas(64) float sums[kTileRows], factors[kTileRows];
  for (int64_t tile = 0; tile < 2; ++tile) {
    const __m512 all = sums_of_rows(b_.sums + tile * kTileFloats);
    _mm512_store_ps(sums, all);
    _mm512_store_ps(factors, _mm512_div_ps(_mm512_set1_ps(1), all));
    for (int64_t i = 0; i < rows.rows_in(tile); ++i) {
      const int64_t t = rows.first_row(tile) + i;
      if (call_.lse != nullptr) {
        call_.lse[rows.head(tile) * call_.T + t] =
            b_.reference[tile * kTileRows + i] * kLn2 + std::log(sums[i]);
      }
      const __m512 factor = _mm512_set1_ps(factors[i]);
      const float* o = b_.o + tile * 2 * kTileFloats + i * kTileColumns;
      bf16* to = call_.o + (t * call_.shape.num_heads + rows.head(tile)) * E;
      for (int64_t column = 0; column < E; column += kTileDepth, o += kBlockFloats) {
        store_bf16_row(o, o + kTileFloats, factor, E - column, to + column);
      }
    }
  }
}

void ForwardTask::run(const RowBlock& rows, const RowBlock& next) {
  prepare(rows);
  attend(rows, next);
  if (overflowed()) {
    raise_references(rows);
    attend(rows, next);
  }
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
  pool.parallel_for(G * granules, [&](int64_t index) { pack_granule(call, index % G, index / G); });

  // Two query heads of a group together waste fewer keys than 32 rows of one head.
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
  // Consecutive tasks share keys and values, which stay in L2. Last rows first: they see the most keys, and
  // long tasks must not be left for the end.
  const int64_t head_sets = group / task_heads;
  pool.parallel_for(num_tasks * G * head_sets, [&](int64_t index) {
    const TileScope tiles;
    const int64_t g = index / head_sets / num_tasks;
    const int64_t first_head = g * group + index % head_sets * task_heads;
    const ForwardScratch::Task& task = tasks[num_tasks - 1 - index / head_sets % num_tasks];
    ForwardTask forward(call, g);
    for (int64_t begin = task.begin; begin < task.end; begin += block_rows) {
      const auto block = [&](int64_t first) -> RowBlock {
        return {first_head,
                task_heads,
                task.sequence_begin,
                first,
                std::min<int64_t>(task.end, first + block_rows),
                call.window};
      };
      forward.run(block(begin), block(begin + block_rows));
    }
  });
}

}  // namespace tessera::amx
TESSERA_AMX_END
