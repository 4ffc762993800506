// Where an optimizer finds its state in a checkpoint that another one may have written.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "checkpoint/checkpoint_catalog.h"
#include "model/parameters.h"
#include "optim/state_tensor.h"

namespace tessera {

// Values of a tensor for a parameter that the optimizer needs.
int64_t num_values_of(const StateTensor& tensor, const Parameter& parameter);

// Where those values are stored.
struct StateOrigin {
  size_t part;           // of the catalog's
  bool is_mean = false;  // they are means of the values stored, over the rows or columns of the parameter
};
// The tensor itself, or the one from which it can be converted; nullopt if neither has enough values.
std::optional<StateOrigin> find_origin(const CheckpointCatalog& catalog, const Parameter& parameter,
                                       const StateTensor& tensor);

// Error(kBadConfig) if values that the optimizer needs have no origin; names what lacks, and the forms of
// optimizers (--optim) that find all they need.
void check_origins(const CheckpointCatalog& catalog, const ParameterLayout& layout, StateTensors tensors);

// Describes conversions and omissions: "exp_avg from F32 to BF16 (rounded to 8 significant bits), without
// exp_avg_sq"; "" = none.
std::string conversion_text(const CheckpointCatalog& catalog, const ParameterLayout& layout,
                            StateTensors tensors);

// The means of the rows and columns of a matrix. Sums are in double, in the order of the elements, so that
// they do not depend on how the elements are divided among calls.
class MatrixMeans {
 public:
  MatrixMeans(int64_t rows, int64_t columns);

  // The next elements, row by row.
  void add(std::span<const float> values);
  // Once all have been added.
  std::vector<float> of_rows() const;
  std::vector<float> of_columns() const;

 private:
  int64_t num_columns() const { return std::ssize(column_sums_); }

  std::vector<double> row_sums_, column_sums_;
  int64_t num_added_ = 0;
};

}  // namespace tessera
