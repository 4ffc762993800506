// Whether a kernel overwrites its output or adds to it.
#pragma once

namespace tessera {

enum class Update { kOverwrite, kAdd };

// The update of a weight matrix's gradient. The last call in a step can request its sum of squares: the
// product has every element at hand as it writes it.
struct WeightUpdate {
  WeightUpdate(Update how, double* sum_of_squares = nullptr)  // NOLINT(google-explicit-constructor)
      : mode(how), squares(sum_of_squares) {}

  Update mode;
  // The sum of squares of the final gradient is added here; null: not requested.
  double* squares;
};

}  // namespace tessera
