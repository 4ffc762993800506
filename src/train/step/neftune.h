// NEFTune: uniform noise on the embeddings during training (Jain et al., NEFTune: noisy embeddings improve
// instruction finetuning, 2023).
//
//   x_td += alpha / sqrt(L D) * u,   u uniform in [-1, 1)
//
// for hidden size D and length L of the token's sequence. As in Hugging Face's neftune_post_forward_hook,
// except that L does not count padding.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "data/dataset.h"
#include "tensor/packed_batch.h"

namespace tessera {

class NeftuneNoise {
 public:
  NeftuneNoise(double alpha, uint64_t seed);

  // Prepares the noise of step `step` for `batch`, which holds these rows of the dataset.
  void begin(int64_t step, std::span<const int64_t> rows, const Dataset& dataset, const PackedBatch& batch);
  // The noise of token `token` of that batch. Depends on seed, step, row and the token's position in the row
  // alone: ranks, threads and micro-batches do not matter. 0 for tokens that were added after the batch
  // (context/slice_batch.h). Thread-safe.
  void fill(int64_t token, std::span<float> noise_D) const;

 private:
  struct Token {
    uint64_t stream;    // of step and row
    uint64_t position;  // in the row
    double sequence_length;
  };
  double alpha_;
  uint64_t key_;
  std::vector<Token> tokens_;  // of the batch
};

}  // namespace tessera
