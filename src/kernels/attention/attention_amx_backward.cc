// Backward attention on AMX, five products per pair of blocks. A task is a block of keys (BackwardBlocks) of
// one key-value head; it walks the query heads that read it and, per head, the blocks of queries that see it:
//
//   (1) s^T = k q^T,  dp^T = v do^T     p^T = 2^(c s^T - c lse)    ds^T = p^T (dp^T - delta)
//   (2) dv += p^T do,  dk += ds^T q     (3) dq^T += k^T ds^T
//
// Scores are computed transposed (rows are keys): p^T and ds^T leave the vector units as A operands of (2),
// and two adjacent rows of ds^T, interleaved, are the B operand of (3). The only transpositions are those of
// q and do when they are packed, and of dq at the very end.
//
// dk and dv belong to the task: their sums run over the heads, then over the queries, in order. dq is shared
// by the tasks of a sequence: each adds to a block of queries after its predecessor (keys in ascending order)
// has done so. Tasks start in that order, so the wait always ends.
#include "kernels/attention/attention_amx-inl.h"
// attention_amx-inl.h must come before any other header with intrinsics.
#include <atomic>
#include <cmath>
#include <limits>

#include "kernels/attention/attention_amx.h"
#include "kernels/attention/attention_amx_backward_pack-inl.h"
#include "kernels/attention/attention_amx_layout.h"

TESSERA_AMX_BEGIN
namespace tessera::amx {
namespace {

constexpr int64_t kBlockFloats = 4 * kTileFloats;  // a 32 x 32 block of C tiles
constexpr float kLog2E = 1.4426950408889634f;

// One call, as seen by a task.
struct BackwardCall {
  const bf16 *d_o, *qkv, *o;
  const float* lse_HT;
  bf16* dqkv;
  AttentionShape shape;
  AmxAttentionSizes sizes;
  int64_t T, window;
  BackwardScratch scratch;

  int64_t qkv_stride() const { return shape.qkv_width(); }
  int64_t o_stride() const { return shape.num_heads * shape.head_dim; }
  int64_t k_column(int64_t g) const { return (shape.num_heads + g) * shape.head_dim; }
  int64_t v_column(int64_t g) const { return k_column(g) + shape.num_key_value_heads * shape.head_dim; }
};

// The half-open range [begin, end).
struct Range {
  int64_t begin, end;
  int64_t count() const { return end - begin; }
};

// p^T and ds^T of one block of 32 keys and 32 queries, two rows at a time: the work interleaved with the
// products.
class ScoreGradients {
 public:
  ScoreGradients() = default;
  // `first_seen`: key row r is seen by queries [first_seen + r, first_seen + r + window). The weight of the
  // only key of the queries `lone` is 1 whatever the score: ds^T is 0, not the rounding error of dp^T -
  // delta, which an optimizer such as Adam would take for a gradient.
  ScoreGradients(const BackwardBuffers& buffers, const float* scores, float score_factor, int64_t key_granule,
                 int64_t query_granule, int64_t first_seen, int64_t window, uint32_t lone,
                 int64_t rows_per_call)
      : scores_(scores),
        lse_(buffers.lse + query_granule * kGranule),
        delta_(buffers.delta + query_granule * kGranule),
        p_(buffers.p[key_granule % 2] + query_granule * TileUnit::kPair),
        ds_(buffers.ds[key_granule % 2] + query_granule * TileUnit::kPair),
        ds_interleaved_(buffers.ds_interleaved +
                        (query_granule * buffers.blocks.key_granules() + key_granule) * TileUnit::kPair),
        factor_(score_factor),
        first_seen_(first_seen),
        window_(window),
        lone_(lone),
        masked_(first_seen + kGranule > 1 || first_seen + window < kGranule),
        rows_per_call_(rows_per_call),
        row_(0) {}

  void operator()() {
    for (int64_t end = std::min(kGranule, row_ + rows_per_call_); row_ < end; row_ += 2) run_rows();
  }
  void finish() {
    for (; row_ < kGranule; row_ += 2) run_rows();
  }

 private:
  struct Row {
    __m512i p, ds;
  };

