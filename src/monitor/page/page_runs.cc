#include "monitor/page/page_runs.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "monitor/records/run_report.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;

constexpr size_t kMaxReadRuns = 4;  // a run of 100,000 steps takes 25 MB

// Folders of runs inside `folder`; none if it cannot be read.
std::vector<fs::path> run_folders_in(const fs::path& folder) {
  std::vector<fs::path> found;
  std::error_code error;
  for (auto it = fs::directory_iterator(folder, error); !error && it != fs::directory_iterator();
       it.increment(error)) {
    if (is_run_folder(it->path())) found.push_back(it->path());
  }
  return found;
}

}  // namespace

PageRuns::PageRuns(const fs::path& output_dir)
    : output_dir_(plain_path(output_dir)), own_name_(output_dir_.filename().string()) {}

void PageRuns::find_runs() {
  folders_.clear();
  for (const fs::path& folder : run_folders_in(output_dir_))
    folders_[own_name_ + "/" + folder.filename().string()] = folder;
  for (const fs::path& folder : run_folders_in(output_dir_.parent_path())) {
    if (folder.filename() != output_dir_.filename()) folders_[folder.filename().string()] = folder;
  }
}

nlohmann::ordered_json PageRuns::list() {
  find_runs();
  std::vector<std::pair<double, std::string>> others;
  for (const auto& [name, folder] : folders_) others.emplace_back(last_written(folder), name);
  std::ranges::sort(others, std::greater<>());
  if (others.size() > kMaxRuns) others.resize(kMaxRuns);
  const double now = unix_seconds();
  nlohmann::ordered_json json = {
      {"live", own_name_}, {"time", now}, {"runs", {{{"name", own_name_}, {"updated", now}}}}};
  for (const auto& [updated, name] : others) json["runs"].push_back({{"name", name}, {"updated", updated}});
  return json;
}

double PageRuns::updated(const std::string& name) const {
  const auto folder = folders_.find(name);
  return folder == folders_.end() ? 0 : last_written(folder->second);
}

std::shared_ptr<const RunRecords> PageRuns::read(const std::string& name) {
  if (folders_.empty()) find_runs();
  const auto folder = folders_.find(name);
  if (folder == folders_.end()) return nullptr;
  const double updated = last_written(folder->second);
  if (const auto found = read_.find(name); found != read_.end() && found->second.updated == updated)
    return found->second.records;
  auto records = std::make_shared<const RunRecords>(read_run_folder(folder->second));
  if (read_.size() >= kMaxReadRuns) read_.clear();
  read_[name] = {updated, records};
  return records;
}

}  // namespace tessera
