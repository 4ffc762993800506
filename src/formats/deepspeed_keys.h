// Every key of a DeepSpeed configuration that is known: its type, and what becomes of it here. This table is
// what docs/deepspeed.md shows.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "base/name_hint.h"
#include "formats/json.h"

namespace tessera {

enum class DeepSpeedType { kBool, kCount, kInteger, kNumber, kText, kList, kObject, kAny };

enum class DeepSpeedTreatment {
  kUsed,      // decides something of the run
  kNoEffect,  // noted, with the reason
  kSilent,    // settings of something that is off anyway
  kRefused,   // refused unless it has its harmless value
};

struct DeepSpeedSection;

struct DeepSpeedKey {
  const char* name;
  DeepSpeedType type;
  DeepSpeedTreatment treatment;
  const char* reason = "";                    // of kNoEffect and kRefused
  const char* alias = nullptr;                // another spelling
  const char* harmless = nullptr;             // of kRefused: the accepted value as JSON, besides null
  const DeepSpeedSection* section = nullptr;  // of kObject: its keys; without one they are not looked at
  bool takes_auto = false;                    // "auto" reaches the caller
};

struct DeepSpeedSection {
  bool strict;      // DeepSpeed refuses unknown keys here
  bool drops_auto;  // "auto" stands for the default
  std::span<const DeepSpeedKey> keys;
  std::span<const ForeignNames> foreign = {};  // for hints
};

// Something to tell about a key.
struct DeepSpeedNote {
  std::string key;  // "zero_optimization.overlap_comm"
  std::string text;
  bool is_warning = false;
};

extern const DeepSpeedSection kDeepSpeedTopLevel;
extern const DeepSpeedSection kDeepSpeedOptimizerParams;  // of Adam and AdamW
extern const DeepSpeedSection kDeepSpeedSchedulerParams;  // of all schedules

// Names with the path before them, for the documentation's test.
std::vector<std::string> deepspeed_key_names();

// `object` with canonical names and converted values (5e8 -> 500000000, "2" -> 2, "true" -> true), without
// nulls and without what has no effect. Errors (kBadConfig): "FILE: KEY: expected ..., found ...; what to
// do".
Json check_deepspeed_keys(const Json& object, const DeepSpeedSection& section, const std::string& origin,
                          std::vector<DeepSpeedNote>* notes);

}  // namespace tessera
