#include "settings/fields/fields.h"

#include <algorithm>

#include "base/embedded_text.h"
#include "base/text.h"

namespace tessera {

std::span<const EmbeddedText> field_texts();  // settings/fields/*.tsv

const FieldTable& run_fields() {
  static const FieldTable kTable("fields", text_named(field_texts(), "fields"));
  return kTable;
}

void respell(Flag& flag, std::vector<std::pair<std::string, std::string>> words) {
  flag.set = [set = flag.set, words = std::move(words)](const std::vector<std::string>& values) {
    const std::string found = values.size() == 1 ? lower_case(values[0]) : "";
    const auto known = std::ranges::find(words, found, &std::pair<std::string, std::string>::first);
    set(known == words.end() ? values : std::vector{known->second});
  };
}

}  // namespace tessera
