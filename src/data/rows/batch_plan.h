// Decides which rows make up each optimizer step. Depends only on the data, the seed, the global batch and
// the step, never on the number of threads or on how micro-batches are dealt to ranks.
#pragma once

#include <cstdint>
#include <optional>
#include <random>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "data/dataset.h"
#include "data/row_supply.h"
#include "data/rows/length_order.h"
#include "tensor/packed_batch.h"

namespace tessera {

// The permutation that torch.randperm(n) returns on the CPU for a generator seeded with `seed` (mt19937, low
// 32 bits). Hugging Face's Trainer reads a dataset in this order, with seed + epoch. n < 2^32 / 20 takes
// torch's 32-bit branch, larger n its 64-bit one. Source: pytorch, aten/src/ATen/native/TensorFactories.cpp,
// randperm_cpu.
std::vector<int64_t> torch_randperm(int64_t n, uint64_t seed);
// The permutation from a generator that may have been used before.
std::vector<int64_t> draw_torch_randperm(int64_t n, std::mt19937* generator);
// Numbers of 32 bits that it draws.
int64_t draws_of_torch_randperm(int64_t n);

namespace internal {
// The two branches, for any n >= 0.
std::vector<int64_t> torch_randperm_32bit(int64_t n, std::mt19937* generator);
std::vector<int64_t> torch_randperm_64bit(int64_t n, std::mt19937* generator);
}  // namespace internal

// Lists of row numbers stored back to back, so that refilling allocates nothing.
class RowLists {
 public:
  int64_t size() const { return std::ssize(starts_) - 1; }
  std::span<const int64_t> operator[](int64_t index) const;
  std::span<const int64_t> all_rows() const { return rows_; }

  void clear();
  void push_back(int64_t row) { rows_.push_back(row); }
  // Makes the rows pushed since the last list (maybe none) a list.
  void end_list() { starts_.push_back(std::ssize(rows_)); }
  // Joins every `count` consecutive lists into one; the last group may be smaller.
  void merge(int64_t count);
  // Copies lists first, first + stride, ... to *lists, a different object, reusing its memory.
  void select(int64_t first, int64_t stride, RowLists* lists) const;

 private:
  std::vector<int64_t> rows_;
  std::vector<int64_t> starts_ = {0};  // start of every list, then the end of the last
};

// The split of a step's rows.
struct StepCut {
  int64_t micro_batch_size;  // at most
  int64_t world_size;
};

// Rows of the parts of a mixture that an epoch takes: in proportion to the weights, as many as there are
// until one part is used up, and at least one of each. All rows of a single part.
std::vector<int64_t> mixture_shares(const std::vector<MixturePart>& mixture);

struct BatchPlanOptions {
  int64_t num_rows;          // of an epoch
  int64_t micro_batch_size;  // per_device_train_batch_size
  int64_t gradient_accumulation_steps;
  int64_t world_size = 1;
  // Rows per step for any number of ranks; micro_batch_size is then an upper bound. If unset, the product of
  // the three settings above.
  std::optional<int64_t> global_batch_size = {};
  bool shuffle = true;
  uint64_t seed = 42;
  bool drop_last = false;  // dataloader_drop_last
  // Every step keeps the rows given by the settings above, but they are split anew for a different set of
  // ranks: in order, into as many micro-batches of equal size (+-1) as `cut` requires.
  std::optional<StepCut> cut = {};
  // A micro-batch has a loss of its own: a step has those of one rank, which go to the ranks whole.
  bool whole_micro_batches = false;
  // The parts of the dataset; empty, or num_rows is the sum of their shares. An epoch continues in a part
  // where the last one ended, and restarts it, reordered if they shuffle, once all its rows were taken.
  std::vector<MixturePart> mixture = {};
  // Rows of similar length follow each other, in the order drawn from `seed`.
  std::optional<LengthGroups> length_groups = {};
  // Rows that appear while they are used; num_rows is then the rows of the whole run. They come in the order
  // of the blocks, each shuffled separately, over and over, without ends of epochs.
  const RowSupply* supply = nullptr;
};

// Micro-batches of at most micro_batch_size rows that each of world_size ranks needs for a step of
// global_batch_size rows: ceil(global_batch_size / (micro_batch_size * world_size)).
int64_t accumulation_of_global_batch(int64_t global_batch_size, int64_t micro_batch_size, int64_t world_size);

// Micro-batches of a rank in a full step.
int64_t micro_batches_of_rank(const BatchPlanOptions& options);

// Rows in a full optimizer step: global_batch_size if set, otherwise micro_batch_size *
// gradient_accumulation_steps * world_size. Error(kBadConfig) if a factor is not positive or the product
// overflows.
int64_t global_batch_rows(const BatchPlanOptions& options);

// Rows of the largest micro-batch: micro_batch_size, or fewer if steps are split evenly.
int64_t micro_batch_rows(const BatchPlanOptions& options);

// Says that the dataset has fewer rows than one full step takes, so that every epoch is a single short step;
// "" if it has enough. `more_rows` is advice, "" or ending in ", ".
std::string few_rows_warning(const BatchPlanOptions& options, std::string_view more_rows = "");

// Epochs and steps as in Hugging Face's Trainer: the loader of each rank has ceil(rows / (micro batch *
// world)) batches per epoch (floor with drop_last), an optimizer step takes gradient_accumulation_steps of
// them, and the last step of an epoch takes the rest. With several ranks and without drop_last, the last
// batches of an epoch are filled up with rows from the epoch's start, so that all ranks have equally many
// rows (accelerate's even_batches); with one rank no row repeats within an epoch.
//
// With global_batch_size N the rows are those of one rank with micro-batches of N rows: a step takes one of
// them, and no row repeats within an epoch. The rows of a step are split, in order, into micro-batches of
// equal size (+-1), as many as ranks and micro_batch_size require; some are empty if there are fewer rows
// than micro-batches.
class BatchPlan {
 public:
  // Error(kBadConfig) as global_batch_rows(); Error(kBadData) if an epoch has no batch at all.
  explicit BatchPlan(const BatchPlanOptions& options);

