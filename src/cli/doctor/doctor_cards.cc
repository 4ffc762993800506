#include "cli/doctor/doctor_report.h"

#include <fmt/format.h>

#include <optional>

#include "base/text.h"
#include "formats/json.h"

namespace tessera {
namespace {

using CardJson = nlohmann::ordered_json;

std::vector<std::string> names_of_limits(const NvidiaCard& card) {
  std::vector<std::string> names;
  for (const ClockLimitInfo& info : all_clock_limits()) {
    if (card.has(info.limit)) names.emplace_back(info.name);
  }
  return names;
}

CardJson card_json(const NvidiaCard& card) {
  return {{"index", card.index},
          {"name", card.name},
          {"uuid", card.uuid},
          {"error", card.error},
          {"memory_total_bytes", or_null(card.memory_total_bytes)},
          {"memory_free_bytes", or_null(card.memory_free_bytes)},
          {"memory_used_bytes", or_null(card.memory_used_bytes)},
          {"utilization", or_null(card.utilization)},
          {"sm_clock_hertz", or_null(card.sm_clock_hertz)},
          {"max_sm_clock_hertz", or_null(card.max_sm_clock_hertz)},
          {"memory_clock_hertz", or_null(card.memory_clock_hertz)},
          {"max_memory_clock_hertz", or_null(card.max_memory_clock_hertz)},
          {"power_watts", or_null(card.power_watts)},
          {"power_limit_watts", or_null(card.power_limit_watts)},
          {"temperature_celsius", or_null(card.temperature_celsius)},
          {"clock_limits", card.clock_limits ? CardJson(names_of_limits(card)) : CardJson()},
          {"corrected_errors", or_null(card.corrected_errors)},
          {"uncorrected_errors", or_null(card.uncorrected_errors)},
          {"pcie_generation", or_null(card.link_generation)},
          {"max_pcie_generation", or_null(card.max_link_generation)},
          {"pcie_lanes", or_null(card.link_width)},
          {"max_pcie_lanes", or_null(card.max_link_width)}};
}

// "345 of 1980 MHz"; "" without the first.
std::string now_of_most(std::optional<double> now, std::optional<double> most, const char* unit) {
  if (!now) return "";
  return most ? fmt::format("{:.0f} of {:.0f}{}", *now, *most, unit) : fmt::format("{:.0f}{}", *now, unit);
}

std::optional<double> megahertz(const std::optional<int64_t>& hertz) {
  return hertz ? std::optional(static_cast<double>(*hertz) / 1e6) : std::nullopt;
}

class CardLine {
 public:
  void add(const char* name, const std::string& value) {
    if (value.empty()) return;
    if (!text_.empty()) text_ += ", ";
    text_ += name + value;
  }
  const std::string& text() const { return text_; }

 private:
  std::string text_;
};

std::vector<std::string> lines_of_card(const NvidiaCard& card) {
  if (!card.error.empty()) return {fmt::format("does not answer: {}", card.error)};
  CardLine memory, speed, state;
  memory.add("", card.name);
  if (card.memory_total_bytes) memory.add("", format_bytes(*card.memory_total_bytes));
  if (card.memory_free_bytes) memory.add("", format_bytes(*card.memory_free_bytes) + " free");
  speed.add("SM ", now_of_most(megahertz(card.sm_clock_hertz), megahertz(card.max_sm_clock_hertz), " MHz"));
  speed.add("memory ",
            now_of_most(megahertz(card.memory_clock_hertz), megahertz(card.max_memory_clock_hertz), " MHz"));
  std::vector<std::string> names = names_of_limits(card);
  std::erase(names, "idle");  // that is no limit
  std::string limits = fmt::format("{}", fmt::join(names, ", "));
  for (char& each : limits) each = each == '_' ? ' ' : each;
  if (!limits.empty() && !speed.text().empty()) speed.add("", fmt::format("limited by: {}", limits));
  state.add("", now_of_most(card.power_watts, card.power_limit_watts, " W"));
  if (card.temperature_celsius) state.add("", fmt::format("{} degrees Celsius", *card.temperature_celsius));
  state.add("PCIe generation ", now_of_most(card.link_generation, card.max_link_generation, ""));
  state.add("", now_of_most(card.link_width, card.max_link_width, " lanes"));
  std::vector<std::string> lines;
  for (const CardLine* line : {&memory, &speed, &state}) {
    if (!line->text().empty()) lines.push_back(line->text());
  }
  if (lines.empty()) lines.emplace_back("says nothing about itself");
  return lines;
}

bool is_warning(const Check& check) {
  return check.outcome == CheckOutcome::kFailed || check.outcome == CheckOutcome::kAdvice;
}

}  // namespace

CardJson cards_json(const NvidiaCards& found, const std::vector<Check>& checks) {
  CardJson cards = CardJson::array(), warnings = CardJson::array();
  for (const NvidiaCard& card : found.cards) cards.push_back(card_json(card));
  for (const Check& check : checks) {
    if (is_warning(check)) warnings.push_back({{"name", check.name}, {"message", check.message}});
  }
  return {{"driver", found.driver}, {"error", found.error}, {"cards", cards}, {"warnings", warnings}};
}

DoctorRows card_rows(const NvidiaCards& found, const std::vector<Check>& checks) {
  DoctorRows rows;
  if (!found.driver.empty()) rows.emplace_back("driver", found.driver);
  for (const NvidiaCard& card : found.cards) {
    std::string name = fmt::format("card {}", card.index);
    for (const std::string& line : lines_of_card(card)) rows.emplace_back(std::exchange(name, ""), line);
  }
  for (const Check& check : checks) {
    if (is_warning(check)) rows.emplace_back("warning", check.message);
  }
  return rows;
}

}  // namespace tessera
