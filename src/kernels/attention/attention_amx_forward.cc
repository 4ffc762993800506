// Forward attention on AMX. A block of 64 query rows takes the keys it sees in steps of 256:
//
//   scores = q k^T (tiles)    p = 2^(c scores - reference) (vectors)    o += p v (tiles)
//
// as a pipeline: scores of a step are computed 32 x 32 at a time; the vector work of each such piece stands
// between the products of the next piece and those of p v of the step before, which may belong to the block
// of rows before.
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
constexpr int64_t kRowPairs = kForwardRowTiles / 2;
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
  int64_t count() const { return std::max<int64_t>(0, end - begin); }
};

// A block of rows: row tile i holds rows first_row(i) ... of head first_head + i / tiles_per_head.
struct RowBlock {
  int64_t first_head, tiles_per_head, sequence_begin, begin, end;
  int64_t window;
  int64_t num_pairs;  // of row tiles
  bf16* q;
  float *o, *sums, *reference;

  int64_t num_rows() const { return num_pairs * kGranule; }
  int64_t first_row(int64_t tile) const { return begin + tile % tiles_per_head * kTileRows; }
  int64_t head(int64_t tile) const { return first_head + tile / tiles_per_head; }
  int64_t rows_in(int64_t tile) const { return std::clamp<int64_t>(end - first_row(tile), 0, kTileRows); }
  int64_t first_key(int64_t row) const { return std::max(sequence_begin, row - window + 1); }

  // Key granules that a row pair sees, its padding rows included; both tiles of a pair have the same rows of
  // two heads, or neighbouring rows of one.
  Granules keys_of(int64_t pair) const {
    const int64_t first = first_row(2 * pair), last = first_row(2 * pair + 1) + kTileRows - 1;
    return {first_key(first) / kGranule, std::min(last, end - 1) / kGranule + 1};
  }
};

// One row block and at most 256 of its keys.
struct Step {
  const RowBlock* rows = nullptr;
  Granules keys = {};
  bf16* p = nullptr;
  bool is_first = false, is_last = false;  // of its row block

  Granules keys_of(int64_t pair) const {
    const Granules all = rows->keys_of(pair);
    return {std::max(all.begin, keys.begin), std::min(all.end, keys.end)};
  }
};

// p = 2^(c scores - reference) of 32 rows and 32 keys, row by row: what runs between the products.
class Softmax {
 public:
  Softmax() = default;
  Softmax(const Step& step, const float* scores, float score_factor, int64_t pair, int64_t granule,
          int64_t rows_per_call)
      : step_(&step),
        scores_(scores),
        p_(step.p + (pair * kKeyGranules + granule - step.keys.begin) * TileUnit::kPair),
        reference_(step.rows->reference + pair * kGranule),
        sums_(step.rows->sums + pair * kGranule * kTileColumns),
        factor_(score_factor),
        pair_(pair),
        first_key_(granule * kGranule),
        rows_per_call_(rows_per_call),
        row_(0) {
    const RowBlock& rows = *step.rows;
    const int64_t last = rows.first_row(2 * pair + 1) + kTileRows - 1;
    masked_ = first_key_ + kGranule > rows.first_row(2 * pair) + 1 || first_key_ < rows.first_key(last);
  }

  void operator()() {
    for (const int64_t end = std::min(kGranule, row_ + rows_per_call_); row_ < end; ++row_) run_row();
  }
  void finish() {
    for (; row_ < kGranule; ++row_) run_row();
  }
  // Raises references to the largest c score.
  void raise_references() {
    const __m512 lowest = _mm512_set1_ps(-HUGE_VALF);
    for (; row_ < kGranule; ++row_) {
      const uint32_t keys = seen_keys();
      const float* score = row_scores();
      const __m512 low = _mm512_mask_mul_ps(lowest, static_cast<__mmask16>(keys), _mm512_load_ps(score),
                                            _mm512_set1_ps(factor_));
      const __m512 high = _mm512_mask_mul_ps(lowest, static_cast<__mmask16>(keys >> 16),
                                             _mm512_load_ps(score + kTileFloats), _mm512_set1_ps(factor_));
      reference_[row_] = std::max(reference_[row_], _mm512_reduce_max_ps(_mm512_max_ps(low, high)));
    }
  }

