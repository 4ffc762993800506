// One finding about a machine or a folder.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

namespace tessera {

enum class CheckOutcome {
  kOk,
  kAdvice,   // works, but could be better: counts as healthy
  kFailed,   // unhealthy
  kSkipped,  // this machine has nothing of the kind, or does not let this process see it
  kUnknown,  // should have had an answer, but has none
};

struct Check {
  std::string name;  // one word, as in the JSON: "memory_errors"
  CheckOutcome outcome = CheckOutcome::kOk;
  std::string message = {};          // one line: what was found, and what to do about it unless all is well
  std::optional<double> value = {};  // what was measured or counted
  std::optional<double> limit = {};  // what separates healthy from unhealthy
  std::string unit = {};             // of both
};

Check skipped(std::string name, std::string why);
Check unknown(std::string name, std::string why);
Check judged(std::string name, bool failed, double value, double limit, std::string unit,
             std::string message);
// kFailed if `value` lies above `limit`, or below it for at_least().
Check at_most(std::string name, double value, double limit, std::string unit, std::string message);
Check at_least(std::string name, double value, double limit, std::string unit, std::string message);

// Exit codes of the checks, as node problem detectors expect them.
enum class Health { kHealthy = 0, kUnhealthy = 1, kUnknown = 2 };
// kUnhealthy if a check failed, otherwise kUnknown if one is unknown. Checks named in `ignored` do not count.
Health health_of(const std::vector<Check>& checks, const std::vector<std::string>& ignored = {});

// {"healthy": true, "checks": [{"name", "ok", "value", "limit", "unit", "message"}]}; "healthy" and "ok" are
// null if not known.
nlohmann::ordered_json health_json(const std::vector<Check>& checks,
                                   const std::vector<std::string>& ignored = {});

}  // namespace tessera
