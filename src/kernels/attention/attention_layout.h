// The division of work and scratch memory in blocked attention; the same for every instruction set.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>

#include "base/error.h"
#include "base/memory.h"
#include "kernels/attention/attention_shape.h"
#include "platform/thread_pool.h"

namespace tessera {

// Tokens along either side of a block of scores. One side forms the columns of panels [depth, 64]: four
// AVX-512 vectors. Scores [64, 64] are 16 KiB, a panel 16 KiB at head size 64: the inputs of one product fit
// L1 (48 KiB).
inline constexpr int64_t kAttentionBlock = 64;

// Blocks of 64 columns that a task takes together, so that the float32 copies of the other side's rows are
// used twice.
inline constexpr int64_t kAttentionSlices = 2;
inline constexpr int64_t kAttentionTaskRows = kAttentionBlock * kAttentionSlices;

// Rows [begin, min(begin + kAttentionTaskRows, end)) of the sequence [sequence_begin, end), and the rows of
// the other side's sequence: the keys of queries, or the queries of keys. Both sequences end at the same
// position.
struct AttentionTask {
  int32_t sequence_begin;
  int32_t begin;
  int32_t end;
  int32_t other_begin;
  int32_t other_end;

  // Row r has the position of row r + shift() of the other side.
  int64_t shift() const { return other_end - end; }
};

// Rows [begin, begin + count) of a task, along the columns of its panels.
struct AttentionSlice {
  int64_t begin;
  int64_t count;
};

// Splits rows [begin, min(begin + kAttentionTaskRows, end)) into slices; returns how many.
inline int64_t split_slices(int64_t begin, int64_t end, AttentionSlice* slices) {
  int64_t count = 0;
  for (; count < kAttentionSlices && begin < end; ++count, begin += kAttentionBlock) {
    slices[count] = {begin, std::min(kAttentionBlock, end - begin)};
  }
  return count;
}

// Float32 memory of one thread. Panels are [E, 64], row blocks [64, E], scores [64, 64], statistics [64].
struct AttentionBuffers {
  float* panels[4][kAttentionSlices];
  float* rows[2];
  float* scores[2];
  float* slopes;  // like scores: derivatives of a soft cap; null without
  float* statistics[2][kAttentionSlices];

  // Only counts if `memory` is null. Returns the number of floats.
  int64_t assign(float* memory, const AttentionShape& shape) {
    const int64_t head_dim = shape.head_dim;
    int64_t used = 0;
    const auto take = [&](int64_t count) {
      float* piece = memory == nullptr ? nullptr : memory + used;
      used += count;
      return piece;
    };
    for (auto& kind : panels) {
      for (float*& panel : kind) panel = take(head_dim * kAttentionBlock);
    }
    for (float*& block : rows) block = take(head_dim * kAttentionBlock);
    for (float*& block : scores) block = take(kAttentionBlock * kAttentionBlock);
    slopes = shape.softcap == 0 ? nullptr : take(kAttentionBlock * kAttentionBlock);
    for (auto& kind : statistics) {
      for (float*& values : kind) values = take(kAttentionBlock);
    }
    return used;
  }
};

// Gradients of a position bias are summed in this many parts, whatever the number of threads.
inline constexpr int64_t kBiasParts = 16;

// The scratch memory of a call: tasks [T], delta [H, T], then the buffers of every thread, then the parts of
// the gradient of a position bias, [kBiasParts, H, buckets].
class AttentionScratchLayout {
 public:
  AttentionScratchLayout(std::byte* memory, const AttentionShape& shape, int64_t max_tokens)
      : memory_(memory), shape_(shape), max_tokens_(max_tokens) {}

  static int64_t size_bytes(const AttentionShape& shape, int64_t max_tokens, int64_t num_threads,
                            int64_t num_buckets = 0) {
    const AttentionScratchLayout layout(nullptr, shape, max_tokens);
    return layout.thread_offset(num_threads) +
           kBiasParts * shape.num_heads * num_buckets * static_cast<int64_t>(sizeof(float));
  }

  // Tasks of all sequences, in row order: every sequence from its first row on. `cu_others` starts those of
  // the other side.
  std::span<const AttentionTask> make_tasks(std::span<const int32_t> cu_seqlens,
                                            std::span<const int32_t> cu_others) const {
    auto* tasks = reinterpret_cast<AttentionTask*>(memory_);
    size_t count = 0;
    for (size_t n = 0; n + 1 < cu_seqlens.size(); ++n) {
      for (int64_t begin = cu_seqlens[n]; begin < cu_seqlens[n + 1]; begin += kAttentionTaskRows) {
        tasks[count++] = {cu_seqlens[n], static_cast<int32_t>(begin), cu_seqlens[n + 1], cu_others[n],
                          cu_others[n + 1]};
      }
    }
    return {tasks, count};
  }

  // [kBiasParts, H, buckets]
  float* bias_parts(int64_t num_threads) const {
    return reinterpret_cast<float*>(memory_ + thread_offset(num_threads));
  }

  float* delta_HT() const { return reinterpret_cast<float*>(memory_ + tasks_bytes()); }

  // Buffers of the calling thread.
  AttentionBuffers buffers() const {
    AttentionBuffers buffers;
    buffers.assign(reinterpret_cast<float*>(memory_ + thread_offset(ThreadPool::thread_index())), shape_);
    return buffers;
  }

 private:
  int64_t tasks_bytes() const {
    return round_up(max_tokens_ * static_cast<int64_t>(sizeof(AttentionTask)), kCacheLineBytes);
  }
  int64_t thread_offset(int64_t thread_index) const {
    const int64_t delta_bytes =
        round_up(shape_.num_heads * max_tokens_ * static_cast<int64_t>(sizeof(float)), kCacheLineBytes);
    AttentionBuffers buffers;
    const int64_t thread_bytes = buffers.assign(nullptr, shape_) * static_cast<int64_t>(sizeof(float));
    return tasks_bytes() + delta_bytes + thread_index * thread_bytes;
  }

  std::byte* memory_;
  AttentionShape shape_;
  int64_t max_tokens_;
};

// A query at position t sees the keys at positions s with t - before < s <= t + ahead.
struct AttentionReach {
  static constexpr int64_t kUnlimited = int64_t{1} << 40;  // no difference of positions reaches it

  int64_t before;
  int64_t ahead;

  static AttentionReach of(const AttentionShape& shape, bool causal = true) {
    const int64_t before = shape.sliding_window == 0 ? kUnlimited : shape.sliding_window;
    return {before, causal ? 0 : before - 1};
  }
};

// Marks the visible elements of a block of scores: row r, column c with lo + r <= c < hi + r. Both limits of
// what is visible move one column per row.
struct AttentionBand {
  int64_t lo;
  int64_t hi;

  // Rows are keys starting at position `key`, columns queries starting at position `query`.
  static AttentionBand keys_by_queries(int64_t key, int64_t query, const AttentionReach& reach) {
    return {key - query - reach.ahead, key - query + reach.before};
  }
  static AttentionBand queries_by_keys(int64_t query, int64_t key, const AttentionReach& reach) {
    return {query - key - reach.before + 1, query - key + reach.ahead + 1};
  }
  bool misses(int64_t num_rows, int64_t num_columns) const { return lo >= num_columns || hi + num_rows <= 1; }
  bool covers(int64_t num_rows, int64_t num_columns) const { return lo + num_rows <= 1 && hi >= num_columns; }
};

}  // namespace tessera
