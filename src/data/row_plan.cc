#include "data/row_plan.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <numeric>
#include <utility>

#include "base/error.h"
#include "base/text.h"
#include "data/cache/pretokenized_rows.h"
#include "data/chat/media.h"
#include "data/chat/row_columns.h"
#include "data/named_columns.h"
#include "data/sources/record_source.h"
#include "data/sources/source_files.h"
#include "formats/input_files.h"
#include "formats/row_error.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;

// Findings from the first rows of a file.
struct FirstRows {
  std::optional<RowShape> shape;            // of the first row with values; nullopt if there is none
  std::vector<std::string> unread_columns;  // columns the shape does not read
  std::string_view placeholder;             // of an image, video or audio in the text
  bool has_completion_mask = false;         // which decides, as there are no labels
};

// Finds columns of the first rows that the shape does not read. Error: one holds refused content, which makes
// all other findings moot.
void look_for_unread(RecordSource* records, Record record, const fs::path& file, const RowFormat& format,
                     bool may_refuse, FirstRows* first) {
  constexpr int kMaxRows = 100;
  const RowShape shape = *first->shape;
  std::vector<std::string>& unread = first->unread_columns;
  unread = records->unreadable_columns();
  for (int i = 0; i < kMaxRows; ++i) {
    for (std::string& column : unread_columns(record.value, shape, format)) {
      if (std::find(unread.begin(), unread.end(), column) == unread.end())
        unread.push_back(std::move(column));
    }
    if (may_refuse)
      check_unread_columns(record.value, shape, format, fmt::format("{}: {}", file.string(), record.place()));
    if (first->placeholder.empty()) first->placeholder = media_placeholder_of(record.value, shape, format);
    try {
      if (!records->next(&record)) break;
      if (record.kind == RecordKind::kJson) record.value = parse_record(record, file);
    } catch (const Error&) {  // reported where the row is used
      break;
    }
    if (record.value.object() == nullptr) break;
  }
}

bool has_completion_mask(const Value& row, const RowFormat& format) {
  return row.find(column_of("completion_mask", format)) != nullptr &&
         row.find(column_of("labels", format)) == nullptr;
}

std::unique_ptr<RecordSource> open_rows(const fs::path& file, const RowFormat& format,
                                        const RowOptions& options) {
  return open_records(file, options.text_per_line || format.has_lines);
}

FirstRows read_first_rows(const fs::path& file, const RowFormat& format, const RowOptions& options) {
  const std::unique_ptr<RecordSource> records = open_rows(file, format, options);
  FirstRows first;
  for (Record record;;) {
    try {
      if (!records->next(&record)) return first;
    } catch (const RowError&) {
      if (!options.skip_bad_rows) throw;
      continue;
    }
    if (options.skip_invalid_utf8 && find_invalid_utf8(record.text) >= 0) continue;
    try {
      if (record.kind == RecordKind::kJson) record.value = parse_record(record, file);
      bool is_certain = true;
      const RowShape shape = shape_of_first_row(
          record.value, format, fmt::format("{}: {}", file.string(), record.place()), &is_certain);
      if (!first.shape || is_certain) first.shape = shape;
      if (!is_certain) continue;
      first.has_completion_mask = shape == RowShape::kTokens && has_completion_mask(record.value, format);
      const bool uses_all = !options.skip_bad_rows && !format.rows;
      look_for_unread(records.get(), std::move(record), file, format, uses_all, &first);
      return first;
    } catch (const Error&) {
      if (!options.skip_bad_rows) throw;
    }
  }
}

bool is_pretokenized(const SourceFile& file) { return input_kind(file.path) == InputKind::kPretokenized; }

// Columns of images and similar data often have a type that cannot be read.
void check_unreadable_columns(const fs::path& file) {
  for (const std::string& column : open_records(file, /*text_per_line=*/false)->unreadable_columns()) {
    if (media_name(column) != MediaName::kNone) {
      fail(ExitCode::kBadData,
           "{}: column '{}': expected text, but the rows have images, video or audio, which are not "
           "supported: remove the column to train on the text alone",
           file.string(), printable(column));
    }
  }
}

int64_t count_rows(const SourceFile& file, const RowOptions& options) {
  const std::unique_ptr<RecordSource> records = open_rows(file.path, *file.format, options);
  Record record;
  for (int64_t count = 0;; ++count) {
    try {
      if (!records->next(&record)) return count;
    } catch (const RowError&) {
      if (!options.skip_bad_rows) throw;
    }
  }
}

