// Every known key of a DeepSpeed configuration: its type and how we treat it. docs/deepspeed.md shows this
// table.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "base/name_hint.h"
#include "formats/json.h"

namespace tessera {

enum class DeepSpeedType { kBool, kCount, kInteger, kNumber, kText, kList, kObject, kAny };

enum class DeepSpeedTreatment {
  kUsed,      // sets something in the run
  kNoEffect,  // reported in a note with the reason
  kSilent,    // settings of a feature that is off anyway
  kRefused,   // rejected unless it has its harmless value
};

struct DeepSpeedSection;

struct DeepSpeedKey {
  const char* name;
  DeepSpeedType type;
  DeepSpeedTreatment treatment;
  const char* reason = "";                    // for kNoEffect and kRefused
  const char* alias = nullptr;                // another spelling
  const char* harmless = nullptr;             // for kRefused: the accepted value as JSON, besides null
  const DeepSpeedSection* section = nullptr;  // for kObject: its keys; nullptr = not checked
  bool takes_auto = false;                    // "auto" is passed through to the caller
  bool takes_null = false;                    // of kUsed: null is as if the key were absent, as in DeepSpeed
};

struct DeepSpeedSection {
  bool strict;      // DeepSpeed refuses unknown keys here
  bool drops_auto;  // "auto" means the default
  std::span<const DeepSpeedKey> keys;
  std::span<const ForeignNames> foreign = {};  // for hints
};

// A message to the user about a key.
struct DeepSpeedNote {
  std::string key;  // "zero_optimization.overlap_comm"
  std::string text;
  bool is_warning = false;
};

extern const DeepSpeedSection kDeepSpeedTopLevel;
extern const DeepSpeedSection kDeepSpeedOptimizerParams;  // for Adam and AdamW
extern const DeepSpeedSection kDeepSpeedSchedulerParams;  // for all schedules

// Full dotted names of all keys, for the documentation test.
std::vector<std::string> deepspeed_key_names();

// Returns `object` with canonical names and converted values (5e8 -> 500000000, "2" -> 2, "true" -> true),
// without nulls and without keys that have no effect. `prefix` precedes its keys in messages. Errors
// (kBadConfig): "FILE: KEY: expected ..., found ...; what to do".
Json check_deepspeed_keys(const Json& object, const DeepSpeedSection& section, const std::string& origin,
                          std::vector<DeepSpeedNote>* notes, const std::string& prefix = "");

}  // namespace tessera
