#include "data/chat/row_columns.h"

#include <algorithm>
#include <array>
#include <span>

#include "base/error.h"
#include "base/text.h"
#include "data/chat/media.h"

namespace tessera {
namespace {

using Names = std::vector<std::string_view>;

// The fields that a row of this shape reads. A prompt that is text has no template to give variables to.
Names read_fields(const Value& row, RowShape shape, const RowFormat& format) {
  const auto with_template = [&](Names names) {
    names.insert(names.end(), {"tools", "chat_template_kwargs"});
    if (reads_system(shape, format)) names.emplace_back("system");
    return names;
  };
  switch (shape) {
    case RowShape::kText:
      return {"text"};
    case RowShape::kPromptCompletion: {
      const Names names = {"prompt", "completion"};
      return row.find_list(column_of("prompt", format)) != nullptr ? with_template(names) : names;
    }
    case RowShape::kInstruction:
      return with_template({"instruction", "input", "output", "history"});
    case RowShape::kConversations:
      return with_template({"conversations"});
    case RowShape::kMessages:
      return with_template({"messages", "functions"});
    case RowShape::kPromptText:
      return {"instruction", "input", "output", "system"};
    case RowShape::kSegments:
      return {"segments"};
    case RowShape::kSourceTarget:
      return {"source", "target"};
    case RowShape::kTokens:
      if (format.source_target) return {"input_ids", "labels", "attention_mask", "decoder_input_ids"};
      if (format.is_masked)
        return {"input_ids",       "labels",          "attention_mask", "token_type_ids",
                "completion_mask", "assistant_masks", "position_ids",   "seq_lengths"};
      return {"input_ids",       "labels",       "attention_mask", "completion_mask",
              "assistant_masks", "position_ids", "seq_lengths"};
  }
  TESSERA_CHECK(false, "shape {}", static_cast<int>(shape));
}

// The columns that are read: by LLaMA-Factory's rules only columns the settings name.
Names read_columns(const Value& row, RowShape shape, const RowFormat& format) {
  Names columns;
  if (format.pairs) {
    for (const auto& [field, column] : format.columns) columns.push_back(column);
    return columns;
  }
  if (shape == RowShape::kSourceTarget) {
    const auto names = find_source_target(row, *format.source_target, /*where=*/nullptr);
    return names ? Names{names->source, names->target} : columns;
  }
  for (const std::string_view field : read_fields(row, shape, format))
    columns.push_back(column_of(field, format));
  return columns;
}

// Null, an empty text, list or object, or a list of nothing else.
bool is_empty(const Value& value) {
  if (const Value::Object* fields = value.object()) return fields->empty();
  if (const std::string* text = value.string()) return text->empty();
  if (const Value::List* items = value.list()) return std::all_of(items->begin(), items->end(), is_empty);
  return value.is_null();
}

bool is_false(const Value& value) {
  if (const bool* flag = value.boolean()) return !*flag;
  return value.string() != nullptr && lower_case(*value.string()) == "false";
}

bool is_one_of(std::string_view name, std::span<const std::string_view> names) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

bool has_answers(RowShape shape) { return shape != RowShape::kText && shape != RowShape::kTokens; }

// The first placeholder in the texts of a value, a plain one if there is any.
MediaPlaceholder placeholder_in(const Value& value) {
  if (const std::string* text = value.string()) return find_media_placeholder(*text);
  MediaPlaceholder found;
  const auto look_at = [&found](const Value& part) {
    if (found.is_plain) return;
    if (const MediaPlaceholder other = placeholder_in(part); found.text.empty() || other.is_plain)
      found = other;
  };
  if (const Value::List* items = value.list()) std::for_each(items->begin(), items->end(), look_at);
  if (const Value::Object* fields = value.object()) {
    for (const Value::Field& field : *fields) look_at(field.value);
  }
  return found;
}

// Whether a message is a user's.
bool is_question(const Value& message, const RowFormat& format) {
  for (const std::string_view field :
       {std::string_view(format.tags.role), std::string_view("role"), std::string_view("from")}) {
    const std::string* role = message.find_string(field);
    if (role == nullptr) continue;
    for (const auto& [name, known] : format.tags.roles) {
      if (name == *role) return known == "user";
    }
    return *role == "user" || *role == "human";
  }
  return false;
}

// The placeholder in what a row asks, or elsewhere in what it reads.
MediaPlaceholder placeholder_of(const Value& row, RowShape shape, const RowFormat& format,
                                bool in_questions) {
  MediaPlaceholder found;
  const auto look_at = [&found](const Value& part) {
    if (const MediaPlaceholder other = placeholder_in(part); found.text.empty() || other.is_plain)
      found = other;
  };
  for (const std::string_view column : read_columns(row, shape, format)) {
    const Value* value = row.find(column);
    if (value == nullptr) continue;
    const Value::List* items = value->list();
    const bool has_messages = items != nullptr && !items->empty() && items->front().object() != nullptr;
    const bool asks =
        std::ranges::any_of(std::array{"prompt", "instruction", "input", "query", "history"},
                            [&](const char* field) { return column_of(field, format) == column; });
    if (!in_questions || (asks && !has_messages)) {
      look_at(*value);
    } else if (has_messages) {
      for (const Value& message : *items) {
        if (is_question(message, format)) look_at(message);
      }
    }
  }
  return found;
}

// Whether a column is an image, video or audio that the row's answer depends on. A text is one with or
// without what a link names.
bool is_media_of(const Value::Field& column, RowShape shape) {
  const Value& value = column.value;
  if (is_empty(value) || value.boolean() != nullptr) return false;
  const MediaName name = media_name(column.name);
  if (name == MediaName::kItself) return true;
  if (!has_answers(shape)) return is_media("", value);
  const bool is_number = value.integer() != nullptr || value.number() != nullptr;
  return (name == MediaName::kLink && !is_number) || is_media(column.name, value);
}

}  // namespace

std::string columns_text(const Value& row) {
  constexpr size_t kMaxShown = 8;
  std::vector<std::string> names;
  for (const Value::Field& field : *row.object()) {
    if (names.size() == kMaxShown) {
      names.emplace_back("...");
      break;
    }
    names.push_back(printable(field.name, 40));
  }
  return names.empty() ? "none" : fmt::format("{}", fmt::join(names, ", "));
}

bool is_row_field(std::string_view name) {
  const Value row = Value::Object{{"prompt", Value::List()}};
  for (const RowShape shape :
       {RowShape::kText, RowShape::kPromptCompletion, RowShape::kInstruction, RowShape::kMessages,
        RowShape::kConversations, RowShape::kTokens, RowShape::kSegments, RowShape::kSourceTarget}) {
    if (is_one_of(name, read_fields(row, shape, RowFormat()))) return true;
  }
  return false;
}

bool reads_system(RowShape shape, const RowFormat& format) {
  const bool is_named = std::any_of(format.columns.begin(), format.columns.end(),
                                    [](const auto& column) { return column.first == "system"; });
  return is_named || format.turns || (shape != RowShape::kMessages && shape != RowShape::kPromptCompletion);
}

std::string_view media_placeholder_of(const Value& row, RowShape shape, const RowFormat& format) {
  return placeholder_of(row, shape, format, /*in_questions=*/false).text;
}

std::vector<std::string> unread_columns(const Value& row, RowShape shape, const RowFormat& format) {
  const Names read = read_columns(row, shape, format);
  std::vector<std::string> unread;
  for (const Value::Field& column : *row.object()) {
    if (!column.value.is_null() && !is_one_of(column.name, read) && !is_media_of(column, shape))
      unread.push_back(column.name);
  }
  return unread;
}

void check_unread_columns(const Value& row, RowShape shape, const RowFormat& format,
                          const std::string& where) {
  constexpr std::array<std::string_view, 8> kOfTokens = {"loss_mask",  "loss_weights", "shift_labels",
                                                         "loss_scale", "document_ids", "cu_seq_lens_q",
                                                         "cu_seqlens", "seq_idx"};
  const Names read = read_columns(row, shape, format);
  for (const Value::Field& column : *row.object()) {
    if (is_one_of(column.name, read)) continue;
    const bool is_mark = has_answers(shape) && (column.name == "label" || column.name == "kto_tag");
    const bool is_of_tokens = shape == RowShape::kTokens && is_one_of(column.name, kOfTokens);
    const auto refuse = [&](std::string_view why) {
      fail(ExitCode::kBadData, "{}: column '{}': {}", where, printable(column.name), why);
    };
    if (is_media_of(column, shape)) {
      refuse(
          "expected text, but the row has images, video or audio, which are not supported: remove the column "
          "to train on the text alone");
    }
    if (media_name(column.name) == MediaName::kItself && is_empty(column.value)) {
      if (const std::string_view found = placeholder_in(row).text; !found.empty())
        refuse(fmt::format(
            "found '{}' in the text of the row, which would be trained as text: remove it, or the "
            "column if that is meant",
            found));
    }
    if (is_mark && is_false(column.value)) {
      refuse(
          "false marks an unwanted answer, which training on it would teach: remove such rows, or "
          "leave them out with --skip_bad_rows");
    }
    if (is_of_tokens && !is_empty(column.value)) {
      refuse(
          "not supported: say which tokens are targets with labels, completion_mask or assistant_masks, and "
          "where "
          "documents begin with position_ids or seq_lengths");
    }
  }
  if (!has_answers(shape)) return;
  if (const MediaPlaceholder found = placeholder_of(row, shape, format, /*in_questions=*/true);
      found.is_plain) {
    fail(
        ExitCode::kBadData,
        "{}: found '{}' in a question: images, video and audio are not supported: remove such rows, or leave "
        "them out with --skip_bad_rows",
        where, found.text);
  }
}

}  // namespace tessera
