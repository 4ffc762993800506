#include "hub/dataset_splits.h"

#include <algorithm>
#include <array>
#include <map>
#include <set>
#include <span>

#include "base/error.h"
#include "base/log.h"
#include "base/name_hint.h"
#include "base/text.h"
#include "hub/file_choice.h"

namespace tessera {
namespace {

using Paths = std::vector<std::string>;
// Splits in the order in which they are shown.
using Splits = std::vector<std::pair<std::string, Paths>>;

// SPLIT_KEYWORDS in datasets/data_files.py.
struct Keywords {
  const char* split;
  std::array<const char*, 4> words;
};
constexpr Keywords kKeywords[] = {{"train", {"train", "training", "", ""}},
                                  {"validation", {"validation", "valid", "dev", "val"}},
                                  {"test", {"test", "testing", "eval", "evaluation"}}};

std::string_view file_name(std::string_view path) { return path.substr(path.find_last_of('/') + 1); }
std::string_view folder_of_path(std::string_view path) {
  const size_t slash = path.find_last_of('/');
  return slash == std::string_view::npos ? "" : path.substr(0, slash);
}

// Whether a keyword stands in the name between the separators "-._ 0-9" or at an end of the name.
bool has_keyword(std::string_view name, const Keywords& keywords) {
  constexpr std::string_view kSeparators = "-._ 0123456789";
  while (!name.empty()) {
    const std::string_view word = name.substr(0, name.find_first_of(kSeparators));
    if (!word.empty() &&
        std::find(keywords.words.begin(), keywords.words.end(), word) != keywords.words.end())
      return true;
    name.remove_prefix(std::min(name.size(), word.size() + 1));
  }
  return false;
}

// data/SPLIT-00000-of-00001.parquet, or "" if the path is not one.
std::string sharded_split(std::string_view path) {
  constexpr std::string_view kShard = "-[0-9][0-9][0-9][0-9][0-9]-of-[0-9][0-9][0-9][0-9][0-9]*.*";
  if (folder_of_path(path) != "data" || !matches_path_glob("*" + std::string(kShard), file_name(path)))
    return "";
  for (size_t dash = 0; (dash = path.find('-', dash)) != std::string_view::npos; ++dash) {
    if (matches_path_glob(kShard, path.substr(dash))) return std::string(path.substr(5, dash - 5));
  }
  return "";
}

Splits in_order(const std::map<std::string, Paths>& found) {
  Splits splits;
  for (const Keywords& keywords : kKeywords) {
    if (const auto split = found.find(keywords.split); split != found.end()) splits.emplace_back(*split);
  }
  for (const auto& split : found) {
    const bool is_known =
        std::any_of(std::begin(kKeywords), std::end(kKeywords),
                    [&](const Keywords& keywords) { return keywords.split == split.first; });
    if (!is_known) splits.emplace_back(split);
  }
  return splits;
}

// datasets/data_files.py groups files without a card the same way: by the first of its rules that finds any.
Splits splits_by_names(const Paths& paths) {
  std::map<std::string, Paths> found;
  for (const std::string& path : paths) {
    if (const std::string split = sharded_split(path); !split.empty()) found[split].push_back(path);
  }
  if (!found.empty()) return in_order(found);
  for (const bool by_folder : {true, false}) {
    for (const std::string& path : paths) {
      for (const Keywords& keywords : kKeywords) {
        std::string_view rest = by_folder ? folder_of_path(path) : file_name(path);
        bool matches = false;
        while (!rest.empty() && !matches) {
          const std::string_view part = rest.substr(0, rest.find('/'));
          matches = has_keyword(part, keywords);
          rest.remove_prefix(std::min(rest.size(), part.size() + 1));
        }
        if (matches) found[keywords.split].push_back(path);
      }
    }
    if (!found.empty()) return in_order(found);
  }
  if (!paths.empty()) found["train"] = paths;
  return in_order(found);
}

// Like datasets, takes the files of one format: that of the most frequent ending. Others are often the same
// rows once more, or notes.
Paths of_one_format(const Paths& files, const std::string& origin) {
  std::map<std::string_view, int64_t> counts;
  for (const std::string& file : files) ++counts[data_ending_of(file)->ending];
  // If two endings have as many files, the earlier one wins.
  const std::string_view format = std::ranges::max_element(kDataEndings, {}, [&](const DataEnding& known) {
                                    return counts[known.ending];
                                  })->format;
  Paths taken, others;
  std::ranges::partition_copy(
      files, std::back_inserter(taken), std::back_inserter(others),
      [&](const std::string& file) { return data_ending_of(file)->format == format; });
  if (!others.empty()) {
    log_info("{}: taking {} in {}, leaving out {} of other formats, such as {}", origin,
             count_of(std::ssize(taken), "file"), format, others.size(), printable(others.front(), 200));
  }
  return taken;
}

Splits splits_by_globs(const DatasetConfig& config, const Paths& paths) {
  Splits splits;
  const std::string prefix = config.data_dir.empty() ? "" : config.data_dir + "/";
  for (const DatasetSplit& split : config.splits) {
    Paths matches;
    for (std::string glob : split.globs) {
      if (glob.starts_with("./")) glob.erase(0, 2);
      for (const std::string& path : paths) {
        if (matches_path_glob(prefix + glob, path) &&
            std::find(matches.begin(), matches.end(), path) == matches.end())
          matches.push_back(path);
      }
    }
    splits.emplace_back(split.name, std::move(matches));
  }
  return splits;
}

// The configuration of a data set without a card.
const std::vector<DatasetConfig>& by_names() {
  static const std::vector<DatasetConfig> kByNames = {{"default", true, "", {}}};
  return kByNames;
}

Splits splits_of(const DatasetConfig& config, const Paths& paths) {
  if (!config.splits.empty()) return splits_by_globs(config, paths);
  Paths data;
  const std::string prefix = config.data_dir.empty() ? "" : config.data_dir + "/";
  for (const std::string& path : paths) {
    if (path.starts_with(prefix) && is_data_file(path)) data.push_back(path.substr(prefix.size()));
  }
  Splits splits = splits_by_names(data);
  for (auto& [name, files] : splits) {
    for (std::string& file : files) file.insert(0, prefix);
  }
  return splits;
}

std::string hint(const std::string& name, const std::vector<std::string>& names) {
  constexpr size_t kMaxShown = 20;
  const std::string nearest = nearest_name(name, names);
  const std::span<const std::string> shown(names.data(), std::min(names.size(), kMaxShown));
  return fmt::format(
      "{}; it has {}{}", nearest.empty() ? "" : fmt::format("; did you mean '{}'?", printable(nearest)),
      printable(fmt::format("{}", fmt::join(shown, ", ")), 400), names.size() > kMaxShown ? ", ..." : "");
}

const DatasetConfig& choose_config(const DatasetName& wanted, const std::vector<DatasetConfig>& configs) {
  std::vector<std::string> names;
  for (const DatasetConfig& config : configs) names.push_back(config.name);
  const auto is_chosen = [&](const DatasetConfig& config) {
    if (!wanted.config.empty()) return config.name == wanted.config;
    return configs.size() == 1 || config.is_default || config.name == "default";
  };
  const auto chosen = std::find_if(configs.begin(), configs.end(), is_chosen);
  if (chosen != configs.end()) return *chosen;
  if (wanted.config.empty())
    fail(ExitCode::kNoInput, "{}: has several configurations: name one, as in {}:{}{}", wanted.repo.text(),
         wanted.repo.text(), printable(names.at(0)), hint("", names));
  fail(ExitCode::kNoInput, "{}: has no configuration '{}'{}", wanted.repo.text(), printable(wanted.config),
       hint(wanted.config, names));
}

}  // namespace

FolderSplit choose_folder_split(const std::string& folder, const std::vector<DatasetConfig>& configs,
                                const Paths& paths, const std::vector<std::string>& preferred) {
  const auto chosen = std::find_if(configs.begin(), configs.end(), [&](const DatasetConfig& config) {
    return configs.size() == 1 || config.is_default || config.name == "default";
  });
  if (!configs.empty() && chosen == configs.end()) {
    std::vector<std::string> names;
    for (const DatasetConfig& config : configs) names.push_back(config.name);
    fail(ExitCode::kBadConfig,
         "{}: README.md names the configurations {}: name the files of one instead of the folder",
         printable(folder, 200), printable(fmt::format("{}", fmt::join(names, ", ")), 400));
  }
  const Splits splits = splits_of(configs.empty() ? by_names().front() : *chosen, paths);
  const auto num_data_files = std::count_if(paths.begin(), paths.end(), is_data_file);
  const bool is_only = splits.size() == 1 && std::ssize(splits[0].second) == num_data_files;
  // Texts of other kinds beside them are read, too.
  if (splits.empty() || (is_only && configs.empty())) return {paths, "", ""};
  const auto named = [&](const std::string& name) {
    return std::find_if(splits.begin(), splits.end(), [&](const auto& split) { return split.first == name; });
  };
  auto split = splits.end();
  for (const std::string& name : preferred) {
    if (split == splits.end()) split = named(name);
  }
  if (split == splits.end() && is_only) split = splits.begin();
  std::vector<std::string> found;
  int64_t num_in_splits = 0;
  for (const auto& [name, files] : splits) {
    found.push_back(fmt::format("{} ({})", printable(name), count_of(std::ssize(files), "file")));
    num_in_splits += std::ssize(files);
  }
  if (split == splits.end() || split->second.empty()) {
    fail(ExitCode::kBadConfig,
         "{}: expected the split {}, found {} among {}: name the files instead of the folder",
         printable(folder, 200), fmt::join(preferred, " or "), fmt::join(found, ", "),
         count_of(std::ssize(paths), "file"));
  }
  std::vector<std::string> left_out;
  for (const auto& [name, files] : splits) {
    if (name != split->first)
      left_out.push_back(
          fmt::format("{} of the split {}", count_of(std::ssize(files), "file"), printable(name)));
  }
  if (const int64_t others = std::ssize(paths) - num_in_splits; others > 0)
    left_out.push_back(count_of(others, "file") + " of no split");
  return {split->second, split->first, fmt::format("{}", fmt::join(left_out, ", "))};
}

std::vector<DatasetConfig> converted_configs(const std::vector<std::string>& paths) {
  std::vector<DatasetConfig> configs;
  for (const std::string& path : paths) {
    const std::string_view folder = folder_of_path(path);
    const size_t slash = folder.find('/');
    if (slash == std::string_view::npos || !path.ends_with(".parquet")) continue;
    const std::string name(folder.substr(0, slash));
    if (configs.empty() || configs.back().name != name) configs.push_back({name, false, "", {}});
    std::vector<DatasetSplit>& splits = configs.back().splits;
    std::string split(folder.substr(slash + 1));
    if (split.starts_with("partial-")) split.erase(0, 8);  // only a first part was converted
    if (splits.empty() || splits.back().name != split) splits.push_back({split, {}});
    splits.back().globs.push_back(path);
  }
  return configs;
}

std::vector<std::string> choose_split(const DatasetName& wanted, const std::vector<DatasetConfig>& configs,
                                      const std::vector<std::string>& paths) {
  const Splits splits = splits_of(choose_config(wanted, configs.empty() ? by_names() : configs), paths);
  std::vector<std::string> names;
  for (const auto& [name, files] : splits) names.push_back(name);
  const std::string split = wanted.split.empty() ? "train" : wanted.split;
  auto chosen = std::find(names.begin(), names.end(), split);
  if (chosen == names.end() && wanted.split.empty() && names.size() == 1) chosen = names.begin();
  if (chosen == names.end())
    fail(ExitCode::kNoInput, "{}: has no split '{}'{}", wanted.repo.text(), printable(split),
         hint(split, names));
  const Paths& files = splits[static_cast<size_t>(chosen - names.begin())].second;
  if (files.empty())
    fail(ExitCode::kNoInput, "{}: no file matches the data_files of its split '{}'", wanted.repo.text(),
         printable(*chosen));
  for (const std::string& file : files) {
    if (!is_data_file(file))
      fail(ExitCode::kBadData,
           "{}: {}: expected parquet, json, jsonl, csv, tsv, txt or safetensors, perhaps with .gz or .zst: "
           "try its branch {}@refs/convert/parquet",
           wanted.repo.text(), printable(file, 200), wanted.repo.id);
  }
  return of_one_format(files, wanted.repo.text());
}

}  // namespace tessera
