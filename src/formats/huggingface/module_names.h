// Names of modules ("model.layers.0.self_attn.q_proj") as PEFT selects them: by ends of names, or by regular
// expressions of Python.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace tessera {

// A regular expression that PCRE2 reads as Python's re does. Error(kBadConfig) starting with `where` for any
// other.
void check_module_expression(const std::string& expression, const std::string& where);

// The functions below throw Error(kBadConfig) for an expression that takes too many steps.

// re.fullmatch(expression, module)
bool is_full_match(const std::string& expression, std::string_view module);
// PEFT's get_pattern_key: re.match(rf"(.*\.)?({key})$", module)
bool is_pattern_key_of(const std::string& key, std::string_view module);
// The number of the module's layer for layers_pattern: the number after the first of these expressions that
// fits, without any the first number in the name.
std::optional<int64_t> layer_of(std::string_view module, const std::vector<std::string>& layers_pattern);

// Whether it is an expression rather than a name: it has other characters than names have.
bool looks_like_expression(std::string_view text);

// target_modules and exclude_modules: a list of names and ends of names, or one expression that matches whole
// names.
class ModuleSelection {
 public:
  ModuleSelection() = default;
  ModuleSelection(std::vector<std::string> names) : names_(std::move(names)) {}  // NOLINT: as in JSON
  ModuleSelection(std::initializer_list<std::string> names) : names_(names) {}
  static ModuleSelection expression(std::string text);

  bool empty() const { return names_.empty() && expression_.empty(); }
  bool contains(std::string_view module) const;
  bool names_whole(std::string_view module) const;  // as an element of the list
  const std::vector<std::string>& names() const { return names_; }
  bool is_expression() const { return !expression_.empty(); }
  // A text or a list of texts; null if empty.
  nlohmann::ordered_json json() const;

 private:
  std::vector<std::string> names_;
  std::string expression_;
};

}  // namespace tessera
