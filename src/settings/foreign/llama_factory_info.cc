#include "settings/foreign/llama_factory_info.h"

#include <algorithm>
#include <array>
#include <span>
#include <string_view>
#include <utility>

#include "base/error.h"
#include "base/log.h"
#include "base/text.h"
#include "data/sources/row_slice.h"

namespace tessera {
namespace {

using Json = nlohmann::json;

constexpr std::array<std::string_view, 14> kEntryKeys = {
    "hf_hub_url", "ms_hub_url", "om_hub_url", "script_url", "cloud_file_name", "file_name", "formatting",
    "ranking",    "subset",     "split",      "folder",     "num_samples",     "columns",   "tags"};
constexpr std::array<std::string_view, 13> kColumnKeys = {
    "prompt", "query",  "response", "history", "messages", "system", "tools",
    "images", "videos", "audios",   "chosen",  "rejected", "kto_tag"};
constexpr std::array<std::string_view, 7> kTagKeys = {
    "role_tag", "content_tag", "user_tag", "assistant_tag", "observation_tag", "function_tag", "system_tag"};

// (LLaMA-Factory's name of a column, ours)
using ColumnNames = std::span<const std::pair<std::string_view, std::string_view>>;
constexpr std::pair<std::string_view, std::string_view> kPairColumns[] = {
    {"prompt", "instruction"}, {"query", "input"},   {"response", "output"},
    {"history", "history"},    {"system", "system"}, {"tools", "tools"}};
constexpr std::pair<std::string_view, std::string_view> kConversationColumns[] = {
    {"messages", "conversations"}, {"system", "system"}, {"tools", "tools"}};
constexpr std::pair<std::string_view, std::string_view> kOpenAiColumns[] = {
    {"messages", "messages"}, {"system", "system"}, {"tools", "tools"}};

constexpr const char* kNoMedia = "images, videos and audio are not trained on: leave the data set out";
constexpr const char* kNoPreferences = "pairs of answers (stages rm, dpo, kto) are not trained on";

[[noreturn]] void refuse(const JsonNode& node, const std::string& why) {
  fail(ExitCode::kBadConfig, "{}: not supported: {}", node.where(), why);
}

void warn(const JsonNode& node, const std::string& why) {
  log_warning("{} has no effect: {}", node.where(), why);
}

bool is_off(const JsonNode& node) { return node.is_null() || node.json() == false; }

template <size_t kSize>
void expect_known(const JsonNode& object, const std::array<std::string_view, kSize>& known) {
  for (const auto& [key, value] : object.object().items()) {
    if (std::find(known.begin(), known.end(), key) != known.end()) continue;
    if (key == "file_sha1") {
      warn(object[key], "the contents of files are hashed for the cache, not checked");
      continue;
    }
    fail(ExitCode::kBadConfig, "{}: unknown key '{}': expected {}", object.where(), printable(key),
         fmt::join(known, ", "));
  }
}

void check_columns(const JsonNode& columns, ColumnNames used, const std::string& formatting) {
  if (columns.is_null()) return;
  expect_known(columns, kColumnKeys);
  for (const char* media : {"images", "videos", "audios"}) {
    if (!columns[media].is_null()) refuse(columns[media], kNoMedia);
  }
  for (const char* preference : {"kto_tag", "chosen", "rejected"}) {
    if (!columns[preference].is_null()) refuse(columns[preference], kNoPreferences);
  }
  for (const auto& [key, value] : columns.object().items()) {
    const bool is_used =
        std::any_of(used.begin(), used.end(), [&key = key](const auto& names) { return names.first == key; });
    if (!is_used && !value.is_null())
      warn(columns[key], fmt::format("rows with the formatting {} have no such column", formatting));
  }
}

// The columns by our names: those given, or LLaMA-Factory's own; history, system and tools are read only if
// they are given.
Json columns_of(const JsonNode& columns, ColumnNames names) {
  Json ours = Json::object();
  for (const auto& [theirs, field] : names) {
    const bool has_default = field != "history" && field != "system" && field != "tools";
    if (columns.is_null() && has_default)
      ours[std::string(field)] = theirs == "messages" ? "conversations" : field;
    const std::string named = columns.is_null() ? "" : columns[theirs].string_or("");
    if (!named.empty()) ours[std::string(field)] = named;
  }
  return ours;
}

// If "tags" is given, a role without a tag is no role.
Json tags_of(const JsonNode& tags) {
  static constexpr std::array<std::array<const char*, 3>, 5> kRoles = {
      {{"user_tag", "human", "user"},
       {"assistant_tag", "gpt", "assistant"},
       {"observation_tag", "observation", "tool"},
       {"function_tag", "function_call", "function_call"},
       {"system_tag", "system", "system"}}};
  if (!tags.is_null()) expect_known(tags, kTagKeys);
  Json ours = {{"role", tags["role_tag"].string_or("from")},
               {"content", tags["content_tag"].string_or("value")},
               {"roles", Json::object()}};
  for (const auto& [tag, name, role] : kRoles) {
    if (tags.is_null()) ours["roles"][name] = role;
    if (!tags.is_null() && !tags[tag].is_null()) ours["roles"][tags[tag].string()] = role;
  }
  return ours;
}

Json pairs_of_entry(const JsonNode& entry, const LlamaFactoryRows& rows) {
  if (rows.is_pretraining) {
    log_warning(
        "{}: stage pt takes everything in a row as target; LLaMA-Factory reads its first message alone",
        entry.where());
  }
  Json pairs = {{"targets", rows.is_pretraining     ? "everything"
                            : rows.last_answer_only ? "last_answer"
                                                    : "answers"}};
  if (rows.default_system) pairs["default_system"] = *rows.default_system;
  return pairs;
}

// "train" and "[:100]" of "train[:100]"; without a slice, `others`.
std::pair<std::string, std::string> split_and_slice(const JsonNode& split, std::string others) {
  std::string name = split.string_or("train");
  std::string slice;
  if (const size_t bracket = name.find('['); bracket != std::string::npos) {
    slice = name.substr(bracket);
    name.resize(bracket);
    if (!parse_row_slice(slice)) refuse(split, "expected a name with at most one slice, as train[10%:20%]");
    if (!others.empty()) refuse(split, "a slice beside max_samples or a val_size of rows: leave one out");
  } else {
    slice = std::move(others);
  }
  return {std::move(name), std::move(slice)};
}

}  // namespace

std::string LlamaFactoryRows::slice(bool is_evaluation) const {
  if (is_evaluation && num_held_out > 0) return fmt::format("[:{}]", num_held_out);
  const std::string from = num_held_out > 0 ? std::to_string(num_held_out) : "";
  const std::string to = max_samples ? std::to_string(*max_samples) : "";
  return from.empty() && to.empty() ? "" : fmt::format("[{}:{}]", from, to);
}

std::string llama_factory_source(const std::filesystem::path& dataset_dir, const JsonNode& entry,
                                 const LlamaFactoryRows& rows, bool is_evaluation) {
  expect_known(entry, kEntryKeys);
  if (!is_off(entry["ranking"])) refuse(entry["ranking"], kNoPreferences);
  if (!entry["num_samples"].is_null()) {
    refuse(entry["num_samples"],
           "the rows that LLaMA-Factory draws cannot be told: pass a smaller file, or weigh the data sets");
  }
  const auto [split, slice] = split_and_slice(entry["split"], rows.slice(is_evaluation));
  if (!entry["hf_hub_url"].is_null()) {
    if (!entry["folder"].is_null()) refuse(entry["folder"], "name a configuration (subset) or the files");
    std::string name = entry["hf_hub_url"].string();
    if (!entry["subset"].is_null()) name += ":" + entry["subset"].string();
    if (!entry["split"].is_null()) name += "/" + split;
    return name + slice;
  }
  for (const char* source : {"ms_hub_url", "om_hub_url", "script_url", "cloud_file_name"}) {
    if (!entry[source].is_null()) refuse(entry[source], "name a local file (file_name) or hf_hub_url");
  }
  for (const char* of_hub : {"subset", "folder"}) {
    if (!entry[of_hub].is_null()) warn(entry[of_hub], "a local file has none");
  }
  if (split != "train")
    refuse(entry["split"], "a local file is the split train: leave it out, or pass the rows as a file");
  return (dataset_dir / entry["file_name"].string()).string() + slice;
}

Json llama_factory_format(const JsonNode& entry, const LlamaFactoryRows& rows) {
  const std::string formatting = entry["formatting"].string_or("alpaca");
  if (formatting != "alpaca" && formatting != "sharegpt" && formatting != "openai")
    refuse(entry["formatting"],
           fmt::format("expected alpaca, sharegpt or openai, found {}", printable(formatting)));
  const JsonNode columns = entry["columns"];
  const JsonNode tags = entry["tags"];
  if (formatting == "alpaca") {
    check_columns(columns, kPairColumns, formatting);
    if (!tags.is_null()) warn(tags, "rows with the formatting alpaca have no messages");
    Json ours = columns_of(columns, kPairColumns);
    // A file of pre-training has its text in the column of the prompt alone.
    const bool is_text = ours.size() == 1 && ours.contains("instruction");
    if (is_text && (rows.is_pretraining || !rows.names_stage))
      return {{"shape", "text"}, {"columns", {{"text", ours["instruction"]}}}, {"lines", true}};
    if (!ours.contains("output")) {
      fail(ExitCode::kBadConfig,
           "{}: 'response' is not named, without which every row is left out: name it, or set stage: pt for "
           "text",
           columns.where());
    }
    return {{"shape", "alpaca"}, {"columns", std::move(ours)}, {"pairs", pairs_of_entry(entry, rows)}};
  }
  const bool is_openai = formatting == "openai";
  if (is_openai) {
    log_warning("{}: system messages stay as they are; LLaMA-Factory adds \"detailed thinking off\" to them",
                entry.where());
  }
  const ColumnNames names = is_openai ? ColumnNames(kOpenAiColumns) : ColumnNames(kConversationColumns);
  check_columns(columns, names, formatting);
  if (!columns.is_null() && columns["messages"].is_null())
    fail(ExitCode::kBadConfig, "{}: 'messages' is not named: name the column of the messages",
         columns.where());
  return {{"shape", is_openai ? "messages" : "sharegpt"},
          {"columns", columns_of(columns, names)},
          {"tags", tags_of(tags)},
          {"pairs", pairs_of_entry(entry, rows)}};
}

}  // namespace tessera
