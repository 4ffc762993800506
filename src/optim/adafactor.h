// Adafactor, whose second moment of a matrix is the product of two vectors: the means of its rows and of its
// columns. Shazeer and Stern, 2018; formulas as in Transformers' Adafactor with the settings of its Trainer
// (an external learning rate: scale_parameter and relative_step false; no first moment):
//
//   g *= gradient_scale     b = 1 - t^-0.8     s = g^2 + 1e-30
//   matrix [R, C]:  r_i = b r_i + (1 - b) mean_j s_ij    c_j = b c_j + (1 - b) mean_i s_ij
//                   u_ij = g_ij / (sqrt(r_i / mean r) sqrt(c_j))
//   vector:         v_i = b v_i + (1 - b) s_i            u_i = g_i / sqrt(v_i)
//   u /= max(1, rms(u))     w = (1 - lr wd) w - lr u
//
// Sums are in double, over slabs of rows whose number the shape alone decides.
#pragma once

#include "optim/optimizer.h"

namespace tessera {

class Adafactor : public Optimizer {
 public:
  explicit Adafactor(const OptimizerSpec& settings) : weight_decay_(settings.weight_decay) {}

  StateTensors state_tensors() const override { return kStateTensors; }
  // No parameter may be cut: even a vector's update is divided by its own size.
  void update(const OptimizerBlock& block, const OptimizerStep& step, ThreadPool& pool) const override;
  void solve(const WholeParameter& parameter, const OptimizerStep& step, ThreadPool& pool) const override;
  void update_masters(const WholeParameter& parameter, const WholeBlock& block, const OptimizerStep& step,
                      ThreadPool& pool) const override;
  int64_t workspace_bytes(const ParameterShape& shape, DType weight_dtype,
                          int64_t num_threads) const override;

  // AdamW's exp_avg_sq has a value for the elements of matrices, too.
  static constexpr StateTensor kStateTensors[] = {
      {"exp_avg_sq_row", DType::kF32, StateExtent::kRows, "exp_avg_sq"},
      {"exp_avg_sq_col", DType::kF32, StateExtent::kColumns, "exp_avg_sq"},
      {"exp_avg_sq", DType::kF32, StateExtent::kVectorElements}};

 private:
  double weight_decay_;
};

}  // namespace tessera
