// The keys of a DeepSpeed configuration, checked by the table compat/deepspeed.tsv. There the types of keys
// are bool, count, integer, number, text, list, object or any, followed by "auto" where "auto" is a value (of
// an object: stands for the default of any key in it), "null" where DeepSpeed takes null for the default, and
// "strict" for an object in which DeepSpeed refuses unknown keys. docs/compat.md shows the table.
#pragma once

#include <string>
#include <vector>

#include "formats/json.h"

namespace tessera {

// A message to the user about a key.
struct DeepSpeedNote {
  std::string key;  // "zero_optimization.overlap_comm"
  std::string text;
  bool is_warning = false;
};

// Returns the whole configuration with canonical names and converted values (5e8 -> 500000000, "2" -> 2,
// "true" -> true), without nulls and without keys that have no effect. All mistakes are reported in one error
// (kBadConfig): "FILE: KEY: expected ..., found ...; what to do".
Json check_deepspeed_keys(const Json& whole, const std::string& origin, std::vector<DeepSpeedNote>* notes);

}  // namespace tessera
