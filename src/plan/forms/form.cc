#include "plan/forms/form.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>

#include "arguments/state/optimizer_arguments.h"
#include "base/flags.h"

namespace tessera {
namespace {

// The arguments as flags, by which the settings of a form are read and set.
class SettingsOf {
 public:
  explicit SettingsOf(TrainingArguments* args) { declare_training_flags(&table_, args); }

  std::string get(const char* flag) const {
    const std::vector<std::string> values = table_.find(flag)->get();
    return values.empty() ? "none" : values.front();
  }
  void set(const FormSetting& setting) { table_.set(*table_.find(setting.flag), {setting.value}, "form"); }
  const FlagTable& unset() const { return defaults_; }

 private:
  FlagTable table_;
  FlagTable defaults_;
};

// "cpu" and "none" are the same place.
bool means(const std::string& value, const char* other) {
  return value == other || (value == "cpu" && std::string_view(other) == "none");
}

// Without clipping, its norm does not matter; the gradients of adapters are small; weights that are trained
// are not quantised. The other names of quantization_bit leave its choice to what they say.
bool makes_sense(const TrainingArguments& args, FormAxis axis, size_t choice) {
  if (axis == FormAxis::kBase) {
    if (args.given.contains("load_in_8bit") || args.given.contains("load_in_4bit")) return false;
    return choice == 0 || args.finetuning_type == "lora";
  }
  if (axis != FormAxis::kUpdate) return true;
  return choice == 0 ||
         (args.finetuning_type != "lora" &&
          (args.max_grad_norm > 0 || form_choices()[static_cast<size_t>(axis)][choice].change == 0));
}

}  // namespace

const std::array<std::vector<FormChoice>, kNumFormAxes>& form_choices() {
  static const std::array<std::vector<FormChoice>, kNumFormAxes> choices = {{
      {{"exact", {{"optim", "adamw_torch"}}, 0},
       {"bf16", {{"optim", "adamw_bf16"}}, 1},
       {"8-bit", {{"optim", "adamw_8bit"}}, 2}},
      {{"memory", {{"offload_optimizer_device", "none"}}},  //
       {"disk", {{"offload_optimizer_device", "nvme"}}}},
      {{"memory", {{"offload_param_device", "none"}}},  //
       {"disk", {{"offload_param_device", "nvme"}}}},
      {{"after", {{"optimizer_in_backward", "false"}}, 0},
       {"twice", {{"optimizer_in_backward", "true"}, {"clip_mode", "global"}}, 0},
       {"previous", {{"optimizer_in_backward", "true"}, {"clip_mode", "previous"}}, 1},
       {"layer", {{"optimizer_in_backward", "true"}, {"clip_mode", "layer"}}, 2}},
      {{"kept", {{"gradient_checkpointing", "false"}}},
       {"selective", {{"gradient_checkpointing", "true"}, {"gradient_checkpointing_mode", "selective"}}},
       {"full", {{"gradient_checkpointing", "true"}, {"gradient_checkpointing_mode", "full"}}},
       {"disk", {{"gradient_checkpointing", "true"}, {"gradient_checkpointing_mode", "offload"}}}},
      {{"bf16", {{"quantization_bit", "none"}}, 0},
       {"int8", {{"quantization_bit", "8"}}, 1},
       {"nf4", {{"quantization_bit", "4"}}, 2}},
  }};
  return choices;
}

const FormChoice* Form::choice(FormAxis axis) const {
  const int index = at(axis);
  if (index == kAsGiven) return nullptr;
  return &form_choices()[static_cast<size_t>(axis)][static_cast<size_t>(index)];
}

std::array<int, 3> Form::changes() const {
  const auto change = [this](FormAxis axis) {
    const FormChoice* of_axis = choice(axis);
    return of_axis ? of_axis->change : 0;
  };
  return {change(FormAxis::kBase), change(FormAxis::kOptimizer), change(FormAxis::kUpdate)};
}

std::vector<Form> forms_of(const TrainingArguments& args) {
  TrainingArguments copy = args;
  const SettingsOf settings(&copy);
  std::array<std::vector<int>, kNumFormAxes> allowed;
  for (size_t axis = 0; axis < kNumFormAxes; ++axis) {
    const std::vector<FormChoice>& choices = form_choices()[axis];
    for (size_t i = 0; i < choices.size(); ++i) {
      const bool is_allowed = std::ranges::all_of(choices[i].settings, [&](const FormSetting& setting) {
        return !args.given.contains(setting.flag) || means(settings.get(setting.flag), setting.value);
      });
      if (is_allowed && makes_sense(args, static_cast<FormAxis>(axis), i))
        allowed[axis].push_back(static_cast<int>(i));
    }
    if (allowed[axis].empty()) allowed[axis] = {Form::kAsGiven};
  }
  std::vector<Form> forms = {Form()};
  for (size_t axis = 0; axis < kNumFormAxes; ++axis) {
    std::vector<Form> more;
    for (const Form& form : forms) {
      for (const int choice : allowed[axis]) {
        more.push_back(form);
        more.back().choices[axis] = choice;
      }
    }
    forms = std::move(more);
  }
  return forms;
}

TrainingArguments with_form(const TrainingArguments& args, const Form& form, int64_t world_size) {
  TrainingArguments out = args;
  out.fit = false;
  SettingsOf settings(&out);
  for (size_t axis = 0; axis < kNumFormAxes; ++axis) {
    const FormChoice* choice = form.choice(static_cast<FormAxis>(axis));
    if (choice == nullptr) continue;
    for (const FormSetting& setting : choice->settings) settings.set(setting);
  }
  resolve_form(settings.unset(), world_size, &out);
  return out;
}

std::vector<std::string> form_flags(const TrainingArguments& args, const Form& form) {
  TrainingArguments copy = args;
  const SettingsOf settings(&copy);
  std::vector<std::string> flags;
  for (size_t axis = 0; axis < kNumFormAxes; ++axis) {
    const FormChoice* choice = form.choice(static_cast<FormAxis>(axis));
    if (choice == nullptr) continue;
    for (const FormSetting& setting : choice->settings) {
      if (means(settings.get(setting.flag), setting.value)) continue;
      flags.push_back(std::string_view(setting.value) == "true"
                          ? fmt::format("--{}", setting.flag)
                          : fmt::format("--{} {}", setting.flag, setting.value));
    }
  }
  return flags;
}

std::array<std::string, kNumFormAxes> form_words(const Form& form) {
  std::array<std::string, kNumFormAxes> words;
  for (size_t axis = 0; axis < kNumFormAxes; ++axis) {
    const FormChoice* choice = form.choice(static_cast<FormAxis>(axis));
    words[axis] = choice ? choice->word : "given";
  }
  return words;
}

}  // namespace tessera
