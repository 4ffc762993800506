// The files that make up the configurations and splits of a data set on the Hub.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "hub/repo_name.h"

namespace tessera {

struct DatasetSplit {
  std::string name;                // "train"
  std::vector<std::string> globs;  // for matches_path_glob()
};

struct DatasetConfig {
  std::string name;  // "default" if the card gives none
  bool is_default = false;
  std::string data_dir;              // "" = the repository
  std::vector<DatasetSplit> splits;  // empty: found by the names of the files in data_dir
};

// `configs` of the YAML block at the front of a card (README.md); empty if it has none. Error(kBadData)
// naming `origin` if the block is not YAML or `configs` does not have the form that Hugging Face's datasets
// reads.
std::vector<DatasetConfig> parse_dataset_card(std::string_view card, const std::string& origin);
// Reads README.md in a local folder; empty if it has none.
std::vector<DatasetConfig> read_dataset_card(const std::filesystem::path& folder);

// The data files of `wanted`, in the order of the globs and then by path; if there are several formats, those
// of the most frequent one. A configuration that is not named is the default one or the only one; a split
// that is not named is "train" or the only one. Error(kNoInput) that lists the names there are, if there is
// no such configuration or split; kBadData if it has files in formats that are not supported. `paths` are all
// files of the repository, sorted; without configs, the files are grouped as in datasets/data_files.py, or as
// in a branch refs/convert/parquet: CONFIG/SPLIT/0000.parquet.
std::vector<std::string> choose_split(const DatasetName& wanted, const std::vector<DatasetConfig>& configs,
                                      const std::vector<std::string>& paths);

// The files to read in a local folder, by the splits that datasets.load_dataset(folder) finds in it.
struct FolderSplit {
  std::vector<std::string> files;
  std::string name;      // "" if the folder has no splits: all of its files
  std::string left_out;  // "1 file of the split test, 2 files of no split"; "" if nothing is
};

// The files of the first split of `preferred` that there is, or of the only split if it has all data files.
// `paths` are all files of the folder, relative to it, sorted. Error(kBadConfig) naming `folder` and the
// splits if it has others; several configurations.
FolderSplit choose_folder_split(const std::string& folder, const std::vector<DatasetConfig>& configs,
                                const std::vector<std::string>& paths,
                                const std::vector<std::string>& preferred);

// The configurations of the branch refs/convert/parquet of a repository, from its files.
std::vector<DatasetConfig> converted_configs(const std::vector<std::string>& paths);

}  // namespace tessera
