#include "hub/file_choice.h"

#include <fnmatch.h>

#include <algorithm>
#include <array>

#include "base/error.h"
#include "base/name_hint.h"
#include "base/text.h"

namespace tessera {
namespace {

constexpr std::array kSettings = {"config.json",
                                  "generation_config.json",
                                  "tokenizer.json",
                                  "tokenizer_config.json",
                                  "vocab.json",
                                  "special_tokens_map.json",
                                  "added_tokens.json",
                                  "tokenizer.model",
                                  "merges.txt",
                                  "vocab.txt",
                                  "chat_template.jinja",
                                  "chat_template.json",
                                  "additional_chat_templates/*.jinja"};
// The files in kSettings that only other programs read; they are copied beside a trained model if present.
constexpr std::array<std::string_view, 6> kForOthers = {
    "vocab.json", "added_tokens.json", "tokenizer.model", "merges.txt", "vocab.txt", "chat_template.json"};
constexpr std::array kWeights = {"model.safetensors", "model-*-of-*.safetensors",
                                 "model.safetensors.index.json"};
// FILES_TO_IGNORE in datasets/data_files.py, and what Dataset.save_to_disk and git add.
constexpr std::array<std::string_view, 8> kDescriptions = {
    "README.md",         "config.json", "dataset_info.json", "dataset_infos.json",
    "dataset_dict.json", "state.json",  "LICENSE.txt",       "requirements.txt"};

// The match of Python's fnmatch.
bool matches_fnmatch(std::string pattern, const std::string& path) {
  if (pattern.ends_with('/')) pattern += '*';
  return ::fnmatch(pattern.c_str(), path.c_str(), FNM_NOESCAPE) == 0;
}

bool matches_any(const auto& patterns, const std::string& path) {
  return std::any_of(std::begin(patterns), std::end(patterns), [&](const std::string& pattern) {
    return ::fnmatch(pattern.c_str(), path.c_str(), FNM_PATHNAME | FNM_NOESCAPE) == 0;
  });
}

// The length of the set "[...]" at the front of a glob, 0 if it has none; `matches` says whether c is in it.
size_t match_set(std::string_view glob, char c, bool* matches) {
  if (!glob.starts_with('[')) return 0;
  const bool is_negated = glob.size() > 1 && (glob[1] == '!' || glob[1] == '^');
  const size_t begin = is_negated ? 2 : 1;
  const size_t end = glob.find(']', begin + 1);
  if (end == std::string_view::npos) return 0;
  bool found = false;
  for (size_t i = begin; i < end; ++i) {
    if (i + 2 < end && glob[i + 1] == '-') {
      found = found || (glob[i] <= c && c <= glob[i + 2]);
      i += 2;
    } else {
      found = found || glob[i] == c;
    }
  }
  *matches = found != is_negated && c != '/';
  return end + 1;
}

}  // namespace

bool matches_path_glob(std::string_view glob, std::string_view path) {
  // reached[i]: the glob so far can match path[0, i).
  std::vector<char> reached(path.size() + 1, 0);
  reached[0] = 1;
  while (!glob.empty()) {
    std::vector<char> next(path.size() + 1, 0);
    size_t length = 1;
    if (glob[0] == '*') {
      const bool crosses = glob.starts_with("**");
      const bool is_folders = glob.starts_with("**/");
      length = is_folders ? 3 : crosses ? 2 : 1;
      bool is_open = false;
      for (size_t i = 0; i <= path.size(); ++i) {
        if (i > 0 && !crosses && path[i - 1] == '/') is_open = false;
        is_open = is_open || reached[i] != 0;
        const bool is_after_folder = i > 0 && path[i - 1] == '/';
        next[i] = is_folders ? static_cast<char>(reached[i] != 0 || (is_open && is_after_folder))
                             : static_cast<char>(is_open);
      }
    } else {
      for (size_t i = 0; i < path.size(); ++i) {
        bool matches = glob[0] == '?' ? path[i] != '/' : glob[0] == path[i];
        const size_t set = match_set(glob, path[i], &matches);
        length = std::max<size_t>(set, 1);
        if (reached[i] != 0 && matches) next[i + 1] = 1;
      }
      if (path.empty()) return false;
    }
    reached = std::move(next);
    glob.remove_prefix(length);
  }
  return reached.back() != 0;
}

const DataEnding* data_ending_of(std::string_view path) {
  std::string lower = lower_case(std::string(path));
  for (const std::string_view packed : {".gz", ".zst"}) {
    if (lower.ends_with(packed)) {
      lower.resize(lower.size() - packed.size());
      break;
    }
  }
  const auto* const found = std::ranges::find_if(
      kDataEndings, [&](const DataEnding& known) { return lower.ends_with(known.ending); });
  return found == std::end(kDataEndings) ? nullptr : found;
}

bool is_data_file(std::string_view path) {
  const std::string_view name = path.substr(path.find_last_of('/') + 1);
  if (std::find(kDescriptions.begin(), kDescriptions.end(), name) != kDescriptions.end()) return false;
  const bool is_hidden = path.starts_with('.') || path.find("/.") != std::string_view::npos;
  if (is_hidden || path.starts_with("__") || path.find("/__") != std::string_view::npos) return false;
  return data_ending_of(name) != nullptr;
}

bool is_for_other_programs(std::string_view path) {
  return std::find(kForOthers.begin(), kForOthers.end(), path) != kForOthers.end();
}

std::vector<std::string> choose_model_files(const std::vector<HubFile>& files, ModelFiles wanted) {
  std::vector<std::string> chosen;
  std::vector<std::string> other_weights;
  bool has_weights = false;
  for (const HubFile& file : files) {
    const bool is_weights = matches_any(kWeights, file.path);
    has_weights = has_weights || is_weights;
    if (matches_any(kSettings, file.path) || (is_weights && wanted == ModelFiles::kAll))
      chosen.push_back(file.path);
    if (matches_any(std::array{"*.safetensors"}, file.path)) other_weights.push_back(file.path);
  }
  // Weights under names of their own.
  if (!has_weights && wanted == ModelFiles::kAll)
    chosen.insert(chosen.end(), other_weights.begin(), other_weights.end());
  return chosen;
}

std::vector<std::string> choose_files(const std::vector<HubFile>& files, const PullRequest& request) {
  std::vector<std::string> names;
  for (const HubFile& file : files) names.push_back(file.path);
  std::vector<std::string> chosen;
  if (!request.include.empty()) {
    for (const std::string& pattern : request.include) {
      const bool matches = std::any_of(names.begin(), names.end(), [&](const std::string& name) {
        return matches_fnmatch(pattern, name);
      });
      if (matches) continue;
      const std::string nearest = nearest_name(pattern, names);
      fail(ExitCode::kNoInput, "{}: no file matches '{}'{}", request.repo.text(), printable(pattern),
           nearest.empty() ? "" : fmt::format("; did you mean '{}'?", nearest));
    }
    std::copy_if(names.begin(), names.end(), std::back_inserter(chosen), [&](const std::string& name) {
      return std::any_of(request.include.begin(), request.include.end(),
                         [&](const std::string& pattern) { return matches_fnmatch(pattern, name); });
    });
  } else if (request.repo.type == RepoType::kModel) {
    chosen = choose_model_files(files, ModelFiles::kAll);
  } else {
    std::copy_if(names.begin(), names.end(), std::back_inserter(chosen),
                 [](const std::string& name) { return name == "README.md" || is_data_file(name); });
  }
  std::erase_if(chosen, [&](const std::string& name) {
    return std::any_of(request.exclude.begin(), request.exclude.end(),
                       [&](const std::string& pattern) { return matches_fnmatch(pattern, name); });
  });
  if (chosen.empty())
    fail(ExitCode::kNoInput, "{}: none of its {} is wanted: --include names files", request.repo.text(),
         count_of(std::ssize(names), "file"));
  return chosen;
}

}  // namespace tessera
