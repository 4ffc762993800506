// The division of work and scratch memory in attention on AMX.
//
// Keys and values are packed for the whole call, in granules of 32 tokens counted from token 0 of the call
// regardless of sequence boundaries: there is no padding between sequences; the few keys of a neighbouring
// sequence in a sequence's first and last granule are masked.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>

#include "base/float_types.h"
#include "base/memory.h"
#include "kernels/attention/attention_shape.h"
#include "platform/thread_pool.h"

namespace tessera {

inline constexpr int64_t kAttentionGranule = 32;  // keys: the depth of a tile

// Query rows processed together (32 of one head, or 16 of each of two heads that share keys and values), keys
// per step, and row blocks per task. At head size 128, q takes 8 KiB, scores 8 KiB, p 32 KiB and o 16 KiB: L1
// holds what a product reads again, keys and values stream from L2. Each step loads and stores o once.
inline constexpr int64_t kForwardRows = 32;
inline constexpr int64_t kForwardKeys = 128;
inline constexpr int64_t kForwardBlocks = 8;

// Keys per task of the backward pass, and queries taken at a time. Queries are packed once per task, dk and
// dv are loaded and stored once per block of queries, dq once per task. At head size 128, 512 keys and 256
// queries keep 1.6 MiB per thread in use, about 3/4 of an L2 of 2 MiB; if threads share a core, half as many
// of each keep 0.75 MiB. No sum depends on either.
struct BackwardBlocks {
  static constexpr int64_t kMaxKeys = 512;

  explicit BackwardBlocks(int64_t threads_per_core)
      : keys(threads_per_core > 1 ? kMaxKeys / 2 : kMaxKeys), queries(keys / 2) {}

  int64_t keys, queries;
  int64_t key_granules() const { return keys / kAttentionGranule; }
  int64_t query_granules() const { return queries / kAttentionGranule; }
};

// Hands out 64-byte aligned pieces of memory; only counts if it starts from null.
class AttentionCarver {
 public:
  explicit AttentionCarver(std::byte* memory) : memory_(memory) {}

  template <typename T>
  T* take(int64_t count) {
    T* piece = memory_ == nullptr ? nullptr : reinterpret_cast<T*>(memory_ + used_);
    used_ += round_up(count * static_cast<int64_t>(sizeof(T)), kCacheLineBytes);
    return piece;
  }
  int64_t used_bytes() const { return used_; }

 private:
  std::byte* memory_;
  int64_t used_ = 0;
};

// Sizes of the packed operands.
struct AmxAttentionSizes {
  AmxAttentionSizes(const AttentionShape& shape, int64_t num_tokens)
      : depth_tiles(round_up(shape.head_dim, 32) / 32),
        column_tiles(2 * depth_tiles),
        granules(round_up(num_tokens, kAttentionGranule) / kAttentionGranule) {}

  int64_t depth_tiles;   // of 32 along the head, zero-padded
  int64_t column_tiles;  // of 16 along the head
  int64_t granules;      // of 32 tokens

  int64_t padded_head() const { return depth_tiles * 32; }
  int64_t head_elements() const { return granules * kAttentionGranule * padded_head(); }  // per packed head
};

// Per thread in the forward pass. "pair": two tiles adjacent across the contraction.
struct ForwardBuffers {
  bf16* q;           // A pairs [depth tile]
  float* o;          // C tiles [depth tile][2 x 2]
  float* sums;       // [row][16 partial sums]
  float* reference;  // [row], in units of log2
  bf16* p[2];        // A pairs [key granule], for this step and the previous one
  float* scores[2];  // C tiles of 32 x 32 scores, for this step and the next

  void assign(AttentionCarver* carver, const AmxAttentionSizes& sizes) {
    q = carver->take<bf16>(kForwardRows * sizes.padded_head());
    o = carver->take<float>(kForwardRows * sizes.padded_head());
    sums = carver->take<float>(kForwardRows * 16);
    reference = carver->take<float>(kForwardRows);
    for (bf16*& step : p) step = carver->take<bf16>(kForwardRows * kForwardKeys);
    for (float*& buffer : scores) buffer = carver->take<float>(kForwardRows * kAttentionGranule);
  }
};

// All memory of a forward call.
struct ForwardScratch {
  // Rows [begin, end) of the sequence that starts at sequence_begin.
  struct Task {
    int32_t sequence_begin;
    int32_t begin;
    int32_t end;
  };

  ForwardScratch(std::byte* memory_begin, const AttentionShape& shape, int64_t num_tokens,
                 int64_t num_threads)
      : memory(memory_begin) {
    const AmxAttentionSizes sizes(shape, num_tokens);
    AttentionCarver carver(memory);
    tasks = carver.take<Task>(num_tokens);
    k = carver.take<bf16>(shape.num_key_value_heads * sizes.head_elements());
    v = carver.take<bf16>(shape.num_key_value_heads * sizes.head_elements());
    thread_offset = carver.used_bytes();
    ForwardBuffers().assign(&carver, sizes);
    thread_bytes = carver.used_bytes() - thread_offset;
    size_bytes = thread_offset + num_threads * thread_bytes;
  }
  // Buffers of the calling thread.
  ForwardBuffers thread_buffers(const AmxAttentionSizes& sizes) const {
    AttentionCarver carver(memory + thread_offset + ThreadPool::thread_index() * thread_bytes);
    ForwardBuffers buffers;
    buffers.assign(&carver, sizes);
    return buffers;
  }

  Task* tasks;
  bf16* k;  // B pairs of k^T [key-value head][granule][depth tile]
  bf16* v;  // B pairs of v [key-value head][depth tile][granule]
  int64_t thread_offset, thread_bytes, size_bytes;
  std::byte* memory;
};

// Per thread in the backward pass. "pair": two tiles adjacent across the contraction.
struct BackwardBuffers {
  explicit BackwardBuffers(const BackwardBlocks& of) : blocks(of) {}

