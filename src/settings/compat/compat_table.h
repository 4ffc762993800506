// Tables of other programs' settings and their treatment here: text files beside this file, one name per
// line, compiled into the program. A line has five columns, separated by tabs, "-" where one is empty:
//
//   NAME      the other program's name. OBJECT.KEY is a key of an object; a trailing * stands for any ending.
//   TYPE      bool, integer, number, text, list: also a flag of `tessera train`. object: a flag that the
//   lines
//             OBJECT.KEY judge key by key. "-": known in that program's files alone, or a part of a flag.
//             DeepSpeed's keys have types of their own (deepspeed/deepspeed_keys.h).
//   ACCEPTED  values that are accepted silently, separated by |
//   BECOMES   same as, sets, read, no effect, refused, or silent: without effect, and its object says so
//   DETAIL    by BECOMES: our name; "NAME THEIRS=OURS ..., NAME ..."; what code makes of it; why; why; "-"
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace tessera {

enum class CompatUse { kSame, kSets, kRead, kNoEffect, kRefused, kSilent };

struct CompatName {
  std::string_view name;
  std::string_view type;
  std::string_view accepted;
  CompatUse use;
  std::string_view detail;

  // True for null, "", and the accepted values.
  bool accepts(std::string_view value) const;
};

struct CompatTable {
  std::string_view file;     // "axolotl", of axolotl.tsv
  std::string_view program;  // "Axolotl"
  std::vector<CompatName> names;

  // The line of this name, or of its family; nullptr if the program has no such setting.
  const CompatName* find(std::string_view name) const;
};

// Transformers, TRL, LLaMA-Factory, Axolotl.
std::span<const CompatTable> compat_tables();
// The one with this `file`.
const CompatTable& compat_table(std::string_view file);

std::vector<CompatName> parse_compat_table(std::string_view file, std::string_view text);

}  // namespace tessera
