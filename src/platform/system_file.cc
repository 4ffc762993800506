#include "platform/system_file.h"

#include <algorithm>
#include <fstream>
#include <sstream>

namespace tessera {

namespace fs = std::filesystem;

std::optional<std::string> first_line_of(const fs::path& path) {
  std::ifstream in(path);
  std::string line;
  if (!std::getline(in, line) || line.empty()) return std::nullopt;
  return line;
}

std::optional<int64_t> number_in(const fs::path& path) {
  const std::optional<std::string> line = first_line_of(path);
  int64_t value = 0;
  if (!line || !(std::istringstream(*line) >> value)) return std::nullopt;
  return value;
}

std::optional<int64_t> number_of_line(const fs::path& path, const std::string& name) {
  std::ifstream in(path);
  for (std::string line; std::getline(in, line);) {
    std::istringstream words(line);
    std::string first;
    int64_t value = 0;
    if (words >> first && (first == name || first == name + ":") && words >> value) return value;
  }
  return std::nullopt;
}

std::vector<fs::path> entries_of(const fs::path& folder, const std::string& prefix) {
  std::vector<fs::path> found;
  std::error_code error;
  for (fs::directory_iterator entry(folder, error), end; !error && entry != end; entry.increment(error)) {
    if (entry->path().filename().native().starts_with(prefix)) found.push_back(entry->path());
  }
  std::ranges::sort(found);
  return found;
}

std::optional<double> uptime_s(const fs::path& root) {
  const std::optional<std::string> line = first_line_of(root / "proc/uptime");
  double seconds = 0;
  if (!line || !(std::istringstream(*line) >> seconds)) return std::nullopt;
  return seconds;
}

}  // namespace tessera
