#include "model/families/families.h"

#include <algorithm>
#include <iterator>

#include "base/error.h"
#include "model/llama/llama_model.h"

namespace tessera {
namespace {

template <typename Model>
std::unique_ptr<TrainableModel> make(const ModelConfig& config, DType dtype, Ops& ops) {
  return std::make_unique<Model>(config, dtype, ops);
}

struct Implementation {
  ModelFamily family;
  std::unique_ptr<TrainableModel> (*make)(const ModelConfig& config, DType dtype, Ops& ops);
  ParameterLayout (*layout)(const ModelConfig& config);
};

constexpr Implementation kImplementations[] = {
    {ModelFamily::kLlama, make<LlamaModel>, LlamaModel::parameter_layout},
    {ModelFamily::kMistral, make<LlamaModel>, LlamaModel::parameter_layout},
    {ModelFamily::kQwen2, make<LlamaModel>, LlamaModel::parameter_layout},
    {ModelFamily::kQwen3, make<LlamaModel>, LlamaModel::parameter_layout},
};

const Implementation& implementation_of(const ModelConfig& config) {
  const auto* found = std::ranges::find(kImplementations, config.family, &Implementation::family);
  TESSERA_CHECK(found != std::end(kImplementations), "no model for family {}",
                static_cast<int>(config.family));
  return *found;
}

}  // namespace

std::unique_ptr<TrainableModel> make_model(const ModelConfig& config, DType dtype, Ops& ops) {
  return implementation_of(config).make(config, dtype, ops);
}

ParameterLayout parameter_layout(const ModelConfig& config) {
  return implementation_of(config).layout(config);
}

}  // namespace tessera
