#include "hub/hub.h"

#include <algorithm>
#include <optional>

#include "base/error.h"
#include "base/log.h"
#include "base/text.h"
#include "hub/dataset_splits.h"
#include "hub/file_choice.h"
#include "hub/snapshot.h"
#include "io/file.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kMaxCardBytes = 64 << 20;
constexpr const char* kConvertedRevision = "refs/convert/parquet";

std::vector<std::string> paths_of(const Snapshot& snapshot) {
  std::vector<std::string> paths;
  for (const HubFile& file : snapshot.files()) paths.push_back(file.path);
  std::sort(paths.begin(), paths.end());
  return paths;
}

bool ends_with_any(const std::vector<std::string>& paths, std::initializer_list<std::string_view> endings) {
  return std::any_of(paths.begin(), paths.end(), [&](const std::string& path) {
    return std::any_of(endings.begin(), endings.end(),
                       [&](std::string_view ending) { return path.ends_with(ending); });
  });
}

// Explains a repository that is no model Tessera can read.
void check_has_model(const Snapshot& snapshot, const std::vector<std::string>& chosen, ModelFiles files) {
  const std::string name = snapshot.repo().text();
  const std::string where = snapshot.is_partial() ? " in the cache" : "";
  if (files == ModelFiles::kAll && !ends_with_any(chosen, {".safetensors"})) {
    const std::vector<std::string> paths = paths_of(snapshot);
    const char* found = ends_with_any(paths, {".bin", ".pth", ".pt"}) ? "only PyTorch's .bin or .pth files"
                        : ends_with_any(paths, {".gguf"})             ? "only GGUF files"
                                                                      : "none";
    fail(ExitCode::kNoInput,
         "{}: expected weights in .safetensors files{}, found {}: look for a converted model", name, where,
         found);
  }
  if (chosen.empty())
    fail(ExitCode::kNoInput, "{}: has no configuration or tokenizer of a model{}", name, where);
}

std::vector<DatasetConfig> read_card(Snapshot& snapshot, const std::vector<std::string>& paths) {
  constexpr const char* kCard = "README.md";
  if (!std::binary_search(paths.begin(), paths.end(), kCard)) return {};
  snapshot.fetch({kCard});
  return parse_dataset_card(read_text_file(snapshot.folder() / kCard, kMaxCardBytes),
                            snapshot.repo().text() + ": README.md");
}

std::vector<fs::path> fetch_split(Snapshot& snapshot, const DatasetName& name,
                                  const std::vector<DatasetConfig>& configs,
                                  const std::vector<std::string>& paths) {
  const std::vector<std::string> chosen = choose_split(name, configs, paths);
  snapshot.fetch(chosen);
  std::vector<fs::path> files;
  for (const std::string& path : chosen) files.push_back(snapshot.folder() / path);
  return files;
}

std::vector<fs::path> resolve_converted(DatasetName name, const std::string& reason,
                                        const HubSettings& settings, const HubProgressCallback& progress) {
  name.repo.revision = kConvertedRevision;
  std::optional<Snapshot> snapshot;
  try {
    snapshot.emplace(name.repo, settings, progress);
  } catch (const Error& error) {
    if (error.code() != ExitCode::kNoInput) throw;
    fail(ExitCode::kBadConfig, "{}: {}, and there is no {} of it: convert it to parquet or jsonl yourself",
         name.repo.id, reason, kConvertedRevision);
  }
  log_info("{}: {}: taking the conversion to Parquet, {}", name.repo.id, reason, name.repo.text());
  const std::vector<std::string> paths = paths_of(*snapshot);
  return fetch_split(*snapshot, name, converted_configs(paths), paths);
}

}  // namespace

fs::path resolve_model(const std::string& name_or_path, ModelFiles files, const HubSettings& settings,
                       const HubProgressCallback& progress) {
  const std::optional<RepoName> repo = hub_model_name(name_or_path);
  if (!repo) return name_or_path;
  Snapshot snapshot(*repo, settings, progress);
  std::vector<std::string> chosen = choose_model_files(snapshot.files(), files);
  std::erase_if(chosen, [&snapshot](const std::string& path) {
    return is_for_other_programs(path) && snapshot.lacks(path);
  });
  check_has_model(snapshot, chosen, files);
  snapshot.fetch(chosen);
  return snapshot.folder();
}

std::vector<fs::path> resolve_dataset(const std::string& name_or_path, const HubSettings& settings,
                                      const HubProgressCallback& progress) {
  const std::optional<DatasetName> name = hub_dataset_name(name_or_path);
  if (!name) return {name_or_path};
  Snapshot snapshot(name->repo, settings, progress);
  const std::vector<std::string> paths = paths_of(snapshot);
  if (name->repo.revision == kConvertedRevision)
    return fetch_split(snapshot, *name, converted_configs(paths), paths);
  const std::string script = name->repo.id.substr(name->repo.id.find('/') + 1) + ".py";
  if (std::binary_search(paths.begin(), paths.end(), script))
    return resolve_converted(*name, "has a loading script, which is not run", settings, progress);
  if (std::none_of(paths.begin(), paths.end(), [](const std::string& path) { return is_data_file(path); }))
    return resolve_converted(*name, "has no files in a format that is read", settings, progress);
  return fetch_split(snapshot, *name, read_card(snapshot, paths), paths);
}

fs::path pull(const PullRequest& request, const HubSettings& settings, const HubProgressCallback& progress) {
  Snapshot snapshot(request.repo, settings, progress);
  snapshot.fetch(choose_files(snapshot.files(), request));
  return snapshot.folder();
}

}  // namespace tessera