// Keeps the rows of a slice, counted over all files of a source, which are the last ones of the plan.
void apply_slice(const RowSlice& slice, size_t first_file, const RowOptions& options, RowPlan* plan) {
  const auto pretokenized = std::find_if(plan->files.begin() + static_cast<std::ptrdiff_t>(first_file),
                                         plan->files.end(), is_pretokenized);
  if (pretokenized != plan->files.end()) {
    fail(ExitCode::kBadConfig, "{}: a part of the rows cannot be taken from a pre-tokenized file",
         pretokenized->path.string());
  }
  std::vector<int64_t> counts;
  for (size_t i = first_file; i < plan->files.size(); ++i)
    counts.push_back(count_rows(plan->files[i], options));
  const auto [begin, end] = slice.resolve(std::accumulate(counts.begin(), counts.end(), int64_t{0}));
  int64_t before = 0;
  for (size_t i = 0; i < counts.size(); before += counts[i++]) {
    SourceFile& file = plan->files[first_file + i];
    file.begin_row = std::clamp<int64_t>(begin - before, 0, counts[i]);
    file.end_row = std::clamp<int64_t>(end - before, 0, counts[i]);
  }
}

// Keeps the rows that are held out, or the others. Dataset::split_off() counts them the same way.
void apply_held_out(const HeldOutRows& held_out, const RowOptions& options, RowPlan* plan) {
  if (std::ranges::any_of(plan->files, is_pretokenized)) return;  // refused: such rows are not packed
  int64_t num_rows = 0;
  for (SourceFile& file : plan->files) {
    if (file.end_row == std::numeric_limits<int64_t>::max()) file.end_row = count_rows(file, options);
    num_rows += file.end_row - file.begin_row;
  }
  if (num_rows < 2) {
    fail(ExitCode::kBadData, "validation_split_percentage: expected at least 2 rows to split, found {}",
         num_rows);
  }
  const auto share =
      static_cast<int64_t>(std::llround(static_cast<double>(num_rows) * held_out.percent / 100));
  int64_t left = std::clamp<int64_t>(share, 1, num_rows - 1);
  for (SourceFile& file : plan->files) {
    const int64_t held = std::min(left, file.end_row - file.begin_row);
    left -= held;
    (held_out.are_read ? file.end_row : file.begin_row) = file.begin_row + held;
  }
}

// "the column id", "the columns id, source, ..."
std::string column_list(std::span<const std::string> columns) {
  constexpr size_t kMaxShown = 12;
  std::vector<std::string> shown;
  for (const std::string& column : columns.first(std::min(columns.size(), kMaxShown)))
    shown.push_back(printable(column, 40));
  if (columns.size() > kMaxShown) shown.emplace_back("...");
  return fmt::format("the {} {}", columns.size() == 1 ? "column" : "columns", fmt::join(shown, ", "));
}

// TRL gives it to no template.
constexpr const char* kSystemHint =
    " (--column_mapping system=system makes that the first message of conversations)";

// A file without columns of its own has rows of one shape.
void check_shape_of_file(const fs::path& path, InputKind kind, const RowFormat& format) {
  if (format.source_target && kind == InputKind::kText) {
    fail(ExitCode::kBadConfig,
         "{}: a text file has one text per row, but the model has an encoder and a decoder: expected rows of "
         "{} in a .jsonl, .json, .csv or .parquet file",
         path.string(), expected_source_target(*format.source_target));
  }
  const RowShape only = kind == InputKind::kPretokenized ? RowShape::kTokens : RowShape::kText;
  if (!format.shape || *format.shape == only) return;
  fail(ExitCode::kBadConfig,
       "{}: expected rows of the shape {}, found {}: a file of such rows ends in .jsonl, .json, .csv or "
       ".parquet",
       path.string(), row_shape_name(*format.shape),
       only == RowShape::kTokens ? "token ids" : "a text file, whose only column is 'text'");
}

// Whether the columns are of this source alone; --column_mapping and --text_column are for all sources.
bool has_own_columns(const RowFormat& format) {
  return format.has_lines || format.pairs.has_value() || format.prompt.has_value() ||
         format.turns.has_value();
}

void note_ignored_mask(const fs::path& path, const RowOptions& options, RowPlan* plan) {
  if (options.reads_completion_mask || options.source_target) return;
  plan->ignores_completion_mask = true;
  plan->remarks.push_back(
      fmt::format("{}: completion_mask is not read, so every token is a target: as in TRL, it needs "
                  "completion_only_loss true",
                  path.string()));
}

