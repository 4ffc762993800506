#include "settings/compat/compat_table.h"

#include <algorithm>
#include <array>
#include <utility>

#include "base/embedded_text.h"
#include "base/error.h"
#include "base/text.h"

namespace tessera {
namespace {

std::string_view take_until(std::string_view* text, char end) {
  const size_t size = std::min(text->find(end), text->size());
  const std::string_view part = text->substr(0, size);
  text->remove_prefix(std::min(size + 1, text->size()));
  return part;
}

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
  for (std::string_view rest = accepted; !rest.empty();) {
    if (lower_case(std::string(take_until(&rest, '|'))) == word) return true;
  }
  return false;
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

std::vector<std::vector<std::string_view>> read_cells(std::string_view file, std::string_view text,
                                                      size_t num_columns) {
  std::vector<std::vector<std::string_view>> rows;
  for (int64_t line = 1; !text.empty(); ++line) {
    std::string_view rest = take_until(&text, '\n');
    if (rest.empty() || rest.starts_with('#')) continue;
    std::vector<std::string_view> cells;
    while (!rest.empty()) cells.push_back(take_until(&rest, '\t'));
    if (cells.size() != num_columns || std::ranges::count(cells, "") > 0) {
      fail(ExitCode::kInternal, "{}.tsv:{}: expected {} columns separated by tabs, '-' for nothing, found {}",
           file, line, num_columns, cells.size());
    }
    std::ranges::replace(cells, "-", "");
    rows.push_back(std::move(cells));
  }
  return rows;
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
