#include "settings/run/schedule_keywords.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>
#include <variant>
#include <vector>

#include "base/error.h"
#include "base/json_value.h"
#include "base/name_hint.h"
#include "base/text.h"

namespace tessera {
namespace {

using nlohmann::json;

// Every read marks its name as known to the schedule; done() rejects the rest. Absent values stay.
class Keywords {
 public:
  Keywords(ScheduleType schedule, const std::string& text) : schedule_(schedule) {
    if (text.empty()) return;
    values_ = json::parse(text, nullptr, /*allow_exceptions=*/false);
    if (values_.is_null()) values_ = json::object();
    if (!values_.is_object()) {
      fail(ExitCode::kBadConfig,
           "lr_scheduler_kwargs: expected a JSON object such as {{\"num_cycles\": 2}}, found '{}'",
           printable(text));
    }
  }

  bool has(const std::string& name) { return find(name) != nullptr; }
  // Whether the value is "auto", which stands for a value derived from the run.
  bool is_auto(const std::string& name) {
    const json* value = find(name);
    return value != nullptr && *value == "auto";
  }

  std::optional<double> number(const std::string& name) {
    const json* value = find(name);
    if (value == nullptr) return std::nullopt;
    if (!value->is_number() || !std::isfinite(value->get<double>())) refuse(name, "a number", *value);
    return value->get<double>();
  }
  std::optional<int64_t> count(const std::string& name, int64_t least = 0) {
    const std::optional<double> value = number(name);
    if (!value) return std::nullopt;
    if (*value < static_cast<double>(least) || *value != std::floor(*value) || *value > 0x1.0p53)
      refuse(name, fmt::format("a whole number of at least {}", least), values_.at(name));
    return static_cast<int64_t>(*value);
  }

  template <typename T>
  void read(const std::string& name, T* value) {
    if (const auto given = number(name)) *value = *given;
  }
  void read(const std::string& name, int64_t* value, int64_t least = 0) {
    *value = count(name, least).value_or(*value);
  }
  void read(const std::string& name, bool* value) {
    const json* given = find(name);
    if (given == nullptr) return;
    if (!given->is_boolean()) refuse(name, "true or false", *given);
    *value = given->get<bool>();
  }
  // The first word names the default, for messages.
  template <typename T>
  void read(const std::string& name, T* value, const std::vector<std::pair<const char*, T>>& words) {
    const json* given = find(name);
    if (given == nullptr) return;
    for (const auto& [word, of_word] : words) {
      if (*given != word) continue;
      *value = of_word;
      return;
    }
    std::vector<std::string> known;
    for (const auto& word : words) known.emplace_back(word.first);
    refuse(name, fmt::format("one of {}", fmt::join(known, ", ")), *given);
  }

  void done() const {
    for (const auto& item : values_.items()) {
      const std::string& name = item.key();
      if (std::ranges::find(known_, name) != known_.end()) continue;
      const std::string nearest = nearest_name(name, known_);
      fail(ExitCode::kBadConfig,
           "lr_scheduler_kwargs: lr_scheduler_type {} has no keyword '{}'{}; it takes {}", schedule_,
           printable(name), nearest.empty() ? "" : fmt::format(" (did you mean '{}'?)", nearest),
           known_.empty() ? "none" : fmt::format("{}", fmt::join(known_, ", ")));
    }
  }
  [[noreturn]] void refuse(const std::string& name, const std::string& expected, const json& found) const {
    fail(ExitCode::kBadConfig, "lr_scheduler_kwargs: {} of lr_scheduler_type {}: expected {}, found {}", name,
         schedule_, expected, found_text(found));
  }
  [[noreturn]] void fail_without(const std::string& what) const {
    fail(ExitCode::kBadConfig, "lr_scheduler_kwargs: lr_scheduler_type {} needs {}", schedule_, what);
  }

 private:
  const json* find(const std::string& name) {
    if (std::ranges::find(known_, name) == known_.end()) known_.push_back(name);
    const auto found = values_.find(name);
    return found == values_.end() || found->is_null() ? nullptr : &*found;
  }

