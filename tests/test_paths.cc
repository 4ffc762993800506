#include "test_paths.h"

#include <algorithm>

namespace tessera {

std::filesystem::path source_folder() { return TESSERA_SOURCE_DIR; }

std::filesystem::path shared_folder() { return source_folder().parent_path() / "shared"; }

std::vector<std::filesystem::path> reference_cases() {
  std::vector<std::filesystem::path> folders;
  const std::filesystem::path root = shared_folder() / "reference";
  if (!std::filesystem::is_directory(root)) return folders;
  for (const auto& entry : std::filesystem::directory_iterator(root)) {
    if (std::filesystem::exists(entry.path() / "case.json")) folders.push_back(entry.path());
  }
  std::sort(folders.begin(), folders.end());
  return folders;
}

}  // namespace tessera
