// Forward attention, block by block: over packed sequences, and for new tokens over a cache.
//
// Included once per instruction set (Highway's foreach_target), hence the unusual guard.
#if defined(TESSERA_ATTENTION_FORWARD_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef TESSERA_ATTENTION_FORWARD_INL_H_
#undef TESSERA_ATTENTION_FORWARD_INL_H_
#else
#define TESSERA_ATTENTION_FORWARD_INL_H_
#endif

#include "base/divide_up.h"
#include "kernels/attention/attention_block-inl.h"

HWY_BEFORE_NAMESPACE();
namespace tessera {
namespace HWY_NAMESPACE {

// Query rows of a head, and the key and value rows they see: key row s has position s, query row t position
// t + shift.
template <typename A>
struct ForwardRows {
  const A* q;
  const A* k;
  const A* v;
  A* o;
  float* lse;  // one per query row; may be null
  int64_t q_stride, kv_stride, o_stride;
  int64_t shift;
  int64_t head_dim;
  AttentionReach reach;
  float scale;
  float softcap;
  int64_t head = 0;
  const PositionBias* bias = nullptr;
  const Dropout* dropout = nullptr;
  const A* sink = nullptr;  // of the head

  // Where online softmax starts: at the sink, or at nothing with a finite maximum, so that subtracting it
  // never gives NaN.
  float first_max() const { return sink == nullptr ? std::numeric_limits<float>::lowest() : to_float(*sink); }
  float first_sum() const { return sink == nullptr ? 0.0f : 1.0f; }
};

// The sink of head h, for ForwardRows.
template <typename A>
const A* sink_of(ConstTensorView sinks_H, int64_t h) {
  return sinks_H.empty() ? nullptr : sinks_H.as<A>() + h;
}

// o and lse of query rows [begin, min(begin + kAttentionTaskRows, end)) over those of the key rows
// [key_begin, key_limit) that they see.
template <typename A>
HWY_NOINLINE void forward_task(const ForwardRows<A>& rows, int64_t begin, int64_t end, int64_t key_begin,
                               int64_t key_limit, const AttentionBuffers& buffers) {
  const int64_t E = rows.head_dim;
  float *const k_SE = buffers.rows[0], *const v_SE = buffers.rows[1], *const scores = buffers.scores[0];
  const auto& q_panel = buffers.panels[0];
  const auto& o_panel = buffers.panels[1];
  const auto& max = buffers.statistics[0];
  const auto& sum = buffers.statistics[1];
  AttentionSlice slices[kAttentionSlices];
  const int64_t num_slices = split_slices(begin, end, slices);
  for (int64_t i = 0; i < num_slices; ++i) {
    pack_panel(rows.q + slices[i].begin * rows.q_stride, rows.q_stride, slices[i].count, E, rows.scale,
               q_panel[i]);
    std::fill_n(o_panel[i], E * kAttentionBlock, 0.0f);
    std::fill_n(max[i], kAttentionBlock, rows.first_max());
    std::fill_n(sum[i], kAttentionBlock, rows.first_sum());
  }
  const AttentionSlice& last = slices[num_slices - 1];
  const int64_t key_end = std::min(key_limit, last.begin + last.count + rows.shift + rows.reach.ahead);
  const int64_t first_seen = std::max(key_begin, begin + rows.shift - rows.reach.before + 1);
  BlockBias bias;
  BlockDropout dropout;
  for (int64_t key = key_begin + (first_seen - key_begin) / kAttentionBlock * kAttentionBlock; key < key_end;
       key += kAttentionBlock) {
    const int64_t num_keys = std::min(kAttentionBlock, key_end - key);
    copy_rows(rows.k + key * rows.kv_stride, rows.kv_stride, num_keys, E, 1.0f, k_SE);
    copy_rows(rows.v + key * rows.kv_stride, rows.kv_stride, num_keys, E, 1.0f, v_SE);
    for (int64_t i = 0; i < num_slices; ++i) {
      const int64_t n = slices[i].count;
      const auto band = AttentionBand::keys_by_queries(key, slices[i].begin + rows.shift, rows.reach);
      if (band.misses(num_keys, n)) continue;
      multiply<Update::kOverwrite>(as_rows(k_SE, E), q_panel[i], num_keys, E, n, scores);
      if (rows.softcap != 0) cap_scores(rows.softcap, num_keys, n, scores, /*slopes=*/nullptr);
      if (rows.bias != nullptr) {
        load_bias<A>(*rows.bias, rows.head, key - slices[i].begin - rows.shift, /*direction=*/-1, num_keys, n,
                     bias);
        add_bias(bias, num_keys, n, scores);
      }
      if (!band.covers(num_keys, n)) mask_scores(band, num_keys, n, scores);
      softmax_step(scores, num_keys, n, max[i], sum[i], o_panel[i], E);
      if (rows.dropout != nullptr) {
        load_dropout(*rows.dropout, rows.head, rows.dropout->tokens.data() + slices[i].begin, key - key_begin,
                     num_keys, n, dropout);
        multiply_elements(dropout.factors, num_keys, n, scores);
      }
      multiply<Update::kAdd>(as_columns(v_SE, E), scores, E, num_keys, n, o_panel[i]);
    }
  }
  for (int64_t i = 0; i < num_slices; ++i) {
    for (int64_t t = 0; t < slices[i].count; ++t) {
      if (rows.lse != nullptr) rows.lse[slices[i].begin + t] = max[i][t] + std::log(sum[i][t]);
      sum[i][t] = 1 / sum[i][t];
    }
    unpack_panel(o_panel[i], slices[i].count, E, sum[i], rows.o + slices[i].begin * rows.o_stride,
                 rows.o_stride);
  }
}

void general_forward_hwy(const AttentionInputs& inputs, const AttentionShape& shape, TensorView o_THE,
                         TensorView lse_HT, std::span<std::byte> scratch, ThreadPool& pool) {
  const int64_t E = shape.head_dim, H = shape.num_heads, G = shape.num_key_value_heads;
  const int64_t T = inputs.q_rows.dim(0);
  const AttentionScratchLayout memory(scratch.data(), shape, std::max(T, inputs.kv_rows.dim(0)));
  const std::span<const AttentionTask> tasks = memory.make_tasks(inputs.cu_queries, inputs.cu_keys);
  float* const lse = lse_HT.empty() ? nullptr : lse_HT.as<float>();
  with_activation_type(inputs.q_rows.dtype(), [&]<typename A>(A) {
    const A* const q = inputs.q_rows.as<A>() + inputs.q_column;
    const A* const kv = inputs.kv_rows.as<A>();
    A* const o = o_THE.as<A>();
    // Last rows first: they see the most keys, and long tasks must not be left for the end.
    pool.parallel_for(std::ssize(tasks) * H, [&](int64_t index) {
      const AttentionTask& task = tasks[tasks.size() - 1 - static_cast<size_t>(index / H)];
      const int64_t h = index % H, g = h / (H / G);
      const ForwardRows<A> rows = {.q = q + h * E,
                                   .k = kv + inputs.k_column + g * E,
                                   .v = kv + inputs.v_column + g * E,
                                   .o = o + h * E,
                                   .lse = lse == nullptr ? nullptr : lse + h * T,
                                   .q_stride = inputs.q_rows.dim(1),
                                   .kv_stride = inputs.kv_rows.dim(1),
                                   .o_stride = H * E,
                                   .shift = task.shift(),
                                   .head_dim = E,
                                   .reach = AttentionReach::of(shape, inputs.causal),
                                   .scale = shape.scale,
                                   .softcap = shape.softcap,
                                   .head = h,
                                   .bias = inputs.bias,
                                   .dropout = inputs.dropout,
                                   .sink = sink_of<A>(inputs.sinks_H, h)};
      forward_task(rows, task.begin, task.end, task.other_begin, task.other_end, memory.buffers());
    });
  });
}

void forward_hwy(ConstTensorView qkv_TQ, const AttentionShape& shape, std::span<const int32_t> cu_seqlens,
                 TensorView o_THE, TensorView lse_HT, std::span<std::byte> scratch, ThreadPool& pool) {
  general_forward_hwy(AttentionInputs::of_fused(qkv_TQ, shape, cu_seqlens), shape, o_THE, lse_HT, scratch,
                      pool);
}

// o of a single query row t: dot products along the head, for the few rows of a generation step, which would
// leave most query columns empty.
template <typename A>
HWY_NOINLINE void forward_row(const ForwardRows<A>& rows, int64_t t, const AttentionBuffers& buffers) {
  const FloatTag d;
  const int64_t E = rows.head_dim, key_end = t + rows.shift + 1;
  float *const q = buffers.rows[0], *const o = buffers.rows[1], *const scores = buffers.scores[0];
  copy_rows(rows.q + t * rows.q_stride, rows.q_stride, 1, E, rows.scale, q);
  std::fill_n(o, E, 0.0f);
  float max = rows.first_max(), sum = rows.first_sum();
  constexpr int64_t kKeys = kAttentionBlock * kAttentionBlock;  // capacity of `scores`
  for (int64_t begin = std::max<int64_t>(0, key_end - rows.reach.before); begin < key_end; begin += kKeys) {
    const int64_t count = std::min(kKeys, key_end - begin);
    float new_max = max;
    for (int64_t s = 0; s < count; ++s) {
      const A* k = rows.k + (begin + s) * rows.kv_stride;
      auto product = hn::Zero(d);
      for_each_vector(d, E, [&](auto access, int64_t i) HWY_ATTR {
        product = hn::MulAdd(access.load(d, q + i), access.load(d, k + i), product);
      });
      scores[s] = sum_of_lanes(d, product);
      if (rows.softcap != 0) scores[s] = rows.softcap * std::tanh(scores[s] / rows.softcap);
      new_max = std::max(new_max, scores[s]);
    }
    auto sums = hn::Zero(d);
    const auto top = hn::Set(d, new_max);
    for_each_vector(d, count, [&](auto access, int64_t i) HWY_ATTR {
      access.store(d, exp_nonpositive(d, hn::Sub(access.load(d, scores + i), top)), scores + i);
      sums = hn::Add(sums, access.load(d, scores + i));
    });
    const float shrink = std::exp(max - new_max);
    sum = sum * shrink + sum_of_lanes(d, sums);
    max = new_max;
    copy_rows(o, E, 1, E, shrink, o);
    for (int64_t s = 0; s < count; ++s) {
      const A* v = rows.v + (begin + s) * rows.kv_stride;
      const auto p = hn::Set(d, scores[s]);
      for_each_vector(d, E, [&](auto access, int64_t i) HWY_ATTR {
        access.store(d, hn::MulAdd(p, access.load(d, v + i), access.load(d, o + i)), o + i);
      });
    }
  }
  const auto factor = hn::Set(d, 1 / sum);
  for_each_vector(d, E, [&](auto access, int64_t i) HWY_ATTR {
    access.store(d, hn::Mul(factor, access.load(d, o + i)), rows.o + t * rows.o_stride + i);
  });
}

// From this many new tokens on, blocks of columns are full enough.
constexpr int64_t kMinBlockTokens = 8;

void cached_hwy(ConstTensorView qkv_TQ, const AttentionShape& shape, TensorView k_cache, TensorView v_cache,
                int64_t cache_length, ConstTensorView sinks_H, TensorView o_THE, std::span<std::byte> scratch,
                ThreadPool& pool) {
  const int64_t E = shape.head_dim, H = shape.num_heads, G = shape.num_key_value_heads;
  const int64_t T = qkv_TQ.dim(0), Q = shape.qkv_width();
  const AttentionScratchLayout memory(scratch.data(), shape, T);
  with_activation_type(qkv_TQ.dtype(), [&]<typename A>(A) {
    const A* const qkv = qkv_TQ.as<A>();
    A *const k = k_cache.as<A>(), *const v = v_cache.as<A>();
    for (int64_t t = 0; t < T; ++t) {
      const A* row = qkv + t * Q + H * E;
      std::copy(row, row + G * E, k + (cache_length + t) * G * E);
      std::copy(row + G * E, row + 2 * G * E, v + (cache_length + t) * G * E);
    }
    const int64_t task_rows = T < kMinBlockTokens ? 1 : kAttentionTaskRows;
    const int64_t num_tasks = divide_up(T, task_rows);
    pool.parallel_for(num_tasks * H, [&](int64_t index) {
      const int64_t begin = (num_tasks - 1 - index / H) * task_rows, h = index % H, g = h / (H / G);
      const ForwardRows<A> rows = {.q = qkv + h * E,
                                   .k = k + g * E,
                                   .v = v + g * E,
                                   .o = o_THE.as<A>() + h * E,
                                   .lse = nullptr,
                                   .q_stride = Q,
                                   .kv_stride = G * E,
                                   .o_stride = H * E,
                                   .shift = cache_length,
                                   .head_dim = E,
                                   .reach = AttentionReach::of(shape),
                                   .scale = shape.scale,
                                   .softcap = shape.softcap,
                                   .sink = sink_of<A>(sinks_H, h)};
      if (T < kMinBlockTokens) {
        forward_row(rows, begin, memory.buffers());
      } else {
        forward_task(rows, begin, T, 0, T + cache_length, memory.buffers());
      }
    });
  });
}

}  // namespace HWY_NAMESPACE
}  // namespace tessera
HWY_AFTER_NAMESPACE();

#endif  // guard per target
