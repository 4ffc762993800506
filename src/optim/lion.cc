#include "optim/lion.h"

namespace tessera {

LionScalars Lion::scalars(const OptimizerBlock& block, const OptimizerStep& step) const {
  const AdamBetas betas = step.betas.value_or(AdamBetas{settings_.beta1, settings_.beta2});
  return lion_scalars(step.learning_rate, betas.beta1, betas.beta2,
                      block.weight_decay ? settings_.weight_decay : 0, step.gradient_scale);
}

void Lion::update(const OptimizerBlock& block, const OptimizerStep& step, ThreadPool& pool) const {
  auto* m = reinterpret_cast<float*>(block.state[0]);
  const int64_t count = std::ssize(block.gradient);
  if (block.weights.dtype() == DType::kBF16) {
    lion_bf16(block.weights.as<bf16>(), block.remainders, block.gradient.data(), m, count,
              scalars(block, step), pool);
  } else {
    lion_f32(block.weights.as<float>(), block.gradient.data(), m, count, scalars(block, step), pool);
  }
}

void Lion8Bit::update(const OptimizerBlock& block, const OptimizerStep& step, ThreadPool& pool) const {
  const CodedMomentum momentum = {block.state[0], block.first_element, step.step};
  const int64_t count = std::ssize(block.gradient);
  if (block.weights.dtype() == DType::kBF16) {
    lion_bf16_8bit(block.weights.as<bf16>(), block.remainders, block.gradient.data(), momentum, count,
                   scalars(block, step), pool);
  } else {
    lion_f32_8bit(block.weights.as<float>(), block.gradient.data(), momentum, count, scalars(block, step),
                  pool);
  }
}

}  // namespace tessera
