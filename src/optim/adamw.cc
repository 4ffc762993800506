#include "optim/adamw.h"

namespace tessera {

AdamWScalars AdamW::scalars(bool weight_decay, const OptimizerStep& step) const {
  const AdamBetas betas = step.betas.value_or(AdamBetas{settings_.beta1, settings_.beta2});
  return adamw_scalars(step.learning_rate, betas.beta1, betas.beta2, settings_.epsilon,
                       weight_decay ? settings_.weight_decay : 0, step.step, step.gradient_scale);
}

void AdamW::update(const OptimizerBlock& block, const OptimizerStep& step, ThreadPool& pool) const {
  auto* m = reinterpret_cast<float*>(block.state[0]);
  auto* v = reinterpret_cast<float*>(block.state[1]);
  const int64_t count = std::ssize(block.gradient);
  if (block.weights.dtype() == DType::kBF16) {
    adamw_bf16(block.weights.as<bf16>(), block.remainders, block.gradient.data(), m, v, count,
               scalars(block.weight_decay, step), pool);
  } else {
    adamw_f32(block.weights.as<float>(), block.gradient.data(), m, v, count,
              scalars(block.weight_decay, step), pool);
  }
}

void AdamWHalf::update(const OptimizerBlock& block, const OptimizerStep& step, ThreadPool& pool) const {
  const HalfMoments moments = {reinterpret_cast<bf16*>(block.state[0]),
                               reinterpret_cast<bf16*>(block.state[1]), block.first_element};
  const int64_t count = std::ssize(block.gradient);
  if (block.weights.dtype() == DType::kBF16) {
    adamw_bf16_half(block.weights.as<bf16>(), block.remainders, block.gradient.data(), moments, count,
                    scalars(block.weight_decay, step), pool);
  } else {
    adamw_f32_half(block.weights.as<float>(), block.gradient.data(), moments, count,
                   scalars(block.weight_decay, step), pool);
  }
}

void AdamW8Bit::update(const OptimizerBlock& block, const OptimizerStep& step, ThreadPool& pool) const {
  const CodedMoments moments = {block.state[0], block.state[1], block.first_element};
  const int64_t count = std::ssize(block.gradient);
  if (block.weights.dtype() == DType::kBF16) {
    adamw_bf16_8bit(block.weights.as<bf16>(), block.remainders, block.gradient.data(), moments, count,
                    scalars(block.weight_decay, step), pool);
  } else {
    adamw_f32_8bit(block.weights.as<float>(), block.gradient.data(), moments, count,
                   scalars(block.weight_decay, step), pool);
  }
}

}  // namespace tessera
