// Images, video and audio in rows: how columns, values and texts give them away.
#pragma once

#include <string_view>

#include "base/value.h"

namespace tessera {

// The kind of content that a column's name suggests: images, video or audio ("images", "wav",
// "pixel_values"), or links to them ("image_url", "audio_path").
enum class MediaName { kNone, kItself, kLink };
MediaName media_name(std::string_view column);

// Whether a value is media, whatever its column is called: a struct of bytes and path or of an array and its
// sampling rate, as the library datasets has them; bytes or base64 of a known kind of file. In a column of
// media, or of files or attachments ("file_name"), also what names such a file ("a.png").
bool is_media(std::string_view column, const Value& value);

// The placeholder of an image, video or audio in a text ("<image>", "<|image_pad|>").
struct MediaPlaceholder {
  std::string_view text;  // "" if there is none
  bool is_plain = false;  // no text about such things: a model's own token, at the start, or on a line alone
};
MediaPlaceholder find_media_placeholder(std::string_view text);

}  // namespace tessera
