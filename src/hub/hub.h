// Models and data sets of the Hugging Face Hub as files on this machine, in the cache of its Python library
// huggingface_hub: files that it downloaded are used, and the other way round.
//
// Every function here may be called by all ranks and processes of a machine at the same time: one downloads,
// the others wait for it (lock files in CACHE/.locks) and then find the files.
//
// Errors are one line: kNoInput for what the Hub does not have or does not give to this user, kIoError for
// network, disk and damaged content, kBadData for answers that are not a hub's, kBadConfig for a data set
// without readable files.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "hub/hub_settings.h"
#include "hub/repo_name.h"

namespace tessera {

struct HubProgress {
  std::string name;         // of the repository
  bool is_waiting = false;  // another process downloads it
  int64_t num_files = 0;
  int64_t num_files_done = 0;
  int64_t total_bytes = 0;  // of all files that were not in the cache
  int64_t done_bytes = 0;   // of those; includes what an earlier, interrupted download left
  double bytes_per_second = 0;
};

// Called by one thread at a time, up to about 20 times a second; once more when a download is complete.
using HubProgressCallback = std::function<void(const HubProgress&)>;

// Files that a command needs of a model.
enum class ModelFiles {
  kAll,        // *.safetensors, configuration, tokenizer, chat template
  kNoWeights,  // all but the weights
};

// The folder of a model: `name_or_path` itself unless hub_model_name() takes it for a name. Downloads the
// files that are not in the cache; what training does not read stays on the Hub (*.bin, *.pth, *.gguf,
// *.onnx, subfolders). Offline, or if the Hub cannot be reached (with a warning), the cache has to have it.
std::filesystem::path resolve_model(const std::string& name_or_path, ModelFiles files,
                                    const HubSettings& settings, const HubProgressCallback& progress = {});

// The data files of a data set if `name_or_path` is a name for hub_dataset_name(), otherwise the path itself.
// Which files make up a configuration and a split is as in Hugging Face's datasets: `configs` of its card
// (README.md), else data/SPLIT-00000-of-00001.parquet, else folders or files named by splits, else all files
// are "train". A data set that has only a loading script or files of other formats is taken from its branch
// refs/convert/parquet. Formats: parquet, json, jsonl, ndjson, csv, tsv, txt, safetensors, each also
// compressed as .gz or .zst.
std::vector<std::filesystem::path> resolve_dataset(const std::string& name_or_path,
                                                   const HubSettings& settings,
                                                   const HubProgressCallback& progress = {});

struct PullRequest {
  RepoName repo;
  // Globs as Python's fnmatch has them: '*' matches slashes too, "folder/" is all files in it. Without any,
  // the files that training needs: of a model those of resolve_model(), of a data set data files and cards.
  std::vector<std::string> include;
  std::vector<std::string> exclude;
};

// Downloads the files of a repository; returns the snapshot's folder.
std::filesystem::path pull(const PullRequest& request, const HubSettings& settings,
                           const HubProgressCallback& progress = {});

}  // namespace tessera
