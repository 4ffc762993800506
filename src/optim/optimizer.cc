#include "optim/optimizer.h"

#include <algorithm>
#include <iterator>

#include "base/error.h"
#include "optim/adafactor.h"
#include "optim/elementwise.h"
#include "optim/muon.h"

namespace tessera {
namespace {

template <typename T>
std::unique_ptr<const Optimizer> make(const OptimizerSpec& spec) {
  return std::make_unique<const T>(spec);
}

struct FormEntry {
  OptimizerForm form;
  OptimizerKind kind;
  std::unique_ptr<const Optimizer> (*make)(const OptimizerSpec&);
};

constexpr FormEntry kForms[] = {
    {OptimizerForm::kAdamW, OptimizerKind::kAdamW, make<AdamW>},
    {OptimizerForm::kAdamWHalf, OptimizerKind::kAdamW, make<AdamWHalf>},
    {OptimizerForm::kAdamW8Bit, OptimizerKind::kAdamW, make<AdamW8Bit>},
    {OptimizerForm::kLion, OptimizerKind::kLion, make<Lion>},
    {OptimizerForm::kLion8Bit, OptimizerKind::kLion, make<Elementwise<LionRule, MomentForm::kCodes>>},
    {OptimizerForm::kMuon, OptimizerKind::kMuon, make<Muon>},
    {OptimizerForm::kAdafactor, OptimizerKind::kAdafactor, make<Adafactor>}};

const FormEntry& entry_of(OptimizerForm form) {
  const auto found = std::ranges::find(kForms, form, &FormEntry::form);
  TESSERA_CHECK(found != std::end(kForms), "{}", form);
  return *found;
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

OptimizerKind optimizer_kind(OptimizerForm form) { return entry_of(form).kind; }

std::unique_ptr<const Optimizer> make_optimizer(const OptimizerSpec& spec) {
  return entry_of(spec.form).make(spec);
}

StateTensors state_tensors_of(const OptimizerSpec& spec) { return make_optimizer(spec)->state_tensors(); }

}  // namespace tessera
