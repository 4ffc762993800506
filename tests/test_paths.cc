#include "test_paths.h"

#include <algorithm>
#include <fstream>
#include <iterator>

namespace tessera {

std::filesystem::path source_folder() { return TESSERA_SOURCE_DIR; }

std::vector<std::filesystem::path> source_files() {
  std::vector<std::filesystem::path> files;
  for (const char* folder : {"src", "tests"}) {
    for (const auto& entry : std::filesystem::recursive_directory_iterator(source_folder() / folder)) {
      const std::string extension = entry.path().extension();
      if (extension == ".h" || extension == ".cc") files.push_back(entry.path());
    }
  }
  std::sort(files.begin(), files.end());
  return files;
}

std::string read_source(const std::filesystem::path& file) {
  std::ifstream in(file, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

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
