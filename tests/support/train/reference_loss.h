// For tests of runs: what their losses are by the plainly written model.
#pragma once

#include <algorithm>
#include <filesystem>
#include <vector>

#include "support/reference_model.h"
#include "support/train/train_test_support.h"

namespace tessera {

// Sum of token losses and targets of rows under the weights of a model folder, every row computed as it is.
template <typename Real>
class ReferenceLoss {
 public:
  explicit ReferenceLoss(const std::filesystem::path& model_folder)
      : model_(read_model_config(model_folder)) {
    for (const auto& [name, values] : read_tensors(model_folder)) {
      std::copy(values.begin(), values.end(), model_.weights().begin() + model_.layout().at(name).offset);
    }
  }
  double of(const std::vector<TokenRow>& rows, double label_smoothing = 0) const {
    double sum = 0;
    int64_t num_targets = 0;
    for (const TokenRow& row : rows) {
      sum += static_cast<double>(
          model_.loss_sum(row.ids, row.labels, static_cast<Real>(label_smoothing), &num_targets));
    }
    return sum / static_cast<double>(num_targets);
  }

 private:
  ReferenceModel<Real> model_;
};

}  // namespace tessera
