// Backward attention, block by block, in two passes that each own what they write: dq by query rows, then dk
// and dv by key rows. Both compute the scores, 7 block products instead of the 5 of a single pass; in
// return nothing needs to be summed across threads and every block of rows is an independent task.
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

// The inputs of both passes and the gradients they write.
template <typename A>
struct BackwardRows {
  const AttentionInputs& inputs;
  const A *q, *kv;  // the first rows, at column 0
  const A* d_o;
  const float* lse_HT;
  const float* delta_HT;
  A *dq, *dkv;
  AttentionShape shape;
  AttentionReach reach;
  int64_t T;

  bool has_sinks() const { return !inputs.sinks_H.empty(); }
  int64_t q_stride() const { return inputs.q_rows.dim(1); }
  int64_t kv_stride() const { return inputs.kv_rows.dim(1); }
  int64_t o_stride() const { return shape.num_heads * shape.head_dim; }
  int64_t q_column(int64_t h) const { return inputs.q_column + h * shape.head_dim; }
  int64_t k_column(int64_t g) const { return inputs.k_column + g * shape.head_dim; }
  int64_t v_column(int64_t g) const { return inputs.v_column + g * shape.head_dim; }
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
// which an optimizer such as Adam would take for a gradient. That is the first query of a causal sequence, in
// the corner of the block where both begin; every query of a sequence with one key, and every query where the
// window is 1. A sink shares the weight, so that ds is not 0 then.
inline void clear_lone_scores(const AttentionReach& reach, bool is_corner, int64_t num_keys, int64_t num_rows,
                              float* ds) {
  if (reach.ahead == 0 && is_corner) ds[0] = 0;
  if (reach.before == 1 || num_keys == 1) std::fill_n(ds, num_rows * kAttentionBlock, 0.0f);
}

// dq of query head h for the rows of `task`; adds the gradient of the head's position bias to dbias [buckets]
// unless that is null.
template <typename A>
HWY_NOINLINE void query_task(const BackwardRows<A>& rows, const AttentionTask& task, int64_t h, float* dbias,
                             const AttentionBuffers& buffers) {
  const AttentionShape& shape = rows.shape;
  const AttentionReach& reach = rows.reach;
  const PositionBias* const bias = rows.inputs.bias;
  const Dropout* const dropout = rows.inputs.dropout;
  const int64_t E = shape.head_dim, g = h / (shape.num_heads / shape.num_key_value_heads);
  const int64_t stride = rows.kv_stride(), shift = task.shift();
  float *const k_SE = buffers.rows[0], *const v_SE = buffers.rows[1];
  float *const p = buffers.scores[0], *const ds = buffers.scores[1], *const slopes = buffers.slopes;
  const auto& q_panel = buffers.panels[0];
  const auto& do_panel = buffers.panels[1];
  const auto& dq_panel = buffers.panels[2];
  const auto& lse = buffers.statistics[0];
  const auto& delta = buffers.statistics[1];
  AttentionSlice slices[kAttentionSlices];
  const int64_t num_slices = split_slices(task.begin, task.end, slices);
  for (int64_t i = 0; i < num_slices; ++i) {
    const int64_t begin = slices[i].begin, count = slices[i].count;
    pack_panel(rows.q + begin * rows.q_stride() + rows.q_column(h), rows.q_stride(), count, E, shape.scale,
               q_panel[i]);
    pack_panel(rows.d_o + begin * rows.o_stride() + h * E, rows.o_stride(), count, E, 1.0f, do_panel[i]);
    std::fill_n(dq_panel[i], E * kAttentionBlock, 0.0f);
    load_statistics(rows.lse_HT + h * rows.T + begin, count, lse[i]);
    load_statistics(rows.delta_HT + h * rows.T + begin, count, delta[i]);
  }
  const int64_t end = slices[num_slices - 1].begin + slices[num_slices - 1].count;
  const int64_t key_begin = task.other_begin;
  const int64_t key_end = std::min<int64_t>(task.other_end, end + shift + reach.ahead);
  const int64_t first_seen = std::max<int64_t>(0, task.begin + shift - reach.before + 1 - key_begin);
  BlockBias block_bias;
  BlockDropout block_dropout;
  for (int64_t key = key_begin + first_seen / kAttentionBlock * kAttentionBlock; key < key_end;
       key += kAttentionBlock) {
    const int64_t num_keys = std::min(kAttentionBlock, key_end - key);
    copy_rows(rows.kv + key * stride + rows.k_column(g), stride, num_keys, E, 1.0f, k_SE);
    copy_rows(rows.kv + key * stride + rows.v_column(g), stride, num_keys, E, 1.0f, v_SE);
    for (int64_t i = 0; i < num_slices; ++i) {
      const int64_t n = slices[i].count;
      const int64_t query = slices[i].begin + shift;  // the position of the first
      const auto band = AttentionBand::keys_by_queries(key, query, reach);
      if (band.misses(num_keys, n)) continue;
      // forward:  score = cap(scale k . q) + bias,  p = exp(score - lse)
      multiply<Update::kOverwrite>(as_rows(k_SE, E), q_panel[i], num_keys, E, n, p);
      if (slopes != nullptr) cap_scores(shape.softcap, num_keys, n, p, slopes);
      if (bias != nullptr) {
        load_bias<A>(*bias, h, key - query, /*direction=*/-1, num_keys, n, block_bias);
        add_bias(block_bias, num_keys, n, p);
      }
      if (!band.covers(num_keys, n)) mask_scores(band, num_keys, n, p);
      probabilities<Along::kColumns>(lse[i], num_keys, n, p);
      // backward: dp = m v . do,  ds = p (dp - delta),  dq += ds k
      multiply<Update::kOverwrite>(as_rows(v_SE, E), do_panel[i], num_keys, E, n, ds);
      if (dropout != nullptr) {
        load_dropout(*dropout, h, dropout->tokens.data() + slices[i].begin, key - key_begin, num_keys, n,
                     block_dropout);
        multiply_elements(block_dropout.factors, num_keys, n, ds);
      }
      score_gradients<Along::kColumns>(p, delta[i], num_keys, n, ds);
      if (!rows.has_sinks())
        clear_lone_scores(reach, key == key_begin && query == key, task.other_end - key_begin, num_keys, ds);
      if (dbias != nullptr) add_bias_gradient(ds, num_keys, n, *bias, key - query, /*direction=*/-1, dbias);
      if (slopes != nullptr) multiply_elements(slopes, num_keys, n, ds);
      multiply<Update::kAdd>(as_columns(k_SE, E), ds, E, num_keys, n, dq_panel[i]);
    }
  }
  for (int64_t i = 0; i < num_slices; ++i) {
    float* const factors = lse[i];
    std::fill_n(factors, kAttentionBlock, shape.scale);
    unpack_panel(dq_panel[i], slices[i].count, E, factors,
                 rows.dq + slices[i].begin * rows.q_stride() + rows.q_column(h), rows.q_stride());
  }
}

// dk and dv of key-value head g for the rows of `task`, summed over the query heads that read it, in order.
template <typename A>
HWY_NOINLINE void key_task(const BackwardRows<A>& rows, const AttentionTask& task, int64_t g,
                           const AttentionBuffers& buffers) {
  const AttentionShape& shape = rows.shape;
  const AttentionReach& reach = rows.reach;
  const int64_t E = shape.head_dim, group = shape.num_heads / shape.num_key_value_heads;
  const int64_t stride = rows.q_stride(), shift = -task.shift();  // from a query's row to its position
  const Dropout* const dropout = rows.inputs.dropout;
  float *const q_TE = buffers.rows[0], *const do_TE = buffers.rows[1];
  float *const p = buffers.scores[0], *const ds = buffers.scores[1], *const slopes = buffers.slopes;
  const auto& k_panel = buffers.panels[0];
  const auto& v_panel = buffers.panels[1];
  const auto& dk_panel = buffers.panels[2];
  const auto& dv_panel = buffers.panels[3];
  AttentionSlice slices[kAttentionSlices];
  const int64_t num_slices = split_slices(task.begin, task.end, slices);
  for (int64_t i = 0; i < num_slices; ++i) {
    const A* row = rows.kv + slices[i].begin * rows.kv_stride();
    pack_panel(row + rows.k_column(g), rows.kv_stride(), slices[i].count, E, 1.0f, k_panel[i]);
    pack_panel(row + rows.v_column(g), rows.kv_stride(), slices[i].count, E, 1.0f, v_panel[i]);
    std::fill_n(dk_panel[i], E * kAttentionBlock, 0.0f);
    std::fill_n(dv_panel[i], E * kAttentionBlock, 0.0f);
  }
  const int64_t key_end = slices[num_slices - 1].begin + slices[num_slices - 1].count;
  const int64_t query_end = std::min<int64_t>(task.other_end, key_end + reach.before - 1 - shift);
  const int64_t first_seeing = std::max<int64_t>(0, task.begin - reach.ahead - shift - task.other_begin);
  const int64_t query_begin = task.other_begin + first_seeing / kAttentionBlock * kAttentionBlock;
  BlockBias block_bias;
  BlockDropout by_keys, factors;
  for (int64_t h = g * group; h < (g + 1) * group; ++h) {
    for (int64_t query = query_begin; query < query_end; query += kAttentionBlock) {
      const int64_t num_queries = std::min(kAttentionBlock, query_end - query);
      const float* lse = rows.lse_HT + h * rows.T + query;
      const float* delta = rows.delta_HT + h * rows.T + query;
      copy_rows(rows.q + query * stride + rows.q_column(h), stride, num_queries, E, shape.scale, q_TE);
      copy_rows(rows.d_o + query * rows.o_stride() + h * E, rows.o_stride(), num_queries, E, 1.0f, do_TE);
      for (int64_t i = 0; i < num_slices; ++i) {
        const int64_t n = slices[i].count;
        const auto band = AttentionBand::queries_by_keys(query + shift, slices[i].begin, reach);
        if (band.misses(num_queries, n)) continue;
        // forward:  score = cap(scale q . k) + bias,  p = exp(score - lse)
        multiply<Update::kOverwrite>(as_rows(q_TE, E), k_panel[i], num_queries, E, n, p);
        if (slopes != nullptr) cap_scores(shape.softcap, num_queries, n, p, slopes);
        if (rows.inputs.bias != nullptr) {
          load_bias<A>(*rows.inputs.bias, h, slices[i].begin - query - shift, /*direction=*/1, num_queries, n,
                       block_bias);
          add_bias(block_bias, num_queries, n, p);
        }
        if (!band.covers(num_queries, n)) mask_scores(band, num_queries, n, p);
        probabilities<Along::kRows>(lse, num_queries, n, p);
        // backward: dv += m p do,  dp = m do . v,  ds = p (dp - delta),  dk += ds scale q
        multiply<Update::kOverwrite>(as_rows(do_TE, E), v_panel[i], num_queries, E, n, ds);
        const float* kept = p;
        if (dropout != nullptr) {
          load_dropout(*dropout, h, dropout->tokens.data() + query, slices[i].begin - task.sequence_begin, n,
                       num_queries, by_keys);
          pack_panel<float>(by_keys.factors, kAttentionBlock, n, num_queries, 1.0f, factors.factors);
          multiply_elements(factors.factors, num_queries, n, ds);
          multiply_elements(p, num_queries, n, factors.factors);
          kept = factors.factors;
        }
        multiply<Update::kAdd>(as_columns(do_TE, E), kept, E, num_queries, n, dv_panel[i]);
        score_gradients<Along::kRows>(p, delta, num_queries, n, ds);
        const bool is_corner = slices[i].begin == task.sequence_begin && query + shift == slices[i].begin;
        if (!rows.has_sinks())
          clear_lone_scores(reach, is_corner, task.end - task.sequence_begin, num_queries, ds);
        if (slopes != nullptr) multiply_elements(slopes, num_queries, n, ds);
        multiply<Update::kAdd>(as_columns(q_TE, E), ds, E, num_queries, n, dk_panel[i]);
      }
    }
  }
  float* const ones = buffers.statistics[0][0];
  std::fill_n(ones, kAttentionBlock, 1.0f);
  for (int64_t i = 0; i < num_slices; ++i) {
    A* row = rows.dkv + slices[i].begin * rows.kv_stride();
    unpack_panel(dk_panel[i], slices[i].count, E, ones, row + rows.k_column(g), rows.kv_stride());
    unpack_panel(dv_panel[i], slices[i].count, E, ones, row + rows.v_column(g), rows.kv_stride());
  }
}

// Rows of delta a thread takes at a time.
constexpr int64_t kDeltaBlock = 16;

// dtable_BH = or += the sum of its parts [kBiasParts, H, B], in order.
inline void sum_bias_parts(const float* parts, TensorView dtable_BH, Update update) {
  const int64_t B = dtable_BH.dim(0), H = dtable_BH.dim(1);
  float* const dtable = dtable_BH.as<float>();
  for (int64_t b = 0; b < B; ++b) {
    for (int64_t h = 0; h < H; ++h) {
      float sum = update == Update::kAdd ? dtable[b * H + h] : 0;
      for (int64_t part = 0; part < kBiasParts; ++part) sum += parts[(part * H + h) * B + b];
      dtable[b * H + h] = sum;
    }
  }
}

// dq of all queries; with a position bias its gradient, too, in parts of consecutive tasks.
template <typename A>
void query_tasks(const BackwardRows<A>& rows, std::span<const AttentionTask> tasks,
                 const AttentionScratchLayout& memory, TensorView dtable_BH, Update update,
                 ThreadPool& pool) {
  const int64_t H = rows.shape.num_heads;
  const auto num_tasks = std::ssize(tasks);
  if (dtable_BH.empty()) {
    // Long tasks first: the last queries see the most keys.
    pool.parallel_for(num_tasks * H, [&](int64_t index) {
      query_task(rows, tasks[static_cast<size_t>(num_tasks - 1 - index / H)], index % H, nullptr,
                 memory.buffers());
    });
    return;
  }
  const int64_t B = dtable_BH.dim(0);
  float* const parts = memory.bias_parts(pool.num_threads());
  std::fill_n(parts, kBiasParts * H * B, 0.0f);
  pool.parallel_for(kBiasParts * H, [&](int64_t index) {
    const int64_t part = index / H;
    for (int64_t i = num_tasks * part / kBiasParts; i < num_tasks * (part + 1) / kBiasParts; ++i) {
      query_task(rows, tasks[static_cast<size_t>(i)], index % H, parts + index * B, memory.buffers());
    }
  });
  sum_bias_parts(parts, dtable_BH, update);
}

// dsinks_H = or += -sum over t of exp(sink - lse_t) delta_t, in the order of t.
template <typename A>
void sink_gradients(const BackwardRows<A>& rows, TensorView dsinks_H, Update update, ThreadPool& pool) {
  pool.parallel_for(rows.shape.num_heads, [&](int64_t h) {
    const float sink = to_float(rows.inputs.sinks_H.template as<A>()[h]);
    double sum = 0;
    for (int64_t t = h * rows.T; t < (h + 1) * rows.T; ++t)
      sum += static_cast<double>(std::exp(sink - rows.lse_HT[t]) * rows.delta_HT[t]);
    float& gradient = dsinks_H.as<float>()[h];
    gradient = (update == Update::kAdd ? gradient : 0) - static_cast<float>(sum);
  });
}

void general_backward_hwy(ConstTensorView do_THE, const AttentionInputs& inputs, ConstTensorView o_THE,
                          ConstTensorView lse_HT, const AttentionShape& shape,
                          const AttentionGradients& gradients, std::span<std::byte> scratch,
                          ThreadPool& pool) {
  const int64_t G = shape.num_key_value_heads, T = inputs.q_rows.dim(0);
  const AttentionScratchLayout memory(scratch.data(), shape, std::max(T, inputs.kv_rows.dim(0)));
  with_activation_type(inputs.q_rows.dtype(), [&]<typename A>(A) {
    const A *const o = o_THE.as<A>(), *const d_o = do_THE.as<A>();
    const BackwardRows<A> rows = {.inputs = inputs,
                                  .q = inputs.q_rows.as<A>(),
                                  .kv = inputs.kv_rows.as<A>(),
                                  .d_o = d_o,
                                  .lse_HT = lse_HT.as<float>(),
                                  .delta_HT = memory.delta_HT(),
                                  .dq = gradients.dq_rows.as<A>(),
                                  .dkv = gradients.dkv_rows.as<A>(),
                                  .shape = shape,
                                  .reach = AttentionReach::of(shape, inputs.causal),
                                  .T = T};
    pool.parallel_blocks(T, kDeltaBlock, [&](int64_t begin, int64_t end) {
      delta_rows(o, d_o, shape, T, begin, end, memory.delta_HT());
    });
    if (!gradients.dsinks_H.empty()) sink_gradients(rows, gradients.dsinks_H, gradients.sinks_update, pool);
    query_tasks(rows, memory.make_tasks(inputs.cu_queries, inputs.cu_keys), memory, gradients.dtable_BH,
                gradients.table_update, pool);
    // The first keys are seen by the most queries.
    const std::span<const AttentionTask> tasks = memory.make_tasks(inputs.cu_keys, inputs.cu_queries);
    pool.parallel_for(std::ssize(tasks) * G, [&](int64_t index) {
      key_task(rows, tasks[static_cast<size_t>(index / G)], index % G, memory.buffers());
    });
  });
}

void backward_hwy(ConstTensorView do_THE, ConstTensorView qkv_TQ, ConstTensorView o_THE,
                  ConstTensorView lse_HT, const AttentionShape& shape, std::span<const int32_t> cu_seqlens,
                  TensorView dqkv_TQ, std::span<std::byte> scratch, ThreadPool& pool) {
  general_backward_hwy(do_THE, AttentionInputs::of_fused(qkv_TQ, shape, cu_seqlens), o_THE, lse_HT, shape,
                       {dqkv_TQ, dqkv_TQ, {}}, scratch, pool);
}

}  // namespace HWY_NAMESPACE
}  // namespace tessera
HWY_AFTER_NAMESPACE();

#endif  // guard per target
