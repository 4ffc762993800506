#include "base/field_table.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/embedded_text.h"
#include "base/error.h"
#include "base/text.h"

namespace tessera {
namespace {

// "[0,1)": values from 0 to below 1; "(0,)": all above 0. NaN and infinities are outside of any.
struct Limits {
  explicit Limits(std::string_view text) : open_begin(text.front() == '('), open_end(text.back() == ')') {
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

// Refuses values outside the limits as they are set. If `is_steps`, a value is a whole number of steps, or a
// fraction of all steps if below 1.
void limit(Flag& flag, const Limits& limits, bool is_steps) {
  const std::string expected =
      is_steps
          ? fmt::format("a whole number of steps or a fraction of all steps {} and below 1",
                        limits.describe())
          : fmt::format("a {}number {}", flag.type == FlagType::kInt ? "" : "finite ", limits.describe());
  flag.set = [set = flag.set, get = flag.get, name = flag.name, limits, expected,
              is_steps](const std::vector<std::string>& values) {
    set(values);
    for (const std::string& text : get()) {
      const double value = parse_number(text).value_or(NAN);
      const bool is_whole = value < 1 || (value == std::floor(value) && value <= 0x1p53);
      if (limits.contains(value) && (!is_steps || is_whole)) continue;
      fail(ExitCode::kUsage, "--{}: expected {}, found {}", name, expected, text);
    }
  };
}

}  // namespace

FieldTable::FieldTable(std::string file, std::string_view text) : file_(std::move(file)) {
  for (const auto& row : read_cells(file_, text, 5))
    fields_.push_back({row[0], row[1], row[2], row[3], row[4]});
}

bool FieldTable::has(std::string_view name) const {
  return std::ranges::find(fields_, name, &Field::name) != fields_.end();
}

std::vector<std::string> FieldTable::names() const {
  std::vector<std::string> names;
  for (const Field& each : fields_) names.emplace_back(each.name);
  return names;
}

const FieldTable::Field& FieldTable::field(std::string_view name) const {
  const auto found = std::ranges::find(fields_, name, &Field::name);
  if (found == fields_.end()) fail(ExitCode::kInternal, "{}: there is no line '{}'", file_, name);
  return *found;
}

std::string FieldTable::help_of(std::string_view name) const { return std::string(field(name).help); }

Flag& FieldTable::complete(Flag& flag) const {
  const Field& of = field(flag.name);
  if (!of.aliases.empty()) flag.aliases = split(of.aliases, '|');
  if (!of.value_name.empty()) flag.value_name = of.value_name;
  bool is_steps = false;
  for (const std::string& rule : of.rules.empty() ? std::vector<std::string>() : split(of.rules, ' ')) {
    if (rule == "required") {
      flag.required = true;
      flag.default_text.clear();
    } else if (rule == "positional") {
      flag.positional = true;
    } else if (rule[0] == '=') {
      flag.set({flag.default_text = rule.substr(1)});
    } else if (rule == "steps") {
      is_steps = true;
    } else {
      limit(flag, Limits(rule), is_steps);
    }
  }
  return flag;
}

}  // namespace tessera
