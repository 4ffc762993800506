// Chat templates for models that have none.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace tessera {

// "" if there is none of this name.
std::string_view builtin_chat_template(std::string_view name);
std::vector<std::string> builtin_chat_template_names();

}  // namespace tessera
