#include "monitor/records/run_report.h"

#include <sys/stat.h>

#include <algorithm>
#include <set>

#include "base/clock.h"
#include "base/error.h"
#include "io/absolute_path.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;

// The last `num_parts` names of the path: "b/model" of "/a/b/model" for 2.
std::string end_of(const fs::path& path, int num_parts) {
  fs::path name;
  fs::path rest = path;
  for (int i = 0; i < num_parts && rest.has_filename(); ++i) {
    name = name.empty() ? rest.filename() : rest.filename() / name;
    rest = rest.parent_path();
  }
  return name.string();
}

std::vector<std::string> names_of(const std::vector<fs::path>& folders) {
  std::vector<fs::path> paths;
  for (const fs::path& folder : folders) {
    paths.push_back(plain_path(folder));
    if (std::count(paths.begin(), paths.end(), paths.back()) > 1)
      fail(ExitCode::kUsage, "{}: this run was given twice", folder.string());
  }
  for (int num_parts = 1;; ++num_parts) {
    std::vector<std::string> names;
    for (const fs::path& path : paths) names.push_back(end_of(path, num_parts));
    if (std::set<std::string>(names.begin(), names.end()).size() == names.size()) return names;
  }
}

}  // namespace

nlohmann::ordered_json run_json(const std::string& name, const RunRecords& records, double updated,
                                int64_t max_steps) {
  nlohmann::ordered_json json = records.json();
  json["name"] = name;
  json["updated"] = updated;
  json["steps"] = records.steps().json(0, records.steps().last_step(), max_steps);
  return json;
}

fs::path plain_path(const fs::path& folder) {
  const fs::path path = absolute_path(folder).lexically_normal();
  return path.has_filename() ? path : path.parent_path();
}

double last_written(const fs::path& folder) {
  struct stat status = {};
  if (stat((folder / "metrics.jsonl").c_str(), &status) != 0) return 0;
  return static_cast<double>(status.st_mtim.tv_sec) + 1e-9 * static_cast<double>(status.st_mtim.tv_nsec);
}

nlohmann::ordered_json run_report(const std::vector<fs::path>& folders) {
  const std::vector<std::string> names = names_of(folders);
  nlohmann::ordered_json runs = nlohmann::json::array();
  for (size_t i = 0; i < folders.size(); ++i)
    runs.push_back(run_json(names[i], read_run_folder(folders[i]), last_written(folders[i])));
  return {{"time", unix_seconds()}, {"runs", std::move(runs)}};
}

}  // namespace tessera