  ScheduleType schedule_;
  json values_ = json::object();
  std::vector<std::string> known_;
};

void read(Keywords&, LinearSchedule*) {}
void read(Keywords&, ConstantSchedule*) {}
void read(Keywords&, ConstantWithWarmup*) {}

void read(Keywords& keywords, CosineSchedule* form) { keywords.read("num_cycles", &form->num_cycles); }

void read(Keywords& keywords, CosineWithRestarts* form) { keywords.read("num_cycles", &form->num_cycles); }

void read(Keywords& keywords, PolynomialSchedule* form) {
  keywords.read("lr_end", &form->lr_end);
  keywords.read("power", &form->power);
}

void read(Keywords& keywords, InverseSqrtSchedule* form) {
  keywords.read("timescale", &form->timescale);
  if (form->timescale && !(*form->timescale > 0)) {
    fail(ExitCode::kBadConfig, "lr_scheduler_kwargs: timescale must be above 0, found {}", *form->timescale);
  }
}

LowestRate read_lowest_rate(Keywords& keywords) {
  const std::optional<double> fraction = keywords.number("min_lr_rate");
  const std::optional<double> rate = keywords.number("min_lr");
  if (fraction.has_value() == rate.has_value())
    keywords.fail_without(
        fmt::format("exactly one of min_lr and min_lr_rate, found {}", fraction ? "both" : "neither"));
  return {fraction ? *fraction : *rate, fraction.has_value()};
}

void read(Keywords& keywords, CosineWithMinLr* form) {
  keywords.read("num_cycles", &form->num_cycles);
  form->lowest = read_lowest_rate(keywords);
}

void read(Keywords& keywords, CosineWarmupWithMinLr* form) {
  keywords.read("num_cycles", &form->num_cycles);
  form->lowest = read_lowest_rate(keywords);
  keywords.read("warmup_lr_rate", &form->warmup_lr_rate);
}

void read(Keywords& keywords, WarmupStableDecay* form) {
  using enum RateCurve;
  const std::optional<int64_t> decay = keywords.count("num_decay_steps");
  form->num_stable_steps = keywords.count("num_stable_steps");
  keywords.read("warmup_type", &form->warmup,
                {{"linear", kLinear}, {"cosine", kCosine}, {"1-sqrt", kOneMinusSqrt}});
  keywords.read("decay_type", &form->decay,
                {{"cosine", kCosine}, {"linear", kLinear}, {"1-sqrt", kOneMinusSqrt}});
  keywords.read("min_lr_ratio", &form->min_lr_ratio);
  keywords.read("num_cycles", &form->num_cycles);
  if (!decay) keywords.fail_without("num_decay_steps");
  form->num_decay_steps = *decay;
}

void read(Keywords& keywords, ReduceLrOnPlateau* form) {
  bool is_max = false;
  keywords.read("mode", &is_max, {{"min", false}, {"max", true}});
  if (keywords.has("mode")) form->greater_is_better = is_max;
  keywords.read("factor", &form->factor);
  keywords.read("patience", &form->patience);
  keywords.read("threshold", &form->threshold);
  keywords.read("threshold_mode", &form->threshold_is_relative, {{"rel", true}, {"abs", false}});
  keywords.read("cooldown", &form->cooldown);
  keywords.read("min_lr", &form->min_lr);
  keywords.read("eps", &form->smallest_change);
  if (!(form->factor < 1))
    fail(ExitCode::kBadConfig, "lr_scheduler_kwargs: factor must be below 1, found {}", form->factor);
}

// DeepSpeed treats an unknown warmup_type as "log"; here it is an error.
void read(Keywords& keywords, DeepSpeedWarmup* form) {
  if (keywords.is_auto("warmup_num_steps")) {
    form->num_steps = std::nullopt;
  } else if (const auto num_steps = keywords.count("warmup_num_steps")) {
    form->num_steps = num_steps;
  }
  keywords.read("warmup_type", &form->is_logarithmic, {{"log", true}, {"linear", false}});
}

std::optional<int64_t> read_total_steps(Keywords& keywords) {
  if (keywords.is_auto("total_num_steps")) return std::nullopt;
  const std::optional<int64_t> total = keywords.count("total_num_steps");
  if (!total) keywords.fail_without("total_num_steps: a number, or \"auto\" for the steps of the run");
  return total;
}

// Reads the range of WarmupLR and WarmupDecayLR.
template <typename Form>
void read_range(Keywords& keywords, Form* form) {
  if (!keywords.is_auto("warmup_min_lr")) keywords.read("warmup_min_lr", &form->min_lr);
  if (keywords.is_auto("warmup_max_lr")) {
    form->max_lr = std::nullopt;
  } else {
    keywords.read("warmup_max_lr", &form->max_lr);
  }
}

void read(Keywords& keywords, WarmupLR* form) {
  read(keywords, &form->warmup);
  read_range(keywords, form);
}

void read(Keywords& keywords, WarmupDecayLR* form) {
  read(keywords, &form->warmup);
  form->total_steps = read_total_steps(keywords);
  read_range(keywords, form);
}

void read(Keywords& keywords, WarmupCosineLR* form) {
  read(keywords, &form->warmup);
  form->total_steps = read_total_steps(keywords);
  keywords.read("warmup_min_ratio", &form->first_ratio);
  keywords.read("cos_min_ratio", &form->last_ratio);
}

void read(Keywords& keywords, LRRangeTest* form) {
  keywords.read("lr_range_test_min_lr", &form->min_lr);
  keywords.read("lr_range_test_step_size", &form->step_size, 1);
  keywords.read("lr_range_test_step_rate", &form->step_rate);
  keywords.read("lr_range_test_staircase", &form->is_staircase);
}

void read_required(Keywords& keywords, const std::string& name, double* value) {
  keywords.read(name, value);
  if (!keywords.has(name)) keywords.fail_without(name);
}

void read_momentum(Keywords& keywords, const std::string& name, double* value) {
  keywords.read(name, value);
  if (!(*value >= 0 && *value < 1)) keywords.refuse(name, "a number from 0 to below 1", *value);
}

// The second half is as the first unless it is given.
void read(Keywords& keywords, OneCycle* form) {
  read_required(keywords, "cycle_min_lr", &form->min_lr);
  read_required(keywords, "cycle_max_lr", &form->max_lr);
  keywords.read("decay_lr_rate", &form->decay_lr_rate);
  keywords.read("cycle_first_step_size", &form->first_size, 1);
  form->second_size = keywords.count("cycle_second_step_size").value_or(form->first_size);
  keywords.read("cycle_first_stair_count", &form->first_stairs);
  form->second_stairs = keywords.count("cycle_second_stair_count").value_or(form->first_stairs);
  keywords.read("decay_step_size", &form->decay_step_size);
  keywords.read("cycle_momentum", &form->cycles_momentum);
  read_momentum(keywords, "cycle_min_mom", &form->min_momentum);
  read_momentum(keywords, "cycle_max_mom", &form->max_momentum);
  keywords.read("decay_mom_rate", &form->decay_momentum_rate);
}

}  // namespace

ScheduleForm read_schedule_keywords(ScheduleType type, const std::string& text) {
  Keywords keywords(type, text);
  ScheduleForm form = schedule_of(type);
  std::visit([&](auto& of_type) { read(keywords, &of_type); }, form);
  keywords.done();
  return form;
}

}  // namespace tessera