 private:
  const float* row_scores() const {
    return scores_ + row_ / kTileRows * 2 * kTileFloats + row_ % kTileRows * kTileColumns;
  }
  uint32_t seen_keys() const {
    const int64_t row = step_->rows->first_row(2 * pair_ + row_ / kTileRows) + row_ % kTileRows;
    const auto lo = std::clamp<int64_t>(step_->rows->first_key(row) - first_key_, 0, kGranule);
    const auto hi = std::clamp<int64_t>(row + 1 - first_key_, 0, kGranule);
    return static_cast<uint32_t>(((uint64_t{1} << hi) - 1) & ~((uint64_t{1} << lo) - 1));
  }
  void run_row() {
    const float* score = row_scores();
    const __m512 factor = _mm512_set1_ps(factor_), reference = _mm512_set1_ps(reference_[row_]);
    __m512 p0 = exp2_floats(_mm512_fmsub_ps(_mm512_load_ps(score), factor, reference));
    __m512 p1 = exp2_floats(_mm512_fmsub_ps(_mm512_load_ps(score + kTileFloats), factor, reference));
    if (masked_) {
      const uint32_t keys = seen_keys();
      p0 = _mm512_maskz_mov_ps(static_cast<__mmask16>(keys), p0);
      p1 = _mm512_maskz_mov_ps(static_cast<__mmask16>(keys >> 16), p1);
    }
    float* sum = sums_ + row_ * kTileColumns;
    _mm512_store_ps(sum, _mm512_add_ps(_mm512_load_ps(sum), _mm512_add_ps(p0, p1)));
    _mm512_store_si512(p_ + row_ / kTileRows * kTileElements + row_ % kTileRows * kTileDepth,
                       to_bf16_pair(p0, p1));
  }

  const Step* step_ = nullptr;
  const float* scores_ = nullptr;
  bf16* p_ = nullptr;
  float* reference_ = nullptr;
  float* sums_ = nullptr;
  float factor_ = 0;
  int64_t pair_ = 0, first_key_ = 0, rows_per_call_ = 0;
  bool masked_ = false;
  int64_t row_ = kGranule;  // finished
};

// The blocks of rows of one task, which share a key-value head.
class ForwardTask {
 public:
  ForwardTask(const ForwardCall& call, int64_t g)
      : call_(call),
        b_(call.scratch.thread_buffers(call.sizes)),
        g_(g),
        k_(call.scratch.k + g * call.sizes.head_elements()),
        v_(call.scratch.v + g * call.sizes.head_elements()) {}

  void run(int64_t first_head, int64_t num_heads, int64_t sequence_begin, int64_t begin, int64_t end);

 private:
  int64_t depth() const { return call_.sizes.depth_tiles; }

  RowBlock make_block(int64_t parity, int64_t first_head, int64_t num_heads, int64_t sequence_begin,
                      int64_t begin, int64_t end) const;
  void prepare(const RowBlock& rows) const;
  void run_step(const Step& step, const Step& before);
  template <typename Weave>
  void multiply_keys(const Step& step, int64_t pair, int64_t granule, float* scores, Weave& weave);
  template <typename Weave>
  void multiply_values(const Step& step, int64_t pair, int64_t piece, Weave& weave);
  bool overflowed(const RowBlock& rows) const;
  void repeat_with_maximum(const Step& step);
  void store(const RowBlock& rows) const;

  const ForwardCall& call_;
  ForwardBuffers b_;
  int64_t g_;
  const bf16 *k_, *v_;
  TileUnit unit_;
};

