// What the columns of a row mean that its shape does not read.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/value.h"
#include "data/chat/example.h"

namespace tessera {

// Whether a column of this name holds images, videos or audio ("images", "audio", ...).
bool is_media_column(std::string_view name);

// The columns with a value that a row of this shape does not read, in order.
std::vector<std::string> unread_columns(const Value& row, RowShape shape, const RowFormat& format);

// Error(kBadData) starting with `where` for what changes what a row teaches, though no shape reads it:
// images, videos, audio, or their placeholders in the text beside an empty column of them; an answer marked
// as unwanted (`label` or `kto_tag` false); of token ids, other columns that say what is a target or where a
// document begins.
void check_unread_columns(const Value& row, RowShape shape, const RowFormat& format,
                          const std::string& where);

}  // namespace tessera
