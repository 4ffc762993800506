// Tells models apart by the values of their weights, whatever files, shards and order these are in.
#pragma once

#include <cstdint>
#include <span>

#include "base/float_types.h"
#include "model/parameters.h"

namespace tessera {

// Sums modulo 2^64 over all elements, each times a factor that its parameter's name and its place in the
// parameter decide: one element that changes always changes them, and the order of reading does not matter.
struct ValueSums {
  uint64_t exact = 0;
  uint64_t as_bf16 = 0;  // of the values rounded to nearest, ties to even
  uint64_t as_f16 = 0;

  // Elements of `parameter` from `begin` on.
  void add(const Parameter& parameter, int64_t begin, std::span<const float> values);
  void add(const Parameter& parameter, int64_t begin, std::span<const bf16> values);
  ValueSums& operator+=(const ValueSums& other);
  bool operator==(const ValueSums&) const = default;
};

// Whether they are of one model: of the same values, or one of them saved again as BF16 or F16.
bool same_model(const ValueSums& a, const ValueSums& b);

}  // namespace tessera
