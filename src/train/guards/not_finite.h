// Finds where a non-finite loss or gradient comes from, once a step has failed because of it.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "comm/communicator.h"
#include "context/context_rank.h"
#include "data/dataset.h"
#include "model/trainable_model.h"

namespace tessera {

// A rank's view of its part of the step.
struct NotFiniteStep {
  int64_t step;                   // from 0
  std::span<const int64_t> rows;  // read by this rank
  bool loss_is_finite = true;     // of its own rows in the step
  // A parameter with a non-finite element in the part of its gradient that this rank keeps; "" = none.
  std::string gradient;
};

// Collective. Repeats the forward pass of every row of the step, one by one, with the current weights, and
// reports the finding, the same on every rank: rank and host, rows, and the part of the model with the first
// non-finite value; that only the gradient is non-finite; or that it does not happen again, and which rank's
// memory or processor to suspect. One line without a full stop. The model's activations must be reserved for
// the longest row.
std::string find_not_finite(TrainableModel& model, const Dataset& dataset, const NotFiniteStep& step,
                            Communicator& comm, ContextRank* context);

}  // namespace tessera
