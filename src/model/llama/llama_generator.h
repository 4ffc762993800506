#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "model/token_generator.h"
#include "model/trainable_model.h"

namespace tessera {

// Error(kBadConfig) for models other than LlamaModel.
class LlamaGenerator final : public TokenGenerator {
 public:
  // Allocates caches for `capacity` positions and buffers for prompts fed in chunks of max_chunk tokens.
  LlamaGenerator(TrainableModel& model, int64_t capacity, int64_t max_chunk = 512);
  ~LlamaGenerator() override;
  // The bytes the constructor would allocate: caches, buffers, logits. Does not allocate.
  static int64_t memory_bytes(const TrainableModel& model, int64_t capacity, int64_t max_chunk = 512);

  int64_t length() const override;
  void reset() override;
  std::span<const float> feed(std::span<const int32_t> ids) override;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace tessera
