#include "forecast/fit/form.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>

#include "base/flags.h"

namespace tessera {
namespace {

std::string text_of(bool value) { return value ? "true" : "false"; }
std::string text_of(const std::optional<int64_t>& value) {
  return value ? fmt::format("{}", *value) : "none";
}
template <Choice E>
std::string text_of(E value) {
  return std::string(word_of(value));
}

// `at` gives the field of a RunSpec.
template <typename At, typename T>
FormSetting setting(const char* flag, At at, T value) {
  return {flag, text_of(value), [at, value](RunSpec* spec) { at(*spec) = value; },
          [at, value](const RunSpec& spec) { return at(spec) == value; }};
}

// Where something is kept: cpu and none are both memory.
template <typename At>
FormSetting place(const char* flag, At at, OffloadDevice device) {
  FormSetting out = setting(flag, at, device);
  out.holds = [at, is_disk = device == OffloadDevice::kNvme](const RunSpec& spec) {
    return (at(spec) == OffloadDevice::kNvme) == is_disk;
  };
  return out;
}

FormSetting optim(OptimizerForm form) {
  return setting(
      "optim", [](auto& spec) -> auto& { return spec.optimizer.form; }, form);
}
FormSetting in_backward(bool value) {
  return setting(
      "optimizer_in_backward", [](auto& spec) -> auto& { return spec.placement.optimizer_in_backward; },
      value);
}
FormSetting clip(ClipMode mode) {
  return setting(
      "clip_mode", [](auto& spec) -> auto& { return spec.clipping.mode; }, mode);
}
FormSetting recompute(bool value) {
  return setting(
      "gradient_checkpointing", [](auto& spec) -> auto& { return spec.placement.gradient_checkpointing; },
      value);
}
FormSetting recompute_mode(CheckpointingMode mode) {
  return setting(
      "gradient_checkpointing_mode", [](auto& spec) -> auto& { return spec.placement.checkpointing_mode; },
      mode);
}
FormSetting base_bits(std::optional<int64_t> bits) {
  return setting(
      "quantization_bit", [](auto& spec) -> auto& { return spec.base.bits; }, bits);
}
FormSetting state_on(OffloadDevice device) {
  return place(
      "offload_optimizer_device", [](auto& spec) -> auto& { return spec.placement.optimizer_device; },
      device);
}
FormSetting weights_on(OffloadDevice device) {
  return place(
      "offload_param_device", [](auto& spec) -> auto& { return spec.placement.param_device; }, device);
}

// Without clipping, its norm does not matter; the gradients of adapters are small; weights that are trained
// are not quantised. The other names of quantization_bit leave its choice to what they say.
bool makes_sense(const RunSpec& args, FormAxis axis, size_t choice) {
  if (axis == FormAxis::kBase) {
    if (args.sources.given.contains("load_in_8bit") || args.sources.given.contains("load_in_4bit"))
      return false;
    return choice == 0 || args.lora.finetuning_type == FinetuningType::kLora;
  }
  if (axis != FormAxis::kUpdate) return true;
  return choice == 0 ||
         (args.lora.finetuning_type != FinetuningType::kLora &&
          (args.clipping.max_norm > 0 || form_choices()[static_cast<size_t>(axis)][choice].change == 0));
}

}  // namespace

const std::array<std::vector<FormChoice>, kNumFormAxes>& form_choices() {
  static const std::array<std::vector<FormChoice>, kNumFormAxes> choices = {{
      {{"exact", {optim(OptimizerForm::kAdamW)}, 0},
       {"bf16", {optim(OptimizerForm::kAdamWHalf)}, 1},
       {"8-bit", {optim(OptimizerForm::kAdamW8Bit)}, 2}},
      {{"memory", {state_on(OffloadDevice::kNone)}}, {"disk", {state_on(OffloadDevice::kNvme)}}},
      {{"memory", {weights_on(OffloadDevice::kNone)}}, {"disk", {weights_on(OffloadDevice::kNvme)}}},
      {{"after", {in_backward(false)}, 0},
       {"twice", {in_backward(true), clip(ClipMode::kGlobal)}, 0},
       {"previous", {in_backward(true), clip(ClipMode::kPrevious)}, 1},
       {"layer", {in_backward(true), clip(ClipMode::kLayer)}, 2}},
      {{"kept", {recompute(false)}},
       {"selective", {recompute(true), recompute_mode(CheckpointingMode::kSelective)}},
       {"full", {recompute(true), recompute_mode(CheckpointingMode::kFull)}},
       {"disk", {recompute(true), recompute_mode(CheckpointingMode::kOffload)}}},
      {{"bf16", {base_bits(std::nullopt)}, 0}, {"int8", {base_bits(8)}, 1}, {"nf4", {base_bits(4)}, 2}},
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

std::vector<Form> forms_of(const RunSpec& args) {
  std::array<std::vector<int>, kNumFormAxes> allowed;
  for (size_t axis = 0; axis < kNumFormAxes; ++axis) {
    const std::vector<FormChoice>& choices = form_choices()[axis];
    for (size_t i = 0; i < choices.size(); ++i) {
      const bool is_allowed = std::ranges::all_of(choices[i].settings, [&](const FormSetting& setting) {
        return !args.sources.given.contains(setting.flag) || setting.holds(args);
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

RunSpec with_form(const RunSpec& args, const Form& form, int64_t world_size) {
  RunSpec out = args;
  out.placement.fit = false;
  for (size_t axis = 0; axis < kNumFormAxes; ++axis) {
    const FormChoice* choice = form.choice(static_cast<FormAxis>(axis));
    if (choice == nullptr) continue;
    for (const FormSetting& setting : choice->settings) setting.apply(&out);
  }
  resolve_form(FlagTable(), world_size, &out);
  return out;
}

std::vector<std::string> form_flags(const RunSpec& args, const Form& form) {
  std::vector<std::string> flags;
  for (size_t axis = 0; axis < kNumFormAxes; ++axis) {
    const FormChoice* choice = form.choice(static_cast<FormAxis>(axis));
    if (choice == nullptr) continue;
    for (const FormSetting& setting : choice->settings) {
      if (setting.holds(args)) continue;
      flags.push_back(setting.value == "true" ? fmt::format("--{}", setting.flag)
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
