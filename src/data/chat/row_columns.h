// The columns of a row that its shape does not read, and their meaning.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/value.h"
#include "data/chat/example.h"

namespace tessera {

// The names of a row's columns, "a, b, ..." or "none".
std::string columns_text(const Value& row);

// Whether a shape of rows has a field of this name ("messages", "input_ids", "tools", ...).
bool is_row_field(std::string_view name);

// Whether a system message is taken from a column of its own. In TRL it is not, beside messages, unless the
// format names the column.
bool reads_system(RowShape shape, const RowFormat& format);

// The placeholder of an image, video or audio in the texts that a row of this shape reads ("<image>"); "" if
// there is none.
std::string_view media_placeholder_of(const Value& row, RowShape shape, const RowFormat& format);

// The columns with a value that a row of this shape does not read, in order, without those that
// check_unread_columns() refuses as images, video or audio.
std::vector<std::string> unread_columns(const Value& row, RowShape shape, const RowFormat& format);

// Error(kBadData) starting with `where` for columns that change what a row teaches, though no shape reads
// them: images, videos, audio, or their placeholders in a question or with an empty column of them; an answer
// marked as unwanted (`label` or `kto_tag` false); for token ids, other columns that mark targets or document
// starts.
void check_unread_columns(const Value& row, RowShape shape, const RowFormat& format,
                          const std::string& where);

}  // namespace tessera
