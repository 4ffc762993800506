// Whether a kernel replaces what its output holds or adds to it.
#pragma once

namespace tessera {

enum class Update { kOverwrite, kAdd };

// What becomes of the gradient of a weight matrix. Whoever calls for the last time in a step can ask for its
// sum of squares: the product has every element at hand as it writes it.
struct WeightUpdate {
  WeightUpdate(Update how, double* sum_of_squares = nullptr)  // NOLINT(google-explicit-constructor)
      : mode(how), squares(sum_of_squares) {}

  Update mode;
  // The sum of squares of the gradient as the call leaves it is added here; null: not wanted.
  double* squares;
};

}  // namespace tessera
