#include "data/sources/source_files.h"

#include <filesystem>

#include "base/error.h"
#include "base/text.h"
#include "hub/dataset_splits.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;

void keep_split(const fs::path& folder, const std::vector<std::string>& splits, InputFiles* found) {
  std::vector<std::string> paths;
  for (const fs::path& file : found->files) paths.push_back(file.lexically_relative(folder).generic_string());
  const FolderSplit chosen = choose_folder_split(folder.string(), read_dataset_card(folder), paths, splits);
  if (chosen.name.empty()) return;
  found->files.clear();
  for (const std::string& file : chosen.files) found->files.push_back(folder / file);
  if (!chosen.left_out.empty()) {
    found->left_out.push_back(fmt::format("{}: reading the split {}, not {}", printable(folder.string(), 200),
                                          printable(chosen.name), chosen.left_out));
  }
}

}  // namespace

InputFiles find_source_files(const std::vector<std::string>& patterns,
                             const std::vector<std::string>& splits) {
  if (patterns.empty()) return find_input_files(patterns, InputUse::kDataset);
  InputFiles all;
  for (const std::string& pattern : patterns) {
    InputFiles found = find_input_files({pattern}, InputUse::kDataset);
    std::error_code error;
    if (fs::is_directory(pattern, error)) keep_split(pattern, splits, &found);
    all.files.insert(all.files.end(), found.files.begin(), found.files.end());
    all.left_out.insert(all.left_out.end(), found.left_out.begin(), found.left_out.end());
  }
  return all;
}

}  // namespace tessera