  uint32_t seen(int64_t row) const {
    const auto lo = std::clamp<int64_t>(first_seen_ + row, 0, kGranule);
    const auto hi = std::clamp<int64_t>(first_seen_ + row + window_, 0, kGranule);
    return static_cast<uint32_t>(((uint64_t{1} << hi) - 1) & ~((uint64_t{1} << lo) - 1));
  }
  Row run_row(const float* score, uint32_t seen_queries) const {
    const float* dp = score + kBlockFloats;
    const __m512 factor = _mm512_set1_ps(factor_);
    __m512 p0 = exp2_floats(_mm512_fmsub_ps(_mm512_load_ps(score), factor, _mm512_load_ps(lse_)));
    __m512 p1 = exp2_floats(
        _mm512_fmsub_ps(_mm512_load_ps(score + kTileFloats), factor, _mm512_load_ps(lse_ + kTileColumns)));
    __m512 ds0 = _mm512_mul_ps(p0, _mm512_sub_ps(_mm512_load_ps(dp), _mm512_load_ps(delta_)));
    __m512 ds1 = _mm512_mul_ps(
        p1, _mm512_sub_ps(_mm512_load_ps(dp + kTileFloats), _mm512_load_ps(delta_ + kTileColumns)));
    if (masked_) {
      const auto low = static_cast<__mmask16>(seen_queries),
                 high = static_cast<__mmask16>(seen_queries >> 16);
      p0 = _mm512_maskz_mov_ps(low, p0);
      p1 = _mm512_maskz_mov_ps(high, p1);
      ds0 = _mm512_maskz_mov_ps(static_cast<__mmask16>(low & ~lone_), ds0);
      ds1 = _mm512_maskz_mov_ps(static_cast<__mmask16>(high & ~(lone_ >> 16)), ds1);
    }
    return {to_bf16_pair(p0, p1), to_bf16_pair(ds0, ds1)};
  }
  void run_rows() {
    const int64_t tile = row_ / kTileRows, r = row_ % kTileRows;
    const float* score = scores_ + 2 * tile * kTileFloats + r * kTileColumns;
    const int64_t at = tile * kTileElements + r * kTileDepth;
    const Row even = run_row(score, masked_ ? seen(row_) : 0);
    const Row odd = run_row(score + kTileColumns, masked_ ? seen(row_ + 1) : 0);
    _mm512_store_si512(p_ + at, even.p);
    _mm512_store_si512(p_ + at + kTileDepth, odd.p);
    _mm512_store_si512(ds_ + at, even.ds);
    _mm512_store_si512(ds_ + at + kTileDepth, odd.ds);
    // Within 128 bits: columns n of the tiles are queries 8 (n / 4) + n % 4 and that + 4.
    bf16* pair = ds_interleaved_ + row_ / 2 * kTileDepth;
    _mm512_store_si512(pair, _mm512_unpacklo_epi16(even.ds, odd.ds));
    _mm512_store_si512(pair + kTileElements, _mm512_unpackhi_epi16(even.ds, odd.ds));
  }

  const float* scores_ = nullptr;  // s^T, then dp^T
  const float* lse_ = nullptr;
  const float* delta_ = nullptr;
  bf16* p_ = nullptr;
  bf16* ds_ = nullptr;
  bf16* ds_interleaved_ = nullptr;
  float factor_ = 0;
  int64_t first_seen_ = 0, window_ = 0;
  uint32_t lone_ = 0;
  bool masked_ = false;
  int64_t rows_per_call_ = 0;
  int64_t row_ = kGranule;  // rows finished
};

// A block of keys of one key-value head.
class BackwardKeys {
 public:
  BackwardKeys(const BackwardCall& call, const BackwardScratch::Task& task, int64_t g)
      : call_(call),
        b_(call.scratch.thread_buffers(call.sizes)),
        g_(g),
        sequence_begin_(task.sequence_begin),
        sequence_end_(task.sequence_end),
        first_granule_(task.first_granule),
        begin_(task.begin),
        end_(std::min<int64_t>(task.sequence_end, task.begin + b_.blocks.keys)),
        num_granules_(round_up(end_ - begin_, kGranule) / kGranule) {}

  void run();

 private:
  // Queries [begin, end) of head h, all within one block of keys.
  struct Queries {
    int64_t h, begin, end;
    int64_t num_granules() const { return round_up(end - begin, kGranule) / kGranule; }
  };

