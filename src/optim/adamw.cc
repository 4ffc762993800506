#include "optim/adamw.h"

#include "kernels/adamw/adamw.h"

namespace tessera {

void AdamW::update(const OptimizerBlock& block, const OptimizerStep& step, ThreadPool& pool) const {
  const AdamBetas betas = step.betas.value_or(AdamBetas{settings_.beta1, settings_.beta2});
  const AdamWScalars scalars =
      adamw_scalars(step.learning_rate, betas.beta1, betas.beta2, settings_.epsilon,
                    block.weight_decay ? settings_.weight_decay : 0, step.step, step.gradient_scale);
  auto* m = reinterpret_cast<float*>(block.state[0]);
  auto* v = reinterpret_cast<float*>(block.state[1]);
  const int64_t count = std::ssize(block.gradient);
  if (block.weights.dtype() == DType::kBF16) {
    adamw_bf16(block.weights.as<bf16>(), block.remainders, block.gradient.data(), m, v, count, scalars, pool);
  } else {
    adamw_f32(block.weights.as<float>(), block.gradient.data(), m, v, count, scalars, pool);
  }
}

}  // namespace tessera
