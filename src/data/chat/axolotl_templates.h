// The templates that `chat_template` names in Axolotl's configuration files, those of text models that are
// short. chatml and llama3 are in builtin_templates.h.
#pragma once

#include <string_view>
#include <vector>

namespace tessera {

// "" if there is none of this name: gemma, phi_3, ...
std::string_view axolotl_template(std::string_view name);
std::vector<std::string_view> axolotl_template_names();

}  // namespace tessera
