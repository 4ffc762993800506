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

std::filesystem::path data_folder() { return source_folder() / "tests" / "data"; }

const char* tessera_binary() { return TESSERA_BUILD_DIR "/tessera"; }
const char* fake_nvml_library() { return TESSERA_BUILD_DIR "/fake_nvml/libnvidia-ml.so.1"; }

std::filesystem::path shared_folder() { return source_folder().parent_path() / "shared"; }

namespace {

std::vector<std::string> cases_below(const std::filesystem::path& root) {
  std::vector<std::string> names;
  if (!std::filesystem::is_directory(root)) return names;
  for (const auto& entry : std::filesystem::directory_iterator(root)) {
    if (std::filesystem::exists(entry.path() / "case.json")) names.push_back(entry.path().filename());
  }
  std::sort(names.begin(), names.end());
  return names;
}

}  // namespace

std::vector<std::string> reference_case_names() {
  std::vector<std::string> names = cases_below(data_folder() / "reference");
  const std::vector<std::string> others = cases_below(shared_folder() / "reference");
  names.insert(names.end(), others.begin(), others.end());
  if (others.empty()) names.emplace_back(kAbsent);
  return names;
}

std::filesystem::path reference_case(const std::string& name) {
  const std::filesystem::path own = data_folder() / "reference" / name;
  return std::filesystem::exists(own) ? own : shared_folder() / "reference" / name;
}

std::vector<std::filesystem::path> reference_cases() {
  std::vector<std::filesystem::path> folders;
  for (const std::string& name : reference_case_names()) {
    if (name != kAbsent) folders.push_back(reference_case(name));
  }
  return folders;
}

std::vector<std::filesystem::path> deepspeed_folders() {
  std::vector<std::filesystem::path> folders = {data_folder() / "deepspeed-configs"};
  const std::filesystem::path shared = shared_folder() / "data" / "deepspeed-configs";
  if (std::filesystem::is_directory(shared)) folders.push_back(shared);
  return folders;
}

}  // namespace tessera
