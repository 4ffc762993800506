#include "optim/schedule_keywords.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/error.h"
#include "base/json_value.h"
#include "base/name_hint.h"
#include "base/text.h"

namespace tessera {

using nlohmann::json;

Keywords::Keywords(ScheduleType schedule, const std::string& text) : schedule_(schedule) {
  if (text.empty()) return;
  values_ = json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (values_.is_null()) values_ = json::object();
  if (!values_.is_object()) {
    fail(ExitCode::kBadConfig,
         "lr_scheduler_kwargs: expected a JSON object such as {{\"num_cycles\": 2}}, found '{}'",
         printable(text));
  }
}

std::optional<double> Keywords::number(const std::string& name) {
  const json* value = find(name);
  if (value == nullptr) return std::nullopt;
  if (!value->is_number() || !std::isfinite(value->get<double>())) refuse(name, "a number", *value);
  return value->get<double>();
}

std::optional<int64_t> Keywords::count(const std::string& name) {
  const std::optional<double> value = number(name);
  if (!value) return std::nullopt;
  if (*value < 0 || *value != std::floor(*value) || *value > 0x1.0p53) {
    refuse(name, "a whole number of at least 0", values_.at(name));
  }
  return static_cast<int64_t>(*value);
}

std::optional<bool> Keywords::boolean(const std::string& name) {
  const json* value = find(name);
  if (value == nullptr) return std::nullopt;
  if (!value->is_boolean()) refuse(name, "true or false", *value);
  return value->get<bool>();
}

std::string Keywords::choice(const std::string& name, const std::vector<std::string>& choices) {
  const json* value = find(name);
  if (value == nullptr) return choices.front();
  if (!value->is_string() ||
      std::find(choices.begin(), choices.end(), value->get<std::string>()) == choices.end()) {
    refuse(name, fmt::format("one of {}", fmt::join(choices, ", ")), *value);
  }
  return value->get<std::string>();
}

bool Keywords::is_auto(const std::string& name) {
  const json* value = find(name);
  return value != nullptr && *value == "auto";
}

void Keywords::done() const {
  for (const auto& item : values_.items()) {
    const std::string& name = item.key();
    if (std::find(known_.begin(), known_.end(), name) != known_.end()) continue;
    const std::string nearest = nearest_name(name, known_);
    fail(ExitCode::kBadConfig, "lr_scheduler_kwargs: lr_scheduler_type {} has no keyword '{}'{}; it takes {}",
         schedule_, printable(name), nearest.empty() ? "" : fmt::format(" (did you mean '{}'?)", nearest),
         known_.empty() ? "none" : fmt::format("{}", fmt::join(known_, ", ")));
  }
}

void Keywords::refuse(const std::string& name, const std::string& expected, const json& found) const {
  fail(ExitCode::kBadConfig, "lr_scheduler_kwargs: {} of lr_scheduler_type {}: expected {}, found {}", name,
       schedule_, expected, found_text(found));
}

const json* Keywords::find(const std::string& name) {
  if (std::find(known_.begin(), known_.end(), name) == known_.end()) known_.push_back(name);
  const auto found = values_.find(name);
  return found == values_.end() || found->is_null() ? nullptr : &*found;
}

}  // namespace tessera
