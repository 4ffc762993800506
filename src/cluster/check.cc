#include "cluster/check.h"

#include <algorithm>
#include <utility>

#include "formats/json.h"

namespace tessera {
namespace {

using OrderedJson = nlohmann::ordered_json;

OrderedJson ok_or_null(CheckOutcome outcome) {
  if (outcome == CheckOutcome::kSkipped || outcome == CheckOutcome::kUnknown) return {};
  return outcome != CheckOutcome::kFailed;
}

bool contains(const std::vector<std::string>& names, const std::string& name) {
  return std::ranges::find(names, name) != names.end();
}

}  // namespace

Check skipped(std::string name, std::string why) {
  return {.name = std::move(name), .outcome = CheckOutcome::kSkipped, .message = std::move(why)};
}

Check unknown(std::string name, std::string why) {
  return {.name = std::move(name), .outcome = CheckOutcome::kUnknown, .message = std::move(why)};
}

Check judged(std::string name, bool failed, double value, double limit, std::string unit,
             std::string message) {
  return {.name = std::move(name),
          .outcome = failed ? CheckOutcome::kFailed : CheckOutcome::kOk,
          .message = std::move(message),
          .value = value,
          .limit = limit,
          .unit = std::move(unit)};
}

Check at_most(std::string name, double value, double limit, std::string unit, std::string message) {
  return judged(std::move(name), !(value <= limit), value, limit, std::move(unit), std::move(message));
}

Check at_least(std::string name, double value, double limit, std::string unit, std::string message) {
  return judged(std::move(name), !(value >= limit), value, limit, std::move(unit), std::move(message));
}

Health health_of(const std::vector<Check>& checks, const std::vector<std::string>& ignored) {
  Health health = Health::kHealthy;
  for (const Check& check : checks) {
    if (contains(ignored, check.name)) continue;
    if (check.outcome == CheckOutcome::kFailed) return Health::kUnhealthy;
    if (check.outcome == CheckOutcome::kUnknown) health = Health::kUnknown;
  }
  return health;
}

OrderedJson health_json(const std::vector<Check>& checks, const std::vector<std::string>& ignored) {
  const Health health = health_of(checks, ignored);
  OrderedJson list = OrderedJson::array();
  for (const Check& check : checks) {
    list.push_back({{"name", check.name},
                    {"ok", ok_or_null(check.outcome)},
                    {"value", or_null(check.value)},
                    {"limit", or_null(check.limit)},
                    {"unit", check.unit},
                    {"message", check.message}});
    if (contains(ignored, check.name)) list.back()["ignored"] = true;
  }
  return {{"healthy", health == Health::kUnknown ? OrderedJson() : OrderedJson(health == Health::kHealthy)},
          {"checks", list}};
}

}  // namespace tessera
