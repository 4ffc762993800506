// Which rows make up which optimizer step. Depends on the data, the seed and the step only, never on the
// number of ranks or threads.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "data/dataset.h"
#include "tensor/packed_batch.h"

namespace tessera {

// The permutation torch.randperm(n) gives for a generator seeded with `seed` (mt19937), which is the order
// Hugging Face's Trainer reads a dataset in, with seed + epoch. n < 2^32 / 20 as in torch's 32-bit branch,
// else its 64-bit one.
std::vector<int64_t> torch_randperm(int64_t n, uint64_t seed);

struct BatchPlanOptions {
  int64_t num_rows;
  int64_t micro_batch_size;  // per_device_train_batch_size
  int64_t gradient_accumulation_steps;
  int64_t world_size = 1;
  bool shuffle = true;
  uint64_t seed = 42;
  bool drop_last = false;  // dataloader_drop_last
};

// Epochs and steps as in Hugging Face's Trainer: the loader has ceil(rows / (micro batch * world)) batches
// per epoch (floor with drop_last), an optimizer step takes gradient_accumulation_steps of them, the last one
// of an epoch the rest.
class BatchPlan {
 public:
  explicit BatchPlan(const BatchPlanOptions& options);

  int64_t steps_per_epoch() const;
  // ceil(epochs * steps_per_epoch).
  int64_t steps_for_epochs(double num_train_epochs) const;
  // Progress after `step` steps, in epochs, as Trainer logs it.
  double epoch_after(int64_t step) const;
  // Rows of step k (0-based) as micro-batches, each a list of row numbers.
  std::vector<std::vector<int64_t>> rows_of_step(int64_t step) const;

 private:
  BatchPlanOptions options_;
  int64_t batches_per_epoch_;
  // The permutation of the epoch asked for last.
  mutable int64_t cached_epoch_ = -1;
  mutable std::vector<int64_t> permutation_;
};

// Joins rows to a micro-batch: ids, positions, shifted targets, cu_seqlens. Reuses the vectors' memory.
void make_packed_batch(const Dataset& dataset, std::span<const int64_t> rows, PackedBatch* batch);

}  // namespace tessera