  int64_t batches_per_epoch() const { return batches_per_epoch_; }  // per rank, or of N rows
  int64_t steps_per_epoch() const;
  // ceil(epochs * steps_per_epoch).
  int64_t steps_for_epochs(double num_train_epochs) const;
  // Progress after `step` steps, in epochs, as Trainer logs it: whole epochs plus batches taken / batches per
  // epoch.
  double epoch_after(int64_t step) const;
  // Rows of step k (0-based) as micro-batches, each a list of row numbers, in the order of the epoch: the
  // micro-batch of accumulation a on rank r is number a * world_size + r. Not thread-safe: caches the epoch's
  // permutation.
  std::vector<std::vector<int64_t>> rows_of_step(int64_t step) const;
  // Writes them into *micro_batches, reusing its memory.
  void rows_of_step(int64_t step, RowLists* micro_batches) const;

 private:
  // The row at `position` of `epoch`; positions wrap around at num_rows.
  int64_t row_at(int64_t epoch, int64_t position) const;

  // The row at every position of an epoch, if they are not in file order.
  std::vector<int64_t> order_of_epoch(int64_t epoch) const;
  // The rows of the mixture in `epoch`, part by part.
  std::vector<int64_t> mixed_rows(int64_t epoch) const;

  // The row at a position of the run.
  int64_t supplied_row(int64_t position) const;

  // The rows at positions [begin, end) of `epoch`.
  void cut_evenly(int64_t epoch, int64_t begin, int64_t end, RowLists* micro_batches) const;

  BatchPlanOptions options_;
  int64_t batch_rows_;        // per loader batch, all ranks together
  int64_t batches_per_step_;  // loader batches
  int64_t batches_per_epoch_;
  bool is_mixture_;
  // The rows of the most recently requested epoch in order, unless they are all in file order.
  mutable int64_t cached_epoch_ = -1;
  mutable int64_t cached_block_ = -1;  // of a supply, in that epoch
  mutable std::vector<int64_t> rows_;
};

// Packs rows into a micro-batch: ids, positions, shifted targets, cu_seqlens. Reuses the vectors' memory. If
// the rows are sources with targets, all sources come first, then all targets without their last token. An
// encoder's rows have their targets in place; those without labels are masked as the step says, from 0, or
// kNoStep (token_masks.h).
void make_packed_batch(const Dataset& dataset, std::span<const int64_t> rows, int64_t step,
                       PackedBatch* batch);

}  // namespace tessera
