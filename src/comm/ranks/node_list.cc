#include "comm/ranks/node_list.h"

#include <algorithm>

#include "base/error.h"
#include "base/text.h"

namespace tessera {
namespace {

// Slurm itself supports at most 65,536.
constexpr size_t kMaxNodes = 1 << 16;
// Maximum digits of a number within brackets, including leading zeros.
constexpr size_t kMaxDigits = 18;

[[noreturn]] void refuse(std::string_view list, const std::string& variable, const std::string& why) {
  fail(ExitCode::kBadConfig, "{}='{}': {}", variable, printable(list), why);
}

// Parts between commas that are not within brackets.
std::vector<std::string_view> split_outside_brackets(std::string_view list, const std::string& variable) {
  std::vector<std::string_view> parts;
  bool inside = false;
  size_t begin = 0;
  for (size_t i = 0; i < list.size(); ++i) {
    if (list[i] == '[' || list[i] == ']') {
      if (inside == (list[i] == '[')) refuse(list, variable, "brackets do not match");
      inside = !inside;
    } else if (list[i] == ',' && !inside) {
      parts.push_back(list.substr(begin, i - begin));
      begin = i + 1;
    }
  }
  if (inside) refuse(list, variable, "brackets do not match");
  parts.push_back(list.substr(begin));
  return parts;
}

int64_t to_number(std::string_view digits, std::string_view list, const std::string& variable) {
  const std::optional<int64_t> value = parse_integer(digits);
  if (!value || digits.size() > kMaxDigits || *value < 0) {
    refuse(list, variable, fmt::format("expected a number, found '{}'", printable(digits)));
  }
  return *value;
}

// "08-10,12" expands to 08 09 10 12, with as many digits as the first number.
std::vector<std::string> expand_ranges(std::string_view ranges, std::string_view list,
                                       const std::string& variable) {
  std::vector<std::string> numbers;
  for (size_t begin = 0; begin <= ranges.size();) {
    const size_t end = std::min(ranges.find(',', begin), ranges.size());
    const std::string_view range = ranges.substr(begin, end - begin);
    const size_t dash = range.find('-');
    const std::string_view first = range.substr(0, dash);
    const int64_t low = to_number(first, list, variable);
    const int64_t high =
        dash == std::string_view::npos ? low : to_number(range.substr(dash + 1), list, variable);
    if (high < low) refuse(list, variable, fmt::format("'{}' runs backwards", range));
    if (high - low >= static_cast<int64_t>(kMaxNodes - numbers.size())) {
      refuse(list, variable, "too many nodes");
    }
    for (int64_t i = low; i <= high; ++i) numbers.push_back(fmt::format("{:0{}}", i, first.size()));
    begin = end + 1;
  }
  return numbers;
}

}  // namespace

std::vector<std::string> expand_node_list(std::string_view list, const std::string& variable) {
  std::vector<std::string> nodes;
  for (const std::string_view part : split_outside_brackets(list, variable)) {
    std::vector<std::string> names{""};
    std::string_view rest = part;
    while (!rest.empty()) {
      const size_t open = std::min(rest.find('['), rest.size());
      for (std::string& name : names) name += rest.substr(0, open);
      if (open == rest.size()) break;
      const size_t close = rest.find(']', open);
      std::vector<std::string> longer;
      const auto numbers = expand_ranges(rest.substr(open + 1, close - open - 1), list, variable);
      if (names.size() * numbers.size() > kMaxNodes) refuse(list, variable, "too many nodes");
      for (const std::string& name : names) {
        for (const std::string& number : numbers) longer.push_back(name + number);
      }
      names = std::move(longer);
      rest.remove_prefix(close + 1);
    }
    if (part.empty()) refuse(list, variable, "an empty name");
    if (nodes.size() + names.size() > kMaxNodes) refuse(list, variable, "too many nodes");
    nodes.insert(nodes.end(), names.begin(), names.end());
  }
  return nodes;
}

std::vector<int> expand_tasks_per_node(std::string_view list, const std::string& variable) {
  std::vector<int> tasks;
  for (const std::string_view part : split_outside_brackets(list, variable)) {
    const size_t open = part.find("(x");
    int64_t repeat = 1;
    if (open != std::string_view::npos) {
      if (!part.ends_with(')')) refuse(list, variable, "expected '(xN)'");
      repeat = to_number(part.substr(open + 2, part.size() - open - 3), list, variable);
    }
    const int64_t count = to_number(part.substr(0, open), list, variable);
    if (repeat < 1 || count < 1 || count > (1 << 20) ||
        tasks.size() + static_cast<size_t>(repeat) > kMaxNodes) {
      refuse(list, variable, "expected tasks per node as in '4(x2),3'");
    }
    tasks.insert(tasks.end(), static_cast<size_t>(repeat), static_cast<int>(count));
  }
  return tasks;
}

}  // namespace tessera
