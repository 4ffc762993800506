#include "platform/system.h"

#include <sys/resource.h>
#include <unistd.h>
#include <algorithm>
#include <array>
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

std::string host_name() {
  std::array<char, 256> name = {};
  if (gethostname(name.data(), name.size() - 1) != 0 || name[0] == '\0') return "localhost";
  return name.data();
}

namespace {

rlimit limit_before = {};
bool is_raised = false;

}  // namespace

std::filesystem::path program_path() { return std::filesystem::read_symlink("/proc/self/exe"); }

std::optional<int64_t> open_file_limit() {
  rlimit limit = {};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return std::nullopt;
  return static_cast<int64_t>(limit.rlim_cur);
}

void raise_open_file_limit() {
  if (is_raised || getrlimit(RLIMIT_NOFILE, &limit_before) != 0) return;
  const rlimit raised = {limit_before.rlim_max, limit_before.rlim_max};
  is_raised = setrlimit(RLIMIT_NOFILE, &raised) == 0;
}

void restore_open_file_limit() {
  if (is_raised) setrlimit(RLIMIT_NOFILE, &limit_before);
}

}  // namespace tessera