  int64_t depth() const { return call_.sizes.depth_tiles; }
  int64_t num_products() const { return 2 * depth(); }
  int64_t queries_end() const { return std::min(sequence_end_, end_ - 1 + call_.window); }
  // Whether several tasks add to the sequence's dq. The functions below locate the dq of q in shared memory.
  bool is_shared() const { return sequence_end_ - sequence_begin_ > b_.blocks.keys; }
  int64_t shared_granule(const Queries& q) const {
    return q.h * call_.scratch.dq_granules + first_granule_ + (q.begin - sequence_begin_) / kGranule;
  }
  float* shared_dq(const Queries& q) const {
    return call_.scratch.dq + shared_granule(q) * kGranule * call_.sizes.padded_head();
  }
  // Granules of queries that see key granule i, and of keys that query granule i sees.
  Range queries_of(const Queries& q, int64_t i) const;
  Range keys_of(const Queries& q, int64_t i) const;

  // The block of queries after q, of this head or the next; begin = end: none.
  Queries next(const Queries& q) const;
  void prefetch(const Queries& now, const Queries& next, int64_t step) const;
  void pack_keys() const;
  void pack_queries(const Queries& q) const;
  void multiply_scores(int64_t i, int64_t j, float* scores, ScoreGradients* vectors);
  void begin_key_gradients(const Queries& q, int64_t i);
  void add_key_gradients(int64_t end_product, ScoreGradients* vectors);
  void compute_gradients(const Queries& q);
  void add_query_gradients(const Queries& q);
  void store_query_gradients(const Queries& q, const float* dq) const;
  void store_key_gradients() const;

