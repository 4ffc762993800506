#include "train/parameters/adamw_state.h"

#include <algorithm>

namespace tessera {
namespace {

// The `count` elements of a moment from `state_begin` on.
template <typename T>
std::span<T> part_of(std::span<T> moment, int64_t state_begin, size_t count) {
  return moment.subspan(static_cast<size_t>(state_begin), count);
}

}  // namespace

void read_adamw_state(const AdamW& optimizer, StateKind kind, int64_t begin, int64_t state_begin,
                      std::span<float> values) {
  switch (kind) {
    case StateKind::kMaster:
      optimizer.read_master_alone(begin, state_begin, values);
      return;
    case StateKind::kExpAvg:
      std::ranges::copy(part_of(optimizer.exp_avg(), state_begin, values.size()), values.begin());
      return;
    case StateKind::kExpAvgSq:
      std::ranges::copy(part_of(optimizer.exp_avg_sq(), state_begin, values.size()), values.begin());
      return;
  }
}

void write_adamw_state(AdamW& optimizer, StateKind kind, int64_t begin, int64_t state_begin,
                       std::span<const float> values) {
  switch (kind) {
    case StateKind::kMaster:
      optimizer.write_master(begin, state_begin, values);
      return;
    case StateKind::kExpAvg:
      std::ranges::copy(values, part_of(optimizer.exp_avg(), state_begin, values.size()).begin());
      return;
    case StateKind::kExpAvgSq:
      std::ranges::copy(values, part_of(optimizer.exp_avg_sq(), state_begin, values.size()).begin());
      return;
  }
}

}  // namespace tessera
