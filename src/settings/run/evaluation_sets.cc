#include "settings/run/evaluation_sets.h"

#include <glob.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/json_value.h"
#include "base/text.h"
#include "formats/json.h"
#include "settings/run/data_settings.h"

namespace tessera {
namespace {

constexpr const char* kLosses[] = {"loss", "loss_per_token", "perplexity"};
constexpr const char* kOthers = "_-. ";

bool is_set_name(std::string_view name) {
  const auto may_stand = [](char c) {
    const bool is_letter =
        (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || static_cast<signed char>(c) < 0;
    return is_letter || (c >= '0' && c <= '9') || std::string_view(kOthers).find(c) != std::string_view::npos;
  };
  return !name.empty() && name.front() != ' ' && name.back() != ' ' && std::ranges::all_of(name, may_stand);
}

bool matches_files(const std::string& pattern) {
  glob_t found = {};
  const bool matches = glob(pattern.c_str(), GLOB_NOSORT, nullptr, &found) == 0;
  globfree(&found);
  return matches;
}

// 0 = the entry has none.
size_t length_of_name(const std::string& entry) {
  const size_t equals = entry.find('=');
  if (equals == std::string::npos || !is_set_name(std::string_view(entry).substr(0, equals))) return 0;
  return matches_files(parse_data_source(entry).paths[0]) ? 0 : equals;
}

}  // namespace

std::string source_of_entry(const std::string& entry) {
  const size_t length = length_of_name(entry);
  return length == 0 ? entry : entry.substr(length + 1);
}

std::vector<EvaluationSet> evaluation_sets(const std::vector<std::string>& entries) {
  std::vector<EvaluationSet> sets;
  for (const std::string& entry : entries) {
    const size_t length = length_of_name(entry);
    const std::string name = entry.substr(0, length);
    const std::string source = length == 0 ? entry : entry.substr(length + 1);
    if (source.empty()) {
      fail(ExitCode::kBadConfig, "eval_dataset {}: expected NAME=FILE, found no file", printable(entry, 200));
    }
    if (!sets.empty() && sets.front().name.empty() != name.empty()) {
      fail(ExitCode::kBadConfig,
           "eval_dataset {}: {}: give a name to all evaluation sets, as NAME=FILE, or to none",
           printable(entry, 200),
           name.empty() ? "has no name, others have one" : "has a name, others have none");
    }
    if (!name.empty() && parse_data_source(source).weight) {
      fail(ExitCode::kBadConfig,
           "eval_dataset {}: a weight has no meaning here: a set is evaluated by itself, every row once",
           printable(entry, 200));
    }
    auto set = std::ranges::find(sets, name, &EvaluationSet::name);
    if (set == sets.end()) set = sets.insert(set, {name, {}});
    set->sources.push_back(source);
  }
  return sets;
}

std::vector<std::string> entries_of_sets(const std::string& object, const std::string& origin) {
  std::vector<std::string> names;
  const auto note_name = [&](int depth, nlohmann::json::parse_event_t event, nlohmann::ordered_json& parsed) {
    if (depth != 1 || event != nlohmann::json::parse_event_t::key) return true;
    const auto& name = parsed.get_ref<const std::string&>();
    if (std::ranges::find(names, name) != names.end())
      fail(ExitCode::kBadConfig, "{}: '{}' is named twice", origin, printable(name));
    names.push_back(name);
    return true;
  };
  const auto sets = nlohmann::ordered_json::parse(object, note_name, /*allow_exceptions=*/false);
  if (!sets.is_object() || sets.empty()) {
    fail(ExitCode::kBadConfig,
         "{}: expected an object of files by name, such as {{\"news\": \"news.jsonl\"}}", origin);
  }
  std::vector<std::string> entries;
  for (const auto& [name, value] : sets.items()) {
    if (!is_set_name(name)) {
      fail(ExitCode::kBadConfig,
           "{}: expected letters, digits, spaces, '_', '-' and '.' in the name of an evaluation set, found "
           "'{}'",
           origin, printable(name));
    }
    const nlohmann::ordered_json list = value.is_array() ? value : nlohmann::ordered_json::array({value});
    for (const auto& source : list) {
      if (!source.is_string() || source.get_ref<const std::string&>().empty()) {
        fail(ExitCode::kBadConfig, "{}: {}: expected a file or a list of files, found {}", origin,
             printable(name), found_text(nlohmann::json(value)));
      }
      entries.push_back(name + "=" + source.get<std::string>());
    }
    if (list.empty())
      fail(ExitCode::kBadConfig, "{}: {}: expected a file or a list of files, found []", origin, name);
  }
  return entries;
}

bool may_be_metric_of_set(const std::string& word) {
  return std::ranges::any_of(kLosses, [&](const char* loss) {
    const std::string end = "_" + std::string(loss);
    return word.size() > end.size() && word.ends_with(end);
  });
}

void check_metric(const RunSpec& spec, bool is_default) {
  const std::string& metric = spec.evaluation.metric;
  if (metric.starts_with("eval_choices_accuracy")) {
    if (!spec.evaluation.choices.empty()) return;
    fail(ExitCode::kBadConfig, "metric_for_best_model {} needs eval_choices", metric);
  }
  std::vector<EvaluationSet> sets = evaluation_sets(spec.data.eval_dataset);
  if (sets.empty()) sets.push_back({});
  std::vector<std::string> metrics;
  for (const EvaluationSet& set : sets) {
    for (const char* loss : kLosses) metrics.push_back(set.prefix() + "_" + loss);
  }
  if (std::ranges::find(metrics, metric) != metrics.end()) return;
  fail(ExitCode::kBadConfig, "metric_for_best_model {}{}: no evaluation of this run has it: name one of {}",
       printable(metric), is_default ? " (the default)" : "", fmt::join(metrics, ", "));
}

}  // namespace tessera
