#include "settings/compat/compat_table.h"

#include <algorithm>
#include <utility>

#include "base/embedded_text.h"
#include "base/error.h"
#include "base/text.h"

namespace tessera {

std::span<const EmbeddedText> compat_texts();  // settings/compat/*.tsv

namespace {

constexpr std::pair<std::string_view, CompatUse> kUses[] = {
    {"same as", CompatUse::kSame},       {"sets", CompatUse::kSets},       {"read", CompatUse::kRead},
    {"no effect", CompatUse::kNoEffect}, {"refused", CompatUse::kRefused}, {"silent", CompatUse::kSilent}};

std::vector<CompatTable> read_tables() {
  constexpr std::pair<std::string_view, std::string_view> kPrograms[] = {{"transformers", "Transformers"},
                                                                         {"trl", "TRL and PEFT"},
                                                                         {"llama_factory", "LLaMA-Factory"},
                                                                         {"axolotl", "Axolotl"},
                                                                         {"deepspeed", "DeepSpeed"}};
  std::vector<CompatTable> tables;
  for (const auto& [file, program] : kPrograms)
    tables.push_back({file, program, parse_compat_table(file, text_named(compat_texts(), file))});
  return tables;
}

}  // namespace

bool CompatName::accepts(std::string_view value) const {
  const std::string word = lower_case(std::string(value));
  if (word.empty() || word == "null") return true;
  const std::vector<std::string> words = split(accepted, '|');
  return std::ranges::any_of(words, [&](const std::string& known) { return lower_case(known) == word; });
}

const CompatName* CompatTable::find(std::string_view name) const {
  const auto is_it = [name](const CompatName& known) {
    return known.name == name ||
           (known.name.ends_with('*') && name.starts_with(known.name.substr(0, known.name.size() - 1)));
  };
  auto found = std::ranges::find(names, name, &CompatName::name);
  if (found == names.end()) found = std::ranges::find_if(names, is_it);
  return found == names.end() ? nullptr : &*found;
}

std::vector<CompatName> parse_compat_table(std::string_view file, std::string_view text) {
  std::vector<CompatName> names;
  for (const std::vector<std::string_view>& row : read_cells(file, text, 5)) {
    const auto use = std::ranges::find(kUses, row[3], &std::pair<std::string_view, CompatUse>::first);
    if (use == std::end(kUses) || row[4].empty() != (row[3] == "silent")) {
      fail(ExitCode::kInternal,
           "{}.tsv: {}: expected same as, sets, read, no effect, refused or silent, and a detail; found '{}' "
           "and '{}'",
           file, row[0], row[3], row[4]);
    }
    names.push_back({row[0], row[1], row[2], use->second, row[4]});
  }
  return names;
}

std::span<const CompatTable> compat_tables() {
  static const std::vector<CompatTable> kTables = read_tables();
  return kTables;
}

const CompatTable& compat_table(std::string_view file) {
  const auto found = std::ranges::find(compat_tables(), file, &CompatTable::file);
  TESSERA_CHECK(found != compat_tables().end(), "no table '{}'", file);
  return *found;
}

}  // namespace tessera
