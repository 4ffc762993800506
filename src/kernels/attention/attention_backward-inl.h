// Backward attention, block by block, in two passes that each own what they write: dq by query rows, then dk
// and dv by key rows. Both compute the scores, 7 block products instead of the 5 of a single pass; in
// exchange nothing needs to be summed across threads and every block of rows is an independent task.
//
// Included once per instruction set (Highway's foreach_target), hence the unusual guard.
#if defined(TESSERA_ATTENTION_BACKWARD_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef TESSERA_ATTENTION_BACKWARD_INL_H_
#undef TESSERA_ATTENTION_BACKWARD_INL_H_
#else
#define TESSERA_ATTENTION_BACKWARD_INL_H_
#endif

#include "kernels/attention/attention_block-inl.h"

HWY_BEFORE_NAMESPACE();
namespace tessera {
namespace HWY_NAMESPACE {

// The inputs of both passes and the gradient they write.
template <typename A>
struct BackwardRows {
  const A* qkv;
  const A* d_o;
  const float* lse_HT;
  const float* delta_HT;
  A* dqkv;
  AttentionShape shape;
  int64_t T;

  int64_t qkv_stride() const { return shape.qkv_width(); }
  int64_t o_stride() const { return shape.num_heads * shape.head_dim; }
  int64_t q_column(int64_t h) const { return h * shape.head_dim; }
  int64_t k_column(int64_t g) const { return (shape.num_heads + g) * shape.head_dim; }
  int64_t v_column(int64_t g) const {
    return (shape.num_heads + shape.num_key_value_heads + g) * shape.head_dim;
  }
};

// delta_HT[h, t] = o . do for rows [begin, end).
template <typename A>
HWY_NOINLINE void delta_rows(const A* o, const A* d_o, const AttentionShape& shape, int64_t T, int64_t begin,
                             int64_t end, float* delta_HT) {
  const FloatTag d;
  const int64_t E = shape.head_dim, H = shape.num_heads;
  for (int64_t t = begin; t < end; ++t) {
    for (int64_t h = 0; h < H; ++h) {
      const int64_t at = (t * H + h) * E;
      auto sum = hn::Zero(d);
      for_each_vector(d, E, [&](auto access, int64_t i) HWY_ATTR {
        sum = hn::MulAdd(access.load(d, o + at + i), access.load(d, d_o + at + i), sum);
      });
      delta_HT[h * T + t] = sum_of_lanes(d, sum);
    }
  }
}

// values [64] = from [count], padded with 0.
inline void load_statistics(const float* from, int64_t count, float* values) {
  std::copy_n(from, count, values);
  std::fill_n(values + count, kAttentionBlock - count, 0.0f);
}

// The weight of a query's only key is 1 whatever the score: ds is 0, not the rounding error of dp - delta,
// which an optimizer such as Adam would take for a gradient. That is the first query of a sequence, in the
// corner of the sequence's first block of scores, and with a window of 1 every query.
inline void clear_lone_scores(bool is_first_block, int64_t window, int64_t num_rows, float* ds) {
  if (is_first_block) ds[0] = 0;
  if (window == 1) std::fill_n(ds, num_rows * kAttentionBlock, 0.0f);
}

// dq of query head h for the rows of `task`.
template <typename A>
HWY_NOINLINE void query_task(const BackwardRows<A>& rows, const AttentionTask& task, int64_t h,
                             const AttentionBuffers& buffers) {
  const AttentionShape& shape = rows.shape;
  const int64_t E = shape.head_dim, g = h / (shape.num_heads / shape.num_key_value_heads);
  const int64_t stride = rows.qkv_stride(), window = effective_window(shape);
  float *const k_SE = buffers.rows[0], *const v_SE = buffers.rows[1];
  float *const p = buffers.scores[0], *const ds = buffers.scores[1];
  const auto& q_panel = buffers.panels[0];
  const auto& do_panel = buffers.panels[1];
  const auto& dq_panel = buffers.panels[2];
  const auto& lse = buffers.statistics[0];
  const auto& delta = buffers.statistics[1];
  AttentionSlice slices[kAttentionSlices];
  const int64_t num_slices = split_slices(task.begin, task.sequence_end, slices);
  for (int64_t i = 0; i < num_slices; ++i) {
    const int64_t begin = slices[i].begin, count = slices[i].count;
    pack_panel(rows.qkv + begin * stride + rows.q_column(h), stride, count, E, shape.scale, q_panel[i]);
    pack_panel(rows.d_o + begin * rows.o_stride() + h * E, rows.o_stride(), count, E, 1.0f, do_panel[i]);
    std::fill_n(dq_panel[i], E * kAttentionBlock, 0.0f);
    load_statistics(rows.lse_HT + h * rows.T + begin, count, lse[i]);
    load_statistics(rows.delta_HT + h * rows.T + begin, count, delta[i]);
  }
  const int64_t key_end = slices[num_slices - 1].begin + slices[num_slices - 1].count;
  const int64_t first_seen = std::max<int64_t>(0, task.begin - window + 1 - task.sequence_begin);
  for (int64_t key = task.sequence_begin + first_seen / kAttentionBlock * kAttentionBlock; key < key_end;
       key += kAttentionBlock) {
    const int64_t num_keys = std::min(kAttentionBlock, key_end - key);
    copy_rows(rows.qkv + key * stride + rows.k_column(g), stride, num_keys, E, 1.0f, k_SE);
    copy_rows(rows.qkv + key * stride + rows.v_column(g), stride, num_keys, E, 1.0f, v_SE);
    for (int64_t i = 0; i < num_slices; ++i) {
      const int64_t n = slices[i].count;
      const auto band = AttentionBand::keys_by_queries(key, slices[i].begin, window);
      if (band.misses(num_keys, n)) continue;
      // forward:  score = scale k . q,  p = exp(score - lse)
      multiply<Update::kOverwrite>(as_rows(k_SE, E), q_panel[i], num_keys, E, n, p);
      if (!band.covers(num_keys, n)) mask_scores(band, num_keys, n, p);
      probabilities<Along::kColumns>(lse[i], num_keys, n, p);
      // backward: dp = v . do,  ds = p (dp - delta),  dq += ds k
      multiply<Update::kOverwrite>(as_rows(v_SE, E), do_panel[i], num_keys, E, n, ds);
      score_gradients<Along::kColumns>(p, delta[i], num_keys, n, ds);
      clear_lone_scores(key == task.sequence_begin && slices[i].begin == key, window, num_keys, ds);
      multiply<Update::kAdd>(as_columns(k_SE, E), ds, E, num_keys, n, dq_panel[i]);
    }
  }
  for (int64_t i = 0; i < num_slices; ++i) {
    float* const factors = lse[i];
    std::fill_n(factors, kAttentionBlock, shape.scale);
    unpack_panel(dq_panel[i], slices[i].count, E, factors,
                 rows.dqkv + slices[i].begin * stride + rows.q_column(h), stride);
  }
}

// dk and dv of key-value head g for the rows of `task`, summed over the query heads that read it, in order.
template <typename A>
HWY_NOINLINE void key_task(const BackwardRows<A>& rows, const AttentionTask& task, int64_t g,
                           const AttentionBuffers& buffers) {
  const AttentionShape& shape = rows.shape;
  const int64_t E = shape.head_dim, group = shape.num_heads / shape.num_key_value_heads;
  const int64_t stride = rows.qkv_stride(), window = effective_window(shape);
  float *const q_TE = buffers.rows[0], *const do_TE = buffers.rows[1];
  float *const p = buffers.scores[0], *const ds = buffers.scores[1];
  const auto& k_panel = buffers.panels[0];
  const auto& v_panel = buffers.panels[1];
  const auto& dk_panel = buffers.panels[2];
  const auto& dv_panel = buffers.panels[3];
  AttentionSlice slices[kAttentionSlices];
  const int64_t num_slices = split_slices(task.begin, task.sequence_end, slices);
  for (int64_t i = 0; i < num_slices; ++i) {
    const A* row = rows.qkv + slices[i].begin * stride;
    pack_panel(row + rows.k_column(g), stride, slices[i].count, E, 1.0f, k_panel[i]);
    pack_panel(row + rows.v_column(g), stride, slices[i].count, E, 1.0f, v_panel[i]);
    std::fill_n(dk_panel[i], E * kAttentionBlock, 0.0f);
    std::fill_n(dv_panel[i], E * kAttentionBlock, 0.0f);
  }
  const int64_t key_end = slices[num_slices - 1].begin + slices[num_slices - 1].count;
  const int64_t query_end = std::min<int64_t>(task.sequence_end, key_end + window - 1);
  for (int64_t h = g * group; h < (g + 1) * group; ++h) {
    for (int64_t query = task.begin; query < query_end; query += kAttentionBlock) {
      const int64_t num_queries = std::min(kAttentionBlock, query_end - query);
      const float* lse = rows.lse_HT + h * rows.T + query;
      const float* delta = rows.delta_HT + h * rows.T + query;
      copy_rows(rows.qkv + query * stride + rows.q_column(h), stride, num_queries, E, shape.scale, q_TE);
      copy_rows(rows.d_o + query * rows.o_stride() + h * E, rows.o_stride(), num_queries, E, 1.0f, do_TE);
      for (int64_t i = 0; i < num_slices; ++i) {
        const int64_t n = slices[i].count;
        const auto band = AttentionBand::queries_by_keys(query, slices[i].begin, window);
        if (band.misses(num_queries, n)) continue;
        // forward:  score = scale q . k,  p = exp(score - lse)
        multiply<Update::kOverwrite>(as_rows(q_TE, E), k_panel[i], num_queries, E, n, p);
        if (!band.covers(num_queries, n)) mask_scores(band, num_queries, n, p);
        probabilities<Along::kRows>(lse, num_queries, n, p);
        // backward: dv += p do,  dp = do . v,  ds = p (dp - delta),  dk += ds scale q
        multiply<Update::kAdd>(as_columns(do_TE, E), p, E, num_queries, n, dv_panel[i]);
        multiply<Update::kOverwrite>(as_rows(do_TE, E), v_panel[i], num_queries, E, n, ds);
        score_gradients<Along::kRows>(p, delta, num_queries, n, ds);
        clear_lone_scores(query == task.sequence_begin && slices[i].begin == query, window, num_queries, ds);
        multiply<Update::kAdd>(as_columns(q_TE, E), ds, E, num_queries, n, dk_panel[i]);
      }
    }
  }
  float* const ones = buffers.statistics[0][0];
  std::fill_n(ones, kAttentionBlock, 1.0f);
  for (int64_t i = 0; i < num_slices; ++i) {
    A* row = rows.dqkv + slices[i].begin * stride;
    unpack_panel(dk_panel[i], slices[i].count, E, ones, row + rows.k_column(g), stride);
    unpack_panel(dv_panel[i], slices[i].count, E, ones, row + rows.v_column(g), stride);
  }
}

// Rows of delta a thread takes at a time.
constexpr int64_t kDeltaBlock = 16;

void backward_hwy(ConstTensorView do_THE, ConstTensorView qkv_TQ, ConstTensorView o_THE,
                  ConstTensorView lse_HT, const AttentionShape& shape, std::span<const int32_t> cu_seqlens,
                  TensorView dqkv_TQ, std::span<std::byte> scratch, ThreadPool& pool) {
  const int64_t H = shape.num_heads, G = shape.num_key_value_heads, T = qkv_TQ.dim(0);
  const AttentionScratchLayout memory(scratch.data(), shape, T);
  const std::span<const AttentionTask> tasks = memory.make_tasks(cu_seqlens);
  const auto num_tasks = std::ssize(tasks);
  with_activation_type(qkv_TQ.dtype(), [&]<typename A>(A) {
    const A *const o = o_THE.as<A>(), *const d_o = do_THE.as<A>();
    const BackwardRows<A> rows = {.qkv = qkv_TQ.as<A>(),
                                  .d_o = d_o,
                                  .lse_HT = lse_HT.as<float>(),
                                  .delta_HT = memory.delta_HT(),
                                  .dqkv = dqkv_TQ.as<A>(),
                                  .shape = shape,
                                  .T = T};
    pool.parallel_blocks(T, kDeltaBlock, [&](int64_t begin, int64_t end) {
      delta_rows(o, d_o, shape, T, begin, end, memory.delta_HT());
    });
    // Long tasks first: the last queries see the most keys, the first keys are seen by the most queries.
    pool.parallel_for(num_tasks * H, [&](int64_t index) {
      query_task(rows, tasks[static_cast<size_t>(num_tasks - 1 - index / H)], index % H, memory.buffers());
    });
    pool.parallel_for(num_tasks * G, [&](int64_t index) {
      key_task(rows, tasks[static_cast<size_t>(index / G)], index % G, memory.buffers());
    });
  });
}

}  // namespace HWY_NAMESPACE
}  // namespace tessera
HWY_AFTER_NAMESPACE();

#endif  // guard per target
