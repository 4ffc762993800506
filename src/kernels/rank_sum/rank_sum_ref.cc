#include "kernels/rank_sum/rank_sum_impl.h"

namespace tessera {
namespace {

float input_at(const RankInput& input, int64_t i) {
  return input.is_bf16() ? to_float(input.as_bf16()[i]) : input.f32()[i];
}

void sum_ref(std::span<const RankInput> inputs, Update update, Stores /*stores*/, float* y, int64_t begin,
             int64_t end) {
  for (int64_t i = begin; i < end; ++i) {
    float s = input_at(inputs[0], i);
    for (const RankInput& input : inputs.subspan(1)) s = s + input_at(input, i);
    y[i] = update == Update::kAdd ? y[i] + s : s;
  }
}

void round_ref(const float* x, bf16* y, int64_t begin, int64_t end) {
  for (int64_t i = begin; i < end; ++i) y[i] = to_bf16(x[i]);
}

}  // namespace

std::vector<Implementation<RankSumKernels>> rank_sum_ref() {
  return {{"ref", Isa::kRef, {.sum = sum_ref, .round = round_ref}}};
}

}  // namespace tessera
