#include "model/lora.h"

#include <algorithm>

#include "base/error.h"
#include "base/rng.h"
#include "model/allocate.h"

namespace tessera {
namespace {

// E: the blocks of all modules, zeros around them.
TensorView place_blocks(Ops& ops, const LoraWeights& weights, int64_t num_outputs, TensorView flat) {
  const TensorView e_RN = matrix_in(flat, weights.rank, num_outputs);
  ops.zero(e_RN);
  for (const LoraWeights::Module& module : weights.modules) ops.lora_place(module.b_NR, module.block, e_RN);
  return e_RN;
}

// to = or += dropout(x), the mask that of the weights' product.
void drop(Ops& ops, const LoraWeights& weights, const Dropout& of_pass, ConstTensorView x_TK,
          TensorView to_TK, Update update) {
  Dropout here = of_pass;
  here.site ^= weights.site;
  ops.dropout(x_TK, here, to_TK, update);
}

// x', which is x itself without dropout.
ConstTensorView dropped(Ops& ops, const LoraWeights& weights, ConstTensorView x_TK,
                        const LoraScratch& scratch) {
  if (scratch.dropout == nullptr) return x_TK;
  const TensorView to_TK = matrix_in(scratch.dropped, x_TK.dim(0), x_TK.dim(1));
  drop(ops, weights, *scratch.dropout, x_TK, to_TK, Update::kOverwrite);
  return to_TK;
}

// (1)
TensorView project(Ops& ops, const LoraWeights& weights, ConstTensorView dropped_TK, TensorView flat) {
  const TensorView z_TR = matrix_in(flat, dropped_TK.dim(0), weights.rank);
  ops.linear(dropped_TK, weights.a_RK, /*bias_N=*/{}, z_TR);
  return z_TR;
}

// "model.layers.0.self_attn.q_proj", of its weight.
std::string module_of(const ParameterPart& part) {
  return part.name.substr(0, part.name.size() - std::string_view(".weight").size());
}

// Adds the adapters of one product.
void add_adapters(const ModelTensor& product, const LoraConfig& config, std::vector<ModelTensor>* tensors,
                  LoraLimits* limits) {
  LoraWeights& weights = *product.lora;
  LoraGrads& grads = *product.lora_gradient;
  ModelTensor a = {product.group, ParameterKind::kLoraA, {}, &weights.a_RK, &grads.a_RK};
  std::vector<ParameterPart> b_parts;
  weights = {};
  int64_t num_outputs = 0;
  const int64_t num_inputs = product.parts.front().shape.at(1);
  for (const ParameterPart& part : product.parts) {
    const std::string module = module_of(part);
    if (const std::optional<LoraModule> adapter = config.adapter_of(module)) {
      a.parts.push_back({lora_a_name(module), {adapter->rank, num_inputs}});
      b_parts.push_back({lora_b_name(module), {part.shape[0], adapter->rank}});
      weights.modules.push_back({{}, {weights.rank, num_outputs, static_cast<float>(adapter->scale)}});
      weights.rank += adapter->rank;
    }
    num_outputs += part.shape[0];
  }
  if (weights.empty()) return;
  weights.site = hash_name(a.parts.front().name);
  grads.modules.resize(weights.modules.size());
  tensors->push_back(a);
  for (size_t i = 0; i < b_parts.size(); ++i) {
    tensors->push_back({product.group,
                        ParameterKind::kLoraB,
                        {b_parts[i]},
                        &weights.modules[i].b_NR,
                        &grads.modules[i].b_NR});
  }
  limits->rank = std::max(limits->rank, weights.rank);
  limits->block = std::max(limits->block, weights.rank * num_outputs);
  limits->inputs = std::max(limits->inputs, num_inputs);
  for (const int64_t K : {num_inputs, num_outputs}) {
    const auto is_same = [&](const LinearShape& known) { return known.N == weights.rank && known.K == K; };
    if (std::ranges::none_of(limits->products, is_same)) limits->products.push_back({weights.rank, K});
  }
}

}  // namespace

std::vector<ModelTensor> lora_tensors(std::span<const ModelTensor> tensors, const LoraConfig& config,
                                      LoraLimits* limits) {
  *limits = {};
  limits->dropout = config.lora_dropout > 0;
  std::vector<ModelTensor> result;
  for (const ModelTensor& tensor : tensors) {
    if (tensor.lora != nullptr) add_adapters(tensor, config, &result, limits);
  }
  for (const std::string& target : config.target_modules) {
    LoraConfig alone;
    alone.target_modules = {target};
    const auto fits = [&](const ParameterPart& part) {
      return alone.adapter_of(module_of(part)).has_value();
    };
    const auto has_it = [&](const ModelTensor& tensor) {
      return tensor.lora != nullptr && std::any_of(tensor.parts.begin(), tensor.parts.end(), fits);
    };
    if (std::none_of(tensors.begin(), tensors.end(), has_it)) {
      fail(ExitCode::kBadConfig,
           "lora_target {}: expected linear layers of decoder layers ({}), found none of that name", target,
           fmt::join(lora_module_names(), ", "));
    }
  }
  return result;
}

LoraScratch allocate_lora_scratch(Arena& arena, const LoraLimits& limits, DType dtype, int64_t num_tokens,
                                  bool training) {
  LoraScratch scratch;
  if (limits.rank == 0) return scratch;
  scratch.z = allocate_tensor(arena, dtype, {num_tokens * limits.rank});
  scratch.e = allocate_tensor(arena, dtype, {limits.block});
  if (!training) return scratch;
  scratch.dz = allocate_tensor(arena, dtype, {num_tokens * limits.rank});
  scratch.de = allocate_tensor(arena, DType::kF32, {limits.block});
  if (limits.dropout) scratch.dropped = allocate_tensor(arena, dtype, {num_tokens * limits.inputs});
  return scratch;
}

void lora_forward(Ops& ops, const LoraWeights& weights, ConstTensorView x_TK, const LoraScratch& scratch,
                  TensorView y_TN) {
  if (weights.empty()) return;
  const TensorView z_TR = project(ops, weights, dropped(ops, weights, x_TK, scratch), scratch.z);
  const TensorView e_RN = place_blocks(ops, weights, y_TN.dim(1), scratch.e);
  ops.linear_backward_input(z_TR, ConstTensorView(e_RN), y_TN, Update::kAdd);  // y += z E
}

void lora_backward_output(Ops& ops, const LoraWeights& weights, ConstTensorView dy_TN,
                          const LoraScratch& scratch) {
  if (weights.empty()) return;
  const TensorView e_RN = place_blocks(ops, weights, dy_TN.dim(1), scratch.e);
  const TensorView dz_TR = matrix_in(scratch.dz, dy_TN.dim(0), weights.rank);
  ops.linear(dy_TN, ConstTensorView(e_RN), /*bias_N=*/{}, dz_TR);  // dz = dy E^T
}

void lora_backward_input(Ops& ops, const LoraWeights& weights, const LoraScratch& scratch, TensorView dx_TK) {
  if (weights.empty()) return;
  const TensorView dz_TR = matrix_in(scratch.dz, dx_TK.dim(0), weights.rank);
  if (scratch.dropout == nullptr) {
    ops.linear_backward_input(dz_TR, weights.a_RK, dx_TK, Update::kAdd);
    return;
  }
  const TensorView dropped_TK = matrix_in(scratch.dropped, dx_TK.dim(0), dx_TK.dim(1));
  ops.linear_backward_input(dz_TR, weights.a_RK, dropped_TK, Update::kOverwrite);
  drop(ops, weights, *scratch.dropout, dropped_TK, dx_TK, Update::kAdd);
}

void lora_backward_weights(Ops& ops, const LoraWeights& weights, const LoraGrads& grads, Update update,
                           ConstTensorView dy_TN, ConstTensorView x_TK, const LoraScratch& scratch) {
  if (weights.empty()) return;
  const ConstTensorView dropped_TK = dropped(ops, weights, x_TK, scratch);
  const TensorView z_TR = project(ops, weights, dropped_TK, scratch.z);
  const TensorView dz_TR = matrix_in(scratch.dz, x_TK.dim(0), weights.rank);
  ops.linear_backward_weight(dz_TR, dropped_TK, grads.a_RK, update);
  const TensorView de_RN = matrix_in(scratch.de, weights.rank, dy_TN.dim(1));
  ops.linear_backward_weight(z_TR, dy_TN, de_RN, Update::kOverwrite);
  for (size_t i = 0; i < weights.modules.size(); ++i) {
    ops.lora_take(de_RN, weights.modules[i].block, grads.modules[i].b_NR, update);
  }
}

}  // namespace tessera
