#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/text.h"
#include "forecast/fit/fit_options.h"
#include "forecast/text/plan_text.h"

namespace tessera {
namespace {

constexpr size_t kMostShown = 20;
constexpr size_t kMostUnreached = 5;

const char* lacks(const FitOption& option) {
  if (option.fits()) return "";
  return option.fits_memory ? "disk" : option.fits_disk ? "memory" : "both";
}

// The axes of the table. Adapters are updated after the backward pass, other weights are not quantized.
std::array<FitAxis, 5> shown_axes(const FitOptions& options) {
  const bool is_lora = options.spec.lora.finetuning_type == FinetuningType::kLora;
  return {FitAxis::kOptimizer, FitAxis::kState, FitAxis::kWeights,
          is_lora ? FitAxis::kBase : FitAxis::kUpdate, FitAxis::kActivations};
}

std::array<std::string, kNumFitAxes> words_of(const FitOptions& options, const FitOption& option) {
  auto words = option.words;
  std::string& base = words[static_cast<size_t>(FitAxis::kBase)];
  if (base == "bf16" && options.spec.precision.dtype == DType::kF32) base = "f32";
  return words;
}

std::string option_columns(const FitOptions& options, const std::array<std::string, kNumFitAxes>& by_axis,
                           const std::string& memory, const std::string& disk, const std::string& step,
                           const std::string& last) {
  std::vector<std::string> words;
  for (const FitAxis axis : shown_axes(options)) words.push_back(by_axis[static_cast<size_t>(axis)]);
  return fmt::format("{:<6} {:<7}{:<8}{:<9}{:<9} {:>9} {:>9} {:>6} {:>6}\n", words[0], words[1], words[2],
                     words[3], words[4], memory, disk, step, last);
}

std::string option_line(const FitOptions& options, size_t index, const std::string& last) {
  const FitOption& option = options.all[index];
  return (options.best == index ? "best " : "     ") +
         option_columns(options, words_of(options, option), format_bytes(option.memory_bytes),
                        option.disk_bytes == 0 ? "-" : format_bytes(option.disk_bytes),
                        three_digits(option.time.step_s()), last);
}

// The effect of the option on the numbers of a run, if any.
std::string numbers_text(const FitOption& option) {
  const auto [base, optimizer, update] = option.changes;
  std::vector<std::string> changes;
  if (base > 0) changes.push_back(fmt::format("frozen weights in {}", option.word(FitAxis::kBase)));
  if (optimizer > 0) changes.push_back(fmt::format("{} moments", option.word(FitAxis::kOptimizer)));
  if (update > 0)
    changes.push_back(fmt::format("clipping by the norm of the {}", update == 1 ? "step before" : "layer"));
  return changes.empty() ? "those of the exact form" : fmt::format("{}", fmt::join(changes, ", "));
}

nlohmann::ordered_json index_json(const std::optional<size_t>& option) {
  return option ? nlohmann::ordered_json(*option) : nlohmann::ordered_json();
}

size_t least(const FitOptions& options, auto figure) {
  size_t least = 0;
  for (size_t i = 1; i < options.all.size(); ++i) {
    if (figure(options.all[i]) < figure(options.all[least])) least = i;
  }
  return least;
}

}  // namespace

std::string option_text(const FitOptions& options, size_t option) {
  const FitOption& chosen = options.all[option];
  const std::vector<std::string> flags = candidate_flags(options.spec, chosen.candidate);
  return fmt::format(
      "{} ({} of memory{})", flags.empty() ? "these settings" : fmt::format("{}", fmt::join(flags, " ")),
      format_bytes(chosen.memory_bytes),
      chosen.disk_bytes == 0 ? "" : fmt::format(", {} of disk", format_bytes(chosen.disk_bytes)));
}

std::string choice_text(const FitOptions& options) {
  const size_t taken = *options.taken();
  const FitOption& option = options.all[taken];
  const auto num_fitting = std::ranges::count_if(options.all, [](const FitOption& of) { return of.fits(); });
  return fmt::format("{}, about {} s a step: of {} that fit, the fastest{} ({})", option_text(options, taken),
                     three_digits(option.time.step_s()), format_count(num_fitting, "form"),
                     options.spec.placement.fit_choice == FitChoice::kFastest
                         ? ""
                         : " of those that change the numbers least",
                     numbers_text(option));
}

std::string fit_advice(const FitRequest& request) {
  const FitOptions options = fit_options(request);
  if (options.best) return "; --fit would take " + option_text(options, *options.taken());
  const std::optional<FitOptions> lora = lora_fit_options(request);
  if (!lora || !lora->best) return "";
  return "; --peft lora would fit with " + option_text(*lora, *lora->taken());
}

std::string fit_refusal(const FitOptions& options, const std::optional<FitOptions>& lora) {
  if (options.best) return "";
  std::string text = fmt::format(
      "no form of the run fits into {} of memory and {} of disk{}", format_bytes(options.memory_bytes),
      format_bytes(options.free_disk_bytes),
      options.model_bytes == 0
          ? ""
          : fmt::format(", of which the finished model takes {}", format_bytes(options.model_bytes)));
  if (!options.all.empty()) {
    const size_t in_memory = least(
        options, [](const FitOption& option) { return std::pair(option.memory_bytes, option.disk_bytes); });
    const size_t on_disk = least(options, [](const FitOption& option) {
      return std::tuple(!option.fits_disk, option.memory_bytes, option.disk_bytes);
    });
    text += "; the least memory takes " + option_text(options, in_memory);
    if (on_disk != in_memory && options.all[on_disk].fits_disk) {
      text += "; with this disk it takes " + option_text(options, on_disk);
    }
  }
  if (lora && lora->best) {
    text += "; adapters fit: --peft lora with " + option_text(*lora, *lora->taken());
  }
  return text;
}

std::string fit_text(const FitOptions& options) {
  std::string text =
      fmt::format("limits   {} of memory, {} of disk at {} GB/s\n", format_bytes(options.memory_bytes),
                  format_bytes(options.free_disk_bytes), three_digits(options.disk_gb_per_s));
  const std::vector<size_t> fitting = options.worth_having(), others = options.out_of_reach();
  const std::array<std::string, kNumFitAxes> head = {"optim",  "state",   "weights",
                                                     "update", "outputs", "base"};
  if (!fitting.empty()) {
    const double fastest_s = options.all[fitting.front()].time.step_s();
    text += "fits\n     " + option_columns(options, head, "memory", "disk", "step s", "times");
    for (size_t i = 0; i < fitting.size(); ++i) {
      if (i >= kMostShown && fitting[i] != options.best) continue;
      text += option_line(options, fitting[i],
                          fmt::format("{:.2f}", options.all[fitting[i]].time.step_s() / fastest_s));
    }
  }
  if (!others.empty()) {
    text += "does not fit\n     " + option_columns(options, head, "memory", "disk", "step s", "lacks");
    for (size_t i = 0; i < std::min(others.size(), kMostUnreached); ++i) {
      text += option_line(options, others[i], lacks(options.all[others[i]]));
    }
  }
  if (!options.best) return text;
  const FitOption& taken = options.all[*options.taken()];
  const auto add_flags = [&](const char* name, size_t option) {
    const std::vector<std::string> flags = candidate_flags(options.spec, options.all[option].candidate);
    text += flags.empty() ? fmt::format("{:<9}these settings\n", name)
                          : wrapped(fmt::format("{:<8}", name), flags, 9);
    text += fmt::format("         numbers: {}\n", numbers_text(options.all[option]));
  };
  add_flags("best", *options.best);
  if (*options.fastest != *options.best) add_flags("fastest", *options.fastest);
  const int64_t left = options.free_disk_bytes - taken.disk_bytes_with(options.model_bytes);
  text += fmt::format("disk     {} in offload_dir, {} for the model;\n         room for {} of {}\n",
                      format_bytes(taken.disk_bytes), format_bytes(options.model_bytes),
                      format_count(left / options.checkpoint_bytes, "checkpoint"),
                      format_bytes(options.checkpoint_bytes));
  return text + fmt::format("time     {} s a step\n", three_digits(taken.time.step_s())) +
         indented(step_time_text(taken.time));
}

std::string fit_json(const FitOptions& options) {
  const std::vector<size_t> fitting = options.worth_having();
  nlohmann::ordered_json forms = nlohmann::ordered_json::array();
  for (size_t i = 0; i < options.all.size(); ++i) {
    const FitOption& option = options.all[i];
    const auto words = words_of(options, option);
    forms.push_back({{"optimizer", words[0]},
                     {"state", words[1]},
                     {"weights", words[2]},
                     {"update", words[3]},
                     {"outputs", words[4]},
                     {"base", words[5]},
                     {"flags", candidate_flags(options.spec, option.candidate)},
                     {"memory_bytes", option.memory_bytes},
                     {"disk_bytes", option.disk_bytes},
                     {"discarded_disk_bytes", option.discarded_disk_bytes},
                     {"fits", option.fits()},
                     {"lacks", lacks(option)},
                     {"rounds_base", option.changes[0] > 0},
                     {"rounds_moments", option.changes[1] > 0},
                     {"clips_differently", option.changes[2] > 0},
                     {"worth_having", std::ranges::find(fitting, i) != fitting.end()},
                     {"time", step_time_json(option.time)}});
  }
  const nlohmann::ordered_json out = {
      {"memory_bytes", options.memory_bytes},         {"free_disk_bytes", options.free_disk_bytes},
      {"disk_gb_per_s", options.disk_gb_per_s},       {"model_bytes", options.model_bytes},
      {"checkpoint_bytes", options.checkpoint_bytes}, {"best", index_json(options.best)},
      {"fastest", index_json(options.fastest)},       {"forms", forms}};
  return out.dump(2) + "\n";
}

}  // namespace tessera