  const BackwardCall& call_;
  BackwardBuffers b_;
  int64_t g_, sequence_begin_, sequence_end_, first_granule_, begin_, end_, num_granules_;
  TileUnit unit_;
  bool has_sums_[BackwardBlocks::kMaxKeys / kGranule] = {};  // of dk and dv, per granule
  // State of (2) for key granule sums_granule_ over queries sums_queries_: of the two products per piece of
  // 32 columns, next_product_ and later ones are still to be done.
  int64_t sums_granule_ = 0;
  Range sums_queries_ = {};
  int64_t next_product_ = 0;
};

Range BackwardKeys::queries_of(const Queries& q, int64_t i) const {
  const int64_t key = begin_ + i * kGranule, last_key = key + kGranule - 1;
  const int64_t begin = std::max<int64_t>(0, key - q.begin) / kGranule;
  const int64_t last = std::min(q.end, last_key + call_.window) - 1 - q.begin;
  return {begin, last < 0 ? begin : std::max(begin, last / kGranule + 1)};
}

Range BackwardKeys::keys_of(const Queries& q, int64_t i) const {
  const int64_t query = q.begin + i * kGranule, last_query = query + kGranule - 1;
  const int64_t begin = std::max<int64_t>(0, query - call_.window + 1 - begin_) / kGranule;
  const int64_t end = std::min(num_granules_, (last_query - begin_) / kGranule + 1);
  return {begin, std::max(begin, end)};
}

BackwardKeys::Queries BackwardKeys::next(const Queries& q) const {
  const int64_t group = call_.shape.num_heads / call_.shape.num_key_value_heads;
  const bool is_last = q.end >= queries_end();
  const int64_t begin = is_last ? begin_ : q.end, h = is_last ? q.h + 1 : q.h;
  if (h == (g_ + 1) * group) return {q.h, q.end, q.end};
  return {h, begin, std::min(sequence_end_, begin + b_.blocks.queries)};
}

// To L2, one part per step of 32 x 32 scores: the dq of these queries and the rows of q and do of the next.
void BackwardKeys::prefetch(const Queries& now, const Queries& next, int64_t step) const {
  constexpr int64_t kRows = 4, kLineFloats = 16, kLines = 32;
  if (is_shared()) {
    const float* dq = shared_dq(now);
    const int64_t lines = now.num_granules() * kGranule * call_.sizes.padded_head() / kLineFloats;
    for (int64_t line = step * kLines; line < std::min(lines, (step + 1) * kLines); ++line) {
      _mm_prefetch(dq + line * kLineFloats, _MM_HINT_T1);
    }
  }
  const int64_t E = call_.shape.head_dim, Q = call_.qkv_stride(), O = call_.o_stride();
  const int64_t begin = next.begin + step * kRows;
  for (int64_t t = begin; t < std::min(next.end, begin + kRows); ++t) {
    for (int64_t i = 0; i < E; i += kTileDepth) {
      _mm_prefetch(call_.qkv + t * Q + next.h * E + i, _MM_HINT_T1);
      _mm_prefetch(call_.d_o + t * O + next.h * E + i, _MM_HINT_T1);
    }
  }
}

void BackwardKeys::pack_keys() const {
  const int64_t E = call_.shape.head_dim, Q = call_.qkv_stride(), rows = end_ - begin_;
  const bf16 *k = call_.qkv + begin_ * Q + call_.k_column(g_),
             *v = call_.qkv + begin_ * Q + call_.v_column(g_);
  pack_rows(k, Q, rows, E, b_.k);
  pack_rows(v, Q, rows, E, b_.v);
  pack_row_transposed(k, Q, rows, E, b_.blocks.key_granules(), b_.k_transposed);
}

void BackwardKeys::pack_queries(const Queries& q) const {
  const int64_t E = call_.shape.head_dim, Q = call_.qkv_stride(), O = call_.o_stride(),
                rows = q.end - q.begin;
  const bf16 *queries = call_.qkv + q.begin * Q + q.h * E, *d_o = call_.d_o + q.begin * O + q.h * E;
  pack_both(queries, Q, rows, E, b_.blocks.query_granules(), b_.rows, b_.q_transposed, b_.q);
  pack_both(d_o, O, rows, E, b_.blocks.query_granules(), b_.rows, b_.do_transposed, b_.d_o);
  const float* lse = call_.lse_HT + q.h * call_.T + q.begin;
  const float* delta = call_.scratch.delta_HT + q.h * call_.T + q.begin;
  for (int64_t t = 0; t < rows; ++t) {
    b_.lse[t] = lse[t] * kLog2E;
    b_.delta[t] = delta[t];
  }
  // Gives p = 0 for queries that do not exist.
  for (int64_t t = rows; t < q.num_granules() * kGranule; ++t) {
    b_.lse[t] = std::numeric_limits<float>::infinity();
    b_.delta[t] = 0;
  }
}

// (1) of key granule i and query granule j.
void BackwardKeys::multiply_scores(int64_t i, int64_t j, float* scores, ScoreGradients* vectors) {
  const int64_t panel = depth() * TileUnit::kPair;
  unit_.multiply(Start::kZero, b_.k + i * panel, b_.q_transposed + j * panel, depth(), scores, *vectors);
  unit_.multiply(Start::kZero, b_.v + i * panel, b_.do_transposed + j * panel, depth(), scores + kBlockFloats,
                 *vectors);
}

// The vector work of key granule i is complete, and so is (2) of the previous granule.
void BackwardKeys::begin_key_gradients(const Queries& q, int64_t i) {
  stores_before_tile_loads();
  sums_granule_ = i;
  sums_queries_ = queries_of(q, i);
  next_product_ = 0;
}

// (2), up to `end_product`.
void BackwardKeys::add_key_gradients(int64_t end_product, ScoreGradients* vectors) {
  const Start start = has_sums_[sums_granule_] ? Start::kLoad : Start::kZero;
  const int64_t left = sums_queries_.begin * TileUnit::kPair, parity = sums_granule_ % 2;
  for (; next_product_ < end_product; ++next_product_) {
    const int64_t piece = next_product_ / 2, to = (sums_granule_ * depth() + piece) * kBlockFloats;
    const int64_t right = (piece * b_.blocks.query_granules() + sums_queries_.begin) * TileUnit::kPair;
    if (next_product_ % 2 == 0) {
      unit_.multiply(start, b_.p[parity] + left, b_.d_o + right, sums_queries_.count(), b_.dv + to, *vectors);
    } else {
      unit_.multiply(start, b_.ds[parity] + left, b_.q + right, sums_queries_.count(), b_.dk + to, *vectors);
    }
    if (next_product_ + 1 == num_products()) has_sums_[sums_granule_] = true;
  }
}

// (1) and (2). Three things run concurrently:
//
//   tile unit     (1) of key granule i and query granule j;  then some products of (2) of granule i - 1
//   vector units  p^T and ds^T of the previous 32 x 32 scores
void BackwardKeys::compute_gradients(const Queries& q) {
  const float factor = call_.shape.scale * kLog2E;
  const int64_t rows_per_call = round_up((kGranule + 4 * depth() - 1) / (4 * depth()), 2);
  ScoreGradients vectors;
  const Queries following = next(q);
  int64_t parity = 0, steps = 0, before = -1;  // the previous key granule
  next_product_ = num_products();
  for (int64_t i = 0; i < num_granules_; ++i) {
    const Range seeing = queries_of(q, i);
    if (seeing.count() == 0) continue;
    for (int64_t j = seeing.begin; j < seeing.end; ++j, parity ^= 1) {
      const int64_t step = j - seeing.begin;
      prefetch(q, following, steps++);
      multiply_scores(i, j, b_.scores[parity], &vectors);
      add_key_gradients(step == 0 ? num_products() : num_products() * step / seeing.count(), &vectors);
      vectors.finish();
      if (step == 0 && before >= 0) begin_key_gradients(q, before);
      const int64_t first_seen = begin_ + i * kGranule - (q.begin + j * kGranule);
      const bool has_first = q.begin == sequence_begin_ && j == 0;
      const uint32_t lone = call_.window == 1 ? ~0u : has_first ? 1u : 0u;
      vectors =
          ScoreGradients(b_, b_.scores[parity], factor, i, j, first_seen, call_.window, lone, rows_per_call);
    }
    before = i;
  }
  if (before < 0) return;
  add_key_gradients(num_products(), &vectors);
  unit_.flush();
  vectors.finish();
  begin_key_gradients(q, before);
  add_key_gradients(num_products(), &vectors);
}

// (3), after the tasks of the preceding keys.
void BackwardKeys::add_query_gradients(const Queries& q) {
  const int64_t block_of_keys = (begin_ - sequence_begin_) / b_.blocks.keys;
  const int64_t first_key = std::max<int64_t>(0, q.begin - call_.window + 1 - sequence_begin_);
  const auto turn = static_cast<int32_t>(block_of_keys - first_key / b_.blocks.keys);
  const bool is_last = q.begin < begin_ + b_.blocks.keys;
  float* dq = b_.dq;
  int32_t* progress = nullptr;
  if (is_shared()) {
    dq = shared_dq(q);
    progress = call_.scratch.progress + shared_granule(q);
    while (std::atomic_ref(*progress).load(std::memory_order_acquire) != turn) _mm_pause();
  }
  for (int64_t piece = 0; piece < depth(); ++piece) {
    for (int64_t j = 0; j < q.num_granules(); ++j) {
      const Range seen = keys_of(q, j);
      float* block = dq + (j * depth() + piece) * kBlockFloats;
      if (seen.count() == 0) {
        if (turn == 0) std::fill_n(block, kBlockFloats, 0.0f);
        continue;
      }
      unit_.multiply(turn == 0 ? Start::kZero : Start::kLoad,
                     b_.k_transposed + (piece * b_.blocks.key_granules() + seen.begin) * TileUnit::kPair,
                     b_.ds_interleaved + (j * b_.blocks.key_granules() + seen.begin) * TileUnit::kPair,
                     seen.count(), block, NoWeave());
    }
  }
  unit_.flush();
  if (is_last) store_query_gradients(q, dq);
  if (progress != nullptr) std::atomic_ref(*progress).store(turn + 1, std::memory_order_release);
}

// dq = scale (dq^T)^T; C tiles [granule][piece of 32 columns][2 x 2].
void BackwardKeys::store_query_gradients(const Queries& q, const float* dq) const {
  const int64_t E = call_.shape.head_dim, Q = call_.qkv_stride();
  const __m512i column_floats =
      _mm512_mullo_epi32(_mm512_set_epi32(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0),
                         _mm512_set1_epi32(static_cast<int>(kTileColumns)));
  const __m512 scale = _mm512_set1_ps(call_.shape.scale);
  alignas(64) float row[kTileDepth];
  for (int64_t t = q.begin; t < q.end; ++t) {
    const int64_t j = (t - q.begin) / kGranule, n = (t - q.begin) % kGranule;
    const int64_t column = n / 8 * 4 + n % 4, half = n % 8 / 4;  // see ScoreGradients
    for (int64_t piece = 0; piece < depth(); ++piece) {
      const float* block = dq + (j * depth() + piece) * kBlockFloats + half * kTileFloats + column;
      _mm512_store_ps(row, _mm512_i32gather_ps(column_floats, block, sizeof(float)));
      _mm512_store_ps(row + kTileColumns,
                      _mm512_i32gather_ps(column_floats, block + 2 * kTileFloats, sizeof(float)));
      const int64_t i = piece * kTileDepth;
      store_bf16_row(row, row + kTileColumns, scale, E - i, call_.dqkv + t * Q + q.h * E + i);
    }
  }
}

void BackwardKeys::store_key_gradients() const {
  const int64_t E = call_.shape.head_dim, Q = call_.qkv_stride();
  const __m512 scale = _mm512_set1_ps(call_.shape.scale), one = _mm512_set1_ps(1);
  for (int64_t s = begin_; s < end_; ++s) {
    const int64_t granule = (s - begin_) / kGranule, r = (s - begin_) % kGranule;
    for (int64_t piece = 0; piece < depth(); ++piece) {
      const int64_t at = (granule * depth() + piece) * kBlockFloats + r / kTileRows * 2 * kTileFloats +
                         r % kTileRows * kTileColumns;
      const int64_t i = piece * kTileDepth;
      bf16* to = call_.dqkv + s * Q + i;
      store_bf16_row(b_.dk + at, b_.dk + at + kTileFloats, scale, E - i, to + call_.k_column(g_));
      store_bf16_row(b_.dv + at, b_.dv + at + kTileFloats, one, E - i, to + call_.v_column(g_));
    }
  }
}

void BackwardKeys::run() {
  pack_keys();
  const int64_t group = call_.shape.num_heads / call_.shape.num_key_value_heads;
  for (int64_t h = g_ * group; h < (g_ + 1) * group; ++h) {
    for (int64_t begin = begin_; begin < queries_end(); begin += b_.blocks.queries) {
      const Queries q = {h, begin, std::min(sequence_end_, begin + b_.blocks.queries)};
      pack_queries(q);
      stores_before_tile_loads();
      compute_gradients(q);
      add_query_gradients(q);
    }
  }
  store_key_gradients();
}

// Elements 0, 2, ... and 1, 3, ... of 32.
__m512 even_floats(__m512i row) { return _mm512_castsi512_ps(_mm512_slli_epi32(row, 16)); }
__m512 odd_floats(__m512i row) {
  return _mm512_castsi512_ps(_mm512_and_si512(row, _mm512_set1_epi32(static_cast<int>(0xFFFF0000))));
}

// delta_HT = o . do for row t.
void compute_delta(const BackwardCall& call, int64_t t) {
  const int64_t E = call.shape.head_dim;
  for (int64_t h = 0; h < call.shape.num_heads; ++h) {
    const int64_t at = t * call.o_stride() + h * E;
    __m512 sum0 = _mm512_setzero_ps(), sum1 = _mm512_setzero_ps();
    for_each_piece(E, [&](int64_t i, int64_t columns) {
      const auto mask = static_cast<__mmask32>((uint64_t{1} << columns) - 1);
      const __m512i o = _mm512_maskz_loadu_epi16(mask, call.o + at + i);
      const __m512i d_o = _mm512_maskz_loadu_epi16(mask, call.d_o + at + i);
      sum0 = _mm512_fmadd_ps(even_floats(o), even_floats(d_o), sum0);
      sum1 = _mm512_fmadd_ps(odd_floats(o), odd_floats(d_o), sum1);
    });
    call.scratch.delta_HT[h * call.T + t] = _mm512_reduce_add_ps(_mm512_add_ps(sum0, sum1));
  }
}

}  // namespace

void attention_backward(ConstTensorView do_THE, ConstTensorView qkv_TQ, ConstTensorView o_THE,
                        ConstTensorView lse_HT, const AttentionShape& shape,
                        std::span<const int32_t> cu_seqlens, TensorView dqkv_TQ, std::span<std::byte> scratch,
                        ThreadPool& pool) {
  const int64_t T = qkv_TQ.dim(0), G = shape.num_key_value_heads;
  const BackwardCall call = {.d_o = do_THE.as<bf16>(),
                             .qkv = qkv_TQ.as<bf16>(),
                             .o = o_THE.as<bf16>(),
                             .lse_HT = lse_HT.as<float>(),
                             .dqkv = dqkv_TQ.as<bf16>(),
                             .shape = shape,
                             .sizes = AmxAttentionSizes(shape, T),
                             .T = T,
                             .window = shape.sliding_window == 0 ? T : shape.sliding_window,
                             .scratch = BackwardScratch(scratch.data(), shape, T, pool)};
  std::fill_n(call.scratch.progress, shape.num_heads * call.scratch.dq_granules, 0);
  pool.parallel_blocks(T, 16, [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) compute_delta(call, t);
  });
  const int64_t num_tasks = call.scratch.make_tasks(cu_seqlens);
  // The loop promises no order, but a task may only wait for predecessors that have started.
  std::atomic<int64_t> next = 0;
  pool.parallel_for(num_tasks * G, [&](int64_t) {
    const int64_t index = next.fetch_add(1, std::memory_order_relaxed);
    const TileScope tiles;
    BackwardKeys(call, call.scratch.tasks[index / G], index % G).run();
  });
}

}  // namespace tessera::amx
TESSERA_AMX_END
