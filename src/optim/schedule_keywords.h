// The keywords of lr_scheduler_kwargs, as the schedules read them.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "optim/schedule.h"

namespace tessera {

// Every getter marks its name as known to the schedule; done() rejects the rest. A null counts as absent,
// like None in Python. Errors are kBadConfig and name schedule and keyword.
class Keywords {
 public:
  // `text`: a JSON object, "" = none.
  Keywords(ScheduleType schedule, const std::string& text);

  std::optional<double> number(const std::string& name);
  double number(const std::string& name, double otherwise) { return number(name).value_or(otherwise); }
  std::optional<int64_t> count(const std::string& name);
  std::optional<bool> boolean(const std::string& name);
  // The first choice if absent.
  std::string choice(const std::string& name, const std::vector<std::string>& choices);
  bool has(const std::string& name) { return find(name) != nullptr; }
  // Whether the value is "auto", which stands for a value derived from the run.
  bool is_auto(const std::string& name);

  void done() const;
  [[noreturn]] void refuse(const std::string& name, const std::string& expected,
                           const nlohmann::json& found) const;

 private:
  const nlohmann::json* find(const std::string& name);

  ScheduleType schedule_;
  nlohmann::json values_ = nlohmann::json::object();
  std::vector<std::string> known_;
};

}  // namespace tessera
