// Causal grouped-query softmax attention over packed sequences, forward and backward, holding only blocks of
// scores at any time. Dao, "FlashAttention-2", 2023; online softmax of Milakov and Gimelshein, 2018.
//
// For query t and key s of the same sequence, s <= t and t - s < window (window 0 = unlimited), query head h
// and its key-value head g = h / (H / G):
//   score_ts = cap(scale q_t . k_s)      p_ts = exp(score_ts - lse_t)      lse_t = log sum_s exp(score_ts)
//   o_t = sum_s p_ts v_s
// where cap(x) = c tanh(x / c) with a soft cap c, otherwise x; and with delta_t = o_t . do_t:
//   dv_s = sum_ht p_ts do_t         ds_ts = p_ts (do_t . v_s - delta_t) cap'(scale q_t . k_s)
//   dq_t = scale sum_s ds_ts k_s    dk_s = scale sum_ht ds_ts q_t
//
// Rows of qkv_TQ and dqkv_TQ are [q: H heads | k: G heads | v: G heads], Q = (H + 2G) E. Activations are BF16
// or F32, the same dtype in one call; sums are float32; outputs are rounded once. cu_seqlens holds
// 0 = first <= ... <= last = T; empty sequences are allowed. Results do not depend on the number of threads.
//
// Error of a score: at most about E eps |scale| sum|q k|, and the output is a convex combination of v whose
// weights have that relative error (eps = 2^-24); tests derive their bounds from this. The AMX implementation
// (bf16 only; float32, soft caps, sinks and attention_cached use the vector one) also rounds p and ds to bf16
// before their products with v, do, q and k, a relative error of 2^-8 per weight, and its exp has one of
// 2^-18; the sum of the weights, hence lse, uses unrounded ones. It supports any head size, padded with zeros
// to a multiple of 32.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "kernels/attention/attention_inputs.h"
#include "kernels/attention/attention_shape.h"
#include "platform/thread_pool.h"
#include "tensor/tensor_view.h"

namespace tessera {

// Bytes of scratch, 64-byte aligned, for forward, backward and cached calls with this shape and at most
// max_tokens rows on this pool.
int64_t attention_scratch_bytes(const AttentionShape& shape, int64_t max_tokens, const ThreadPool& pool);

// o_THE [T, H E] = attention; lse_HT [H, T] F32. lse_HT may be empty if no backward follows.
void attention(ConstTensorView qkv_TQ, const AttentionShape& shape, std::span<const int32_t> cu_seqlens,
               TensorView o_THE, TensorView lse_HT, std::span<std::byte> scratch, ThreadPool& pool);

// Overwrites all three parts of dqkv_TQ. dqkv_TQ must not alias any input.
void attention_backward(ConstTensorView do_THE, ConstTensorView qkv_TQ, ConstTensorView o_THE,
                        ConstTensorView lse_HT, const AttentionShape& shape,
                        std::span<const int32_t> cu_seqlens, TensorView dqkv_TQ, std::span<std::byte> scratch,
                        ThreadPool& pool);

// Bytes of scratch, 64-byte aligned, for general calls with at most max_tokens rows of queries and as many of
// keys; num_buckets of a position bias whose gradient is wanted, otherwise 0.
int64_t general_attention_scratch_bytes(const AttentionShape& shape, int64_t max_tokens, int64_t num_buckets,
                                        const ThreadPool& pool);

// Attention to the keys of another sequence, in both directions, with a bias, or with dropout
// (attention_inputs.h):
//   score_ts = cap(scale q_t . k_s) + bias_ts       dbias of a bucket = the sum of its ds
// and with dropout, where m_ts is 1 / (1 - probability) if the pair is kept, otherwise 0:
//   o_t = sum_s m_ts p_ts v_s    dv_s = sum_ht m_ts p_ts do_t    ds_ts = p_ts (m_ts do_t . v_s - delta_t)
// With sinks, a logit of each head, which the softmax of every query counts like a key without a value:
//   lse_t = log(exp(sink) + sum_s exp(score_ts))    dsink = -sum_t exp(sink - lse_t) delta_t
// Carried out on vector units, whatever the implementation of attention().
void general_attention(const AttentionInputs& inputs, const AttentionShape& shape, TensorView o_THE,
                       TensorView lse_HT, std::span<std::byte> scratch, ThreadPool& pool);

// Overwrites the columns of q in dq_rows and those of k and v in dkv_rows, which must not alias any input.
void general_attention_backward(ConstTensorView do_THE, const AttentionInputs& inputs, ConstTensorView o_THE,
                                ConstTensorView lse_HT, const AttentionShape& shape,
                                const AttentionGradients& gradients, std::span<std::byte> scratch,
                                ThreadPool& pool);

// Generation, one sequence: copies k and v of the T new rows to rows [cache_length, cache_length + T) of the
// caches [capacity, G E] (dtype of qkv), then lets new token i attend to cache rows up to cache_length + i.
// sinks_H may be empty.
void attention_cached(ConstTensorView qkv_TQ, const AttentionShape& shape, TensorView k_cache,
                      TensorView v_cache, int64_t cache_length, ConstTensorView sinks_H, TensorView o_THE,
                      std::span<std::byte> scratch, ThreadPool& pool);

}  // namespace tessera
