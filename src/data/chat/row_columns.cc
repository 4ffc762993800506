#include "data/chat/row_columns.h"

#include <algorithm>
#include <array>
#include <span>

#include "base/error.h"
#include "base/text.h"

namespace tessera {
namespace {

constexpr std::array<std::string_view, 8> kMedia = {"image", "images", "video",        "videos",
                                                    "audio", "audios", "pixel_values", "input_features"};
constexpr std::array<std::string_view, 3> kPlaceholders = {"<image>", "<video>", "<audio>"};

using Names = std::vector<std::string_view>;

// The fields that a row of this shape reads. A prompt that is text has no template to give variables to.
Names read_fields(const Value& row, RowShape shape, const RowFormat& format) {
  const auto with_template = [](Names names) {
    names.insert(names.end(), {"system", "tools", "chat_template_kwargs"});
    return names;
  };
  switch (shape) {
    case RowShape::kText:
      return {"text"};
    case RowShape::kPromptCompletion: {
      const Value* prompt = row.find(column_of("prompt", format));
      const Names names = {"prompt", "completion"};
      return prompt != nullptr && prompt->list() != nullptr ? with_template(names) : names;
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
    case RowShape::kTokens:
      return {"input_ids",       "labels",       "attention_mask", "completion_mask",
              "assistant_masks", "position_ids", "seq_lengths"};
  }
  TESSERA_CHECK(false, "shape {}", static_cast<int>(shape));
}

// The columns that are read: by LLaMA-Factory's rules only those that are named.
Names read_columns(const Value& row, RowShape shape, const RowFormat& format) {
  Names columns;
  if (format.pairs) {
    for (const auto& [field, column] : format.columns) columns.push_back(column);
    return columns;
  }
  for (const std::string_view field : read_fields(row, shape, format))
    columns.push_back(column_of(field, format));
  return columns;
}

// Null, an empty text or list, or a list of nothing else.
bool is_empty(const Value& value) {
  if (const std::string* text = value.string()) return text->empty();
  if (const Value::List* items = value.list()) return std::all_of(items->begin(), items->end(), is_empty);
  return value.is_null();
}

bool is_false(const Value& value) {
  if (const bool* flag = value.boolean()) return !*flag;
  return value.string() != nullptr && lower_case(*value.string()) == "false";
}

// The first placeholder in the texts of a value; "" if there is none.
std::string_view placeholder_in(const Value& value) {
  if (const std::string* text = value.string()) {
    const auto* const found = std::ranges::find_if(
        kPlaceholders, [text](std::string_view p) { return text->find(p) != text->npos; });
    return found == kPlaceholders.end() ? "" : *found;
  }
  std::string_view found;
  if (const Value::List* items = value.list()) {
    for (const Value& item : *items) found = found.empty() ? placeholder_in(item) : found;
  }
  if (const Value::Object* fields = value.object()) {
    for (const Value::Field& field : *fields) found = found.empty() ? placeholder_in(field.value) : found;
  }
  return found;
}

bool is_one_of(std::string_view name, std::span<const std::string_view> names) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

bool has_answers(RowShape shape) { return shape != RowShape::kText && shape != RowShape::kTokens; }

}  // namespace

bool is_media_column(std::string_view name) { return is_one_of(name, kMedia); }

std::vector<std::string> unread_columns(const Value& row, RowShape shape, const RowFormat& format) {
  const Names read = read_columns(row, shape, format);
  std::vector<std::string> unread;
  for (const Value::Field& column : *row.object()) {
    if (!column.value.is_null() && !is_one_of(column.name, read)) unread.push_back(column.name);
  }
  return unread;
}

void check_unread_columns(const Value& row, RowShape shape, const RowFormat& format,
                          const std::string& where) {
  constexpr std::array<std::string_view, 8> kOfTokens = {"loss_mask",  "loss_weights", "shift_labels",
                                                         "loss_scale", "document_ids", "cu_seq_lens_q",
                                                         "cu_seqlens", "seq_idx"};
  Names read;  // found when a column needs it
  for (const Value::Field& column : *row.object()) {
    const bool is_media = is_media_column(column.name);
    const bool is_mark = has_answers(shape) && (column.name == "label" || column.name == "kto_tag");
    const bool is_of_tokens = shape == RowShape::kTokens && is_one_of(column.name, kOfTokens);
    if (!is_media && !is_mark && !is_of_tokens) continue;
    if (read.empty()) read = read_columns(row, shape, format);
    if (is_one_of(column.name, read)) continue;
    const auto refuse = [&](std::string_view why) {
      fail(ExitCode::kBadData, "{}: column '{}': {}", where, printable(column.name), why);
    };
    if (is_media && !is_empty(column.value)) {
      refuse(
          "expected text, but the row has images, video or audio, which are not supported: remove the column "
          "to "
          "train on the text alone");
    }
    if (is_media) {
      if (const std::string_view found = placeholder_in(row); !found.empty())
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
}

}  // namespace tessera
