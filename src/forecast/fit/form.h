// The forms of a run: what it keeps per parameter, what is in memory and what on a disk, when it updates, and
// what it recomputes. Each is a few settings of RunSpec; the same table serves `tessera plan
// --disk`, `tessera train --fit` and the advice of a run that does not fit.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "settings/run_settings.h"

namespace tessera {

// kBase: how many bits the weights beside adapters have.
enum class FormAxis : size_t { kOptimizer, kState, kWeights, kUpdate, kActivations, kBase };
inline constexpr size_t kNumFormAxes = 6;

// A setting of a form, and the flag by which a user would give it.
struct FormSetting {
  const char* flag;
  std::string value;
  std::function<void(RunSpec*)> apply;
  std::function<bool(const RunSpec&)> holds;
};

struct FormChoice {
  const char* word;  // in tables
  std::vector<FormSetting> settings;
  // How far the numbers of a run are from those of the first choice: 0 is none but the rounding of sums.
  int change = 0;
};

// By FormAxis, the simplest first.
const std::array<std::vector<FormChoice>, kNumFormAxes>& form_choices();

// A choice on every axis; kAsGiven: what the arguments say.
struct Form {
  static constexpr int kAsGiven = -1;
  std::array<int, kNumFormAxes> choices = {};

  int at(FormAxis axis) const { return choices[static_cast<size_t>(axis)]; }
  const FormChoice* choice(FormAxis axis) const;  // nullptr as given
  // Changes of the numbers: rounded weights beside adapters, rounded moments, another norm for clipping.
  // Compared in this order.
  std::array<int, 3> changes() const;
  auto operator<=>(const Form&) const = default;
};

// The forms that leave everything that was given as it is. `args` must be resolved.
std::vector<Form> forms_of(const RunSpec& args);

// `args`, resolved for world_size ranks, as a run of this form has them. Error(kBadConfig) if other settings
// rule it out.
RunSpec with_form(const RunSpec& args, const Form& form, int64_t world_size);

// The settings in which the form differs from `args`: "--optim adamw_8bit".
std::vector<std::string> form_flags(const RunSpec& args, const Form& form);

// The names that tables have for the choices on every axis.
std::array<std::string, kNumFormAxes> form_words(const Form& form);

}  // namespace tessera
