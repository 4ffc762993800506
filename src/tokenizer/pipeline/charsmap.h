// The rewriting rules of a SentencePiece model, as the normalizer Precompiled of tokenizer.json has them.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "formats/json.h"

namespace tessera {

// precompiled_charsmap: base64 of the size of a double array in bytes (4, little endian), the array (Darts,
// four bytes a unit), and the replacements, each ended by a zero byte.
//
// Rules are found as tokenizers finds them: for a grapheme cluster of up to 5 bytes the shortest rule that
// begins it replaces all of it; in other clusters the same holds for each character.
class Charsmap {
 public:
  // `node` is the base64. Error(kBadData) if it is not what is described above.
  explicit Charsmap(const JsonNode& node);

  // nullopt if the result is longer than max_bytes.
  std::optional<std::string> apply(std::string_view text, int64_t max_bytes) const;

 private:
  // What replaces `text`; nullopt without a rule.
  std::optional<std::string_view> find(std::string_view text) const;

  std::vector<uint32_t> units_;
  std::array<bool, 128> is_plain_{};  // characters of ASCII that stay as they are
  std::string replacements_;
};

}  // namespace tessera
