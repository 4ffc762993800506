// Where a loss or gradient that is not finite comes from: looked for once a step has failed of it.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "comm/communicator.h"
#include "data/dataset.h"
#include "model/model.h"

namespace tessera {

// What a rank knows of its part of the step.
struct NotFiniteStep {
  std::span<const int64_t> rows;  // that it read
  bool loss_is_finite = true;     // of its own rows, in the step
  // A parameter in whose gradient, as far as the rank keeps it, an element is not finite; "" = none.
  std::string gradient;
};

// Collective. Repeats the forward pass of every row of the step, one by one, with the weights as they are,
// and says what comes of it, the same on every rank: rank and host, rows, and the part of the model where the
// first value is not finite; that the gradient alone is; or that nothing of it repeats itself, and which
// rank's memory or processor is to be suspected then. One line without a full stop. The model's activations
// must be reserved for the longest row.
std::string find_not_finite(Model& model, const Dataset& dataset, const NotFiniteStep& step,
                            Communicator& comm);

// Index of the first value that is not finite.
std::optional<int64_t> first_not_finite(ConstTensorView values);

}  // namespace tessera
