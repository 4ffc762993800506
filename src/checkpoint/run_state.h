// The training state that a checkpoint stores per element of a ParameterLayout's flat array: a float32 master
// weight and Adam's two moments.
#pragma once

#include <cstdint>
#include <functional>
#include <span>

namespace tessera {

enum class StateKind {
  kMaster,    // float32 master weight
  kExpAvg,    // first moment
  kExpAvgSq,  // second moment
};

// Fills the float32 values of the flat elements [begin, begin + values.size()), which the rank owns; called
// from several threads.
using StateSource = std::function<void(StateKind kind, int64_t begin, std::span<float> values)>;
// Receives such values; called from several threads for disjoint ranges.
using StateSink = std::function<void(StateKind kind, int64_t begin, std::span<const float> values)>;

}  // namespace tessera
