// Helpers that sinks use to read entries of log_history.
#pragma once

#include <variant>

#include "report/trainer_state.h"

namespace tessera {

inline double number_of(const LogEntry::Value& value) {
  return std::visit([](auto number) { return static_cast<double>(number); }, value);
}

// An entry of RunLog::add_training(), as opposed to an evaluation or the end of the run.
inline bool is_training_entry(const LogEntry& entry) {
  return !entry.values.empty() && entry.values.front().first == "loss";
}

}  // namespace tessera
