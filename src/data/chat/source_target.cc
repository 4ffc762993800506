#include "data/chat/source_target.h"

#include <algorithm>
#include <array>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/text.h"
#include "data/chat/expect_kind.h"
#include "data/chat/row_columns.h"

namespace tessera {
namespace {

constexpr std::string_view kTranslation = "translation";

// The columns of run_summarization.py's summarization_name_mapping, and usual names of pairs.
constexpr std::array<SourceTargetNames, 14> kKnownPairs = {{{"text", "summary"},
                                                            {"article", "highlights"},
                                                            {"article", "summary"},
                                                            {"document", "summary"},
                                                            {"dialogue", "summary"},
                                                            {"body", "summary"},
                                                            {"description", "abstract"},
                                                            {"extract_text", "summary_text"},
                                                            {"news_body", "news_title"},
                                                            {"review_body", "review_title"},
                                                            {"prompt", "completion"},
                                                            {"source", "target"},
                                                            {"input", "output"},
                                                            {"inputs", "targets"}}};

bool has_column(const Value& row, std::string_view name) { return row.find(name) != nullptr; }

// Alpaca's rows have a third part, which the pair would leave out.
bool is_part_of_more(const Value& row, const SourceTargetNames& names) {
  return names.source == "input" && has_column(row, "instruction");
}

std::vector<SourceTargetNames> fitting_pairs(const Value& row, const SourceTargetColumns& columns) {
  std::vector<SourceTargetNames> fitting;
  const auto add = [&](SourceTargetNames names) {
    if (!has_column(row, names.source) || !has_column(row, names.target) || names.source == names.target)
      return;
    const bool is_known = std::ranges::any_of(fitting, [&](const SourceTargetNames& known) {
      return known.source == names.source && known.target == names.target;
    });
    if (!is_known && !is_part_of_more(row, names)) fitting.push_back(names);
  };
  for (const SourceTargetNames& pair : kKnownPairs) {
    add({columns.source.empty() ? pair.source : std::string_view(columns.source),
         columns.target.empty() ? pair.target : std::string_view(columns.target)});
  }
  return fitting;
}

std::string quoted_name(std::string_view name) { return fmt::format("'{}'", printable(name, 40)); }

// A null text is an empty one, which is no row either.
std::string take_text(Value* row, std::string_view column, const std::string& where) {
  Value* value = row->find(column);
  if (value == nullptr || value->is_null()) return {};
  const std::string place = fmt::format("{}: column {}", where, quoted_name(column));
  if (value->list() != nullptr) {
    fail(ExitCode::kBadData,
         "{}: expected a text, found a list: conversations are for models without an encoder, this one has a "
         "source and a target",
         place);
  }
  return std::move(expect_string(value, place));
}

std::string take_language(Value* translation, const std::string& language, const std::string& where) {
  Value* text = translation->find(language);
  if (text == nullptr) {
    fail(ExitCode::kBadData,
         "{}: column 'translation': no language {}; found {}: set source_lang and "
         "target_lang",
         where, quoted_name(language), columns_text(*translation));
  }
  return std::move(
      expect_string(text, fmt::format("{}: column 'translation': {}", where, quoted_name(language))));
}

}  // namespace

std::optional<SourceTargetNames> find_source_target(const Value& row, const SourceTargetColumns& columns,
                                                    const std::string* where) {
  if (columns.has_languages()) {
    if (!has_column(row, kTranslation)) return std::nullopt;
    return SourceTargetNames{kTranslation, kTranslation};
  }
  const std::vector<SourceTargetNames> fitting = fitting_pairs(row, columns);
  if (fitting.empty()) return std::nullopt;
  const auto is_text = [](const SourceTargetNames& names) { return names.source == "text"; };
  if (fitting.size() == 1 || where == nullptr || (is_text(fitting[0]) && !is_text(fitting[1])))
    return fitting[0];
  fail(ExitCode::kBadData,
       "{}: source and target may be {} and {}, or {} and {}: name them with --text_column and "
       "--summary_column",
       *where, quoted_name(fitting[0].source), quoted_name(fitting[0].target), quoted_name(fitting[1].source),
       quoted_name(fitting[1].target));
}

std::string expected_source_target(const SourceTargetColumns& columns) {
  if (columns.has_languages()) {
    return fmt::format("the column 'translation' with the languages {} and {} (source_lang, target_lang)",
                       quoted_name(columns.source_lang), quoted_name(columns.target_lang));
  }
  if (!columns.source.empty() && !columns.target.empty()) {
    return fmt::format("the columns {} and {} (text_column, summary_column)", quoted_name(columns.source),
                       quoted_name(columns.target));
  }
  std::vector<std::string> pairs;
  for (const SourceTargetNames& pair : kKnownPairs) {
    if (columns.source.empty() && columns.target.empty())
      pairs.push_back(fmt::format("{} and {}", pair.source, pair.target));
  }
  if (pairs.empty()) {
    return fmt::format("the column {} ({}) and a known one beside it",
                       quoted_name(columns.source + columns.target),
                       columns.target.empty() ? "text_column" : "summary_column");
  }
  return fmt::format("a source and its target in the columns {}, or input_ids and labels",
                     fmt::join(pairs, ", or "));
}

std::optional<SourceTargetTexts> read_source_target(Value row, const SourceTargetColumns& columns,
                                                    const std::string& where) {
  const std::optional<SourceTargetNames> names = find_source_target(row, columns, &where);
  if (!names) {
    fail(ExitCode::kBadData, "{}: expected {}; found {}", where, expected_source_target(columns),
         columns_text(row));
  }
  if (columns.has_languages()) {
    Value* translation = row.find(kTranslation);
    expect_object(translation, fmt::format("{}: column 'translation'", where));
    std::string source = take_language(translation, columns.source_lang, where);
    return SourceTargetTexts{std::move(source), take_language(translation, columns.target_lang, where)};
  }
  SourceTargetTexts texts = {take_text(&row, names->source, where), take_text(&row, names->target, where)};
  if (texts.source.empty() || texts.target.empty()) return std::nullopt;
  return texts;
}

}  // namespace tessera