  BackwardBlocks blocks;
  bf16 *k, *v;                         // A pairs of k and v [key granule][depth tile]
  bf16* k_transposed;                  // A pairs of k^T [depth tile][key granule]
  bf16 *q_transposed, *do_transposed;  // B pairs of q^T and do^T [query granule][depth tile]
  bf16 *q, *d_o;                       // B pairs of q and do [depth tile][query granule]
  float* scores[2];                    // C tiles of s^T and dp^T, 32 x 32 each, for this block and the next
  bf16 *p[2], *ds[2];                  // A pairs of p^T and ds^T [query granule], for two key granules
  bf16* ds_interleaved;                // B pairs of ds^T [query granule][key granule]
  bf16* rows;                          // 32 rows of q or do, stored in groups of 32 columns
  float *dk, *dv;                      // C tiles [key granule][depth tile][2 x 2]
  float* dq;           // C tiles of dq^T [query granule][depth tile][2 x 2], for a short sequence
  float *lse, *delta;  // [query], lse in units of log2

  void assign(AttentionCarver* carver, const AmxAttentionSizes& sizes) {
    const int64_t keys = blocks.keys * sizes.padded_head(), queries = blocks.queries * sizes.padded_head();
    for (bf16** operand : {&k, &v, &k_transposed}) *operand = carver->take<bf16>(keys);
    for (bf16** operand : {&q_transposed, &do_transposed, &q, &d_o}) *operand = carver->take<bf16>(queries);
    for (float*& block : scores) block = carver->take<float>(2 * kAttentionGranule * kAttentionGranule);
    for (bf16** weights : {&p[0], &p[1], &ds[0], &ds[1]}) {
      *weights = carver->take<bf16>(kAttentionGranule * blocks.queries);
    }
    ds_interleaved = carver->take<bf16>(blocks.keys * blocks.queries);
    rows = carver->take<bf16>(kAttentionGranule * sizes.padded_head());
    for (float** sums : {&dk, &dv}) *sums = carver->take<float>(keys);
    dq = carver->take<float>(queries);
    for (float** statistic : {&lse, &delta}) *statistic = carver->take<float>(blocks.queries);
  }
};

// All memory of a backward call.
struct BackwardScratch {
  // Keys [begin, min(begin + blocks.keys, sequence_end)) of the sequence [sequence_begin, sequence_end),
  // whose dq starts at `first_granule` of every head.
  struct Task {
    int32_t sequence_begin;
    int32_t sequence_end;
    int32_t begin;
    int32_t first_granule;
  };

  BackwardScratch(std::byte* memory_begin, const AttentionShape& shape, int64_t num_tokens,
                  const ThreadPool& pool)
      : blocks(pool.threads_per_core()),
        // A sequence has dq in shared memory if it is longer than a task, and then pads it by less than a
        // granule.
        dq_granules(num_tokens / kAttentionGranule + num_tokens / blocks.keys + 1),
        memory(memory_begin) {
    const AmxAttentionSizes sizes(shape, num_tokens);
    AttentionCarver carver(memory);
    tasks = carver.take<Task>(num_tokens);
    delta_HT = carver.take<float>(shape.num_heads * num_tokens);
    progress = carver.take<int32_t>(shape.num_heads * dq_granules);
    dq = carver.take<float>(shape.num_heads * dq_granules * kAttentionGranule * sizes.padded_head());
    thread_offset = carver.used_bytes();
    BackwardBuffers(blocks).assign(&carver, sizes);
    thread_bytes = carver.used_bytes() - thread_offset;
    size_bytes = thread_offset + pool.num_threads() * thread_bytes;
  }
  // Buffers of the calling thread.
  BackwardBuffers thread_buffers(const AmxAttentionSizes& sizes) const {
    AttentionCarver carver(memory + thread_offset + ThreadPool::thread_index() * thread_bytes);
    BackwardBuffers buffers(blocks);
    buffers.assign(&carver, sizes);
    return buffers;
  }
  // Makes the tasks of all sequences and returns how many: within a sequence in key order, the first keys of
  // all sequences first, because they are seen by the most queries and long tasks must not be left for the
  // end.
  int64_t make_tasks(std::span<const int32_t> cu_seqlens) const {
    int64_t count = 0;
    int32_t longest = 0;
    for (size_t n = 0; n + 1 < cu_seqlens.size(); ++n) {
      longest = std::max(longest, cu_seqlens[n + 1] - cu_seqlens[n]);
    }
    for (int32_t offset = 0; offset < longest; offset += static_cast<int32_t>(blocks.keys)) {
      int64_t first_granule = 0;
      for (size_t n = 0; n + 1 < cu_seqlens.size(); ++n) {
        const int32_t begin = cu_seqlens[n], end = cu_seqlens[n + 1];
        if (offset < end - begin) {
          tasks[count++] = {begin, end, begin + offset, static_cast<int32_t>(first_granule)};
        }
        if (end - begin > blocks.keys) {
          first_granule += round_up(end - begin, kAttentionGranule) / kAttentionGranule;
        }
      }
    }
    return count;
  }

  BackwardBlocks blocks;
  Task* tasks;
  float* delta_HT;
  int64_t dq_granules;  // per head
  int32_t* progress;    // [head][dq granule]: tasks that have added to the queries starting there
  float* dq;            // C tiles of dq^T [head][dq granule][depth tile][2 x 2]
  int64_t thread_offset, thread_bytes, size_bytes;
  std::byte* memory;
};

}  // namespace tessera
