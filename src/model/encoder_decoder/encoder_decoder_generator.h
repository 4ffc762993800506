#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "model/token_generator.h"
#include "model/trainable_model.h"

namespace tessera {

// The first tokens fed are the source: the encoder reads them, and the logits are those of the target's first
// token. What is fed after that are tokens of the target.
class EncoderDecoderGenerator final : public TokenGenerator {
 public:
  // For sources and targets of at most `capacity` tokens each.
  EncoderDecoderGenerator(TrainableModel& model, int64_t capacity);
  ~EncoderDecoderGenerator() override;
  // The bytes the constructor would allocate. Does not allocate.
  static int64_t memory_bytes(const TrainableModel& model, int64_t capacity);

  int64_t length() const override;
  bool reads_source() const override { return true; }
  void reset() override;
  std::span<const float> feed(std::span<const int32_t> ids) override;

  struct Impl;

 private:
  std::unique_ptr<Impl> impl_;
};

}  // namespace tessera
