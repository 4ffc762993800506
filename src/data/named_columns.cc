#include "data/named_columns.h"

#include <algorithm>
#include <memory>

#include "base/error.h"
#include "base/text.h"
#include "data/chat/row_columns.h"
#include "data/sources/record_source.h"
#include "formats/input_files.h"
#include "formats/row_error.h"
#include "formats/value_json.h"

namespace tessera {

NamedColumns::NamedColumns(const RowFormat& format) : messages_column_(column_of("messages", format)) {
  if (format.pairs) remedy_ = "name those that are read under columns in dataset_info.json";
  for (const auto& [field, column] : format.columns) {
    if (column != kNoColumn) names_.push_back({field, column});
  }
  // An answer that is nowhere would be an empty one, also by its usual name.
  if (format.shape == RowShape::kPromptText && column_of("output", format) == "output")
    names_.push_back({"output", "output"});
  if (format.source_target) {
    if (!format.source_target->source.empty())
      names_.push_back({"text_column", format.source_target->source});
    if (!format.source_target->target.empty())
      names_.push_back({"summary_column", format.source_target->target});
  }
  const bool may_be_text = !format.shape || *format.shape == RowShape::kText;
  if (may_be_text && format.text_column != "text") names_.push_back({"text", format.text_column});
  if (!format.turns) return;
  for (const auto& [field, name] : format.tags.properties) {
    // Without another name, only some messages need to have a field (tool_calls, name).
    if (field != name || field == "role" || field == "content") names_.push_back({field, name, true});
  }
  const std::string& training = format.turns->training_field;
  if (!training.empty()) names_.push_back({"message_field_training", training, true});
  const std::string& detail = format.turns->detail_field;
  if (!detail.empty()) names_.push_back({"message_field_training_detail", detail, true});
}

bool NamedColumns::are_all_found() const {
  return std::all_of(names_.begin(), names_.end(), [](const Name& name) { return name.is_found; });
}

void NamedColumns::look_at(const Value& row, const std::string& where) {
  if (row.object() == nullptr) return;
  if (row_.where.empty()) row_ = {where, columns_text(row)};
  for (Name& name : names_) name.is_found |= !name.is_in_messages && row.find(name.column) != nullptr;
  const Value::List* messages = row.find_list(messages_column_);
  Value parsed;
  if (const std::string* json = row.find_string(messages_column_)) {
    parsed = parse_value(*json, where);
    messages = parsed.list();
  }
  if (messages == nullptr) return;
  for (const Value& message : *messages) {
    if (message.object() == nullptr) continue;
    if (message_.where.empty()) message_ = {where, columns_text(message)};
    for (Name& name : names_) name.is_found |= name.is_in_messages && message.find(name.column) != nullptr;
  }
}

void NamedColumns::look_into(const std::filesystem::path& file) {
  const InputKind kind = input_kind(file);
  if (are_all_found() || kind == InputKind::kPretokenized) return;
  if (kind == InputKind::kText) return look_at(Value::Object{{"text", ""}}, file.string());
  const std::unique_ptr<RecordSource> records = open_records(file, /*text_per_line=*/false);
  for (Record record; !are_all_found();) {
    try {
      if (!records->next(&record)) return;
      if (record.kind == RecordKind::kJson) record.value = parse_record(record, file);
      look_at(record.value, fmt::format("{}: {}", file.string(), record.place()));
    } catch (const RowError&) {  // reported where the row is used
    } catch (const Error& error) {
      // Also reported there, unless the rest of the file cannot be read.
      if (error.code() != ExitCode::kBadData || record.kind != RecordKind::kJson) return;
    }
  }
}

void NamedColumns::merge(const NamedColumns& other) {
  if (row_.where.empty()) row_ = other.row_;
  if (message_.where.empty()) message_ = other.message_;
  for (const Name& theirs : other.names_) {
    const auto same = std::find_if(names_.begin(), names_.end(), [&](const Name& ours) {
      return ours.field == theirs.field && ours.column == theirs.column;
    });
    if (same == names_.end()) {
      names_.push_back(theirs);
    } else {
      same->is_found |= theirs.is_found;
    }
  }
}

void NamedColumns::expect_all() const {
  for (const Name& name : names_) {
    const Place& first = name.is_in_messages ? message_ : row_;
    if (name.is_found || first.where.empty()) continue;
    fail(ExitCode::kBadData, "{}: no {} has the {} '{}', which is named for '{}': found {}: {}", first.where,
         name.is_in_messages ? "message" : "row", name.is_in_messages ? "field" : "column",
         printable(name.column, 80), printable(name.field, 40), first.names, remedy_);
  }
}

}  // namespace tessera
