#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "model/trainable_model.h"

namespace tessera {

// Token-by-token generation with a key-value cache; weights must be bound as whole arrays. One sequence.
// Error(kBadConfig) for families other than Llama.
class Generator {
 public:
  // Allocates caches for `capacity` positions and buffers for prompts fed in chunks of max_chunk tokens.
  Generator(TrainableModel& model, int64_t capacity, int64_t max_chunk = 512);
  ~Generator();
  // The bytes the constructor would allocate: caches, buffers, logits. Does not allocate.
  static int64_t memory_bytes(const TrainableModel& model, int64_t capacity, int64_t max_chunk = 512);

  int64_t length() const;
  void reset();
  // Appends tokens and returns the logits [V] of the last one, valid until the next call. Exceeding the
  // capacity is an Error(kBadConfig).
  std::span<const float> feed(std::span<const int32_t> ids);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace tessera
