#include "model/lora.h"

#include <algorithm>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/log.h"
#include "base/rng.h"
#include "base/text.h"
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

// to = or += dropout(x), with the same mask as the weights' product.
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

std::vector<std::string> adaptable_modules(std::span<const ModelTensor> tensors) {
  std::vector<std::string> modules;
  for (const ModelTensor& tensor : tensors) {
    if (tensor.lora == nullptr) continue;
    for (const ParameterPart& part : tensor.parts) modules.push_back(module_of(part));
  }
  return modules;
}

// All modules of the model except those that can have adapters, as PEFT would find them.
std::set<std::string> other_modules(std::span<const ModelTensor> tensors) {
  std::set<std::string> modules = {"lm_head", "model.rotary_emb"};
  for (const ModelTensor& tensor : tensors) {
    for (const ParameterPart& part : tensor.parts) {
      std::string module = part.name;
      while (module.rfind('.') != module.npos) {
        module.resize(module.rfind('.'));
        modules.insert(module);
        if (module.ends_with(".mlp")) modules.insert(module + ".act_fn");
        if (module.ends_with(".DenseReluDense")) modules.insert(module + ".act");
      }
    }
  }
  for (const std::string& module : adaptable_modules(tensors)) modules.erase(module);
  return modules;
}

template <typename Value>
void warn_about_keys(const std::vector<std::pair<std::string, Value>>& patterns, const char* field,
                     const std::vector<std::string>& adapted) {
  for (const auto& [key, value] : patterns) {
    const auto fits = [&key = key](const std::string& module) { return is_pattern_key_of(key, module); };
    if (std::ranges::any_of(adapted, fits)) continue;
    log_warning_once(
        fmt::format("{}: '{}' has no effect: no module with an adapter fits it", field, printable(key)));
  }
}

// "q_proj, k_proj, ..."
std::string names_of(const std::vector<std::string>& modules) {
  std::vector<std::string> names;
  for (const std::string& module : modules) {
    const std::string name = module.substr(module.rfind('.') + 1);
    if (std::ranges::find(names, name) == names.end()) names.push_back(name);
  }
  return fmt::format("{}", fmt::join(names, ", "));
}

// Refuses modules that cannot have adapters, names what has no effect.
void check_modules(std::span<const ModelTensor> tensors, const LoraConfig& config,
                   const std::vector<ModelTensor>& adapters) {
  const std::vector<std::string> adaptable = adaptable_modules(tensors);
  const std::string wanted = printable(config.target_modules.json().dump());
  for (const std::string& module : other_modules(tensors)) {
    if (!config.adapter_of(module)) continue;
    fail(ExitCode::kBadConfig,
         "target_modules {}: expected linear layers of decoder layers ({}), found that it fits {}", wanted,
         names_of(adaptable), module);
  }
  if (adapters.empty()) {
    const std::string_view also = config.exclude_modules.empty() && config.layers_to_transform.empty()
                                      ? ""
                                      : " that exclude_modules and layers_to_transform leave";
    fail(ExitCode::kBadConfig,
         "target_modules {}: expected linear layers of decoder layers ({}), found none of that name{}{}",
         wanted, names_of(adaptable), also,
         std::ranges::any_of(config.target_modules.names(), looks_like_expression)
             ? "; a regular expression is one text, not an element of a list"
             : "");
  }
  for (const std::string& target : config.target_modules.names()) {
    const ModuleSelection alone = {target};
    const auto fits = [&](const std::string& module) { return alone.contains(module); };
    if (std::ranges::any_of(adaptable, fits)) continue;
    log_warning_once(fmt::format("target_modules: '{}' has no effect: the model has no module of that name",
                                 printable(target)));
  }
  const auto is_excluded = [&](const std::string& module) { return config.exclude_modules.contains(module); };
  if (!config.exclude_modules.empty() && std::ranges::none_of(adaptable, is_excluded)) {
    log_warning_once(fmt::format("exclude_modules {} has no effect: no linear layer of a decoder layer fits",
                                 printable(config.exclude_modules.json().dump())));
  }
  std::vector<std::string> adapted;
  for (const std::string& module : adaptable) {
    if (config.adapter_of(module)) adapted.push_back(module);
  }
  warn_about_keys(config.rank_pattern, "rank_pattern", adapted);
  warn_about_keys(config.alpha_pattern, "alpha_pattern", adapted);
}

// Adds the adapters of one product.
void add_adapters(const ModelTensor& product, const LoraConfig& config, std::vector<ModelTensor>* tensors,
                  LoraLimits* limits) {
  LoraWeights& weights = *product.lora;
  LoraGrads& grads = *product.lora_gradient;
  ModelTensor a = {product.group, ParameterKind::kLoraA, {}, &weights.a_RK, &grads.a_RK};
  a.token_share = product.token_share;
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
    tensors->back().token_share = product.token_share;
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
  check_modules(tensors, config, result);
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
