// Extended grapheme clusters (Unicode Standard Annex 29): what a reader takes for one character.
#pragma once

#include <cstdint>
#include <string_view>

namespace tessera {

// Bytes of the cluster at the start of `text`, well-formed UTF-8 and not empty. Rule GB9c, which joins
// consonants of Indic scripts, is left out: it concerns clusters of at least 9 bytes only.
int64_t grapheme_size(std::string_view text);

}  // namespace tessera
