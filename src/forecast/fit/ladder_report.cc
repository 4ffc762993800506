#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>

#include "base/text.h"
#include "forecast/fit/ladder.h"
#include "forecast/text/plan_text.h"

namespace tessera {
namespace {

constexpr size_t kMostShown = 20;
constexpr size_t kMostUnreached = 5;

const char* lacks(const Rung& rung) {
  if (rung.fits()) return "";
  return rung.fits_memory ? "disk" : rung.fits_disk ? "memory" : "both";
}

// The axes of the table. Adapters are updated after the backward pass, other weights are not quantised.
std::array<FormAxis, 5> shown_axes(const Ladder& ladder) {
  const bool is_lora = ladder.args.lora.finetuning_type == FinetuningType::kLora;
  return {FormAxis::kOptimizer, FormAxis::kState, FormAxis::kWeights,
          is_lora ? FormAxis::kBase : FormAxis::kUpdate, FormAxis::kActivations};
}

std::array<std::string, kNumFormAxes> words_of(const Ladder& ladder, const Rung& rung) {
  auto words = form_words(rung.form);
  std::string& base = words[static_cast<size_t>(FormAxis::kBase)];
  if (base == "bf16" && ladder.args.precision.dtype == DType::kF32) base = "f32";
  return words;
}

std::string rung_columns(const Ladder& ladder, const std::array<std::string, kNumFormAxes>& by_axis,
                         const std::string& memory, const std::string& disk, const std::string& step,
                         const std::string& last) {
  std::vector<std::string> words;
  for (const FormAxis axis : shown_axes(ladder)) words.push_back(by_axis[static_cast<size_t>(axis)]);
  return fmt::format("{:<6} {:<7}{:<8}{:<9}{:<9} {:>9} {:>9} {:>6} {:>6}\n", words[0], words[1], words[2],
                     words[3], words[4], memory, disk, step, last);
}

std::string rung_line(const Ladder& ladder, size_t index, const std::string& last) {
  const Rung& rung = ladder.rungs[index];
  return (ladder.best == index ? "best " : "     ") +
         rung_columns(ladder, words_of(ladder, rung), format_bytes(rung.memory_bytes),
                      rung.disk_bytes == 0 ? "-" : format_bytes(rung.disk_bytes),
                      three_digits(rung.time.step_s()), last);
}

// What the form changes in the numbers of a run, if anything.
std::string numbers_text(const Form& form) {
  const FormChoice *optimizer = form.choice(FormAxis::kOptimizer), *update = form.choice(FormAxis::kUpdate);
  const FormChoice* base = form.choice(FormAxis::kBase);
  std::vector<std::string> changes;
  if (base && base->change > 0) changes.push_back(fmt::format("frozen weights in {}", base->word));
  if (optimizer && optimizer->change > 0) changes.push_back(fmt::format("{} moments", optimizer->word));
  if (update && update->change > 0)
    changes.push_back(
        fmt::format("clipping by the norm of the {}", update->change == 1 ? "step before" : "layer"));
  return changes.empty() ? "those of the exact form" : fmt::format("{}", fmt::join(changes, ", "));
}

nlohmann::ordered_json index_json(const std::optional<size_t>& rung) {
  return rung ? nlohmann::ordered_json(*rung) : nlohmann::ordered_json();
}

size_t least(const Ladder& ladder, auto figure) {
  size_t least = 0;
  for (size_t i = 1; i < ladder.rungs.size(); ++i) {
    if (figure(ladder.rungs[i]) < figure(ladder.rungs[least])) least = i;
  }
  return least;
}

}  // namespace

std::string rung_text(const Ladder& ladder, size_t rung) {
  const Rung& chosen = ladder.rungs[rung];
  const std::vector<std::string> flags = form_flags(ladder.args, chosen.form);
  return fmt::format(
      "{} ({} of memory{})", flags.empty() ? "these settings" : fmt::format("{}", fmt::join(flags, " ")),
      format_bytes(chosen.memory_bytes),
      chosen.disk_bytes == 0 ? "" : fmt::format(", {} of disk", format_bytes(chosen.disk_bytes)));
}

std::string choice_text(const Ladder& ladder) {
  const size_t taken = *ladder.taken();
  const Rung& rung = ladder.rungs[taken];
  const auto num_fitting = std::ranges::count_if(ladder.rungs, [](const Rung& of) { return of.fits(); });
  return fmt::format("{}, about {} s a step: of {} that fit, the fastest{} ({})", rung_text(ladder, taken),
                     three_digits(rung.time.step_s()), format_count(num_fitting, "form"),
                     ladder.args.placement.fit_choice == FitChoice::kFastest
                         ? ""
                         : " of those that change the numbers least",
                     numbers_text(rung.form));
}

std::string form_advice(const LadderRequest& request) {
  const Ladder ladder = plan_ladder(request);
  if (ladder.best) return "; --fit would take " + rung_text(ladder, *ladder.taken());
  const std::optional<Ladder> lora = plan_lora_ladder(request);
  if (!lora || !lora->best) return "";
  return "; --peft lora would fit with " + rung_text(*lora, *lora->taken());
}

std::string ladder_refusal(const Ladder& ladder, const std::optional<Ladder>& lora) {
  if (ladder.best) return "";
  std::string text = fmt::format(
      "no form of the run fits into {} of memory and {} of disk{}", format_bytes(ladder.memory_bytes),
      format_bytes(ladder.free_disk_bytes),
      ladder.model_bytes == 0
          ? ""
          : fmt::format(", of which the finished model takes {}", format_bytes(ladder.model_bytes)));
  if (!ladder.rungs.empty()) {
    const size_t in_memory =
        least(ladder, [](const Rung& rung) { return std::pair(rung.memory_bytes, rung.disk_bytes); });
    const size_t on_disk = least(ladder, [](const Rung& rung) {
      return std::tuple(!rung.fits_disk, rung.memory_bytes, rung.disk_bytes);
    });
    text += "; the least memory takes " + rung_text(ladder, in_memory);
    if (on_disk != in_memory && ladder.rungs[on_disk].fits_disk) {
      text += "; with this disk it takes " + rung_text(ladder, on_disk);
    }
  }
  if (lora && lora->best) {
    text += "; adapters fit: --peft lora with " + rung_text(*lora, *lora->taken());
  }
  return text;
}

std::string ladder_text(const Ladder& ladder) {
  std::string text =
      fmt::format("limits   {} of memory, {} of disk at {} GB/s\n", format_bytes(ladder.memory_bytes),
                  format_bytes(ladder.free_disk_bytes), three_digits(ladder.disk_gb_per_s));
  const std::vector<size_t> fitting = ladder.worth_having(), others = ladder.out_of_reach();
  const std::array<std::string, kNumFormAxes> head = {"optim",  "state",   "weights",
                                                      "update", "outputs", "base"};
  if (!fitting.empty()) {
    const double fastest_s = ladder.rungs[fitting.front()].time.step_s();
    text += "fits\n     " + rung_columns(ladder, head, "memory", "disk", "step s", "times");
    for (size_t i = 0; i < fitting.size(); ++i) {
      if (i >= kMostShown && fitting[i] != ladder.best) continue;
      text += rung_line(ladder, fitting[i],
                        fmt::format("{:.2f}", ladder.rungs[fitting[i]].time.step_s() / fastest_s));
    }
  }
  if (!others.empty()) {
    text += "does not fit\n     " + rung_columns(ladder, head, "memory", "disk", "step s", "lacks");
    for (size_t i = 0; i < std::min(others.size(), kMostUnreached); ++i) {
      text += rung_line(ladder, others[i], lacks(ladder.rungs[others[i]]));
    }
  }
  if (!ladder.best) return text;
  const Rung& taken = ladder.rungs[*ladder.taken()];
  const auto add_flags = [&](const char* name, size_t rung) {
    const std::vector<std::string> flags = form_flags(ladder.args, ladder.rungs[rung].form);
    text += flags.empty() ? fmt::format("{:<9}these settings\n", name)
                          : wrapped(fmt::format("{:<8}", name), flags, 9);
    text += fmt::format("         numbers: {}\n", numbers_text(ladder.rungs[rung].form));
  };
  add_flags("best", *ladder.best);
  if (*ladder.fastest != *ladder.best) add_flags("fastest", *ladder.fastest);
  const int64_t left = ladder.free_disk_bytes - taken.disk_bytes_with(ladder.model_bytes);
  text += fmt::format("disk     {} in offload_dir, {} for the model;\n         room for {} of {}\n",
                      format_bytes(taken.disk_bytes), format_bytes(ladder.model_bytes),
                      format_count(left / ladder.checkpoint_bytes, "checkpoint"),
                      format_bytes(ladder.checkpoint_bytes));
  return text + fmt::format("time     {} s a step\n", three_digits(taken.time.step_s())) +
         indented(step_time_text(taken.time));
}

std::string ladder_json(const Ladder& ladder) {
  const std::vector<size_t> fitting = ladder.worth_having();
  nlohmann::ordered_json forms = nlohmann::ordered_json::array();
  for (size_t i = 0; i < ladder.rungs.size(); ++i) {
    const Rung& rung = ladder.rungs[i];
    const auto words = words_of(ladder, rung);
    forms.push_back({{"optimizer", words[0]},
                     {"state", words[1]},
                     {"weights", words[2]},
                     {"update", words[3]},
                     {"outputs", words[4]},
                     {"base", words[5]},
                     {"flags", form_flags(ladder.args, rung.form)},
                     {"memory_bytes", rung.memory_bytes},
                     {"disk_bytes", rung.disk_bytes},
                     {"discarded_disk_bytes", rung.discarded_disk_bytes},
                     {"fits", rung.fits()},
                     {"lacks", lacks(rung)},
                     {"rounds_base", rung.form.changes()[0] > 0},
                     {"rounds_moments", rung.form.changes()[1] > 0},
                     {"clips_differently", rung.form.changes()[2] > 0},
                     {"worth_having", std::ranges::find(fitting, i) != fitting.end()},
                     {"time", step_time_json(rung.time)}});
  }
  const nlohmann::ordered_json out = {
      {"memory_bytes", ladder.memory_bytes},         {"free_disk_bytes", ladder.free_disk_bytes},
      {"disk_gb_per_s", ladder.disk_gb_per_s},       {"model_bytes", ladder.model_bytes},
      {"checkpoint_bytes", ladder.checkpoint_bytes}, {"best", index_json(ladder.best)},
      {"fastest", index_json(ladder.fastest)},       {"forms", forms}};
  return out.dump(2) + "\n";
}

}  // namespace tessera
