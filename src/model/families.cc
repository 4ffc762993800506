#include "model/families.h"

#include <algorithm>
#include <iterator>

#include "base/error.h"
#include "model/llama/llama_model.h"

namespace tessera {
namespace {

struct Implementation {
  ModelFamily family;
  std::unique_ptr<TrainableModel> (*make)(const ModelConfig& config, DType dtype, Ops& ops);
  ParameterLayout (*layout)(const ModelConfig& config);
};

template <typename Model>
Implementation implemented_by(ModelFamily family) {
  return {family,
          [](const ModelConfig& config, DType dtype, Ops& ops) -> std::unique_ptr<TrainableModel> {
            return std::make_unique<Model>(config, dtype, ops);
          },
          &Model::parameter_layout};
}

const Implementation kImplementations[] = {
    implemented_by<LlamaModel>(ModelFamily::kLlama),
    implemented_by<LlamaModel>(ModelFamily::kMistral),
    implemented_by<LlamaModel>(ModelFamily::kQwen2),
    implemented_by<LlamaModel>(ModelFamily::kQwen3),
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
