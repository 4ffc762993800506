#include "optim/optimizer.h"

#include <algorithm>
#include <iterator>

#include "base/error.h"
#include "base/text.h"
#include "optim/adafactor.h"
#include "optim/adamw.h"
#include "optim/lion.h"
#include "optim/muon.h"

namespace tessera {
namespace {

using MakeOptimizer = std::unique_ptr<const Optimizer> (*)(const OptimizerSettings&);

struct NamedOptimizer {
  std::string_view name;
  OptimizerKind kind;
  MakeOptimizer make;
};

template <typename T>
std::unique_ptr<const Optimizer> make(const OptimizerSettings& settings) {
  return std::make_unique<const T>(settings);
}

// The first name of a form is the one that messages give. Names are those of Hugging Face's Trainer,
// DeepSpeed and bitsandbytes. A paged optimizer moves its state between the memories of GPU and CPU and
// computes the same; here there is one memory.
constexpr NamedOptimizer kOptimizers[] = {{"adamw_torch", OptimizerKind::kAdamW, make<AdamW>},
                                          {"adamw_torch_fused", OptimizerKind::kAdamW, make<AdamW>},
                                          {"adamw_hf", OptimizerKind::kAdamW, make<AdamW>},
                                          {"adamw", OptimizerKind::kAdamW, make<AdamW>},
                                          {"adamw_32bit", OptimizerKind::kAdamW, make<AdamW>},
                                          {"paged_adamw", OptimizerKind::kAdamW, make<AdamW>},
                                          {"paged_adamw_32bit", OptimizerKind::kAdamW, make<AdamW>},
                                          {"adamw_bf16", OptimizerKind::kAdamW, make<AdamWHalf>},
                                          {"adamw_8bit", OptimizerKind::kAdamW, make<AdamW8Bit>},
                                          {"adamw_bnb_8bit", OptimizerKind::kAdamW, make<AdamW8Bit>},
                                          {"adamw_torch_8bit", OptimizerKind::kAdamW, make<AdamW8Bit>},
                                          {"paged_adamw_8bit", OptimizerKind::kAdamW, make<AdamW8Bit>},
                                          {"lion_32bit", OptimizerKind::kLion, make<Lion>},
                                          {"lion", OptimizerKind::kLion, make<Lion>},
                                          {"paged_lion", OptimizerKind::kLion, make<Lion>},
                                          {"paged_lion_32bit", OptimizerKind::kLion, make<Lion>},
                                          {"lion_8bit", OptimizerKind::kLion, make<Lion8Bit>},
                                          {"paged_lion_8bit", OptimizerKind::kLion, make<Lion8Bit>},
                                          {"muon", OptimizerKind::kMuon, make<Muon>},
                                          {"adafactor", OptimizerKind::kAdafactor, make<Adafactor>}};

const NamedOptimizer& optimizer_of(std::string_view name) {
  const auto found = std::ranges::find(kOptimizers, name, &NamedOptimizer::name);
  TESSERA_CHECK(found != std::end(kOptimizers), "{}", name);
  return *found;
}

std::string without_case_and_underscores(std::string_view name) {
  std::string out = lower_case(std::string(name));
  std::erase(out, '_');
  return out;
}

}  // namespace

void Optimizer::solve(const WholeParameter& /*parameter*/, const OptimizerStep& /*step*/,
                      ThreadPool& /*pool*/) const {
  TESSERA_CHECK(false, "every parameter of this optimizer may be cut");
}

void Optimizer::update_masters(const WholeParameter& /*parameter*/, const WholeBlock& /*block*/,
                               const OptimizerStep& /*step*/, ThreadPool& /*pool*/) const {
  TESSERA_CHECK(false, "every parameter of this optimizer may be cut");
}

std::vector<std::string> optimizer_names() {
  std::vector<std::string> names;
  for (const NamedOptimizer& optimizer : kOptimizers) names.emplace_back(optimizer.name);
  return names;
}

std::vector<std::string> optimizer_forms() {
  std::vector<std::string> names;
  std::vector<MakeOptimizer> made;
  for (const NamedOptimizer& optimizer : kOptimizers) {
    if (std::ranges::find(made, optimizer.make) != made.end()) continue;
    made.push_back(optimizer.make);
    names.emplace_back(optimizer.name);
  }
  return names;
}

std::optional<std::string> find_optimizer(std::string_view spelling) {
  for (const NamedOptimizer& optimizer : kOptimizers) {
    if (without_case_and_underscores(optimizer.name) == without_case_and_underscores(spelling))
      return std::string(optimizer.name);
  }
  return std::nullopt;
}

OptimizerKind optimizer_kind(std::string_view name) { return optimizer_of(name).kind; }

std::unique_ptr<const Optimizer> make_optimizer(std::string_view name, const OptimizerSettings& settings) {
  return optimizer_of(name).make(settings);
}

}  // namespace tessera
