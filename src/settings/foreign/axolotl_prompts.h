// The prompt styles of Axolotl's data sets, as formats of rows.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

namespace tessera {

// The format (shape, columns, prompt) of a named type, such as alpaca or alpaca_chat.load_qa; `style` is what
// follows its colon or `conversation` names, "" for the default. nullopt for a type or style that is not
// known.
std::optional<nlohmann::json> axolotl_prompt_format(const std::string& type, const std::string& style);
// The names of the types.
std::vector<std::string> axolotl_prompt_types();

// The format of a type that the file itself defines: system_prompt, format, ... Throws a std::string that
// says what is wrong with it.
nlohmann::json user_defined_prompt_format(const nlohmann::json& type);

}  // namespace tessera
