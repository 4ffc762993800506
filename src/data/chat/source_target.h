// Rows for a model with an encoder and a decoder: a source text and its target.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "base/value.h"

namespace tessera {

// What such rows call the two. Without names they are recognised by the columns of well-known data sets.
struct SourceTargetColumns {
  std::string source = {};  // a column; "" = recognised, `text` before others
  std::string target = {};
  // Rows {"translation": {"en": TEXT, "de": TEXT}}, as run_translation.py reads them: both languages or none.
  std::string source_lang = {};
  std::string target_lang = {};

  bool operator==(const SourceTargetColumns&) const = default;
  bool has_languages() const { return !source_lang.empty(); }
};

struct SourceTargetNames {
  std::string_view source;
  std::string_view target;
};

// The columns of a row, views of `columns` or of constants; both are "translation" if there are languages.
// nullopt if the row has none. If several fit: Error(kBadData) starting with *where, or the first ones if it
// is null.
std::optional<SourceTargetNames> find_source_target(const Value& row, const SourceTargetColumns& columns,
                                                    const std::string* where);

// Which columns are expected, for errors: "the columns 'body' and 'title' (text_column, summary_column)".
std::string expected_source_target(const SourceTargetColumns& columns);

struct SourceTargetTexts {
  std::string source;
  std::string target;
};

// Moves the two texts out of a row. nullopt if one of them is null or empty, which is no row in
// run_summarization.py; in translations empty texts stay, as in run_translation.py. Error(kBadData) starting
// with `where`: no such columns (says which are expected and found), or no text in them.
std::optional<SourceTargetTexts> read_source_target(Value row, const SourceTargetColumns& columns,
                                                    const std::string& where);

}  // namespace tessera
