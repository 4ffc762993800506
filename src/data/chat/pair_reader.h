// Reads a row by PairRules.
#pragma once

#include <string>

#include "base/value.h"
#include "data/chat/example.h"

namespace tessera {

// The messages of a row of the shape kInstruction, kConversations or kMessages. Only the columns that
// format.columns names are read, and only the roles of format.tags are known. Moves out of `row`. LeftOutRow:
// questions and answers do not alternate, or the last answer is missing. Error(kBadData) starting with
// `where`: a field of another kind.
ChatExample read_pairs(Value row, RowShape shape, const RowFormat& format, const std::string& where);

}  // namespace tessera
