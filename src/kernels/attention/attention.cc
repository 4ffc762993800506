#include "kernels/attention/attention.h"

#include <algorithm>

#include "kernels/attention/attention_amx_layout.h"
#include "kernels/attention/attention_impl.h"
#include "kernels/attention/attention_layout.h"

namespace tessera {

const DispatchTable<AttentionKernels>& attention_table() {
  static const DispatchTable<AttentionKernels> table(
      "attention", concat(attention_amx(), concat(attention_hwy(), attention_ref())));
  return table;
}

namespace {

void check_shape(const AttentionShape& shape, ConstTensorView qkv_TQ, ConstTensorView o_THE) {
  TESSERA_CHECK(shape.head_dim > 0 && shape.num_key_value_heads > 0 && shape.sliding_window >= 0 &&
                    shape.num_heads % shape.num_key_value_heads == 0,
                "{} heads, {} key-value heads of {}, window {}", shape.num_heads, shape.num_key_value_heads,
                shape.head_dim, shape.sliding_window);
  TESSERA_CHECK(qkv_TQ.shape() == (Shape{qkv_TQ.dim(0), shape.qkv_width()}) &&
                    o_THE.shape() == (Shape{qkv_TQ.dim(0), shape.num_heads * shape.head_dim}) &&
                    o_THE.dtype() == qkv_TQ.dtype(),
                "qkv {} {}, o {} {}", dtype_name(qkv_TQ.dtype()), qkv_TQ.shape().to_string(),
                dtype_name(o_THE.dtype()), o_THE.shape().to_string());
}

void check_cu_seqlens(std::span<const int32_t> cu_seqlens, int64_t num_tokens) {
  TESSERA_CHECK(!cu_seqlens.empty() && cu_seqlens.front() == 0 && cu_seqlens.back() == num_tokens &&
                    std::is_sorted(cu_seqlens.begin(), cu_seqlens.end()),
                "cu_seqlens of {} sequences from {} to {} for {} tokens", cu_seqlens.size() - 1,
                cu_seqlens.empty() ? -1 : cu_seqlens.front(), cu_seqlens.empty() ? -1 : cu_seqlens.back(),
                num_tokens);
}

void check_lse(ConstTensorView lse_HT, const AttentionShape& shape, int64_t num_tokens) {
  TESSERA_CHECK(lse_HT.shape() == (Shape{shape.num_heads, num_tokens}), "lse {}", lse_HT.shape().to_string());
}

void check_scratch(std::span<std::byte> scratch, const AttentionShape& shape, int64_t num_tokens,
                   const ThreadPool& pool) {
  const int64_t needed = attention_scratch_bytes(shape, num_tokens, pool);
  TESSERA_CHECK(std::ssize(scratch) >= needed, "{} bytes of scratch, {} needed", scratch.size(), needed);
}

// The columns that `heads` heads take of a matrix of `width` columns.
bool has_columns(int64_t column, int64_t heads, const AttentionShape& shape, int64_t width) {
  return 0 <= column && column + heads * shape.head_dim <= width;
}

void check_sinks(ConstTensorView sinks_H, const AttentionShape& shape, DType dtype) {
  TESSERA_CHECK(sinks_H.empty() || (sinks_H.num_elements() == shape.num_heads && sinks_H.dtype() == dtype),
                "sinks {} {} of {} heads", dtype_name(sinks_H.dtype()), sinks_H.shape().to_string(),
                shape.num_heads);
}

void check_inputs(const AttentionInputs& inputs, const AttentionShape& shape, ConstTensorView o_THE) {
  const int64_t G = shape.num_key_value_heads, kv_width = inputs.kv_rows.dim(1);
  TESSERA_CHECK(shape.head_dim > 0 && G > 0 && shape.sliding_window >= 0 && shape.num_heads % G == 0,
                "{} heads, {} key-value heads of {}, window {}", shape.num_heads, G, shape.head_dim,
                shape.sliding_window);
  TESSERA_CHECK(has_columns(inputs.q_column, shape.num_heads, shape, inputs.q_rows.dim(1)) &&
                    has_columns(inputs.k_column, G, shape, kv_width) &&
                    has_columns(inputs.v_column, G, shape, kv_width) &&
                    inputs.q_rows.dtype() == inputs.kv_rows.dtype() &&
                    o_THE.shape() == (Shape{inputs.q_rows.dim(0), shape.num_heads * shape.head_dim}) &&
                    o_THE.dtype() == inputs.q_rows.dtype(),
                "q {} from {}, kv {} from {} and {}, o {}", inputs.q_rows.shape().to_string(),
                inputs.q_column, inputs.kv_rows.shape().to_string(), inputs.k_column, inputs.v_column,
                o_THE.shape().to_string());
  check_sinks(inputs.sinks_H, shape, inputs.q_rows.dtype());
  check_cu_seqlens(inputs.cu_queries, inputs.q_rows.dim(0));
  check_cu_seqlens(inputs.cu_keys, inputs.kv_rows.dim(0));
  TESSERA_CHECK(inputs.cu_queries.size() == inputs.cu_keys.size(), "{} sequences of queries, {} of keys",
                inputs.cu_queries.size() - 1, inputs.cu_keys.size() - 1);
  for (size_t n = 0; n + 1 < inputs.cu_keys.size(); ++n) {
    const int64_t queries = inputs.cu_queries[n + 1] - inputs.cu_queries[n];
    const int64_t keys = inputs.cu_keys[n + 1] - inputs.cu_keys[n];
    TESSERA_CHECK(inputs.causal ? keys >= queries : keys > 0 || queries == 0,
                  "sequence {} has {} queries and {} keys", n, queries, keys);
  }
  TESSERA_CHECK(inputs.dropout == nullptr || (std::ssize(inputs.dropout->tokens) == inputs.q_rows.dim(0) &&
                                              inputs.dropout->probability < 1),
                "dropout of {} tokens for {} queries", inputs.dropout->tokens.size(), inputs.q_rows.dim(0));
  if (inputs.bias == nullptr) return;
  const ConstTensorView table_BH = inputs.bias->table_BH;
  TESSERA_CHECK(table_BH.dtype() == inputs.q_rows.dtype() && table_BH.dim(1) == shape.num_heads &&
                    !inputs.bias->buckets.empty() && std::ranges::min(inputs.bias->buckets) >= 0 &&
                    std::ranges::max(inputs.bias->buckets) < table_BH.dim(0),
                "position bias {} of {} heads, {} distances", table_BH.shape().to_string(), shape.num_heads,
                inputs.bias->buckets.size());
}

void check_general_scratch(std::span<std::byte> scratch, const AttentionInputs& inputs,
                           const AttentionShape& shape, int64_t num_buckets, const ThreadPool& pool) {
  const int64_t rows = std::max(inputs.q_rows.dim(0), inputs.kv_rows.dim(0));
  const int64_t needed = general_attention_scratch_bytes(shape, rows, num_buckets, pool);
  TESSERA_CHECK(std::ssize(scratch) >= needed, "{} bytes of scratch, {} needed", scratch.size(), needed);
}

}  // namespace

int64_t general_attention_scratch_bytes(const AttentionShape& shape, int64_t max_tokens, int64_t num_buckets,
                                        const ThreadPool& pool) {
  const int64_t num_threads = pool.num_threads();
  const int64_t reference_bytes = num_threads * 2 * shape.head_dim * static_cast<int64_t>(sizeof(double));
  return std::max(reference_bytes,
                  AttentionScratchLayout::size_bytes(shape, max_tokens, num_threads, num_buckets));
}

void general_attention(const AttentionInputs& inputs, const AttentionShape& shape, TensorView o_THE,
                       TensorView lse_HT, std::span<std::byte> scratch, ThreadPool& pool) {
  check_inputs(inputs, shape, o_THE);
  if (!lse_HT.empty()) check_lse(lse_HT, shape, inputs.q_rows.dim(0));
  check_general_scratch(scratch, inputs, shape, 0, pool);
  attention_table().chosen().general_forward(inputs, shape, o_THE, lse_HT, scratch, pool);
}

void general_attention_backward(ConstTensorView do_THE, const AttentionInputs& inputs, ConstTensorView o_THE,
                                ConstTensorView lse_HT, const AttentionShape& shape,
                                const AttentionGradients& gradients, std::span<std::byte> scratch,
                                ThreadPool& pool) {
  check_inputs(inputs, shape, o_THE);
  check_inputs(inputs, shape, do_THE);
  const auto is_like = [](ConstTensorView gradient, ConstTensorView rows) {
    return gradient.shape() == rows.shape() && gradient.dtype() == rows.dtype();
  };
  TESSERA_CHECK(is_like(gradients.dq_rows, inputs.q_rows) && is_like(gradients.dkv_rows, inputs.kv_rows),
                "dq {}, dkv {}", gradients.dq_rows.shape().to_string(),
                gradients.dkv_rows.shape().to_string());
  TESSERA_CHECK(
      gradients.dsinks_H.empty() || (gradients.dsinks_H.dtype() == DType::kF32 && !inputs.sinks_H.empty() &&
                                     gradients.dsinks_H.num_elements() == shape.num_heads),
      "dsinks {}", gradients.dsinks_H.shape().to_string());
  int64_t num_buckets = 0;
  if (!gradients.dtable_BH.empty()) {
    TESSERA_CHECK(inputs.bias != nullptr && gradients.dtable_BH.dtype() == DType::kF32 &&
                      gradients.dtable_BH.shape() == inputs.bias->table_BH.shape(),
                  "dtable {}", gradients.dtable_BH.shape().to_string());
    num_buckets = gradients.dtable_BH.dim(0);
  }
  check_lse(lse_HT, shape, inputs.q_rows.dim(0));
  check_general_scratch(scratch, inputs, shape, num_buckets, pool);
  attention_table().chosen().general_backward(do_THE, inputs, o_THE, lse_HT, shape, gradients, scratch, pool);
}

int64_t attention_scratch_bytes(const AttentionShape& shape, int64_t max_tokens, const ThreadPool& pool) {
  const int64_t num_threads = pool.num_threads();
  const int64_t reference_bytes = num_threads * 2 * shape.head_dim * static_cast<int64_t>(sizeof(double));
  return std::max({reference_bytes, AttentionScratchLayout::size_bytes(shape, max_tokens, num_threads),
                   ForwardScratch(nullptr, shape, max_tokens, num_threads).size_bytes,
                   BackwardScratch(nullptr, shape, max_tokens, pool).size_bytes});
}

void attention(ConstTensorView qkv_TQ, const AttentionShape& shape, std::span<const int32_t> cu_seqlens,
               TensorView o_THE, TensorView lse_HT, std::span<std::byte> scratch, ThreadPool& pool) {
  check_shape(shape, qkv_TQ, o_THE);
  check_cu_seqlens(cu_seqlens, qkv_TQ.dim(0));
  if (!lse_HT.empty()) check_lse(lse_HT, shape, qkv_TQ.dim(0));
  check_scratch(scratch, shape, qkv_TQ.dim(0), pool);
  attention_table().chosen().forward(qkv_TQ, shape, cu_seqlens, o_THE, lse_HT, scratch, pool);
}

void attention_backward(ConstTensorView do_THE, ConstTensorView qkv_TQ, ConstTensorView o_THE,
                        ConstTensorView lse_HT, const AttentionShape& shape,
                        std::span<const int32_t> cu_seqlens, TensorView dqkv_TQ, std::span<std::byte> scratch,
                        ThreadPool& pool) {
  check_shape(shape, qkv_TQ, o_THE);
  check_shape(shape, dqkv_TQ, do_THE);
  TESSERA_CHECK(dqkv_TQ.shape() == qkv_TQ.shape() && dqkv_TQ.dtype() == qkv_TQ.dtype(), "dqkv {} {}",
                dtype_name(dqkv_TQ.dtype()), dqkv_TQ.shape().to_string());
  check_cu_seqlens(cu_seqlens, qkv_TQ.dim(0));
  check_lse(lse_HT, shape, qkv_TQ.dim(0));
  check_scratch(scratch, shape, qkv_TQ.dim(0), pool);
  attention_table().chosen().backward(do_THE, qkv_TQ, o_THE, lse_HT, shape, cu_seqlens, dqkv_TQ, scratch,
                                      pool);
}

void attention_cached(ConstTensorView qkv_TQ, const AttentionShape& shape, TensorView k_cache,
                      TensorView v_cache, int64_t cache_length, ConstTensorView sinks_H, TensorView o_THE,
                      std::span<std::byte> scratch, ThreadPool& pool) {
  check_shape(shape, qkv_TQ, o_THE);
  check_sinks(sinks_H, shape, qkv_TQ.dtype());
  TESSERA_CHECK(k_cache.shape() == v_cache.shape() && k_cache.shape().rank() == 2 &&
                    k_cache.dim(1) == shape.num_key_value_heads * shape.head_dim &&
                    k_cache.dtype() == qkv_TQ.dtype() && v_cache.dtype() == qkv_TQ.dtype(),
                "caches {} {} and {} {}", dtype_name(k_cache.dtype()), k_cache.shape().to_string(),
                dtype_name(v_cache.dtype()), v_cache.shape().to_string());
  TESSERA_CHECK(cache_length >= 0 && cache_length + qkv_TQ.dim(0) <= k_cache.dim(0),
                "{} rows after {} in a cache of {}", qkv_TQ.dim(0), cache_length, k_cache.dim(0));
  check_scratch(scratch, shape, qkv_TQ.dim(0), pool);
  attention_table().chosen().cached(qkv_TQ, shape, k_cache, v_cache, cache_length, sinks_H, o_THE, scratch,
                                    pool);
}

}  // namespace tessera
