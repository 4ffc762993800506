// The interface through which a checkpoint takes and returns the state of a run (optim/state_tensor.h), by
// elements of a ParameterLayout's flat array.
#pragma once

#include <cstdint>
#include <functional>
#include <span>

#include "model/parameters.h"
#include "optim/state_file.h"
#include "optim/state_tensor.h"

namespace tessera {

// Fills the float32 values of the flat elements [begin, begin + values.size()), which the rank owns; called
// from several threads.
using StateSource = std::function<void(StateKind kind, int64_t begin, std::span<float> values)>;
// Calls body for the bytes of the same values as the checkpoint stores them in this part (StoredParts), of
// type `dtype`, from element `begin + done` on, and says where a file of the run has them as well. False,
// without a call, if they are not at hand in this form: then StateSource is.
using StoredSource =
    std::function<bool(size_t part, DType dtype, int64_t begin, int64_t count, const StoredBody& body)>;
// Receives such values; called from several threads for disjoint ranges.
using StateSink = std::function<void(StateKind kind, int64_t begin, std::span<const float> values)>;

// A parameter's shape as optimizers see it.
inline ParameterShape shape_of(const Parameter& parameter) {
  if (is_vector(parameter.kind)) return {};
  const bool is_hidden =
      parameter.kind != ParameterKind::kEmbedding && parameter.kind != ParameterKind::kLmHead;
  return {parameter.shape[0], parameter.shape[1], is_hidden};
}

}  // namespace tessera
