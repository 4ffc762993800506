#include "base/name_hint.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstdint>
#include <optional>

#include "base/text.h"

namespace tessera {
namespace {

// More names than this are not a useful hint.
constexpr size_t kMaxMeant = 3;

std::vector<std::string> words_of(std::string_view name) {
  std::vector<std::string> words(1);
  for (const char c : lower_case(std::string(name))) {
    if (std::string_view("_-. ").find(c) == std::string_view::npos) {
      words.back() += c;
    } else if (!words.back().empty()) {
      words.emplace_back();
    }
  }
  return words;
}

std::string digits_of(const std::string& word) {
  std::string digits;
  std::copy_if(word.begin(), word.end(), std::back_inserter(digits),
               [](char c) { return c >= '0' && c <= '9'; });
  return digits;
}

// Edits that turn one word into the other; nullopt if there are too many for a typo.
std::optional<int64_t> typos_in_word(const std::string& a, const std::string& b) {
  const size_t length = std::max(a.size(), b.size());
  const int64_t limit = length < 4 ? 0 : length < 8 ? 1 : 2;
  const int64_t distance = edit_distance(a, b);
  if (distance > limit || digits_of(a) != digits_of(b)) return std::nullopt;
  return distance;
}

std::vector<std::string> words_between_blanks(std::string_view names) {
  std::vector<std::string> words;
  for (const std::string& word : split(names, ' ')) {
    if (!word.empty() && !word.ends_with('*')) words.push_back(word);
  }
  return words;
}

std::optional<int64_t> typos_in_name(std::string_view a, std::string_view b) {
  const std::vector<std::string> words = words_of(a), others = words_of(b);
  if (words.size() != others.size()) {
    const bool is_same = fmt::format("{}", fmt::join(words, "")) == fmt::format("{}", fmt::join(others, ""));
    return is_same ? std::optional<int64_t>(1) : std::nullopt;
  }
  int64_t sum = 0;
  for (size_t i = 0; i < words.size(); ++i) {
    const std::optional<int64_t> typos = typos_in_word(words[i], others[i]);
    if (!typos) return std::nullopt;
    sum += *typos;
  }
  return sum;
}

// The number of words the candidate has beyond those of the name; nullopt if it lacks one of them.
std::optional<size_t> further_words(std::string_view name, std::string_view candidate) {
  const std::vector<std::string> words = words_of(name), others = words_of(candidate);
  size_t found = 0;
  for (const std::string& word : others) {
    if (found < words.size() && word == words[found]) ++found;
  }
  if (found < words.size()) return std::nullopt;
  return others.size() - words.size();
}

std::vector<std::string> names_with_words(std::string_view name, const std::vector<std::string>& candidates) {
  std::vector<std::string> best;
  size_t fewest = words_of(name).size();  // at most as many extra words as the name has
  for (const std::string& candidate : candidates) {
    const std::optional<size_t> further = further_words(name, candidate);
    if (!further || *further > fewest) continue;
    if (*further < fewest) best.clear();
    fewest = *further;
    best.push_back(candidate);
  }
  return best.size() <= kMaxMeant ? best : std::vector<std::string>{};
}

bool is_named(std::string_view names, const std::string& wanted) {
  while (!names.empty()) {
    const size_t end = std::min(names.find(' '), names.size());
    const std::string_view name = names.substr(0, end);
    if (name.ends_with('*') ? wanted.starts_with(name.substr(0, name.size() - 1)) : name == wanted)
      return true;
    names.remove_prefix(std::min(end + 1, names.size()));
  }
  return false;
}

}  // namespace

std::string NameHint::text(std::string_view before, std::string_view after) const {
  if (!note.empty()) return fmt::format(": {}", note);
  std::string names;
  for (const std::string& name : meant) {
    names += fmt::format("{}{}{}{}", names.empty() ? "" : " or ", before, name, after);
  }
  return names.empty() ? "" : fmt::format("; did you mean {}?", names);
}

NameHint hint_for_name(std::string_view name, const std::vector<std::string>& known,
                       const std::vector<std::string>& usable, std::span<const ForeignNames> foreign) {
  std::string wanted = lower_case(std::string(name));
  std::replace(wanted.begin(), wanted.end(), '-', '_');
  for (const ForeignNames& entry : foreign) {
    if (!is_named(entry.names, wanted)) continue;
    if (entry.here == nullptr) return {.meant = {}, .note = entry.note};
    if (std::find(known.begin(), known.end(), entry.here) != known.end())
      return {.meant = {entry.here}, .note = {}};
  }
  const std::string nearest = nearest_name(wanted, known);
  if (!nearest.empty()) return {.meant = {nearest}, .note = {}};
  for (const ForeignNames& entry : foreign) {  // a typo in another program's name
    if (entry.here == nullptr || std::ranges::find(known, entry.here) == known.end()) continue;
    if (!nearest_name(wanted, words_between_blanks(entry.names)).empty())
      return {.meant = {entry.here}, .note = {}};
  }
  return {.meant = names_with_words(wanted, usable), .note = {}};
}

std::string nearest_name(std::string_view name, const std::vector<std::string>& candidates) {
  std::string best;
  std::optional<int64_t> fewest;
  for (const std::string& candidate : candidates) {
    const std::optional<int64_t> typos = typos_in_name(name, candidate);
    if (!typos || (fewest && *typos >= *fewest)) continue;
    fewest = typos;
    best = candidate;
  }
  return best;
}

}  // namespace tessera
