// The order in which Hugging Face's Trainer reads rows with train_sampling_strategy group_by_length.
#pragma once

#include <cstdint>
#include <functional>
#include <random>
#include <span>
#include <vector>

namespace tessera {

// get_length_grouped_indices() of Transformers 5.24: a random permutation in groups of up to 50 times
// `group_rows` rows (fewer, if there would not be four of them), each sorted from long to short; the longest
// row of all comes first. `generator`: torch's of the CPU.
std::vector<int64_t> length_grouped_order(std::span<const int64_t> lengths, int64_t group_rows,
                                          std::mt19937* generator);

struct LengthGroups {
  std::function<int64_t(int64_t row)> row_length;
  // The number of evaluations before an epoch.
  std::function<int64_t(int64_t epoch)> evaluations_before;
};

// The order of an epoch. The Trainer draws it from torch's global generator, seeded once with `seed`, from
// which every epoch and every evaluation before it has drawn, too: the base seed of its loader, and an epoch
// its permutation.
std::vector<int64_t> length_grouped_epoch(std::span<const int64_t> lengths, int64_t group_rows, uint64_t seed,
                                          int64_t epoch, int64_t evaluations_before);

}  // namespace tessera
