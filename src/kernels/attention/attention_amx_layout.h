// How attention on AMX splits its work and its scratch memory.
//
// Keys and values are packed for the whole call, in granules of 32 tokens counted from token 0 of the call,
// whatever the sequences: there is no padding between sequences, the few keys of a neighbour in the first and
// the last granule of a sequence are masked.
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

// Queries of one task in row tiles of 16: one head of 64 rows, two heads of 32 or four heads of 16 that share
// their keys and values. Float32 scores and sums [64, 128] are 32 KiB each, within L2 (and mostly L1).
inline constexpr int64_t kForwardRowTiles = 4;
inline constexpr int64_t kForwardRows = kForwardRowTiles * 16;
inline constexpr int64_t kForwardKeys = 128;  // of one step

// Hands out 64-byte aligned pieces of memory; counts only when it starts from null.
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

  int64_t depth_tiles;   // of 32 along the head, padded with zeros
  int64_t column_tiles;  // of 16 along the head
  int64_t granules;      // of 32 tokens

  int64_t padded_head() const { return depth_tiles * 32; }
  int64_t head_elements() const {
    return granules * kAttentionGranule * padded_head();
  }  // of one packed head
};

// Of one thread in the forward pass.
struct ForwardBuffers {
  bf16* q;           // A tiles [row tile][depth tile]
  float* o;          // C tiles [row tile][column tile]
  float* scores[2];  // C tiles [row tile][key tile], of this step and of the next
  bf16* p[2];        // A tiles [row tile][granule], of this step and of the one before
  float* sums[2];    // [row][16 partial sums], after this step and before it
  float* reference;  // [row], in units of log2
  float* shrink;     // [row]

  void assign(AttentionCarver* carver, const AmxAttentionSizes& sizes) {
    constexpr int64_t kScores = kForwardRows * kForwardKeys;
    q = carver->take<bf16>(kForwardRows * sizes.padded_head());
    o = carver->take<float>(kForwardRows * sizes.padded_head());
    for (float*& buffer : scores) buffer = carver->take<float>(kScores);
    for (bf16*& buffer : p) buffer = carver->take<bf16>(kScores);
    for (float*& buffer : sums) buffer = carver->take<float>(kForwardRows * 16);
    reference = carver->take<float>(kForwardRows);
    shrink = carver->take<float>(kForwardRows);
  }
};

// All memory of a forward call.
struct ForwardScratch {
  // Rows [begin, begin + 64 / heads) of the sequence [sequence_begin, sequence_end).
  struct Task {
    int32_t sequence_begin;
    int32_t sequence_end;
    int32_t begin;
  };

  ForwardScratch(std::byte* memory, const AttentionShape& shape, int64_t num_tokens, int64_t num_threads) {
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
  // Of the calling thread.
  ForwardBuffers thread_buffers(std::byte* memory, const AmxAttentionSizes& sizes) const {
    AttentionCarver carver(memory + thread_offset + ThreadPool::thread_index() * thread_bytes);
    ForwardBuffers buffers;
    buffers.assign(&carver, sizes);
    return buffers;
  }

  Task* tasks;
  bf16* k;  // B tiles of k^T [key-value head][key tile][depth tile]
  bf16* v;  // B tiles of v [key-value head][granule][column tile]
  int64_t thread_offset, thread_bytes, size_bytes;
};

}  // namespace tessera
