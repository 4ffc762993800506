#include "settings/fields/fields.h"

#include <algorithm>
#include <cmath>
#include <optional>

#include "base/embedded_text.h"
#include "base/error.h"
#include "base/text.h"

namespace tessera {

std::span<const EmbeddedText> field_texts();  // settings/fields/*.tsv

namespace {

struct Field {
  std::string_view name, limits, aliases, value_name, help;
};

const Field& field_of(std::string_view name) {
  static const std::vector<Field> kFields = [] {
    std::vector<Field> fields;
    for (const auto& row : read_cells("fields", text_named(field_texts(), "fields"), 5))
      fields.push_back({row[0], row[1], row[2], row[3], row[4]});
    return fields;
  }();
  const auto found = std::ranges::find(kFields, name, &Field::name);
  if (found == kFields.end()) fail(ExitCode::kInternal, "fields.tsv has no line '{}'", name);
  return *found;
}

// "[0,1)": values from 0 to below 1; "(0,)": all above 0. NaN and infinities are outside of any.
struct Range {
  explicit Range(std::string_view text) : open_begin(text.front() == '('), open_end(text.back() == ')') {
    const size_t comma = text.find(',');
    minimum = parse_number(text.substr(1, comma - 1)).value();
    if (comma + 2 < text.size()) maximum = parse_number(text.substr(comma + 1, text.size() - comma - 2));
  }
  bool contains(double value) const {
    return std::isfinite(value) && (open_begin ? value > minimum : value >= minimum) &&
           (!maximum || (open_end ? value < *maximum : value <= *maximum));
  }
  std::string describe() const {
    if (!maximum) return fmt::format("{} {}", open_begin ? "above" : "of at least", minimum);
    return fmt::format("from {}{} to {}{}", open_begin ? "above " : "", minimum, open_end ? "below " : "",
                       *maximum);
  }

  bool open_begin, open_end;
  double minimum;
  std::optional<double> maximum;
};

// Refuses values outside the limits as they are set. "steps" are a whole number of them, or below 1 a
// fraction of all steps.
void limit(Flag& flag, std::string_view limits) {
  const bool is_steps = limits.starts_with("steps ");
  const Range range(is_steps ? limits.substr(6) : limits);
  const std::string expected =
      is_steps
          ? fmt::format("a whole number of steps or a fraction of all steps {} and below 1", range.describe())
          : fmt::format("a {}number {}", flag.type == FlagType::kInt ? "" : "finite ", range.describe());
  flag.set = [set = flag.set, get = flag.get, name = flag.name, range, expected,
              is_steps](const std::vector<std::string>& values) {
    set(values);
    for (const std::string& text : get()) {
      const double value = parse_number(text).value_or(NAN);
      const bool is_whole = value < 1 || (value == std::floor(value) && value <= 0x1p53);
      if (range.contains(value) && (!is_steps || is_whole)) continue;
      fail(ExitCode::kUsage, "--{}: expected {}, found {}", name, expected, text);
    }
  };
}

}  // namespace

std::string help_of_field(std::string_view name) { return std::string(field_of(name).help); }

Flag& complete_field(Flag& flag) {
  const Field& field = field_of(flag.name);
  if (!field.aliases.empty()) flag.aliases = split(field.aliases, '|');
  if (!field.value_name.empty()) flag.value_name = field.value_name;
  if (!field.limits.empty()) limit(flag, field.limits);
  return flag;
}

Flag& add_size_field(FlagTable* table, const std::string& name, std::optional<int64_t>* target,
                     const std::string& example) {
  return complete_field(table->add_size(name, target, example, help_of_field(name)));
}

void respell(Flag& flag, std::vector<std::pair<std::string, std::string>> words) {
  flag.set = [set = flag.set, words = std::move(words)](const std::vector<std::string>& values) {
    const std::string found = values.size() == 1 ? lower_case(values[0]) : "";
    const auto known = std::ranges::find(words, found, &std::pair<std::string, std::string>::first);
    set(known == words.end() ? values : std::vector{known->second});
  };
}

}  // namespace tessera
