#include "data/rows/batch_plan.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <random>
#include <utility>

#include "base/error.h"
#include "base/rng.h"
#include "base/text.h"

namespace tessera {
namespace {

int64_t divide_rounding_up(int64_t numerator, int64_t denominator) {
  return numerator / denominator + (numerator % denominator != 0 ? 1 : 0);
}

// The cut of a step that is split evenly.
StepCut even_cut(const BatchPlanOptions& options) {
  return options.cut.value_or(StepCut{options.micro_batch_size, options.world_size});
}

// The positions of an epoch's rows, which lie part by part, such that the parts take turns in proportion.
std::vector<int64_t> even_order(const BatchPlanOptions& options) {
  std::vector<std::pair<double, int64_t>> places;
  for (const int64_t share : mixture_shares(options.mixture)) {
    for (int64_t i = 0; i < share; ++i)
      places.emplace_back((static_cast<double>(i) + 0.5) / static_cast<double>(share), std::ssize(places));
  }
  std::sort(places.begin(), places.end());
  std::vector<int64_t> order;
  for (const auto& [place, position] : places) order.push_back(position);
  return order;
}

constexpr int64_t kFirst64BitSize = std::numeric_limits<uint32_t>::max() / 20;

uint64_t mix_seed(uint64_t seed, size_t part, int64_t round) {
  return philox4x32(seed, part, static_cast<uint64_t>(round))[0];
}

}  // namespace

// at::mt19937 is the generator of the C++ standard, seeded with the low 32 bits.
std::vector<int64_t> internal::torch_randperm_32bit(int64_t n, std::mt19937* generator) {
  std::vector<int64_t> permutation(static_cast<size_t>(n));
  std::iota(permutation.begin(), permutation.end(), 0);
  for (int64_t i = 0; i < n - 1; ++i) {
    const int64_t z = static_cast<int64_t>((*generator)()) % (n - i);
    std::swap(permutation[static_cast<size_t>(i)], permutation[static_cast<size_t>(i + z)]);
  }
  return permutation;
}

std::vector<int64_t> internal::torch_randperm_64bit(int64_t n, std::mt19937* generator) {
  std::vector<int64_t> permutation(static_cast<size_t>(n));
  for (int64_t i = 0; i < n; ++i) {
    const uint64_t high = (*generator)();
    const uint64_t low = (*generator)();
    const uint64_t z = (high << 32 | low) % static_cast<uint64_t>(i + 1);
    permutation[static_cast<size_t>(i)] = permutation[z];
    permutation[z] = i;
  }
  return permutation;
}

std::vector<int64_t> draw_torch_randperm(int64_t n, std::mt19937* generator) {
  TESSERA_CHECK(n >= 0, "n={}", n);
  return n < kFirst64BitSize ? internal::torch_randperm_32bit(n, generator)
                             : internal::torch_randperm_64bit(n, generator);
}

std::vector<int64_t> torch_randperm(int64_t n, uint64_t seed) {
  std::mt19937 generator(static_cast<uint32_t>(seed));
  return draw_torch_randperm(n, &generator);
}

int64_t draws_of_torch_randperm(int64_t n) {
  return n < kFirst64BitSize ? std::max<int64_t>(0, n - 1) : 2 * n;
}

std::span<const int64_t> RowLists::operator[](int64_t index) const {
  const int64_t begin = starts_[static_cast<size_t>(index)];
  const int64_t end = starts_[static_cast<size_t>(index) + 1];
  return std::span(rows_).subspan(static_cast<size_t>(begin), static_cast<size_t>(end - begin));
}

void RowLists::clear() {
  rows_.clear();
  starts_.assign(1, 0);
}

void RowLists::merge(int64_t count) {
  TESSERA_CHECK(count >= 1, "count={}", count);
  size_t num_kept = 1;
  for (int64_t list = 0; list < size(); list += count) {
    starts_[num_kept++] = starts_[static_cast<size_t>(std::min(size(), list + count))];
  }
  starts_.resize(num_kept);
}

void RowLists::select(int64_t first, int64_t stride, RowLists* lists) const {
  TESSERA_CHECK(first >= 0 && stride >= 1 && lists != this, "first={} stride={}", first, stride);
  lists->clear();
  for (int64_t list = first; list < size(); list += stride) {
    for (const int64_t row : (*this)[list]) lists->push_back(row);
    lists->end_list();
  }
}

std::vector<int64_t> mixture_shares(const std::vector<MixturePart>& mixture) {
  if (mixture.size() == 1) return {mixture[0].num_rows};
  double rounds = std::numeric_limits<double>::infinity();  // rows per unit of weight
  for (const MixturePart& part : mixture)
    rounds = std::min(rounds, static_cast<double>(part.num_rows) / part.weight);
  std::vector<int64_t> shares;
  for (const MixturePart& part : mixture)
    shares.push_back(std::clamp<int64_t>(std::llround(part.weight * rounds), 1, part.num_rows));
  return shares;
}

int64_t accumulation_of_global_batch(int64_t global_batch_size, int64_t micro_batch_size,
                                     int64_t world_size) {
  TESSERA_CHECK(global_batch_size >= 1 && micro_batch_size >= 1 && world_size >= 1,
                "global_batch_size={} micro_batch_size={} world_size={}", global_batch_size, micro_batch_size,
                world_size);
  return divide_rounding_up(divide_rounding_up(global_batch_size, world_size), micro_batch_size);
}

int64_t global_batch_rows(const BatchPlanOptions& options) {
  int64_t rows = 1;
  const auto multiply = [&rows](const char* name, int64_t factor) {
    if (factor < 1) fail(ExitCode::kBadConfig, "{}: expected at least 1, found {}", name, factor);
    if (__builtin_mul_overflow(rows, factor, &rows)) {
      fail(ExitCode::kBadConfig, "{} {}: the global batch does not fit in 64 bits; use a smaller one", name,
           factor);
    }
  };
  multiply("per_device_train_batch_size", options.micro_batch_size);
  multiply("gradient_accumulation_steps", options.gradient_accumulation_steps);
  multiply("world size", options.world_size);
  if (!options.global_batch_size) return rows;
  if (*options.global_batch_size < 1) {
    fail(ExitCode::kBadConfig, "global_batch_size: expected at least 1, found {}",
         *options.global_batch_size);
  }
  return *options.global_batch_size;
}

int64_t micro_batches_of_rank(const BatchPlanOptions& options) {
  if (!options.cut) return options.gradient_accumulation_steps;
  return accumulation_of_global_batch(global_batch_rows(options), options.cut->micro_batch_size,
                                      options.cut->world_size);
}

int64_t micro_batch_rows(const BatchPlanOptions& options) {
  if (!options.global_batch_size && !options.cut) return options.micro_batch_size;
  const StepCut cut = even_cut(options);
  const int64_t of_rank =
      divide_rounding_up(global_batch_rows(options), options.whole_micro_batches ? 1 : cut.world_size);
  return divide_rounding_up(of_rank, divide_rounding_up(of_rank, cut.micro_batch_size));
}

std::string few_rows_warning(const BatchPlanOptions& options, std::string_view more_rows) {
  const int64_t needed = global_batch_rows(options);
  if (options.num_rows >= needed) return "";
  const std::string reason =
      options.global_batch_size
          ? "global_batch_size"
          : fmt::format("batch size {} x accumulation {} x world size {}", options.micro_batch_size,
                        options.gradient_accumulation_steps, options.world_size);
  return fmt::format(
      "the dataset has {}, one step takes {} ({}): every epoch is a single step of fewer rows; {}give more "
      "data, or lower {} for more steps",
      count_of(options.num_rows, "row"), needed, reason, more_rows,
      options.global_batch_size ? "global_batch_size" : "the batch size or gradient_accumulation_steps");
}

BatchPlan::BatchPlan(const BatchPlanOptions& options)
    : options_(options), is_mixture_(options.mixture.size() > 1) {
  const int64_t step_rows = global_batch_rows(options);
  batch_rows_ = options.global_batch_size ? step_rows : options.micro_batch_size * options.world_size;
  batches_per_step_ = options.global_batch_size ? 1 : options.gradient_accumulation_steps;
  batches_per_epoch_ =
      options.drop_last ? options.num_rows / batch_rows_ : divide_rounding_up(options.num_rows, batch_rows_);
  if (batches_per_epoch_ < 1) {
    fail(ExitCode::kBadData, "the dataset has {}, {} ({}): give more data or a smaller batch size",
         count_of(options.num_rows, "row"),
         options.drop_last ? fmt::format("with dataloader_drop_last a batch takes {}", batch_rows_)
                           : fmt::format("a batch takes up to {}", batch_rows_),
         options.global_batch_size
             ? "global_batch_size"
             : fmt::format("batch size {} x world size {}", options.micro_batch_size, options.world_size));
  }
}

int64_t BatchPlan::steps_per_epoch() const {
  return divide_rounding_up(batches_per_epoch_, batches_per_step_);
}

int64_t BatchPlan::steps_for_epochs(double num_train_epochs) const {
  const double steps = std::ceil(num_train_epochs * static_cast<double>(steps_per_epoch()));
  if (!(steps >= 0 && steps < 0x1p62)) {
    fail(ExitCode::kBadConfig, "num_train_epochs: expected a number of at least 0, found {}",
         num_train_epochs);
  }
  return static_cast<int64_t>(steps);
}

double BatchPlan::epoch_after(int64_t step) const {
  const int64_t epoch = step / steps_per_epoch();
  const int64_t batches = step % steps_per_epoch() * batches_per_step_;
  return static_cast<double>(epoch) + static_cast<double>(batches) / static_cast<double>(batches_per_epoch_);
}

int64_t BatchPlan::row_at(int64_t epoch, int64_t position) const {
  if (options_.supply != nullptr) return supplied_row(position);
  const int64_t index = position % options_.num_rows;
  if (!options_.shuffle && !is_mixture_) return index;
  if (cached_epoch_ != epoch) {
    rows_ = order_of_epoch(epoch);
    cached_epoch_ = epoch;
  }
  return rows_[static_cast<size_t>(index)];
}

std::vector<int64_t> BatchPlan::order_of_epoch(int64_t epoch) const {
  std::vector<int64_t> mixed;
  if (is_mixture_) mixed = mixed_rows(epoch);
  const auto row_of = [&](int64_t at) { return is_mixture_ ? mixed[static_cast<size_t>(at)] : at; };
  std::vector<int64_t> order;
  if (options_.length_groups) {
    std::vector<int64_t> lengths;
    for (int64_t at = 0; at < options_.num_rows; ++at)
      lengths.push_back(options_.length_groups->row_length(row_of(at)));
    order = length_grouped_epoch(
        lengths,
        options_.global_batch_size.value_or(options_.micro_batch_size * options_.gradient_accumulation_steps),
        options_.seed, epoch, options_.length_groups->evaluations_before(epoch));
  } else {
    order = options_.shuffle ? torch_randperm(options_.num_rows, options_.seed + static_cast<uint64_t>(epoch))
                             : even_order(options_);
  }
  for (int64_t& row : order) row = row_of(row);
  return order;
}

int64_t BatchPlan::supplied_row(int64_t position) const {
  const RowSupply& supply = *options_.supply;
  const int64_t block_rows = supply.block_rows();
  std::optional<int64_t> num_rows = supply.num_rows();
  if (!num_rows && position % block_rows >= supply.wait_for_block(position / block_rows)) {
    num_rows = supply.num_rows();
    if (!num_rows) {
      fail(ExitCode::kBadData,
           "the rows that are fed end before row {} of the {} that the run takes: feed more, beginning again "
           "with the first one, or lower max_steps",
           position + 1, options_.num_rows);
    }
  }
  const int64_t epoch = num_rows ? position / *num_rows : 0;
  const int64_t row = num_rows ? position % *num_rows : position;
  if (!options_.shuffle) return row;
  const int64_t block = row / block_rows;
  if (cached_epoch_ != epoch || cached_block_ != block) {
    // Not the seed of another epoch's or block's order.
    rows_ = torch_randperm(supply.wait_for_block(block),
                           mix_seed(options_.seed, static_cast<size_t>(epoch), block));
    cached_epoch_ = epoch;
    cached_block_ = block;
  }
  return block * block_rows + rows_[static_cast<size_t>(row % block_rows)];
}

std::vector<int64_t> BatchPlan::mixed_rows(int64_t epoch) const {
  const std::vector<int64_t> shares = mixture_shares(options_.mixture);
  std::vector<int64_t> rows;
  rows.reserve(static_cast<size_t>(options_.num_rows));
  int64_t part_begin = 0;
  for (size_t part = 0; part < shares.size(); ++part) {
    const int64_t num_rows = options_.mixture[part].num_rows;
    int64_t round = -1;  // of the rows of this part; an epoch has parts of two at most
    std::vector<int64_t> order;
    for (int64_t i = epoch * shares[part]; i < (epoch + 1) * shares[part]; ++i) {
      if (options_.shuffle && i / num_rows != round) {
        round = i / num_rows;
        // Not the seed of any epoch's own order.
        order = torch_randperm(num_rows, mix_seed(options_.seed, part, round));
      }
      const int64_t at = i % num_rows;
      rows.push_back(part_begin + (options_.shuffle ? order[static_cast<size_t>(at)] : at));
    }
    part_begin += num_rows;
  }
  return rows;
}

void BatchPlan::rows_of_step(int64_t step, RowLists* micro_batches) const {
  TESSERA_CHECK(step >= 0, "step={}", step);
  const int64_t epoch = step / steps_per_epoch();
  const int64_t first_batch = step % steps_per_epoch() * batches_per_step_;
  const int64_t num_batches = std::min(batches_per_step_, batches_per_epoch_ - first_batch);
  int64_t position = first_batch * batch_rows_;
  micro_batches->clear();
  if (options_.global_batch_size) {
    cut_evenly(epoch, position, std::min(options_.num_rows, position + batch_rows_), micro_batches);
    return;
  }
  // One rank takes the epoch's short last batch as is; several ranks wrap around to fill it up.
  const int64_t end = options_.world_size == 1 ? options_.num_rows : std::numeric_limits<int64_t>::max();
  if (options_.cut) {
    cut_evenly(epoch, position, std::min(end, position + num_batches * batch_rows_), micro_batches);
    return;
  }
  for (int64_t i = 0; i < num_batches * options_.world_size; ++i) {
    const int64_t batch_end = std::min(end, position + options_.micro_batch_size);
    for (; position < batch_end; ++position) micro_batches->push_back(row_at(epoch, position));
    micro_batches->end_list();
  }
}

void BatchPlan::cut_evenly(int64_t epoch, int64_t begin, int64_t end, RowLists* micro_batches) const {
  const int64_t num_rows = end - begin;
  const int64_t world_size = even_cut(options_).world_size;
  const int64_t num_lists =
      world_size * accumulation_of_global_batch(num_rows, micro_batch_rows(options_), world_size);
  const int64_t num_parts =
      options_.whole_micro_batches ? divide_rounding_up(num_rows, micro_batch_rows(options_)) : num_lists;
  int64_t position = begin;
  for (int64_t list = 0; list < num_lists; ++list) {
    const int64_t part_rows = num_rows / num_parts + (list < num_rows % num_parts ? 1 : 0);
    const int64_t list_end = position + (list < num_parts ? part_rows : 0);
    for (; position < list_end; ++position) micro_batches->push_back(row_at(epoch, position));
    micro_batches->end_list();
  }
}

std::vector<std::vector<int64_t>> BatchPlan::rows_of_step(int64_t step) const {
  RowLists lists;
  rows_of_step(step, &lists);
  std::vector<std::vector<int64_t>> micro_batches;
  for (int64_t i = 0; i < lists.size(); ++i) micro_batches.emplace_back(lists[i].begin(), lists[i].end());
  return micro_batches;
}

}  // namespace tessera