RowBlock ForwardTask::make_block(int64_t parity, int64_t first_head, int64_t num_heads,
                                 int64_t sequence_begin, int64_t begin, int64_t end) const {
  const int64_t tiles_per_head = kForwardRowTiles / num_heads;
  const int64_t block_end = std::min(end, begin + tiles_per_head * kTileRows);
  // Rows of one head only can end early; with several, tiles of every head are in use.
  const int64_t pairs = num_heads > 1 ? kRowPairs : round_up(block_end - begin, kGranule) / kGranule;
  return {first_head, tiles_per_head, sequence_begin, begin,           block_end,           call_.window,
          pairs,      b_.q[parity],   b_.o[parity],   b_.sums[parity], b_.reference[parity]};
}

// Packs the queries and sets the references.
void ForwardTask::prepare(const RowBlock& rows) const {
  const int64_t E = call_.shape.head_dim, Q = call_.shape.qkv_width();
  bf16* to = rows.q;
  for (int64_t pair = 0; pair < rows.num_pairs; ++pair) {
    for (int64_t i = 0; i < E; i += kTileDepth) {
      for (int64_t tile = 2 * pair; tile < 2 * pair + 2; ++tile, to += kTileElements) {
        copy_tile(call_.qkv + rows.first_row(tile) * Q + rows.head(tile) * E + i, Q, rows.rows_in(tile),
                  std::min(kTileDepth, E - i), to);
      }
    }
  }
  for (int64_t row = 0; row < rows.num_rows(); ++row) {
    const int64_t tile = row / kTileRows, r = row % kTileRows;
    rows.reference[row] = 0;
    if (r >= rows.rows_in(tile)) continue;
    const bf16* q = rows.q + tile / 2 * depth() * TileUnit::kPair + tile % 2 * kTileElements + r * kTileDepth;
    const bf16* k = call_.qkv + (rows.first_row(tile) + r) * Q + call_.k_column(g_);
    __m512 sum = _mm512_setzero_ps();
    for (int64_t i = 0; i < E; i += kTileDepth, q += TileUnit::kPair) {
      const auto mask = static_cast<__mmask32>((uint64_t{1} << std::min(kTileDepth, E - i)) - 1);
      sum = _mm512_dpbf16_ps(sum, reinterpret_cast<__m512bh>(_mm512_load_si512(q)),
                             reinterpret_cast<__m512bh>(_mm512_maskz_loadu_epi16(mask, k + i)));
    }
    rows.reference[row] = call_.score_factor * _mm512_reduce_add_ps(sum);
  }
  std::fill_n(rows.sums, rows.num_rows() * kTileColumns, 0.0f);
}

// scores = q k^T.
template <typename Weave>
__attribute__((always_inline)) inline void ForwardTask::multiply_keys(const Step& step, int64_t pair,
                                                                      int64_t granule, float* scores,
                                                                      Weave& weave) {
  const int64_t panel = depth() * TileUnit::kPair;
  unit_.multiply(Start::kZero, step.rows->q + pair * panel, k_ + granule * panel, depth(), scores, weave);
}

// o += p v, columns [32 piece, 32 piece + 32).
template <typename Weave>
__attribute__((always_inline)) inline void ForwardTask::multiply_values(const Step& step, int64_t pair,
                                                                        int64_t piece, Weave& weave) {
  const Granules keys = step.keys_of(pair);
  float* o = step.rows->o + (pair * depth() + piece) * kBlockFloats;
  if (keys.count() == 0) {
    if (step.is_first) std::fill_n(o, kBlockFloats, 0.0f);
    return;
  }
  const bf16* p = step.p + (pair * kKeyGranules + keys.begin - step.keys.begin) * TileUnit::kPair;
  const bf16* v = v_ + (piece * call_.sizes.granules + keys.begin) * TileUnit::kPair;
  unit_.multiply(step.is_first ? Start::kZero : Start::kLoad, p, v, keys.count(), o, weave);
}

