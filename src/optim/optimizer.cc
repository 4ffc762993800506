#include "optim/optimizer.h"

#include <algorithm>
#include <iterator>

#include "base/error.h"
#include "optim/adafactor.h"
#include "optim/adamw.h"
#include "optim/lion.h"
#include "optim/muon.h"

namespace tessera {
namespace {

struct NamedOptimizer {
  std::string_view name;
  std::unique_ptr<const Optimizer> (*make)(const OptimizerSettings&);
};

template <typename T>
std::unique_ptr<const Optimizer> make(const OptimizerSettings& settings) {
  return std::make_unique<const T>(settings);
}

constexpr NamedOptimizer kOptimizers[] = {{"adamw_torch", make<AdamW>},
                                          {"adamw_torch_fused", make<AdamW>},
                                          {"adamw_hf", make<AdamW>},
                                          {"adamw_bf16", make<AdamWHalf>},
                                          {"adamw_8bit", make<AdamW8Bit>},
                                          {"adamw_bnb_8bit", make<AdamW8Bit>},
                                          {"adamw_torch_8bit", make<AdamW8Bit>},
                                          {"lion_32bit", make<Lion>},
                                          {"lion_8bit", make<Lion8Bit>},
                                          {"muon", make<Muon>},
                                          {"adafactor", make<Adafactor>}};

}  // namespace

void Optimizer::update_whole(const WholeParameter& /*parameter*/, const OptimizerStep& /*step*/,
                             std::span<std::byte> /*workspace*/, ThreadPool& /*pool*/) const {
  TESSERA_CHECK(false, "every parameter of this optimizer may be cut");
}

std::vector<std::string> optimizer_names() {
  std::vector<std::string> names;
  for (const NamedOptimizer& optimizer : kOptimizers) names.emplace_back(optimizer.name);
  return names;
}

std::unique_ptr<const Optimizer> make_optimizer(std::string_view name, const OptimizerSettings& settings) {
  const auto found = std::ranges::find(kOptimizers, name, &NamedOptimizer::name);
  TESSERA_CHECK(found != std::end(kOptimizers), "{}", name);
  return found->make(settings);
}

}  // namespace tessera
