// Suggestions for unknown names: flags, settings, keys in a file, commands.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace tessera {

// Names from other programs.
struct ForeignNames {
  const char* names;  // separated by spaces; a trailing '*' matches every name with this prefix
  const char* here;   // our name with the same meaning; nullptr = none
  const char* note;   // if there is none: what is missing and what to do instead
};

struct NameHint {
  std::vector<std::string> meant;  // known names; empty = no suggestion
  std::string note;                // set only if nothing here has this meaning

  // The end of a message that begins "unknown flag 'x'": "; did you mean --a or --b?" with `before` "--" and
  // `after` "", ": LoRA is not supported ...", or "".
  std::string text(std::string_view before, std::string_view after) const;
};

// First looks for a name with the same meaning (`foreign`; entries whose `here` is not in `known` are
// skipped), then for a typo (nearest_name), then for names in `usable` that contain all words of `name` in
// order plus at most as many others. '-' and '_' are equivalent.
NameHint hint_for_name(std::string_view name, const std::vector<std::string>& known,
                       const std::vector<std::string>& usable, std::span<const ForeignNames> foreign);

// The candidate of which `name` is a likely typo, or "". Words (separated by '_', '-', '.' or spaces) must
// match one by one, with at most one edit in a word of 4 to 7 letters, two in a longer one, and the same
// digits; or the names differ only in their separators. Names that merely share letters ("lora_rank",
// "local_rank") do not match.
std::string nearest_name(std::string_view name, const std::vector<std::string>& candidates);

}  // namespace tessera
