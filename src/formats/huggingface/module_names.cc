#include "formats/huggingface/module_names.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <memory>
#include <unordered_map>
#include <utility>

#include "base/error.h"
#include "base/text.h"

namespace tessera {
namespace {

// Names have at most a hundred characters: an expression that needs more steps has exponential cost.
constexpr uint32_t kMaxSteps = 100'000;
constexpr uint32_t kMaxStepMemoryKib = 1024;

struct FreeCode {
  void operator()(pcre2_code* code) const { pcre2_code_free(code); }
};
struct FreeMatch {
  void operator()(pcre2_match_data* data) const { pcre2_match_data_free(data); }
};
struct FreeContext {
  void operator()(pcre2_match_context* context) const { pcre2_match_context_free(context); }
};
using ExpressionCode = std::unique_ptr<pcre2_code, FreeCode>;

// PCRE2 has escapes, verbs and calls of groups that Python's re refuses.
std::optional<std::string> unknown_to_python(std::string_view expression) {
  constexpr std::string_view kEscapes = "AbBdDsSwWZ";
  for (size_t i = 0; i + 1 < expression.size(); ++i) {
    const char next = expression[i + 1];
    if (expression[i] == '\\') {
      const bool is_letter = ('a' <= next && next <= 'z') || ('A' <= next && next <= 'Z');
      if (is_letter && kEscapes.find(next) == kEscapes.npos) return fmt::format("the escape \\{}", next);
      ++i;
    } else if (expression[i] == '(' && next == '*') {
      return "'(*'";
    } else if (expression[i] == '(' && next == '?' && i + 2 < expression.size() &&
               std::string_view("&+-|CR0123456789").find(expression[i + 2]) != std::string_view::npos) {
      return fmt::format("'(?{}'", expression[i + 2]);
    }
  }
  return std::nullopt;
}

ExpressionCode compile_expression(const std::string& expression, const std::string& where) {
  if (const auto unknown = unknown_to_python(expression)) {
    fail(ExitCode::kBadConfig, "{}: the regular expression '{}' is not one of Python: found {}", where,
         printable(expression, 200), *unknown);
  }
  int error = 0;
  size_t offset = 0;
  constexpr uint32_t kOptions = PCRE2_UTF | PCRE2_UCP | PCRE2_NEVER_BACKSLASH_C;
  ExpressionCode code(pcre2_compile(reinterpret_cast<PCRE2_SPTR>(expression.data()), expression.size(),
                                    kOptions, &error, &offset, nullptr));
  if (code == nullptr) {
    std::array<unsigned char, 256> text = {};
    pcre2_get_error_message(error, text.data(), text.size());
    fail(ExitCode::kBadConfig, "{}: not a regular expression: {} at offset {} of '{}'", where,
         reinterpret_cast<const char*>(text.data()), offset, printable(expression, 200));
  }
  return code;
}

// The group `idx` of a match that begins with the name, "" if the expression has none; nullopt without a
// match.
std::optional<std::string> match_module(const std::string& expression, std::string_view module,
                                        uint32_t options) {
  thread_local std::unordered_map<std::string, ExpressionCode> compiled;
  thread_local const std::unique_ptr<pcre2_match_context, FreeContext> context(
      pcre2_match_context_create(nullptr));
  ExpressionCode& code = compiled[expression];
  if (code == nullptr) code = compile_expression(expression, "names of modules");
  const std::unique_ptr<pcre2_match_data, FreeMatch> data(
      pcre2_match_data_create_from_pattern(code.get(), nullptr));
  TESSERA_CHECK(context != nullptr && data != nullptr, "out of memory");
  pcre2_set_match_limit(context.get(), kMaxSteps);
  pcre2_set_heap_limit(context.get(), kMaxStepMemoryKib);
  const int result = pcre2_match(code.get(), reinterpret_cast<PCRE2_SPTR>(module.data()), module.size(), 0,
                                 PCRE2_ANCHORED | options, data.get(), context.get());
  if (result == PCRE2_ERROR_NOMATCH) return std::nullopt;
  if (result < 0) {
    fail(ExitCode::kBadConfig, "the regular expression '{}' takes too many steps for the module {}",
         printable(expression, 200), printable(module));
  }
  const int group = pcre2_substring_number_from_name(code.get(), reinterpret_cast<PCRE2_SPTR>("idx"));
  if (group < 0) return "";
  const size_t* ends = pcre2_get_ovector_pointer(data.get()) + 2 * group;
  if (ends[0] == PCRE2_UNSET) return "";
  return std::string(module.substr(ends[0], ends[1] - ends[0]));
}

std::string pattern_key(const std::string& key) { return fmt::format("(.*\\.)?({})$", key); }
std::string layer_pattern(const std::string& pattern) {
  return fmt::format("(?:^|.*?\\.){}\\.(?P<idx>\\d+)\\.", pattern);
}

}  // namespace

void check_module_expression(const std::string& expression, const std::string& where) {
  compile_expression(expression, where);
  compile_expression(pattern_key(expression), where);
  compile_expression(layer_pattern(expression), where);
}

bool is_full_match(const std::string& expression, std::string_view module) {
  return match_module(expression, module, PCRE2_ENDANCHORED).has_value();
}

bool is_pattern_key_of(const std::string& key, std::string_view module) {
  return match_module(pattern_key(key), module, 0).has_value();
}

std::optional<int64_t> layer_of(std::string_view module, const std::vector<std::string>& layers_pattern) {
  std::optional<std::string> number;
  if (layers_pattern.empty()) number = match_module(R"(.*?\.[^.]*\.(?P<idx>\d+)\.)", module, 0);
  for (size_t i = 0; !number && i < layers_pattern.size(); ++i) {
    number = match_module(layer_pattern(layers_pattern[i]), module, 0);
  }
  int64_t layer = 0;
  const bool is_number =
      number && std::from_chars(number->data(), number->data() + number->size(), layer).ec == std::errc();
  return is_number ? std::optional(layer) : std::nullopt;
}

bool looks_like_expression(std::string_view text) {
  return !std::ranges::all_of(text, [](char c) {
    return c == '.' || c == '_' || c == '-' || ('0' <= c && c <= '9') || ('a' <= c && c <= 'z') ||
           ('A' <= c && c <= 'Z');
  });
}

ModuleSelection ModuleSelection::expression(std::string text) {
  ModuleSelection selection;
  selection.expression_ = std::move(text);
  return selection;
}

bool ModuleSelection::names_whole(std::string_view module) const {
  return std::ranges::find(names_, module) != names_.end();
}

bool ModuleSelection::contains(std::string_view module) const {
  if (is_expression()) return is_full_match(expression_, module);
  return std::ranges::any_of(names_, [module](std::string_view end) {
    return module.ends_with(end) &&
           (module.size() == end.size() || module[module.size() - end.size() - 1] == '.');
  });
}

nlohmann::ordered_json ModuleSelection::json() const {
  if (is_expression()) return expression_;
  return names_.empty() ? nlohmann::ordered_json() : nlohmann::ordered_json(names_);
}

}  // namespace tessera
