// Conversations as Axolotl's chat_template datasets read them.
#pragma once

#include <string>

#include "data/chat/example.h"

namespace tessera {

// The messages and tools of `row` with the names and roles of format.tags, whose columns are "messages",
// "system" and "tools" unless format.columns renames them. Fields that are null are absent. JSON in strings
// is parsed for messages, tools, the parameters of functions and the arguments of calls. Moves out of `row`.
// Error(kBadData) starting with `where`.
ChatExample read_turns(Value row, const RowFormat& format, const std::string& where);

}  // namespace tessera