// Scores and p of `step`, p v of the step `before`, which may be none.
void ForwardTask::run_step(const Step& step, const Step& before) {
  const int64_t num_pairs = step.rows->num_pairs;
  const int64_t num_scores = step.keys.count() * num_pairs;
  const int64_t num_values = before.rows == nullptr ? 0 : before.rows->num_pairs * depth();
  const int64_t calls =
      depth() + (before.rows == nullptr ? 0 : before.keys.count() * num_values) / num_scores;
  const int64_t rows_per_call = (kGranule + calls - 1) / calls;
  Softmax softmax;
  int64_t done = 0, value = 0, parity = 0;
  for (int64_t granule = step.keys.begin; granule < step.keys.end; ++granule) {
    for (int64_t pair = 0; pair < num_pairs; ++pair) {
      const Granules keys = step.keys_of(pair);
      ++done;
      if (granule >= keys.begin && granule < keys.end) {
        float* scores = b_.scores[parity ^= 1];
        multiply_keys(step, pair, granule, scores, softmax);
        softmax.finish();
        softmax = Softmax(step, scores, call_.score_factor, pair, granule, rows_per_call);
      }
      for (; value < done * num_values / num_scores; ++value) {
        multiply_values(before, value % before.rows->num_pairs, value / before.rows->num_pairs, softmax);
      }
    }
  }
  unit_.flush();
  softmax.finish();
  stores_before_tile_loads();
}

// Some sum is above kSumLimit, or NaN.
bool ForwardTask::overflowed(const RowBlock& rows) const {
  __mmask16 above = 0;
  for (int64_t row = 0; row < rows.num_rows(); ++row) {
    above |= _mm512_cmp_ps_mask(_mm512_load_ps(rows.sums + row * kTileColumns), _mm512_set1_ps(kSumLimit),
                                _CMP_NLE_UQ);
  }
  return above != 0;
}

void ForwardTask::repeat_with_maximum(const Step& step) {
  const RowBlock& rows = *step.rows;
  float before[kForwardRows];
  std::copy_n(rows.reference, rows.num_rows(), before);
  std::copy_n(b_.sums_before, rows.num_rows() * kTileColumns, rows.sums);
  const auto for_each_score = [&](auto&& body) {
    for (int64_t pair = 0; pair < rows.num_pairs; ++pair) {
      const Granules keys = step.keys_of(pair);
      for (int64_t granule = keys.begin; granule < keys.end; ++granule) {
        NoWeave nothing;
        multiply_keys(step, pair, granule, b_.scores[0], nothing);
        unit_.flush();
        body(Softmax(step, b_.scores[0], call_.score_factor, pair, granule, kGranule));
      }
    }
  };
  for_each_score([](Softmax softmax) { softmax.raise_references(); });
  for (int64_t row = 0; row < rows.num_rows(); ++row) {
    const __m512 shrink = exp2_floats(_mm512_set1_ps(before[row] - rows.reference[row]));
    float* sum = rows.sums + row * kTileColumns;
    _mm512_store_ps(sum, _mm512_mul_ps(_mm512_load_ps(sum), shrink));
    if (step.is_first) continue;  // no outputs yet
    const int64_t pair = row / kGranule, r = row % kGranule;
    float* o = rows.o + pair * depth() * kBlockFloats + r / kTileRows * 2 * kTileFloats +
               r % kTileRows * kTileColumns;
    for (int64_t piece = 0; piece < depth(); ++piece, o += kBlockFloats) {
      _mm512_store_ps(o, _mm512_mul_ps(_mm512_load_ps(o), shrink));
      _mm512_store_ps(o + kTileFloats, _mm512_mul_ps(_mm512_load_ps(o + kTileFloats), shrink));
    }
  }
  for_each_score([](Softmax softmax) { softmax.finish(); });
  stores_before_tile_loads();
}

