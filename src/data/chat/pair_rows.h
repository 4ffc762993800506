// Rows as LLaMA-Factory reads them (data/parser.py, data/converter.py and data/processor/supervised.py of
// LLaMA-Factory 0.9.5): pairs of a question and its answer.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "base/error.h"

namespace tessera {

struct PairRules {
  enum class Targets { kAnswers, kLastAnswer, kEverything };

  Targets targets = Targets::kAnswers;
  // For rows without a system message; "" = these have none; unset = what the template has for them.
  std::optional<std::string> default_system = {};
  bool operator==(const PairRules&) const = default;

  // For cache keys.
  std::string text() const;
};

const char* pair_targets_name(PairRules::Targets targets);  // "answers", "last_answer", "everything"
std::optional<PairRules::Targets> pair_targets_by_name(std::string_view name);

// A row that is skipped and counted whether or not skip_bad_rows is set: LLaMA-Factory leaves it out.
class LeftOutRow : public Error {
 public:
  using Error::Error;
};

}  // namespace tessera
