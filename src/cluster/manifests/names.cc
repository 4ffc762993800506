#include "cluster/manifests/names.h"

#include <algorithm>

#include "base/error.h"
#include "base/text.h"

namespace tessera {
namespace {

constexpr size_t kMaxFlagBytes = 4096;
constexpr size_t kMaxSubdomainLength = 253;

bool is_lower_or_digit(char c) { return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9'); }

bool is_label_of_any_length(std::string_view text) {
  return !text.empty() && is_lower_or_digit(text.front()) && is_lower_or_digit(text.back()) &&
         std::ranges::all_of(text, [](char c) { return is_lower_or_digit(c) || c == '-'; });
}

bool is_label(std::string_view text) {
  return text.size() <= kMaxLabelLength && is_label_of_any_length(text);
}

// Kubernetes limits the whole name and not its labels.
bool is_subdomain(std::string_view text) {
  if (text.size() > kMaxSubdomainLength) return false;
  for (size_t end = text.find('.'); end != std::string_view::npos; end = text.find('.')) {
    if (!is_label_of_any_length(text.substr(0, end))) return false;
    text.remove_prefix(end + 1);
  }
  return is_label_of_any_length(text);
}

// Bytes of the characters that YAML 1.1 does not allow, or takes for a line break, inside double quotes: C0,
// DEL, C1 with NEL, U+2028, U+2029, and the byte order mark.
bool has_unprintable(std::string_view text) {
  for (size_t i = 0; i < text.size(); ++i) {
    const auto c = static_cast<unsigned char>(text[i]);
    if (c < 0x20 || c == 0x7f) return true;
    const std::string_view rest = text.substr(i);
    if (c == 0xc2 && static_cast<unsigned char>(rest[1]) < 0xa0) return true;
    if (rest.starts_with("\u2028") || rest.starts_with("\u2029") || rest.starts_with("\ufeff") ||
        rest.starts_with("\ufffe") || rest.starts_with("\uffff")) {
      return true;
    }
  }
  return false;
}

}  // namespace

void check_label(std::string_view flag, std::string_view value, std::string_view suffix) {
  if (is_label(value) && value.size() + suffix.size() <= kMaxLabelLength) return;
  if (is_label(value) || (value.size() > kMaxLabelLength && is_label(value.substr(0, 1)))) {
    fail(ExitCode::kUsage,
         "--{}: '{}' has {} characters{}: a name in Kubernetes has at most {}, shorten it to {}", flag,
         printable(value), value.size(),
         suffix.empty() ? "" : fmt::format(" and its pods append {} more ('{}')", suffix.size(), suffix),
         kMaxLabelLength, kMaxLabelLength - suffix.size());
  }
  fail(ExitCode::kUsage,
       "--{}: expected a name of lower-case letters, digits and '-' that begins and ends with a letter or "
       "digit, found '{}'",
       flag, printable(value));
}

void check_object_name(std::string_view flag, std::string_view value) {
  if (is_subdomain(value)) return;
  fail(ExitCode::kUsage,
       "--{}: expected a name of lower-case letters, digits, '-' and '.', at most {} characters, found '{}'",
       flag, kMaxSubdomainLength, printable(value));
}

void check_text(std::string_view flag, std::string_view value) {
  if (value.size() > kMaxFlagBytes) {
    fail(ExitCode::kUsage, "--{}: expected at most {} bytes, found {}", flag, kMaxFlagBytes, value.size());
  }
  if (is_valid_utf8(value) && !has_unprintable(value)) return;
  fail(ExitCode::kUsage, "--{}: expected text without control characters and line breaks, found '{}'", flag,
       printable(value));
}

std::string label_of(std::string_view text, size_t max_length) {
  text = text.substr(text.find_last_of('/') + 1);
  std::string label;
  for (const char c : lower_case(std::string(text))) {
    if (is_lower_or_digit(c)) {
      label += c;
    } else if (!label.empty() && label.back() != '-') {
      label += '-';
    }
    if (label.size() == max_length) break;
  }
  while (label.ends_with('-')) label.pop_back();
  return label;
}

}  // namespace tessera