void add_source(const DataSource& source, const RowOptions& options, RowPlan* plan, NamedColumns* shared) {
  InputFiles found = find_source_files(source.paths, source.splits);
  plan->remarks.insert(plan->remarks.end(), found.left_out.begin(), found.left_out.end());
  std::optional<RowShape> shape = source.format.shape;
  const size_t first_file = plan->files.size();
  bool is_looked_at = false;
  NamedColumns named(source.format);
  for (const fs::path& path : found.files) {
    const InputFile file = InputFile::open(path);
    check_input_content(file, InputUse::kDataset, options.skip_invalid_utf8);
    const InputKind kind = input_kind(path);
    const bool has_fields = kind != InputKind::kText && kind != InputKind::kPretokenized;
    if (!has_fields) check_shape_of_file(path, kind, source.format);
    if (has_fields) check_unreadable_columns(path);
    named.look_into(path);
    if (has_fields && !is_looked_at) {
      const FirstRows first = read_first_rows(path, source.format, options);
      is_looked_at = first.shape.has_value();
      if (!shape) shape = first.shape;
      if (first.has_completion_mask) note_ignored_mask(path, options, plan);
      if (!first.unread_columns.empty()) {
        const bool has_system =
            std::ranges::find(first.unread_columns, "system") != first.unread_columns.end() &&
            !reads_system(*shape, source.format) && !source.format.pairs;
        plan->remarks.push_back(fmt::format(
            "{}: not read, as rows of the shape {} do not have them: {}{}", path.string(),
            row_shape_name(*shape), column_list(first.unread_columns), has_system ? kSystemHint : ""));
      }
      if (!first.placeholder.empty()) {
        plan->remarks.push_back(
            fmt::format("{}: '{}' in the text is trained as text: images, video and audio are not supported",
                        path.string(), first.placeholder));
      }
    }
    if (kind == InputKind::kPretokenized && !options.source_target && !options.masking &&
        has_tensor(path, "completion_mask") && !has_tensor(path, "labels"))
      note_ignored_mask(path, options, plan);
    // Without rows, any shape will do.
    plan->files.push_back({path, file.stamp(), &source.format,
                           kind == InputKind::kPretokenized ? RowShape::kTokens
                           : has_fields                     ? shape.value_or(RowShape::kText)
                                                            : RowShape::kText});
  }
  if (has_own_columns(source.format)) {
    named.expect_all();
  } else {
    shared->merge(named);
  }
  if (source.format.rows) apply_slice(*source.format.rows, first_file, options, plan);
}

bool rows_have_labels(const RowPlan& plan, const RowOptions& options) {
  if (options.source_target) return true;
  if (plan.is_pretokenized && options.masking)
    return std::ranges::any_of(plan.files,
                               [](const SourceFile& file) { return has_tensor(file.path, "labels"); });
  if (plan.is_pretokenized) return any_has_labels(plan.paths(), options.masking.has_value());
  // Perhaps: a message may have the weight 0.
  return plan.has_shape(RowShape::kTokens) || plan.has_shape(RowShape::kSegments) ||
         plan.has_shape(RowShape::kPromptText) || plan.has_chats();
}

}  // namespace

bool RowPlan::has_shape(RowShape shape) const {
  return std::any_of(files.begin(), files.end(),
                     [shape](const SourceFile& file) { return file.shape == shape; });
}

bool RowPlan::has_chats() const {
  return has_shape(RowShape::kMessages) || has_shape(RowShape::kConversations) ||
         has_shape(RowShape::kInstruction) || has_shape(RowShape::kPromptCompletion);
}

bool RowPlan::needs_tokenizer() const {
  return std::any_of(files.begin(), files.end(),
                     [](const SourceFile& file) { return file.shape != RowShape::kTokens; });
}

std::vector<fs::path> RowPlan::paths() const {
  std::vector<fs::path> all;
  for (const SourceFile& file : files) all.push_back(file.path);
  return all;
}

RowPlan plan_rows(std::span<const DataSource> sources, const RowOptions& options) {
  if (sources.empty()) fail(ExitCode::kBadConfig, "no input: name at least one file, folder or pattern");
  RowPlan plan;
  NamedColumns shared((RowFormat()));
  for (const DataSource& source : sources) add_source(source, options, &plan, &shared);
  shared.expect_all();
  const auto pretokenized = std::find_if(plan.files.begin(), plan.files.end(), is_pretokenized);
  const auto text = std::find_if_not(plan.files.begin(), plan.files.end(), is_pretokenized);
  plan.is_pretokenized = pretokenized != plan.files.end();
  if (plan.is_pretokenized && text != plan.files.end()) {
    fail(ExitCode::kBadConfig, "{} is pre-tokenized and {} is not: a dataset is one or the other",
         pretokenized->path.string(), text->path.string());
  }
  const auto no_chat = std::find_if(plan.files.begin(), plan.files.end(), [](const SourceFile& file) {
    return file.shape == RowShape::kText || file.shape == RowShape::kTokens;
  });
  if (options.assistant_only_loss && no_chat != plan.files.end()) {
    fail(ExitCode::kBadConfig,
         "{}: assistant_only_loss: expected conversations, found rows of the shape {}: leave it out, or name "
         "the column of the messages (--column_mapping messages=COLUMN)",
         no_chat->path.string(), row_shape_name(no_chat->shape));
  }
  if (options.masking) {
    for (const SourceFile& file : plan.files) {
      if (file.shape == RowShape::kText || file.shape == RowShape::kTokens) continue;
      fail(ExitCode::kBadConfig,
           "{}: the model is an encoder, which predicts masked tokens of texts or token ids, but the rows "
           "have "
           "the shape {}",
           file.path.string(), row_shape_name(file.shape));
    }
  }
  if (options.held_out) apply_held_out(*options.held_out, options, &plan);
  plan.has_labels = rows_have_labels(plan, options);
  return plan;
}

}  // namespace tessera
