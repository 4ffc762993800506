#include "settings/run/data_settings.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <system_error>
#include <tuple>

#include "base/error.h"
#include "base/text.h"
#include "data/chat/row_columns.h"
#include "data/sources/row_slice.h"
#include "formats/input_files.h"
#include "formats/json.h"
#include "settings/fields/fields.h"

namespace tessera {
namespace {

// The shapes that are recognised, as dataset_format names them.
constexpr auto kRowShapeWords =
    std::to_array<Word<std::optional<RowShape>>>({{"auto", std::nullopt},
                                                  {"tokens", RowShape::kTokens},
                                                  {"prompt_completion", RowShape::kPromptCompletion},
                                                  {"messages", RowShape::kMessages},
                                                  {"sharegpt", RowShape::kConversations},
                                                  {"text", RowShape::kText},
                                                  {"alpaca", RowShape::kInstruction}});

std::vector<std::pair<std::string, std::string>> parse_columns(const std::vector<std::string>& mapping) {
  std::vector<std::pair<std::string, std::string>> columns;
  for (const std::string& entry : mapping) {
    const size_t equals = entry.find('=');
    if (equals == 0 || equals == std::string::npos || equals + 1 == entry.size()) {
      fail(ExitCode::kBadConfig, "column_mapping: expected FIELD=COLUMN, such as messages=dialog, found '{}'",
           printable(entry, 80));
    }
    const std::string field = entry.substr(0, equals);
    if (!is_row_field(field))
      fail(ExitCode::kBadConfig, "column_mapping: '{}' is a field of no shape of rows, in '{}'",
           printable(field, 80), printable(entry, 80));
    if (std::any_of(columns.begin(), columns.end(), [&](const auto& known) { return known.first == field; }))
      fail(ExitCode::kBadConfig, "column_mapping: '{}' is given two columns", field);
    columns.emplace_back(field, entry.substr(equals + 1));
  }
  return columns;
}

std::vector<std::pair<std::string, std::string>> pairs_of(const JsonNode& object) {
  std::vector<std::pair<std::string, std::string>> pairs;
  if (object.is_null()) return pairs;
  for (const auto& [name, value] : object.object().items()) pairs.emplace_back(name, object[name].string());
  return pairs;
}

PromptText prompt_of(const JsonNode& entry) {
  entry.expect_keys(
      {"system", "no_input_system", "format", "no_input_format", "system_format", "default_system"});
  const auto text = [&](const char* name) { return entry[name].string_or(""); };
  PromptText prompt = {text("system"),          text("no_input_system"), text("format"),
                       text("no_input_format"), text("system_format"),   text("default_system")};
  for (const auto& [name, value, fields] :
       {std::tuple{"format", &prompt.format, std::vector<std::string_view>{"instruction", "input"}},
        std::tuple{"no_input_format", &prompt.no_input_format, std::vector<std::string_view>{"instruction"}},
        std::tuple{"system_format", &prompt.system_format, std::vector<std::string_view>{"system"}}}) {
    if (const std::string problem = format_problem(*value, fields); !problem.empty())
      entry[name].expected("a format; it has " + problem);
  }
  return prompt;
}

std::vector<std::string> texts_of(const JsonNode& list) {
  std::vector<std::string> texts;
  for (const JsonNode& item : list.list()) texts.push_back(item.string());
  return texts;
}

TurnTargets turns_of(const JsonNode& entry) {
  entry.expect_keys({"roles", "all_roles", "train_on_eos", "train_on_eot", "eot_tokens", "training_field",
                     "detail_field", "drop_system", "thinking_field", "splits_thoughts"});
  TurnTargets turns;
  if (!entry["roles"].is_null()) turns.roles = texts_of(entry["roles"]);
  if (!entry["all_roles"].is_null()) turns.all_roles = entry["all_roles"].boolean();
  for (const auto& [name, target] :
       {std::pair{"train_on_eos", &turns.eos}, std::pair{"train_on_eot", &turns.eot}}) {
    const std::optional<EndTargets> found = end_targets_by_name(entry[name].string_or("turn"));
    if (!found) entry[name].expected("one of turn, all, last, none");
    *target = *found;
  }
  if (!entry["eot_tokens"].is_null()) turns.eot_tokens = texts_of(entry["eot_tokens"]);
  turns.training_field = entry["training_field"].string_or("");
  turns.detail_field = entry["detail_field"].string_or("");
  turns.thinking_field = entry["thinking_field"].string_or(turns.thinking_field);
  turns.splits_thoughts = entry["splits_thoughts"].boolean_or(false);
  if (!entry["drop_system"].is_null()) turns.drop_system = entry["drop_system"].boolean();
  return turns;
}

// Changes what an entry of dataset_formats says.
void apply_format(const JsonNode& entry, RowFormat* format) {
  entry.expect_keys(
      {"shape", "columns", "tags", "prompt", "turns", "variables", "pairs", "lines", "drops_empty"});
  format->drops_empty_text = entry["drops_empty"].boolean_or(false);
  if (!entry["shape"].is_null()) {
    format->shape = row_shape_by_name(entry["shape"].string());
    if (!format->shape) entry["shape"].expected(fmt::format("one of {}", fmt::join(row_shape_names(), ", ")));
  }
  for (auto& [field, column] : pairs_of(entry["columns"])) {
    if (!is_row_field(field)) entry["columns"][field].expected("a field that a shape of rows has");
    std::erase_if(format->columns, [&field = field](const auto& known) { return known.first == field; });
    format->columns.emplace_back(field, std::move(column));
  }
  if (!entry["prompt"].is_null()) format->prompt = prompt_of(entry["prompt"]);
  if (!entry["turns"].is_null()) format->turns = turns_of(entry["turns"]);
  if (!entry["variables"].is_null()) format->variables = entry["variables"].json().dump();
  format->has_lines = entry["lines"].boolean_or(false);
  if ((format->shape == RowShape::kPromptText) != format->prompt.has_value())
    entry.expected("'prompt' beside the shape prompt_text alone");
  if (const JsonNode pairs = entry["pairs"]; !pairs.is_null()) {
    pairs.expect_keys({"targets", "default_system"});
    const auto targets = pair_targets_by_name(pairs["targets"].string_or("answers"));
    if (!targets) pairs["targets"].expected("answers, last_answer or everything");
    format->pairs = {.targets = *targets};
    if (const JsonNode system = pairs["default_system"]; !system.is_null())
      format->pairs->default_system = system.string();
  }
  const JsonNode tags = entry["tags"];
  if (tags.is_null()) return;
  tags.expect_keys({"role", "content", "roles", "properties"});
  format->tags = {tags["role"].string_or(""), tags["content"].string_or(""), pairs_of(tags["roles"]),
                  pairs_of(tags["properties"])};
}

}  // namespace

void declare_data_flags(FlagTable* table, DataArguments* data) {
  add_field(table, "text_column", &data->text_column);
  add_field(table, "dataset_format", &data->shape, kRowShapeWords);
  add_field(table, "column_mapping", &data->column_mapping);
  add_field(table, "dataset_formats", &data->dataset_formats);
  add_field(table, "text_per_line", &data->text_per_line);
  add_field(table, "add_special_tokens", &data->add_special_tokens);
  add_field(table, "skip_invalid_utf8", &data->skip_invalid_utf8);
  add_field(table, "excess_length_strategy", &data->excess_length_strategy);
  add_field(table, "skip_bad_rows", &data->skip_bad_rows);
  add_field(table, "chat_template", &data->chat_template);
  add_field(table, "chat_template_date", &data->chat_template_date);
  add_field(table, "assistant_only_loss", &data->assistant_only_loss);
  add_field(table, "completion_only_loss", &data->completion_only_loss);
  add_field(table, "train_on_prompt", &data->train_on_prompt);
  add_field(table, "parse_special_tokens", &data->parse_special_tokens);
  SourceTargetArguments& pair = data->source_target;
  add_field(table, "summary_column", &pair.summary_column);
  add_field(table, "source_lang", &pair.source_lang);
  add_field(table, "target_lang", &pair.target_lang);
  add_field(table, "source_prefix", &pair.source_prefix);
  add_field(table, "max_source_length", &pair.max_source_length);
  add_field(table, "max_target_length", &pair.max_target_length);
  add_field(table, "val_max_target_length", &pair.val_max_target_length);
  add_field(table, "stage", &data->stage);
  add_field(table, "mlm_probability", &data->masking.mlm_probability);
  add_field(table, "mask_replace_prob", &data->masking.mask_replace_prob);
  add_field(table, "random_replace_prob", &data->masking.random_replace_prob);
}

Flag& declare_max_length(FlagTable* table, std::optional<int64_t>* max_length) {
  Flag& flag = add_field(table, "max_length", max_length);
  const std::string everything = std::to_string(kMaxRowLength);
  respell(flag, {{"none", everything}, {"null", everything}});
  return flag;
}

int64_t default_row_limit(int64_t max_position_embeddings) {
  return std::min<int64_t>(1024, max_position_embeddings);
}

namespace {

// The source's name without its slice of rows.
DataSource parse_slice(const std::string& entry) {
  const size_t bracket = entry.rfind('[');
  std::error_code error;
  if (bracket == std::string::npos || std::filesystem::exists(entry, error)) return entry;
  const std::optional<RowSlice> rows = parse_row_slice(std::string_view(entry).substr(bracket));
  if (!rows) return entry;
  DataSource source(entry.substr(0, bracket));
  source.format.rows = rows;
  return source;
}

}  // namespace

DataSource parse_data_source(const std::string& entry) {
  const size_t colon = entry.rfind(':');
  std::error_code error;
  if (colon == std::string::npos || std::filesystem::exists(entry, error)) return parse_slice(entry);
  const char* const begin = entry.data() + colon + 1;
  const char* const end = entry.data() + entry.size();
  double weight = 0;
  const auto [at, problem] = std::from_chars(begin, end, weight);
  if (problem != std::errc() || at != end) return parse_slice(entry);
  if (!(weight > 0) || weight > 1e6) {
    fail(ExitCode::kBadConfig, "dataset {}: expected a weight above 0 and up to 1e6, found {}",
         printable(entry, 200), weight);
  }
  DataSource source = parse_slice(entry.substr(0, colon));
  source.weight = weight;
  return source;
}

namespace {

// By the name as it is written, with the slice of its rows, or without.
JsonNode format_entry(const JsonNode& formats, const std::string& entry, const DataSource& source) {
  const JsonNode whole = formats[entry.substr(0, source.weight ? entry.rfind(':') : std::string::npos)];
  return whole.is_null() ? formats[source.paths[0]] : whole;
}

}  // namespace

DatasetOptions dataset_options(const DataArguments& data, const std::vector<std::string>& sources,
                               const std::filesystem::path& tokenizer_folder) {
  if (data.train_on_prompt && data.completion_only_loss.value_or(false)) {
    fail(ExitCode::kBadConfig,
         "--train_on_prompt contradicts --completion_only_loss: leave one of the two out");
  }
  const std::string origin = "dataset_formats";
  const Json formats =
      data.dataset_formats.empty() ? Json::object() : parse_json(data.dataset_formats, origin);
  DatasetOptions options;
  for (const std::string& entry : sources) {
    DataSource source = parse_data_source(entry);
    const JsonNode format = format_entry(JsonNode(formats, origin), entry, source);
    if (const auto found = data.hub_files.find(source.paths[0]); found != data.hub_files.end())
      source.paths = found->second;
    source.format.shape = data.shape;
    source.format.text_column = data.text_column;
    source.format.columns = parse_columns(data.column_mapping);
    if (!format.is_null()) apply_format(format, &source.format);
    options.sources.push_back(std::move(source));
  }
  options.text_per_line = data.text_per_line;
  options.add_special_tokens = data.add_special_tokens;
  options.skip_invalid_utf8 = data.skip_invalid_utf8;
  options.skip_bad_rows = data.skip_bad_rows;
  options.excess_length = data.excess_length_strategy;
  options.train_on_prompt = data.train_on_prompt || !data.completion_only_loss.value_or(true);
  options.assistant_only_loss = data.assistant_only_loss;
  options.reads_completion_mask = data.completion_only_loss.value_or(false);
  options.chat_template = {data.chat_template == "tokenizer_default" ? "" : data.chat_template,
                           data.chat_template_date};
  std::error_code error;  // a tokenizer may be given as its file
  options.chat_folder = std::filesystem::is_regular_file(tokenizer_folder, error)
                            ? tokenizer_folder.parent_path()
                            : tokenizer_folder;
  options.parse_special_tokens = data.parse_special_tokens;
  return options;
}

bool needs_tokenizer(const std::vector<std::string>& sources) {
  return !std::all_of(sources.begin(), sources.end(), [](const std::string& entry) {
    return input_kind(parse_data_source(entry).paths[0]) == InputKind::kPretokenized;
  });
}

}  // namespace tessera