void ForwardTask::store(const RowBlock& rows) const {
  const int64_t E = call_.shape.head_dim;
  for (int64_t tile = 0; tile < 2 * rows.num_pairs; ++tile) {
    for (int64_t r = 0; r < rows.rows_in(tile); ++r) {
      const int64_t t = rows.first_row(tile) + r, row = tile * kTileRows + r;
      const float sum = _mm512_reduce_add_ps(_mm512_load_ps(rows.sums + row * kTileColumns));
      if (call_.lse != nullptr) {
        call_.lse[rows.head(tile) * call_.T + t] = rows.reference[row] * kLn2 + std::log(sum);
      }
      const __m512 factor = _mm512_set1_ps(1 / sum);
      const float* o =
          rows.o + tile / 2 * depth() * kBlockFloats + tile % 2 * 2 * kTileFloats + r * kTileColumns;
      bf16* to = call_.o + (t * call_.shape.num_heads + rows.head(tile)) * E;
      for (int64_t i = 0; i < E; i += kTileDepth, o += kBlockFloats) {
        store_bf16_row(o, o + kTileFloats, factor, E - i, to + i);
      }
    }
  }
}

void ForwardTask::run(int64_t first_head, int64_t num_heads, int64_t sequence_begin, int64_t begin,
                      int64_t end) {
  RowBlock blocks[2];
  Step before;
  int64_t block_parity = 0, step_parity = 0;
  const auto finish_before = [&] {
    if (before.rows != nullptr && before.is_last) store(*before.rows);
  };
  for (; begin < end; begin = blocks[block_parity].end, block_parity ^= 1) {
    RowBlock& rows = blocks[block_parity];
    rows = make_block(block_parity, first_head, num_heads, sequence_begin, begin, end);
    prepare(rows);
    stores_before_tile_loads();
    const Granules all = {rows.keys_of(0).begin, rows.keys_of(rows.num_pairs - 1).end};
    for (int64_t granule = all.begin; granule < all.end; granule += kKeyGranules) {
      const Granules keys = {granule, std::min(all.end, granule + kKeyGranules)};
      const Step step = {&rows, keys, b_.p[step_parity], granule == all.begin, keys.end == all.end};
      std::copy_n(rows.sums, rows.num_rows() * kTileColumns, b_.sums_before);
      run_step(step, before);
      if (overflowed(rows)) repeat_with_maximum(step);
      finish_before();
      before = step;
      step_parity ^= 1;
    }
  }
  NoWeave nothing;
  for (int64_t piece = 0; piece < depth(); ++piece) {
    for (int64_t pair = 0; pair < before.rows->num_pairs; ++pair) {
      multiply_values(before, pair, piece, nothing);
    }
  }
  unit_.flush();
  finish_before();
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

// Query heads of one task: those that share a key-value head, 1, 2 or 4.
int64_t heads_per_task(const AttentionShape& shape) {
  const int64_t group = shape.num_heads / shape.num_key_value_heads;
  return group % 4 == 0 ? 4 : group % 2 == 0 ? 2 : 1;
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

  const int64_t task_heads = heads_per_task(shape), task_rows = kForwardBlocks * kForwardRows / task_heads;
  const auto* tasks = call.scratch.tasks;
  int64_t num_tasks = 0;
  for (size_t n = 0; n + 1 < cu_seqlens.size(); ++n) {
    for (int64_t begin = cu_seqlens[n]; begin < cu_seqlens[n + 1]; begin += task_rows) {
      const auto end = static_cast<int32_t>(std::min<int64_t>(cu_seqlens[n + 1], begin + task_rows));
      call.scratch.tasks[num_tasks++] = {cu_seqlens[n], static_cast<int32_t>(begin), end};
    }
  }
  // Neighbours in the order share keys and values, which stay in L2. Last rows first: they see the most keys,
  // and long tasks must not be left for the end.
  const int64_t group = shape.num_heads / G, head_sets = group / task_heads;
  pool.parallel_for(num_tasks * G * head_sets, [&](int64_t index) {
    const TileScope tiles;
    const int64_t set = index % head_sets, g = index / head_sets / num_tasks;
    const auto& task = tasks[num_tasks - 1 - index / head_sets % num_tasks];
    ForwardTask(call, g).run(g * group + set * task_heads, task_heads, task.sequence_begin, task.begin,
                             task.end);
  });
}

}  // namespace tessera::amx
TESSERA_AMX_END
