// Muon: hidden matrices move along their momentum with all its singular values brought to 1
// (optim/newton_schulz.h); embedding, LM head, norms and biases are AdamW's. Jordan et al., 2024; formulas as
// in torch.optim.Muon, with Nesterov momentum (mu is muon_momentum):
//
//   g *= gradient_scale     m = m + (1 - mu) (g - m)     u = newton_schulz(g + mu (m - g))
//   w = (1 - lr wd) w - rate u                           rate: MuonRate
//
// Products have operands of the weights' type.
#pragma once

#include "optim/elementwise.h"

namespace tessera {

class Muon : public AdamW {
 public:
  using AdamW::AdamW;

  StateTensors state_tensors() const override { return kStateTensors; }
  void update_moments(const WholeParameter& parameter, const WholeBlock& block, const OptimizerStep& step,
                      ThreadPool& pool) const override;
  void solve(const WholeParameter& parameter, const OptimizerStep& step, ThreadPool& pool) const override;
  void update_masters(const WholeParameter& parameter, const WholeBlock& block, const OptimizerStep& step,
                      ThreadPool& pool) const override;
  int64_t workspace_bytes(const ParameterShape& shape, DType weight_dtype,
                          int64_t num_threads) const override;

  // AdamW's first, as its update expects them. Its exp_avg is a moving average of gradients as the momentum
  // is.
  static constexpr StateTensor kStateTensors[] = {
      {"exp_avg", DType::kF32, StateExtent::kOtherElements},
      {"exp_avg_sq", DType::kF32, StateExtent::kOtherElements},
      {"momentum_buffer", DType::kF32, StateExtent::kHiddenElements, "exp_avg"}};
};

}  // namespace tessera
