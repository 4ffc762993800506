#include "data/rows/length_order.h"

#include <algorithm>
#include <utility>

#include "data/rows/batch_plan.h"

namespace tessera {

std::vector<int64_t> length_grouped_order(std::span<const int64_t> lengths, int64_t group_rows,
                                          std::mt19937* generator) {
  const int64_t num_rows = std::ssize(lengths);
  const auto length_of = [&](int64_t row) { return lengths[static_cast<size_t>(row)]; };
  std::vector<int64_t> order = draw_torch_randperm(num_rows, generator);
  if (order.empty()) return order;
  const int64_t group = std::min(group_rows, num_rows);  // with more rows the order is the same
  const int64_t mega_batch = std::clamp<int64_t>(num_rows / group / 4, 1, 50) * group;
  int64_t first_of_longest = 0;
  for (int64_t begin = 0; begin < num_rows; begin += mega_batch) {
    const auto first = order.begin() + begin;
    std::stable_sort(first, order.begin() + std::min(num_rows, begin + mega_batch),
                     [&](int64_t a, int64_t b) { return length_of(a) > length_of(b); });
    if (length_of(*first) > length_of(order[static_cast<size_t>(first_of_longest)])) first_of_longest = begin;
  }
  std::swap(order[0], order[static_cast<size_t>(first_of_longest)]);
  return order;
}

std::vector<int64_t> length_grouped_epoch(std::span<const int64_t> lengths, int64_t group_rows, uint64_t seed,
                                          int64_t epoch, int64_t evaluations_before) {
  std::mt19937 generator(static_cast<uint32_t>(seed));
  const auto skip = [&](int64_t count) { generator.discard(static_cast<unsigned long long>(count)); };
  constexpr int64_t kBaseSeedDraws = 2;  // of 32 bits
  skip(epoch * draws_of_torch_randperm(std::ssize(lengths)));
  skip((epoch + 1 + evaluations_before) * kBaseSeedDraws);
  return length_grouped_order(lengths, group_rows, &generator);
}

}  // namespace tessera
